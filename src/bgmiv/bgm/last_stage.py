"""The last stage: the outcome regressed, in closed form, on a line and on what held-out rows support beyond it.

Where no networks were trained, it is the whole fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from bgmiv.arrays import Floats
from bgmiv.bgm.config import BGMIVConfig
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.diagnostics.held_out import cross_fitted
from bgmiv.diagnostics.moments import variance_of
from bgmiv.errors import NotIdentifiedError
from bgmiv.estimators.fitted import FittedSieve
from bgmiv.fitted import FitEvidence, FittedMethod, HeldOutPredictions
from bgmiv.linear_iv import strength_of
from bgmiv.preprocess.reduction import FittedReduction
from bgmiv.progress import Reporter, silent
from bgmiv.sieve.bases import SieveFunction
from bgmiv.sieve.fit import Learned, SieveFit, fit_sieve, min_rows

__all__ = [
    "FittedBGMIV", "FittedWithoutNetworks", "LastStage", "fit_sieve_stage", "with_networks",
]  # fmt: skip


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

    @property
    def left_out_errors(self) -> Floats:
        """Errors of E[y | w, v] in rows that it was not fitted on, given, linearly, what the first stage leaves."""
        return self.fit.left_out_errors(self.rows)

    def added_to(self, evidence: FitEvidence, config: BGMIVConfig, data: IVData) -> FitEvidence:
        """The evidence on a fit to `data` with what it has of this last stage."""
        function = self.function
        strength = strength_of(data, function.first_stage_f) if config.use_instrument else None
        evidence = replace(evidence, n_penalised=self.fit.n_shrunk)
        return evidence.with_last_stage(self.explained, function.weight, function.is_linear, strength)


def fit_sieve_stage(
    config: BGMIVConfig, data: IVData, learned: Learned | None = None, reporter: Reporter = silent
) -> LastStage | None:
    """The last stage without networks, or with what they have learned in place of the terms beyond a line.

    Args:
        config: of a fit with a last stage.
        data: the rows of the fit, wide blocks reduced; those without a weight are left out.
        learned: what the networks say of these rows.
        reporter: of progress.

    Returns:
        None if there are too few rows, or if the first stage does not identify the treatment.
    """
    assert config.last_stage is not None
    if data.weights is not None:
        positive = data.weights > 0
        data, learned = data.take(positive), None if learned is None else learned.take(positive)
    if data.n_rows < min_rows(data.instruments.shape[1]):
        return None
    try:
        fit = fit_sieve(
            config.last_stage, data, use_instrument=config.use_instrument, learned=learned, reporter=reporter
        )
    except NotIdentifiedError:
        return None
    return LastStage(data, fit)


def with_networks(config: BGMIVConfig, data: IVData, sieve: LastStage | None, learned: Learned) -> LastStage | None:
    r"""The last stage where networks were trained: $g = a + b x + c^\top v + d f$, f of the networks, or the sieve.

    It is the networks if d is positive and they predict held-out rows better than the sieve, by more than one standard
    error. Either predicts by its mean of g given instruments and covariates and, linearly, by what its own first stage
    leaves of the treatment; so both stages count. A sieve none of whose terms enters is linear two-stage least squares.

    Args:
        config: of a fit with a last stage.
        data: the rows of the fit, wide blocks reduced.
        sieve: the last stage without networks; None if it cannot be fitted.
        learned: what the networks say of these rows; not a number where every member was trained on the row. Numbers of
            less than half of the rows are not used.

    Returns:
        None if neither first stage identifies the treatment.
    """
    known = np.isfinite(learned.own)
    if 2 * known.sum() < data.n_rows:
        return sieve
    rows = data.take(known)
    networks = fit_sieve_stage(config, rows, learned.take(known))
    # Of a weight that is not positive not their function predicts, but what their first stage adds to a line.
    if networks is None or networks.function.weight <= 0.0:
        return sieve
    if sieve is not None and sieve.rows.n_rows != networks.rows.n_rows:
        # Both are compared on the same rows.
        sieve = fit_sieve_stage(config, rows)
    return networks if sieve is None or _better(networks, sieve) else sieve


def _better(networks: LastStage, sieve: LastStage) -> bool:
    """Whether the networks predict left-out rows better, by more than one standard error."""
    groups = networks.rows.groups
    gains = networks.rows.full_weights * (sieve.left_out_errors**2 - networks.left_out_errors**2)
    total = gains if groups is None else np.bincount(groups, gains)
    return bool(total.sum() > np.sqrt(np.sum((total - total.mean()) ** 2)))


class FittedBGMIV(FittedMethod):
    """A fitted BGM-IV, with networks or without.

    Attributes:
        config: the config; resolved where networks were trained.
        reduction: how wide vector blocks are reduced.

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
    reduction: FittedReduction

    @property
    def uses_networks(self) -> bool:
        """Whether the estimate depends on networks; trained ones have no part in it where held-out rows do without."""
        return False

    @property
    def interval_kind(self) -> str:
        """What the intervals are."""
        return (
            "Intervals from the robust (with groups, clustered) covariance of the last regression's coefficients and "
            "the smoothing bias that is likely under the prior behind its penalties."
        )

    def held_out_predictions(self, data: IVData, rows: Rows, max_rows: int) -> HeldOutPredictions | None:
        """g at rows of the fit, each by a last stage without networks, fitted anew without the row's fold."""

        def without_fold(part: IVData) -> Callable[[Query], Floats]:
            stage = fit_sieve_stage(self.config, self.reduction.apply(part))
            if stage is None:
                raise NotIdentifiedError("the sieve cannot be fitted without a fold of the rows.")

            return partial(self._at_new_rows, stage.function)

        return cross_fitted(data, without_fold, max_rows)

    def _at_new_rows(self, function: SieveFunction, query: Query, learned: Floats | None = None) -> Floats:
        """The g of a last stage that is not the fit's own, at covariates that are not reduced."""
        reduced = self.reduction.transform(query.rows.covariates)
        return function.at(query, function.encode(self.reduction.schema, reduced), learned)


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
    def last_stage(self) -> SieveFunction:
        """The line or the sieve."""
        return self.function
