"""Functions of columns: splines, products, random Fourier features; and structural functions made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.interpolate import BSpline, CubicSpline

from bgmiv.arrays import Floats, Integers, means_and_spreads
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query
from bgmiv.data.schema import Schema
from bgmiv.data.within import LevelEffects, ordinary_covariates
from bgmiv.intervals import STRENGTH, Source, Sources

__all__ = [
    "FOURIER_FEATURES", "LINEAR", "NONLINEAR", "TERMS", "UNPENALISED", "ColumnBasis", "SieveFunction", "Spline",
    "Term", "TreatmentBasis", "column_products", "term_columns", "term_sums",
]  # fmt: skip


FOURIER_FEATURES = 60
"""How many random Fourier features there are, unless a configuration says otherwise."""

_DEGREE = 3
# Rows by which a basis is set up; evenly spread ones stand for more.
_MAX_ROWS = 5000
# A variable with no more distinct values than these has ordered levels, not a continuum.
_FEW_VALUES = 8
_NEGLIGIBLE = 1e-9
# A column of two values, the rarer in fewer rows, has a linear term and nothing else.
_MIN_ROWS_APART = 10
# Spline functions of a column: fewer, the more columns there are.
_MIN_SPLINES, _MAX_SPLINES, _SPLINES_IN_ALL = 4, 8, 40
# Interactions of splines and linear terms are offered up to this many.
_MAX_INTERACTIONS = 120
_QUADRATURE = 400
_MAX_POINTS = 20_000
# The probability of curves or varying slopes above which they are not ruled out.
_DOUBT = 0.05


class Spline(NamedTuple):
    r"""Smooth functions of one variable, without constant and line, the smoothest first.

    They span the cubic splines with given knots, are uncorrelated with one another and with 1 and x over the rows of
    the fit, and each is as large as it is smooth: $\sum_k \beta_k^2$ is proportional to $\int f''(x)^2 dx$. Beyond the
    outer knots they are constant.

    A variable of three to eight distinct values has a knot at each, and functions that are straight between them: any
    function of K ordered levels, in K - 2 functions beside constant and line. Their roughness is that of the natural
    cubic spline through the levels, so that uneven steps count as what they are.

    Attributes:
        knots: with the outer ones repeated, four times for cubic pieces and twice for straight ones.
        line: `(2, k)` the coefficients of 1 and x in each B-spline.
        rotation: `(k, m)` from B-splines to functions.
    """

    knots: Floats
    line: Floats
    rotation: Floats

    @classmethod
    def fit(cls, values: Floats, size: int, *, segments: int = 9) -> Spline:
        """The `size` smoothest functions, at most as many as there are.

        Args:
            values: `(n,)` of the variable, three distinct ones or more.
            size: number of functions.
            segments: number of pieces, each with as many values; those between few distinct values are as they are.

        Example:
            >>> x = np.linspace(-1.0, 1.0, 200)
            >>> functions = Spline.fit(x, 4)(x)
            >>> functions.shape, bool(np.abs(functions.T @ np.column_stack([x**0, x])).max() < 1e-8)
            ((200, 4), True)
            >>> Spline.fit(np.arange(200) % 5, 4)(np.array([0.0, 0.5, 1.0])).shape
            (3, 3)
        """
        values = np.asarray(values, np.float64)
        points, counts = np.unique(values, return_counts=True)
        if len(points) <= _FEW_VALUES:
            knots, degree = np.concatenate([points[:1], points, points[-1:]]), 1
            roughness = _levels_roughness(points)
        else:
            few = min(len(values), _MAX_ROWS)
            points = values[np.linspace(0, len(values) - 1, few).round().astype(np.intp)]
            counts, degree = np.ones(len(points), np.int64), _DEGREE
            inner = np.unique(np.quantile(points, np.linspace(0.0, 1.0, segments + 1)))
            knots = np.concatenate([[inner[0]] * degree, inner, [inner[-1]] * degree])
            grid, step = np.linspace(knots[0], knots[-1], _QUADRATURE, retstep=True)
            second = BSpline(knots, np.eye(len(knots) - degree - 1), degree).derivative(2)(grid)
            roughness = second.T @ second * step
        share = np.sqrt(counts / counts.sum())[:, None]
        with_constant = np.column_stack([np.ones(len(points)), points])
        columns = BSpline.design_matrix(points, knots, degree).toarray()
        line = np.linalg.lstsq(with_constant * share, columns * share, rcond=None)[0]
        rest = (columns - with_constant @ line) * share
        variances, axes = np.linalg.eigh(rest.T @ rest)
        there = variances > _NEGLIGIBLE * variances[-1]
        axes = axes[:, there] / np.sqrt(variances[there])
        values, turn = np.linalg.eigh(axes.T @ roughness @ axes)
        rotation = (axes @ turn / np.sqrt(np.maximum(values, _NEGLIGIBLE * values[-1])))[:, :size]
        rotation = rotation / np.sqrt(np.sum((rest @ rotation) ** 2))
        # Either sign is an eigenvector: that which rises at the right end.
        signs = np.sign(rest[np.argmax(points)] @ rotation)
        return cls(knots, line, rotation * np.where(signs == 0.0, 1.0, signs))

    def __call__(self, values: Floats) -> Floats:
        """The functions at `(n,)` values, `(n, m)`."""
        inside = np.clip(values, self.knots[0], self.knots[-1])
        line = np.column_stack([np.ones(len(inside)), inside]) @ self.line
        columns = BSpline.design_matrix(inside, self.knots, self.degree).toarray()
        return (columns - line) @ self.rotation

    @property
    def degree(self) -> int:
        """Three, or one over the ordered levels of a variable with few values."""
        return int(np.sum(self.knots == self.knots[0])) - 1


def _levels_roughness(points: Floats) -> Floats:
    r"""The matrix K of $\int f''(x)^2 dx = f^\top K f$, for the natural cubic spline with values f at some points."""
    second = CubicSpline(points, np.eye(len(points)), bc_type="natural")(points, 2)
    middle, steps = (second[1:] + second[:-1]) / 2.0, np.diff(points)[:, None]
    # Simpson's rule, which is exact: second derivatives are straight lines between the points.
    ends = second[1:].T @ (steps * second[1:]) + second[:-1].T @ (steps * second[:-1])
    return (ends + 4.0 * middle.T @ (steps * middle)) / 6.0


NONLINEAR = ("splines", "products", "fourier features")
"""The kinds of functions of covariates that tell what they say of the treatment beyond a linear model."""


class ColumnBasis(NamedTuple):
    r"""Functions of a few columns: linear terms, splines of each, products of two, random Fourier features of all.

    Columns that are linear combinations of the constant and of columns before them are left out, so that it does not
    matter whether one is given twice. Columns are turned so that their long tail is to the right, so that it does not
    matter which level of two is called 0. A column that tells fewer than ten rows from the others has a linear term and
    nothing else: standardised it is enormous in these rows, and products would be about them.

    Attributes:
        used: the positions of the columns that are not left out, `(p,)`.
        shift, scale: by which these are standardised, `(p,)`; the scale is negative for one that is turned.
        moderators: which of them, `(q,)`, take part in all functions but the linear terms.
        splines: by moderator, for those with more than two distinct values.
        pairs: `(k, 2)` moderators that are multiplied; a square for those with more than two values.
        directions, phases: of the functions $\sqrt{2/r} \cos(\omega_k^\top z + \phi_k)$, random Fourier features of
            the Gaussian kernel whose length scale is the usual distance of two rows; `(q, r)` and `(r,)`.
        expected: `(k, m)` coefficients of the `NONLINEAR` functions in what they say of the predicted treatment; empty
            where that is nothing.
    """

    used: Integers
    shift: Floats
    scale: Floats
    moderators: Integers
    splines: tuple[tuple[int, Spline], ...]
    pairs: Integers
    directions: Floats
    phases: Floats
    expected: Floats

    @classmethod
    def fit(
        cls,
        columns: Floats,
        rng: np.random.Generator,
        *,
        fourier_features: int = FOURIER_FEATURES,
        max_columns: int = 120,
    ) -> ColumnBasis:
        """The basis of columns `(n, p)`; of splines and of products there are none rather than more than `max_columns`.

        Example:
            >>> rng = np.random.default_rng(0)
            >>> values = rng.normal(size=(100, 2))
            >>> basis = ColumnBasis.fit(values, rng)
            >>> {name: part.shape[1] for name, part in basis(values).items()}
            {'constant': 1, 'linear': 2, 'moderators': 2, 'splines': 16, 'spline interactions': 16, 'products': 3,
             'fourier features': 60, 'expected': 0}
        """
        shift, scale = means_and_spreads(columns)
        z = (columns - shift) / scale
        used = _independent(z)
        z, scale = z[:, used], scale[used] * _orientation(z[:, used])
        z = z * np.sign(scale)
        counts = [len(np.unique(column)) for column in z.T]
        moderators = [j for j, count in enumerate(counts) if count > 2 or _n_apart(z[:, j]) >= _MIN_ROWS_APART]
        z, distinct = z[:, moderators], np.array([counts[j] for j in moderators], np.int64)
        p = len(moderators)
        size = min(_MAX_SPLINES, max(_MIN_SPLINES, _SPLINES_IN_ALL // max(p, 1)))
        # Where all are too many, those of ordered levels give way first.
        for least in (2, _FEW_VALUES, np.inf):
            smooth = np.flatnonzero(distinct > least)
            if np.minimum(size, distinct[smooth] - 2).sum() <= max_columns:
                break
        pairs = [(i, j) for i in range(p) for j in range(i + 1) if i != j or distinct[j] > 2]
        pairs = pairs if len(pairs) <= max_columns else []
        n_features = fourier_features if p else 0
        return cls(
            used=used,
            shift=shift[used],
            scale=scale,
            moderators=np.array(moderators, np.int64),
            splines=tuple((int(j), Spline.fit(z[:, j], size, segments=7)) for j in smooth),
            pairs=np.array(pairs, np.int64).reshape(-1, 2),
            directions=rng.normal(size=(p, n_features)) / np.sqrt(max(p, 1)),
            phases=rng.uniform(0.0, 2.0 * np.pi, n_features),
            expected=np.zeros((0, 0)),
        )

    def linear(self, columns: Floats) -> Floats:
        """The columns of rows `(n, p)`, standardised and without redundant ones."""
        return (columns[:, self.used] - self.shift) / self.scale

    def __call__(self, columns: Floats) -> dict[str, Floats]:
        """The functions at rows `(n, p)` by kind; spline interactions are with the linear terms of other columns."""
        linear = self.linear(columns)
        z = linear[:, self.moderators]
        first, second = self.pairs.T
        empty = np.zeros((len(z), 0))
        splines = {j: spline(z[:, j]) for j, spline in self.splines}
        interactions = [part * z[:, [k]] for j, part in splines.items() for k in range(z.shape[1]) if k != j]
        if sum(part.shape[1] for part in interactions) > _MAX_INTERACTIONS:
            interactions = []
        functions = {
            "constant": np.ones((len(z), 1)),
            "linear": linear,
            "moderators": z,
            "splines": np.hstack([empty, *splines.values()]),
            "spline interactions": np.hstack([empty, *interactions]),
            "products": (z[:, first] * z[:, second] - (first == second)) / np.sqrt(2.0),
            "fourier features": np.sqrt(2.0 / max(len(self.phases), 1)) * np.cos(z @ self.directions + self.phases),
            "expected": empty,
        }
        if self.expected.size:
            functions["expected"] = self.expected_of(functions)
        return functions

    def expected_of(self, functions: dict[str, Floats]) -> Floats:
        """What other functions, by kind, say of the predicted treatment."""
        return np.hstack([functions[kind] for kind in NONLINEAR]) @ self.expected


def _independent(z: Floats) -> Integers:
    """Positions of standardised columns that are no linear combinations of those before them.

    With as many columns as rows the last ones always are, and all are kept: a penalty then decides.
    """
    n, p = z.shape
    if p >= n:
        return np.arange(p)
    # The length of what the columns before it leave of each.
    lengths = np.diag(np.linalg.qr(z, mode="r"))
    return np.flatnonzero(lengths**2 > _NEGLIGIBLE * n)


def _orientation(z: Floats) -> Floats:
    """1 or -1 for each standardised column, which changes with its sign: the long tail is to the right."""
    skewness, first = np.mean(z**3, axis=0), np.sum(np.sign(z[:1]), axis=0)
    return np.where(np.abs(skewness) > 1e-6, np.sign(skewness), np.where(first < 0.0, -1.0, 1.0))


def _n_apart(values: Floats) -> int:
    """How many rows have the rarer of two values."""
    ones = int(np.sum(values == values[0]))
    return min(ones, len(values) - ones)


class TreatmentBasis(NamedTuple):
    """Functions of the treatment: linear terms (itself, or indicators of all levels but the first), and its spline.

    Attributes:
        shift, scale: by which linear terms are standardised, so that it does not matter which level is called 0.
        levels: how many a discrete treatment has; 0 for a number.
        spline: None if there is none.
    """

    shift: Floats
    scale: Floats
    levels: int
    spline: Spline | None

    @classmethod
    def fit(cls, values: Floats, levels: int, splines: int, *, segments: int = 9) -> TreatmentBasis:
        """The basis of `(n,)` treatments, numbers or codes of levels, with as many spline functions at most."""
        linear = _linear(values, levels)
        shift, scale = means_and_spreads(linear)
        t = (linear[:, 0] - shift[0]) / scale[0]
        curved = not levels and splines > 0 and len(np.unique(t)) > 2
        return cls(shift, scale, levels, Spline.fit(t, splines, segments=segments) if curved else None)

    @property
    def n_linear(self) -> int:
        """How many linear terms there are."""
        return max(self.levels - 1, 1)

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of functions."""
        n_splines = 0 if self.spline is None else self.spline.rotation.shape[1]
        return {"constant": 1, "linear": self.n_linear, "spline": n_splines}

    def __call__(self, values: FloatArray) -> Floats:
        """Linear terms, then the spline, at `(n,)` treatments."""
        linear = (_linear(values, self.levels) - self.shift) / self.scale
        return linear if self.spline is None else np.hstack([linear, self.spline(linear[:, 0])])


def _linear(values: FloatArray, levels: int) -> Floats:
    """Numbers as they are, or the indicators of levels but the first, `(n, k)`."""
    column = np.asarray(values, np.float64)[:, None]
    return np.asarray(column == np.arange(1, levels), np.float64) if levels else column


class Term(NamedTuple):
    """A block of the sieve: functions of the treatment, which may be the constant, times functions of covariates."""

    factor: Literal["constant", "linear", "spline"]
    kind: str
    max_functions: int = 1000

    def width(self, sizes: dict[str, int]) -> int:
        """How many functions of the treatment it has."""
        return min(sizes[self.factor], self.max_functions)


LINEAR = ("constant", "treatment", "covariates")
"""The terms of a linear model."""

UNPENALISED = ("constant", "treatment", "expected treatment", "covariates")
"""The terms without a penalty."""

TERMS = {
    "constant": Term("constant", "constant"),
    "treatment": Term("linear", "constant"),
    "expected treatment": Term("constant", "expected"),
    "covariates": Term("constant", "linear"),
    "curve": Term("spline", "constant"),
    "slopes by covariate": Term("linear", "moderators"),
    "curves by covariate": Term("spline", "moderators", 4),
    "covariate curves": Term("constant", "splines"),
    "slopes by covariate curves": Term("linear", "splines"),
    "covariate products": Term("constant", "products"),
    "slopes by covariate products": Term("linear", "products"),
    "covariate curve interactions": Term("constant", "spline interactions"),
    "slopes by curve interactions": Term("linear", "spline interactions"),
    "covariate surface": Term("constant", "fourier features"),
    "slopes by surface": Term("linear", "fourier features"),
    "curves by surface": Term("spline", "fourier features", 3),
}
"""All terms of a structural function g(x, v), by name."""


def term_columns(
    terms: Sequence[str], of_treatment: Floats, of_covariates: dict[str, Floats], sizes: dict[str, int]
) -> list[Floats]:
    """The columns of each term, from functions of the treatment `(n, linear + spline)` and of the covariates."""
    n_linear = sizes["linear"]
    factors = {
        "constant": np.ones((len(of_treatment), 1)),
        "linear": of_treatment[:, :n_linear],
        "spline": of_treatment[:, n_linear:],
    }
    chosen = [TERMS[name] for name in terms]
    return [column_products(factors[t.factor][:, : t.width(sizes)], of_covariates[t.kind]) for t in chosen]


def term_sums(
    terms: Sequence[str], coefficients: Floats, of_covariates: dict[str, Floats], sizes: dict[str, int]
) -> tuple[Floats, Floats]:
    """By row, what the terms give without the treatment `(n,)`, and the coefficient of each function of it `(n, k)`."""
    n = len(of_covariates["constant"])
    sums = {factor: np.zeros((n, size)) for factor, size in sizes.items()}
    start = 0
    for term in (TERMS[name] for name in terms):
        used, functions = term.width(sizes), of_covariates[term.kind]
        stop = start + used * functions.shape[1]
        sums[term.factor][:, :used] += functions @ coefficients[start:stop].reshape(used, -1).T
        start = stop
    return sums["constant"][:, 0], np.hstack([sums["linear"], sums["spline"]])


def column_products(left: Floats, right: Floats) -> Floats:
    """Every column of one matrix times every column of the other, `(n, a · b)`, the first column of `left` first."""
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)


@dataclass(frozen=True, eq=False)
class SieveFunction:
    r"""$g(x, v) = d\, f(x, v) + \sum_t \Phi_t(x, v) \beta_t$, where f, if there is one, was learned elsewhere.

    Attributes:
        treatment, covariates: the functions of each.
        terms: the names of the parts (`bgmiv.sieve.bases.TERMS`), those that were kept and those that enter the
            intervals alone.
        coefficients: of all columns of these terms, in units of the outcome; 0 for terms that were not kept.
        weight: d; 0 without f.
        roots: by source of uncertainty, roots R of the parts R Rᵀ of the covariance of d and the coefficients
            (`bgmiv.sieve.second_stage.SecondStage`).
        penalties: the ridge of each penalised term that was kept.
        probabilities: of the terms that are averaged over, that there is such a function.
        effects: what is kept of absorbed indicators, with columns for f and for the terms; of no levels if there are
            none.
        dof: degrees of freedom of the root "sampling".
        first_stage_f: the effective F of the predicted treatment, as the one instrument; None without instruments.
    """

    treatment: TreatmentBasis
    covariates: ColumnBasis
    terms: tuple[str, ...]
    coefficients: Floats
    weight: float
    roots: dict[str, Floats]
    penalties: dict[str, float]
    probabilities: dict[str, float]
    effects: LevelEffects
    dof: float = np.inf
    first_stage_f: float | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together: of a file that anyone may have written."""
        if self.effects.columns.shape[1] != 1 + len(self.coefficients):
            raise ValueError("its levels and coefficients have different sizes.")

    @property
    def kept(self) -> tuple[str, ...]:
        """The terms that the data support, beside those without a penalty."""
        likely = {name for name, probability in self.probabilities.items() if probability > 0.5}
        chosen = (self.penalties.keys() - self.probabilities.keys()) | likely
        return tuple(name for name in self.terms if name in UNPENALISED or name in chosen)

    @property
    def is_linear(self) -> bool:
        """Whether the data favour a line in treatment and covariates over everything else."""
        return self.weight == 0.0 and all(name in LINEAR for name in self.kept)

    @property
    def is_line(self) -> bool:
        """Whether one slope for all rows has a probability above 0.95, and no other term has a treatment in it."""
        others = [name for name in self.kept if name not in UNPENALISED and TERMS[name].factor != "constant"]
        return self.weight == 0.0 and not others and sum(self.probabilities.values()) < _DOUBT

    def encode(self, schema: Schema, covariates: FloatArray) -> Encoded:
        """The columns, by row the coefficients of 1 and of each function of the treatment, and levels' positions.

        Args:
            schema: of the reduced covariates.
            covariates: `(n, p)`, wide blocks reduced.
        """
        columns = ordinary_covariates(schema, covariates, self.effects.names)
        base, slopes = term_sums(self.terms, self.coefficients, self.covariates(columns), self.treatment.sizes)
        places = self.effects.places(schema, covariates)
        of_levels = self.effects.own_effects(np.append(self.weight, self.coefficients))
        return columns, base + np.sum(of_levels[places], axis=1), slopes, places

    def at(self, query: Query, encoded: Encoded, learned: Floats | None = None) -> Floats:
        """The function in units of the outcome, `(m, n)`; `learned` is f at the same points."""
        _, base, slopes, _ = encoded
        own = query.collect(lambda x, rows: base[rows] + np.sum(self.treatment(x) * slopes[rows], axis=1), _MAX_POINTS)
        return own if learned is None else own + self.weight * learned

    def factors(self, query: Query, encoded: Encoded, learned: Floats | None = None) -> Sources:
        """Which rows were drawn; the bias of smoothing by its prior, and the largest one; the first stage's noise."""
        v, _, _, places = encoded
        effects, of_covariates = self.effects, self.covariates(v)
        roots = np.hstack(list(self.roots.values()))

        def moved(x: FloatArray, rows: Integers) -> Floats:
            known = {kind: part[rows] for kind, part in of_covariates.items()}
            own = np.hstack(term_columns(self.terms, self.treatment(x), known, self.treatment.sizes))
            return (own - effects.means(places[rows])[:, 1:]) @ roots[1:]

        moves = np.moveaxis(query.collect(moved, _MAX_POINTS), -1, 0)
        if learned is not None:
            moves = moves + roots[0][:, None, None] * (learned - effects.means(places)[:, 0])
        widths = [part.shape[1] for part in self.roots.values()]
        parts = dict(zip(self.roots, np.split(moves, np.cumsum(widths)[:-1]), strict=True))
        noise = effects.noise(places, len(query.treatment))
        parts["sampling"] = np.concatenate([parts["sampling"], noise])
        # The levels' own means do not move with the slope.
        parts[STRENGTH] = np.concatenate([parts[STRENGTH], np.zeros_like(noise)])
        dofs = dict.fromkeys(parts, np.inf) | {"sampling": self.dof}
        return tuple(Source(name, part, dofs[name]) for name, part in parts.items() if len(part))
