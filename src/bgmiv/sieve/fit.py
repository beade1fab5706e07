"""How a sieve's structural function is fitted: bases, first stage, second stage, over one or several splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.errors import ConfigError, NotIdentifiedError
from bgmiv.sieve.bases import (
    LINEAR,
    TERMS,
    ColumnBasis,
    SieveFunction,
    TreatmentBasis,
    b_splines,
    column_products,
    quantile_knots,
    sieve_columns,
    term_columns,
    term_sums,
)
from bgmiv.sieve.dimension import INSTRUMENT_DEGREE, INSTRUMENT_RATIO, choose_dimension
from bgmiv.sieve.stages import BlocksAt, FirstStage, Regression, Sampling, SecondStage, first_stage, second_stage

__all__ = [
    "Columns", "Learned", "SieveConfig", "SieveFit", "average_splits", "draw_folds", "fit_sieve", "instrument_blocks",
    "left_out_errors", "min_rows", "stretches_of",
]  # fmt: skip

Floats = NDArray[np.float64]

_BENDS = 6
# A term with more columns is not offered.
_MAX_COLUMNS = 200
# A surface that also bends in the treatment is hopeless with more covariates.
_FEW_COVARIATES = 5
# Covariates enter unpenalised while a linear model has at least this many rows for each of its columns.
_MIN_ROWS_A_COLUMN = 4
# Of a standardised treatment, the variance that instruments must explain beyond the covariates.
_IRRELEVANT = 1e-9
# A split is left out whose error in left-out rows is larger than the smallest one by more than this factor.
_MAX_ERROR = 1.1
# So is one whose function varies more than is usual among the splits, by this factor: left-out rows do not see what the
# instruments smooth away, and there a prior variance can be far too large by chance.
_MAX_SPREAD = 3.0
_TINY = float(np.finfo(float).tiny)


class Learned(NamedTuple):
    """What several models, each trained without some of the rows, say of the rows of the data.

    Attributes:
        own: `(n,)` E[f(x, v) | w, v] by the model that has not seen the row.
        averaged: `(n,)` the same by all models on average, whose f is the one that predicts.
        treatment: `(n, k)` E[x | w, v] by the model that has not seen the row; for a treatment with levels the
            probabilities of all but the first.
    """

    own: Floats
    averaged: Floats
    treatment: Floats

    def take(self, rows: NDArray[Any]) -> Learned:
        """Some rows, or all in another order."""
        return Learned(*(np.asarray(part[rows], np.float64) for part in self))


@dataclass(frozen=True)
class SieveConfig:
    """Which terms enter, and how rows are split.

    Args:
        min_gain: what a term must gain to enter, as twice a log likelihood ratio; infinite for the linear fit.
        folds: of the first stage.
        splits: into folds, each at random; the coefficients are averages over them. Which terms enter can depend on the
            split, and their average is more precise than one of them.
        dimension: "penalised"; "adaptive" takes B-splines of the treatment and of one instrument without any penalty,
            their number by Chen, Christensen and Kankanala's bootstrap; covariates enter linearly.
        waves: number of random waves.
    """

    min_gain: float = 4.0
    folds: int = 5
    splits: int = 1
    dimension: Literal["penalised", "adaptive"] = "penalised"
    waves: int = 60

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        if not self.min_gain >= 0.0:
            raise ConfigError(f"min_gain must be 0 or more, got {self.min_gain}.")
        if self.folds < 2 or self.splits < 1 or self.waves < 1:
            got = f"{self.folds}, {self.splits} and {self.waves}"
            raise ConfigError(f"folds must be 2 or more, splits and waves 1 or more, got {got}.")
        if self.dimension not in ("penalised", "adaptive"):
            raise ConfigError(f"dimension must be 'penalised' or 'adaptive', got {self.dimension!r}.")


class SieveFit(NamedTuple):
    """A fitted function, and what it says of the rows it was fitted on.

    Attributes:
        function: the structural function.
        left_out: `(n,)` E[y | w, v] of each row by coefficients of the other folds.
        residuals: `(n, k)` what the first stage leaves of each function of the treatment.
    """

    function: SieveFunction
    left_out: Floats
    residuals: Floats


def min_rows(n_instruments: int) -> int:
    """How many rows a fit needs."""
    return _MIN_ROWS_A_COLUMN * (2 + n_instruments)


class Columns(NamedTuple):
    """Numbers of all rows, and the functions of them."""

    data: IVData
    y: Floats
    x: Floats
    v: Floats
    w: Floats
    treatment: TreatmentBasis
    covariates: ColumnBasis
    learned: Learned | None

    @classmethod
    def of(cls, data: IVData, rng: np.random.Generator, *, waves: int, bends: int, segments: int = 9) -> Columns:
        """The columns of rows, wide blocks reduced, in double precision, and their bases."""
        y, x, w = (np.asarray(column, np.float64) for column in (data.outcome, data.treatment, data.instruments))
        v = sieve_columns(data.schema, data.covariates)
        levels = max(2, data.schema.treatment.width) if data.schema.treatment.discrete else 0
        treatment = TreatmentBasis.fit(x, levels, bends, segments=segments)
        return cls(data, y, x, v, w, treatment, ColumnBasis.fit(v, rng, waves=waves), None)

    @property
    def weights(self) -> Floats | None:
        """Of the rows, if they have some."""
        return None if self.data.weights is None else np.asarray(self.data.weights, np.float64)

    @property
    def wide(self) -> bool:
        """Whether there are too many covariates for a linear model."""
        return _MIN_ROWS_A_COLUMN * (2 + len(self.covariates.used) + self.w.shape[1]) > len(self.y)

    def terms(self) -> tuple[tuple[str, ...], int]:
        """The terms that have columns, and not too many; and how many of them, the first ones, are not penalised."""
        kinds = {kind: part.shape[1] for kind, part in self.covariates(self.v[:1]).items()}
        sizes = {name: term.width(self.treatment.sizes) * kinds[term.kind] for name, term in TERMS.items()}
        if len(self.covariates.moderators) > _FEW_COVARIATES:
            sizes["curves by surface"] = 0
        found = tuple(name for name, size in sizes.items() if 0 < size <= _MAX_COLUMNS or (size and name in LINEAR))
        return found, sum(name in LINEAR for name in found) - (self.wide and "covariates" in found)

    def take(self, order: NDArray[np.intp]) -> Columns:
        """The rows in another order."""
        learned = None if self.learned is None else self.learned.take(order)
        moved = {name: getattr(self, name)[order] for name in ("y", "x", "v", "w")}
        return self._replace(data=self.data.take(order), learned=learned, **moved)


def fit_sieve(
    config: SieveConfig,
    data: IVData,
    rng: np.random.Generator,
    *,
    use_instrument: bool = True,
    learned: Learned | None = None,
) -> SieveFit:
    r"""Fit $g(x, v) = a + b x + c^\top v + \sum_t \Phi_t(x, v) \beta_t$, or $a + b x + c^\top v + d\, f(x, v)$.

    Args:
        config: which terms enter, and how rows are split.
        data: one number or level as outcome, wide blocks reduced; all rows have a positive weight.
        rng: decides folds and waves.
        use_instrument: False for a penalised regression on treatment and covariates.
        learned: f, which then takes the place of all terms but the linear ones, and of the first stage.
    """
    fold = draw_folds(data, config.folds, rng)
    order = np.argsort(fold, kind="stable")
    rows = data.take(order)
    columns = Columns.of(rows, rng, waves=config.waves, bends=_BENDS)
    y, adaptive, segments = columns.y, config.dimension == "adaptive", 0
    if adaptive:
        lines = columns.covariates(columns.v)["lines"]
        segments = choose_dimension(y, columns.x, columns.w[:, 0], lines, rng).segments
        columns = columns._replace(treatment=TreatmentBasis.fit(columns.x, 0, segments + 1, segments=segments))
    if learned is not None:
        columns = columns._replace(learned=learned.take(order), treatment=columns.treatment._replace(spline=None))
    terms, n_linear = columns.terms()
    if adaptive or learned is not None:
        terms = tuple(name for name in terms if name in (LINEAR if learned is not None else (*LINEAR, "curve")))
    n_linear = len(terms) if adaptive else n_linear
    instruments = None
    if use_instrument and learned is None:
        instruments = _adaptive_instruments(segments) if adaptive else instrument_blocks(columns, config.waves, rng)

    found, left_out, residuals, errors, spreads = [], [], [], [], []
    for i in range(config.splits):
        fold = np.sort(fold) if i == 0 else draw_folds(rows, config.folds, rng)
        moved = np.argsort(fold, kind="stable")
        part = columns.take(moved)
        sampling = Sampling(part.weights, part.data.groups, stretches_of(fold))
        second, left = _fit_split(part, sampling, terms, n_linear, instruments, config.min_gain, use_instrument)
        found.append(second)
        back = np.argsort(moved)
        left_out.append(y.mean() + y.std() * second.left_out[back])
        residuals.append(left[back])
        controls = residuals[-1][:, : columns.treatment.sizes["lines"]]
        square = left_out_errors(y, left_out[-1], controls, columns.weights)
        errors.append(np.average(square, weights=columns.weights))
        spreads.append(_spread(columns, terms, second) if config.splits > 1 else 0.0)
    # Now and then terms enter in an order that leaves better ones out.
    steady = np.asarray(spreads) <= _MAX_SPREAD * np.median(spreads)
    kept = np.flatnonzero(steady & (np.asarray(errors) <= _MAX_ERROR * np.min(np.asarray(errors)[steady])))
    place = np.argsort(order)
    return SieveFit(
        average_splits(columns, terms, terms[n_linear:], [found[i] for i in kept]),
        np.mean([left_out[i] for i in kept], axis=0)[place],
        np.mean([residuals[i] for i in kept], axis=0)[place],
    )


def left_out_errors(outcome: Floats, left_out: Floats, residuals: Floats, weights: Floats | None) -> Floats:
    """Square errors of left-out predictions given, as in the regression itself, the first stage's residuals too."""
    root = np.ones((len(outcome), 1)) if weights is None else np.sqrt(weights)[:, None]
    controls, errors = np.column_stack([np.ones(len(outcome)), residuals]), outcome - left_out
    fitted = controls @ np.linalg.lstsq(controls * root, errors * root[:, 0], rcond=None)[0]
    return np.asarray((errors - fitted) ** 2, np.float64)


def _fit_split(
    columns: Columns,
    sampling: Sampling,
    terms: Sequence[str],
    n_linear: int,
    instruments: Callable[[Columns], BlocksAt] | None,
    min_gain: float,
    use_instrument: bool,
) -> tuple[SecondStage, Floats]:
    """Both stages on a standardised outcome, and what the first leaves of the functions of the treatment."""
    treatment, covariates = columns.treatment, columns.covariates
    functions, n_lines, sizes = treatment(columns.x), treatment.sizes["lines"], treatment.sizes
    first = FirstStage.exogenous(functions)
    if instruments is not None:
        first = first_stage(instruments(columns), functions, n_lines, sampling, min_gain)
    elif use_instrument and columns.learned is not None:
        predicted = (columns.learned.treatment - treatment.shift) / treatment.scale
        first = first._replace(predicted=predicted, residuals=functions - predicted, n_controls=n_lines)
    _check_relevance(first.predicted[:, :n_lines], covariates(columns.v)["lines"], columns.wide)
    learned = columns.learned
    count = 0 if learned is None else 1
    scaled = None if learned is None else (learned.own - learned.own.mean()) / max(learned.own.std(), _TINY)

    def predicted_at(rows: Any) -> list[Floats]:
        blocks = term_columns(terms, first.predicted[rows], covariates(columns.v[rows]), sizes)
        return blocks if scaled is None else [scaled[rows, None], *blocks]

    problem = Regression(
        predicted_at,
        lambda rows, beta: term_sums(terms, beta[count:], covariates(columns.v[rows]), sizes)[1],
        (columns.y - columns.y.mean()) / columns.y.std(),
        first,
        sampling,
        None if learned is None else (learned.averaged - learned.own.mean()) / max(learned.own.std(), _TINY),
    )
    rough = terms.index("curve") - n_linear if "curve" in terms[n_linear:] else None
    return second_stage(problem, n_linear + count, min_gain, rough), first.residuals


def average_splits(
    columns: Columns, terms: Sequence[str], penalised: Sequence[str], found: Sequence[SecondStage]
) -> SieveFunction:
    """The mean over splits, in units of the outcome.

    The covariance is the mean of theirs, and the spread between splits is added to it: which terms entered by chance.
    """
    n, scale = len(found), float(columns.y.std())
    entered = np.any([np.isfinite(one.penalties.ridges) for one in found], axis=0)

    def scaled(values: Floats) -> Floats:
        """In units of the outcome; the weight of the learned function comes first, 0 without one, then the terms."""
        full = scale * (values if columns.learned is not None else np.concatenate([np.zeros_like(values[:1]), values]))
        if columns.learned is not None:
            full[0] /= max(columns.learned.own.std(), _TINY)
            full[1] -= full[0] * columns.learned.own.mean()
        return full

    each = np.stack([scaled(one.coefficients) for one in found])
    mean = each.mean(axis=0)
    names = ("sampling", "smoothing", "bound", "roughness")
    parts = [[scaled(getattr(one, name)) for one in found] for name in names]
    if n > 1:
        parts[0].append((each - mean).T)
    roots = [part[0] if n == 1 else _root(np.hstack(part) / np.sqrt(n)) for part in parts]
    mean[1] += columns.y.mean()
    ends = np.cumsum([1, *_widths(columns, terms)])
    matters = np.abs(mean) + sum(np.abs(root).sum(axis=1) for root in roots) > 0.0
    shown = [bool(matters[start:stop].any()) for start, stop in pairwise(ends)]
    rows = np.append(True, np.repeat(shown, np.diff(ends)))
    return SieveFunction(
        treatment=columns.treatment,
        covariates=columns.covariates,
        terms=tuple(name for name, is_shown in zip(terms, shown, strict=True) if is_shown),
        coefficients=mean[rows][1:],
        weight=float(mean[0]),
        **{name: root[rows] for name, root in zip(names, roots, strict=True)},
        penalties={
            name: n / sum(1.0 / one.penalties.ridges[i] for one in found)
            for i, name in enumerate(penalised)
            if entered[i]
        },
        gains={name: float(np.mean([one.penalties.gains[i] for one in found])) for i, name in enumerate(penalised)},
    )


def _spread(columns: Columns, terms: Sequence[str], found: SecondStage) -> float:
    """The standard deviation of the function over the rows, in that of the outcome."""
    own = found.coefficients[len(found.coefficients) - sum(_widths(columns, terms)) :]
    alone, slopes = term_sums(terms, own, columns.covariates(columns.v), columns.treatment.sizes)
    return float(np.std(alone + np.sum(slopes * columns.treatment(columns.x), axis=1)))


def _widths(columns: Columns, terms: Sequence[str]) -> list[int]:
    """How many columns each term has."""
    few = columns.treatment(columns.x[:1]), columns.covariates(columns.v[:1])
    return [block.shape[1] for block in term_columns(terms, *few, columns.treatment.sizes)]


def _root(factors: Floats) -> Floats:
    """As few columns as have the same covariance."""
    values, vectors = np.linalg.eigh(factors @ factors.T)
    there = values > 1e-12 * max(values[-1], np.finfo(float).tiny)
    return np.asarray(vectors[:, there] * np.sqrt(values[there]), np.float64)


def draw_folds(data: IVData, n_folds: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """The fold of each row; rows of a group are in one."""
    if data.groups is None:
        return rng.permutation(data.n_rows) % n_folds
    return (rng.permutation(int(data.groups.max()) + 1) % n_folds)[data.groups]


def stretches_of(folds: NDArray[np.intp]) -> list[slice]:
    """Where each fold lies once rows are sorted by it; folds without rows are left out."""
    ends = np.cumsum(np.bincount(folds)).tolist()
    return [slice(start, stop) for start, stop in pairwise([0, *ends]) if stop > start]


def instrument_blocks(
    columns: Columns, waves: int, rng: np.random.Generator, *, max_free: float = np.inf
) -> Callable[[Columns], BlocksAt]:
    """The first stage's regressors of rows in any order; the first block is not penalised.

    It holds the constant, the instruments unless there are more than `max_free`, and the covariates unless they are
    too many for the rows.
    """
    own = ColumnBasis.fit(columns.w, rng, waves=1)
    wide, n_v, n_w = columns.wide, len(columns.covariates.moderators), len(own.used)
    joint = ColumnBasis.fit(np.hstack([columns.w, columns.v]), rng, waves=waves, max_columns=0)

    def of(part: Columns) -> BlocksAt:
        def blocks_at(rows: Any) -> list[Floats]:
            of_w, of_v = own(part.w[rows]), part.covariates(part.v[rows])
            linear = [of_w["constant"]]
            few = n_w * n_v <= _MAX_COLUMNS
            crossed = column_products(of_w["moderators"], of_v["moderators"]) if few else of_v["lines"][:, :0]
            blocks = [
                np.hstack([of_w["curves"], of_w["products"]]),
                crossed,
                of_v["curves"],
                of_v["products"],
                joint(np.hstack([part.w[rows], part.v[rows]]))["waves"],
            ]
            (blocks if n_w > max_free else linear).append(of_w["lines"])
            (blocks if wide else linear).append(of_v["lines"])
            return [np.hstack(linear), *(block for block in blocks if block.shape[1])]

        return blocks_at

    return of


def _adaptive_instruments(segments: int) -> Callable[[Columns], BlocksAt]:
    def of(part: Columns) -> BlocksAt:
        w, lines = part.w[:, 0], part.covariates(part.v)["lines"]
        knots = quantile_knots(w, INSTRUMENT_RATIO * segments, INSTRUMENT_DEGREE)
        return lambda rows: [np.hstack([b_splines(knots, w[rows], INSTRUMENT_DEGREE), lines[rows]])]

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
