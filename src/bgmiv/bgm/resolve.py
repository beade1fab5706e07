"""Settings of networks that follow from the rows: the latent partition, noise in training, batches and iterations.

The partition says how many latents each part gets, from the roles that covariates show in the rows. A covariate that
the treatment depends on, given the instruments and the other covariates, needs a shared latent; one that only the
outcome depends on, an outcome-only latent. A covariate that moves the treatment moves the outcome through it, so that
no rows tell treatment-only from shared without knowing g; and that a covariate shows no role does not prove that it has
none. Where one of them shows none all latents are shared, which leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bgmiv.arrays import TINY, Floats, Integers
from bgmiv.bgm.config import BGMIVConfig, JointTraining, LatentLayout
from bgmiv.data.folds import row_folds
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray
from bgmiv.data.schema import BlockKind, CovariateBlock
from bgmiv.diagnostics.moments import conditions_of
from bgmiv.kernels import GaussianKernel, median_lengthscales
from bgmiv.nn.features import feature_widths
from bgmiv.nn.settings import FeatureConfig
from bgmiv.preprocess.reduction import choose_noise
from bgmiv.sieve.first_stage import slices_of

__all__ = ["choose_layout", "permutation_scores", "resolve"]

_MAX_ROWS = 2000
# Below this the regressions see next to nothing.
_MIN_ROWS = 100
# A permutation score above this, in standard errors, shows a dependence.
_SHOWN = 3.0
_RIDGES = np.logspace(-5, 1, 13)
# Iterations of joint training: so many up to a thousand rows, growing like the root of their number beyond.
_ITERATIONS, _MAX_ITERATIONS = 3000.0, 30_000.0


def resolve(config: BGMIVConfig, data: IVData, rng: np.random.Generator) -> BGMIVConfig:
    """The config with everything chosen that it leaves open.

    Args:
        config: of a fit whose networks are trained.
        data: its rows, their wide blocks reduced.
        rng: decides which rows show the latent partition, and permutes them.
    """
    covariates, initial, layout = config.model.covariates, config.initial, config.layout
    wide = data.schema.has_wide_block
    if layout is None and config.latents_are_features:
        layout, latent_features = choose_layout(data, covariates.features, rng)
        covariates = replace(covariates, latent_features=latent_features)
    elif layout is None:
        layout = LatentLayout(2, 1, 1, 2) if wide else LatentLayout(2, 2, 1, 2)
    if covariates.noise_levels:
        noise = _block_noise(data, covariates.features, covariates.noise_levels)
        covariates = replace(covariates, features=replace(covariates.features, block_noise=noise))
    if isinstance(initial, JointTraining) and initial.iterations is None:
        # More rows allow for more detail, and need fewer passes for it; ten evaluations are spread over the iterations.
        growing = _ITERATIONS * (data.n_rows / 1000.0) ** 0.5
        iterations = int(np.clip(growing, _ITERATIONS, _MAX_ITERATIONS))
        initial = replace(initial, iterations=iterations, chunk=iterations // 10)
    batch_size = min(config.batch_size or (32 if wide else 64), data.n_rows)
    return replace(
        config,
        layout=layout,
        batch_size=batch_size,
        model=replace(config.model, layout=layout, covariates=covariates),
        initial=replace(initial, batch_size=batch_size),
        alternating=replace(config.alternating, batch_size=batch_size),
    )


def _block_noise(data: IVData, features: FeatureConfig, levels: tuple[float, ...]) -> tuple[tuple[str, float], ...]:
    """The training noise of each wide vector block, by its name."""
    schema = data.schema
    # Levels as indicators: their codes are names.
    targets = np.hstack([schema.treatment.columns(data.treatment), schema.outcome.columns(data.outcome)])
    return tuple(
        (block.name, choose_noise(data.covariates[:, block.start : block.stop], targets, levels))
        for block in schema.blocks
        if block.kind is BlockKind.vector and not features.is_narrow(block)
    )


def choose_layout(
    data: IVData, features: FeatureConfig, rng: np.random.Generator
) -> tuple[LatentLayout, tuple[int, ...]]:
    """The partition for reduced covariates, and which of the features that networks see is each latent.

    Where rows are few, or a covariate shows no role, all latents are shared. Without covariates there is one latent,
    and no feature for it.

    Args:
        data: the rows, their wide blocks reduced.
        features: what networks see of each block.
        rng: decides which rows are used, and permutes them.
    """
    blocks = data.schema.blocks
    sizes = _latents_by_variable(blocks, features)
    n_latents, n_instruments = int(sizes.sum()), data.instruments.shape[1]
    everything = LatentLayout(max(n_latents, 1), 0, 0, 0), tuple(range(n_latents))
    if not blocks or data.n_rows < _MIN_ROWS:
        return everything
    rows = rng.permutation(data.n_rows)[:_MAX_ROWS]
    some = data.take(rows)
    conditions, schema = conditions_of(some), some.schema
    targets = schema.treatment.columns(some.treatment), schema.outcome.columns(some.outcome)
    scores = [permutation_scores(conditions, target, rng, some.groups)[n_instruments:] for target in targets]
    in_treatment, in_outcome = np.array(scores) > _SHOWN
    if in_treatment.all() or not np.all(in_treatment | in_outcome):
        return everything
    shared = in_treatment[np.repeat(np.arange(len(sizes)), sizes)]
    n_shared = int(shared.sum())
    return LatentLayout(n_shared, n_latents - n_shared, 0, 0), tuple(np.argsort(~shared, kind="stable").tolist())


def _latents_by_variable(blocks: Sequence[CovariateBlock], features: FeatureConfig) -> Integers:
    """One latent for each continuous or binary column, and one for each feature of any other block."""
    sizes: list[int] = []
    for block, width in zip(blocks, feature_widths(blocks, features), strict=True):
        sizes += [1] * block.width if block.kind in (BlockKind.continuous, BlockKind.binary) else [width]
    return np.asarray(sizes, np.int64)


def permutation_scores(
    conditions: Sequence[Floats], targets: FloatArray, rng: np.random.Generator, groups: Integers | None = None
) -> Floats:
    r"""How much worse a kernel regression predicts left-out rows with a variable permuted, in standard errors.

    Two regressions, each on one half of the rows (whole groups), predict the other half. Their ridges are chosen by
    leave-one-out errors. The score of a variable is the mean rise of the squared error, divided by its standard error.

    Args:
        conditions: the regressors, an `(n, k)` array a variable.
        targets: `(n, q)`; errors are summed over them.
        rng: permutes the rows.
        groups: `(n,)` of rows that are not independent; None if all are.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.normal(size=(2, 400, 1))
        >>> scores = permutation_scores([a, b], np.sin(2 * a) + 0.1 * rng.normal(size=(400, 1)), rng)
        >>> (scores > 3.0).tolist()
        [True, False]
    """
    variables, values = slices_of(conditions), np.hstack(conditions)
    y = np.asarray(targets, np.float64).reshape(len(values), -1)
    y = (y - y.mean(axis=0)) / np.maximum(y.std(axis=0), TINY)
    kernel = GaussianKernel(np.sqrt(len(variables)) * median_lengthscales(values, variables))
    fold = np.arange(len(values)) >= (len(values) + 1) // 2
    if groups is not None and len(np.unique(groups)) > 1:
        fold = row_folds(len(values), 2, rng, groups) == 1
    rises = np.zeros((len(variables), len(values)))
    for train, test in ((~fold, fold), (fold, ~fold)):
        weights = _ridge_weights(kernel(values[train], values[train]), y[train])
        base = np.sum((y[test] - kernel(values[test], values[train]) @ weights) ** 2, axis=1)
        for variable, rise in zip(variables, rises, strict=True):
            moved = values[test]
            moved[:, variable] = rng.permutation(moved[:, variable])
            rise[test] = np.sum((y[test] - kernel(moved, values[train]) @ weights) ** 2, axis=1) - base
    if groups is not None:
        codes = np.unique(groups, return_inverse=True)[1]
        rises = np.stack([np.bincount(codes, rise) for rise in rises])
    errors = rises.std(axis=1) / np.sqrt(rises.shape[1])
    return np.asarray(rises.mean(axis=1) / np.maximum(errors, TINY), np.float64)


def _ridge_weights(gram: Floats, y: Floats) -> Floats:
    """Weights of the training points for each target, with the ridge that has the least leave-one-out error."""
    values, vectors = np.linalg.eigh(gram)
    turned, squares = vectors.T @ y, vectors**2
    best, chosen = np.full(y.shape[1], np.inf), np.zeros_like(y)
    for ridge in _RIDGES * len(y):
        inverse = 1.0 / (np.maximum(values, 0.0) + ridge)
        weights = vectors @ (inverse[:, None] * turned)
        # The residual of a kernel ridge regression is ridge * weights, and 1 - leverage is ridge * diag(inverse).
        loss = np.mean((weights / (squares @ inverse)[:, None]) ** 2, axis=0)
        better = loss < best
        best, chosen = np.where(better, loss, best), np.where(better, weights, chosen)
    return chosen
