"""Wide vector blocks and images reduced to their leading principal scores.

A block of many noisy columns invites an encoder to memorise its rows. Under probabilistic principal components
(Tipping and Bishop 1999) the block's density factorises into that of its leading scores and isotropic noise, so
that a model may see the scores alone. How many lead is decided by parallel analysis. Images are reduced to scores of
their scattering features.

References: Horn (1965), "A rationale and test for the number of factors in factor analysis", Psychometrika;
Tipping and Bishop (1999), "Probabilistic principal component analysis", JRSS B; Dobriban and Owen (2019),
"Deterministic parallel analysis", JRSS B, for when it works and what it misses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh, eigvalsh, svd
from scipy.sparse.linalg import eigsh
from scipy.special import stdtrit

from bgmiv.arrays import TINY, Floats
from bgmiv.data.blocks import BlockKind, CovariateBlock
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray
from bgmiv.data.scaling import Affine, Standardise, row_pieces, unique_rows
from bgmiv.data.schema import Schema
from bgmiv.errors import DataError
from bgmiv.preprocess.scattering import scattering_features
from bgmiv.progress import Reporter, task

__all__ = [
    "BlockReduction", "FittedReduction", "ImageProjection", "Projection", "choose_noise", "image_scores",
    "leading_components", "reduced_rows",
]  # fmt: skip

# Narrower vector blocks stay as they are.
_MIN_WIDTH = 16
# Parallel analysis: how many permuted copies there are, and the share of blocks of unrelated normal columns that would
# be taken for structured.
_PERMUTATIONS, _FALSE_ALARM = 8, 0.005
# It uses this many rows at most, drawn at random. With more columns than this the components are those of the same
# rows, otherwise of all: no matrix of products is larger than this.
_MAX_ROWS = 4000
# The components of images are those of this many at most, drawn at random.
_MAX_IMAGES = 3000
# Permuted copies are in single precision; an eigenvalue this close to theirs (relatively) does not exceed them.
_TIE = 1e-4
# Below this size the whole spectrum costs no more than iterating for its largest value.
_DENSE_SIZE = 128
# Features of this many images at once, so that memory stays bounded.
_IMAGES_AT_ONCE = 2048
_MAX_IMAGE_SCORES = 256
# Of the largest variance: what is less is none.
_ROUNDING = 1e-10
# Units must not matter, so that a column counts however small its numbers are.
_STANDARDISE = Standardise(min_std=TINY)


class Projection(NamedTuple):
    """Scores of each row: ((values - mean) / scale) @ basis, computed in double precision.

    Args:
        mean: (d,) of the columns.
        scale: (d,) standard deviations, one for a constant column.
        basis: (d, k), each component's loadings divided by the standard deviation of its score.
        explained: share of the standardised columns' variance that the k scores hold.
        above_noise: how many components exceed noise; zero where the one that is kept does not.
    """

    mean: Floats
    scale: Floats
    basis: Floats
    explained: float
    above_noise: int

    @property
    def n_components(self) -> int:
        """Number of scores k, one or more."""
        return self.basis.shape[1]

    def transform(self, values: ArrayLike) -> NDArray[np.float32]:
        """The scores (n, k) of values (n, d), the fitted rows or new ones."""
        array = np.asarray(values)
        scores = np.empty((len(array), self.n_components), dtype=np.float32)
        for rows in row_pieces(array):
            scores[rows] = ((array[rows] - self.mean) / self.scale) @ self.basis
        return scores


def leading_components(values: NDArray[Any]) -> Projection:
    """The principal components of values (n, d) whose eigenvalues exceed those of unrelated columns.

    With Z the standardised columns, a component is kept while its eigenvalue of ZᵀZ/n exceeds the upper bound

        mean + t(0.995, B - 1) · standard deviation · √(1 + 1/B)

    of the largest eigenvalues of B = 8 copies of Z with every column permuted by itself. (Noise exceeds the largest of
    B once in B + 1 times, so that a level of one in a hundred would need B = 99; the bound needs a handful.) One
    component is always kept; `Projection.above_noise` tells whether it stands out. A block of unrelated columns would
    be taken for structured once in 200 times if largest eigenvalues were normal; as they are skewed to the right, it
    is two to four times this.

    What this cannot see: a column related to no other counts as noise, whatever it means for the outcome. And the
    eigenvalues have mean one however little noise there is: components below about (1 + √(d/n))² go unseen beside
    stronger ones, and where every direction carries signal, `Projection.explained` tells what is lost.
    """
    n_rows, width = values.shape
    rng = np.random.default_rng(0)
    sample = _drawn(values, _MAX_ROWS, rng)
    standard = _STANDARDISE.fit(sample)
    gram = _gram(sample, standard)
    above = int((eigvalsh(gram) > _noise_bound(standard.transform(sample), rng) * (1.0 + _TIE)).sum())
    if len(sample) < n_rows and width <= _MAX_ROWS:
        sample, standard = values, _STANDARDISE.fit(values)
        gram = _gram(sample, standard)
    return _projection(sample, standard, gram, max(1, above), above)


def _noise_bound(z: NDArray[np.float32], rng: np.random.Generator) -> float:
    """The bound on the largest eigenvalue of standardised columns, which are permuted in place."""
    if np.count_nonzero(z.any(axis=0)) < 2:
        return np.inf
    start = rng.normal(size=min(z.shape)).astype(np.float32)
    largest = []
    for _ in range(_PERMUTATIONS):
        rng.permuted(z, axis=0, out=z)
        gram = z.T @ z if len(z) >= z.shape[1] else z @ z.T
        if len(gram) <= _DENSE_SIZE:
            eigenvalue = eigvalsh(gram, subset_by_index=[len(gram) - 1] * 2)
        else:
            eigenvalue = eigsh(gram, k=1, v0=start, tol=_TIE / 10, return_eigenvectors=False)
        largest.append(eigenvalue[0] / len(z))
    spread = np.std(largest, ddof=1) * np.sqrt(1.0 + 1.0 / _PERMUTATIONS)
    return float(np.mean(largest) + stdtrit(_PERMUTATIONS - 1, 1.0 - _FALSE_ALARM) * spread)


class ImageProjection(NamedTuple):
    """Scores of each image of a shape (height, width, channels): the projection of its scattering features."""

    shape: tuple[int, ...]
    projection: Projection

    @property
    def n_components(self) -> int:
        """Number of scores."""
        return self.projection.n_components

    def transform(self, pixels: NDArray[Any]) -> NDArray[np.float32]:
        """The scores (n, k) of flat images (n, d); equal images are looked at once."""
        unique, inverse = unique_rows(pixels)
        parts = [
            self.projection.transform(scattering_features(unique[start : start + _IMAGES_AT_ONCE], self.shape))
            for start in range(0, len(unique), _IMAGES_AT_ONCE)
        ]
        return np.concatenate(parts)[inverse]


def image_scores(pixels: NDArray[Any], shape: tuple[int, ...]) -> ImageProjection:
    """The leading components of the scattering features of flat images (n, height · width · channels).

    There are twice as many as the root of the number of images, 256 at most, or as many as there are images or features
    if these are fewer: more images tell more of them from noise.
    """
    wanted = min(round(2.0 * len(pixels) ** 0.5), _MAX_IMAGE_SCORES)
    drawn = _drawn(pixels, _MAX_IMAGES, np.random.default_rng(0))
    features = scattering_features(drawn, shape)
    standard = _STANDARDISE.fit(features)
    count = min(wanted, *features.shape)
    return ImageProjection(shape, _projection(features, standard, _gram(features, standard), count, count))


@dataclass(frozen=True, eq=False)
class FittedReduction:
    """The fitted projections of some blocks of a schema; every other column stays as it is.

    A reduced block keeps its name, place and kind, and has the columns `name[pc1]`, `name[pc2]`, .... An image block
    without a shape is one of scores.

    Args:
        source: the schema of the data before the reduction.
        projections: by name of the block; empty if nothing is reduced.
    """

    source: Schema
    projections: Mapping[str, Projection | ImageProjection]

    @property
    def schema(self) -> Schema:
        """The schema of the reduced data; the source itself if nothing is reduced."""
        if not self.projections:
            return self.source
        blocks: list[CovariateBlock] = []
        start = 0
        for block in self.source.blocks:
            projection = self.projections.get(block.name)
            if projection is None:
                moved = replace(block, start=start, stop=start + block.width)
            else:
                names = tuple(f"{block.name}[pc{i + 1}]" for i in range(projection.n_components))
                moved = CovariateBlock(block.name, block.kind, names, start, start + len(names))
            blocks.append(moved)
            start = moved.stop
        return replace(self.source, blocks=tuple(blocks))

    def transform(self, covariates: FloatArray) -> FloatArray:
        """The flat matrix (n, p) reduced to (n, q), in its own precision."""
        if not self.projections:
            return covariates
        blocks = self.schema.blocks
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
        schema = replace(data.schema, blocks=self.schema.blocks)
        return replace(data, covariates=self.transform(data.covariates), schema=schema)


@dataclass(frozen=True)
class BlockReduction:
    """Reduce every wide vector block of a data set to its leading scores, and every block of images to theirs.

    Vector blocks of fewer than 16 columns stay, and so does one in which no component exceeds noise: columns related to
    no other may each matter.

    Args:
        images: whether images are reduced.

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

    images: bool = True

    def fit(self, data: IVData) -> FittedReduction:
        """Find the components of each wide vector block and each block of images of the training rows."""
        projections: dict[str, Projection | ImageProjection] = {}
        for block in data.schema.blocks:
            values = data.covariates[:, block.start : block.stop]
            if block.holds_pixels and self.images:
                projections[block.name] = image_scores(values, block.shape or ())
            elif block.kind == BlockKind.vector and block.width >= _MIN_WIDTH:
                projection = leading_components(values)
                if projection.above_noise:
                    projections[block.name] = projection
        return FittedReduction(data.schema, projections)


def reduced_rows(rule: BlockReduction | None, data: IVData, reporter: Reporter) -> tuple[FittedReduction, IVData]:
    """The reduction that a rule finds on these rows, and the rows reduced; without a rule they stay as they are."""
    # Narrow covariates stay as they are, at once.
    with task(reporter, "reduction of wide covariates") if data.schema.has_wide_block else nullcontext():
        reduction = rule.fit(data) if rule else FittedReduction(data.schema, {})
        return reduction, reduction.apply(data)


def _drawn(values: NDArray[Any], max_rows: int, rng: np.random.Generator) -> NDArray[Any]:
    few = len(values) <= max_rows
    return values if few else values[np.sort(rng.choice(len(values), max_rows, replace=False))]


def _gram(values: NDArray[Any], standard: Affine) -> Floats:
    """ZᵀZ/n, or ZZᵀ/n if that is smaller; their eigenvalues other than zero are the same."""
    n_rows, width = values.shape
    if width > n_rows:
        z = _standardised(values, standard)
        return z @ z.T / n_rows
    gram = np.zeros((width, width))
    for rows in row_pieces(values):
        z = _standardised(values[rows], standard)
        gram += z.T @ z
    return gram / n_rows


def _standardised(values: NDArray[Any], standard: Affine) -> Floats:
    # Not Affine.transform, which is in single precision.
    return np.asarray((values - standard.shift) / standard.scale, np.float64)


def _projection(values: NDArray[Any], standard: Affine, gram: Floats, count: int, above_noise: int) -> Projection:
    """The projection of values (n, d) on their `count` leading components, by the eigenvectors of `_gram`."""
    n_rows, width = values.shape
    eigenvalues, vectors = eigh(gram, subset_by_index=[len(gram) - count, len(gram) - 1])
    eigenvalues, vectors = np.maximum(eigenvalues[::-1], 0.0), vectors[:, ::-1]
    if width <= n_rows:
        # Rounding would let a constant column in, which has no spread to tame later rows that differ.
        loadings = np.where(np.diag(gram)[:, None] > 0, vectors, 0.0)
    else:
        lengths = np.sqrt(n_rows * np.where(eigenvalues > 0, eigenvalues, 1.0))
        loadings = _standardised(values, standard).T @ vectors / lengths
    # Either sign is an eigenvector: the largest loading is made positive, the first of those that tie.
    size = np.abs(loadings)
    first = np.argmax(size >= size.max(axis=0) * (1.0 - 1e-6), axis=0)
    loadings = loadings * np.where(loadings[first, np.arange(count)] < 0, -1.0, 1.0)
    total = float(np.trace(gram))
    return Projection(
        mean=standard.shift,
        scale=standard.scale,
        basis=loadings / np.sqrt(np.where(eigenvalues > 0, eigenvalues, 1.0)),
        explained=min(1.0, float(eigenvalues.sum()) / total) if total else 0.0,
        above_noise=above_noise,
    )


def choose_noise(columns: NDArray[Any], targets: NDArray[Any], levels: Sequence[float]) -> float:
    r"""The noise level, of those given, at which noised columns predict the targets best.

    A linear regression on columns with Gaussian noise of standard deviation $\sigma$ is, over all draws of it, a ridge
    regression with penalty $n \sigma^2$. Levels are compared by its generalised cross-validation, summed over targets:
    columns that say nothing get the largest. Beyond 4000 rows, as many drawn at random stand for all.

    References:
        C. M. Bishop (1995), Training with noise is equivalent to Tikhonov regularization, Neural Computation 7(1).
        G. H. Golub, M. Heath, G. Wahba (1979), Generalized cross-validation as a method for choosing a good ridge
        parameter, Technometrics 21(2).
    """
    drawn = (_drawn(values, _MAX_ROWS, np.random.default_rng(0)) for values in (columns, targets))
    z, t = (_standardised(values, _STANDARDISE.fit(values)) for values in drawn)
    n = len(z)
    # Variances along the principal directions, and what of each target lies along their scores.
    scores_of, singular, _ = svd(z, full_matrices=False)
    variances = singular**2 / n
    there = variances > _ROUNDING * variances.max()
    variances, energies = variances[there], (scores_of.T @ t)[there] ** 2 / n
    scores = []
    for level in levels:
        kept = variances / (variances + level**2)
        residual = np.mean(t**2, axis=0) - np.sum(energies * (1.0 - (1.0 - kept) ** 2)[:, None], axis=0)
        left_over = max(1.0 - (kept.sum() + 1.0) / n, 1e-3)
        scores.append(float(np.sum(residual)) / left_over**2)
    return float(levels[int(np.argmin(scores))])
