r"""How much detail of a curve the instruments show: the inverse problem $E[g(x, v) \mid w, v]$ is ill-posed.

The instruments show g only through its mean given them, which is smoother than g. Of the functions of the treatment
(its line and up to six smooth bends; every function of its levels if it has at most eight values) and those of the
instruments (lines, curves, products), both net of the covariates, the singular values say how much of each shape is
left: 1 for a treatment that the instruments determine, 0 for shapes that they do not see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orth, svdvals

from bgmiv.data.ivdata import IVData
from bgmiv.data.query import Rows
from bgmiv.data.schema import BlockKind
from bgmiv.diagnostics.check import Check, Fitted
from bgmiv.diagnostics.columns import LinearColumns, used_rows
from bgmiv.sieve.bases import ColumnBasis, TreatmentBasis

if TYPE_CHECKING:
    from bgmiv.diagnostics.diagnose import Change

__all__ = ["Shapes", "detail_check", "singular_values"]

_BENDS = 6
# The rule of thumb for weak instruments, for a shape in the place of the treatment.
_VISIBLE_F = 10.0


class Shapes(NamedTuple):
    """Which shapes of a curve the instruments show.

    Attributes:
        values: the singular values, as many as treatment and instruments both have functions.
        visible: how many have an F above 10.
        possible: how many shapes a function of the treatment can have: one for a treatment of two values.
    """

    values: NDArray[np.float64]
    visible: int
    possible: int


def singular_values(treatment: NDArray[np.float64], columns: LinearColumns) -> Shapes:
    """Of the projection of functions of a treatment on those of the instruments.

    Example:
        >>> from bgmiv.diagnostics.linear import linear_columns
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 1000))
        >>> data = IVData.from_arrays(u, w + 0.5 * u, instruments=w)
        >>> found = singular_values(w + 0.5 * u, linear_columns(data))
        >>> found.values[:2].round(1), found.visible, found.possible
        (array([0.9, 0.9]), 6, 7)
    """
    root = np.ones((len(treatment), 1)) if columns.weights is None else np.sqrt(columns.weights)[:, None]
    functions = TreatmentBasis.fit(treatment, 0, _BENDS)(treatment)
    basis = ColumnBasis.fit(columns.instruments, np.random.default_rng(0), fourier_features=1)(columns.instruments)
    shown = np.hstack([basis[kind] for kind in ("linear", "splines", "products")])
    known = orth(columns.exogenous * root)

    def net(part: NDArray[np.float64]) -> NDArray[np.float64]:
        part = columns.net(part) * root
        left = part - known @ (known.T @ part)
        lengths = np.maximum(np.linalg.norm(part, axis=0), np.finfo(float).tiny)
        return np.asarray(orth(left / lengths, rcond=1e-6), np.float64)

    left, right = net(functions), net(shown)
    values = np.minimum(svdvals(left.T @ right), 1.0)
    q = right.shape[1]
    dof = max(len(treatment) - known.shape[1] - columns.absorbed - q, 1)
    with np.errstate(divide="ignore"):
        strength = (values**2 / q) / ((1.0 - values**2) / dof)
    return Shapes(np.asarray(values, np.float64), int(np.sum(strength > _VISIBLE_F)), left.shape[1])


def detail_check(
    fitted: Fitted, data: IVData, rows: Rows, columns: LinearColumns, change: Change, level: float
) -> Check | None:
    """What the instruments show of the curve's shape; None for a treatment that is no number."""
    if data.schema.treatment.kind is not BlockKind.continuous or not columns.names:
        return None
    values, visible, possible = singular_values(np.asarray(data.treatment[used_rows(data)], np.float64), columns)
    numbers = {"visible": float(visible), "possible": float(possible)}
    numbers |= {f"shape_{i}": float(s) for i, s in enumerate(values, start=1)}
    labels = {"change": change.label}
    return Check("detail", "note" if visible < min(2, possible) else "good", numbers, labels)
