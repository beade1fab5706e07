"""The two ridge regressions of KIV in feature space, each for a whole grid of penalties at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FirstStage", "choose_penalty", "first_stage", "second_stage"]

Floats = NDArray[np.float64]

# 1 − leverage of a row that its own sample reproduces; below this the division has no digits left.
_MINIMUM_REST = 1e-10


@dataclass(frozen=True, eq=False)
class FirstStage:
    """The fitted operator Ê[· | w, v].

    Args:
        means: (m, r), Ê[ψ | w, v] on the second sample.
        rotated: (n, q), the first sample's instrument features in the basis of their second moments.
        shrink: (q,), 1/(eigenvalue + nλ).
        penalty: λ.
        losses: (g,), the validated loss of each penalty.
    """

    means: Floats
    rotated: Floats
    shrink: Floats
    penalty: float
    losses: Floats

    def leave_one_out(self, values: Floats) -> Floats:
        """Ê₋ᵢ[values | wᵢ, vᵢ] on the first sample: each row predicted by the ridge regression on the others.

        Args:
            values: (n, k), one regression a column.

        Returns:
            (n, k): (Hᵢ·values − Hᵢᵢ valuesᵢ)/(1 − Hᵢᵢ), with H the smoothing matrix.
        """
        scaled = self.rotated * self.shrink
        leverage = np.einsum("ij,ij->i", scaled, self.rotated)[:, None]
        smooth = scaled @ (self.rotated.T @ values)
        return (smooth - leverage * values) / np.maximum(1.0 - leverage, _MINIMUM_REST)


def first_stage(zeta: Floats, zeta_second: Floats, psi: Floats, psi_second: Floats, penalties: Floats) -> FirstStage:
    """Ridge regression of ψ on ζ; λ has the smallest mean ‖ψ(x, v) − Ê[ψ | w, v]‖² on the second sample.

    One eigendecomposition serves every penalty. The kernel is one at distance zero, so ‖ψ‖ = 1, and the loss counts
    the part of the second sample's ψ that lies outside the span of the features too.

    Args:
        zeta: (n, q) instrument features of the first sample, zeta_second: (m, q) of the second.
        psi: (n, r) treatment features of the first sample, psi_second: (m, r) of the second.
        penalties: (g,) values of λ; the ridge adds nλ.
    """
    eigenvalues, basis = np.linalg.eigh(zeta.T @ zeta)
    rotated, rotated_second = zeta @ basis, zeta_second @ basis
    target = rotated.T @ psi
    gram = (rotated_second.T @ rotated_second) * (target @ target.T)
    cross = np.einsum("ij,ij->j", rotated_second, psi_second @ target.T)
    shrink = 1.0 / (np.maximum(eigenvalues, 0.0) + len(psi) * penalties[:, None])
    fit = np.einsum("gi,gi->g", shrink @ gram, shrink) - 2.0 * shrink @ cross
    losses = 1.0 + fit / len(psi_second)
    best = int(np.argmin(losses))
    means = (rotated_second * shrink[best]) @ target
    return FirstStage(means, rotated, shrink[best], float(penalties[best]), losses)


def second_stage(means: Floats, outcome: Floats, penalties: Floats) -> Floats:
    """Ridge regression of the outcome on the means, one column of coefficients for each penalty.

    Args:
        means: (m, r).
        outcome: (m,).
        penalties: (g,) values of ξ; the ridge adds mξ.

    Returns:
        (r, g).

    Example:
        >>> second_stage(np.array([[1.0], [1.0]]), np.array([2.0, 4.0]), np.array([0.0, 1.0]))
        array([[3. , 1.5]])
    """
    eigenvalues, basis = np.linalg.eigh(means.T @ means)
    moments = basis.T @ (means.T @ outcome)
    return basis @ (moments[:, None] / (np.maximum(eigenvalues, 0.0)[:, None] + len(means) * penalties))


def choose_penalty(squares: Floats, standard_errors: float) -> int:
    """The first penalty whose mean loss is within so many standard errors of the smallest.

    The standard error is that of the difference in loss, row by row, to the best penalty.

    Args:
        squares: (n, g), the loss of each row under each penalty, the strongest penalty first.
        standard_errors: 0 takes the smallest mean.

    Example:
        >>> losses = np.array([[1.0, 0.9, 0.5], [1.0, 0.9, 1.2]])
        >>> choose_penalty(losses, 0.0), choose_penalty(losses, 1.0)
        (2, 0)
    """
    best = int(np.argmin(squares.mean(axis=0)))
    differences = squares - squares[:, [best]]
    allowed = standard_errors * differences.std(axis=0) / np.sqrt(len(squares))
    return int(np.argmax(differences.mean(axis=0) <= allowed))
