"""Whether anything may be left for networks: boosted trees on what a sieve leaves of the outcome in left-out rows."""

from __future__ import annotations

import numpy as np

from bgmiv.arrays import TINY, Floats
from bgmiv.bgm.last_stage import LastStage
from bgmiv.data.folds import row_folds, some_rows
from bgmiv.data.messages import Positions
from bgmiv.data.within import absorbed_blocks, ordinary_covariates
from bgmiv.diagnostics.moments import variance_of

__all__ = ["boosted_trees", "left_for_networks"]

# Errors of a smaller share of the outcome's variance are none: trees also see what a sieve's penalties take from it.
_NO_ERROR = 1e-3

_N_FOLDS = 5
_TREES, _DEPTH, _RATE, _BINS = 40, 4, 0.2, 32
# Networks that are not trained for want of evidence are a worse mistake than some that are trained for nothing.
_N_ERRORS = 3.0
# A leaf has at least so many rows of mean weight.
_MIN_LEAF = 20.0
# More rows or numbers cost more than they tell.
_MAX_ROWS, _MAX_NUMBERS, _SOME_ROWS = 10_000, 200_000, 1000


def left_for_networks(sieve: LastStage, *, use_instrument: bool = True) -> float:
    r"""How much of the outcome's variance trees may explain of a sieve's left-out errors: three standard errors above.

    The errors are those of E[y | w, v], predicted without the row, and net, linearly, of what the first stage leaves of
    the treatment: networks too are compared with the sieve given the treatment (`bgmiv.bgm.last_stage`). Trees that
    are boosted on four fifths of the rows, whole groups, predict the errors of the others from instruments and
    covariates. With the gain $d_i = e_i^2 - (e_i - \hat e_i)^2$ of each row, or group, the share is
    $(\bar d + 3 s_{\bar d}) / \operatorname{Var}(y)$. It is negative if trees surely do harm, as they do to noise, and
    0 if the errors are next to nothing: then nothing is left for networks.

    Args:
        sieve: the last stage without networks.
        use_instrument: False for a regression on the observed treatment, which takes the instruments' place.
    """
    data, errors = sieve.rows, sieve.left_out_errors
    weights = data.full_weights
    absorbed = [block.name for block in absorbed_blocks(data.schema, data.n_rows)]
    told = data.instruments if use_instrument else data.schema.treatment.columns(data.treatment)
    inputs = np.hstack([np.asarray(told, np.float64), ordinary_covariates(data.schema, data.covariates, absorbed)])
    spread = variance_of(data.outcome, weights)
    if np.average(errors**2, weights=weights) < _NO_ERROR * spread:
        return 0.0
    rng = np.random.default_rng(0)
    size = min(_MAX_ROWS, max(_SOME_ROWS, _MAX_NUMBERS // max(inputs.shape[1], 1)))
    # Of two groups at least, since a fold needs others.
    some = some_rows(data.n_rows, size, rng, data.groups, min_groups=2)
    groups = None if data.groups is None else data.groups[some]
    codes, own, errors = _bins(inputs[some]), weights[some], errors[some]
    fold = row_folds(len(some), _N_FOLDS, rng, groups)
    predicted = np.zeros(len(some))
    for each in np.unique(fold):
        inside = fold == each
        predicted[inside] = boosted_trees(codes, errors, np.where(inside, 0.0, own))[inside]
    gains = own * (errors**2 - (errors - predicted) ** 2)
    total = gains if groups is None else np.bincount(groups, gains)
    upper = gains.sum() + _N_ERRORS * np.sqrt(np.sum((total - total.mean()) ** 2))
    return float(upper / (own.sum() * spread))


def _bins(columns: Floats) -> Positions:
    """The bin of each number, `(n, p)`: between quantiles of its column, or one a value where these are few."""
    codes = np.empty(columns.shape, np.intp)
    shares = np.linspace(0.0, 1.0, _BINS + 1)[1:-1]
    for j, column in enumerate(columns.T):
        values = np.unique(column)
        edges = values[1:] if len(values) <= _BINS else np.unique(np.quantile(column, shares))
        codes[:, j] = np.searchsorted(edges, column, side="right")
    return codes


def boosted_trees(codes: Positions, target: Floats, weights: Floats) -> Floats:
    """Predictions of all rows by regression trees, each fitted to what those before it have left.

    Args:
        codes: `(n, p)` the bin of each number, from 0 to 31.
        target: `(n,)`.
        weights: `(n,)`; rows without a weight are predicted and teach nothing.

    Example:
        >>> codes = np.arange(600)[:, None] % 6
        >>> found = boosted_trees(codes, (codes[:, 0] == 2).astype(float), np.ones(600))
        >>> found[:4].round(2).tolist()
        [0.0, 0.0, 1.0, 0.0]
    """
    n, p = codes.shape
    used = np.flatnonzero(weights > 0.0)
    places, known = codes[used] + _BINS * np.arange(p), np.repeat(weights[used], p)
    least = _MIN_LEAF * float(weights[used].mean())
    predicted = np.zeros(n)
    for _ in range(_TREES if p else 0):
        left = np.repeat(weights[used] * (target - predicted)[used], p)
        leaf, n_leaves = np.zeros(n, np.intp), 1
        for _ in range(_DEPTH):
            index = (places + (p * _BINS) * leaf[used, None]).ravel()
            shape = (n_leaves, p, _BINS)
            sums = np.bincount(index, left, np.prod(shape)).reshape(shape)
            counts = np.bincount(index, known, np.prod(shape)).reshape(shape)
            feature, edge = _best_splits(np.cumsum(sums, axis=2), np.cumsum(counts, axis=2), least)
            leaf = 2 * leaf + (codes[np.arange(n), feature[leaf]] > edge[leaf])
            n_leaves *= 2
        weight = np.bincount(leaf[used], weights[used], n_leaves)
        total = np.bincount(leaf[used], left[::p], n_leaves)
        predicted += _RATE * (total / np.maximum(weight, least))[leaf]
    return predicted


def _best_splits(sums: Floats, counts: Floats, least: float) -> tuple[Positions, Positions]:
    """The column and the bin after which each leaf is split, from cumulative sums `(leaves, p, bins)` of both.

    Where no split leaves enough on both sides, all stays on the left of the last bin.
    """
    right, others = sums[..., -1:] - sums, counts[..., -1:] - counts
    gains = sums**2 / np.maximum(counts, TINY) + right**2 / np.maximum(others, TINY)
    gains[(counts < least) | (others < least)] = -np.inf
    gains = gains.reshape(len(gains), -1)
    feature, edge = np.divmod(gains.argmax(axis=1), _BINS)
    return feature, np.where(np.isfinite(gains.max(axis=1)), edge, _BINS - 1)
