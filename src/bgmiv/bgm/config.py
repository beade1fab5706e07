"""BGM-IV: everything that determines a fit, given data and key; settings alone, which need no network library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from math import log, pi
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import RoleScaling
from bgmiv.errors import ConfigError
from bgmiv.integrate import GaussHermite, IntegrationRule, MonteCarlo, ObservedTreatment, QuasiMonteCarlo
from bgmiv.nn.settings import FeatureConfig, check_bounds
from bgmiv.preprocess.reduction import BlockReduction
from bgmiv.progress import Reporter, silent
from bgmiv.sieve.fit import SieveConfig

if TYPE_CHECKING:
    from jax import Array

    from bgmiv.bgm.last_stage import FittedBGMIV

__all__ = [
    "EGM", "PRESETS", "Alternating", "BGMIVConfig", "CovariateConfig", "Ensemble", "JointTraining", "LatentLayout",
    "LatentMap", "LatentPosterior", "ModelConfig", "default_preset", "paper_preset", "paper_qmc_preset", "whole_number",
]  # fmt: skip


def whole_number(name: str, value: Any, minimum: int) -> int:
    """A setting that counts something; anything but a whole number of at least `minimum` is refused by its name."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < minimum:
        raise ConfigError(f"{name} must be a whole number of at least {minimum}, got {value!r}.")
    return int(value)


@dataclass(frozen=True)
class LatentLayout:
    r"""Sizes of $Z = (Z_0, Z_1, Z_2, Z_3)$ with prior $\mathcal N(0, I)$ (eq. bgm_iv_joint_model).

    Args:
        shared: $Z_0$, enters treatment and outcome.
        outcome_only: $Z_1$.
        treatment_only: $Z_2$.
        nuisance: $Z_3$, explains covariates alone.

    Example:
        >>> import numpy as np
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
        for size in astuple(self):
            whole_number("each size in latent_layout", size, 0)
        if self.dim == 0:
            raise ConfigError("latent_layout is empty: give at least one of the four parts a size above 0.")

    @property
    def dim(self) -> int:
        """All latent coordinates."""
        return sum(astuple(self))

    @property
    def parts(self) -> dict[str, slice]:
        """The coordinates of each of the four parts by name, empty ones included."""
        names = ("shared", "outcome-only", "treatment-only", "nuisance")
        edges = pairwise(accumulate(astuple(self), initial=0))
        return {name: slice(*edge) for name, edge in zip(names, edges, strict=True)}

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

        return jnp.concatenate([z[self.parts[name]] for name in ("shared", "treatment-only")])

    def log_prior(self, z: Array) -> Array:
        r"""$\log \mathcal N(z; 0, I)$ of one row."""
        return -0.5 * ((z**2).sum() + self.dim * log(2.0 * pi))


@dataclass(frozen=True)
class CovariateConfig:
    """Shapes and weights of encoder and generator; the defaults are the paper's.

    Args:
        features: what the encoder sees of each block.
        image_filters: channels of the first map of the convolutions that generate images, and after each doubling of
            its sides.
        dense_hidden: hidden units of encoder and generator when all covariates are continuous columns or in vector
            blocks no wider than `features.narrow_vector`.
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
    image_filters: tuple[int, int, int] = (128, 64, 32)
    dense_hidden: tuple[int, ...] = (64, 64, 64, 64, 64)
    block_encoder_hidden: tuple[int, ...] = (128, 64)
    vector_decoder_hidden: tuple[int, ...] = (128, 64)
    column_decoder_hidden: tuple[int, ...] = (64,)
    noise_levels: tuple[float, ...] = ()
    shared_variance: bool = False
    latent_features: tuple[int, ...] = ()
    block_reduction: Literal["sum", "mean"] = "mean"


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


@dataclass(frozen=True)
class LatentMap:
    """Settings of the test-time MAP; the defaults are the paper's.

    Args:
        steps: Adam (0.9, 0.99) steps from the encoder's latents; 0 keeps the encoder's.
        learning_rate: Adam's step size. A coordinate moves at most about `steps * learning_rate`.
    """

    steps: int = 1000
    learning_rate: float = 1e-4


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
            whole_number(name, getattr(self, name), minimum)
        check_bounds(self, n_chains=(2, 32))
        if not 0.0 < self.acceptance < 1.0:
            raise ConfigError(f"acceptance must lie between 0 and 1, got {self.acceptance}.")


@dataclass(frozen=True)
class Ensemble:
    """How many members there are and what share of the rows each leaves out.

    Args:
        members: models trained; their predictions are averaged.
        held_out: share of the rows that each member leaves out, in whole groups; no two members leave out the same row
            as long as `members * held_out` is at most one. Below 20 rows a share nothing is left out.
    """

    members: int = 1
    held_out: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        check_bounds(self, held_out=(0, 0.5))


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

    @property
    def n_steps(self) -> int:
        """Iterations."""
        return self.iterations


@dataclass(frozen=True)
class JointTraining:
    """Joint training: its settings and its step.

    Args:
        iterations: steps; None: they and `chunk` follow from the number of rows (`bgmiv.bgm.resolve`).
        batch_size: rows a batch, drawn uniformly.
        learning_rate: Adam's step size at the start; it falls to zero along a cosine.
        prior_weight: weight of the distance between encoded covariates and prior, where an encoder is trained.
        covariate_weight: weight of the covariates' log-likelihood.
        n_directions: projections of the sliced distance.
        weight_decay: decoupled decay of the kernels of H and F, and of all networks between latents and these, as a
            share of the step size.
        integration: nodes of the outcome's mean.
        residual_nodes: how many quantiles of the treatment's residuals take their place, in a second training, where
            held-out residuals are not normal (`bgmiv.bgm.members`); 0 for never.
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

    @property
    def n_steps(self) -> int:
        """Iterations."""
        assert self.iterations is not None, "bgmiv.bgm.resolve chooses them"
        return self.iterations


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

    @property
    def n_steps(self) -> int:
        """Epochs."""
        return self.epochs


@dataclass(frozen=True)
class BGMIVConfig:
    """Everything that determines a fit, given data and key.

    Args:
        layout: the latent partition; None: see `latents_are_features`.
        latents_are_features: without a layout, the latents are the features that networks see of the covariates: what
            the covariates identify. Which part they belong to is read off the rows (`bgmiv.bgm.resolve`). Otherwise
            there are the paper's (2, 2, 1, 2) latents, or (2, 1, 1, 2) with a vector or image block.
        batch_size: of both phases; None takes the paper's 64, or 32 with a vector or image block.
        model: network shapes.
        reduction: how wide vector blocks are reduced before anything else; None leaves them as they are.
        scaling: how each role is scaled, fitted on the training rows.
        ensemble: how many members are trained, and what each leaves out.
        initial: the first phase of training, which trains the encoder: EGM (the paper's) or joint training; with 0
            iterations it is left out, and latents start from the prior.
        alternating: Algorithm 1, the second phase.
        last_stage: the regression that combines line, sieve and networks; None for the networks alone.
        networks: whether networks are trained; "auto" for only where there is a wide block, or where left-out rows do
            not say that the last stage leaves nothing for them (`bgmiv.bgm.network_check`). Without a last stage they
            always are.
        latents: how latents are found from covariates at prediction: by the encoder or the MAP (`LatentMap`), or as
            draws over which the structural function is averaged (`LatentPosterior`).
        use_instrument: False ignores the instrument and learns from the observed treatment.
        checkpoint: a folder that keeps an unfinished fit, so that the same fit goes on from there.

    Example:
        >>> from bgmiv.bgm.config import PRESETS
        >>> PRESETS["default"]().ensemble.members, PRESETS["paper"]().ensemble.members
        (5, 1)
    """

    layout: LatentLayout | None = None
    latents_are_features: bool = False
    batch_size: int | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    reduction: BlockReduction | None = None
    scaling: RoleScaling = field(default_factory=RoleScaling)
    ensemble: Ensemble = field(default_factory=Ensemble)
    initial: EGM | JointTraining = field(default_factory=EGM)
    alternating: Alternating = field(default_factory=Alternating)
    latents: LatentMap | LatentPosterior = field(default_factory=LatentMap)
    last_stage: SieveConfig | None = None
    networks: Literal["auto"] | bool = "auto"
    use_instrument: bool = True
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        """Refuse a fit without networks and without a last stage."""
        if self.networks not in ("auto", True, False):
            raise ConfigError(f"networks is 'auto', True or False, got {self.networks!r}.")
        if self.networks is False and self.last_stage is None:
            raise ConfigError(
                "networks=False leaves the last stage as the estimate, which this fit does without: use the default "
                "preset without held_out=0."
            )

    def without_instrument(self) -> BGMIVConfig:
        """The no-instrument version: the same model, learned from the observed treatment (the CausalBGM likelihood)."""
        return replace(
            self,
            use_instrument=False,
            initial=replace(self.initial, integration=ObservedTreatment()),
            alternating=replace(self.alternating, integration=ObservedTreatment()),
        )

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> FittedBGMIV:
        """Fit a sieve, and networks unless nothing is left for them (`bgmiv.bgm.fit`)."""
        # A result holds its config, so that the fit can only be imported once this module is there.
        from bgmiv.bgm.fit import fit_bgmiv

        return fit_bgmiv(self, data, seed, reporter)


def paper_preset() -> BGMIVConfig:
    """Appendix B of the paper: 1000 plain Monte Carlo draws, 50,001 warm-start iterations, 201 epochs.

    One line of it is left out, as in the authors' code: the L2 penalty of 1e-4, declared there and never added.
    """
    return BGMIVConfig()


def paper_qmc_preset() -> BGMIVConfig:
    """The paper's settings with 64 quasi-Monte Carlo nodes in place of 1000 draws: the same integral for less."""
    paper = paper_preset()
    return replace(paper, alternating=replace(paper.alternating, integration=QuasiMonteCarlo(64)))


def default_preset() -> BGMIVConfig:
    """What users get: the paper's model trained without a critic, by five members, with identified latents.

    It differs from the paper in this: every role is standardised; wide vector blocks are reduced to their leading
    principal scores, and images to those of their scattering features, all noised in training; the latents are these
    scores and the other covariates themselves, partitioned by what rows show, so that p(z | v) has one mode; networks
    of each part, and of H and F, lead from them to what treatment and outcome depend on, and all of these decay; the
    outcome is matched by its IV moment; five members, each without a fifth of the rows, are averaged; Algorithm 1 is
    left out (`epochs` switches it on); and a last regression, on held-out rows, decides how much of the networks is
    used beside a line, or a sieve in their place (`bgmiv.bgm.last_stage`). The settings were chosen on development
    seeds; benchmarks/default-preset.md and benchmarks/images.md say which, by which criteria, and what else was tried.
    """
    return BGMIVConfig(
        latents_are_features=True,
        batch_size=128,
        model=ModelConfig(
            treatment_hidden=(32, 16),
            treatment_trunk=(32, 32, 20),
            outcome_trunk=(64, 64, 64, 20),
            embedding=(64, 64, 20),
            covariates=CovariateConfig(
                dense_hidden=(64, 64),
                block_encoder_hidden=(64, 64),
                block_reduction="sum",
                noise_levels=(0.3, 1.0, 3.0),
                features=FeatureConfig(vector_noise=0.3, nuisance_features=(32, 4), dropout=0.3, narrow_vector=32),
            ),
        ),
        reduction=BlockReduction(),
        ensemble=Ensemble(members=5, held_out=0.2),
        last_stage=SieveConfig(),
        initial=JointTraining(
            iterations=None,
            learning_rate=4e-3,
            covariate_weight=0.02,
            weight_decay=0.5,
            integration=GaussHermite(3),
            residual_nodes=16,
        ),
        alternating=Alternating(epochs=0, integration=QuasiMonteCarlo(64), latent_momentum="rows"),
        latents=LatentMap(steps=0),
    )


def _paper_with_egm_iterations(iterations: int) -> BGMIVConfig:
    """The paper's ablation "BGM-IV (EGM=0)", which shows what the warm start is worth and is no setting to use.

    With 0 iterations it is Algorithm 1 alone: latents start from the prior, nothing trains the encoder, and predictions
    are made from a MAP that starts at the untrained encoder's latents. In the authors' code a budget of 0 is one EGM
    iteration, and latents start at e(v).
    """
    config = paper_qmc_preset()
    return replace(config, initial=replace(config.initial, iterations=iterations))


PRESETS: dict[str, Callable[[], BGMIVConfig]] = {
    "default": default_preset,
    "paper": paper_preset,
    "paper-qmc": paper_qmc_preset,
    "paper-qmc-no-egm": partial(_paper_with_egm_iterations, 0),
    "paper-qmc-egm0": partial(_paper_with_egm_iterations, 1),
}
