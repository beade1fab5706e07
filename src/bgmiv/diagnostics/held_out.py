"""What held-out rows say of any fitted method: its predictions there, beside those of simple models."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from bgmiv.arrays import Floats, Integers
from bgmiv.data.folds import row_folds
from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Query, Rows
from bgmiv.diagnostics.control import errors_given_control
from bgmiv.diagnostics.ill_posedness import visible_shapes
from bgmiv.diagnostics.moments import (
    MomentRisks,
    compared_within,
    cross_fits,
    explained_beyond,
    moment_shares,
    moment_test_of_levels,
    variance_of,
)
from bgmiv.errors import BGMIVWarning, DataError
from bgmiv.fitted import FitEvidence, HeldOutPredictions
from bgmiv.linear_iv import Strength
from bgmiv.preprocess.reduction import BlockReduction

__all__ = [
    "beside_simple", "cross_fitted", "held_out_evidence", "held_out_rows", "held_out_values", "weights_at",
]  # fmt: skip


_N_FOLDS = 5


def cross_fitted(
    data: IVData, refit: Callable[[IVData], Callable[[Query], Floats]], max_rows: int
) -> HeldOutPredictions | None:
    """g at rows of the data, each by a fit without the fifth of the rows, whole groups, that it belongs to.

    `refit` gives the g of some rows as a function of a query. No more fits are made than `max_rows` predictions need.
    None if the data cannot be fitted without a fold.
    """
    rng = np.random.default_rng(0)
    fold = row_folds(data.n_rows, _N_FOLDS, rng, data.groups)
    n_folds = int(fold.max()) + 1
    if n_folds < 2:
        return None
    needed = range(min(n_folds, ceil(max_rows * n_folds / data.n_rows)))
    positions, values = [], []
    for each in needed:
        own = rng.permutation(np.flatnonzero(fold == each))[: ceil(max_rows / len(needed))]
        train = np.flatnonzero(fold != each)
        part = data.take(own)
        try:
            with warnings.catch_warnings():
                # The fit to all rows has given its warnings.
                warnings.simplefilter("ignore", BGMIVWarning)
                g = refit(data.take(train))
                predicted = g(Query(part.treatment[None], Rows(part.covariates, part.weights)))[0]
        except (ArithmeticError, LookupError, ValueError):
            # The fit to all rows stands; that it cannot be made without these is what the verdict says.
            return None
        positions.append(own)
        values.append(predicted if predicted.ndim > 1 else compared_within(data, train, own, predicted))
    rows, first = np.unique(np.concatenate(positions), return_index=True)
    return HeldOutPredictions(rows, np.concatenate(values)[first])


def held_out_rows(parts: Sequence[Integers], max_rows: int) -> tuple[Integers, Integers]:
    """Rows that members held out, as many of each member and `max_rows` of all, and which member held out each."""
    share = max(1, max_rows // len(parts))
    kept = [part[:share] for part in parts]
    return np.concatenate(kept), np.repeat(np.arange(len(kept)), [len(part) for part in kept])


def held_out_values(
    parts: Sequence[Integers], query: Query, members_at: Callable[[Query], Floats], max_rows: int
) -> HeldOutPredictions:
    """g at rows of a query, each by a member that held it out, from `(members, 1, n)` values of all."""
    positions, owner = held_out_rows(parts, max_rows)
    unique, first = np.unique(positions, return_index=True)
    values = members_at(query.take(unique))[:, 0]
    return HeldOutPredictions(unique, values[owner[first], np.arange(len(unique))])


def beside_simple(data: IVData, rows: Integers, own: Floats | None) -> tuple[list[float], MomentRisks]:
    """Shares explained by simple models, and moment risks of g = `own` and of theirs; all on rows they have not seen.

    The shares are of a linear and a kernel regression on instruments and covariates, and of the same on instruments
    alone. Those of several indicators of an outcome's levels are shares of their sum.
    """
    weights = weights_at(data, rows)
    total, errors, risks, variances = 0.0, np.zeros(4), [], []
    for k, part in enumerate(data.outcome_parts()):
        simple = cross_fits(part, rows)
        y = part.outcome[rows].astype(np.float64)
        errors += np.average((y - np.stack(simple[:4])) ** 2, axis=1, weights=weights)
        total += variance_of(y, weights)
        if own is not None:
            risks.append(moment_shares(part, rows, own.reshape(len(rows), -1)[:, k], simple))
            variances.append(variance_of(part.outcome, data.weights))
    # A share of its own indicator's variance each, hence weighed by it.
    averages = np.average(np.array(risks), axis=0, weights=variances).tolist() if risks else []
    return (1.0 - errors / total).tolist(), MomentRisks(*averages)


def weights_at(data: IVData, rows: Integers) -> NDArray[np.floating] | None:
    """The weights of some rows; None if all count the same, as they do where none has a positive weight."""
    if data.weights is None or not data.weights[rows].any():
        return None
    return data.weights[rows]


def held_out_evidence(
    known: FitEvidence, predictions: HeldOutPredictions | None, data: IVData, seed: int, strength: Strength | None
) -> FitEvidence:
    """All that held-out rows say of a fit that uses its instruments.

    Args:
        known: what its training has shown, if it showed anything.
        predictions: g at rows by models that have not seen them; None if there are no such rows.
        data: the rows of the fit.
        seed: of the bootstrap of the moment test.
        strength: of the instruments.
    """
    known = replace(known, discrete_outcome=data.schema.outcome.discrete).with_strength(strength)
    # There may be too few rows.
    with suppress(DataError):
        shapes = visible_shapes(data)
        if shapes is not None:
            known = replace(known, visible_shapes=shapes.visible, shapes=shapes.possible)
    if predictions is None or len(predictions.rows) < 2:
        return known
    rows, values = predictions
    if not np.isfinite(values).all():
        return replace(known, n_held_out=len(rows), moment_p=float("nan"))
    if data.schema.has_wide_block:
        data = BlockReduction().fit(data).apply(data)
    shares, risks = beside_simple(data, rows, values)
    outcomes = [part.outcome[rows].astype(np.float64) for part in data.outcome_parts()]
    errors = list(np.array(outcomes) - values.reshape(len(rows), -1).T)
    explained = known.outcome_explained
    if explained is None:
        weights = weights_at(data, rows)
        total = sum(variance_of(outcome, weights) for outcome in outcomes)
        wrong = sum(explained_beyond(data, rows, error) for error in errors)
        explained = max(shares[0], shares[1]) - wrong / total
    # There may be fewer than three groups.
    with suppress(DataError):
        test = moment_test_of_levels(data.take(rows), values, seed)
        known = replace(known, moment_p=test.p_value, moment_statistic=test.statistic)
    # With weak instruments the regression given a control variable is about as noisy as the moments.
    if strength is not None and not strength.weak:
        known = _given_control(known, data, rows, errors)
    return replace(
        known,
        n_held_out=max(known.n_held_out, len(rows)),
        outcome_explained=explained,
        linear_explained=shares[0],
        flexible_explained=shares[1],
        **risks._asdict(),
    )


def _given_control(known: FitEvidence, data: IVData, rows: Integers, errors: Sequence[Floats]) -> FitEvidence:
    """The evidence with what the regression given a control variable says of the errors of curves at held-out rows.

    Of several indicators of an outcome's levels the one with the smallest p-value counts, which is multiplied by their
    number.
    """
    estimates = errors_given_control(data, rows, errors)
    if estimates is None:
        return known
    worst, part = min(zip(estimates, data.outcome_parts(), strict=True), key=lambda pair: pair[0].p_value)
    variance = variance_of(part.outcome, data.weights)
    return replace(
        known,
        control_error=worst.size / variance,
        control_p=min(1.0, worst.p_value * len(estimates)),
        control_visible=worst.visible / variance,
    )
