"""BGM-IV: what is written of a fit beside its arrays, and whether its parts agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bgmiv.covariates import CovariateConfig, ImageConfig
from bgmiv.data.formula_files import FactorFile, FormulaFile, LevelsFile, StateFile
from bgmiv.data.frames import ColumnReader
from bgmiv.data.picture_scores import PictureScores
from bgmiv.data.reduction import BlockReduction, FittedReduction, ParallelAnalysis, Projection
from bgmiv.data.roles import RoleKind
from bgmiv.data.scaling import FixedAffine, Identity, RoleScaling, Rule, Standardise
from bgmiv.data.scattering import Scattering
from bgmiv.data.schema import BlockKind, CovariateBlock, Schema, Variable
from bgmiv.errors import ModelFileError
from bgmiv.estimators.bgmiv_fit import BGMIVConfig
from bgmiv.estimators.bgmiv_result import LatentAverage
from bgmiv.infer import LatentMap
from bgmiv.infer.latent_posterior import LatentPosterior
from bgmiv.integrate import (
    FiniteMixture,
    GaussHermite,
    IntegrationRule,
    MonteCarlo,
    ObservedTreatment,
    QuasiMonteCarlo,
)
from bgmiv.model import LatentLayout, ModelConfig
from bgmiv.persist import Codec, check_schema
from bgmiv.show.analysis import Analysis
from bgmiv.show.files import ANALYSIS_KINDS, ANALYSIS_WITH_NAN
from bgmiv.train import Alternating, DirectStart, HistoryRow, WarmStart
from bgmiv.train.ensemble import Ensemble
from bgmiv.trust.verdict import Verdict

__all__ = [
    "CODEC",
    "LookFile",
    "MemberFile",
    "ModelFile",
    "Parameters",
    "ProjectionFile",
    "SupportFile",
    "check_document",
]

# Pictures are padded to a multiple of 2 to the number of scales; more than this is no setting but a trap.
_MOST_PADDING, _MOST_DIRECTIONS = 64, 256
_MOST_DRAWS = 4096


@dataclass(frozen=True)
class Parameters:
    """The arguments of `BGMIV` that are saved: all but `checkpoint`, a path that means nothing to others."""

    preset: str
    latent_layout: tuple[int, int, int, int] | None
    batch_size: int | None
    members: int | None
    held_out: float | None
    warm_start_iterations: int | None
    epochs: int | None
    integration: IntegrationRule | None
    latents: Literal["encoder", "map", "posterior"] | None
    scaling: RoleScaling | None
    use_instrument: bool
    bootstrap: bool
    treatment_kind: RoleKind
    outcome_kind: RoleKind
    random_state: int | None
    progress: bool


class LookFile(NamedTuple):
    """`RowsLook` as plain numbers."""

    outcome_loss: float
    outcome_variance: float
    treatment_score: float
    first_stage_gain: float
    near_floor: float
    latent_spread: float


@dataclass(frozen=True)
class MemberFile:
    """A member without its arrays; `n_held_out` is how many rows it left out."""

    history: tuple[HistoryRow, ...]
    n_held_out: int
    held_out: LookFile | None
    training: LookFile | None
    attempts: int

    def __post_init__(self) -> None:
        """Refuse counts that cannot be."""
        if self.n_held_out < 0 or self.attempts < 1:
            raise ModelFileError("a member has 0 or more held-out rows and 1 or more attempts.")


@dataclass(frozen=True)
class ProjectionFile:
    """A projection without its arrays: of a vector block, or with a `scattering` of a block of pictures."""

    block: str
    n_columns: int
    n_components: int
    column_major: bool
    explained: float
    above_noise: int
    scattering: Scattering | None

    def __post_init__(self) -> None:
        """Refuse counts that cannot be."""
        if self.n_columns < 1 or self.n_components < 1 or self.above_noise < 0:
            raise ModelFileError("a projection has 1 or more columns and components.")


@dataclass(frozen=True)
class SupportFile:
    """Where the data lie, without its arrays.

    Args:
        n_instruments: how many values stand for all instruments.
        least: the least log-density of a treatment inside.
        limit: the largest squared distance of latents inside.
    """

    n_instruments: int
    least: float
    limit: float

    def __post_init__(self) -> None:
        """Refuse a count that cannot be."""
        if self.n_instruments < 1:
            raise ModelFileError("a support has 1 or more instruments that stand for all.")


@dataclass(frozen=True)
class ModelFile:
    """All of a fit but its arrays.

    `reader` says how covariates are read from tables, `n_directions` how many draws of each member's weights intervals
    are made of.
    """

    parameters: Parameters
    seed: int
    schema: Schema
    config: BGMIVConfig
    verdict: Verdict
    projections: tuple[ProjectionFile, ...]
    members: tuple[MemberFile, ...]
    reader: ColumnReader | FormulaFile | None
    n_directions: int
    support: SupportFile
    analysis: Analysis | None


_RULES = (MonteCarlo, QuasiMonteCarlo, GaussHermite, FiniteMixture, ObservedTreatment)
CODEC = Codec(
    kinds={
        "model": ModelFile,
        "parameters": Parameters,
        "config": BGMIVConfig,
        "layout": LatentLayout,
        "networks": ModelConfig,
        "covariate-networks": CovariateConfig,
        "image-networks": ImageConfig,
        "reduction": BlockReduction,
        "parallel-analysis": ParallelAnalysis,
        "picture-scores": PictureScores,
        "scattering": Scattering,
        "scaling": RoleScaling,
        "standardise": Standardise,
        "fixed-affine": FixedAffine,
        "identity": Identity,
        "ensemble": Ensemble,
        "warm-start": WarmStart,
        "direct-start": DirectStart,
        "alternating": Alternating,
        "latent-map": LatentMap,
        "latent-posterior": LatentPosterior,
        "monte-carlo": MonteCarlo,
        "quasi-monte-carlo": QuasiMonteCarlo,
        "gauss-hermite": GaussHermite,
        "finite-mixture": FiniteMixture,
        "observed-treatment": ObservedTreatment,
        "schema": Schema,
        "variable": Variable,
        "block": CovariateBlock,
        "projection": ProjectionFile,
        "member": MemberFile,
        "columns": ColumnReader,
        "formula": FormulaFile,
        "factor": FactorFile,
        "formula-levels": LevelsFile,
        "transform-state": StateFile,
        "history": HistoryRow,
        "look": LookFile,
        "support": SupportFile,
        **ANALYSIS_KINDS,
    },
    plugs={
        IntegrationRule: _RULES,
        Rule: (Standardise, FixedAffine, Identity),
        LatentAverage: (LatentPosterior,),
    },
    with_nan=(HistoryRow, LookFile, *ANALYSIS_WITH_NAN),
)


def check_document(document: ModelFile, where: str) -> Schema:
    """The schema after the reduction, if the parts of the document agree.

    Args:
        document: fields of the right types, as the codec gives them.
        where: what errors call it.

    Raises:
        ModelFileError: no fit leaves such a document.
    """
    config, schema = document.config, document.schema
    check_schema(schema, f"{where}.schema")
    if config.checkpoint is not None:
        raise ModelFileError(f"{where}.config.checkpoint names a path, which a saved model may not.")
    if config.layout is None or config.layout != config.model.layout or config.batch_size is None:
        raise ModelFileError(f"{where}.config is not that of a fit: its layout and batch size are not settled.")
    if config.use_instrument != bool(schema.instruments):
        raise ModelFileError(f"{where}: the config uses instruments and the schema has none, or the other way round.")
    if not 0 <= document.seed < 2**32:
        raise ModelFileError(f"{where}.seed must lie in [0, 2**32).")
    if not 1 <= document.n_directions <= _MOST_DRAWS:
        raise ModelFileError(f"{where}.n_directions must lie between 1 and {_MOST_DRAWS}.")
    if not 1 <= len(document.members) <= config.ensemble.members:
        raise ModelFileError(f"{where}.members must hold 1 to {config.ensemble.members}, got {len(document.members)}.")
    levels = {finding.level for finding in document.verdict.findings}
    worst = next((level for level in ("failed", "doubtful") if level in levels), "good")
    if document.verdict.level != worst:
        raise ModelFileError(f"{where}.verdict is '{document.verdict.level}', but its findings are '{worst}'.")
    return _reduced(document, f"{where}.projections")


def _reduced(document: ModelFile, where: str) -> Schema:
    blocks = {block.name: block for block in document.schema.blocks}
    names = [entry.block for entry in document.projections]
    if len(set(names)) < len(names):
        raise ModelFileError(f"{where} reduce a block twice.")
    for i, entry in enumerate(document.projections):
        block = blocks.get(entry.block)
        wide = BlockKind.vector if entry.scattering is None else BlockKind.image
        if block is None or block.kind is not wide:
            raise ModelFileError(f"{where}[{i}] reduces {entry.block[:80]!r}, which is no {wide} block of the schema.")
        n_columns = block.width if entry.scattering is None else _n_features(entry.scattering, block, f"{where}[{i}]")
        if entry.n_columns != n_columns or entry.n_components > n_columns:
            raise ModelFileError(
                f"{where}[{i}] maps {entry.n_columns} columns to {entry.n_components}, but block {block.name!r} has "
                f"{n_columns}."
            )
    # Only its width is known yet, and only that is asked for.
    empty = {entry.block: _no_projection(entry) for entry in document.projections}
    return FittedReduction(document.schema, empty).schema


def _no_projection(entry: ProjectionFile) -> Projection:
    # A view of one number that has the basis' shape without its memory.
    basis = np.broadcast_to(np.zeros(()), (entry.n_columns, entry.n_components))
    return Projection(basis[:, 0], basis[:, 0], basis, entry.explained, entry.above_noise)


def _n_features(scattering: Scattering, block: CovariateBlock, where: str) -> int:
    assert block.shape is not None
    height, width, channels = block.shape
    scales, directions = scattering.scales_of(block.shape), scattering.directions
    step = 2 ** min(scales, 64)
    places = -(-height // step) * -(-width // step)
    if places * step**2 > _MOST_PADDING * height * width or directions > _MOST_DIRECTIONS:
        raise ModelFileError(f"{where}.scattering has too many scales or directions for pictures of {block.shape}.")
    return channels * places * (1 + scales * directions + directions**2 * scales * (scales - 1) // 2)
