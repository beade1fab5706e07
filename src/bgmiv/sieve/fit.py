"""How a sieve's structural function is fitted: bases, first stage, second stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.covariance import errors_of
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import warn_user
from bgmiv.data.within import LevelEffects, Within
from bgmiv.errors import ConfigError, FitWarning, NotIdentifiedError
from bgmiv.sieve.bases import (
    LINEAR,
    NONLINEAR,
    SieveFunction,
    TreatmentBasis,
    b_splines,
    quantile_knots,
    term_columns,
    term_sums,
)
from bgmiv.sieve.columns import MIN_ROWS_A_COLUMN, Columns, Learned, draw_folds, instrument_blocks, stretches_of
from bgmiv.sieve.control import ControlTerms, Observed, standardised
from bgmiv.sieve.dimension import INSTRUMENT_DEGREE, INSTRUMENT_RATIO, choose_dimension
from bgmiv.sieve.first_stage import FirstStage, first_stage
from bgmiv.sieve.penalties import Shape
from bgmiv.sieve.sampling import BlocksAt, Sampling
from bgmiv.sieve.second_stage import Regression, SecondStage, second_stage

__all__ = [
    "SieveConfig", "SieveFit", "fit_sieve", "left_out_errors", "min_rows", "second_stage_of", "sieve_function",
    "warn_of_shrunk",
]  # fmt: skip

Floats = NDArray[np.float64]

_BENDS = 6
_MIN_ROWS = 30
# Of a standardised treatment, the variance that instruments must explain beyond the covariates.
_IRRELEVANT = 1e-9
# How often instruments are exchanged between rows to tell the covariates' own part of a first stage.
_N_SHUFFLED = 8
# Rows by which the size of functions is known well enough.
_MAX_VARIANCE_ROWS = 2000
# Random Fourier features and folds are the same for every fit: an estimate should not depend on a seed.
_SEED = 20_240
# Prior probabilities of smooth, rough and S-shaped curves (`_averaged_terms`): those of a number, and those of ordered
# levels, where neighbours may differ by any step; and of slopes that vary with covariates.
_CURVES = (0.34, 0.08, 0.08)
_STEPS = (0.1, 0.3, 0.1)
_S_SHAPED = 0.9
_SLOPES = 0.5
# That confounding is no line of the control variables.
_NOT_LINEAR = 0.5
_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class SieveConfig:
    """Which terms enter.

    Args:
        min_gain: what a term must gain to enter, as twice a log likelihood ratio; infinite for the linear fit.
        dimension: "penalised"; "adaptive" takes B-splines of the treatment and of one instrument without any penalty,
            their number by Chen, Christensen and Kankanala's bootstrap; covariates enter linearly.
        waves: number of random waves.
    """

    min_gain: float = 4.0
    dimension: Literal["penalised", "adaptive"] = "penalised"
    waves: int = 60

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        if not self.min_gain >= 0.0:
            raise ConfigError(f"min_gain must be 0 or more, got {self.min_gain}.")
        if self.waves < 1:
            raise ConfigError(f"waves must be 1 or more, got {self.waves}.")
        if self.dimension not in ("penalised", "adaptive"):
            raise ConfigError(f"dimension must be 'penalised' or 'adaptive', got {self.dimension!r}.")


class SieveFit(NamedTuple):
    """A fitted function, and what it says of the rows it was fitted on.

    Attributes:
        function: the structural function.
        left_out: `(n,)` E[y | w, v] of each row by coefficients of the other folds.
        residuals: `(n, k)` what the first stage leaves of each function of the treatment.
        n_shrunk: how many covariate columns are penalised because they are too many for the rows.
    """

    function: SieveFunction
    left_out: Floats
    residuals: Floats
    n_shrunk: int = 0


def min_rows(n_instruments: int) -> int:
    """How many rows a fit needs: its intervals rest on large samples, and its folds on some rows each."""
    return max(_MIN_ROWS, MIN_ROWS_A_COLUMN * (2 + n_instruments))


def warn_of_shrunk(n_columns: int) -> None:
    """Say that covariates are penalised, if some are."""
    if n_columns:
        warn_user(
            f"the {n_columns} covariate columns are more than a quarter of the rows, so they are penalised: the fit "
            "adjusts for them only in part, and may be confounded by them. Pass fewer columns or more rows. Indicators "
            "of categories belong into one categorical column, which is absorbed.",
            FitWarning,
        )


def fit_sieve(
    config: SieveConfig, data: IVData, *, use_instrument: bool = True, learned: Learned | None = None
) -> SieveFit:
    r"""Fit $g(x, v) = a + b x + c^\top v + \sum_t \Phi_t(x, v) \beta_t$, or $a + b x + c^\top v + d\, f(x, v)$.

    Args:
        config: which terms enter.
        data: one number or level as outcome, wide blocks reduced; all rows have a positive weight.
        use_instrument: False for a penalised regression on treatment and covariates.
        learned: f, which then takes the place of all terms but the linear ones, and of the first stage.
    """
    rng = np.random.default_rng(_SEED)
    fold = draw_folds(data, rng, Within.of(data.schema, data.covariates).unit())
    order = np.argsort(fold, kind="stable")
    columns = Columns.of(data.take(order), rng, waves=config.waves, bends=_BENDS)
    y, adaptive, segments = columns.y, config.dimension == "adaptive", 0
    if adaptive:
        lines = np.hstack([columns.covariates(columns.v)["lines"], columns.within.indicators()])
        segments = choose_dimension(y, columns.x, columns.w[:, 0], lines, rng).segments
        columns = columns._replace(treatment=TreatmentBasis.fit(columns.x, 0, segments + 1, segments=segments))
    if learned is not None:
        columns = columns._replace(learned=learned.take(order), treatment=columns.treatment._replace(spline=None))
    sampling = Sampling(columns.weights, columns.data.groups, stretches_of(fold), errors_of(columns.data))
    within, min_gain = columns.within, config.min_gain * columns.correction
    functions, n_lines = columns.treatment(columns.x), columns.treatment.sizes["lines"]
    first = FirstStage.exogenous(functions)
    if use_instrument and learned is None:
        instruments = _adaptive_instruments(segments) if adaptive else instrument_blocks(columns, config.waves, rng)
        first = first_stage(within.net(instruments(columns)), within.residual(functions), n_lines, sampling, min_gain)
        if within:
            # Products with covariates need predictions that contain the absorbed indicators' part.
            first = first._replace(predicted=functions - first.residuals)
    elif use_instrument and columns.learned is not None:
        predicted = (columns.learned.treatment - columns.treatment.shift) / columns.treatment.scale
        left = within.residual(functions - predicted)
        first = first._replace(predicted=predicted, residuals=left, n_controls=n_lines)
    shown = within.residual(first.predicted[:, :n_lines])
    _check_relevance(shown, within.residual(columns.covariates(columns.v)["lines"]), columns.wide)
    if use_instrument and learned is None and not adaptive:
        columns = _with_expected_treatment(columns, first.predicted[:, :n_lines], sampling, min_gain)
    terms, n_linear = columns.terms()
    if adaptive or learned is not None:
        terms = tuple(name for name in terms if name in (LINEAR if learned is not None else (*LINEAR, "curve")))
    n_linear = len(terms) if adaptive else n_linear
    second = _second_stage(columns, first, sampling, terms, n_linear, min_gain)
    function = sieve_function(columns, terms, terms[n_linear:], second)
    if use_instrument:
        shown = first.predicted[:, :n_lines]
        # The linear part of a first stage of ours has seen the row itself; that of a learned one has not.
        n_seen = 1
        if learned is None:
            n_seen = columns.w.shape[1]
            shown = shown - _by_covariates(columns, instruments, first.coefficients[:, :n_lines], sampling, rng)
        strength = _first_stage_f(columns, shown, functions, sampling) / n_seen
        function = replace(function, first_stage_f=strength)
    place = np.argsort(order)
    return SieveFit(
        function, (columns.centre + columns.scale * second.left_out)[place], first.residuals[place], columns.n_shrunk
    )


def left_out_errors(outcome: Floats, left_out: Floats, residuals: Floats, weights: Floats | None) -> Floats:
    """Errors of left-out predictions given, as in the regression itself, the first stage's residuals too."""
    root = np.ones((len(outcome), 1)) if weights is None else np.sqrt(weights)[:, None]
    controls, errors = np.column_stack([np.ones(len(outcome)), residuals]), outcome - left_out
    fitted = controls @ np.linalg.lstsq(controls * root, errors * root[:, 0], rcond=None)[0]
    return np.asarray(errors - fitted, np.float64)


def _by_covariates(
    columns: Columns,
    instruments: Callable[[Columns], BlocksAt],
    coefficients: Floats,
    sampling: Sampling,
    rng: np.random.Generator,
) -> Floats:
    """What the first stage predicts with the instruments of other rows, on average: the covariates' own part."""
    found = np.zeros((len(columns.y), coefficients.shape[1]))
    for _ in range(_N_SHUFFLED):
        blocks_at = instruments(columns._replace(w=columns.w[rng.permutation(len(columns.w))]))
        for rows in (piece for fold in sampling.folds for piece in sampling.pieces(fold)):
            found[rows] += np.hstack(blocks_at(rows)) @ coefficients / _N_SHUFFLED
    return found


def _first_stage_f(columns: Columns, predicted: Floats, functions: Floats, sampling: Sampling) -> float:
    """The robust F of the treatment's prediction as its only instrument, given the covariates; of several the least."""
    parts, root = columns.covariates(columns.v), sampling.root(slice(None))
    kinds = ("constant",) if columns.wide else ("constant", "lines", "expected")
    known = columns.within.residual(np.hstack([parts[kind] for kind in kinds])) * root
    both = columns.within.residual(np.hstack([predicted, functions[:, : predicted.shape[1]]])) * root
    both = both - known @ np.linalg.lstsq(known, both, rcond=1e-10)[0]
    found = []
    for z, x in zip(*np.split(both.T, 2), strict=True):
        # A prediction that goes the wrong way in rows that it has not seen is none.
        slope = max(float(z @ x) / max(float(z @ z), _TINY), 0.0)
        scores = z * (x - z * slope)
        sums = scores if columns.data.groups is None else np.bincount(columns.data.groups, scores)
        found.append((slope * float(z @ z)) ** 2 / max(float(sums @ sums), _TINY))
    return min(found)


def _with_expected_treatment(columns: Columns, predicted: Floats, sampling: Sampling, min_gain: float) -> Columns:
    """The columns with what the covariates say of the predicted treatment beyond a line, as a function of its own.

    The instruments may be related to covariates, or the treatment to them, in ways that are not linear. With that part
    of the prediction among the regressors, only what the instruments add to the covariates identifies the effect, not
    the shape in which covariates move the treatment.
    """
    covariates, within = columns.covariates, columns.within
    if columns.wide or not columns.v.shape[1]:
        return columns

    varying = columns.varying

    def blocks_at(rows: Any) -> list[Floats]:
        parts = covariates(columns.v[rows])
        linear = np.hstack([parts["constant"][:, : 0 if within else 1], parts["lines"][:, varying]])
        return [linear, *(parts[kind] for kind in NONLINEAR if parts[kind].shape[1])]

    coefficients = first_stage(within.net(blocks_at), within.residual(predicted), 0, sampling, min_gain).coefficients
    beyond = coefficients[blocks_at(slice(0, 1))[0].shape[1] :]
    beyond = beyond[:, np.any(beyond != 0.0, axis=0)]
    return columns._replace(covariates=covariates._replace(expected=beyond))


def _second_stage(
    columns: Columns, first: FirstStage, sampling: Sampling, terms: Sequence[str], n_linear: int, min_gain: float
) -> SecondStage:
    """The second stage on a standardised outcome."""
    treatment, covariates, within = columns.treatment, columns.covariates, columns.within
    functions, sizes = treatment(columns.x), treatment.sizes
    learned = columns.learned
    count = 0 if learned is None else 1
    scaled = None if learned is None else (learned.own - learned.own.mean()) / max(learned.own.std(), _TINY)

    def predicted_at(rows: Any) -> list[Floats]:
        blocks = term_columns(terms, first.predicted[rows], covariates(columns.v[rows]), sizes)
        return blocks if scaled is None else [scaled[rows, None], *blocks]

    noisy = None
    if learned is not None:
        noisy = within.residual((learned.averaged - learned.own.mean()) / max(learned.own.std(), _TINY))
    problem = Regression(
        within.net(predicted_at),
        lambda rows, beta: term_sums(terms, beta[count:], covariates(columns.v[rows]), sizes)[1],
        (columns.y - columns.centre) / columns.scale,
        first,
        sampling,
        noisy,
        _variances(columns, functions, terms[n_linear:]),
        None if learned is not None or not first.n_controls else _observed(columns, functions, first, terms),
    )
    averaged = _averaged_terms(columns, functions, terms[n_linear:])
    return second_stage_of(problem, n_linear + count, min_gain, averaged)


def _observed(columns: Columns, functions: Floats, first: FirstStage, terms: Sequence[str]) -> Observed:
    """The regression on the observed treatment.

    Control variables are the first stage's residuals of the treatment's lines; the outcome's error may depend on their
    curves, and on their products with covariates.
    """
    within, sizes = columns.within, columns.treatment.sizes
    n = first.n_controls
    v = columns.covariates.lines(columns.v)
    lines = standardised(first.residuals[:, :n], first.predicted[:, :n], v)
    found = ControlTerms.of(lines, v[:, columns.covariates.moderators], curved=columns.treatment.spline is not None)
    both = [part for part in (found.curves, found.products) if part.size]
    parts = [np.full(part.shape[1], 1.0 / np.sum(np.var(part, axis=0))) for part in both]
    shape = Shape(np.concatenate([np.zeros(0), *parts]), _NOT_LINEAR)

    def terms_at(rows: Any) -> list[Floats]:
        return term_columns(terms, functions[rows], columns.covariates(columns.v[rows]), sizes)

    controls = within.residual(lines), within.residual(np.hstack([found.curves, found.products]))
    return Observed(*controls, shape, within.net(terms_at))


def second_stage_of(
    problem: Regression, n_free: int, min_gain: float, averaged: Mapping[int, Sequence[Shape]] | None = None
) -> SecondStage:
    """The second stage; columns of the blocks without a penalty that are all zero have the coefficient 0.

    Net of absorbed indicators, covariates that do not vary within levels are zero.
    """
    widths = [block.shape[1] for block in problem.predicted_at(slice(0, 2))]
    used = np.ones(sum(widths), bool)
    free = used[: sum(widths[:n_free])]
    free[:] = False
    for fold in problem.sampling.folds:
        for piece in problem.sampling.pieces(fold):
            free |= np.any(np.hstack(problem.predicted_at(piece)[:n_free]) != 0.0, axis=0)
    if used.all():
        return second_stage(problem, n_free, min_gain, averaged)
    masks = np.split(used, np.cumsum(widths)[:-1])

    def full(values: Floats) -> Floats:
        found = np.zeros((len(used), *values.shape[1:]))
        found[used] = values
        return found

    def masked(blocks_at: BlocksAt) -> BlocksAt:
        return lambda rows: [block[:, mask] for block, mask in zip(blocks_at(rows), masks, strict=True)]

    observed = problem.observed
    reduced = problem._replace(
        predicted_at=masked(problem.predicted_at),
        observed=None if observed is None else observed._replace(terms=masked(observed.terms)),
        slopes_at=lambda rows, beta: problem.slopes_at(rows, full(beta)),
    )
    found = second_stage(reduced, n_free, min_gain, averaged)
    return found._replace(
        coefficients=full(found.coefficients),
        sampling=full(found.sampling),
        smoothing=full(found.smoothing),
        strength=full(found.strength),
        bound=full(found.bound),
    )


def _variances(columns: Columns, functions: Floats, penalised: Sequence[str]) -> Floats:
    """The variance of each term's function for coefficients of variance 1, from some rows."""
    some = np.linspace(0, len(functions) - 1, min(len(functions), _MAX_VARIANCE_ROWS)).astype(np.intp)
    of_covariates = columns.covariates(columns.v[some])
    blocks = term_columns(penalised, functions[some], of_covariates, columns.treatment.sizes)
    return np.array([np.sum(np.mean(block**2, axis=0)) for block in blocks])


def _averaged_terms(columns: Columns, functions: Floats, penalised: Sequence[str]) -> dict[int, list[Shape]]:
    """The terms whose prior variances are averaged over, by position, and the shapes of their priors.

    A curve is most likely a smooth one, mostly of the smoothest function: the prior standard deviation of a function
    falls with its roughness to the power 5/2. Or it is as rough as the penalty on its second derivative allows, where
    the power is 1/2. Or it is so but for the smoothest function, which has little of it: curves that level off at both
    ends, or rise at both.
    """
    n_lines = columns.treatment.sizes["lines"]
    found = {}
    for i, name in enumerate(penalised):
        if name == "curve":
            # Functions are scaled so that their variances are the inverse of their roughness.
            variances = np.var(functions[:, n_lines:], axis=0)
            shares = [variances**3, variances, variances]
            if len(variances) > 1:
                others = np.sqrt(variances[1:]) / np.sqrt(variances[1:]).sum()
                shares[2] = np.append(1.0 - _S_SHAPED, _S_SHAPED * others)
            probabilities = _STEPS if columns.treatment.ordered else _CURVES
            found[i] = [
                Shape(share / share.sum() / variances, probability, smooth=share is shares[0])
                for share, probability in zip(shares, probabilities, strict=True)
            ]
        elif name == "slopes by covariate":
            k = n_lines * len(columns.covariates.moderators)
            found[i] = [Shape(np.full(k, 1.0 / k), _SLOPES)]
    return found


def sieve_function(
    columns: Columns, terms: Sequence[str], penalised: Sequence[str], found: SecondStage, other: Floats | None = None
) -> SieveFunction:
    """The function in units of the outcome, without the terms that neither the estimate nor its intervals have.

    Where indicators are absorbed, its covariance allows for their number. `other` is a part of the outcome `(n,)`, in
    its units, that is none of the structural function.
    """
    scale = columns.scale

    def scaled(values: Floats) -> Floats:
        """In units of the outcome; the weight of the learned function comes first, 0 without one, then the terms."""
        full = scale * (values if columns.learned is not None else np.concatenate([np.zeros_like(values[:1]), values]))
        if columns.learned is not None:
            full[0] /= max(columns.learned.own.std(), _TINY)
        if columns.learned is not None and not columns.within:
            full[1] -= full[0] * columns.learned.own.mean()
        return full

    mean = scaled(found.coefficients)
    wider = np.sqrt(columns.correction)
    roots = {name: wider * scaled(getattr(found, name)) for name in ("sampling", "smoothing", "bound")}
    # By one unit of the slope in units of the data, not by one of standardised variables.
    roots["strength"] = wider * scaled(found.strength) * float(np.ravel(columns.treatment.scale)[0]) / scale
    if not columns.within:
        mean[1] += columns.y.mean()
    ends = np.cumsum([1, *_widths(columns, terms)])
    matters = np.abs(mean) + sum(np.abs(root).sum(axis=1) for root in roots.values()) > 0.0
    shown = [bool(matters[start:stop].any()) for start, stop in pairwise(ends)]
    rows = np.append(True, np.repeat(shown, np.diff(ends)))
    probabilities = {penalised[i]: probability for i, probability in found.probabilities.items()}
    entered = {name: float(found.penalties.ridges[i]) for i, name in enumerate(penalised)}
    kept = tuple(name for name, is_shown in zip(terms, shown, strict=True) if is_shown)
    return SieveFunction(
        treatment=columns.treatment,
        covariates=columns.covariates,
        terms=kept,
        coefficients=mean[rows][1:],
        weight=float(mean[0]),
        **{name: root[rows] for name, root in roots.items()},
        penalties={name: ridge for name, ridge in entered.items() if np.isfinite(ridge)},
        gains={name: float(found.penalties.gains[i]) for i, name in enumerate(penalised)},
        probabilities=probabilities,
        effects=_level_effects(columns, kept, mean[rows], other) if columns.within else None,
        dof=errors_of(columns.data).dof(),
    )


def _level_effects(columns: Columns, terms: Sequence[str], coefficients: Floats, other: Floats | None) -> LevelEffects:
    """Of the absorbed indicators, at the treatments that were observed."""
    learned = np.zeros(len(columns.y)) if columns.learned is None else columns.learned.averaged

    def columns_at(rows: Any) -> list[Floats]:
        functions = columns.treatment(columns.x[rows]), columns.covariates(columns.v[rows])
        return [learned[rows, None], *term_columns(terms, *functions, columns.treatment.sizes)]

    y = columns.y if other is None else columns.y - other
    left = len(y) - columns.within.dof(columns.data.groups) - int(np.count_nonzero(coefficients))
    return LevelEffects.fit(columns.within, y, columns_at, coefficients, left)


def _widths(columns: Columns, terms: Sequence[str]) -> list[int]:
    """How many columns each term has."""
    few = columns.treatment(columns.x[:1]), columns.covariates(columns.v[:1])
    return [block.shape[1] for block in term_columns(terms, *few, columns.treatment.sizes)]


def _adaptive_instruments(segments: int) -> Callable[[Columns], BlocksAt]:
    def of(part: Columns) -> BlocksAt:
        w, lines = part.w[:, 0], part.covariates(part.v)["lines"]
        knots = quantile_knots(w, INSTRUMENT_RATIO * segments, INSTRUMENT_DEGREE)
        # All B-splines add up to the constant, which absorbed indicators contain.
        first = 1 if part.within else 0
        return lambda rows: [np.hstack([b_splines(knots, w[rows], INSTRUMENT_DEGREE)[:, first:], lines[rows]])]

    return of


def _check_relevance(predicted: Floats, lines: Floats, wide: bool) -> None:
    """Refuse instruments that do not move the treatment's lines beyond the covariates."""
    others = np.column_stack([np.ones(len(lines)), lines]) if not wide else np.ones((len(lines), 1))
    left = predicted - others @ np.linalg.lstsq(others, predicted, rcond=None)[0]
    if np.linalg.eigvalsh(left.T @ left / len(left))[0] < _IRRELEVANT:
        raise NotIdentifiedError(
            "the instruments do not identify the treatment: given the covariates they predict nothing of it, or they "
            "are fewer than a categorical treatment's levels. Pass other or more instruments, or drop the covariates "
            "that determine them."
        )
