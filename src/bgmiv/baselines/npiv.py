r"""Penalised sieve instrumental variables: a line, and as much curvature and interaction as the data show."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query
from bgmiv.data.roles import RoleKind
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.diagnostics.support import LinearSupport
from bgmiv.effects import Estimate, Floats, Interval, Source, interval_of
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.base import IVEstimator
from bgmiv.estimators.fitted import FittedMethod, check_instrument, check_one_number
from bgmiv.preprocess.reduction import BlockReduction, FittedReduction
from bgmiv.progress import Reporter, silent
from bgmiv.sieve.bases import (
    LINEAR,
    TERMS,
    ColumnBasis,
    TreatmentBasis,
    b_splines,
    column_products,
    quantile_knots,
    term_columns,
    term_sums,
)
from bgmiv.sieve.dimension import INSTRUMENT_DEGREE, INSTRUMENT_RATIO, choose_dimension
from bgmiv.sieve.stages import BlocksAt, FirstStage, Regression, Sampling, first_stage, second_stage

__all__ = ["NPIV", "PRESETS", "FittedNPIV", "NPIVConfig"]

_MAX_POINTS = 20_000
_BENDS = 6
# A term with more columns is not offered.
_MAX_COLUMNS = 200
# A surface that also bends in the treatment is hopeless with more covariates.
_FEW_COVARIATES = 5
# Covariates enter unpenalised while a linear model has at least this many rows for each of its columns.
_MIN_ROWS_A_COLUMN = 4
_BAND_DRAWS = 5000
# Of a standardised treatment, the variance that instruments must explain beyond the covariates.
_IRRELEVANT = 1e-9


@dataclass(frozen=True, eq=False)
class FittedNPIV(FittedMethod):
    """A fitted structural function, linear in its coefficients.

    Attributes:
        schema, support, reduction: what the fit keeps of its data.
        treatment, covariates: the functions of each.
        terms: the names of the parts that were kept (`bgmiv.sieve.bases.TERMS`).
        coefficients: of all columns of these terms, in units of the outcome.
        sampling, smoothing: roots R of the two parts R Rᵀ of the coefficients' covariance.
        penalties: the ridge of each penalised term that was kept.
        gains: what each penalised term, kept or not, gains: twice a log likelihood ratio.
        clustered: whether the covariance is clustered by groups.
    """

    schema: Schema
    support: LinearSupport
    reduction: FittedReduction
    treatment: TreatmentBasis
    covariates: ColumnBasis
    terms: tuple[str, ...]
    coefficients: Floats
    sampling: Floats
    smoothing: Floats
    penalties: dict[str, float]
    gains: dict[str, float]
    clustered: bool

    @property
    def interval_kind(self) -> str:
        """What the intervals are."""
        kind = "clustered" if self.clustered else "robust"
        return (
            f"Intervals by the {kind} covariance of the sieve's coefficients, and by the bias of the penalties as far "
            "as the prior they stand for knows it. Terms that were left out are taken for absent."
        )

    def encode(self, covariates: FloatArray) -> Encoded:
        """The columns that the sieve sees; and by row the coefficients of 1 and of each function of the treatment."""
        v = _sieve_columns(self.reduction, covariates)
        return v, *term_sums(self.terms, self.coefficients, self.covariates(v), self.treatment.sizes)

    def at(self, query: Query) -> Floats:
        """The structural function in units of the outcome, `(m, n)`."""
        _, base, slopes = query.rows.encoded_by(self)
        return query.collect(lambda x, rows: base[rows] + np.sum(self.treatment(x) * slopes[rows], axis=1), _MAX_POINTS)

    def factors(self, query: Query) -> tuple[Source, ...]:
        """Which rows were drawn, by the robust covariance; and the bias of smoothing, by its prior."""
        v, *_ = query.rows.encoded_by(self)
        roots = np.hstack([self.sampling, self.smoothing])

        def moved(x: FloatArray, rows: NDArray[np.intp]) -> np.ndarray:
            parts = {kind: part[rows] for kind, part in of_covariates.items()}
            return np.hstack(term_columns(self.terms, self.treatment(x), parts, self.treatment.sizes)) @ roots

        of_covariates = self.covariates(v)
        both, split = np.moveaxis(query.collect(moved, _MAX_POINTS), -1, 0), self.sampling.shape[1]
        sources = (Source("sampling", both[:split], np.inf), Source("smoothing", both[split:], np.inf))
        return tuple(source for source in sources if len(source.factors))

    def band(self, query: Query, level: float = 0.95, seed: int = 0) -> Interval:
        r"""A band that is meant to hold g at all points of a query at once.

        It is $\hat g \pm c\, s$, with s the standard errors and c the quantile of $\max |Z| / s$ over all points, in
        5,000 draws of a normal process Z with the covariance of $\hat g$.
        """
        estimate = Estimate(self.at(query), self.factors(query))
        pointwise = interval_of(estimate, level, in_support=self.in_support(query), name="band")
        both = np.concatenate([source.factors for source in estimate.sources])
        scaled = (both / np.maximum(pointwise.std_error, np.finfo(float).tiny)).reshape(len(both), -1)
        draws = np.random.default_rng(seed).normal(size=(_BAND_DRAWS, len(both)))
        largest = np.concatenate([np.abs(part @ scaled).max(axis=1) for part in np.array_split(draws, 50)])
        half = float(np.quantile(largest, level)) * pointwise.std_error
        return replace(pointwise, lower=estimate.values - half, upper=estimate.values + half)


@dataclass(frozen=True)
class NPIVConfig:
    r"""Penalised sieve IV: $g(x, v) = a + b x + c^\top v + \sum_t \Phi_t(x, v) \beta_t$, the linear part not penalised.

    Each term t is a product of functions of the treatment (the line x; bends, which are smooth functions without their
    line) and of the covariates (their lines; curves of each; products of two; random waves of all, a general surface).
    So $E[\Phi_t(x, v) \mid w, v]$ needs regressions of the few functions of the treatment alone.

    *First stage*: each function of the treatment on w and v, linearly, and on penalised curves, products and waves of
    (w, v). The penalised part of a row's prediction is by the other folds, so that it does not contain the row's own
    error; the linear part is that of two-stage least squares. *Second stage*: ridge regression of the outcome on the
    terms' predictions and on the treatment's residual, which makes interactions more precise and is no assumption on
    how the errors depend on one another (`bgmiv.sieve.stages.Regression`). In both stages terms enter one by one, each
    with a ridge of its own, as long as a marginal likelihood that is robust to errors of unequal variance gains enough
    (`bgmiv.sieve.penalties.choose_penalties`). With no term in either stage the estimate is that of linear two-stage
    least squares, exactly.

    Wide vector blocks and images are reduced to scores first. Sample weights are those of weighted least squares;
    groups stay in one fold and cluster the covariance. `FittedNPIV.band` gives a band for all points at once.

    Args:
        min_gain: what a term must gain to enter, as twice a log likelihood ratio; infinite for the linear fit.
        folds: of the first stage.
        dimension: "penalised" as above; "adaptive" takes B-splines of the treatment and of one instrument without any
            penalty, their number by Chen, Christensen and Kankanala's bootstrap; covariates enter linearly.
        waves: number of random waves.
        reduction: how wide blocks are reduced; None takes every column as it is.
        use_instrument: False ignores the instruments: penalised regression on treatment and covariates.

    Example:
        >>> from bgmiv.effects import predict
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 4000))
        >>> x = w + u
        >>> data = IVData.from_arrays(x**2 + 2.0 * u, x, instruments=w)
        >>> predict(NPIVConfig().fit(data), [0.0, 1.0, 2.0]).round(0) + 0.0
        array([0., 1., 4.])

    References:
        W. K. Newey, J. L. Powell (2003), Instrumental variable estimation of nonparametric models, Econometrica 71(5).
        S. N. Wood (2017), Generalized additive models, 2nd edition, CRC Press.
        X. Chen, T. Christensen, S. Kankanala (2024), Adaptive estimation and uniform confidence bands for nonparametric
        structural functions and elasticities, Review of Economic Studies 92(1).
    """

    min_gain: float = 4.0
    folds: int = 5
    dimension: Literal["penalised", "adaptive"] = "penalised"
    waves: int = 60
    reduction: BlockReduction | None = BlockReduction()
    use_instrument: bool = True

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        if not self.min_gain >= 0.0:
            raise ConfigError(f"min_gain must be 0 or more, got {self.min_gain}.")
        if self.folds < 2 or self.waves < 1:
            raise ConfigError(f"folds must be 2 or more and waves 1 or more, got {self.folds} and {self.waves}.")
        if self.dimension not in ("penalised", "adaptive"):
            raise ConfigError(f"dimension must be 'penalised' or 'adaptive', got {self.dimension!r}.")

    def without_instrument(self) -> NPIVConfig:
        """The same method with its instruments ignored."""
        return replace(self, use_instrument=False)

    def fit(self, data: IVData, key: jax.Array | None = None, reporter: Reporter = silent) -> FittedNPIV:
        """Fit both stages; the key decides the folds and the waves."""
        check_one_number(data, "NPIV")
        if data.weights is not None and not data.weights.all():
            data = data.take(data.weights > 0)
        self._check(data)
        rng = np.random.default_rng(0 if key is None else np.asarray(jax.random.key_data(key)))
        reporter.start("NPIV", 2)
        reduction = self.reduction.fit(data) if self.reduction else FittedReduction(data.schema, {})
        fold = _folds(data, self.folds, rng)
        rows = data.take(np.argsort(fold, kind="stable"))
        stretches = [slice(*np.searchsorted(np.sort(fold), [k, k + 1]).tolist()) for k in range(self.folds)]
        sampling = Sampling(_double(rows.weights), rows.groups, [part for part in stretches if part.stop > part.start])
        y, x = (np.asarray(column, np.float64) for column in (rows.outcome, rows.treatment))
        v, w = _sieve_columns(reduction, rows.covariates), np.asarray(rows.instruments, np.float64)
        shift, scale = float(y.mean()), float(y.std())
        covariates = ColumnBasis.fit(v, rng, waves=self.waves)
        lines = covariates(v)["lines"]

        adaptive = self.dimension == "adaptive"
        levels = max(2, data.schema.treatment.width) if data.schema.treatment.discrete else 0
        segments = choose_dimension(y, x, w[:, 0], lines, rng).segments if adaptive else 9
        treatment = TreatmentBasis.fit(x, levels, 1000 if adaptive else _BENDS, segments=segments)
        functions = treatment(x)
        first = FirstStage.exogenous(functions)
        wide = _MIN_ROWS_A_COLUMN * (2 + v.shape[1] + w.shape[1]) > len(y)
        if self.use_instrument:
            if adaptive:
                instruments = _spline_instruments(w[:, 0], lines, INSTRUMENT_RATIO * segments)
            else:
                instruments = self._instruments(w, v, covariates, wide, rng)
            first = first_stage(instruments, functions, treatment.sizes["lines"], sampling, self.min_gain)
        _check_relevance(first.predicted[:, : treatment.sizes["lines"]], lines, wide)
        reporter.advance(1, {})

        offered = _offered(covariates, treatment, len(v.T))
        terms = (*LINEAR, "curve") if adaptive else (*LINEAR, *(name for name in offered if name not in LINEAR))
        terms = tuple(name for name in terms if name in offered)

        n_linear = len(terms) if adaptive else sum(name in LINEAR for name in terms) - (wide and "covariates" in terms)
        problem = Regression(
            lambda rows: term_columns(terms, first.predicted[rows], covariates(v[rows]), treatment.sizes),
            lambda rows, beta: term_sums(terms, beta, covariates(v[rows]), treatment.sizes)[1],
            (y - shift) / scale,
            first,
            sampling,
        )
        found = second_stage(problem, n_linear, self.min_gain)
        reporter.advance(1, {})
        reporter.finish()
        penalised = terms[n_linear:]
        ridges = dict(zip(penalised, found.penalties.ridges.tolist(), strict=True))
        kept = tuple(name for name in terms if np.isfinite(ridges.get(name, 0.0)))
        coefficients = scale * found.coefficients
        coefficients[0] += shift
        return FittedNPIV(
            schema=data.schema,
            support=LinearSupport.fit(data),
            reduction=reduction,
            treatment=treatment,
            covariates=covariates,
            terms=kept,
            coefficients=coefficients,
            sampling=scale * found.sampling,
            smoothing=scale * found.smoothing,
            penalties={name: ridges[name] for name in kept if name in ridges},
            gains=dict(zip(penalised, found.penalties.gains.tolist(), strict=True)),
            clustered=data.groups is not None,
        )

    def _check(self, data: IVData) -> None:
        n_instruments = data.instruments.shape[1]
        check_instrument(data, "NPIV", use_instrument=self.use_instrument)
        least = _MIN_ROWS_A_COLUMN * (2 + n_instruments)
        if data.n_rows < least:
            raise DataError(f"NPIV with {n_instruments} instruments needs at least {least} rows, got {data.n_rows}.")
        number = data.schema.treatment.kind is BlockKind.continuous
        if self.dimension == "adaptive" and not (number and n_instruments == 1 and self.use_instrument):
            raise DataError(
                "dimension='adaptive' is for a treatment that is a number, with one instrument; use 'penalised'."
            )

    def _instruments(
        self, w: Floats, v: Floats, covariates: ColumnBasis, wide: bool, rng: np.random.Generator
    ) -> BlocksAt:
        """The first stage's regressors; the first block is not penalised."""
        own = ColumnBasis.fit(w, rng, waves=1)
        joint = ColumnBasis.fit(np.hstack([w, v]), rng, waves=self.waves, max_columns=0)
        crossed = w.shape[1] * v.shape[1] <= _MAX_COLUMNS

        def blocks_at(rows: Any) -> list[Floats]:
            of_w, of_v = own(w[rows]), covariates(v[rows])
            linear = [of_w["constant"], of_w["lines"]]
            blocks = [
                np.hstack([of_w["curves"], of_w["products"]]),
                column_products(of_w["lines"], of_v["lines"]) if crossed else np.zeros((len(of_v["lines"]), 0)),
                of_v["curves"],
                of_v["products"],
                joint(np.hstack([w[rows], v[rows]]))["waves"],
            ]
            (blocks if wide else linear).append(of_v["lines"])
            return [np.hstack(linear), *(block for block in blocks if block.shape[1])]

        return blocks_at


PRESETS = {"default": NPIVConfig}


@dataclass(eq=False, repr=False)
class NPIV(IVEstimator):
    """Penalised sieve instrumental variables, with robust intervals; `NPIVConfig` explains the method.

    Args:
        min_gain: what a term must gain to enter, as twice a log likelihood ratio; infinite for the linear fit.
        dimension: "penalised", or "adaptive" for splines of a data-driven number without a penalty.
        folds: of the first stage.
        use_instrument: False ignores the instruments: penalised regression.
        treatment_kind, outcome_kind: as in `IVData.from_arrays`; an outcome may have two levels, not more.
        random_state: the seed of folds and waves; None draws one and keeps it in `seed_`.
        progress: show progress bars on the terminal.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 1000))
        >>> x = w + v + u
        >>> model = NPIV(random_state=0).fit(x * v + u, x, instruments=w, covariates=v)
        >>> model.effect([-1.0, 0.0, 1.0], t0=0.0, t1=1.0).round(0) + 0.0
        array([-1.,  0.,  1.])
    """

    min_gain: float = 4.0
    _: KW_ONLY
    dimension: Literal["penalised", "adaptive"] = "penalised"
    folds: int = 5
    use_instrument: bool = True
    random_state: int | None = None
    progress: bool = False
    treatment_kind: RoleKind = "auto"
    outcome_kind: RoleKind = "auto"

    @classmethod
    def _saved_classes(cls) -> tuple[type, ...]:
        return NPIV, FittedNPIV

    def _config(self) -> NPIVConfig:
        return NPIVConfig(
            min_gain=self.min_gain, folds=self.folds, dimension=self.dimension, use_instrument=self.use_instrument
        )


def _sieve_columns(reduction: FittedReduction, covariates: FloatArray) -> Floats:
    """Reduced covariates without the reference level of each categorical block: a full set adds up to the constant."""
    schema = reduction.schema
    reference = [block.start for block in schema.blocks if block.kind is BlockKind.categorical]
    return np.delete(np.asarray(reduction.transform(covariates), np.float64), reference, axis=1)


def _double(weights: FloatArray | None) -> Floats | None:
    return None if weights is None else np.asarray(weights, np.float64)


def _folds(data: IVData, n_folds: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """The fold of each row; rows of a group are in one."""
    if data.groups is None:
        return rng.permutation(data.n_rows) % n_folds
    return (rng.permutation(int(data.groups.max()) + 1) % n_folds)[data.groups]


def _spline_instruments(w: Floats, lines: Floats, segments: int) -> BlocksAt:
    knots = quantile_knots(w, segments, INSTRUMENT_DEGREE)
    return lambda rows: [np.hstack([b_splines(knots, w[rows], INSTRUMENT_DEGREE), lines[rows]])]


def _offered(covariates: ColumnBasis, treatment: TreatmentBasis, n_covariates: int) -> tuple[str, ...]:
    """The terms that have columns, and not too many."""
    kinds = {kind: part.shape[1] for kind, part in covariates(np.zeros((1, n_covariates))).items()}
    sizes = {name: term.width(treatment.sizes) * kinds[term.kind] for name, term in TERMS.items()}
    if n_covariates > _FEW_COVARIATES:
        sizes["curves by surface"] = 0
    return tuple(name for name, size in sizes.items() if 0 < size <= _MAX_COLUMNS or (size and name in LINEAR))


def _check_relevance(predicted: Floats, lines: Floats, wide: bool) -> None:
    """Refuse instruments that do not move the treatment's lines beyond the covariates."""
    others = np.column_stack([np.ones(len(lines)), lines]) if not wide else np.ones((len(lines), 1))
    left = predicted - others @ np.linalg.lstsq(others, predicted, rcond=None)[0]
    if np.linalg.eigvalsh(left.T @ left / len(left))[0] < _IRRELEVANT:
        raise DataError(
            "the instruments do not identify the treatment: given the covariates they predict nothing of it, or they "
            "are fewer than a categorical treatment's levels. Pass other or more instruments, or drop the covariates "
            "that determine them."
        )
