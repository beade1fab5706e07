"""Real covariates and instruments, with a treatment and an outcome simulated from models fitted to the real ones.

`bgmiv bench` has them where PYTHONPATH holds `benchmarks` and BGMIV_DESIGNS is `report`.

So discreteness, correlations, the strength of the instruments and the noise are those of a study, and g is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.special import expit, logit

from bgmiv.data.messages import is_zero_one
from bgmiv.designs import DesignEntry, base, register
from bgmiv.designs.empirical import load_empirical
from bgmiv.errors import ConfigError

__all__ = ["SEMISYNTHETIC", "SemisyntheticDesign"]

# Spawn keys of the random streams.
_ROWS, _SHOCK, _NOISE = range(1100, 1103)
_FERTILITY_ROWS = 10_000
# The standard deviation of a logistic variable.
_LOGISTIC = float(np.pi / np.sqrt(3.0))
# Nodes of Gauss-Hermite quadrature over the shock of a continuous treatment.
_NODES = 21


class _Study(NamedTuple):
    """The columns of a study, and the covariate with which the effect varies in the heterogeneous shape."""

    outcome: str
    treatment: str
    instrument: str
    covariates: tuple[str, ...]
    modifier: str
    binary: bool


# Indicators so rare that small samples may lack them are left out.
_STUDIES = {
    "card": _Study("lwage", "educ", "nearc4", ("exper", "expersq", "black", "smsa", "south", "smsa66"), "exper", False),
    "401ksubs": _Study("nettfa", "p401k", "e401k", ("inc", "age", "agesq", "marr", "fsize"), "inc", True),
    "meps": _Study(
        "ldrugexp", "hi_empunion", "ssiratio", ("totchr", "female", "age", "linc", "blhisp"), "totchr", True
    ),
    "fertility": _Study("work", "morekids", "samesex", ("age", "boy1st", "minority"), "age", True),
}
_SHAPES = ("linear", "concave", "heterogeneous")
SEMISYNTHETIC = tuple(
    (study, shape) for study, one in _STUDIES.items() for shape in _SHAPES if shape != "concave" or not one.binary
)
"""Studies and shapes there are; a binary treatment has no concave effect."""


class _Population(NamedTuple):
    """A study's rows, and the models fitted to them."""

    covariates: np.ndarray  # (n, p)
    instrument: np.ndarray  # (n,)
    coefficients: np.ndarray  # of the treatment's index on a constant, the covariates and the instrument
    spread: float  # of the treatment's residual; that of a logistic variable for a binary treatment's index
    main: np.ndarray  # (p,), coefficients of the covariates in the outcome
    effect: float  # the linear effect of the treatment, by two-stage least squares
    centre: float  # the mean of the treatment; 0 if it is binary
    scale: float  # its standard deviation; 1 if it is binary
    modifier: tuple[float, float]  # mean and standard deviation of the covariate with which the effect varies
    r2: float  # of the linear regression of the real outcome on treatment and covariates


@dataclass(frozen=True)
class SemisyntheticDesign(base.AdditiveDesign):
    r"""A real study with another treatment and outcome.

    Rows (v, w) are drawn from the study's with replacement. With an index $a + s \pi w + \delta' v$ fitted to the real
    treatment, by least squares or, for a binary one, by logistic regression,

    - $X = a + s \pi w + \delta' v + \sigma_u U$, U standard normal, $\sigma_u$ the real residual standard deviation; or
      $X = 1\{a + s \pi w + \delta' v + U > 0\}$, U logistic;
    - $Y = g(X, V) + \sigma E$, E of variance one and correlation ρ with U, both independent of (V, W).

    $g(x, v) = \beta \operatorname{sd}(X) h(t, v) + \gamma' v$, β the two-stage least squares estimate and γ the least
    squares coefficients of the real data. For a number t is the treatment standardised, for a binary treatment t = x,
    and h is

    - linear: t;
    - concave: $t - 0.3 t^2$;
    - heterogeneous: $t (1 + z)$, z the standardised years of experience, income, number of chronic conditions or age.

    σ is such that g has the share of $\operatorname{var}(g) + \sigma^2$ that the real linear regression has of the
    outcome's variance, or `r2`. With s = 1 the partial R² of the instrument in the treatment is the real one.

    Args:
        study: "card", "401ksubs", "meps" or "fertility" (10,000 rows of it).
        shape: "linear", "concave" (of a number only) or "heterogeneous".
        strength: s, a factor on the coefficient of the instrument, not 0.
        r2: share of g; 0 for the real one.

    Example:
        >>> data = SemisyntheticDesign("card", "concave").sample(500, rho=0.5, seed=0)
        >>> data.schema.instruments, data.covariates.shape
        (('nearc4',), (500, 6))
    """

    choices: ClassVar = {"study": _STUDIES, "shape": _SHAPES}

    study: str = "card"
    shape: str = "linear"
    strength: float = 1.0
    r2: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.study, self.shape) not in SEMISYNTHETIC:
            raise ConfigError(f"the treatment of {self.study!r} is binary and has no concave effect")
        if not 0.0 <= self.r2 < 1.0:
            raise ConfigError(f"r2 is {self.r2}; choose a value between 0 and 1, or 0 for that of the study")

    @property
    def name(self) -> str:
        """`"semi-"`, the study, the shape, and the other settings that are not the usual ones."""
        usual = SemisyntheticDesign(self.study, self.shape)
        return base.name_with_settings(f"semi-{self.study}-{self.shape}", self, usual)

    @property
    def kinds(self) -> Mapping[str, str]:
        columns = zip(_STUDIES[self.study].covariates, _population(self.study).covariates.T, strict=True)
        return {name: "binary" if is_zero_one(column) else "continuous" for name, column in columns}

    @property
    def roles(self) -> tuple[str, str]:
        study = _STUDIES[self.study]
        return study.outcome, study.treatment

    @property
    def treatment_kind(self) -> str:
        return "binary" if _STUDIES[self.study].binary else "continuous"

    @property
    def share(self) -> float:
        """var(g) / (var(g) + σ²)."""
        return self.r2 or _population(self.study).r2

    @property
    def disturbance(self) -> float:
        """σ, the standard deviation of the outcome around g."""
        return float(np.sqrt(_variance(self) * (1.0 / self.share - 1.0)))

    def structural(self, treatment: np.ndarray, *covariates: np.ndarray) -> np.ndarray:
        """g₀(x, v) at treatments and the columns of the covariates."""
        real, study = _population(self.study), _STUDIES[self.study]
        t = (np.asarray(treatment, np.float64) - real.centre) / real.scale
        if self.shape == "concave":
            t = t - 0.3 * t**2
        if self.shape == "heterogeneous":
            mean, spread = real.modifier
            t = t * (1.0 + (covariates[study.covariates.index(study.modifier)] - mean) / spread)
        main = sum(c * np.asarray(v, np.float64) for c, v in zip(real.main.tolist(), covariates, strict=True))
        return np.asarray(real.effect * real.scale * t + main, np.float64)

    def index(self, covariates: np.ndarray, instrument: np.ndarray) -> np.ndarray:
        """The treatment without its shock, or its log odds."""
        constant, *slopes, effect = _population(self.study).coefficients.tolist()
        return constant + covariates @ np.asarray(slopes) + self.strength * effect * instrument

    def draw(self, n: int, seed: int) -> base.Draw:
        """Rows of the study with a new treatment; its shock has variance one."""
        study, real = _STUDIES[self.study], _population(self.study)
        rows = base.stream(seed, _ROWS).integers(len(real.instrument), size=n)
        v, w = real.covariates[rows], real.instrument[rows]
        (noise,) = base.normals(n, seed, _NOISE)
        if study.binary:
            logistic = logit(base.stream(seed, _SHOCK).uniform(size=n))
            x, shock = (self.index(v, w) + logistic > 0.0).astype(np.float64), logistic / _LOGISTIC
        else:
            (shock,) = base.normals(n, seed, _SHOCK)
            x = self.index(v, w) + real.spread * shock
        return base.Draw(x, {study.instrument: w}, dict(zip(study.covariates, v.T, strict=True)), shock, noise)

    def grid(self) -> base.StructuralGrid:
        """2,800 rows of the population whose treatment lies between its 5% and 95% quantiles."""
        return base.population_grid(self, _quantiles(self), 0.05 * _population(self.study).scale)


@cache
def _quantiles(design: SemisyntheticDesign) -> tuple[float, ...]:
    """Of the treatment, from 200,000 rows."""
    rows = design.draw(base.REFERENCE_ROWS, base.REFERENCE_SEED)
    return tuple(np.quantile(rows.treatment, base.QUANTILES).tolist())


@cache
def _variance(design: SemisyntheticDesign) -> float:
    """The variance of g, summed over the rows and the shock."""
    real = _population(design.study)
    v, w = real.covariates, real.instrument
    index = design.index(v, w)
    if _STUDIES[design.study].binary:
        p = expit(index)
        values, weights = np.array([[0.0], [1.0]]), np.stack([1.0 - p, p])
    else:
        nodes, shares = np.polynomial.hermite_e.hermegauss(_NODES)
        values = index + real.spread * nodes[:, None]
        weights = np.broadcast_to((shares / shares.sum())[:, None], values.shape)
    g = np.stack([design.structural(np.broadcast_to(x, w.shape), *v.T) for x in values])
    shares = weights / len(w)
    return float(np.sum(shares * g**2) - np.sum(shares * g) ** 2)


@cache
def _population(name: str) -> _Population:
    study, table = _STUDIES[name], dict(load_empirical(name).table)
    if name == "fertility":
        table["boy1st"] = table["gender1"] == "male"
        table["minority"] = table["afam"] | table["hispanic"] | table["other"]
        kept = base.stream(0, _ROWS).choice(len(table["work"]), _FERTILITY_ROWS, replace=False)
        table = {column: values[kept] for column, values in table.items()}
    y, x, w = (table[column].astype(np.float64) for column in (study.outcome, study.treatment, study.instrument))
    v = np.column_stack([table[column].astype(np.float64) for column in study.covariates])
    known = np.column_stack([v, w])
    coefficients = _logistic(known, x) if study.binary else _least_squares(known, x)
    # The first stage of two-stage least squares is linear, whatever the model of the treatment.
    predicted = x - _residual(x, known)
    effect = float(_least_squares(np.column_stack([v, predicted]), y)[-1])
    both = np.column_stack([v, x])
    modifier = v[:, study.covariates.index(study.modifier)]
    return _Population(
        covariates=v,
        instrument=w,
        coefficients=coefficients,
        spread=_LOGISTIC if study.binary else float(_residual(x, known).std()),
        main=_least_squares(both, y)[1:-1],
        effect=effect,
        centre=0.0 if study.binary else float(x.mean()),
        scale=1.0 if study.binary else float(x.std()),
        modifier=(float(modifier.mean()), float(modifier.std())),
        r2=float(1.0 - _residual(y, both).var() / y.var()),
    )


def _least_squares(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The constant and the coefficients."""
    return np.linalg.lstsq(np.column_stack([np.ones(len(target)), columns]), target, rcond=None)[0]


def _residual(target: np.ndarray, columns: np.ndarray) -> np.ndarray:
    constant, *slopes = _least_squares(columns, target)
    return target - constant - columns @ np.asarray(slopes)


def _logistic(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The constant and the coefficients of a logistic regression.

    The penalty is next to nothing; it keeps the coefficient finite of an instrument without which nobody is treated.
    """
    from sklearn.linear_model import LogisticRegression

    centre, spread = columns.mean(axis=0), columns.std(axis=0)
    fit = LogisticRegression(C=100.0, solver="newton-cholesky", tol=1e-8).fit((columns - centre) / spread, target)
    slopes = fit.coef_[0] / spread
    return np.concatenate([fit.intercept_ - slopes @ centre, slopes])


register(
    *(
        DesignEntry(
            f"semi-{study}-{shape}",
            f"Rows of {study} with simulated treatment and outcome: {shape}",
            partial(SemisyntheticDesign, study, shape),
            unit=None,
        )
        for study, shape in SEMISYNTHETIC
    )
)
