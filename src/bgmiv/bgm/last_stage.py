"""The last stage: the outcome regressed, in closed form, on a line and on what held-out rows support beyond it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.bgm.config import BGMIVConfig
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query
from bgmiv.diagnostics.moments import variance_of
from bgmiv.errors import DataError, NotIdentifiedError
from bgmiv.preprocess.reduction import FittedReduction
from bgmiv.sieve.bases import SieveFunction
from bgmiv.sieve.fit import Learned, SieveConfig, SieveFit, fit_sieve, left_out_errors, min_rows

__all__ = ["LastStage", "fit_sieve_stage", "left_out_fits", "sieve_without", "with_networks"]

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


def fit_sieve_stage(config: SieveConfig, data: IVData, *, use_instrument: bool = True) -> LastStage | None:
    """The last stage without networks; None if there are too few rows, or if instruments do not identify the treatment.

    Args:
        config: of the sieve.
        data: the rows of the fit, wide blocks reduced.
        use_instrument: False for a regression on the observed treatment.
    """
    rows = data if data.weights is None else data.take(data.weights > 0)
    if rows.n_rows < min_rows(rows.instruments.shape[1]):
        return None
    found = _identified(partial(fit_sieve, config, rows, use_instrument=use_instrument))
    return None if found is None else LastStage(rows, found)


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
    if data.weights is not None:
        known &= data.weights > 0
    rows = data.take(known)
    if rows.n_rows < min_rows(rows.instruments.shape[1]):
        return sieve
    fit = partial(fit_sieve, config, rows, use_instrument=use_instrument)
    networks = _identified(partial(fit, learned=learned.take(known)))
    if sieve is not None and sieve.rows.n_rows != rows.n_rows:
        # Both are compared on the same rows.
        other = _identified(fit)
        sieve = None if other is None else LastStage(rows, other)
    # Of a weight that is not positive not their function predicts, but what their first stage adds to a line.
    if networks is None or networks.function.weight <= 0.0:
        return sieve
    if sieve is None or _better(rows, networks, sieve.fit):
        return LastStage(rows, networks)
    return sieve


def sieve_without(config: BGMIVConfig, reduction: FittedReduction, part: IVData) -> Callable[[Query], Floats]:
    """The last stage without networks, its terms chosen anew, of some rows of the data: the function of a query."""
    function = _fit_again(config, reduction.apply(part), None)

    def at(query: Query) -> Floats:
        return function.at(query, function.encode(reduction.schema, reduction.transform(query.rows.covariates)))

    return at


def left_out_fits(
    config: BGMIVConfig, data: IVData, learned: Learned, left_out: Sequence[NDArray[np.int64]]
) -> list[SieveFunction] | None:
    """The last stage with networks, for each member without the rows that it left out; None if one is not identified.

    Args:
        config: of the fit.
        data: the rows of the fit, wide blocks reduced.
        learned: what the networks say of them.
        left_out: the rows that each member was not trained on.
    """
    found = []
    for own in left_out:
        rest = np.isfinite(learned.own)
        rest[own] = False
        try:
            found.append(_fit_again(config, data.take(rest), learned.take(rest)))
        except (DataError, NotIdentifiedError):
            return None
    return found


def _fit_again(config: BGMIVConfig, data: IVData, learned: Learned | None) -> SieveFunction:
    assert config.last_stage is not None
    if data.weights is not None:
        there = data.weights > 0
        data, learned = data.take(there), None if learned is None else learned.take(there)
    return fit_sieve(config.last_stage, data, use_instrument=config.use_instrument, learned=learned).function


def _identified(fit: Callable[[], SieveFit]) -> SieveFit | None:
    """The fit; None if its first stage does not identify the treatment."""
    try:
        return fit()
    except NotIdentifiedError:
        return None


def _better(data: IVData, networks: SieveFit, sieve: SieveFit) -> bool:
    """Whether the networks predict left-out rows better, by more than one standard error."""
    weights = np.ones(data.n_rows) if data.weights is None else np.asarray(data.weights, np.float64)
    y = np.asarray(data.outcome, np.float64)

    def errors(fit: SieveFit) -> Floats:
        controls = fit.residuals[:, : fit.function.treatment.n_linear]
        return left_out_errors(y, fit.left_out, controls, weights)

    gains = weights * (errors(sieve) ** 2 - errors(networks) ** 2)
    if data.groups is not None:
        gains = np.asarray(np.bincount(data.groups, gains), np.float64)
    return bool(gains.sum() > np.sqrt(np.sum((gains - gains.mean()) ** 2)))
