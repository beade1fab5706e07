"""The last stage: the outcome regressed, in closed form, on a line and on what held-out rows support beyond it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgmiv.bgm.config import BGMIVConfig
from bgmiv.bgm.model import BGMIVModel, encode_rows, iv_means
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query
from bgmiv.data.scaling import ScaledData, Scaler
from bgmiv.diagnostics.moments import variance_of
from bgmiv.errors import DataError, NotIdentifiedError
from bgmiv.integrate import IntegrationRule, rule_for
from bgmiv.likelihood import Levels
from bgmiv.preprocess.reduction import FittedReduction
from bgmiv.sieve.bases import SieveFunction
from bgmiv.sieve.fit import Learned, SieveConfig, SieveFit, fit_sieve, left_out_errors, min_rows
from bgmiv.training.loop import Row

__all__ = ["LastStage", "fit_last_stage", "learned_means", "left_out_fits", "sieve_without"]

Floats = NDArray[np.float64]

_PIECE = 4096


class LastStage(NamedTuple):
    """The structural function, and how well it predicts rows that it was not fitted on.

    Attributes:
        function: in treatment and covariates; its learned function is the mean of the members' networks.
        explained: share of the outcome's variance that E[y | w, v] explains in left-out rows.
        n_shrunk: how many covariate columns are penalised because they are too many for the rows.
    """

    function: SieveFunction
    explained: float
    n_shrunk: int


def fit_last_stage(
    config: SieveConfig, data: IVData, learned: Learned | None, *, use_instrument: bool = True
) -> LastStage | None:
    r"""Fit $g = a + b x + c^\top v + d f$, with f of the networks, or with a sieve's terms in the place of d f.

    It is the networks if d is positive and they predict held-out rows better than the sieve, by more than one standard
    error. Either predicts by its mean of g given instruments and covariates and, linearly, by what its own first stage
    leaves of the treatment; so both stages count. A sieve none of whose terms enters is linear two-stage least squares.

    Args:
        config: of the sieve.
        data: the rows of the fit, wide blocks reduced.
        learned: what the networks say of these rows; not a number where every member was trained on the row. None, or
            numbers of less than half of the rows: they are not used.
        use_instrument: False for a regression on the observed treatment.

    Returns:
        None if there are too few rows, or if neither first stage identifies the treatment.
    """
    if learned is not None and 2 * np.isfinite(learned.own).sum() < data.n_rows:
        learned = None
    known = np.ones(data.n_rows, bool) if learned is None else np.isfinite(learned.own)
    if data.weights is not None:
        known &= data.weights > 0
    if known.sum() < min_rows(data.instruments.shape[1]):
        return None
    part = data.take(known)
    fit = partial(fit_sieve, config, part, use_instrument=use_instrument)
    networks = None if learned is None else _identified(partial(fit, learned=learned.take(known)))
    chosen = _identified(fit)
    if networks is not None and networks.function.weight <= 0.0:
        # Not their function predicts then, but what their first stage adds to a line.
        networks = None
    if networks is not None and (chosen is None or _better(part, networks, chosen)):
        chosen = networks
    if chosen is None:
        return None
    squares = np.average((part.outcome - chosen.left_out) ** 2, weights=part.weights)
    explained = 1.0 - float(squares) / variance_of(part.outcome, part.weights)
    return LastStage(chosen.function, explained, chosen.n_shrunk)


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


def learned_means(
    models: Sequence[BGMIVModel],
    integration: IntegrationRule,
    rows: ScaledData,
    scaler: Scaler,
    left_out: Sequence[NDArray[np.int64]],
) -> Learned:
    """What the models say of each row, in units of the data; `left_out` has the rows that each was not trained on."""
    values, treatments = [], []
    for model in models:
        outcome, treatment = _means(model, integration, rows)
        values.append(scaler.outcome.inverse(outcome))
        treatments.append(scaler.treatment.inverse(treatment))
    own, first = np.full(len(rows.x), np.nan), np.full(treatments[0].shape, np.nan)
    for i, positions in enumerate(left_out):
        own[positions], first[positions] = values[i][positions], treatments[i][positions]
    return Learned(own, np.mean(values, axis=0), first)


def _means(model: BGMIVModel, integration: IntegrationRule, rows: ScaledData) -> tuple[Floats, Floats]:
    n = len(rows.x)
    size = min(n, _PIECE)
    outcome, treatment = np.empty(n), np.empty((n, max(model.treatment_head.raw_dim - 1, 1)))
    for start in range(0, n, size):
        # The last piece overlaps the one before, so that all have one size and one program.
        piece = slice(min(start, n - size), min(start, n - size) + size)
        part = Row(*(jax.device_put(values[piece]) for values in (rows.x, rows.y, rows.v, rows.w)))
        outcome[piece], treatment[piece] = _piece_means(model, integration, part)
    return outcome, treatment


@partial(jax.jit, static_argnames="integration")
def _piece_means(model: BGMIVModel, integration: IntegrationRule, rows: Row) -> tuple[Array, Array]:
    z, head = encode_rows(model, rows.v), model.treatment_head
    raw_x = jax.vmap(model.treatment_raw)(rows.w, z)
    outcome = iv_means(model, rule_for(integration, head), rows, raw_x, z, jax.random.key(0))
    treatment = jax.nn.softmax(raw_x)[:, 1:] if isinstance(head, Levels) else jax.vmap(head.mean)(raw_x)
    return outcome, treatment


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
        controls = fit.residuals[:, : fit.function.treatment.sizes["lines"]]
        return left_out_errors(y, fit.left_out, controls, weights)

    gains = weights * (errors(sieve) - errors(networks))
    if data.groups is not None:
        gains = np.asarray(np.bincount(data.groups, gains), np.float64)
    return bool(gains.sum() > np.sqrt(np.sum((gains - gains.mean()) ** 2)))
