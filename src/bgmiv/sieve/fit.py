"""How a sieve's structural function is fitted: bases, first stage, second stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bgmiv.arrays import TINY, Floats
from bgmiv.covariance import errors_of
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import warn_user
from bgmiv.data.within import LevelEffects
from bgmiv.errors import ConfigError, FitWarning, NotIdentifiedError
from bgmiv.intervals import STRENGTH
from bgmiv.progress import Reporter, silent, task
from bgmiv.sieve.bases import FOURIER_FEATURES, LINEAR, NONLINEAR, SieveFunction, term_sums
from bgmiv.sieve.control import Observed, control_curves, standardised
from bgmiv.sieve.design_matrix import MIN_ROWS_A_COLUMN, Columns, instrument_blocks
from bgmiv.sieve.first_stage import FirstStage
from bgmiv.sieve.penalties import Prior
from bgmiv.sieve.sampling import BlocksAt
from bgmiv.sieve.second_stage import FunctionSizes, Regression, SecondStage, second_stage

__all__ = [
    "Learned", "SieveConfig", "SieveFit", "fit_sieve", "min_rows", "sieve_function",
    "warn_of_shrunk",
]  # fmt: skip


_SPLINES = 6
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
# That confounding is not linear in the control variables.
_NOT_LINEAR = 0.5


@dataclass(frozen=True)
class SieveConfig:
    """Which terms enter.

    Args:
        min_gain: what a term must gain to enter, as twice a log likelihood ratio; infinite for the linear fit.
        fourier_features: number of random Fourier features of the covariates.
    """

    min_gain: float = 4.0
    fourier_features: int = FOURIER_FEATURES

    def __post_init__(self) -> None:
        """Refuse settings without a meaning."""
        if not self.min_gain >= 0.0:
            raise ConfigError(f"min_gain must be 0 or more, got {self.min_gain}.")
        if self.fourier_features < 1:
            raise ConfigError(f"fourier_features must be 1 or more, got {self.fourier_features}.")


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

    def take(self, rows: Any) -> Learned:
        """Some rows, or all in another order."""
        return Learned(*(part[rows].astype(np.float64) for part in self))


class SieveFit(NamedTuple):
    """A fitted function, and what it says of the rows it was fitted on.

    Attributes:
        function: the structural function.
        left_out: `(n,)` E[y | w, v] of each row by coefficients of the other folds.
        residuals: `(n, k)` what the first stage leaves of the treatment's linear terms.
        n_shrunk: how many covariate columns are penalised because they are too many for the rows.
    """

    function: SieveFunction
    left_out: Floats
    residuals: Floats
    n_shrunk: int

    def left_out_errors(self, data: IVData) -> Floats:
        """Errors of left-out predictions given, as in the regression itself, the first stage's residuals too."""
        root = np.sqrt(data.full_weights)[:, None]
        controls, errors = np.column_stack([np.ones(data.n_rows), self.residuals]), data.outcome - self.left_out
        fitted = controls @ np.linalg.lstsq(controls * root, errors * root[:, 0], rcond=None)[0]
        return errors - fitted


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
    config: SieveConfig,
    data: IVData,
    *,
    use_instrument: bool = True,
    learned: Learned | None = None,
    reporter: Reporter = silent,
) -> SieveFit:
    r"""Fit $g(x, v) = a + b x + c^\top v + \sum_t \Phi_t(x, v) \beta_t$, or $a + b x + c^\top v + d\, f(x, v)$.

    Args:
        config: which terms enter.
        data: one number or level as outcome, wide blocks reduced; all rows have a positive weight.
        use_instrument: False for a penalised regression on treatment and covariates.
        learned: f, which then takes the place of all terms but the linear ones, and of the first stage.
        reporter: told of both stages.
    """
    rng = np.random.default_rng(_SEED)
    splines = _SPLINES if learned is None else 0
    columns = Columns.of(data, rng, fourier_features=config.fourier_features, splines=splines)
    if learned is not None:
        return _fit_learned(config, columns, learned.take(columns.order), use_instrument)
    min_gain = config.min_gain * columns.correction
    functions, n_linear = columns.treatment(columns.x), columns.treatment.n_linear
    first, strength = FirstStage.exogenous(functions), None
    if use_instrument:
        with task(reporter, "first stage, 1 of 2"):
            regressors = instrument_blocks(columns, rng, fourier_features=config.fourier_features)
            first = columns.first_stage(regressors(columns.w), functions, min_gain)
            predicted = first.predicted[:, :n_linear]
            columns = _with_expected_treatment(columns, predicted, min_gain)
            own = predicted - _by_covariates(columns, regressors, first.coefficients[:, :n_linear], rng)
            # The linear part of the prediction has seen the row itself.
            strength = _first_stage_f(columns, own, functions) / columns.w.shape[1]
    _check_relevance(columns, first.predicted[:, :n_linear])
    with task(reporter, "second stage, 2 of 2" if use_instrument else "regression"):
        terms, n_unpenalised = columns.terms(min_gain)
        known = FunctionSizes(
            _variances(columns, functions, terms[n_unpenalised:]),
            _averaged_terms(columns, functions, terms[n_unpenalised:]),
            _observed(columns, functions, first, terms) if use_instrument else None,
        )
        problem = _regression(columns, first, terms, n_linear if use_instrument else 0)
        second = second_stage(problem, n_unpenalised, min_gain, known)
        function = sieve_function(columns, terms, second, strength=strength)
    return _in_order(columns, function, first, second)


def _fit_learned(config: SieveConfig, columns: Columns, learned: Learned, use_instrument: bool) -> SieveFit:
    """The fit of a learned function beside linear terms."""
    within, treatment, functions = columns.within, columns.treatment, columns.treatment(columns.x)
    first, strength = FirstStage.exogenous(functions), None
    if use_instrument:
        predicted = (learned.treatment - treatment.shift) / treatment.scale
        first = first._replace(predicted=predicted, residuals=within.residual(functions - predicted))
        strength = _first_stage_f(columns, predicted, functions)
    _check_relevance(columns, first.predicted)
    offered, n_unpenalised = columns.terms(config.min_gain)
    terms = tuple(name for name in offered if name in LINEAR)
    problem = _regression(columns, first, terms, treatment.n_linear if use_instrument else 0)
    own, averaged = (
        within.residual((part - learned.own.mean()) / columns.scale) for part in (learned.own, learned.averaged)
    )
    beside = problem._replace(
        predicted_at=lambda rows: [own[rows, None], *problem.predicted_at(rows)],
        slopes_at=lambda rows, beta: problem.slopes_at(rows, beta[1:]),
        noisy=averaged,
    )
    known = FunctionSizes(_variances(columns, functions, terms[n_unpenalised:]), {}, None)
    second = second_stage(beside, n_unpenalised + 1, config.min_gain * columns.correction, known)
    return _in_order(columns, sieve_function(columns, terms, second, learned, strength=strength), first, second)


def _in_order(columns: Columns, function: SieveFunction, first: FirstStage, second: SecondStage) -> SieveFit:
    """What the fit says of the rows, in the order in which they were given."""
    place = np.argsort(columns.order)
    left_out = columns.centre + columns.scale * second.left_out
    residuals = first.residuals[place, : columns.treatment.n_linear]
    return SieveFit(function, left_out[place], residuals, columns.n_shrunk)


def _by_covariates(
    columns: Columns, regressors: Callable[[Floats], BlocksAt], coefficients: Floats, rng: np.random.Generator
) -> Floats:
    """What the first stage predicts with the instruments of other rows, on average: the covariates' own part."""
    predicted = np.zeros((len(columns.y), coefficients.shape[1]))
    for _ in range(_N_SHUFFLED):
        blocks_at = regressors(columns.w[rng.permutation(len(columns.w))])
        for rows in columns.sampling.pieces():
            predicted[rows] += np.hstack(blocks_at(rows)) @ coefficients / _N_SHUFFLED
    return predicted


def _first_stage_f(columns: Columns, predicted: Floats, functions: Floats) -> float:
    """The robust F of the treatment's prediction as its only instrument, given the covariates; of several the least."""
    parts, root = columns.covariates_at(slice(None)), columns.sampling.root(slice(None))
    kinds = ("constant",) if columns.wide else ("constant", "linear", "expected")
    known = columns.within.residual(np.hstack([parts[kind] for kind in kinds])) * root
    both = columns.within.residual(np.hstack([predicted, functions[:, : predicted.shape[1]]])) * root
    both = both - known @ np.linalg.lstsq(known, both, rcond=1e-10)[0]
    statistics = []
    for z, x in zip(*np.split(both.T, 2), strict=True):
        # A prediction that goes the wrong way in rows that it has not seen is none.
        slope = max(z @ x / max(z @ z, TINY), 0.0)
        scores = z * (x - z * slope)
        sums = scores if columns.data.groups is None else np.bincount(columns.data.groups, scores)
        statistics.append((slope * (z @ z)) ** 2 / max(sums @ sums, TINY))
    return float(min(statistics))


def _with_expected_treatment(columns: Columns, predicted: Floats, min_gain: float) -> Columns:
    """The columns with what the covariates say of the predicted treatment beyond a line, as a function of its own.

    The instruments may be related to covariates, or the treatment to them, in ways that are not linear. With that part
    of the prediction among the regressors, only what the instruments add to the covariates identifies the effect, not
    the shape in which covariates move the treatment.
    """
    if columns.wide or not columns.v.shape[1]:
        return columns
    varying = columns.varying

    def blocks_at(rows: Any) -> list[Floats]:
        parts = columns.covariates_at(rows)
        linear = np.hstack([parts["constant"][:, : 0 if columns.within else 1], parts["linear"][:, varying]])
        return [linear, *(parts[kind] for kind in NONLINEAR if parts[kind].shape[1])]

    coefficients = columns.first_stage(blocks_at, predicted, min_gain).coefficients
    beyond = coefficients[blocks_at(slice(0, 1))[0].shape[1] :]
    beyond = beyond[:, np.any(beyond != 0.0, axis=0)]
    covariates, kept = columns.covariates._replace(expected=beyond), columns.kept
    if kept is not None:
        kept = kept | {"expected": covariates.expected_of(kept)}
    return columns._replace(covariates=covariates, kept=kept)


def _regression(columns: Columns, first: FirstStage, terms: Sequence[str], n_controls: int) -> Regression:
    """The second stage on a standardised outcome, with so many of the first stage's residuals."""

    def slopes_at(rows: Any, beta: Floats) -> Floats:
        return term_sums(terms, beta, columns.covariates_at(rows), columns.treatment.sizes)[1]

    predicted_at = columns.within.net(columns.blocks(terms, first.predicted))
    return Regression(predicted_at, slopes_at, columns.outcome, first, columns.sampling, n_controls)


def _observed(columns: Columns, functions: Floats, first: FirstStage, terms: Sequence[str]) -> Observed:
    """The regression on the observed treatment.

    Control variables are the first stage's residuals of the treatment's linear terms; the outcome's error may depend on
    splines of them, and on their products with covariates.
    """
    within, n, v = columns.within, columns.treatment.n_linear, columns.linear
    linear = standardised(first.residuals[:, :n], first.predicted[:, :n], v)
    both = control_curves(linear, v[:, columns.covariates.moderators], curved=columns.treatment.spline is not None)
    parts = [np.full(part.shape[1], 1.0 / np.sum(np.var(part, axis=0))) for part in both if part.size]
    shape = Prior(np.concatenate([np.zeros(0), *parts]), _NOT_LINEAR)
    curves = within.residual(np.hstack(both))
    return Observed(within.net(columns.blocks(terms, functions)), within.residual(linear), curves, shape)


def _variances(columns: Columns, functions: Floats, penalised: Sequence[str]) -> Floats:
    """The variance of each term's function for coefficients of variance 1, from some rows."""
    some = np.linspace(0, len(functions) - 1, min(len(functions), _MAX_VARIANCE_ROWS)).astype(np.intp)
    return np.array([np.sum(np.mean(block**2, axis=0)) for block in columns.blocks(penalised, functions)(some)])


def _averaged_terms(columns: Columns, functions: Floats, penalised: Sequence[str]) -> dict[int, list[Prior]]:
    """The terms whose prior variances are averaged over, by position, and the shapes of their priors.

    A curve is most likely a smooth one, mostly of the smoothest function: the prior standard deviation of a function
    falls with its roughness to the power 5/2. Or it is as rough as the penalty on its second derivative allows, where
    the power is 1/2. Or it is so but for the smoothest function, which has little of it: curves that level off at both
    ends, or rise at both.
    """
    n_linear = columns.treatment.n_linear
    averaged = {}
    if "curve" in penalised:
        # Functions are scaled so that their variances are the inverse of their roughness.
        variances = np.var(functions[:, n_linear:], axis=0)
        shares = [variances**3, variances, variances]
        if len(variances) > 1:
            others = np.sqrt(variances[1:]) / np.sqrt(variances[1:]).sum()
            shares[2] = np.append(1.0 - _S_SHAPED, _S_SHAPED * others)
        spline = columns.treatment.spline
        probabilities = _CURVES if spline is None or spline.degree > 1 else _STEPS
        averaged[penalised.index("curve")] = [
            Prior(share / share.sum() / variances, probability, smooth=share is shares[0])
            for share, probability in zip(shares, probabilities, strict=True)
        ]
    if "slopes by covariate" in penalised:
        k = n_linear * len(columns.covariates.moderators)
        averaged[penalised.index("slopes by covariate")] = [Prior(np.full(k, 1.0 / k), _SLOPES)]
    return averaged


def sieve_function(
    columns: Columns,
    terms: Sequence[str],
    second: SecondStage,
    learned: Learned | None = None,
    *,
    others: Floats | float = 0.0,
    strength: float | None = None,
) -> SieveFunction:
    """The function in units of the outcome, without the terms that neither the estimate nor its intervals have.

    Where indicators are absorbed, its covariance allows for their number.

    Args:
        columns: of the fit.
        terms: the columns of the second stage, after that of the learned function.
        second: the coefficients.
        learned: this function, if there is one.
        others: a part of the outcome `(n,)`, in its units, that is none of the structural function.
        strength: of the first stage.
    """
    within, functions = columns.within, columns.treatment(columns.x)

    def scaled(values: Floats) -> Floats:
        """In units of the outcome; the weight of the learned function comes first, 0 without one, then the terms."""
        if learned is None:
            return np.concatenate([np.zeros_like(values[:1]), columns.scale * values])
        full = np.concatenate([values[:1], columns.scale * values[1:]])
        if not within:
            full[1] -= full[0] * learned.own.mean()
        return full

    mean = scaled(second.coefficients)
    if not within:
        mean[1] += columns.centre
    roots = {name: np.sqrt(columns.correction) * scaled(root) for name, root in second.roots.items()}
    # By one unit of the slope in units of the data, not by one of standardised variables.
    roots[STRENGTH] = roots[STRENGTH] * (columns.treatment.scale[0] / columns.scale)
    widths = [block.shape[1] for block in columns.blocks(terms, functions)(slice(0, 1))]
    matters = np.abs(mean) + sum(np.abs(root).sum(axis=1) for root in roots.values()) > 0.0
    shown = [bool(part.any()) for part in np.split(matters, np.cumsum([1, *widths]))[1:-1]]
    rows = np.append(True, np.repeat(shown, widths))
    kept = [name for name, show in zip(terms, shown, strict=True) if show]
    penalised = terms[len(terms) - len(second.ridges) :]
    ridges = dict(zip(penalised, second.ridges.tolist(), strict=True))
    effects = LevelEffects((), (), np.zeros(0), np.zeros((0, rows.sum())), np.zeros(0))
    if within:
        # At the treatments that were observed.
        kept_at = columns.blocks(kept, functions)
        f = np.zeros(len(columns.y)) if learned is None else learned.averaged
        left = len(columns.y) - within.dof(columns.data.groups) - int(np.count_nonzero(mean[rows]))
        effects = LevelEffects.fit(
            within, columns.y - others, lambda some: [f[some, None], *kept_at(some)], mean[rows], left
        )
    return SieveFunction(
        treatment=columns.treatment,
        covariates=columns.covariates,
        terms=tuple(kept),
        coefficients=mean[rows][1:],
        weight=float(mean[0]),
        roots={name: root[rows] for name, root in roots.items()},
        penalties={name: ridge for name, ridge in ridges.items() if np.isfinite(ridge)},
        probabilities={penalised[i]: probability for i, probability in second.probabilities.items()},
        effects=effects,
        dof=errors_of(columns.data).dof(),
        first_stage_f=strength,
    )


def _check_relevance(columns: Columns, predicted: Floats) -> None:
    """Refuse instruments that do not move the treatment's linear terms beyond the covariates."""
    predicted, linear = columns.within.residual(predicted), columns.within.residual(columns.linear)
    ones = np.ones((len(linear), 1))
    others = ones if columns.wide else np.hstack([ones, linear])
    left = predicted - others @ np.linalg.lstsq(others, predicted, rcond=None)[0]
    if np.linalg.eigvalsh(left.T @ left / len(left))[0] < _IRRELEVANT:
        raise NotIdentifiedError(
            "the instruments do not identify the treatment: given the covariates they predict nothing of it, or they "
            "are fewer than a categorical treatment's levels. Pass other or more instruments, or drop the covariates "
            "that determine them."
        )
