"""IV methods with EconML's arguments and shapes; EconML itself is not needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bgmiv.adapters.columns import fit_arguments, named_columns, one_column, unused_name
from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import BlockKind
from bgmiv.effects import Answer, Interval, effect, interval_of, marginal_effect
from bgmiv.errors import ConfigError, DataError, NotFittedError

__all__ = ["EconMLEstimator"]

# Rows of W over which the effect at a row of X is averaged; without X it is averaged once.
_MOST_W = 200
_MOST_W_WITHOUT_X = 5000
_MOST_ROWS = 100_000

Floats = NDArray[np.float64]


class EconMLEstimator:
    """An IV method called as EconML's are: `fit(Y, T, Z=..., X=..., W=...)`, `effect(X, T0=..., T1=...)`.

    X and W are both covariates of the structural function here. The effect at a row of X is averaged over the W of the
    training rows (200 of them, evenly spaced; 5000 if there is no X), as if W did not depend on X: put into X all that
    the effect may depend on. EconML assumes that it does not depend on W at all.

    Shapes are EconML's: `(m,)` for m rows of X, or `(m, 1)` if Y was given as a matrix; without X there is one row.
    Intervals are pairs of a lower and an upper end. Effects need not be linear in the treatment, so that there is no
    `const_marginal_effect`.

    Args:
        estimator: a bgmiv method such as `BGMIV()` or `TSLS()`, which is copied; None for `BGMIV()`.
        step: over which `marginal_effect` takes the slope, in units of the treatment; None for a tenth of its standard
            deviation.
        blocks: declared kinds of covariates, as in `BGMIV.fit_table`; columns of arrays are called X0, X1, ..., W0, ...

    Attributes:
        estimator_: the fitted method, with all its own questions.

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
        """Store the arguments; they are checked by `fit`."""
        self.estimator = estimator
        self.step = step
        self.blocks = blocks

    def fit(
        self, Y: Any, T: Any, *, Z: Any, X: Any = None, W: Any = None, sample_weight: Any = None, groups: Any = None
    ) -> Self:
        """Fit the structural function.

        Args:
            Y: outcome, `(n,)` or `(n, 1)`.
            T: treatment, one column.
            Z: instruments, `(n,)` or `(n, k)`.
            X: covariates with which the effect is asked for.
            W: other covariates.
            sample_weight: a weight for each row, where the method takes weights.
            groups: a label for each row, where the method takes groups.

        Returns:
            The fitted estimator itself.
        """
        if self.estimator is None:
            from bgmiv.estimators.bgmiv import BGMIV

            model: Any = BGMIV()
        else:
            model = deepcopy(self.estimator)
        if not hasattr(model, "fit_table"):
            raise ConfigError(f"estimator must be a bgmiv method such as BGMIV() or TSLS(), got {self.estimator!r}.")
        features, controls = _matrix(X, "X"), _matrix(W, "W")
        for name in features:
            if name in controls:
                raise DataError(f"both X and W have a column {name!r}. Pass it in one of them.")
        data = features | controls
        instruments = {unused_name(name, data): values for name, values in _matrix(Z, "Z").items()}
        data |= instruments
        outcome, treatment = unused_name("Y", data), unused_name("T", data)
        data |= {outcome: one_column(Y, "Y"), treatment: one_column(T, "T")}
        more = fit_arguments(model, data, sample_weight, groups)
        model.fit_table(
            data,
            outcome=outcome,
            treatment=treatment,
            instruments=list(instruments),
            covariates=[*features, *controls],
            blocks=self.blocks,
            **more,
        )
        self.estimator_ = model
        self._features = tuple(features)
        self._controls = {name: _rows_of(values) for name, values in controls.items()}
        self._as_matrix = np.ndim(Y) == 2
        return self

    def effect(self, X: Any = None, *, T0: Any = 0, T1: Any = 1) -> Any:
        """The effect of T1 against T0 at each row of X.

        Args:
            X: rows with the columns of the fit's X; None if it had none.
            T0, T1: a treatment for all rows or one a row.
        """
        return self._shaped(self._effect(X, T0, T1, False).values)

    def effect_interval(self, X: Any = None, *, T0: Any = 0, T1: Any = 1, alpha: float = 0.05) -> tuple[Any, Any]:
        """The ends of the interval of `effect` at level 1 - alpha.

        Raises:
            ConfigError: the method gives point estimates only.
        """
        level = _level(alpha)
        return self._ends(interval_of(self._effect(X, T0, T1, True), level))

    def ate(self, X: Any = None, *, T0: Any = 0, T1: Any = 1) -> Any:
        """The mean of `effect` over the rows of X."""
        return self._mean(self._effect(X, T0, T1, False)).values[()]

    def ate_interval(self, X: Any = None, *, T0: Any = 0, T1: Any = 1, alpha: float = 0.05) -> tuple[Any, Any]:
        """The ends of the interval of `ate` at level 1 - alpha."""
        level = _level(alpha)
        found = interval_of(self._mean(self._effect(X, T0, T1, True)), level)
        return found.lower, found.upper

    def marginal_effect(self, T: Any, X: Any = None) -> Any:
        """The slope in the treatment at T and each row of X."""
        return self._shaped(self._slope(T, X, False).values)

    def marginal_effect_interval(self, T: Any, X: Any = None, *, alpha: float = 0.05) -> tuple[Any, Any]:
        """The ends of the interval of `marginal_effect` at level 1 - alpha."""
        level = _level(alpha)
        return self._ends(interval_of(self._slope(T, X, True), level))

    def marginal_ate(self, T: Any, X: Any = None) -> Any:
        """The mean of `marginal_effect`."""
        return self._mean(self._slope(T, X, False)).values[()]

    def marginal_ate_interval(self, T: Any, X: Any = None, *, alpha: float = 0.05) -> tuple[Any, Any]:
        """The ends of the interval of `marginal_ate` at level 1 - alpha."""
        level = _level(alpha)
        found = interval_of(self._mean(self._slope(T, X, True)), level)
        return found.lower, found.upper

    def const_marginal_effect(self, X: Any = None) -> Any:
        """Not defined: the effect need not be linear in the treatment.

        Raises:
            ConfigError: always; it names what to ask instead.
        """
        raise ConfigError(
            "the effect need not be linear in the treatment, so that there is no constant marginal effect. Ask for "
            "marginal_effect(T, X), or for effect(X, T0=..., T1=...)."
        )

    def _effect(self, X: Any, T0: Any, T1: Any, with_sources: bool) -> Answer:
        def ask(rows: Any, t0: Any, t1: Any) -> Answer:
            return effect(self._method().fitted_, rows, t0=t0, t1=t1, with_sources=with_sources)

        return self._averaged(ask, X, {"T0": T0, "T1": T1})

    def _slope(self, T: Any, X: Any, with_sources: bool) -> Answer:
        data: IVData = self._method().data_
        if data.schema.treatment.kind is not BlockKind.continuous:
            raise ConfigError("the treatment has levels and no slope. Ask for effect(X, T0=..., T1=...).")
        step = 0.1 * float(np.std(data.treatment, dtype=np.float64)) if self.step is None else self.step

        def ask(rows: Any, treatment: Any) -> Answer:
            return marginal_effect(self._method().fitted_, treatment, rows, step=step, with_sources=with_sources)

        return self._averaged(ask, X, {"T": T})

    def _averaged(self, ask: Callable[..., Answer], X: Any, treatments: dict[str, Any]) -> Answer:
        """An answer at each row of X, averaged over the W of training rows."""
        model = self._method()
        features = self._given(X)
        doses = {name: np.asarray(one_column(values, name)) for name, values in treatments.items()}
        several = [len(values) for values in doses.values() if values.ndim]
        m = len(next(iter(features.values()))) if features else max(several, default=1)
        for name, values in doses.items():
            if values.ndim and len(values) != m:
                raise DataError(f"{name} has {len(values)} rows but X has {m}. Pass one value for all, or one a row.")
        picked = self._picked(1 if not self._controls else _MOST_W if features else _MOST_W_WITHOUT_X)
        k = len(picked)
        found = []
        for start in range(0, m, max(1, _MOST_ROWS // k)):
            some = np.arange(start, min(m, start + max(1, _MOST_ROWS // k)))
            rows = {name: np.repeat(values[some], k, axis=0) for name, values in features.items()}
            rows |= {name: np.tile(values[picked], len(some)) for name, values in self._controls.items()}
            asked = [np.repeat(np.broadcast_to(values, (m,))[some], k) for values in doses.values()]
            read = model._read(rows) if rows else None

            def means(values: Floats, rows: int = len(some)) -> Floats:
                return np.asarray(values.reshape(rows, k, *values.shape[1:]).mean(axis=1))

            found.append(ask(read, *asked).map(means))
        return _joined(found)

    def _picked(self, most: int) -> NDArray[np.int64]:
        n = len(next(iter(self._controls.values()))) if self._controls else 1
        return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))

    def _given(self, X: Any) -> dict[str, Any]:
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
        return {name: _rows_of(values) for name, values in found.items()}

    def _method(self) -> Any:
        if not hasattr(self, "estimator_"):
            raise NotFittedError("this EconMLEstimator is not fitted yet: call fit(Y, T, Z=..., X=..., W=...) first.")
        return self.estimator_

    def _mean(self, answer: Answer) -> Answer:
        return answer.map(lambda values: np.asarray(self._shaped(values).mean(axis=0)))

    def _shaped(self, values: Any) -> Any:
        return values[:, None] if self._as_matrix and values.ndim == 1 else values

    def _ends(self, interval: Interval) -> tuple[Any, Any]:
        return self._shaped(interval.lower), self._shaped(interval.upper)


def _matrix(values: Any, name: str) -> dict[str, Any]:
    if values is None:
        return {}
    shape = getattr(values, "shape", None) or np.shape(values)
    return named_columns(np.asarray(values)[:, None] if len(shape) == 1 else values, name, name)


def _rows_of(values: Any) -> Any:
    """A column from which rows can be taken by position."""
    return values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)


def _level(alpha: float) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.number) or not 0.0 < alpha < 1.0:
        raise ConfigError(f"alpha must lie between 0 and 1, such as 0.05, got {alpha!r}.")
    return 1.0 - float(alpha)


def _joined(parts: list[Answer]) -> Answer:
    sources = tuple(
        some[0]._replace(deviations=np.concatenate([source.deviations for source in some], axis=1))
        for some in zip(*(part.sources for part in parts), strict=True)
    )
    return Answer(np.concatenate([part.values for part in parts]), sources)
