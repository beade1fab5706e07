"""What a design is: data with a known structural function, and a grid on which estimates are judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from bgmiv.data.ivdata import IVData
from bgmiv.errors import ConfigError

__all__ = [
    "GRID_ROWS", "GRID_SEED", "QUANTILES", "REFERENCE_ROWS", "REFERENCE_SEED", "AdditiveDesign", "CheckedSettings",
    "Columns", "Design", "DesignEntry", "Draw", "Functional", "StructuralGrid", "check_draw", "confounded",
    "grid_of", "name_with_settings", "normals", "population_grid", "product", "stream", "with_settings",
]  # fmt: skip

REFERENCE_SEED, GRID_SEED = 2**31, 2**31 + 1
"""Seeds of the rows that stand for the population, and of those it is judged at: no sample has them."""

REFERENCE_ROWS, GRID_ROWS = 200_000, 2800
QUANTILES = (0.05, 0.25, 0.75, 0.95)
"""Of the treatment: grids lie between the outer two, and their contrast compares the inner two."""

Columns = Mapping[str, np.ndarray]
Functionals = Mapping[str, tuple[Any, Any, float]]

_MINIMA = {"confounding": 0.0, "disturbance": 0.0, "noise": 0.0, "feature_seed": 0, "vector_dim": 1, "nuisance_dim": 1}


class Functional(NamedTuple):
    """An average of differences of g over the rows of a grid, $\\overline{g(t_1, v) - g(t_0, v)} / scale$."""

    t0: float | np.ndarray  # a treatment for all rows or one a row
    t1: float | np.ndarray
    scale: float  # what the difference is divided by: one for a contrast, t1 - t0 for a slope
    truth: float  # its true value


@dataclass(frozen=True, eq=False)
class StructuralGrid:
    """Points at which the true structural function is known.

    Attributes:
        treatment: `(m,)`, the treatment set by intervention: numbers, or names of levels.
        covariates: name to `(m, ...)` array, the same container that the design trains with.
        truth: `(m,)`, the structural function in units of the outcome; for a binary outcome the probability of 1.
        in_support: `(m,)`, whether the design's data contain such a treatment at such covariates; elsewhere an
            estimate is an extrapolation.
        functionals: averages of g over these rows of covariates that are judged as well, by name.

    Example:
        >>> from bgmiv.designs import make_design
        >>> grid = make_design("demand").grid()
        >>> len(grid), grid.truth.shape == grid.treatment.shape
        (2800, True)
    """

    treatment: np.ndarray
    covariates: Columns
    truth: np.ndarray
    in_support: np.ndarray
    functionals: Mapping[str, Functional] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.treatment)


class Design(Protocol):
    """A simulated problem whose structural function is known."""

    @property
    def name(self) -> str:
        """The name on the command line and in result rows."""

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """Draw `n` rows at confounding level `rho`; the same arguments give the same rows.

        Samples with the same seed share all but the outcome, whatever `rho` is.
        """

    def grid(self) -> StructuralGrid:
        """The points on which structural error is measured, the same for every sample."""


class CheckedSettings:
    """Refuses settings that are not finite, too small or not among the `choices`, and an idle instrument."""

    choices: ClassVar[Mapping[str, Collection[str]]] = {}

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, str):
                if value not in self.choices.get(name, (value,)):
                    raise ConfigError(f"{name} is {value!r}; choose one of {', '.join(self.choices[name])}")
                continue
            if not np.isfinite(value):
                raise ConfigError(f"{name} is {value}; choose a finite value")
            if name == "strength" and value == 0.0:
                raise ConfigError("strength is 0; the instrument must move the treatment")
            if name in _MINIMA and value < _MINIMA[name]:
                raise ConfigError(f"{name} is {value}; choose {_MINIMA[name]:g} or more")


class Draw(NamedTuple):
    """Rows of a design without their outcome, observed and hidden; each array has one entry a row."""

    treatment: np.ndarray
    instruments: Columns
    covariates: Columns
    shock: np.ndarray  # U, which moves the treatment
    noise: np.ndarray  # E, which does not


class AdditiveDesign(CheckedSettings, ABC):
    """A design with Y = g₀(X, V) + disturbance · (ρ U + √(1 − ρ²) E); its subclasses say how X, V and U are drawn."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """The kinds of covariates that are not what their columns look like."""
        return {}

    @property
    @abstractmethod
    def disturbance(self) -> float:
        """The standard deviation of the outcome around g₀."""

    @property
    def treatment_kind(self) -> str:
        """The kind of the treatment."""
        return "continuous"

    @property
    def roles(self) -> tuple[str, str]:
        """What the outcome and the treatment are called."""
        return "outcome", "treatment"

    @abstractmethod
    def draw(self, n: int, seed: int) -> Draw:
        """`n` rows without their outcome."""

    @abstractmethod
    def structural(self, *args: Any, **kwargs: Any) -> np.ndarray:
        """g₀(x, v) at treatments and covariates, which are its arguments."""

    def observed(self, covariates: Columns, seed: int | None) -> Columns:
        """What the sample with that seed shows of the covariates; None is the grid."""
        return covariates

    def sample(self, n: int, rho: float, seed: int) -> IVData:
        """Draw `n` rows; ρ is the correlation of the disturbances of treatment and outcome."""
        check_draw(n, rho, seed)
        rows = self.draw(n, seed)
        error = self.disturbance * confounded(rows.shock, rows.noise, rho)
        y = self.structural(rows.treatment, *rows.covariates.values()) + error
        outcome, treatment = self.roles
        kind: Any = self.treatment_kind
        return IVData.from_arrays(
            {outcome: y},
            {treatment: rows.treatment},
            instruments=rows.instruments,
            covariates=self.observed(rows.covariates, seed),
            blocks=self.kinds,
            treatment_kind=kind,
        )


@dataclass(frozen=True)
class DesignEntry:
    """A registered design."""

    name: str
    title: str  # in headings of reports
    make: Callable[[], Design]  # with the settings of the paper
    unit: float | None = 1.0  # what structural errors are divided by in tables; None: the variance of g on the grid
    algorithm_version: int = 1  # raised when the numbers that the design draws change


def stream(seed: int, *key: int) -> np.random.Generator:
    """A separate random stream for each (seed, key).

    Streams with different keys are independent even where the seeds coincide, so that training noise, evaluation
    noise and fixed features never share draws.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def normals(n: int, seed: int, *keys: int) -> list[np.ndarray]:
    """`n` standard normal draws from the stream of each key."""
    return [stream(seed, key).normal(size=n) for key in keys]


def confounded(shock: np.ndarray, noise: np.ndarray, rho: float) -> np.ndarray:
    """The disturbance ρ · shock + √(1 − ρ²) · noise, whose correlation with the shock is ρ."""
    return rho * shock + np.sqrt(1.0 - rho**2) * noise


def product(*axes: np.ndarray) -> tuple[np.ndarray, ...]:
    """All combinations of the values of several axes, the first axis slowest."""
    return tuple(part.ravel() for part in np.meshgrid(*axes, indexing="ij"))


def grid_of(
    structural: Callable[..., np.ndarray],
    treatment: np.ndarray,
    covariates: Columns | None = None,
    in_support: np.ndarray | None = None,
    functionals: Functionals | None = None,
) -> StructuralGrid:
    """The grid with the truth of the structural function, whose arguments are the treatment and the covariates.

    All points are in support unless told otherwise. `functionals` have t0, t1 and scale of each.
    """
    columns = covariates or {}

    def value(t: Any) -> np.ndarray:
        return structural(np.broadcast_to(np.asarray(t, np.float64), treatment.shape), *columns.values())

    truths = {
        name: Functional(t0, t1, scale, float(np.mean(value(t1) - value(t0)) / scale))
        for name, (t0, t1, scale) in (functionals or {}).items()
    }
    inside = np.ones(len(treatment), bool) if in_support is None else in_support
    return StructuralGrid(treatment, columns, structural(treatment, *columns.values()), inside, truths)


def population_grid(design: AdditiveDesign, quantiles: Sequence[float], half_step: float) -> StructuralGrid:
    """2,800 rows of a design's population whose treatment lies between its 5% and 95% quantiles.

    Their averages are the contrast between the inner quantiles and the slope, or the contrast of a binary treatment.

    Args:
        design: where the rows come from.
        quantiles: of the treatment (`QUANTILES`).
        half_step: half the distance over which slopes of a continuous treatment are taken.
    """
    rows = design.draw(2 * GRID_ROWS, GRID_SEED)
    usual = (quantiles[0] <= rows.treatment) & (rows.treatment <= quantiles[-1])
    kept = np.flatnonzero(usual)[:GRID_ROWS]
    covariates = {name: values[kept] for name, values in rows.covariates.items()}
    treatment = rows.treatment[kept]
    if design.treatment_kind == "binary":
        functionals: Functionals = {"contrast": (0.0, 1.0, 1.0)}
    else:
        functionals = {
            "contrast": (quantiles[1], quantiles[2], 1.0),
            "slope": (treatment - half_step, treatment + half_step, 2.0 * half_step),
        }
    grid = grid_of(design.structural, treatment, covariates, functionals=functionals)
    return replace(grid, covariates=design.observed(covariates, None))


def name_with_settings(name: str, design: Any, usual: Any) -> str:
    """A name followed by the settings in which a design differs from the usual one: `noisy-linear:r2=0.1`."""
    changed = {key: vars(design)[key] for key, value in vars(usual).items() if vars(design)[key] != value}
    texts = [f"{key}={f'{value:g}' if isinstance(value, float) else value}" for key, value in changed.items()]
    return f"{name}:{','.join(texts)}" if texts else name


def with_settings(design: Any, text: str) -> Any:
    """A design with settings changed by a text such as `"r2=0.1,errors=heavy-tailed"`.

    Raises:
        ConfigError: it has no such setting, or the value cannot be read.
    """
    known = vars(design)
    changed: dict[str, Any] = {}
    for part in text.split(","):
        key, sign, value = part.partition("=")
        if key not in known or not sign:
            raise ConfigError(f"{part!r} is not a setting of this design; write name=value with {', '.join(known)}")
        kind = type(known[key])
        try:
            changed[key] = {"True": True, "False": False}[value] if kind is bool else kind(value)
        except (KeyError, ValueError) as error:
            raise ConfigError(f"{part!r} cannot be read: {key} is such as {known[key]!r}") from error
    return replace(design, **changed)


def check_draw(n: int, rho: float, seed: int) -> None:
    """Refuse sizes, confounding levels and seeds that no design can draw."""
    if n < 2:
        raise ConfigError(f"n is {n}; a sample needs at least 2 rows")
    if not -1.0 <= rho <= 1.0:
        raise ConfigError(f"rho is {rho}; it is a correlation: choose a value between -1 and 1")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; choose an integer of 0 or more")
