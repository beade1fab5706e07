"""The two stages of the control function with penalised splines: columns, residuals, and the covariance of both."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri

from bgmiv.baselines.additive import Floats, Integers, Ridge, Smooth, fit_logistic, fit_ridge, spline_columns
from bgmiv.data.messages import FloatArray

__all__ = [
    "CovariateFunctions",
    "FirstStage",
    "FirstStageColumns",
    "SplineCurve",
    "fit_curve",
    "generalised_residual",
    "residual_size",
    "spline_first_stage",
]

_KNOTS_TREATMENT, _KNOTS_RESIDUAL, _KNOTS_INSTRUMENT, _KNOTS_COVARIATE = 40, 10, 10, 7
# Beyond so many covariates they enter as lines; beyond so many, and so many products, without products.
_MAX_SMOOTH, _MAX_PAIRED, _MAX_PRODUCTS = 30, 12, 300
# More instruments than these are penalised.
_MAX_FREE = 10
# How many of the smoothest splines of a variable take part in products.
_N_SMOOTHEST = 4
# Of the mean size of a residual.
_MIN_SIZE = 0.2
_MIN_PROBABILITY = 1e-3


class CovariateFunctions(NamedTuple):
    """Functions of the covariates: lines, splines, and products of two lines.

    Attributes:
        smooths: of each covariate column.
        paired: whether there are products.
    """

    smooths: tuple[Smooth, ...]
    paired: bool

    @classmethod
    def fit(cls, covariates: FloatArray) -> CovariateFunctions:
        """Splines of a few covariates, and lines of many."""
        width = covariates.shape[1]
        n_knots = _KNOTS_COVARIATE if width <= _MAX_SMOOTH else 0
        return cls(tuple(Smooth.fit(column, n_knots) for column in covariates.T), width <= _MAX_PAIRED)

    def parts(self, covariates: FloatArray) -> tuple[Floats, Floats, Floats]:
        """Lines, splines and products, each `(n, k)`."""
        lines, splines = spline_columns(self.smooths, covariates)
        first, second = np.triu_indices(lines.shape[1] if self.paired else 0, 1)
        return lines, splines, lines[:, first] * lines[:, second]


class SplineCurve(NamedTuple):
    r"""$g(x, v) = a + b \cdot V(v) + \{c + D V(v)\} \cdot X(x)$.

    Attributes:
        treatment: X, functions of a number; None for indicators of all levels but the first.
        n_levels: of a treatment with levels, else 0.
        covariates: V, functions of the covariates.
        pairs: `(2, q)`, which entries of X and V are multiplied with one another.
        coefficients: of the constant, V, X and the products, in this order.
        covariance: of the coefficients.
    """

    treatment: Smooth | None
    n_levels: int
    covariates: CovariateFunctions
    pairs: NDArray[np.int64]
    coefficients: Floats
    covariance: Floats

    def functions(self, treatment: FloatArray) -> Floats:
        """X at treatments `(n,)`, `(n, k)`."""
        if self.treatment is not None:
            return self.treatment(treatment)
        return np.asarray(treatment[:, None] == np.arange(1, self.n_levels), np.float64)

    def columns(self, x: Floats, v: Floats) -> Floats:
        """All columns of g, from X and V at the same rows."""
        products = x[:, self.pairs[0]] * v[:, self.pairs[1]]
        return np.hstack([np.ones((len(x), 1)), v, x, products])

    def encode(self, v: Floats) -> tuple[Floats, Floats]:
        """The part of g without the treatment `(n,)`, and the coefficients of X `(n, k)`, at V."""
        n_products = self.pairs.shape[1]
        end = len(self.coefficients) - n_products
        constant, base, slopes = np.split(self.coefficients[:end], [1, 1 + v.shape[1]])
        mixed = np.zeros((v.shape[1], len(slopes)))
        mixed[self.pairs[1], self.pairs[0]] = self.coefficients[end:]
        return constant[0] + v @ base, slopes + v @ mixed


class FirstStage(NamedTuple):
    """The control variables, and how they depend on the estimated first stage.

    Attributes:
        controls: `(n, k)`, one for each column of the treatment.
        loss: mean squared error of the out-of-fold predictions, summed over columns.
        columns: of the regression of each column of the treatment, those that were left out excepted.
        scores: `(n, k)`, errors of prediction.
        curvatures: of each regression: the penalised matrix of second derivatives.
        slopes: `(n, k)`, derivatives of the control variables by the linear index.
    """

    controls: Floats
    loss: float
    columns: tuple[Floats, ...] = ()
    scores: Floats = np.zeros((0, 0))
    curvatures: tuple[Floats, ...] = ()
    slopes: Floats = np.zeros((0, 0))

    def divided(self, size: Floats) -> FirstStage:
        """The same with standardised residuals."""
        slopes = self.slopes / size[:, None] if self.columns else self.slopes
        return self._replace(controls=self.controls / size[:, None], slopes=slopes)


class FirstStageColumns(NamedTuple):
    """A constant, then lines, splines and products of instruments and covariates.

    Attributes:
        values: `(n, p)`.
        labels: `(p,)`, the group of each column.
        n_instrumented: how many columns after the constant depend on the instruments.
    """

    values: Floats
    labels: Integers
    n_instrumented: int

    @classmethod
    def fit(cls, instruments: FloatArray, covariates: FloatArray) -> FirstStageColumns:
        """The columns of a sample."""
        v, v_splines, v_products = CovariateFunctions.fit(covariates).parts(covariates)
        n_knots = _KNOTS_INSTRUMENT if instruments.shape[1] <= _MAX_SMOOTH else 0
        w, w_splines = spline_columns([Smooth.fit(column, n_knots) for column in instruments.T], instruments)
        first, second = np.triu_indices(w.shape[1] if w.shape[1] <= _MAX_PAIRED else 0, 1)
        instrumented = [w, w_splines, w[:, first] * w[:, second], _outer(w, v), _outer(w, v_splines)]
        free = w.shape[1] <= _MAX_FREE
        blocks = [(np.ones((len(w), 1)), False), *((part, i > 0 or not free) for i, part in enumerate(instrumented))]
        values, labels = _labelled([*blocks, *((part, True) for part in (v, v_splines, v_products))])
        return cls(values, labels, sum(part.shape[1] for part in instrumented))


def _outer(a: Floats, b: Floats) -> Floats:
    """All products of a column of one with a column of the other; none if there would be too many."""
    if a.shape[1] * b.shape[1] > _MAX_PRODUCTS:
        return np.zeros((len(a), 0))
    return (a[:, :, None] * b[:, None, :]).reshape(len(a), -1)


def _labelled(blocks: list[tuple[Floats, bool]]) -> tuple[Floats, Integers]:
    labels: list[int] = []
    for block, penalised in blocks:
        labels += [max([-1, *labels]) + 1 if penalised else -1] * block.shape[1]
    return np.hstack([block for block, _ in blocks]), np.asarray(labels, np.intp)


def generalised_residual(treatment: Floats, probability: Floats) -> Floats:
    r"""$E[u | x, w, v]$ for $x = 1\{q + u > 0\}$, $u$ standard normal, where $\Phi(q)$ is the probability of 1."""
    p = np.clip(probability, _MIN_PROBABILITY, 1.0 - _MIN_PROBABILITY)
    density = np.exp(-0.5 * ndtri(p) ** 2) / np.sqrt(2.0 * np.pi)
    return np.asarray((treatment - p) * density / (p * (1.0 - p)), np.float64)


def spline_first_stage(
    known: FirstStageColumns, treatments: Floats, folds: Integers, weights: Floats, *, discrete: bool
) -> FirstStage:
    """Residuals of the treatment's columns `(n, k)`: those of a mean, or generalised ones of probabilities."""
    columns = known.values
    # What the instruments are estimated to do besides what they do makes residuals noisy, and the effect biased.
    doubtful = set(known.labels[1 : 1 + known.n_instrumented].tolist()) - {-1} if known.labels[1] < 0 else set()
    fits: list[Ridge] = [fit_ridge(columns, target, known.labels, folds, weights, doubtful) for target in treatments.T]
    controls, slopes, curvatures, kept = [], [], [], []
    for i, target in enumerate(treatments.T):
        rows = weights
        if discrete:
            fits[i] = fit_logistic(columns, target, fits[i], folds, weights)
            p = fits[i].out_of_fold
            controls.append(generalised_residual(target, p))
            step = 1e-4
            ends = [generalised_residual(target, expit(logit(p) + shift)) for shift in (-step, step)]
            slopes.append((ends[1] - ends[0]) / (2.0 * step))
            rows = weights * p * (1.0 - p)
        else:
            controls.append(target - fits[i].out_of_fold)
            slopes.append(-np.ones(len(target)))
        there = np.isfinite(fits[i].penalties)
        kept.append(columns[:, there])
        curvatures.append((kept[-1] * rows[:, None]).T @ kept[-1] + np.diag(fits[i].penalties[there]))
    scores = np.column_stack([target - fit.out_of_fold for target, fit in zip(treatments.T, fits, strict=True)])
    loss = sum(fit.loss for fit in fits)
    return FirstStage(np.column_stack(controls), loss, tuple(kept), scores, tuple(curvatures), np.column_stack(slopes))


def residual_size(columns: FirstStageColumns, residual: Floats, folds: Integers, weights: Floats) -> Floats | None:
    """How the size of residuals depends on the instruments: its factor at each row, or None where it does not.

    What depends on the covariates alone is left as it is: all is meant given the covariates.
    """
    size = np.abs(residual)
    mean = np.average(size, weights=weights)
    # Here lines of the instruments have a penalty too, and every group has to be seen in the data.
    own = columns.labels + int((columns.labels[1:] < 0).any())
    own[0] = -1
    fit = fit_ridge(columns.values, size / mean - 1.0, own, folds, weights, range(own.max() + 1))
    end = 1 + columns.n_instrumented
    if not fit.coefficients[1:end].any():
        return None
    whole = np.maximum(1.0 + columns.values @ fit.coefficients, _MIN_SIZE)
    rest = 1.0 + fit.coefficients[0] + columns.values[:, end:] @ fit.coefficients[end:]
    return np.clip(whole / np.maximum(rest, _MIN_SIZE), _MIN_SIZE, 1.0 / _MIN_SIZE)


def fit_curve(
    treatment: FloatArray,
    covariates: FloatArray,
    outcome: Floats,
    first: FirstStage | None,
    folds: Integers,
    weights: Floats,
    groups: NDArray[np.int64] | None,
    n_levels: int,
) -> tuple[SplineCurve, float]:
    """The curve of the second stage, and its mean squared error on left-out folds.

    Functions of the control variables have mean zero over the rows, so that their products with functions of the
    treatment and the covariates vanish in the average over the control variables: g is what is left.
    """
    smooth = None if n_levels else Smooth.fit(treatment, _KNOTS_TREATMENT)
    own = CovariateFunctions.fit(covariates)
    parts = own.parts(covariates)
    n_lines, n_splines = parts[0].shape[1], parts[1].shape[1]
    n_functions = n_levels - 1 if n_levels else 1 + (smooth.size if smooth else 0)
    n_linear = n_functions if n_levels else 1
    n_bent = min(n_functions, n_linear + _N_SMOOTHEST)
    grids = [
        (np.arange(n_linear), np.arange(n_lines)),
        (np.arange(n_linear), np.arange(n_lines, n_lines + n_splines)),
        (np.arange(n_linear, n_bent), np.arange(n_lines)),
    ]
    made = [np.stack([part.ravel() for part in np.meshgrid(a, b, indexing="ij")]).astype(np.int64) for a, b in grids]
    curve = SplineCurve(smooth, n_levels, own, np.hstack(made), np.zeros(0), np.zeros((0, 0)))
    x, v = curve.functions(treatment), np.hstack(parts)

    def blocks(controls: Floats | None) -> list[tuple[Floats, bool]]:
        found = [(np.ones((len(x), 1)), False), *((part, True) for part in parts)]
        found += [(x[:, :n_linear], False), (x[:, n_linear:], True)]
        found += [(x[:, a] * v[:, b], True) for a, b in made]
        if controls is not None:
            lines, splines = spline_columns(smooths, controls)
            lines, splines = lines - centres[0], splines - centres[1]
            bent = [_outer(lines, x[:, n_linear:n_bent]), _outer(splines[:, :_N_SMOOTHEST], x[:, :n_linear])]
            found += [(lines, False), (splines, True), (_outer(lines, x[:, :n_linear]), True)]
            found += [(np.hstack(bent), True), (_outer(lines, parts[0]), True)]
        return found

    controls, smooths, centres = None, [], (np.zeros(0), np.zeros(0))
    if first is not None:
        controls = first.controls
        # Generalised residuals enter as lines: their mean given the treatment is what confounds.
        smooths = [Smooth.fit(column, 0 if n_levels else _KNOTS_RESIDUAL) for column in controls.T]
        lines, splines = spline_columns(smooths, controls)
        centres = np.average(lines, axis=0, weights=weights), np.average(splines, axis=0, weights=weights)
    columns, labels = _labelled(blocks(controls))
    n_structural = 1 + v.shape[1] + x.shape[1] + curve.pairs.shape[1]
    # Where the instruments are weak, treatment and residual are nearly the same, and a prediction is as good with the
    # bends of one as with those of the other. Those of the residual have to be seen in the data.
    doubtful = set(labels[n_structural:].tolist()) - {-1}
    fit = fit_ridge(columns, outcome, labels, folds, weights, doubtful)
    kept = np.isfinite(fit.penalties)
    z = columns[:, kept]
    error = outcome - columns @ fit.coefficients
    gram = (z * weights[:, None]).T @ z
    inverse = np.linalg.inv(gram + np.diag(fit.penalties[kept]))
    influence = z * (weights * error)[:, None]
    for k in range(0 if first is None or not first.columns else first.controls.shape[1]):
        assert first is not None
        # The residuals are estimated: how the coefficients move with the coefficients of the first stage.
        step = 1e-4 * first.controls[:, k].std()
        moved = first.controls.copy()
        moved[:, k] += step
        slope = (_labelled(blocks(moved))[0] - columns) @ fit.coefficients / step
        cross = (z * (weights * slope * first.slopes[:, k])[:, None]).T @ first.columns[k]
        own_scores = first.columns[k] * (weights * first.scores[:, k])[:, None]
        influence -= own_scores @ np.linalg.solve(first.curvatures[k], cross.T)
    covariance = _covariance(influence @ inverse, np.trace(gram @ inverse), groups)
    full = np.zeros((len(kept), len(kept)))
    full[np.ix_(kept, kept)] = covariance
    return (
        curve._replace(
            coefficients=fit.coefficients[:n_structural], covariance=full[:n_structural, :n_structural].copy()
        ),
        fit.loss,
    )


def _covariance(influence: Floats, dof: float, groups: NDArray[np.int64] | None) -> Floats:
    """The robust or clustered covariance, for so many degrees of freedom used."""
    n = len(influence)
    units = influence
    if groups is not None:
        units = np.zeros((int(groups.max()) + 1, influence.shape[1]))
        np.add.at(units, groups, influence)
    return units.T @ units * (n / max(n - dof, 1.0))
