r"""How large curves are: what the regression of the outcome on the observed treatment says, given control variables.

Moments tell little of a curve where the instruments move the treatment little. The regression of the outcome on the
treatment itself tells much more, but of $g$ and of confounding together: its curve is that of g if the errors are
independent of the instruments, given covariates and the control variable (the residual of the first stage). That is
assumed nowhere. The regression only says how large a curve may be, which decides how far intervals must reach; which
curve it is, the moments say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from bgmiv.arrays import Floats, Integers
from bgmiv.distributions import normal_density
from bgmiv.sieve.bases import Spline, column_products
from bgmiv.sieve.penalties import Evidence, Moments, Posterior, Prior, penalised_solve, priors_of
from bgmiv.sieve.sampling import BlocksAt, Sampling

__all__ = ["Observed", "control_curves", "generalised_residual", "standardised"]


_MIN_ROWS_A_COLUMN = 4
_SPLINES = 4
_MIN_PROBABILITY = 1e-3
# Of the mean size of a residual.
_MIN_SIZE = 0.2


def control_curves(controls: Floats, covariates: Floats, *, curved: bool) -> tuple[Floats, Floats]:
    """Functions of control variables `(n, k)`, beside themselves, on which the error of an outcome may depend.

    Args:
        controls: the control variables.
        covariates: those by which they are multiplied.
        curved: False without splines, for a treatment with levels.

    Returns:
        Splines of each, and products of each with each covariate.
    """
    splines = [Spline.fit(values, _SPLINES)(values) for values in controls.T] if curved else []
    return np.hstack([controls[:, :0], *splines]), column_products(controls, covariates)


class Observed(NamedTuple):
    """The regression of the outcome on the observed treatment, covariates and control variables.

    Attributes:
        terms: the terms of the structural function, in blocks, by rows.
        linear: `(n, k)` control variables, without a penalty.
        curves: `(n, m)` functions of them on which the outcome's error may depend.
        shape: of the prior of the latter.
    """

    terms: BlocksAt
    linear: Floats
    curves: Floats
    shape: Prior

    def fit(self, outcome: Floats, sampling: Sampling, ridges: Floats) -> Moments | None:
        """The regression of an outcome `(n,)` with these ridges of the terms' columns, None with few rows.

        The terms come first, the control variables' curves last.
        """

        def blocks_at(rows: Any) -> list[Floats]:
            return [*self.terms(rows), self.linear[rows], self.curves[rows], outcome[rows, None]]

        total = sampling.grams(blocks_at).sum(axis=0)
        gram, moments = total[:-1, :-1], total[:-1, -1]
        ridges = np.append(ridges, np.zeros(len(moments) - len(ridges)))
        n_used = int(np.isfinite(ridges).sum())
        if sampling.n_rows < _MIN_ROWS_A_COLUMN * n_used:
            return None
        some = sampling.some_rows()
        columns = sampling.columns(blocks_at, some)
        regressors = columns[:, :-1]
        errors = columns[:, -1] - regressors @ penalised_solve(gram, moments, ridges)
        covariance = sampling.covariance([(some, [(regressors, errors)])])
        covariance *= sampling.n_rows / len(some) * sampling.n_rows / (sampling.n_rows - n_used)
        return Moments(gram, moments, covariance, ridges)

    def joint(self, moments: Moments, own: Integers, deviation: float) -> Callable[[Floats], Posterior]:
        """Gives the posterior of some columns of terms for prior variances `(m, k)`, averaged over confounding.

        Args:
            moments: of the regression.
            own: the columns.
            deviation: the standard deviation of the outcome beyond a linear model.
        """
        n = len(moments.ridges)
        curves = np.arange(n - len(self.shape.variances), n)
        evidence = Evidence.of(moments, np.concatenate([own, curves]))
        # Every other size is enough of what is only averaged over.
        controls = priors_of([self.shape], deviation, step=2)

        def posterior(variances: Floats) -> Posterior:
            logs, squares = [], []
            for prior in controls:
                both = np.hstack([variances, np.tile(prior.variances, (len(variances), 1))])
                given = evidence.posterior(both)
                logs.append(np.log(prior.probability) + given.logs)
                squares.append(given.squares[:, : len(own)])
            total = np.logaddexp.reduce(logs, axis=0)
            return Posterior(total, np.einsum("jm,jmk->mk", np.exp(np.array(logs) - total), np.array(squares)))

        return posterior


def standardised(residuals: Floats, predicted: Floats, covariates: Floats) -> Floats:
    """Residuals `(n, k)` by their size given the predicted treatment and covariates."""
    known = np.column_stack([np.ones(len(predicted)), predicted, predicted**2, covariates])
    sizes = np.abs(residuals)
    expected = known @ np.linalg.lstsq(known, sizes, rcond=None)[0]
    return residuals / np.maximum(expected / sizes.mean(axis=0), _MIN_SIZE)


def generalised_residual(treatment: Floats, probability: Floats) -> Floats:
    r"""$E[u | x, w, v]$ for $x = 1\{q + u > 0\}$, $u$ standard normal, where $\Phi(q)$ is the probability of 1."""
    p = np.clip(probability, _MIN_PROBABILITY, 1.0 - _MIN_PROBABILITY)
    return (treatment - p) * normal_density(ndtri(p)) / (p * (1.0 - p))
