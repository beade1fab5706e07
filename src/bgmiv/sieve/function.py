"""What a sieve's fit leaves: a structural function that is linear in its coefficients, with their covariance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.effects import Source
from bgmiv.sieve.bases import LINEAR, ColumnBasis, TreatmentBasis, term_columns, term_sums

__all__ = ["SieveFunction", "sieve_columns"]

Floats = NDArray[np.float64]

_MAX_POINTS = 20_000


def sieve_columns(schema: Schema, covariates: FloatArray) -> Floats:
    """Covariates without the reference level of each categorical block: a full set adds up to the constant."""
    reference = [block.start for block in schema.blocks if block.kind is BlockKind.categorical]
    return np.delete(np.asarray(covariates, np.float64), reference, axis=1)


@dataclass(frozen=True, eq=False)
class SieveFunction:
    r"""$g(x, v) = d\, f(x, v) + \sum_t \Phi_t(x, v) \beta_t$, where f, if there is one, was learned elsewhere.

    Attributes:
        treatment, covariates: the functions of each.
        terms: the names of the parts that were kept (`bgmiv.sieve.bases.TERMS`).
        coefficients: of all columns of these terms, in units of the outcome.
        weight: d; 0 without f.
        sampling, smoothing: roots R of the two parts R Rᵀ of the covariance of d and the coefficients.
        penalties: the ridge of each penalised term that was kept.
        gains: what each penalised term, kept or not, gains: twice a log likelihood ratio.
    """

    treatment: TreatmentBasis
    covariates: ColumnBasis
    terms: tuple[str, ...]
    coefficients: Floats
    weight: float
    sampling: Floats
    smoothing: Floats
    penalties: dict[str, float]
    gains: dict[str, float]

    @property
    def is_linear(self) -> bool:
        """Whether it is a line in treatment and covariates: nothing else was supported by the data."""
        return self.weight == 0.0 and all(name in LINEAR for name in self.terms)

    def encode(self, columns: Floats) -> Encoded:
        """The columns themselves, and by row the coefficients of 1 and of each function of the treatment."""
        return columns, *term_sums(self.terms, self.coefficients, self.covariates(columns), self.treatment.sizes)

    def at(self, query: Query, encoded: Encoded, learned: Floats | None = None) -> Floats:
        """The function in units of the outcome, `(m, n)`; `learned` is f at the same points."""
        _, base, slopes = encoded
        own = query.collect(lambda x, rows: base[rows] + np.sum(self.treatment(x) * slopes[rows], axis=1), _MAX_POINTS)
        return own if learned is None else own + self.weight * learned

    def factors(self, query: Query, encoded: Encoded, learned: Floats | None = None) -> tuple[Source, ...]:
        """Which rows were drawn, by the robust covariance; and the bias of smoothing, by its prior."""
        v, *_ = encoded
        roots = np.hstack([self.sampling, self.smoothing])
        of_covariates = self.covariates(v)

        def moved(x: FloatArray, rows: NDArray[np.intp]) -> np.ndarray:
            parts = {kind: part[rows] for kind, part in of_covariates.items()}
            return np.hstack(term_columns(self.terms, self.treatment(x), parts, self.treatment.sizes)) @ roots[1:]

        both = np.moveaxis(query.collect(moved, _MAX_POINTS), -1, 0)
        if learned is not None:
            both = both + roots[0][:, None, None] * learned
        split = self.sampling.shape[1]
        sources = (Source("sampling", both[:split], np.inf), Source("smoothing", both[split:], np.inf))
        return tuple(source for source in sources if len(source.factors))
