"""IV methods with the arguments and shapes of EconML; EconML itself is not needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bgmiv.adapters import fit_arguments, named_columns, one_column, unfitted_copy, unused_name
from bgmiv.errors import ConfigError, DataError, NotFittedError

__all__ = ["EconMLEstimator"]

# Rows of W over which the effect at a row of X is averaged; without X it is averaged once.
_MAX_CONTROLS = 200
_MAX_CONTROLS_WITHOUT_X = 5000
_MAX_ROWS = 100_000


class EconMLEstimator:
    """An IV method called like those of EconML: `fit(Y, T, Z=..., X=..., W=...)`, `effect(X, T0=..., T1=...)`.

    X and W are both covariates of the structural function here. The effect at a row of X is averaged over the W of the
    training rows (200 of them, evenly spaced; 5000 if there is no X), as if W did not depend on X: put all variables
    on which the effect may depend into X. EconML assumes that it does not depend on W at all. Intervals of averages
    over many rows of X use fewer rows of W, 100,000 pairs in all.

    Shapes are EconML's: `(m,)` for m rows of X, or `(m, 1)` if Y was given as a matrix; without X there is one row.
    Intervals are pairs of a lower and an upper end.

    Args:
        estimator: a bgmiv method such as `BGMIV()` or `TSLS()`, which is copied; None for `BGMIV()`.
        step: over which `marginal_effect` takes the slope, in units of the treatment; None for a tenth of its standard
            deviation.
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
        >>> model.effect(X[:3, None], T0=0, T1=1).shape
        (3,)
        >>> round(float(model.ate(X[:, None], T0=0, T1=1)), 1)
        2.0
    """

    def __init__(
        self, estimator: Any = None, *, step: float | None = None, blocks: Mapping[str, Any] | None = None
    ) -> None:
        self.estimator = estimator
        self.step = step
        self.blocks = blocks

    def fit(
        self, Y: Any, T: Any, *, Z: Any, X: Any = None, W: Any = None, sample_weight: Any = None, groups: Any = None
    ) -> Self:
        """Fit the structural function.

        Args:
            Y, T: outcome and treatment, `(n,)` or `(n, 1)`.
            Z: instruments, `(n,)` or `(n, k)`.
            X: covariates at which effects are asked for.
            W: other covariates.
            sample_weight, groups: a weight or label for each row, where the method takes them.
        """
        model = unfitted_copy(self.estimator)
        features, controls = _matrix(X, "X"), _matrix(W, "W")
        if shared := [name for name in features if name in controls]:
            raise DataError(f"both X and W have a column {shared[0]!r}. Pass it in one of them.")
        data = features | controls
        instruments = {unused_name(name, data): values for name, values in _matrix(Z, "Z").items()}
        data |= instruments
        outcome, treatment = unused_name("Y", data), unused_name("T", data)
        data |= {outcome: one_column(Y, "Y"), treatment: one_column(T, "T")}
        self.estimator_ = model.fit_table(
            data,
            outcome=outcome,
            treatment=treatment,
            instruments=list(instruments),
            covariates=[*features, *controls],
            blocks=self.blocks,
            **fit_arguments(data, sample_weight, groups),
        )
        self._features = tuple(features)
        self._controls = {name: _array(values) for name, values in controls.items()}
        self._as_matrix = np.ndim(Y) == 2
        return self

    def effect(self, X: Any = None, *, T0: Any = 0, T1: Any = 1) -> Any:
        """The effect of T1 against T0 at each row of X.

        Args:
            X: rows with the columns of the fit's X; None if it had none.
            T0, T1: a treatment for all rows or one a row.
        """
        asked, m, k = self._asked(X, T0, T1)
        size = max(1, _MAX_ROWS // k)
        parts = []
        for start in range(0, m, size):
            rows = np.arange(start, min(m, start + size))
            values = np.asarray(self.estimator_.effect(**asked(rows)))
            parts.append(values.reshape(len(rows), k, *values.shape[1:]).mean(axis=1))
        return self._shaped(np.concatenate(parts))

    def effect_interval(self, X: Any = None, *, T0: Any = 0, T1: Any = 1, alpha: float = 0.05) -> tuple[Any, Any]:
        """The ends of the interval of `effect` at level 1 - alpha, if the method has intervals."""
        level, (asked, m, _) = _level(alpha), self._asked(X, T0, T1)
        if not self._controls:
            found = self.estimator_.effect_interval(**asked(np.arange(m)), level=level)
            return self._shaped(np.asarray(found.lower)), self._shaped(np.asarray(found.upper))
        each = [self.estimator_.ate_interval(**asked(np.array([i])), level=level, method="usual") for i in range(m)]
        lower, upper = ([getattr(found, end) for found in each] for end in ("lower", "upper"))
        return self._shaped(np.stack(lower)), self._shaped(np.stack(upper))

    def ate(self, X: Any = None, *, T0: Any = 0, T1: Any = 1) -> Any:
        """The mean of `effect` over the rows of X."""
        return self.effect(X, T0=T0, T1=T1).mean(axis=0)[()]

    def ate_interval(self, X: Any = None, *, T0: Any = 0, T1: Any = 1, alpha: float = 0.05) -> tuple[Any, Any]:
        """The ends of the interval of `ate` at level 1 - alpha."""
        level, (asked, m, _) = _level(alpha), self._asked(X, T0, T1, at_once=True)
        found = self.estimator_.ate_interval(**asked(np.arange(m)), level=level)
        lower, upper = (self._shaped(np.asarray(end)[None])[0] for end in (found.lower, found.upper))
        return lower, upper

    def marginal_effect(self, T: Any, X: Any = None) -> Any:
        """The slope in the treatment at T and each row of X."""
        ends, step = self._slope(T)
        return self.effect(X, **ends) / step

    def marginal_effect_interval(self, T: Any, X: Any = None, *, alpha: float = 0.05) -> tuple[Any, Any]:
        """The ends of the interval of `marginal_effect` at level 1 - alpha."""
        ends, step = self._slope(T)
        lower, upper = self.effect_interval(X, **ends, alpha=alpha)
        return lower / step, upper / step

    def marginal_ate(self, T: Any, X: Any = None) -> Any:
        """The mean of `marginal_effect`."""
        return self.marginal_effect(T, X).mean(axis=0)[()]

    def marginal_ate_interval(self, T: Any, X: Any = None, *, alpha: float = 0.05) -> tuple[Any, Any]:
        """The ends of the interval of `marginal_ate` at level 1 - alpha."""
        ends, step = self._slope(T)
        lower, upper = self.ate_interval(X, **ends, alpha=alpha)
        return lower / step, upper / step

    def const_marginal_effect(self, X: Any = None) -> Any:
        """Not defined, because the effect need not be linear in the treatment: raises a `ConfigError`."""
        raise ConfigError(
            "the effect need not be linear in the treatment, so there is no constant marginal effect. Ask for "
            "marginal_effect(T, X), or for effect(X, T0=..., T1=...)."
        )

    def _slope(self, T: Any) -> tuple[dict[str, Any], float]:
        """The two treatments around T whose contrast is the slope, and their distance."""
        data = self._fitted().data_
        if data.schema.treatment.kind != "continuous":
            raise ConfigError("the treatment has levels and no slope. Ask for effect(X, T0=..., T1=...).")
        step = 0.1 * float(np.std(data.treatment, dtype=np.float64)) if self.step is None else self.step
        centre = np.asarray(one_column(T, "T"), np.float64)
        return {"T0": centre - step / 2.0, "T1": centre + step / 2.0}, step

    def _asked(
        self, X: Any, T0: Any, T1: Any, *, at_once: bool = False
    ) -> tuple[Callable[[NDArray[np.int64]], dict[str, Any]], int, int]:
        """What to ask the method for chosen rows of X, each with k training rows of W; the number of rows; and k.

        With `at_once` all rows of X are asked for in one call, with fewer rows of W.
        """
        self._fitted()
        features = self._columns_of(X)
        doses = {"T0": np.asarray(one_column(T0, "T0")), "T1": np.asarray(one_column(T1, "T1"))}
        lengths = [len(values) for values in doses.values() if values.ndim]
        m = len(next(iter(features.values()))) if features else max(lengths, default=1)
        for name, values in doses.items():
            if values.ndim and len(values) != m:
                raise DataError(f"{name} has {len(values)} rows but X has {m}. Pass one value for all, or one a row.")
        t0, t1 = (np.broadcast_to(values, (m,)) for values in doses.values())
        n = len(next(iter(self._controls.values()))) if self._controls else 1
        max_controls = min(n, _MAX_CONTROLS if features else _MAX_CONTROLS_WITHOUT_X)
        if at_once:
            max_controls = min(max_controls, max(1, _MAX_ROWS // m))
        picked = np.unique(np.linspace(0, n - 1, max_controls).astype(np.int64))
        k = len(picked)

        def asked(rows: NDArray[np.int64]) -> dict[str, Any]:
            columns = {name: np.repeat(values[rows], k, axis=0) for name, values in features.items()}
            columns |= {name: np.tile(values[picked], len(rows)) for name, values in self._controls.items()}
            return {"covariates": columns or None, "t0": np.repeat(t0[rows], k), "t1": np.repeat(t1[rows], k)}

        return asked, m, k

    def _columns_of(self, X: Any) -> dict[str, Any]:
        if not self._features:
            if X is not None:
                raise DataError("the fit had no X. Leave it out.")
            return {}
        if X is None:
            raise DataError("the fit had X: pass rows of it, such as those of the fit.")
        found = _matrix(X, "X")
        if tuple(found) != self._features:
            wanted, given = ", ".join(self._features[:10]), ", ".join(list(found)[:10])
            raise DataError(f"X must have the columns of the fit, {wanted}; got {given}.")
        return {name: _array(values) for name, values in found.items()}

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


def _level(alpha: float) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.number) or not 0.0 < alpha < 1.0:
        raise ConfigError(f"alpha must lie between 0 and 1, such as 0.05, got {alpha!r}.")
    return 1.0 - float(alpha)
