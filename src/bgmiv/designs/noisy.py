"""Problems with the noise of real studies, R² of 0.1 to 0.6: ten ordinary covariates, or a vector or a picture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
from scipy.special import expit

from bgmiv.designs.base import (
    GRID_ROWS,
    GRID_SEED,
    QUANTILES,
    REFERENCE_ROWS,
    REFERENCE_SEED,
    AdditiveDesign,
    Columns,
    Draw,
    StructuralGrid,
    name_with_settings,
    normals,
    population_grid,
    stream,
)
from bgmiv.designs.demand import DemandDesign, VectorProxyDesign
from bgmiv.designs.mnist import ImageSet, MnistDesign
from bgmiv.errors import ConfigError

__all__ = ["SHAPES", "NoisyDemandDesign", "NoisyDesign"]

SHAPES = ("linear", "concave", "threshold", "heterogeneous", "interaction", "null")
"""How the outcome depends on the standardised treatment t and the covariates; see :class:`NoisyDesign`."""

_PROXIES = {"group": "noisy-demand", "vector": "noisy-vector", "image": "noisy-mnist"}
# Spawn keys of the random streams.
_NORMALS, _OTHERS, _INSTRUMENTS, _SHOCK, _NOISE = range(700, 705)
_DEGREES = 5.0
_CONTINUOUS = 5
# The Cholesky factor of correlations 0.5^|i - j|.
_ROOT = np.linalg.cholesky(0.5 ** np.abs(np.subtract.outer(np.arange(_CONTINUOUS), np.arange(_CONTINUOUS))))


@dataclass(frozen=True)
class NoisyDesign(AdditiveDesign):
    r"""Ten ordinary covariates, one to four instruments, and an outcome that is mostly noise.

    V1 to V5 are normal with correlations $0.5^{|i-j|}$, V6 and V7 binary, V8 and V9 counts, V10 normal; V4, V5, V7, V9
    and V10 matter neither to the treatment nor to the outcome. With $m(v) = 0.6 v_1 + 0.4 v_2 + 0.5 (v_6 - 0.4) + 0.15
    (v_8 - 2)$ and $h(v) = 0.3 v_1 + 0.2 v_2 - 0.2 v_3 + 0.3 (v_6 - 0.4) + 0.1 (v_8 - 2)$,

    $$X = \sqrt{\tfrac{R_w}{1 - R_w}}\, f(W, V) + m(V) + U, \qquad Y = g(X, V) + \sigma E, \qquad
      g(x, v) = s(t, v) + h(v), \quad t = x / \operatorname{sd}(X),$$

    where f has mean zero given V and variance one, U and E variance one and correlation ρ, and both are independent of
    W given V. R_w is `partial_r2`, and σ is such that $\operatorname{var}(g) / (\operatorname{var}(g) + \sigma^2)$ is
    `r2`. The shapes s(t, v) are

    - linear: t;
    - concave: $t - 0.6 t^2$, which rises, levels off and falls;
    - threshold: $2.5 / (1 + e^{-4t})$, a steep rise at the mean: ill-posed, since the instruments smooth it away;
    - heterogeneous: $t (1 + v_1)$;
    - interaction: $t (0.8 + 1.2 v_1 v_6)$;
    - null: 0, the treatment does nothing.

    Args:
        shape: one of `SHAPES`.
        r2: share of the variance of g and the disturbance together that is g's.
        partial_r2: share of the treatment's variance given V that the instruments explain (of its latent index, where
            the treatment is binary).
        errors: "normal"; "heteroskedastic", U and E both times $\sqrt{(1 + v_1^2)/2}$; or "heavy-tailed", the part of E
            that is not U's has Student's t distribution with five degrees of freedom.
        first_stage: f is the mean of the instruments, or "nonlinear", with a square and a product with V1.
        instruments: "continuous", standard normal; or "binary", one or minus one with equal chance.
        n_instruments: one to four.
        binary_treatment: the treatment is 1 where X is positive, and 0 elsewhere; then t = x - 1/2.

    Example:
        >>> design = NoisyDesign("concave")
        >>> data = design.sample(500, rho=0.7, seed=0)
        >>> data.covariates.shape, data.instruments.shape, design.name
        ((500, 10), (500, 2), 'noisy-concave')
    """

    choices: ClassVar = {
        "shape": SHAPES,
        "errors": ("normal", "heteroskedastic", "heavy-tailed"),
        "first_stage": ("linear", "nonlinear"),
        "instruments": ("continuous", "binary"),
    }
    kinds: ClassVar = {"v6": "binary", "v7": "binary"}

    shape: str = "linear"
    r2: float = 0.3
    partial_r2: float = 0.2
    errors: str = "normal"
    first_stage: str = "linear"
    instruments: str = "continuous"
    n_instruments: int = 2
    binary_treatment: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("r2", "partial_r2"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)}; choose a value between 0 and 1")
        if not 1 <= self.n_instruments <= 4:
            raise ConfigError(f"n_instruments is {self.n_instruments}; choose 1 to 4")

    @property
    def name(self) -> str:
        """`"noisy-"`, the shape, and the other settings that are not the usual ones."""
        return name_with_settings(f"noisy-{self.shape}", self, NoisyDesign(self.shape))

    @property
    def treatment_kind(self) -> str:
        """As `binary_treatment` says."""
        return "binary" if self.binary_treatment else "continuous"

    @property
    def treatment_scale(self) -> float:
        """The standard deviation of X; 1 for a binary treatment."""
        if self.binary_treatment:
            return 1.0
        # The variances of f and U, and that of m(V) from the moments of V1, V2, V6 and V8.
        return float(np.sqrt(self.partial_r2 / (1.0 - self.partial_r2) + 1.0 + 0.76 + 0.25 * 0.24 + 0.0225 * 2.0))

    @property
    def disturbance(self) -> float:
        """σ, the standard deviation of the outcome around g."""
        variance, _ = _population(self)
        return float(np.sqrt(variance * (1.0 / self.r2 - 1.0)))

    def structural(self, treatment: np.ndarray, *covariates: np.ndarray) -> np.ndarray:
        """g₀(x, v) at treatments and the ten covariates."""
        v1, v2, v3, _, _, v6, _, v8, _, _ = covariates
        t = np.asarray(treatment, np.float64) / self.treatment_scale - 0.5 * self.binary_treatment
        shapes = {
            "linear": t,
            "concave": t - 0.6 * t**2,
            "threshold": 2.5 * expit(4.0 * t),
            "heterogeneous": t * (1.0 + v1),
            "interaction": t * (0.8 + 1.2 * v1 * v6),
            "null": 0.0 * t,
        }
        main = 0.3 * v1 + 0.2 * v2 - 0.2 * v3 + 0.3 * (v6 - 0.4) + 0.1 * (v8 - 2.0)
        return np.asarray(shapes[self.shape] + main, np.float64)

    def draw(self, n: int, seed: int) -> Draw:
        """All variables of `n` rows but the outcome: observed and hidden."""
        normal = stream(seed, _NORMALS).normal(size=(n, _CONTINUOUS)) @ _ROOT.T
        uniform, other, last = (stream(seed, _OTHERS, i) for i in range(3))
        v6 = uniform.random(n) < 0.4
        v7 = normal[:, 4] + other.normal(size=n) > 0.0
        v8 = stream(seed, _OTHERS, 3).poisson(2.0, size=n)
        v9 = stream(seed, _OTHERS, 4).poisson(np.exp(0.5 + 0.3 * normal[:, 3]))
        v = np.column_stack([normal, v6, v7, v8, v9, last.normal(size=n)]).astype(np.float64)
        w = stream(seed, _INSTRUMENTS).normal(size=(n, self.n_instruments))
        if self.instruments == "binary":
            w = np.where(w > 0.0, 1.0, -1.0)
        shock, noise = normals(n, seed, _SHOCK, _NOISE)
        if self.errors == "heteroskedastic":
            scale = np.sqrt((1.0 + v[:, 0] ** 2) / 2.0)
            shock, noise = shock * scale, noise * scale
        elif self.errors == "heavy-tailed":
            noise = stream(seed, _NOISE).standard_t(_DEGREES, size=n) / np.sqrt(_DEGREES / (_DEGREES - 2.0))
        main = 0.6 * v[:, 0] + 0.4 * v[:, 1] + 0.5 * (v[:, 5] - 0.4) + 0.15 * (v[:, 7] - 2.0)
        x = np.sqrt(self.partial_r2 / (1.0 - self.partial_r2)) * self._instrumented(w, v[:, 0]) + main + shock
        if self.binary_treatment:
            x = (x > 0.0).astype(np.float64)
        instruments = {f"w{i}": column for i, column in enumerate(w.T, start=1)}
        covariates = {f"v{i}": column for i, column in enumerate(v.T, start=1)}
        return Draw(x, instruments, covariates, shock, noise)

    def _instrumented(self, w: np.ndarray, first: np.ndarray) -> np.ndarray:
        """f(w, v): of mean zero given v, and variance one."""
        line = w.sum(axis=1) / np.sqrt(self.n_instruments)
        if self.first_stage == "linear":
            return line
        # The square of a binary instrument is constant, and the term zero.
        square = 0.5 * (w[:, 0] ** 2 - 1.0) / np.sqrt(2.0)
        variance = 1.25 if self.instruments == "binary" else 1.5
        return (line + square + 0.5 * w[:, 0] * first) / np.sqrt(variance)

    def grid(self) -> StructuralGrid:
        """2,800 rows of the population whose treatment lies between its 5% and 95% quantiles."""
        return population_grid(self, _population(self)[1], 0.05 * self.treatment_scale)


@cache
def _population(design: NoisyDesign) -> tuple[float, list[float]]:
    """The variance of g and quantiles of the treatment, from 200,000 rows."""
    rows = design.draw(REFERENCE_ROWS, REFERENCE_SEED)
    variance = float(design.structural(rows.treatment, *rows.covariates.values()).var())
    return variance, np.quantile(rows.treatment, QUANTILES).tolist()


@dataclass(frozen=True)
class NoisyDemandDesign(DemandDesign):
    """The demand design with its disturbance scaled, judged at prices and covariates of its population.

    The group is observed, or stands behind a vector or a picture. var(g) / var(Y) at ρ = 0.9 is 0.95, 0.57 and 0.32 at
    a disturbance of 50, 150 and 240.

    Args:
        disturbance: standard deviation of the outcome around the structural function.
        proxy: "group"; "vector", noisy columns of :class:`~bgmiv.designs.demand.VectorProxyDesign`; or "image", a
            picture of the group's digit, those of the grid of MNIST's test part.
        vector_dim: columns of the vector.
        images: "mnist", or "digits" for scikit-learn's.

    Example:
        >>> NoisyDemandDesign(240.0, proxy="vector").sample(50, rho=0.9, seed=0).covariates.shape
        (50, 301)
    """

    choices: ClassVar = {"proxy": _PROXIES}

    disturbance: float = 150.0
    proxy: str = "group"
    vector_dim: int = 300
    images: ImageSet = "mnist"

    @property
    def name(self) -> str:
        """By the proxy, with the other settings that are not the usual ones."""
        return name_with_settings(_PROXIES[self.proxy], self, NoisyDemandDesign(proxy=self.proxy))

    def observed(self, covariates: Columns, seed: int | None) -> Columns:
        """The time, and the group or what stands for it."""
        time, group = covariates["time"], covariates["group"]
        rng = stream(GRID_SEED if seed is None else seed, _OTHERS)
        if self.proxy == "vector":
            return {"time": time, "vector": VectorProxyDesign(self.vector_dim).proxy(group, rng)}
        if self.proxy == "image":
            return {"time": time, "image": MnistDesign(self.images).pictures(group, rng, test=seed is None)}
        return covariates

    def grid(self) -> StructuralGrid:
        """2,800 rows of the population whose price lies between its 5% and 95% quantiles."""
        prices = self.draw(2 * GRID_ROWS, GRID_SEED).treatment
        return population_grid(self, np.quantile(prices, QUANTILES).tolist(), half_step=0.5)
