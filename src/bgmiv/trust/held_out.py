"""Simple fits beside which a rich one has to stand, on the same held-out rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from bgmiv.data.ivdata import IVData
from bgmiv.kernels import GaussianKernel, median_lengthscales
from bgmiv.trust.moments import conditions_of, moment_risk

__all__ = ["Comparison", "SimpleFits", "moment_shares", "simple_fits"]

Floats = NDArray[np.float64]

# The simple fits have few parameters, and the moment's cost grows with the square of its rows.
_MOST_ROWS = 5000
_MOST_PAIRED = 1500
_MOST_KERNEL = 800
_LENGTHSCALES = (0.3, 1.0, 3.0)
_PENALTIES = np.logspace(-6, 0, 7)


class SimpleFits(NamedTuple):
    """Predictions of held-out rows by fits on the training rows, each (m,).

    Attributes:
        outcome: linear regression of the outcome on instruments and covariates.
        flexible: kernel ridge regression of the same, on 800 rows at most.
        linear_instruments: linear regression of the outcome on instruments alone.
        flexible_instruments: kernel ridge regression of the same.
        structural: linear 2SLS of the outcome on treatment and covariates.
        treatment_only: 2SLS of the outcome on a cubic in the treatment (or the indicators of its levels), instrumented
            by cubics in the instruments.
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

    They are yardsticks of prediction: nothing is inferred from their coefficients, which least squares of minimum norm
    keeps defined with any number of columns.
    """
    train = train[:_MOST_ROWS]
    treatment = data.schema.treatment.columns(data.treatment)
    w, x, v = (_standard(a, train) for a in (data.instruments, treatment, data.covariates))
    one = np.ones((data.n_rows, 1))
    y = data.outcome.astype(np.float64)
    exogenous = np.hstack([one, w, v])
    outcome = exogenous[held_out] @ _coefficients(exogenous[train], y[train])
    flexible = _kernel_ridge(exogenous[:, 1:], y, train[:_MOST_KERNEL], held_out)
    alone = np.hstack([one, w])
    linear_alone, flexible_alone = outcome, flexible
    if v.shape[1]:
        linear_alone = alone[held_out] @ _coefficients(alone[train], y[train])
        flexible_alone = _kernel_ridge(w, y, train[:_MOST_KERNEL], held_out)
    structural = _two_stage(np.hstack([one, x, v]), exogenous, y, train, held_out)
    cubic, moved = (np.hstack([one, a, a**2, a**3]) for a in (x, w))
    treatment_only = _two_stage(cubic, moved, y, train, held_out)
    return SimpleFits(outcome, flexible, linear_alone, flexible_alone, structural, treatment_only)


def moment_shares(data: IVData, held_out: NDArray[np.int64], predicted: Floats, simple: SimpleFits) -> Comparison:
    """Held-out moment risks of a fit and of the simple ones, on 1500 rows at most."""
    rows = held_out[:_MOST_PAIRED]
    part = data.take(rows)
    conditions = conditions_of(part)
    y = part.outcome.astype(np.float64)
    variance = max(float(np.var(data.outcome, dtype=np.float64)), np.finfo(float).tiny)

    def share(values: Floats) -> float:
        residuals = y - values[: len(rows)]
        # A fit that predicts no numbers has no risk either; the verdict says so.
        return moment_risk(residuals, conditions) / variance if np.isfinite(residuals).all() else float("nan")

    return Comparison(share(predicted), share(simple.structural), share(simple.treatment_only))


def _standard(values: NDArray[np.floating], train: NDArray[np.int64]) -> Floats:
    array: Floats = values.astype(np.float64)
    centre, spread = array[train].mean(axis=0), array[train].std(axis=0)
    return np.asarray((array - centre) / np.where(spread > 0, spread, 1.0), np.float64)


def _coefficients(columns: Floats, target: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(columns, target, rcond=1e-8)[0], np.float64)


def _kernel_ridge(columns: Floats, y: Floats, train: NDArray[np.int64], held_out: NDArray[np.int64]) -> Floats:
    """Predictions of held-out rows; lengthscale and penalty by generalised cross-validation on the training rows."""
    groups = [slice(i, i + 1) for i in range(columns.shape[1])]
    lengthscales = median_lengthscales(columns[train], groups)
    centre = y[train].mean()
    target = y[train] - centre
    best, found = np.inf, np.zeros(len(held_out))
    for factor in _LENGTHSCALES:
        kernel = GaussianKernel(lengthscales * factor)
        values, vectors = eigh(kernel(columns[train], columns[train]))
        values, rotated = np.maximum(values, 0.0), vectors.T @ target
        for penalty in _PENALTIES * len(train):
            shrunk = penalty / (values + penalty)
            score = float(np.sum((shrunk * rotated) ** 2) / np.sum(shrunk) ** 2)
            if score < best:
                best = score
                weights = vectors @ (rotated / (values + penalty))
                found = kernel(columns[held_out], columns[train]) @ weights
    return np.asarray(centre + found, np.float64)


def _two_stage(
    columns: Floats, instruments: Floats, y: Floats, train: NDArray[np.int64], held_out: NDArray[np.int64]
) -> Floats:
    projected = instruments[train] @ _coefficients(instruments[train], columns[train])
    return columns[held_out] @ _coefficients(projected, y[train])
