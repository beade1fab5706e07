"""IV methods with the arguments and shapes of EconML, which itself is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bgmiv.adapters import fit_arguments, named_columns, one_column, unfitted_copy, unused_name
from bgmiv.errors import ConfigError, DataError, NotFittedError
from bgmiv.estimators.arguments import checked_arguments

__all__ = ["EconMLEstimator"]

# Rows of W over which the effect at a row of X is averaged; without X it is averaged once.
_MAX_CONTROLS, _MAX_CONTROLS_WITHOUT_X, _MAX_PAIRS = 200, 5000, 100_000


class EconMLEstimator:
    """An IV method called like those of EconML: `fit(Y, T, Z=..., X=..., W=...)`, `effect(X, T0=..., T1=...)`.

    X and W are both covariates here. The effect at a row of X is averaged over evenly spaced training rows of W, as if
    W did not depend on X: put all variables on which the effect may depend into X. Shapes are EconML's, `(m,)` for m
    rows of X, or `(m, 1)` if Y was given as a matrix; intervals are pairs of a lower and an upper end.

    Args:
        estimator: a bgmiv method such as `BGMIV()` or `TSLS()`, which is copied; None for `BGMIV()`.
        step: over which `marginal_effect` takes the slope; None for a tenth of the treatment's standard deviation.
        blocks: declared kinds of covariates, as in `BGMIV.fit_table`; columns of arrays are called X0, X1, ..., W0, ...

    Attributes:
        estimator_: the fitted method, with all its own methods.

    Example:
        >>> from bgmiv import TSLS
        >>> rng = np.random.default_rng(0)
        >>> Z, X, U = rng.normal(size=(3, 500))
        >>> T = Z + X + U
        >>> Y = 2.0 * T + X - U
        >>> model = EconMLEstimator(TSLS()).fit(Y, T, Z=Z, X=X[:, None])
        >>> round(float(model.ate(X[:, None], T0=0, T1=1)), 1)
        2.0
    """

    def __init__(
        self, estimator: Any = None, *, step: float | None = None, blocks: Mapping[str, Any] | None = None
    ) -> None:
        self.estimator, self.step, self.blocks = estimator, step, blocks

    @checked_arguments
    def fit(
        self, Y: Any, T: Any, *, Z: Any, X: Any = None, W: Any = None, sample_weight: Any = None, clusters: Any = None
    ) -> Self:
        """Fit the outcome Y on the treatment T with instruments Z and covariates X and W."""
        model, features, controls = unfitted_copy(self.estimator), _matrix(X, "X"), _matrix(W, "W")
        if shared := [name for name in features if name in controls]:
            raise DataError(f"both X and W have a column {shared[0]!r}. Pass it in one of them.")
        data = features | controls
        instruments = {unused_name(name, data): values for name, values in _matrix(Z, "Z").items()}
        data |= instruments
        roles: dict[str, Any] = {"outcome": unused_name("Y", data), "treatment": unused_name("T", data)}
        data |= {roles["outcome"]: one_column(Y, "Y"), roles["treatment"]: one_column(T, "T")}
        roles |= {"instruments": list(instruments), "covariates": [*features, *controls], "blocks": self.blocks}
        self.estimator_ = model.fit_table(data, **roles, **fit_arguments(data, sample_weight, clusters))
        self._features, self._as_matrix = tuple(features), np.ndim(Y) == 2
        n = len(next(iter(data.values())))
        most = _MAX_CONTROLS if features else _MAX_CONTROLS_WITHOUT_X
        picked = np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))
        self._controls = {name: _array(values)[picked] for name, values in controls.items()}
        return self

    def effect(self, X: Any = None, *, T0: Any = 0, T1: Any = 1) -> Any:
        """The effect of T1 against T0, one for all or one a row, at each row of X."""
        asked, m, k = self._asked(X, T0, T1)
        values = np.asarray(self._fitted().effect(**asked))
        return self._shaped(values.reshape(m, k, *values.shape[1:]).mean(axis=1))

    def effect_interval(self, X: Any = None, *, T0: Any = 0, T1: Any = 1, alpha: float = 0.05) -> tuple[Any, Any]:
        """The ends of the interval of `effect` at level 1 - alpha, if the method has intervals."""
        model, level, (asked, m, k) = self._fitted(), 1.0 - alpha, self._asked(X, T0, T1)
        if not self._controls:
            found = model.effect_interval(**asked, level=level)
            return self._shaped(np.asarray(found.lower)), self._shaped(np.asarray(found.upper))
        ends = []
        for start in range(0, m * k, k):
            rows = slice(start, start + k)
            columns = {name: values[rows] for name, values in asked["covariates"].items()}
            doses = {name: asked[name][rows] for name in ("t0", "t1")}
            ends.append([*model.ate_interval(columns, **doses, level=level, method="usual")])
        lower, upper = (self._shaped(np.stack(end)) for end in zip(*ends, strict=True))
        return lower, upper

    def ate(self, X: Any = None, *, T0: Any = 0, T1: Any = 1) -> Any:
        """The mean of `effect` over the rows of X."""
        return self.effect(X, T0=T0, T1=T1).mean(axis=0)[()]

    def ate_interval(self, X: Any = None, *, T0: Any = 0, T1: Any = 1, alpha: float = 0.05) -> tuple[Any, Any]:
        """The ends of the interval of `ate` at level 1 - alpha; of many rows of X with fewer rows of W."""
        asked, _, _ = self._asked(X, T0, T1, most=_MAX_PAIRS)
        found = self._fitted().ate_interval(**asked, level=1.0 - alpha)
        lower, upper = (self._shaped(np.asarray(end)[None])[0] for end in found)
        return lower, upper

    def marginal_effect(self, T: Any, X: Any = None) -> Any:
        """The slope in the treatment at T and each row of X."""
        data = self._fitted().data_
        if data.schema.treatment.kind != "continuous":
            raise ConfigError("the treatment has levels and no slope. Ask for effect(X, T0=..., T1=...).")
        step = 0.1 * float(np.std(data.treatment, dtype=np.float64)) if self.step is None else self.step
        centre = np.asarray(one_column(T, "T"), np.float64)
        return self.effect(X, T0=centre - step / 2.0, T1=centre + step / 2.0) / step

    def _asked(self, X: Any, T0: Any, T1: Any, most: int = 2**62) -> tuple[dict[str, Any], int, int]:
        """The question for each of m rows of X with k rows of W, `most` pairs in all; m and k."""
        self._fitted()
        features = {name: _array(values) for name, values in _matrix(X, "X").items()}
        if tuple(features) != self._features:
            wanted, given = (", ".join(list(names)[:10]) or "none" for names in (self._features, features))
            raise DataError(f"X must have the columns of the fit, {wanted}; got {given}.")
        doses = {"t0": np.asarray(one_column(T0, "T0")), "t1": np.asarray(one_column(T1, "T1"))}
        m = max(map(len, features.values() or map(np.atleast_1d, doses.values())))
        n = len(next(iter(self._controls.values()))) if self._controls else 1
        kept = np.unique(np.linspace(0, n - 1, max(1, min(n, most // m))).astype(np.int64))
        k = len(kept)
        for name, values in doses.items():
            if values.ndim and len(values) != m:
                raise DataError(f"{name.upper()} has {len(values)} rows but X has {m}. Pass one value, or one a row.")
        rows = {name: np.repeat(values, k, axis=0) for name, values in features.items()}
        rows |= {name: np.tile(values[kept], m) for name, values in self._controls.items()}
        asked = {name: np.repeat(np.broadcast_to(values, (m,)), k) for name, values in doses.items()}
        return {"covariates": rows or None, **asked}, m, k

    def _fitted(self) -> Any:
        if not hasattr(self, "estimator_"):
            raise NotFittedError("this EconMLEstimator is not fitted yet: call fit(Y, T, Z=..., X=..., W=...) first.")
        return self.estimator_

    def _shaped(self, values: NDArray[Any]) -> NDArray[Any]:
        return values[:, None] if self._as_matrix and values.ndim == 1 else values


def _matrix(values: Any, name: str) -> dict[str, Any]:
    """The named columns of a matrix, or of one column."""
    if values is None:
        return {}
    shape = getattr(values, "shape", None) or np.shape(values)
    return named_columns(np.asarray(values)[:, None] if len(shape) == 1 else values, name, name)


def _array(values: Any) -> Any:
    """A column whose rows can be selected by position."""
    return values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
