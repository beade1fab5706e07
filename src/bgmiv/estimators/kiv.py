"""Kernel instrumental variable regression (Singh, Sahani and Gretton 2019): kernel ridge in both stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
import numpy as np
from jax import Array

from bgmiv.data.ivdata import IVData
from bgmiv.data.roles import RoleKind
from bgmiv.data.scaling import Affine, Identity, RoleScaling, Scaler
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.base import IVEstimator, chosen_preset
from bgmiv.estimators.checks import check_no_weights, check_one_number
from bgmiv.kernels import Floats, GaussianKernel, KernelFeatures, fit_features, median_lengthscales
from bgmiv.progress import Reporter, silent
from bgmiv.train.kiv import choose_penalty, first_stage, second_stage

__all__ = ["KIV", "PRESETS", "FittedKIV", "KIVConfig", "default_preset", "paper_preset"]


@dataclass(frozen=True)
class KIVConfig:
    """Kernel ridge regression of treatment features on instruments, then of the outcome on those predictions.

    With features ψ(x, v) and ζ(w, v) of Gaussian kernels, rows split in two samples of n and m:

    - stage 1, on the first sample: μ̂(w, v) = Ê[ψ(x, v) | w, v], a ridge regression with penalty nλ;
    - stage 2, on the second: ĥ minimises (1/m) Σ (y − ⟨h, μ̂(w, v)⟩)² + ξ‖h‖².

    λ minimises the error of μ̂ on the second sample. ξ is validated on the first sample, by one of two criteria:

    - "original", the paper's: (1/n) Σ (y − ĥ(x, v))², at the observed treatment. Its minimiser over all functions is
      E[y | x, v], the confounded regression, and not the structural function.
    - "projected": (1/n) Σ (y − Ê₋ᵢ[ĥ(x, v) | w, v])², the stage-2 loss on rows that it has not seen. The
      structural function minimises it, whatever the confounding. Ê₋ᵢ is the stage-1 operator without the row itself
      (leave-one-out in closed form): with the row in it, a flexible operator would hand back ĥ(x, v).

    "projected" is the default because it stays right under confounding. It is also flatter, since it cannot see what
    the instrument does not move, and its bare minimiser now and then takes far too small a ξ; so the strongest ξ is
    taken whose loss is within `standard_errors` of the smallest (the rule of one standard error, on paired
    differences).

    Args:
        validation: the criterion for ξ.
        standard_errors: how much worse than the smallest the validated loss of ξ may be; 0 takes the minimiser.
        split: share of rows in the first sample.
        stage1_grid, stage2_grid: (lowest, highest) log10 of λ and ξ.
        grid_size: penalties tried in each stage.
        lengthscales: "variable" takes the median distance of each variable (a vector block is one variable): a
            product of kernels; "joint" takes one of all columns together, as the DFIV study's code does.
        width: factor on the median distances.
        landmarks: up to this many rows in the first sample (n = 6,000 in all at the default split) every row carries a
            kernel function and nothing is approximated; beyond it a uniform sample of this many does (Nyström). With
            785 covariates n = 10,000 takes 33 CPU-seconds and 1.9 GB; time grows with the square of this number
            times n, memory with their product.
        scaling: how each role is scaled.
        use_instrument: False gives the no-IV twin, kernel ridge regression of the outcome on treatment and covariates.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 600))
        >>> x = w + u
        >>> data = IVData.from_arrays(np.sin(x) + u, x, instruments=w)
        >>> fitted = KIVConfig().fit(data, jax.random.key(0))
        >>> bool(np.abs(fitted.predict([-1.0, 1.0]) - np.sin([-1.0, 1.0])).max() < 0.4)
        True

    Reference: R. Singh, M. Sahani, A. Gretton (2019), Kernel instrumental variable regression, NeurIPS.
    """

    validation: Literal["projected", "original"] = "projected"
    standard_errors: float = 1.0
    split: float = 0.5
    stage1_grid: tuple[float, float] = (-10.0, -2.0)
    stage2_grid: tuple[float, float] = (-10.0, -2.0)
    grid_size: int = 50
    lengthscales: Literal["variable", "joint"] = "variable"
    width: float = 1.0
    landmarks: int = 3000
    scaling: RoleScaling = field(default_factory=RoleScaling)
    use_instrument: bool = True

    def __post_init__(self) -> None:
        """Refuse settings that cannot act."""
        if self.validation not in ("projected", "original"):
            raise ConfigError(f"validation must be 'projected' or 'original', got {self.validation!r}.")
        if self.lengthscales not in ("variable", "joint"):
            raise ConfigError(f"lengthscales must be 'variable' or 'joint', got {self.lengthscales!r}.")
        if not 0.0 < self.split < 1.0:
            raise ConfigError(f"split must lie between 0 and 1, got {self.split}.")
        for name in ("stage1_grid", "stage2_grid"):
            low, high = getattr(self, name)
            if not (np.isfinite([low, high]).all() and low <= high):
                raise ConfigError(f"{name} must be (lowest, highest) log10 penalty, got {getattr(self, name)}.")
        if not 0.0 <= self.standard_errors < np.inf:
            raise ConfigError(f"standard_errors must be 0 or more and finite, got {self.standard_errors}.")
        if not 0.0 < self.width < np.inf:
            raise ConfigError(f"width must be positive and finite, got {self.width}.")
        for name in ("grid_size", "landmarks"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")

    def fit(self, data: IVData, key: Array, reporter: Reporter = silent) -> FittedKIV:
        """Split, regress the features, validate λ, regress the outcome, validate ξ."""
        check_one_number(data, "KIV")
        check_no_weights(data, "KIV")
        first, second = self._split(data, key)
        scaler = self.scaling.fit(data if self.use_instrument else data.without_instruments())
        y = _scaled(scaler.outcome, data.outcome)
        x = _inputs(data.schema, scaler, data.treatment, data.covariates)

        reporter.start("KIV", 3)
        features, psi = self._features(x[first], [data.schema.treatment.width], data.schema)
        psi_second = features(x[second])
        reporter.advance(1, {})
        stage1 = None
        if self.use_instrument:
            w = _scaled(scaler.instruments, data.instruments)
            z = np.column_stack([w, _scaled(scaler.covariates, data.covariates)])
            instruments, zeta = self._features(z[first], [1] * w.shape[1], data.schema)
            stage1 = first_stage(zeta, instruments(z[second]), psi, psi_second, self._penalties(self.stage1_grid))
        reporter.advance(1, {})
        penalties = self._penalties(self.stage2_grid)
        candidates = second_stage(psi_second if stage1 is None else stage1.means, y[second], penalties)
        curves = psi @ candidates
        if stage1 is not None and self.validation == "projected":
            curves = stage1.leave_one_out(curves)
        squares = (y[first][:, None] - curves) ** 2
        chosen = choose_penalty(squares, self.standard_errors)
        losses = squares.mean(axis=0)
        reporter.advance(1, {"loss": float(losses[chosen])})
        reporter.finish()
        return FittedKIV(
            config=self,
            schema=data.schema,
            scaler=scaler,
            kernel=features.kernel,
            points=features.points,
            weights=features.weights(candidates[:, chosen]),
            penalties=(float("nan") if stage1 is None else stage1.penalty, float(penalties[chosen])),
            losses=(np.zeros(0) if stage1 is None else stage1.losses, losses),
        )

    def _split(self, data: IVData, key: Array) -> tuple[np.ndarray, np.ndarray]:
        if self.use_instrument and data.instruments.shape[1] == 0:
            raise DataError("KIV needs an instrument; pass at least one in instruments=.")
        size = round(self.split * data.n_rows)
        if min(size, data.n_rows - size) < 2:
            raise DataError(
                f"KIV splits {data.n_rows} rows into samples of {size} and {data.n_rows - size}, and each needs 2 or "
                "more; pass more rows."
            )
        rows = np.random.default_rng(np.asarray(jax.random.key_data(key))).permutation(data.n_rows)
        return rows[:size], rows[size:]

    def _features(self, values: Floats, leading: list[int], schema: Schema) -> tuple[KernelFeatures, Floats]:
        """The features of variables of `leading` widths followed by the covariates."""
        if self.lengthscales == "joint":
            groups = [slice(0, values.shape[1])]
        else:
            ends = np.cumsum(leading).tolist()
            groups = [slice(end - width, end) for width, end in zip(leading, ends, strict=True)]
            groups += _variables(schema, sum(leading))
        kernel = GaussianKernel(self.width * median_lengthscales(values, groups))
        return fit_features(kernel, values, self.landmarks)

    def _penalties(self, grid: tuple[float, float]) -> Floats:
        # Strongest first: of equal losses the smoothest fit is taken.
        return np.logspace(grid[1], grid[0], self.grid_size)


@dataclass(frozen=True, eq=False)
class FittedKIV:
    """A fitted ĥ(x, v) = Σᵢ weightᵢ k(pointᵢ, (x, v)).

    Attributes:
        config: the settings.
        schema: names and kinds of the training data.
        scaler: the fitted scaling of each role.
        kernel: the kernel of treatment and covariates.
        points: (r, 1 + p) scaled rows that carry a kernel function each; three or more levels of the treatment have a
            column each.
        weights: (r,).
        penalties: the chosen (λ, ξ); λ is NaN for the no-IV twin.
        losses: validation losses of both stages, from the strongest penalty to the weakest.
        history: empty; nothing is iterated.
    """

    config: KIVConfig
    schema: Schema
    scaler: Scaler
    kernel: GaussianKernel
    points: Floats
    weights: Floats
    penalties: tuple[float, float]
    losses: tuple[Floats, Floats]
    history: tuple[()] = ()

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """The structural function in original units, `(m,)`."""
        x, v = self.schema.check_query(treatment, covariates)
        rows = _inputs(self.schema, self.scaler, x, v)
        return self.scaler.outcome.inverse(self.kernel.expand(rows, self.points, self.weights))


def default_preset() -> KIVConfig:
    """Standardised roles, one lengthscale a variable, the projected criterion with the rule of one standard error."""
    return KIVConfig()


def paper_preset() -> KIVConfig:
    """The DFIV study's public settings: raw units, one joint kernel exp(−d²/median d²), the original criterion."""
    raw = RoleScaling(Identity(), Identity(), Identity(), Identity())
    return KIVConfig(
        validation="original", standard_errors=0.0, lengthscales="joint", width=float(np.sqrt(0.5)), scaling=raw
    )


PRESETS: dict[str, Callable[[], KIVConfig]] = {"default": default_preset, "paper": paper_preset}


class KIV(IVEstimator):
    """Kernel instrumental variable regression.

    Args:
        preset: "default", or "paper" (the DFIV study's public settings).
        validation: "projected" or "original", the criterion for the second stage's penalty.
        scaling: how each role is scaled.
        use_instrument: False gives the no-IV twin, kernel ridge regression.
        treatment_kind: "auto", "continuous", "binary" or "categorical", as in `IVData.from_arrays`.
        outcome_kind: the same for the outcome; it may have two levels, not more.
        random_state: the seed of the split; None draws one and keeps it in `seed_`.
        progress: show progress bars on the terminal.

    Arguments left at None take the preset's value; `KIVConfig` explains them and has more.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 300))
        >>> x = w + v + u
        >>> KIV(random_state=0).fit(2.0 * x + v - u, x, instruments=w, covariates=v).predict(0.0, v[:3]).shape
        (3,)
    """

    def __init__(
        self,
        preset: Literal["default", "paper"] = "default",
        *,
        validation: Literal["projected", "original"] | None = None,
        scaling: RoleScaling | None = None,
        use_instrument: bool = True,
        treatment_kind: RoleKind = "auto",
        outcome_kind: RoleKind = "auto",
        random_state: int | None = None,
        progress: bool = False,
    ) -> None:
        """Store the arguments; they are checked by `fit`."""
        self.preset = preset
        self.validation = validation
        self.scaling = scaling
        self.use_instrument = use_instrument
        self.treatment_kind = treatment_kind
        self.outcome_kind = outcome_kind
        self.random_state = random_state
        self.progress = progress

    def _config(self) -> KIVConfig:
        config = replace(chosen_preset(PRESETS, self.preset), use_instrument=self.use_instrument)
        if self.validation is not None:
            config = replace(config, validation=self.validation)
        return config if self.scaling is None else replace(config, scaling=self.scaling)


def _scaled(affine: Affine, values: np.ndarray) -> Floats:
    # Not Affine.transform: its single precision would show in penalties as small as 1e-10.
    return (np.asarray(values, dtype=np.float64) - affine.shift) / affine.scale


def _inputs(schema: Schema, scaler: Scaler, treatment: np.ndarray, covariates: np.ndarray) -> Floats:
    """What the structural function is a function of: treatment and covariates, scaled."""
    x = schema.treatment.columns(_scaled(scaler.treatment, treatment))
    return np.column_stack([x, _scaled(scaler.covariates, covariates)])


def _variables(schema: Schema, offset: int) -> list[slice]:
    """The columns of each covariate: a wide block is one variable, other columns one each."""
    slices: list[slice] = []
    for block in schema.blocks:
        start, stop = block.start + offset, block.stop + offset
        if block.kind in (BlockKind.continuous, BlockKind.binary):
            slices += [slice(i, i + 1) for i in range(start, stop)]
        else:
            slices.append(slice(start, stop))
    return slices
