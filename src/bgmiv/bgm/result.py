"""BGM-IV: what a fit leaves: networks with a last regression, or where nothing was left for them the sieve alone."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from bgmiv.bgm.config import BGMIVConfig
from bgmiv.bgm.last_stage import sieve_without
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Rows
from bgmiv.diagnostics.held_out import cross_fitted
from bgmiv.estimators.fitted import FittedSieve
from bgmiv.fitted import FittedMethod, HeldOutPredictions
from bgmiv.sieve.bases import SieveFunction

__all__ = ["LAST_STAGE_INTERVALS", "FittedBGMIV", "FittedWithoutNetworks"]

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
