"""The last stage: the outcome regressed, in closed form, on a line and on what held-out rows support beyond it.

Where no networks were trained, it is the whole fit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.bgm.config import BGMIVConfig
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.diagnostics.held_out import cross_fitted
from bgmiv.diagnostics.moments import variance_of
from bgmiv.errors import NotIdentifiedError
from bgmiv.estimators.fitted import FittedSieve
from bgmiv.fitted import FittedMethod, HeldOutPredictions
from bgmiv.preprocess.reduction import FittedReduction
from bgmiv.sieve.bases import SieveFunction
from bgmiv.sieve.fit import Learned, SieveConfig, SieveFit, fit_sieve, min_rows

__all__ = [
    "LAST_STAGE_INTERVALS", "FittedBGMIV", "FittedWithoutNetworks", "LastStage", "fit_sieve_stage",
    "sieve_without", "with_networks",
]  # fmt: skip

Floats = NDArray[np.float64]


class LastStage(NamedTuple):
    """A line or a sieve, or networks beside a line.

    Attributes:
        rows: those on which it was fitted, all with a positive weight, wide blocks reduced.
        fit: the fit to them.
    """

    rows: IVData
    fit: SieveFit

    @property
    def function(self) -> SieveFunction:
        """The structural function."""
        return self.fit.function

    @property
    def explained(self) -> float:
        """Share of the outcome's variance that E[y | w, v] explains in rows that it was not fitted on."""
        squares = np.average((self.rows.outcome - self.fit.left_out) ** 2, weights=self.rows.weights)
        return 1.0 - float(squares) / variance_of(self.rows.outcome, self.rows.weights)


def fit_sieve_stage(
    config: SieveConfig, data: IVData, *, use_instrument: bool = True, learned: Learned | None = None
) -> LastStage | None:
    """The last stage without networks, or with what they have learned in place of the terms beyond a line.

    Args:
        config: of the sieve.
        data: the rows of the fit, wide blocks reduced; those without a weight are left out.
        use_instrument: False for a regression on the observed treatment.
        learned: what the networks say of these rows.

    Returns:
        None if there are too few rows, or if the first stage does not identify the treatment.
    """
    if data.weights is not None:
        positive = data.weights > 0
        data, learned = data.take(positive), None if learned is None else learned.take(positive)
    if data.n_rows < min_rows(data.instruments.shape[1]):
        return None
    try:
        return LastStage(data, fit_sieve(config, data, use_instrument=use_instrument, learned=learned))
    except NotIdentifiedError:
        return None


def with_networks(
    config: SieveConfig, data: IVData, sieve: LastStage | None, learned: Learned | None, *, use_instrument: bool = True
) -> LastStage | None:
    r"""The last stage where networks were trained: $g = a + b x + c^\top v + d f$, f of the networks, or the sieve.

    It is the networks if d is positive and they predict held-out rows better than the sieve, by more than one standard
    error. Either predicts by its mean of g given instruments and covariates and, linearly, by what its own first stage
    leaves of the treatment; so both stages count. A sieve none of whose terms enters is linear two-stage least squares.

    Args:
        config: of the sieve.
        data: the rows of the fit, wide blocks reduced.
        sieve: the last stage without networks; None if it cannot be fitted.
        learned: what the networks say of these rows; not a number where every member was trained on the row. None, or
            numbers of less than half of the rows: they are not used.
        use_instrument: False for a regression on the observed treatment.

    Returns:
        None if neither first stage identifies the treatment.
    """
    if learned is None or 2 * np.isfinite(learned.own).sum() < data.n_rows:
        return sieve
    known = np.isfinite(learned.own)
    rows = data.take(known)
    fit = partial(fit_sieve_stage, config, use_instrument=use_instrument)
    networks = fit(rows, learned=learned.take(known))
    # Of a weight that is not positive not their function predicts, but what their first stage adds to a line.
    if networks is None or networks.function.weight <= 0.0:
        return sieve
    if sieve is not None and sieve.rows.n_rows != networks.rows.n_rows:
        # Both are compared on the same rows.
        sieve = fit(rows)
    return networks if sieve is None or _better(networks, sieve) else sieve


def sieve_without(config: BGMIVConfig, reduction: FittedReduction, part: IVData) -> Callable[[Query], Floats]:
    """The last stage without networks, its terms chosen anew, of some rows of the data: the function of a query."""
    assert config.last_stage is not None
    stage = fit_sieve_stage(config.last_stage, reduction.apply(part), use_instrument=config.use_instrument)
    if stage is None:
        raise NotIdentifiedError("the sieve cannot be fitted without a fold of the rows.")

    def at(query: Query) -> Floats:
        reduced = reduction.transform(query.rows.covariates)
        return stage.function.at(query, stage.function.encode(reduction.schema, reduced))

    return at


def _better(networks: LastStage, sieve: LastStage) -> bool:
    """Whether the networks predict left-out rows better, by more than one standard error."""
    data = networks.rows
    weights = np.ones(data.n_rows) if data.weights is None else np.asarray(data.weights, np.float64)
    gains = weights * (sieve.fit.left_out_errors(data) ** 2 - networks.fit.left_out_errors(data) ** 2)
    if data.groups is not None:
        gains = np.asarray(np.bincount(data.groups, gains), np.float64)
    return bool(gains.sum() > np.sqrt(np.sum((gains - gains.mean()) ** 2)))


LAST_STAGE_INTERVALS = (
    "Intervals from the robust (with groups, clustered) covariance of the last regression's coefficients and the "
    "smoothing bias that is likely under the prior behind its penalties."
)


class FittedBGMIV(FittedMethod):
    """A fitted BGM-IV, with networks or without.

    Attributes:
        config: the config; resolved where networks were trained.

    Example:
        >>> import numpy as np
        >>> from bgmiv import BGMIV
        >>> w, v, u = np.random.default_rng(0).normal(size=(3, 400))
        >>> x, y = w + v + u, w + v + np.random.default_rng(1).normal(size=400)
        >>> fitted = BGMIV(random_state=0).fit(y, x, instruments=w, covariates=v).fitted_
        >>> fitted.uses_networks, len(fitted.members), fitted.evidence.networks
        (False, 0, 'nothing left')
    """

    config: BGMIVConfig

    @property
    @abstractmethod
    def uses_networks(self) -> bool:
        """Whether the estimate depends on networks; trained ones have no part in it where held-out rows do without."""


@dataclass(frozen=True, eq=False)
class FittedWithoutNetworks(FittedSieve, FittedBGMIV):
    """A fit whose estimate is a line or a sieve, and whose networks were not trained.

    Attributes:
        config: the config.
        members: none.
    """

    config: BGMIVConfig
    members: ClassVar[tuple[()]] = ()
    # Rows are held out for the sieve alone: the check for networks is not made again in each fold.
    closed_form = False

    @property
    def uses_networks(self) -> bool:
        """It has none."""
        return False

    @property
    def last_stage(self) -> SieveFunction:
        """The line or the sieve."""
        return self.function

    @property
    def interval_kind(self) -> str:
        """What the intervals are."""
        return LAST_STAGE_INTERVALS

    def held_out_predictions(self, data: IVData, rows: Rows, max_rows: int) -> HeldOutPredictions | None:
        """g at rows of the fit, each by a sieve fitted anew without the row's fold."""
        return cross_fitted(data, partial(sieve_without, self.config, self.reduction), max_rows)
