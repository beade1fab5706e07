"""Gathering what speaks for and against a fit from the rows its members left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.train.looks import RowsLook
from bgmiv.trust.held_out import Comparison, moment_shares, simple_fits
from bgmiv.trust.verdict import FitEvidence

__all__ = ["gather_evidence"]

_MOST_ROWS = 1500


def gather_evidence(
    data: IVData,
    held_out: Sequence[NDArray[np.int64]],
    looks: Sequence[tuple[RowsLook, RowsLook]],
    predict: Callable[[IVData], NDArray[np.float64]],
    *,
    n_steps: int | None = None,
    n_failed: int = 0,
    uses_instrument: bool = True,
) -> FitEvidence:
    """The evidence on a fit.

    Args:
        data: all rows, as the members see their covariates.
        held_out: for each member the rows it left out; empty where none did.
        looks: each member at its held-out rows and at rows it was trained on.
        predict: g of every member at the rows of some data, `(members, m)`, in units of the outcome; `(members, m, K)`
            probabilities for an outcome of K levels. What is measured of such an outcome is summed over its indicators.
        n_steps: training steps of the member that had the fewest.
        n_failed: members that failed.
        uses_instrument: whether the fit used the instruments.
    """
    n_members = len(held_out)
    if not looks:
        return FitEvidence(n_steps=n_steps, n_members=n_members, n_failed=n_failed)
    share = max(1, _MOST_ROWS // n_members)
    parts = [rows[:share] for rows in held_out]
    rows = np.concatenate(parts)
    owner = np.repeat(np.arange(n_members), [len(part) for part in parts])
    members = predict(data.take(rows))
    own = members[owner, np.arange(len(rows))]
    variance = sum(float(np.var(part.outcome, dtype=np.float64)) for part in data.outcome_parts())
    spread = max(variance**0.5, np.finfo(float).tiny)
    away, home = (_means([look[i] for look in looks]) for i in (0, 1))
    explained = 1.0 - away.outcome_loss / max(away.outcome_variance, np.finfo(float).tiny)
    linear = flexible = gain = None
    risks: tuple[float | None, ...] = (None, None, None)
    rest = np.setdiff1d(np.arange(data.n_rows), rows, assume_unique=False)
    if uses_instrument and len(rest) > 0:
        train = np.random.default_rng(0).permutation(rest)
        (linear, flexible, *alone), risks = _beside_simple(data, train, rows, own)
        gain = max(linear, flexible) - max(alone) if data.schema.blocks else None
    return FitEvidence(
        n_held_out=len(rows),
        outcome_explained=explained,
        linear_explained=linear,
        flexible_explained=flexible,
        covariates_gain=gain,
        moment_risk=risks[0],
        linear_moment_risk=risks[1],
        treatment_moment_risk=risks[2],
        outcome_gap=away.outcome_loss / max(home.outcome_loss, np.finfo(float).tiny),
        treatment_gap=home.treatment_score - away.treatment_score,
        first_stage_gain=away.first_stage_gain if uses_instrument else None,
        disagreement=_disagreement(members) / spread if n_members > 1 else None,
        near_floor=away.near_floor,
        # Without covariates there is nothing for latents to carry.
        latent_spread=away.latent_spread if data.schema.blocks else None,
        n_steps=n_steps,
        n_members=n_members,
        n_failed=n_failed,
        discrete_outcome=data.schema.outcome.discrete,
    )


def _beside_simple(
    data: IVData, train: NDArray[np.int64], rows: NDArray[np.int64], own: NDArray[np.float64]
) -> tuple[list[float], Comparison]:
    """Shares explained by the simple fits, and moment risks; those of several indicators as shares of their sum."""
    parts = data.outcome_parts()
    tiny = np.finfo(float).tiny
    variances = np.asarray([max(float(np.var(part.outcome, dtype=np.float64)), tiny) for part in parts])
    total, errors, risks = 0.0, np.zeros(4), []
    for part, predicted in zip(parts, own.reshape(len(rows), -1).T, strict=True):
        simple = simple_fits(part, train, rows)
        y = part.outcome[rows].astype(np.float64)
        fits = (simple.outcome, simple.flexible, simple.linear_instruments, simple.flexible_instruments)
        errors += [float(np.mean((y - values) ** 2)) for values in fits]
        total += float(np.var(y))
        risks.append(moment_shares(part, rows, predicted, simple))
    # A share of its own indicator's variance each, hence weighed by it.
    shares = Comparison(*np.average(risks, axis=0, weights=variances).tolist())
    return (1.0 - errors / max(total, tiny)).tolist(), shares


def _disagreement(members: NDArray[np.float64]) -> float:
    """Root mean square deviation between members at `(members, m)` or `(members, m, K)`."""
    return float(np.sqrt(np.mean(np.sum(np.var(members, axis=0).reshape(members.shape[1], -1), axis=1))))


def _means(looks: Sequence[RowsLook]) -> RowsLook:
    return RowsLook(*(float(np.mean(values)) for values in zip(*looks, strict=True)))
