"""What determines BGM-IV's networks and their training: settings alone, which need no network library."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace
from itertools import accumulate, pairwise
from math import log, pi
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from bgmiv.errors import ConfigError
from bgmiv.integrate import GaussHermite, IntegrationRule, MonteCarlo
from bgmiv.nn.settings import FeatureConfig, check_bounds, check_choice, check_widths

if TYPE_CHECKING:
    from jax import Array

__all__ = [
    "EGM", "Alternating", "CovariateConfig", "Ensemble", "ImageDecoderConfig", "JointTraining", "LatentLayout",
    "LatentMap", "LatentPosterior", "ModelConfig",
]  # fmt: skip

_MAX_CHAINS = 32
# A member has failed whose loss is beyond so many times the median of all.
_FAILED_RATIO = 3.0


@dataclass(frozen=True)
class LatentLayout:
    r"""Sizes of $Z = (Z_0, Z_1, Z_2, Z_3)$ with prior $\mathcal N(0, I)$ (eq. bgm_iv_joint_model).

    Args:
        shared: $Z_0$, enters treatment and outcome.
        outcome_only: $Z_1$.
        treatment_only: $Z_2$.
        nuisance: $Z_3$, explains covariates alone.

    Example:
        >>> layout = LatentLayout(2, 2, 1, 2)
        >>> layout.dim, layout.for_outcome(np.arange(7)).tolist(), layout.for_treatment(np.arange(7)).tolist()
        (7, [0, 1, 2, 3], [0, 1, 4])
    """

    shared: int
    outcome_only: int
    treatment_only: int
    nuisance: int

    def __post_init__(self) -> None:
        """Refuse negative sizes and an empty latent space."""
        sizes = astuple(self)
        if any(isinstance(size, bool) or not hasattr(size, "__index__") or size < 0 for size in sizes):
            raise ConfigError(f"latent sizes must be whole numbers of at least 0, got {sizes}.")
        if self.dim == 0:
            raise ConfigError("the latent space is empty: give at least one of the four parts a size above 0.")

    @property
    def dim(self) -> int:
        """All latent coordinates."""
        return self.shared + self.outcome_only + self.treatment_only + self.nuisance

    @property
    def parts(self) -> dict[str, slice]:
        """The coordinates of each of the four parts by name, empty ones included."""
        names = ("shared", "outcome-only", "treatment-only", "nuisance")
        edges = pairwise(accumulate(astuple(self), initial=0))
        return {name: slice(start, stop) for name, (start, stop) in zip(names, edges, strict=True)}

    @property
    def outcome_dim(self) -> int:
        """Coordinates the outcome sees."""
        return self.shared + self.outcome_only

    @property
    def treatment_dim(self) -> int:
        """Coordinates the treatment sees."""
        return self.shared + self.treatment_only

    def for_outcome(self, z: Array) -> Array:
        """$(z_0, z_1)$ of one row."""
        return z[: self.outcome_dim]

    def for_treatment(self, z: Array) -> Array:
        """$(z_0, z_2)$ of one row."""
        import jax.numpy as jnp

        start = self.outcome_dim
        return jnp.concatenate([z[: self.shared], z[start : start + self.treatment_only]])

    def log_prior(self, z: Array) -> Array:
        r"""$\log \mathcal N(z; 0, I)$ of one row."""
        return -0.5 * ((z**2).sum() + self.dim * log(2.0 * pi))

    def sample_prior(self, key: Array, n: int) -> Array:
        """`n` draws from the prior."""
        import jax

        return jax.random.normal(key, (n, self.dim))


@dataclass(frozen=True)
class ImageDecoderConfig:
    """How image blocks are generated; the defaults are the paper's.

    Args:
        decoder: "conv", the paper's transposed convolutions, or "dense", layers to the flat pixels.
        filters: channels of the first map of the convolutions, and after each doubling of its sides.
        dense_hidden: hidden units of the layers to flat pixels.
        weight: factor of the block's log-likelihood.
    """

    decoder: Literal["conv", "dense"] = "conv"
    filters: tuple[int, int, int] = (128, 64, 32)
    dense_hidden: tuple[int, ...] = (128, 512)
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        check_choice(self, "decoder", "conv", "dense")
        check_bounds(self, "weight")
        if len(self.filters) != 3:
            raise ConfigError(f"the decoder's filters of images must hold 3 numbers, got {self.filters}.")
        check_widths(self, "filters", "dense_hidden", what=" of images")


@dataclass(frozen=True)
class CovariateConfig:
    """Shapes and weights of encoder and generator; the defaults are the paper's.

    Args:
        features: what the encoder sees of each block.
        images: how image blocks are generated.
        dense_hidden: hidden units of encoder and generator when all covariates are continuous columns or in vector
            blocks no wider than `features.narrow_vector`.
        dense_decoder_hidden: hidden units of the generator then; None: those of the encoder.
        block_encoder_hidden: hidden units of the encoder after the blocks' features.
        vector_decoder_hidden: hidden units of a vector block's decoder branch.
        column_decoder_hidden: hidden units of a column block's decoder branch.
        noise_levels: of these standard deviations a fit chooses one for the training noise of each wide vector block
            (`bgmiv.preprocess.reduction`); none: `features.vector_noise`.
        shared_variance: one variance for all continuous columns (the authors' code) instead of one each (the paper).
        latent_features: positions of the features that are the latents, in the order of the layout; none: a network
            encodes the latents from all features.
        block_reduction: "mean" weighs each block's log-likelihood as one coordinate (the authors' code for vectors,
            so that a scalar block weighs as much as a wide one); "sum" is the plain density.
    """

    features: FeatureConfig = field(default_factory=FeatureConfig)
    images: ImageDecoderConfig = field(default_factory=ImageDecoderConfig)
    dense_hidden: tuple[int, ...] = (64, 64, 64, 64, 64)
    dense_decoder_hidden: tuple[int, ...] | None = None
    block_encoder_hidden: tuple[int, ...] = (128, 64)
    vector_decoder_hidden: tuple[int, ...] = (128, 64)
    column_decoder_hidden: tuple[int, ...] = (64,)
    noise_levels: tuple[float, ...] = ()
    shared_variance: bool = False
    latent_features: tuple[int, ...] = ()
    block_reduction: Literal["sum", "mean"] = "mean"

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        check_choice(self, "block_reduction", "sum", "mean")
        if any(level < 0.0 for level in self.noise_levels):
            raise ConfigError(f"noise_levels must be at least 0, got {self.noise_levels}.")
        check_widths(self, "dense_hidden", "dense_decoder_hidden", "block_encoder_hidden")
        check_widths(self, "vector_decoder_hidden", "column_decoder_hidden")


@dataclass(frozen=True)
class ModelConfig:
    """Shapes of the generators; the defaults are the paper's.

    Args:
        layout: the latent partition.
        treatment_hidden: hidden units of H.
        outcome_hidden: hidden units of F.
        treatment_trunk: widths of a network from $(z_0, z_2)$ to the features that H sees in their place; none without.
        outcome_trunk: the same from $(z_0, z_1)$, for F.
        embedding: hidden widths, and the largest output, of one network for each part of the latents, before trunks, H
            and F, which see its outputs in place of the part; none without.
        covariates: shapes of E and G.
    """

    layout: LatentLayout = field(default_factory=lambda: LatentLayout(2, 2, 1, 2))
    treatment_hidden: tuple[int, ...] = (64, 32, 8)
    outcome_hidden: tuple[int, ...] = (64, 32, 8)
    covariates: CovariateConfig = field(default_factory=CovariateConfig)
    treatment_trunk: tuple[int, ...] = ()
    outcome_trunk: tuple[int, ...] = ()
    embedding: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse widths below one."""
        check_widths(self, "treatment_hidden", "outcome_hidden", "treatment_trunk", "outcome_trunk", "embedding")


@dataclass(frozen=True)
class LatentMap:
    """Settings of the test-time MAP; the defaults are the paper's.

    Args:
        steps: Adam (0.9, 0.99) steps from the encoder's latents; 0 keeps the encoder's.
        learning_rate: Adam's step size. A coordinate moves at most about `steps * learning_rate`.
    """

    steps: int = 1000
    learning_rate: float = 1e-4

    def __post_init__(self) -> None:
        """Refuse settings that cannot run."""
        check_bounds(self, "learning_rate", steps=0)


@dataclass(frozen=True)
class LatentPosterior:
    """Settings of the latent posterior's chains.

    Args:
        n_chains: chains a row; they start apart, so that their agreement means something.
        n_warmup: draws a chain in which step sizes (and NUTS' metric) are set; they are not kept.
        n_draws: draws kept a chain.
        acceptance: the share of proposals that step sizes are set to accept.
        seed: of the draws that predictions are made from.
    """

    n_chains: int = 4
    n_warmup: int = 150
    n_draws: int = 500
    acceptance: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that cannot run, or whose draws could not be judged."""
        for name, minimum in (("n_chains", 2), ("n_warmup", 20), ("n_draws", 4), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < minimum:
                raise ConfigError(f"{name} must be a whole number of at least {minimum}, got {value!r}.")
        if self.n_chains > _MAX_CHAINS:
            raise ConfigError(f"n_chains must be at most {_MAX_CHAINS}, got {self.n_chains}.")
        if not 0.0 < self.acceptance < 1.0:
            raise ConfigError(f"acceptance must lie between 0 and 1, got {self.acceptance}.")


@dataclass(frozen=True)
class Ensemble:
    """How many members there are and what share of the rows each leaves out.

    Args:
        members: models trained; their predictions are averaged.
        held_out: share of the rows that each member leaves out, in whole groups; no two members leave out the same row
            as long as `members * held_out` is at most one. Below 20 rows a share nothing is left out.
        attempts: how often a member is trained at most, when training diverges or its held-out loss is beyond
            three times the median of all members.
        bootstrap: weigh each member's rows by chance (the Bayesian bootstrap; whole groups of rows, where the data have
            groups), so that members differ as fits to other samples would.
    """

    members: int = 1
    held_out: float = 0.0
    attempts: int = 2
    bootstrap: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        check_bounds(self, members=1, attempts=1)
        if self.bootstrap and self.members < 2:
            raise ConfigError(f"the bootstrap needs members >= 2, and 20 or more to be of use, got {self.members}.")
        if not 0.0 <= self.held_out <= 0.5:
            raise ConfigError(f"held_out must lie between 0 and 0.5, got {self.held_out}.")

    @property
    def covers(self) -> bool:
        """Whether the members leave out every row between them."""
        return self.members * self.held_out > 1.0 - 1e-9

    def failed(self, losses: np.ndarray) -> np.ndarray:
        """Which members failed, from the held-out loss of each: those not finite, and those far above the median."""
        finite = np.isfinite(losses)
        if not finite.any():
            return ~finite
        with np.errstate(invalid="ignore"):
            return ~finite | (losses > _FAILED_RATIO * np.median(losses[finite]))


@dataclass(frozen=True)
class EGM:
    """The EGM warm start: its settings and its step; the defaults are the paper's.

    Args:
        iterations: generator steps (the authors' loop runs one more than the configured 50,000).
        batch_size: rows a batch, drawn uniformly.
        learning_rate: of both Adams (0.9, 0.99).
        critic_steps: critic steps a generator step.
        critic_hidden: hidden units of the tanh critic.
        gradient_penalty: weight of the critic's gradient penalty.
        spread_penalty: weight on the mean squared raw spreads.
        integration: nodes of the outcome's mean; `GaussHermite(1)` is the plug-in at the mean treatment, and
            `GaussHermite(8)` with `treatment_spread="residual"` what the authors' later code does.
        treatment_spread: spread of the nodes of a continuous treatment: "head", as the treatment's head has it, which
            this phase does not fit, or "residual", the root of a moving average of squared errors, at most 1.
        chunk: iterations between two reports and saves.
    """

    iterations: int = 50_001
    batch_size: int = 64
    learning_rate: float = 2e-4
    critic_steps: int = 5
    critic_hidden: tuple[int, ...] = (64, 32, 8)
    gradient_penalty: float = 10.0
    spread_penalty: float = 0.001
    integration: IntegrationRule = GaussHermite(1)
    treatment_spread: Literal["head", "residual"] = "head"
    chunk: int = 500

    name: ClassVar[str] = "EGM warm start"
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "adversarial", "covariates", "latents", "treatment", "outcome")

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        check_bounds(self, "learning_rate", iterations=0, batch_size=2, critic_steps=1, chunk=1)
        check_choice(self, "treatment_spread", "head", "residual")

    @property
    def n_steps(self) -> int:
        """Iterations."""
        return self.iterations

    def resolve(self, n_rows: int) -> EGM:
        """These settings: they do not depend on the number of rows."""
        return self


@dataclass(frozen=True)
class JointTraining:
    """Joint training: its settings and its step.

    Args:
        iterations: steps; None resolves them and `chunk` by the number of rows (`resolve`).
        batch_size: rows a batch, drawn uniformly.
        learning_rate: Adam's step size at the start; it falls to zero along a cosine.
        prior_weight: weight of the distance between encoded covariates and prior, where an encoder is trained.
        covariate_weight: weight of the covariates' log-likelihood.
        n_directions: projections of the sliced distance.
        weight_decay: decoupled decay of the kernels of H and F, and of all networks between latents and these, as a
            share of the step size.
        integration: nodes of the outcome's mean.
        residual_nodes: how many quantiles of the treatment's residuals take their place, in a second training, where
            held-out residuals are not normal (`bgmiv.bgm.residuals`); 0 for never.
        chunk: iterations between two reports, and between two evaluations on held-out rows where there are any.
        tolerance: a model is clearly worse than another if its held-out loss is more than this many times the other's;
            with a discrete outcome, if it is higher at all.
        patience: evaluations in a row that are clearly worse than the best one, after which training stops.
    """

    iterations: int | None = 10_000
    batch_size: int = 128
    learning_rate: float = 1e-3
    prior_weight: float = 5.0
    covariate_weight: float = 0.1
    n_directions: int = 32
    weight_decay: float = 0.0
    integration: IntegrationRule = GaussHermite(8)
    residual_nodes: int = 0
    chunk: int = 500
    tolerance: float = 1.05
    patience: int = 4

    name: ClassVar[str] = "joint training"
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "prior", "covariates", "treatment", "outcome")

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        check_bounds(self, "learning_rate", iterations=0, batch_size=2, n_directions=1, chunk=1)
        check_bounds(self, weight_decay=0, patience=1, tolerance=1, residual_nodes=0)

    @property
    def n_steps(self) -> int:
        """Iterations."""
        if self.iterations is None:
            raise ConfigError("the iterations of joint training are still open: call resolve(n_rows) first.")
        return self.iterations

    def resolve(self, n_rows: int) -> JointTraining:
        """With iterations left open: 3000 up to 1000 rows, beyond that growing like their square root, 30,000 at most.

        More rows allow for more detail, and need fewer passes for it; ten evaluations are spread over the iterations.
        """
        if self.iterations is not None:
            return self
        iterations = int(min(max(3000.0 * (n_rows / 1000.0) ** 0.5, 3000.0), 30_000.0))
        return replace(self, iterations=iterations, chunk=iterations // 10)


@dataclass(frozen=True)
class Alternating:
    """Algorithm 1's settings and its step, which is one epoch; the defaults are the paper's.

    Args:
        epochs: passes over the rows (the authors' loop runs one more than the configured 200).
        batch_size: rows a mini-batch; every row is visited once an epoch, in a new order.
        learning_rate: of the three generators' Adams (0.9, 0.99).
        latent_learning_rate: of the latents' Adam.
        latent_momentum: "dense" moves every row at every batch through its momentum (the authors' code; its cost grows
            with the number of rows at every step); "rows" moves only the rows of the batch.
        latent_update: "quasi-posterior", the paper's, or "cut", which leaves treatment and outcome out of the latents'
            objective, so that rows do not move to what explains their own outcome.
        pzv_weight: weight on log p(z) + log p(v | z) in the latent objective.
        integration: the IV integral's rule.
        chunk: epochs between two reports and saves.
    """

    epochs: int = 201
    batch_size: int = 64
    learning_rate: float = 1e-4
    latent_learning_rate: float = 1e-4
    latent_momentum: Literal["dense", "rows"] = "dense"
    latent_update: Literal["quasi-posterior", "cut"] = "quasi-posterior"
    pzv_weight: float = 0.5
    integration: IntegrationRule = MonteCarlo(1000)
    chunk: int = 5

    name: ClassVar[str] = "alternating updates"
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "covariates", "treatment", "outcome")

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        check_bounds(self, "learning_rate", "latent_learning_rate")
        check_bounds(self, epochs=0, batch_size=1, chunk=1, pzv_weight=0)
        check_choice(self, "latent_momentum", "dense", "rows")
        check_choice(self, "latent_update", "quasi-posterior", "cut")

    @property
    def n_steps(self) -> int:
        """Epochs."""
        return self.epochs
