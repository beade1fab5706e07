"""What a method gives: a frozen config that fits, and a fitted result that answers questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar, cast

import numpy as np

from bgmiv.covariance import ErrorsName
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray, role_label
from bgmiv.data.query import Encoded, Query, Rows
from bgmiv.data.schema import Schema
from bgmiv.diagnostics.held_out import cross_fitted, held_out_evidence
from bgmiv.diagnostics.moments import MAX_TESTED
from bgmiv.effects import FitRows
from bgmiv.errors import ConfigError, DataError
from bgmiv.fitted import FitEvidence, FittedMethod
from bgmiv.intervals import Floats, Source
from bgmiv.linear_iv import strength_of
from bgmiv.preprocess.reduction import FittedReduction
from bgmiv.progress import Reporter, silent
from bgmiv.sieve.bases import SieveFunction
from bgmiv.support import LinearSupport

__all__ = [
    "FitOnRows", "FittedSieve", "MethodConfig", "check_instrument", "check_no_weights", "check_one_number",
    "chosen_preset", "judge_fit",
]  # fmt: skip

C = TypeVar("C")
F = TypeVar("F", bound="FittedMethod")


@dataclass(frozen=True, eq=False)
class FittedSieve(FittedMethod):
    """A fitted structural function that is linear in its coefficients; a final subclass says what its intervals are.

    Attributes:
        schema, support, reduction: what the fit keeps of its data.
        function: the structural function, and the covariance of its coefficients.
        errors: what the covariance allows for: "classical", "robust" or "clustered".
    """

    schema: Schema
    support: LinearSupport
    reduction: FittedReduction
    function: SieveFunction
    errors: ErrorsName
    closed_form = True

    @property
    def is_linear(self) -> bool:
        """Whether no term but the linear ones entered."""
        return self.function.is_linear

    @property
    def is_line(self) -> bool:
        """Whether a line has a probability above 0.95."""
        return self.function.is_line

    @property
    def first_stage_f(self) -> float | None:
        """That of the prediction of the treatment."""
        return self.function.first_stage_f

    def encode(self, covariates: FloatArray) -> Encoded:
        """What the function computes of covariates."""
        return self.function.encode(self.reduction.schema, self.reduction.transform(covariates))

    def at(self, query: Query) -> Floats:
        """The structural function in units of the outcome, `(m, n)`."""
        return self.function.at(query, query.rows.encoded_by(self))

    def factors(self, query: Query) -> tuple[Source, ...]:
        """Which rows were drawn, by the robust covariance; and the bias of smoothing, by its prior."""
        return self.function.factors(query, query.rows.encoded_by(self))

    def average_factors(self, query: Query) -> tuple[Source, ...]:
        """The same of averages: where all rows have the same treatments, columns are averaged before their products."""
        if query.treatment.shape[1] > 1 or self.function.effects is not None:
            return super().average_factors(query)
        parts = self.function.covariates(query.rows.encoded_by(self)[0])
        means = {kind: query.rows.shares[None] @ part for kind, part in parts.items()}
        middle = replace(self.function, covariates=cast(Any, lambda _: means))
        no_rows = np.zeros((1, 0))
        found = middle.factors(Query(query.treatment, Rows(no_rows)), (no_rows, no_rows, no_rows, no_rows))
        return tuple(source._replace(factors=source.factors[..., 0]) for source in found)


class MethodConfig(Protocol):
    """A method: a frozen config that fits; a dataclass with the field `use_instrument`, or one that replaces less."""

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> FittedMethod:
        """Fit on validated data; the same seed gives the same fit."""

    def without_instrument(self) -> Self:
        """The same method with its instruments ignored."""
        return replace(cast(Any, self), use_instrument=False)


def judge_fit(
    fitted: F, data: IVData, rows: Rows, refit: Callable[[IVData], FittedMethod], *, use_instrument: bool, seed: int = 0
) -> F:
    """The same fit with all that held-out rows say of it.

    Args:
        fitted: the fit.
        data: the rows of the fit, whose covariates `rows` holds.
        rows: see `data`.
        refit: the same method on other rows, for one in closed form: it holds rows out afterwards.
        use_instrument: False for a fit that ignores its instruments, of which their checks say nothing.
        seed: of the moment test's bootstrap.
    """
    known = FitEvidence() if fitted.evidence is None else fitted.evidence
    if not use_instrument:
        return replace(cast(Any, fitted), evidence=known)
    known = replace(known, linear=known.linear or fitted.is_linear)
    found = fitted.held_out_predictions(data, rows, MAX_TESTED)
    if found is None and fitted.closed_form:
        found = cross_fitted(data, lambda part: refit(part).at, MAX_TESTED)
    evidence = held_out_evidence(known, found, data, seed, strength_of(data, fitted.first_stage_f))
    return replace(cast(Any, fitted), evidence=evidence)


class FitOnRows:
    """A fit and the rows it was made of, with what is worked out of both when it is first asked for.

    Args:
        fitted: the fit.
        data: its rows.
        config: its method.
        seed: of the fit.
    """

    def __init__(self, fitted: FittedMethod, data: IVData, config: MethodConfig, seed: int) -> None:
        """Nothing is worked out yet."""
        self.fitted, self.data, self.config, self.seed = fitted, data, config, seed
        self.use_instrument: bool = getattr(config, "use_instrument", True)

    @cached_property
    def rows(self) -> Rows:
        """The covariates of the rows, with what was computed of them."""
        return Rows(self.data.covariates, self.data.weights, self.data.index)

    @cached_property
    def complete(self) -> FittedMethod:
        """The fit with what intervals need."""
        return self.fitted.with_uncertainty(self.data, self.rows)

    @cached_property
    def judged(self) -> FittedMethod:
        """The complete fit with all that held-out rows say of it."""
        return judge_fit(
            self.complete,
            self.data,
            self.rows,
            lambda part: self.config.fit(part, self.seed),
            use_instrument=self.use_instrument,
            seed=self.seed,
        )

    @property
    def known(self) -> FittedMethod:
        """The complete fit, with what held-out rows say of it if that was asked for."""
        return self.judged if "judged" in vars(self) else self.complete

    @property
    def instrumented(self) -> FitRows | None:
        """The rows, if the fit uses their instruments."""
        return FitRows(self.data, self.rows) if self.use_instrument else None

    @cached_property
    def weak(self) -> bool:
        """Whether the instruments are so weak that an average effect has a robust set."""
        return self.instrumented is not None and self.instrumented.prefer_robust(self.fitted)

    def refit_config(self, **changes: Any) -> MethodConfig:
        """The method for another fit, which keeps no unfinished fit; settings that it does not have stay out."""
        settings = {"checkpoint": None} | changes
        own = {name: value for name, value in settings.items() if hasattr(self.config, name)}
        return cast(MethodConfig, replace(cast(Any, self.config), **own))

    def without_instrument(self, reporter: Reporter) -> FittedMethod | None:
        """The same method fitted without the instruments; None if this one ignores them already."""
        if not self.use_instrument:
            return None
        evidence = self.fitted.evidence
        # The two are compared: nothing but the instruments may differ between them.
        without_networks = evidence is not None and evidence.networks not in (None, "trained")
        config = self.refit_config(**({"networks": False} if without_networks else {}))
        return config.without_instrument().fit(self.data, self.seed, reporter)


def chosen_preset(presets: Mapping[str, Callable[[], C]], name: str) -> C:
    """The config of a preset; an unknown name is an error that lists the known ones."""
    if name not in tuple(presets):
        raise ConfigError(f"preset must be one of {', '.join(presets)}, got {name!r}.")
    return presets[name]()


def check_instrument(data: IVData, method: str, *, use_instrument: bool = True) -> None:
    """Refuse data without instruments, for a method that uses them."""
    if use_instrument and data.instruments.shape[1] == 0:
        raise DataError(f"{method} needs an instrument; pass at least one in instruments=.")


def check_no_weights(data: IVData, method: str) -> None:
    """Refuse sample weights, for a method that cannot honour them.

    Example:
        >>> data = IVData.from_arrays([1, 2, 4], [5.0, 1.0, 2.0], instruments=[3, 1, 2], sample_weight=[1, 2, 1])
        >>> check_no_weights(data, "KIV")
        Traceback (most recent call last):
        bgmiv.errors.DataError: KIV does not take sample weights (sample_weight). Leave them out, or use BGMIV, NPIV or
        TSLS.
    """
    if data.weights is not None:
        raise DataError(
            f"{method} does not take sample weights ({data.weights_name}). Leave them out, or use BGMIV, NPIV or TSLS."
        )


def check_one_number(data: IVData, method: str) -> None:
    """Refuse an outcome of three or more levels, for a method that predicts one number a row.

    Example:
        >>> data = IVData.from_arrays([1, 2, 3], [5.0, 1.0, 2.0], instruments=[3, 1, 2], outcome_kind="categorical")
        >>> check_one_number(data, "KIV")
        Traceback (most recent call last):
        bgmiv.errors.DataError: outcome has 3 levels, and KIV predicts one number a row. Fit one level at a time, with
        outcome == level, or use BGMIV.
    """
    variable = data.schema.outcome
    if variable.width > 1:
        raise DataError(
            f"{role_label('outcome', variable.name)} has {variable.width} levels, and {method} predicts one number a "
            "row. Fit one level at a time, with outcome == level, or use BGMIV."
        )
