"""What a sieve is fitted to: columns of all rows, the bases of functions of them, and the first stage's regressors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bgmiv.arrays import Booleans, Floats, Integers
from bgmiv.data.ivdata import IVData
from bgmiv.data.within import Within, ordinary_covariates
from bgmiv.sieve.bases import (
    FOURIER_FEATURES,
    TERMS,
    UNPENALISED,
    ColumnBasis,
    TreatmentBasis,
    column_products,
    term_columns,
)
from bgmiv.sieve.first_stage import FirstStage, first_stage
from bgmiv.sieve.sampling import BlocksAt, Sampling

__all__ = ["MIN_ROWS_A_COLUMN", "Columns", "instrument_blocks"]


# A term with more columns is not offered.
_MAX_COLUMNS = 200
# Functions of the covariates are kept up to so many numbers (256 MB), and computed when asked for beyond.
_MAX_KEPT = 1 << 25
# A surface that also changes with the treatment's spline is hopeless with more covariates.
_FEW_COVARIATES = 5
MIN_ROWS_A_COLUMN = 4
"""Covariates enter unpenalised while a linear model has at least this many rows for each of its columns."""


class Columns(NamedTuple):
    """The columns of all rows, sorted by their fold, the functions of them, and the indicators that are absorbed.

    Attributes:
        data: the rows.
        sampling: their weights, groups and folds.
        order: their positions in the data that were given.
        y, x, v, w: outcome and treatment `(n,)`, covariates without those that are absorbed, and instruments.
        treatment, covariates: the bases.
        within: the indicators that all columns are taken net of.
        kept: the functions of the covariates at all rows, unless they are too many to keep.
    """

    data: IVData
    sampling: Sampling
    order: Integers
    y: Floats
    x: Floats
    v: Floats
    w: Floats
    treatment: TreatmentBasis
    covariates: ColumnBasis
    within: Within
    kept: dict[str, Floats] | None = None

    @classmethod
    def of(
        cls,
        data: IVData,
        rng: np.random.Generator,
        *,
        splines: int,
        segments: int = 9,
        fourier_features: int = FOURIER_FEATURES,
    ) -> Columns:
        """The columns of rows, wide blocks reduced, in double precision, and their bases.

        Args:
            data: the rows.
            rng: draws folds and random Fourier features.
            fourier_features: how many of the covariates.
            splines: how many of the treatment.
            segments: as in :meth:`~bgmiv.sieve.bases.Spline.fit`.
        """
        sampling, data, order = Sampling.draw(data, rng)
        y, x, w = (np.asarray(column, np.float64) for column in (data.outcome, data.treatment, data.instruments))
        within = Within.of(data.schema, data.covariates, data.weights)
        v = ordinary_covariates(data.schema, data.covariates, within.names)
        levels = max(2, data.schema.treatment.width) if data.schema.treatment.discrete else 0
        treatment = TreatmentBasis.fit(x, levels, splines, segments=segments)
        covariates = ColumnBasis.fit(v, rng, fourier_features=fourier_features)
        width = sum(part.shape[1] for part in covariates(v[:1]).values())
        kept = covariates(v) if width * len(v) <= _MAX_KEPT else None
        return cls(data, sampling, order, y, x, v, w, treatment, covariates, within, kept)

    def covariates_at(self, rows: Any) -> dict[str, Floats]:
        """The functions of the covariates at some rows, by kind."""
        if self.kept is None:
            return self.covariates(self.v[rows])
        return {kind: part[rows] for kind, part in self.kept.items()}

    @property
    def centre(self) -> Any:
        """What the outcome is taken net of: the absorbed indicators' part of each row, or the mean."""
        return self.y - self.within.residual(self.y) if self.within else self.y.mean()

    @property
    def scale(self) -> float:
        """The standard deviation of the rest."""
        return np.std(self.y - self.centre)

    @property
    def outcome(self) -> Floats:
        """The outcome, standardised."""
        return (self.y - self.centre) / self.scale

    def blocks(self, terms: Sequence[str], functions: Floats) -> BlocksAt:
        """The columns of terms, by rows, of functions of the treatment `(n, k)`."""
        sizes = self.treatment.sizes
        return lambda rows: term_columns(terms, functions[rows], self.covariates_at(rows), sizes)

    @property
    def correction(self) -> float:
        """By which absorbed indicators, which neither stage counts, raise a variance."""
        n = len(self.y)
        return n / max(n - self.within.dof(self.data.groups), 1)

    @property
    def wide(self) -> bool:
        """Whether there are too many covariates for a linear model."""
        rows = len(self.y) - self.within.dof()
        return MIN_ROWS_A_COLUMN * (2 + len(self.covariates.used) + self.w.shape[1]) > rows

    @property
    def n_shrunk(self) -> int:
        """How many covariate columns are penalised for that."""
        return len(self.covariates.used) if self.wide else 0

    @property
    def linear(self) -> Floats:
        """The covariates' linear terms, `(n, p)`."""
        return self.covariates.linear(self.v)

    @property
    def varying(self) -> Booleans:
        """Which of these absorbed indicators do not determine, `(p,)`."""
        return np.any(self.within.residual(self.linear) != 0.0, axis=0)

    def first_stage(self, blocks_at: BlocksAt, functions: Floats, min_gain: float) -> FirstStage:
        """Functions of the treatment `(n, k)`, predicted by regressors; both net of absorbed indicators."""
        first = first_stage(self.within.net(blocks_at), self.within.residual(functions), self.sampling, min_gain)
        # Products with covariates need predictions that contain the absorbed indicators' part.
        return first._replace(predicted=functions - first.residuals)

    def terms(self, min_gain: float = 0.0) -> tuple[tuple[str, ...], int]:
        """The terms that have columns, and not too many; and how many of them, the first ones, are not penalised.

        There are no others where no gain is enough to enter.
        """
        kinds = {kind: part.shape[1] for kind, part in self.covariates_at(slice(0, 1)).items()}
        sizes = {name: term.width(self.treatment.sizes) * kinds[term.kind] for name, term in TERMS.items()}
        if len(self.covariates.moderators) > _FEW_COVARIATES:
            sizes["curves by surface"] = 0
        if self.within:
            sizes["constant"] = 0
        terms = tuple(
            name for name, size in sizes.items() if 0 < size <= (np.inf if name in UNPENALISED else _MAX_COLUMNS)
        )
        n_unpenalised = sum(name in UNPENALISED for name in terms) - (self.wide and "covariates" in terms)
        return terms if np.isfinite(min_gain) else terms[:n_unpenalised], n_unpenalised


def instrument_blocks(
    columns: Columns,
    rng: np.random.Generator,
    *,
    fourier_features: int = FOURIER_FEATURES,
    max_unpenalised: float = np.inf,
) -> Callable[[Floats], BlocksAt]:
    """The first stage's regressors, for the instruments of each row `(n, k)`; the first block is not penalised.

    It holds the constant, the instruments unless there are more than `max_unpenalised`, and the covariates unless they
    are too many for the rows.
    """
    own = ColumnBasis.fit(columns.w, rng, fourier_features=1)
    varying, wide, within = columns.varying, columns.wide, columns.within
    n_v, n_w = len(columns.covariates.moderators), len(own.used)
    both = np.hstack([columns.w, columns.v])
    joint = ColumnBasis.fit(both, rng, fourier_features=fourier_features, max_columns=0)

    def regressors(instruments: Floats) -> BlocksAt:
        def blocks_at(rows: Any) -> list[Floats]:
            w, v = instruments[rows], columns.v[rows]
            of_w, of_v = own(w), columns.covariates_at(rows)
            linear = [of_w["constant"][:, : 0 if within else 1]]
            blocks = [np.hstack([of_w["splines"], of_w["products"]])]
            if n_w * n_v <= _MAX_COLUMNS:
                blocks.append(column_products(of_w["moderators"], of_v["moderators"]))
            blocks += [of_v["splines"], of_v["products"], joint(np.hstack([w, v]))["fourier features"]]
            (blocks if n_w > max_unpenalised else linear).append(of_w["linear"])
            (blocks if wide else linear).append(of_v["linear"][:, varying])
            return [np.hstack(linear), *(block for block in blocks if block.shape[1])]

        return blocks_at

    return regressors
