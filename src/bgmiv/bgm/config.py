"""BGM-IV: everything that determines a fit, given data and key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from bgmiv.bgm.settings import (
    EGM,
    Alternating,
    CovariateConfig,
    Ensemble,
    JointTraining,
    LatentLayout,
    LatentMap,
    LatentPosterior,
    ModelConfig,
)
from bgmiv.data.ivdata import IVData
from bgmiv.data.scaling import RoleScaling
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError
from bgmiv.integrate import GaussHermite, MonteCarlo, ObservedTreatment, QuasiMonteCarlo
from bgmiv.nn.settings import FeatureConfig
from bgmiv.preprocess.reduction import BlockReduction
from bgmiv.progress import Reporter, silent
from bgmiv.sieve.fit import SieveConfig

if TYPE_CHECKING:
    from bgmiv.bgm.result import FittedBGMIV

__all__ = ["PRESETS", "BGMIVConfig", "default_preset", "paper_preset", "paper_qmc_preset"]


@dataclass(frozen=True)
class BGMIVConfig:
    """Everything that determines a fit, given data and key.

    Args:
        layout: the latent partition; None: see `latents_are_features`.
        latents_are_features: without a layout, the latents are the features that networks see of the covariates: what
            the covariates identify. Which part they belong to is read off the rows (`bgmiv.bgm.partition`). Otherwise
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
        if self.networks is False and (self.last_stage is None or self.ensemble.bootstrap):
            raise ConfigError(
                "networks=False leaves the last stage as the estimate, which this fit does without: use the default "
                "preset without bootstrap and held_out=0."
            )

    def resolve(self, schema: Schema, n_rows: int) -> BGMIVConfig:
        """The config with layout, batch size and iterations chosen for a data set, its blocks reduced."""
        wide = any(block.kind in (BlockKind.vector, BlockKind.image) for block in schema.blocks)
        layout = self.layout or (LatentLayout(2, 1, 1, 2) if wide else LatentLayout(2, 2, 1, 2))
        batch_size = min(self.batch_size or (32 if wide else 64), n_rows)
        return replace(
            self,
            layout=layout,
            batch_size=batch_size,
            model=replace(self.model, layout=layout),
            initial=replace(self.initial.resolve(n_rows), batch_size=batch_size),
            alternating=replace(self.alternating, batch_size=batch_size),
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
        # The fitted result holds its config, so that the fit can only be imported once this module is there.
        from bgmiv.bgm.fit import fit_bgmiv

        return fit_bgmiv(self, data, seed, reporter)


def paper_preset() -> BGMIVConfig:
    """Appendix B of the paper: 1000 plain Monte Carlo draws, 50,001 warm-start iterations, 201 epochs.

    One line of it is left out, as in the authors' code: the L2 penalty of 1e-4, declared there and never added.
    """
    return BGMIVConfig(initial=EGM(integration=GaussHermite(1)), alternating=Alternating(integration=MonteCarlo(1000)))


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


def _without_egm() -> BGMIVConfig:
    """The paper's ablation "BGM-IV (EGM=0)": Algorithm 1 alone.

    Latents start from the prior, and nothing trains the encoder. It shows what the warm start is worth and is no
    setting to use: predictions are made from a MAP that starts at the untrained encoder's latents.
    """
    config = paper_qmc_preset()
    return replace(config, initial=replace(config.initial, iterations=0))


def _one_egm_iteration() -> BGMIVConfig:
    """The paper's ablation as the authors' code runs it: a budget of 0 is one EGM iteration, then e(v) as latents."""
    config = paper_qmc_preset()
    return replace(config, initial=replace(config.initial, iterations=1))


PRESETS: dict[str, Callable[[], BGMIVConfig]] = {
    "default": default_preset,
    "paper": paper_preset,
    "paper-qmc": paper_qmc_preset,
    "paper-qmc-no-egm": _without_egm,
    "paper-qmc-egm0": _one_egm_iteration,
}
