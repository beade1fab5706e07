r"""Which shapes of a curve the instruments show: the inverse problem $E[g(x, v) \mid w, v]$ is ill-posed.

The instruments show g only through its mean given them, which is smoother than g. Of the functions of the treatment
(linear, and up to six of increasing curvature; every function of its levels if it has at most eight values) and those
of the instruments (linear, splines, products), both net of the covariates, the singular values say how much of each
shape is left: 1 for a treatment that the instruments determine, 0 for shapes that they do not see.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import orth, svdvals

from bgmiv.arrays import TINY, Floats
from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import BlockKind
from bgmiv.linear_iv import LinearIV
from bgmiv.sieve.bases import ColumnBasis, TreatmentBasis

__all__ = ["Shapes", "visible_shapes"]

_N_SMOOTH = 6
# The rule of thumb for weak instruments, for a shape in the place of the treatment.
_VISIBLE_F = 10.0


class Shapes(NamedTuple):
    """Which shapes of a curve the instruments show.

    Attributes:
        values: the singular values, as many as treatment and instruments both have functions.
        visible: how many have an F above 10.
        possible: how many shapes a function of the treatment can have: one for a treatment of two values.
    """

    values: Floats
    visible: int
    possible: int


def visible_shapes(data: IVData) -> Shapes | None:
    """Those of a treatment that is a number; None for another, and where covariates determine the instruments.

    Raises:
        DataError: there are too few rows.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 1000))
        >>> shapes = visible_shapes(IVData.from_arrays(u, w + 0.5 * u, instruments=w))
        >>> shapes.values[:2].round(1), shapes.visible, shapes.possible
        (array([0.9, 0.9]), 6, 7)
    """
    linear = LinearIV.of(data)
    design = linear.design
    if data.schema.treatment.kind is not BlockKind.continuous or not design.names:
        return None
    treatment, root = data.treatment[design.rows].astype(np.float64), design.root_weights
    functions = TreatmentBasis.fit(treatment, 0, _N_SMOOTH)(treatment)
    basis = ColumnBasis.fit(design.instruments, np.random.default_rng(0), fourier_features=1)(design.instruments)
    shown = np.hstack([basis[kind] for kind in ("linear", "splines", "products")])

    def net(part: Floats) -> Floats:
        part = design.net(part) * root
        lengths = np.maximum(np.linalg.norm(part, axis=0), TINY)
        return orth(linear.residual(part / lengths), rcond=1e-6)

    left, right = net(functions), net(shown)
    values = np.minimum(svdvals(left.T @ right), 1.0)
    q = right.shape[1]
    dof = max(design.rows_left + linear.n_instruments - q, 1)
    with np.errstate(divide="ignore"):
        strength = (values**2 / q) / ((1.0 - values**2) / dof)
    return Shapes(values, int(np.sum(strength > _VISIBLE_F)), left.shape[1])
