"""Wide vector blocks and pictures reduced to their leading principal scores.

A block of many noisy columns invites an encoder to memorise its rows. Under probabilistic principal components
(Tipping and Bishop 1999) the block's density factorises into that of its leading scores and isotropic noise, so
that a model may see the scores alone. How many lead is decided by parallel analysis. Pictures are reduced to scores of
their scattering features.

References: Horn (1965), "A rationale and test for the number of factors in factor analysis", Psychometrika;
Tipping and Bishop (1999), "Probabilistic principal component analysis", JRSS B; Dobriban and Owen (2019),
"Deterministic parallel analysis", JRSS B, for when it works and what it misses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigvalsh
from scipy.sparse.linalg import eigsh
from scipy.special import stdtrit

from bgmiv.data.checks import FloatArray, check_finite, numeric
from bgmiv.data.ivdata import IVData
from bgmiv.data.picture_scores import PictureProjection, PictureScores
from bgmiv.data.principal import UNIT_DEVIATION, Projection, gram_of, projection_on
from bgmiv.data.schema import BlockKind, CovariateBlock, Schema
from bgmiv.errors import ConfigError, DataError

__all__ = ["BlockReduction", "FittedReduction", "ParallelAnalysis", "Projection"]

# Permuted copies are in single precision; an eigenvalue this close to theirs (relatively) does not exceed them.
_TIE = 1e-4

# Below this size the whole spectrum costs no more than iterating for its largest value.
_DENSE = 128


@dataclass(frozen=True)
class ParallelAnalysis:
    """Keep the principal components whose eigenvalues exceed those of unrelated columns.

    With Z the standardised columns, a component is kept while its eigenvalue of ZᵀZ/n exceeds the largest
    eigenvalue that a copy of Z with every column permuted by itself may have: the upper bound

        mean + t(1 - false_alarm, B - 1) · deviation · √(1 + 1/B)

    of the B permuted copies' largest eigenvalues. (Noise exceeds the largest of B once in B + 1 times, so that a
    level of one in a hundred would need B = 99; the bound needs a handful.) One component is always kept;
    `Projection.structured` tells whether it stands out.

    What this cannot see: a column related to no other counts as noise, whatever it means for the outcome. And the
    eigenvalues have mean one however little noise there is, so that components below about (1 + √(d/n))² go
    unseen beside stronger ones, and two or more columns never keep as many components as columns: where every
    direction carries signal, `Projection.explained` tells what is lost.

    Args:
        n_permutations: B, two or more.
        false_alarm: the chance that a block of unrelated columns is taken for structured, if largest eigenvalues
            were normal; as they lean to the right, it comes to two to four times this, more in very skewed columns.
        most_components: never keep more than these; None for no limit.
        most_rows: the decision uses this many rows at most, drawn by the seed; with more columns than this the
            components are those of the same rows, otherwise of all. No matrix of products is larger than this.
        whiten: divide each score by its own deviation (the default) or all of them by one common factor, the
            root mean square of their deviations. A model's networks start with weights of one size for every
            input and scale each column to unit deviation in any case, so whitened scores arrive there as they
            are, and none is lost beside a stronger one: parallel analysis has shown each to be more than noise.
            The common factor keeps distances between rows, for methods that compare rows and scale no further.
        seed: of the permutations and of the rows drawn.

    >>> rng = np.random.default_rng(0)
    >>> factors, noise = rng.normal(size=(200, 2)), rng.normal(size=(200, 30))
    >>> projection = ParallelAnalysis().fit(factors @ rng.normal(size=(2, 30)) + noise)
    >>> projection.n_components, projection.structured
    (2, True)
    >>> ParallelAnalysis().fit(noise).structured
    False
    """

    n_permutations: int = 8
    false_alarm: float = 0.005
    most_components: int | None = None
    most_rows: int = 4000
    whiten: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        if self.n_permutations < 2:
            raise ConfigError(f"n_permutations is {self.n_permutations}; choose 2 or more, to see their spread.")
        if not 0.0 < self.false_alarm < 0.5:
            raise ConfigError(f"false_alarm is {self.false_alarm}; choose a probability between 0 and 0.5.")
        if self.most_components is not None and self.most_components < 1:
            raise ConfigError(f"most_components is {self.most_components}; choose 1 or more, or None for no limit.")
        if self.most_rows < 2:
            raise ConfigError(f"most_rows is {self.most_rows}; choose 2 or more.")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; choose an integer of 0 or more.")

    def fit(self, values: ArrayLike) -> Projection:
        """Find the leading components of values (n, d)."""
        array = _checked(values)
        n_rows, width = array.shape
        rng = np.random.default_rng(self.seed)
        few = n_rows <= self.most_rows
        sample = array if few else array[np.sort(rng.choice(n_rows, self.most_rows, replace=False))]
        standard = UNIT_DEVIATION.fit(sample)
        gram = gram_of(sample, standard)
        above = int((eigvalsh(gram) > self._noise_bound(standard.transform(sample), rng) * (1.0 + _TIE)).sum())
        if self.most_components is not None:
            above = min(above, self.most_components)
        if not few and width <= self.most_rows:
            sample, standard = array, UNIT_DEVIATION.fit(array)
            gram = gram_of(sample, standard)
        return projection_on(sample, standard, gram, max(1, above), whiten=self.whiten, above_noise=above)

    def _noise_bound(self, z: NDArray[np.float32], rng: np.random.Generator) -> float:
        if np.count_nonzero(z.any(axis=0)) < 2:
            return np.inf
        start = rng.normal(size=min(z.shape)).astype(np.float32)
        largest = np.empty(self.n_permutations)
        for i in range(self.n_permutations):
            rng.permuted(z, axis=0, out=z)
            largest[i] = _largest(z.T @ z if len(z) >= z.shape[1] else z @ z.T, start) / len(z)
        spread = largest.std(ddof=1) * np.sqrt(1.0 + 1.0 / self.n_permutations)
        return float(largest.mean() + stdtrit(self.n_permutations - 1, 1.0 - self.false_alarm) * spread)


def _checked(values: ArrayLike) -> NDArray[Any]:
    array = numeric(np.asarray(values), "values")
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(f"values have shape {array.shape}. Pass a matrix of one or more rows and columns.")
    if array.dtype.kind == "f":
        check_finite(array, [f"values column {i}" for i in range(array.shape[1])])
    return array


def _largest(gram: NDArray[np.float32], start: NDArray[np.float32]) -> float:
    if len(gram) <= _DENSE:
        return float(eigvalsh(gram, subset_by_index=[len(gram) - 1] * 2)[0])
    return float(eigsh(gram, k=1, v0=start, tol=_TIE / 10, return_eigenvectors=False)[0])


@dataclass(frozen=True, eq=False)
class FittedReduction:
    """The fitted projections of some blocks of a schema; every other column stays as it is.

    A reduced block keeps its name, its place and its kind, and has the columns `name[pc1]`, `name[pc2]`, .... An image
    block without a shape is one of scores.

    Args:
        source: the schema of the data before the reduction.
        projections: by name of the block; empty if nothing is reduced.
    """

    source: Schema
    projections: Mapping[str, Projection | PictureProjection]

    @property
    def schema(self) -> Schema:
        """The schema of the reduced data; the source itself if nothing is reduced."""
        return replace(self.source, blocks=self._blocks()) if self.projections else self.source

    def transform(self, covariates: FloatArray) -> FloatArray:
        """Reduce the flat matrix (n, p) to (n, q), in its own precision; unchanged if nothing is reduced."""
        width = self.source.n_covariates
        if covariates.ndim != 2 or covariates.shape[1] != width:
            raise DataError(f"covariates have shape {covariates.shape}. Pass the flat matrix of {width} columns.")
        if not self.projections:
            return covariates
        blocks = self._blocks()
        reduced = np.empty((len(covariates), blocks[-1].stop), dtype=covariates.dtype)
        for old, new in zip(self.source.blocks, blocks, strict=True):
            part = covariates[:, old.start : old.stop]
            projection = self.projections.get(old.name)
            reduced[:, new.start : new.stop] = part if projection is None else projection.transform(part)
        return reduced

    def apply(self, data: IVData) -> IVData:
        """The same data with reduced covariates; the data themselves if nothing is reduced."""
        if data.schema.blocks != self.source.blocks:
            raise DataError("data have other covariates than the fit of the reduction. Pass data of the same blocks.")
        if not self.projections:
            return data
        schema = replace(data.schema, blocks=self._blocks())
        return replace(data, covariates=self.transform(data.covariates), schema=schema)

    def _blocks(self) -> tuple[CovariateBlock, ...]:
        blocks: list[CovariateBlock] = []
        start = 0
        for block in self.source.blocks:
            projection = self.projections.get(block.name)
            if projection is None:
                moved = replace(block, start=start, stop=start + block.width)
            else:
                count = projection.n_components
                names = tuple(f"{block.name}[pc{i + 1}]" for i in range(count))
                moved = CovariateBlock(block.name, block.kind, names, start, start + count)
            blocks.append(moved)
            start = moved.stop
        return tuple(blocks)


@dataclass(frozen=True)
class BlockReduction:
    """Reduce every wide vector block of a data set to its leading scores, and every block of pictures to theirs.

    Args:
        rule: how many components a vector block keeps.
        least_width: narrower vector blocks stay as they are.
        reduce_unstructured: whether a block in which no component exceeds noise is reduced to one score all the
            same. By default it stays as it is: columns related to no other may each matter, and nothing has
            shown that they do not.
        pictures: how pictures are reduced; None leaves them as they are.

    >>> rng = np.random.default_rng(0)
    >>> proxy = rng.normal(size=(100, 2)) @ rng.normal(size=(2, 40)) + rng.normal(size=(100, 40))
    >>> data = IVData.from_arrays(
    ...     *rng.normal(size=(2, 100)), instruments=rng.normal(size=100), covariates={"proxy": proxy}
    ... )
    >>> fitted = BlockReduction().fit(data)
    >>> fitted.schema.flat_names
    ('proxy[pc1]', 'proxy[pc2]')
    >>> fitted.apply(data).covariates.shape
    (100, 2)
    """

    rule: ParallelAnalysis = ParallelAnalysis()
    least_width: int = 16
    reduce_unstructured: bool = False
    pictures: PictureScores | None = PictureScores()

    def __post_init__(self) -> None:
        """Refuse a width that no block can have."""
        if self.least_width < 1:
            raise ConfigError(f"least_width is {self.least_width}; choose 1 or more.")

    def fit(self, data: IVData) -> FittedReduction:
        """Fit the rules on each wide vector block and each block of pictures of the training rows."""
        projections: dict[str, Projection | PictureProjection] = {}
        for block in data.schema.blocks:
            values = data.covariates[:, block.start : block.stop]
            if block.holds_pixels and self.pictures is not None:
                projections[block.name] = self.pictures.fit(values, block.shape or ())
            elif block.kind == BlockKind.vector and block.width >= self.least_width:
                projection = self.rule.fit(values)
                if projection.structured or self.reduce_unstructured:
                    projections[block.name] = projection
        return FittedReduction(data.schema, projections)
