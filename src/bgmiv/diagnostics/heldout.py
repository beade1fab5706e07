"""Simple models that a fit is compared with on the same held-out rows; weights count everywhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from bgmiv.data.ivdata import IVData
from bgmiv.diagnostics.moments import MAX_TESTED, conditions_of, moment_risk, row_weights, variance_of
from bgmiv.kernels import GaussianKernel, median_lengthscales

__all__ = ["Comparison", "SimpleFits", "moment_shares", "simple_fits"]

Floats = NDArray[np.float64]

# The simple models have few parameters.
_MAX_ROWS = 5000
_MAX_KERNEL = 800
_LENGTHSCALES = (0.3, 1.0, 3.0)
_PENALTIES = np.logspace(-6, 0, 7)


class SimpleFits(NamedTuple):
    """Predictions of held-out rows by models fitted on the training rows, each (m,).

    Attributes:
        outcome, flexible: linear regression of the outcome on instruments and covariates, and kernel ridge regression
            of the same, on 800 rows at most.
        linear_instruments, flexible_instruments: the same on instruments alone.
        structural: linear 2SLS of the outcome on treatment and covariates.
        treatment_only: 2SLS of the outcome on a cubic in the treatment (or indicators of its levels), instrumented by
            cubics in the instruments.
    """

    outcome: Floats
    flexible: Floats
    linear_instruments: Floats
    flexible_instruments: Floats
    structural: Floats
    treatment_only: Floats


class Comparison(NamedTuple):
    """Moment risks on held-out rows as shares of the outcome's variance."""

    fit: float
    linear: float
    treatment_only: float


def simple_fits(data: IVData, train: NDArray[np.int64], held_out: NDArray[np.int64]) -> SimpleFits:
    """Fit the simple models on some rows and predict others.

    They only serve as benchmarks of prediction, so minimum-norm least squares is enough for any number of columns.
    """
    train, weights = train[:_MAX_ROWS], row_weights(data)
    treatment = data.schema.treatment.columns(data.treatment)
    w, x, v = (_standard(a, train, weights) for a in (data.instruments, treatment, data.covariates))
    one, root = np.ones((data.n_rows, 1)), np.sqrt(weights)
    y = data.outcome.astype(np.float64)
    target = (y * root)[train]

    def linear(columns: Floats) -> Floats:
        return columns[held_out] @ _coefficients((columns * root[:, None])[train], target)

    def kernel(columns: Floats) -> Floats:
        return _kernel_ridge(columns, y, root, train[:_MAX_KERNEL], held_out)

    def two_stage(columns: Floats, instruments: Floats) -> Floats:
        left, right = ((a * root[:, None])[train] for a in (columns, instruments))
        return columns[held_out] @ _coefficients(right @ _coefficients(right, left), target)

    exogenous = np.hstack([one, w, v])
    outcome, flexible = linear(exogenous), kernel(exogenous[:, 1:])
    alone = (linear(np.hstack([one, w])), kernel(w)) if v.shape[1] else (outcome, flexible)
    structural = two_stage(np.hstack([one, x, v]), exogenous)
    cubics = [np.hstack([one, a, a**2, a**3]) for a in (x, w)]
    return SimpleFits(outcome, flexible, *alone, structural, two_stage(*cubics))


def moment_shares(data: IVData, held_out: NDArray[np.int64], predicted: Floats, simple: SimpleFits) -> Comparison:
    """Held-out moment risks of a fit and of the simple models, on 1500 rows at most."""
    rows = held_out[:MAX_TESTED]
    part = data.take(rows)
    conditions = conditions_of(part)
    y, weights = part.outcome.astype(np.float64), row_weights(part)
    variance = max(variance_of(data.outcome, data.weights), np.finfo(float).tiny)

    def share(values: Floats) -> float:
        residuals = weights * (y - values[: len(rows)])
        # Predictions that are not numbers have no risk; the verdict reports them.
        if not np.isfinite(residuals).all():
            return float("nan")
        return moment_risk(residuals, conditions) / variance

    return Comparison(share(predicted), share(simple.structural), share(simple.treatment_only))


def _standard(values: NDArray[np.floating], train: NDArray[np.int64], weights: Floats) -> Floats:
    array: Floats = values.astype(np.float64)
    if not array.shape[1]:
        return array
    centre = np.average(array[train], axis=0, weights=weights[train])
    spread = np.sqrt(np.average((array[train] - centre) ** 2, axis=0, weights=weights[train]))
    return np.asarray((array - centre) / np.where(spread > 0, spread, 1.0), np.float64)


def _coefficients(columns: Floats, target: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(columns, target, rcond=1e-8)[0], np.float64)


def _kernel_ridge(
    columns: Floats, y: Floats, root: Floats, train: NDArray[np.int64], held_out: NDArray[np.int64]
) -> Floats:
    """Predictions of held-out rows; lengthscale and penalty by generalised cross-validation on the training rows.

    `root` holds the square roots of the weights: rows, targets and the kernel matrix are multiplied by them.
    """
    groups = [slice(i, i + 1) for i in range(columns.shape[1])]
    lengthscales = median_lengthscales(columns[train], groups)
    scale = root[train]
    centre = np.average(y[train], weights=scale**2)
    target = scale * (y[train] - centre)
    best, found = np.inf, np.zeros(len(held_out))
    for factor in _LENGTHSCALES:
        kernel = GaussianKernel(lengthscales * factor)
        values, vectors = eigh(scale[:, None] * kernel(columns[train], columns[train]) * scale)
        values, rotated = np.maximum(values, 0.0), vectors.T @ target
        for penalty in _PENALTIES * len(train):
            shrunk = penalty / (values + penalty)
            score = float(np.sum((shrunk * rotated) ** 2) / np.sum(shrunk) ** 2)
            if score < best:
                best = score
                coefficients = scale * (vectors @ (rotated / (values + penalty)))
                found = kernel(columns[held_out], columns[train]) @ coefficients
    return np.asarray(centre + found, np.float64)
