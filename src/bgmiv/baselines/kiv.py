"""Kernel instrumental variable regression (Singh, Sahani and Gretton 2019): kernel ridge in both stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.covariance import cluster_sums
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query
from bgmiv.data.scaling import UNSCALED, Affine, RoleScaling, Scaler
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.data.within import level_slices
from bgmiv.errors import DataError
from bgmiv.estimators.base import SeededEstimator
from bgmiv.estimators.fitted import MethodConfig, check_instrument, check_no_weights, check_one_number
from bgmiv.fitted import FittedMethod
from bgmiv.intervals import Floats
from bgmiv.kernels import GaussianKernel, KernelFeatures, fit_features, kernel_pieces, median_lengthscales
from bgmiv.nn.settings import check_bounds, check_choice
from bgmiv.progress import Reporter, silent
from bgmiv.support import LinearSupport

__all__ = ["KIV", "PRESETS", "FittedKIV", "KIVConfig", "choose_penalty", "paper_preset"]

# 1 − leverage of a row that its own sample reproduces; below this the division has no digits left.
_MIN_REST = 1e-10
# Candidates for both penalties, strongest first: of equal losses the smoothest fit is taken.
_PENALTIES = np.logspace(-2.0, -10.0, 50)
# Up to this many rows in the first sample (n = 6,000 in all) every row carries a kernel function and nothing is
# approximated; beyond it a uniform sample of this many does (Nyström). With 785 covariates n = 10,000 takes 33
# CPU-seconds and 1.9 GB; time grows with the square of this number times n, memory with their product.
_LANDMARKS = 3000


@dataclass(frozen=True)
class KIVConfig(MethodConfig):
    """Kernel ridge regression of treatment features on instruments, then of the outcome on those predictions.

    With features ψ(x, v) and ζ(w, v) of Gaussian kernels, rows split in two halves of n and m:

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
        lengthscales: "variable" takes the median distance of each variable (a vector block is one variable): a
            product of kernels; "joint" takes one of all columns together, as the DFIV study's code does.
        width: factor on the median distances.
        scaling: how each role is scaled.
        use_instrument: False ignores the instruments: kernel ridge regression on treatment and covariates.

    Example:
        >>> from bgmiv.effects import predict
        >>> rng = np.random.default_rng(0)
        >>> w, u = rng.normal(size=(2, 600))
        >>> x = w + u
        >>> data = IVData.from_arrays(np.sin(x) + u, x, instruments=w)
        >>> fitted = KIVConfig().fit(data)
        >>> bool(np.abs(predict(fitted, [-1.0, 1.0]) - np.sin([-1.0, 1.0])).max() < 0.4)
        True

    Reference: R. Singh, M. Sahani, A. Gretton (2019), Kernel instrumental variable regression, NeurIPS.
    """

    validation: Literal["projected", "original"] = "projected"
    standard_errors: float = 1.0
    lengthscales: Literal["variable", "joint"] = "variable"
    width: float = 1.0
    scaling: RoleScaling = field(default_factory=RoleScaling)
    use_instrument: bool = True

    def __post_init__(self) -> None:
        check_choice(self, "validation", "projected", "original")
        check_choice(self, "lengthscales", "variable", "joint")
        check_bounds(self, "width", standard_errors=0)

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> FittedKIV:
        """Split, regress the features, validate λ, regress the outcome, validate ξ."""
        check_one_number(data, "KIV")
        check_no_weights(data, "KIV")
        first, second = self._split(data, seed)
        schema = data.schema
        scaler = self.scaling.fit(data if self.use_instrument else data.without_instruments())
        y, v = _scaled(scaler.outcome, data.outcome), _scaled(scaler.covariates, data.covariates)
        x = np.column_stack([schema.treatment.columns(_scaled(scaler.treatment, data.treatment)), v])

        reporter.start("KIV", 3)
        features, psi = self._features(x[first], [schema.treatment.width], schema)
        psi_second = features(x[second])
        reporter.advance(1, {})
        stage1 = None
        if self.use_instrument:
            w = _scaled(scaler.instruments, data.instruments)
            z = np.column_stack([w, v])
            instruments, zeta = self._features(z[first], [1] * w.shape[1], schema)
            stage1 = _first_stage(zeta, instruments(z[second]), psi, psi_second)
        reporter.advance(1, {})
        candidates = _second_stage(psi_second if stage1 is None else stage1.means, y[second])
        curves = psi @ candidates
        if stage1 is not None and self.validation == "projected":
            curves = stage1.leave_out(curves, None if data.groups is None else data.groups[first])
        squares = (y[first][:, None] - curves) ** 2
        losses = squares.mean(axis=0)
        if data.groups is not None:
            # Groups are what is independent.
            codes = np.unique(data.groups[first], return_inverse=True)[1]
            squares = cluster_sums(squares, codes, int(codes.max()) + 1)
        chosen = choose_penalty(squares, self.standard_errors)
        reporter.advance(1, {"loss": float(losses[chosen])})
        reporter.finish()
        return FittedKIV(
            config=self,
            schema=schema,
            support=LinearSupport.fit(data),
            scaler=scaler,
            kernel=features.kernel,
            points=features.points,
            weights=features.weights(candidates[:, chosen]),
            penalties=(float("nan") if stage1 is None else stage1.penalty, float(_PENALTIES[chosen])),
            losses=(np.zeros(0) if stage1 is None else stage1.losses, losses),
        )

    def _split(self, data: IVData, seed: int) -> tuple[np.ndarray, np.ndarray]:
        check_instrument(data, "KIV", use_instrument=self.use_instrument)
        size = round(0.5 * data.n_rows)
        if min(size, data.n_rows - size) < 2:
            raise DataError(
                f"KIV splits {data.n_rows} rows into samples of {size} and {data.n_rows - size}, and each needs 2 or "
                "more; pass more rows."
            )
        rng = np.random.default_rng([0, seed])
        rows = rng.permutation(data.n_rows)
        if data.groups is not None and len(np.unique(data.groups)) > 1:
            # Whole groups in either sample, in random order; rows of a sample are in random order too.
            codes, counts = np.unique(data.groups, return_inverse=True, return_counts=True)[1:]
            order = rng.permutation(len(counts))
            filled = np.cumsum(counts[order])
            n_first = int(np.argmin(np.abs(filled[:-1] - size))) + 1
            inside = np.isin(codes[rows], order[:n_first])
            return rows[inside], rows[~inside]
        return rows[:size], rows[size:]

    def _features(self, values: Floats, leading: list[int], schema: Schema) -> tuple[KernelFeatures, Floats]:
        """The features of variables of `leading` widths followed by the covariates, and their values."""
        widths = list(leading)
        for block in schema.blocks:
            # A wide block is one variable, other columns one each.
            single = block.kind in (BlockKind.continuous, BlockKind.binary)
            widths += [1] * block.width if single else [block.width]
        if self.lengthscales == "joint":
            widths = [values.shape[1]]
        kernel = GaussianKernel(self.width * median_lengthscales(values, level_slices(widths)))
        return fit_features(kernel, values, _LANDMARKS)


class _FirstStage(NamedTuple):
    """The fitted operator Ê[· | w, v].

    Attributes:
        means: (m, r), Ê[ψ | w, v] on the second sample.
        rotated: (n, q), the first sample's instrument features in the basis of their second moments.
        shrink: (q,), 1/(eigenvalue + nλ).
        penalty: λ.
        losses: (g,), the validated loss of each penalty.
    """

    means: Floats
    rotated: Floats
    shrink: Floats
    penalty: float
    losses: Floats

    def leave_out(self, values: Floats, groups: NDArray[np.integer] | None) -> Floats:
        """Ê₋ᵢ[values | wᵢ, vᵢ] on the first sample, one regression a column: each row predicted by the other groups.

        That is (Hᵢ·values − Hᵢᵢ valuesᵢ)/(1 − Hᵢᵢ), with H the smoothing matrix, and with the rows of a group in the
        place of i, valuesᵢ − (I − Hᵢᵢ)⁻¹ (valuesᵢ − Hᵢ·values).
        """
        scaled = self.rotated * self.shrink
        smooth = scaled @ (self.rotated.T @ values)
        if groups is not None:
            left = np.empty_like(values)
            for group in np.unique(groups):
                own = groups == group
                rest = (1.0 + _MIN_REST) * np.eye(int(own.sum())) - scaled[own] @ self.rotated[own].T
                left[own] = values[own] - np.linalg.solve(rest, values[own] - smooth[own])
            return left
        leverage = np.einsum("ij,ij->i", scaled, self.rotated)[:, None]
        return (smooth - leverage * values) / np.maximum(1.0 - leverage, _MIN_REST)


def _first_stage(zeta: Floats, zeta_second: Floats, psi: Floats, psi_second: Floats) -> _FirstStage:
    """Ridge regression of ψ (n, r) on ζ (n, q); λ has the smallest mean ‖ψ − Ê[ψ | w, v]‖² on the second sample.

    One eigendecomposition serves every penalty. The kernel is one at distance zero, so ‖ψ‖ = 1, and the loss counts
    the part of the second sample's ψ that lies outside the span of the features too.
    """
    eigenvalues, basis = np.linalg.eigh(zeta.T @ zeta)
    rotated, rotated_second = zeta @ basis, zeta_second @ basis
    target = rotated.T @ psi
    gram = (rotated_second.T @ rotated_second) * (target @ target.T)
    cross = np.einsum("ij,ij->j", rotated_second, psi_second @ target.T)
    shrink = 1.0 / (np.maximum(eigenvalues, 0.0) + len(psi) * _PENALTIES[:, None])
    fit = np.einsum("gi,gi->g", shrink @ gram, shrink) - 2.0 * shrink @ cross
    losses = 1.0 + fit / len(psi_second)
    best = int(np.argmin(losses))
    means = (rotated_second * shrink[best]) @ target
    return _FirstStage(means, rotated, shrink[best], float(_PENALTIES[best]), losses)


def _second_stage(means: Floats, outcome: Floats) -> Floats:
    """Ridge regression of the outcome (m,) on the means (m, r): (r, g) coefficients, one column for each penalty."""
    eigenvalues, basis = np.linalg.eigh(means.T @ means)
    moments = basis.T @ (means.T @ outcome)
    return basis @ (moments[:, None] / (np.maximum(eigenvalues, 0.0)[:, None] + len(means) * _PENALTIES))


def choose_penalty(squares: Floats, standard_errors: float) -> int:
    """The first penalty whose mean loss is within so many standard errors of the smallest.

    The standard error is that of the difference in loss, row by row, to the best penalty. `squares` (n, g) holds the
    loss of each row under each penalty, the strongest penalty first.

    Example:
        >>> losses = np.array([[1.0, 0.9, 0.5], [1.0, 0.9, 1.2]])
        >>> choose_penalty(losses, 0.0), choose_penalty(losses, 1.0)
        (2, 0)
    """
    best = int(np.argmin(squares.mean(axis=0)))
    differences = squares - squares[:, [best]]
    allowed = standard_errors * differences.std(axis=0) / np.sqrt(len(squares))
    return int(np.argmax(differences.mean(axis=0) <= allowed))


@dataclass(frozen=True, eq=False)
class FittedKIV(FittedMethod):
    """A fitted ĥ(x, v) = Σᵢ weightᵢ k(pointᵢ, (x, v)).

    Attributes:
        config, schema, support, scaler: the settings, and what the fit keeps of its data.
        kernel: the kernel of treatment and covariates.
        points: (r, q + p) scaled rows that carry a kernel function each; q is 1, or the number of levels of a treatment
            with three or more.
        weights: (r,).
        penalties: the chosen (λ, ξ); λ is NaN without the instrument.
        losses: validation losses of both stages, from the strongest penalty to the weakest.
    """

    closed_form = True

    config: KIVConfig
    schema: Schema
    support: LinearSupport
    scaler: Scaler
    kernel: GaussianKernel
    points: Floats
    weights: Floats
    penalties: tuple[float, float]
    losses: tuple[Floats, Floats]

    def encode(self, covariates: FloatArray) -> Encoded:
        """The scaled covariates."""
        return (_scaled(self.scaler.covariates, covariates),)

    def at(self, query: Query) -> Floats:
        """The structural function in units of the outcome, `(m, n)`."""
        (v,) = query.rows.encoded_by(self)
        (m, n), width = query.shape, self.schema.treatment.width
        scaled = _scaled(self.scaler.treatment, query.treatment).ravel()
        x = np.asarray(self.schema.treatment.columns(scaled), np.float64).reshape(m, -1, width)
        of_treatment, of_covariates = (GaussianKernel(s) for s in np.split(self.kernel.lengthscales, [width]))
        points_x, points_v = np.split(self.points, [width], axis=1)
        values = np.empty((m, n))
        for rows in kernel_pieces(n, len(self.points)):
            # The kernel is a product, so the covariates' part serves every treatment.
            weights = of_covariates(v[rows], points_v) * self.weights if v.shape[1] else self.weights[None]
            if x.shape[1] == 1:
                values[:, rows] = of_treatment(x[:, 0], points_x) @ weights.T
            else:
                values[:, rows] = [np.sum(of_treatment(each[rows], points_x) * weights, axis=1) for each in x]
        return self.scaler.outcome.inverse(values)


def paper_preset() -> KIVConfig:
    """The DFIV study's public settings: raw units, one joint kernel exp(−d²/median d²), the original criterion."""
    return KIVConfig(
        validation="original", standard_errors=0.0, lengthscales="joint", width=float(np.sqrt(0.5)), scaling=UNSCALED
    )


PRESETS = {"default": KIVConfig, "paper": paper_preset}


@dataclass(eq=False, repr=False, kw_only=True)
class KIV(SeededEstimator):
    """Kernel instrumental variable regression.

    Args:
        preset: "default", or "paper" (the DFIV study's public settings).
        validation: "projected" or "original", the criterion for the second stage's penalty.
        scaling: how each role is scaled.
        use_instrument: False ignores the instruments: kernel ridge regression.
        treatment_kind, outcome_kind: as in `IVData.from_arrays`; an outcome may have two levels, not more.
        random_state: the seed of the split; None draws one and keeps it in `seed_`.
        progress: show progress bars; None shows them in notebooks only.

    Arguments left at None take the preset's value; `KIVConfig` explains them and has more.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 300))
        >>> x = w + v + u
        >>> KIV(random_state=0).fit(2.0 * x + v - u, x, instruments=w, covariates=v).predict(0.0, v[:3]).shape
        (3,)
    """

    presets = PRESETS
    fitted_class = FittedKIV

    preset: Literal["default", "paper"] = "default"
    validation: Literal["projected", "original"] | None = None
    scaling: RoleScaling | None = None


def _scaled(affine: Affine, values: np.ndarray) -> Floats:
    # Not Affine.transform: its single precision would show in penalties as small as 1e-10.
    return (np.asarray(values, dtype=np.float64) - affine.shift) / affine.scale
