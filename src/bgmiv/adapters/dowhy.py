"""IV methods as an estimator of DoWhy, by the path of its class: `iv.bgmiv.adapters.dowhy.DoWhyEstimator`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from scipy.stats import norm

from bgmiv.adapters import unfitted_copy
from bgmiv.errors import ConfigError, MissingExtraError, NotFittedError

try:
    from dowhy.causal_estimator import CausalEstimate, CausalEstimator
except ImportError:  # the class still exists, to say what is missing
    CausalEstimator = None

__all__ = ["DoWhyEstimator"]

_BASE: Any = CausalEstimator if CausalEstimator is not None else object


class DoWhyEstimator(_BASE):  # type: ignore[misc]
    """A bgmiv method under DoWhy's `CausalModel.estimate_effect`.

    ```python
    model = dowhy.CausalModel(data, treatment="price", outcome="sales", graph=graph)
    estimand = model.identify_effect(proceed_when_unidentifiable=True)
    estimate = model.estimate_effect(
        estimand,
        method_name="iv.bgmiv.adapters.dowhy.DoWhyEstimator",
        method_params={"estimator": BGMIV(random_state=0)},
        control_value=5.0,
        treatment_value=6.0,
        confidence_intervals=True,
    )
    ```

    Instruments are those that DoWhy has identified, covariates its adjustment set and the effect modifiers. Where an
    unobserved confounder leaves DoWhy without an adjustment set, name covariates by `covariates`. The estimate is the
    average effect over the target units; `estimate.estimator.fitted` is the fitted method with all its own methods.

    Intervals, standard errors and p-values are the method's own where it has intervals (`BGMIV`, `TSLS`), by the normal
    approximation for p-values; for other methods DoWhy's bootstrap is used, which fits hundreds of times.

    Args:
        identified_estimand: what DoWhy identified.
        estimator: a bgmiv method such as `BGMIV()` or `TSLS()`, which is copied; None for `BGMIV()`.
        covariates: names of columns, instead of the adjustment set and the effect modifiers.
        iv_instrument_name: one or more of the identified instruments; None for all of them.
        **options: DoWhy's own, such as `confidence_level`.

    Raises:
        MissingExtraError: DoWhy is not installed.
    """

    def __init__(
        self,
        identified_estimand: Any,
        estimator: Any = None,
        covariates: Sequence[str] | None = None,
        iv_instrument_name: str | Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        if CausalEstimator is None:
            raise MissingExtraError("DoWhyEstimator needs dowhy: pip install 'pybgmiv[dowhy]'")
        # DoWhy passes the path of the class on to it.
        options.pop("bgmiv_estimator", None)
        super().__init__(identified_estimand, **options)
        self.estimator = estimator
        self.covariates = covariates
        self.iv_instrument_name = iv_instrument_name

    @property
    def fitted(self) -> Any:
        """The fitted method."""
        if not hasattr(self, "_model"):
            raise NotFittedError("this DoWhyEstimator is not fitted yet: call fit(data) first.")
        return self._model

    def fit(self, data: Any, effect_modifier_names: Sequence[str] | None = None) -> Self:
        """Fit the method on the columns that DoWhy's estimand names; effect modifiers join the covariates."""
        self.reset_encoders()
        estimand = self._target_estimand
        self._set_effect_modifiers(data, None if effect_modifier_names is None else list(effect_modifier_names))
        instruments = _listed(self.iv_instrument_name) or list(estimand.instrumental_variables or [])
        if not instruments:
            raise ConfigError("DoWhy found no instruments. Name some: CausalModel(..., instruments=[...]), or a graph.")
        if len(estimand.treatment_variable) != 1:
            raise ConfigError(f"there must be one treatment, got {', '.join(estimand.treatment_variable)}.")
        adjusted = [*estimand.get_adjustment_set(), *self._effect_modifier_names]
        chosen = adjusted if self.covariates is None else _listed(self.covariates)
        self._names = [name for name in dict.fromkeys(chosen) if name not in instruments]
        self.estimating_instrument_names = instruments
        self._model = unfitted_copy(self.estimator).fit_table(
            data,
            outcome=estimand.outcome_variable[0],
            treatment=estimand.treatment_variable[0],
            instruments=instruments,
            covariates=self._names,
        )
        self.symbolic_estimator = self.construct_symbolic_estimator(estimand)
        return self

    def estimate_effect(
        self, data: Any, treatment_value: Any = 1, control_value: Any = 0, target_units: Any = None, **_: Any
    ) -> Any:
        """The average effect over the target units, as DoWhy's `CausalEstimate`.

        Target units are "ate" or None for all rows, "att" or "atc" for those with one of the two treatments, a
        function of the table that marks rows, or a table of other units with the covariates' columns.
        """
        self.update_input(treatment_value, control_value, target_units)
        self._asked = self._units(data, target_units)
        effects = np.asarray(self.fitted.effect(**self._question(self._asked)), np.float64)
        conditional = None
        if self.need_conditional_estimates and self._effect_modifier_names:
            conditional = self._estimate_conditional_effects(
                self._asked.reset_index(drop=True), lambda part: float(effects[part.index].mean())
            )
        estimate = CausalEstimate(
            data=data,
            treatment_name=self._target_estimand.treatment_variable,
            outcome_name=self._target_estimand.outcome_variable,
            estimate=float(effects.mean()),
            control_value=control_value,
            treatment_value=treatment_value,
            target_estimand=self._target_estimand,
            realized_estimand_expr=self.symbolic_estimator,
            conditional_estimates=conditional,
            cate_estimates=effects,
        )
        estimate.add_estimator(self)
        return estimate

    def construct_symbolic_estimator(self, estimand: Any) -> str:
        """What is estimated, for DoWhy's summary, which lists the assumptions before it."""
        instruments, others = ", ".join(self.estimating_instrument_names), ", ".join(self._names)
        return (
            f"structural function by bgmiv.{type(self.fitted).__name__}: E[g(treated, v) - g(control, v)], "
            f"E[{estimand.outcome_variable[0]} - g({estimand.treatment_variable[0]}, v) | {instruments}, v] = 0, "
            f"v = ({others})"
        )

    def _units(self, data: Any, units: Any) -> Any:
        if units is None or (isinstance(units, str) and units == "ate"):
            return data
        if callable(units):
            return data[np.asarray(units(data), dtype=bool)]
        if not isinstance(units, str):
            return units
        if units not in ("att", "atc"):
            raise ConfigError(f"target_units must be 'ate', 'att', 'atc', a function or a table, got {units!r}.")
        value = self._treatment_value if units == "att" else self._control_value
        chosen = data[data[self._target_estimand.treatment_variable[0]] == value]
        if not len(chosen):
            raise ConfigError(f"target_units {units!r}: no row has the treatment {value!r}.")
        return chosen

    def _question(self, units: Any) -> dict[str, Any]:
        rows = units if self._names else None
        return {"covariates": rows, "t0": self._control_value, "t1": self._treatment_value}

    def _interval(self, level: float) -> Any:
        try:
            return self.fitted.ate_interval(**self._question(self._asked), level=level)
        except ConfigError as error:
            # The method gives point estimates only; DoWhy uses its bootstrap for what is not implemented.
            raise NotImplementedError(str(error)) from error

    def _do(self, x: Any, data_df: Any = None) -> float:
        rows = self._asked if data_df is None else data_df
        return float(np.mean(self.fitted.predict(x, rows if self._names else None)))

    def _estimate_effect_fn(self, data_df: Any) -> float:
        return float(np.mean(self.fitted.effect(**self._question(data_df))))

    def _estimate_confidence_intervals(self, confidence_level: float, **_: Any) -> tuple[float, float]:
        lower, upper = self._interval(confidence_level)
        return float(lower), float(upper)

    def _estimate_std_error(self, method: Any = None, **_: Any) -> float:
        return float(self._interval(self.confidence_level).std_error)

    def _test_significance(self, estimate_value: float, method: Any = None, **_: Any) -> dict[str, float]:
        error = self._estimate_std_error()
        return {"p_value": float(2.0 * norm.sf(abs(estimate_value) / error)) if error > 0.0 else 0.0}


def _listed(names: str | Sequence[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())
