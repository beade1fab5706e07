"""IV methods with the arguments and shapes of EconML, which itself is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bgmiv.adapters import fitted_copy, given, matrix_columns, one_column, spaced_rows
from bgmiv.errors import ConfigError, DataError, NotFittedError
from bgmiv.estimators.arguments import checked_arguments

__all__ = ["EconMLEstimator"]

# Rows of W over which the effect at a row of X is averaged; without X it is averaged once.
_MAX_CONTROLS, _MAX_CONTROLS_WITHOUT_X = 200, 5000


class EconMLEstimator:
    """An IV method called like those of EconML: `fit(Y, T, Z=..., X=..., W=...)`, `effect(X, T0=..., T1=...)`.

    The effect at a row of X is averaged over training rows of W, as if W did not depend on X: put all variables on
    which it may depend into X. `estimator` is copied, `estimator_` the fit; `blocks` are those of `fit_table`.

    Example:
        >>> from bgmiv import TSLS
        >>> Z, U = np.random.default_rng(0).normal(size=(2, 500))
        >>> round(float(EconMLEstimator(TSLS()).fit(2.0 * Z + U, Z + U, Z=Z).ate(T0=0, T1=1)), 1)
        2.0
    """

    def __init__(self, estimator: Any = None, *, blocks: Mapping[str, Any] | None = None) -> None:
        self.estimator, self.blocks = estimator, blocks

    @checked_arguments
    def fit(
        self, Y: Any, T: Any, *, Z: Any, X: Any = None, W: Any = None, sample_weight: Any = None, clusters: Any = None
    ) -> Self:
        """Fit the outcome Y on the treatment T with instruments Z and covariates X and W."""
        features, controls = matrix_columns(X, "X"), matrix_columns(W, "W")
        if shared := [name for name in features if name in controls]:
            raise DataError(f"both X and W have a column {shared[0]!r}. Pass it in one of them.")
        roles = {
            "covariates": features | controls,
            "instruments": matrix_columns(Z, "Z"),
            "outcome": {"Y": one_column(Y, "Y")},
            "treatment": {"T": one_column(T, "T")},
            **given(sample_weight=sample_weight, clusters=clusters),
        }
        self.estimator_ = fitted_copy(self.estimator, self.blocks, roles)
        self._features, self._as_matrix = tuple(features), np.ndim(Y) == 2
        picked = spaced_rows(len(T), _MAX_CONTROLS if features else _MAX_CONTROLS_WITHOUT_X)
        self._controls = {name: np.asarray(values)[picked] for name, values in controls.items()}
        self._n_controls = len(picked) if controls else 1
        return self

    def effect(self, X: Any = None, *, T0: Any = 0, T1: Any = 1) -> Any:
        """The effect of T1 against T0, one for all or one a row, at each row of X."""
        values = np.asarray(self._fitted().effect(**self._asked(X, T0, T1)))
        return self._shaped(values.reshape(-1, self._n_controls, *values.shape[1:]).mean(axis=1))

    def effect_interval(self, X: Any = None, *, T0: Any = 0, T1: Any = 1, alpha: float = 0.05) -> tuple[Any, Any]:
        """The ends of the interval of `effect` at level 1 - alpha, if the method has intervals."""
        model, asked, k = self._fitted(), self._asked(X, T0, T1), self._n_controls
        if not self._controls:
            lower, upper = model.effect_interval(**asked, level=1.0 - alpha)
            return self._shaped(lower), self._shaped(upper)
        each = []
        for start in range(0, len(asked["t0"]), k):
            covariates = {name: values[start : start + k] for name, values in asked["covariates"].items()}
            t0, t1 = asked["t0"][start], asked["t1"][start]
            each.append([*model.ate_interval(covariates, t0=t0, t1=t1, level=1.0 - alpha, method="usual")])
        lower, upper = zip(*each, strict=True)
        return self._shaped(np.stack(lower)), self._shaped(np.stack(upper))

    def ate(self, X: Any = None, *, T0: Any = 0, T1: Any = 1) -> Any:
        """The mean of `effect` over the rows of X."""
        return self.effect(X, T0=T0, T1=T1).mean(axis=0)[()]

    def ate_interval(self, X: Any = None, *, T0: Any = 0, T1: Any = 1, alpha: float = 0.05) -> tuple[Any, Any]:
        """The ends of the interval of `ate` at level 1 - alpha."""
        lower, upper = self._fitted().ate_interval(**self._asked(X, T0, T1), level=1.0 - alpha)
        return self._shaped(np.asarray(lower)[None])[0], self._shaped(np.asarray(upper)[None])[0]

    def marginal_effect(self, T: Any, X: Any = None) -> Any:
        """The slope at T and each row of X, over a tenth of the treatment's standard deviation."""
        data = self._fitted().data_
        if data.schema.treatment.kind != "continuous":
            raise ConfigError("the treatment has levels and no slope. Ask for effect(X, T0=..., T1=...).")
        step = 0.1 * float(np.std(data.treatment, dtype=np.float64))
        centre = np.asarray(one_column(T, "T"), np.float64)
        return self.effect(X, T0=centre - step / 2.0, T1=centre + step / 2.0) / step

    def _asked(self, X: Any, T0: Any, T1: Any) -> dict[str, Any]:
        """The question for each row of X with every kept row of W."""
        features = {name: np.asarray(values) for name, values in matrix_columns(X, "X").items()}
        if tuple(features) != self._features:
            wanted, given = (", ".join(list(names)[:10]) or "none" for names in (self._features, features))
            raise DataError(f"X must have the columns of the fit, {wanted}; got {given}.")
        doses = {"t0": np.asarray(one_column(T0, "T0")), "t1": np.asarray(one_column(T1, "T1"))}
        m, k = max(map(len, features.values() or map(np.atleast_1d, doses.values()))), self._n_controls
        for name, values in doses.items():
            if values.ndim and len(values) != m:
                raise DataError(f"{name.upper()} has {len(values)} rows but X has {m}. Pass one value, or one a row.")
        rows = {name: np.repeat(values, k, axis=0) for name, values in features.items()}
        rows |= {name: np.tile(values, m) for name, values in self._controls.items()}
        asked = {name: np.repeat(np.broadcast_to(values, (m,)), k) for name, values in doses.items()}
        return {"covariates": rows or None, **asked}

    def _fitted(self) -> Any:
        if not hasattr(self, "estimator_"):
            raise NotFittedError("this EconMLEstimator is not fitted yet: call fit(Y, T, Z=..., X=..., W=...) first.")
        return self.estimator_

    def _shaped(self, values: NDArray[Any]) -> NDArray[Any]:
        return values[:, None] if self._as_matrix and values.ndim == 1 else values
