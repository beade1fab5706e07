"""Deep feature IV (Xu et al., ICLR 2021): the estimator, its presets and its fitted result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgmiv.compilation import enable_compilation_cache
from bgmiv.covariates import CovariateConfig, ImageConfig, build_features
from bgmiv.covariates.features import BlockFeatures
from bgmiv.data.batching import bucket_size, pad_rows
from bgmiv.data.ivdata import IVData
from bgmiv.data.roles import RoleKind
from bgmiv.data.scaling import Identity, RoleScaling, Scaler, treatment_as_columns
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.base import IVEstimator, chosen_preset
from bgmiv.estimators.checks import check_no_weights, check_one_number
from bgmiv.progress import Reporter, silent
from bgmiv.train.dfiv import (
    DeepFeatures,
    DeepFeaturesState,
    FeatureNet,
    Inputs,
    LayerShape,
    Moments,
    Networks,
    expectation,
    masked_features,
    ridge,
    second_stage_features,
    stage_data,
    stages_of,
    with_constant,
)
from bgmiv.train.history import HistoryRow
from bgmiv.train.loop import TrainingData, run_phase

__all__ = [
    "DFIV",
    "PRESETS",
    "DFIVConfig",
    "FittedDFIV",
    "Heads",
    "default_preset",
    "paper_preset",
    "solve_heads",
    "without_instrument",
]

Shapes = tuple[LayerShape, ...]

_INSTRUMENT: Shapes = (LayerShape(128), LayerShape(64), LayerShape(32, normalise=True, rectify=False))
_COVARIATE: Shapes = (LayerShape(128), LayerShape(32, normalise=True), LayerShape(16))
# What the study puts after a vector block's own two layers.
_AFTER_VECTOR: Shapes = (LayerShape(32, normalise=True),)


@dataclass(frozen=True)
class DFIVConfig:
    """Everything that determines a fit, given data and key.

    Args:
        treatment_net: layers of psi(x).
        instrument_net: layers of phi(w, v) after the covariate blocks' features; None takes the study's, which has a
            single layer after a vector or image block.
        covariate_net: layers of xi(v) after the covariate blocks' features; None takes the study's.
        blocks: extractors of vector and image blocks, one set in phi and one in xi.
        training: the schedule, penalties and optimisers.
        scaling: how each role is scaled, fitted on the training rows.
        use_instrument: False regresses the outcome on psi(x) and xi(v) directly, over all rows (the no-IV twin).
    """

    treatment_net: Shapes = (LayerShape(16), LayerShape(4, normalise=True, rectify=False))
    instrument_net: Shapes | None = _INSTRUMENT
    covariate_net: Shapes | None = _COVARIATE
    blocks: CovariateConfig = field(
        default_factory=lambda: CovariateConfig(
            vector_noise=1.0, images=ImageConfig(features="dense", shift=2, noise=0.2)
        )
    )
    training: DeepFeatures = field(default_factory=DeepFeatures)
    scaling: RoleScaling = field(default_factory=RoleScaling)
    use_instrument: bool = True

    def __post_init__(self) -> None:
        """Refuse networks without layers."""
        for name in ("treatment_net", "instrument_net", "covariate_net"):
            if getattr(self, name) == ():
                raise ConfigError(f"{name} needs at least one layer.")

    def resolved(self, schema: Schema) -> DFIVConfig:
        """The config with the networks' shapes settled for a data set."""
        wide = any(block.kind in (BlockKind.vector, BlockKind.image) for block in schema.blocks)
        return replace(
            self,
            instrument_net=self.instrument_net or (_AFTER_VECTOR if wide else _INSTRUMENT),
            covariate_net=self.covariate_net or (_AFTER_VECTOR if wide else _COVARIATE),
        )

    def build(self, schema: Schema, key: Array) -> Networks:
        """Fresh networks for a data set."""
        config = self.resolved(schema)
        assert config.instrument_net is not None
        assert config.covariate_net is not None
        key_psi, key_phi, key_phi_blocks, key_xi, key_xi_blocks = jax.random.split(key, 5)
        phi = xi = None
        if self.use_instrument:
            blocks = build_features(schema.blocks, self.blocks, key=key_phi_blocks)
            phi = FeatureNet(len(schema.instruments), blocks, config.instrument_net, key=key_phi)
        if schema.blocks:
            blocks = build_features(schema.blocks, self.blocks, key=key_xi_blocks)
            xi = FeatureNet(0, blocks, config.covariate_net, key=key_xi)
        psi = FeatureNet(schema.treatment.width, BlockFeatures((), ()), self.treatment_net, key=key_psi)
        return Networks(psi, phi, xi)

    def fit(self, data: IVData, key: Array, reporter: Reporter = silent) -> FittedDFIV:
        """Scale, split the rows between the stages, learn the features, solve the heads."""
        enable_compilation_cache()
        check_one_number(data, "deep feature IV")
        check_no_weights(data, "DFIV")
        _check(data, self.use_instrument)
        data = data if self.use_instrument else data.without_instruments()
        key_networks, key_rows, key_run = jax.random.split(key, 3)

        scaler = self.scaling.fit(data)
        scaled = treatment_as_columns(scaler.transform(data), data.schema)
        rows = stage_data(scaled, key_rows, halves=self.use_instrument)
        state = _start(self, data.schema, key_networks)
        state, history = run_phase(self.training, state, rows, key_run, reporter=reporter)
        heads = solve_heads(state.networks, rows, self.training)
        return FittedDFIV(self.resolved(data.schema), data.schema, scaler, state.networks, heads, history)


class Heads(NamedTuple):
    """Everything beside the networks that a fitted model needs.

    Attributes:
        stage1: `(d + 1, k)`, instrument features and a constant to treatment features; None without an instrument.
        stage2: `(k + 1, m + 1)`, treatment features by covariate features, the constants last.
        moments: of the normalised layers of psi, phi and xi.
    """

    stage1: Array | None
    stage2: Array
    moments: tuple[tuple[Moments, ...], ...]


@partial(jax.jit, static_argnames="config")
def solve_heads(networks: Networks, data: TrainingData, config: DeepFeatures) -> Heads:
    """Both heads for trained networks, with the moments that prediction needs."""
    psi, phi, xi = networks
    stages = stages_of(data, halves=phi is not None)
    n_first, n_second = jnp.sum(stages.first.present), jnp.sum(stages.second.present)
    stage1: Array | None = None
    phi_moments: tuple[Moments, ...] = ()
    if phi is not None:
        features, phi_moments = phi(stages.first)
        features = with_constant(features, stages.first.present)
        stage1 = ridge(features, masked_features(psi, stages.treatments), config.stage1_penalty * n_first)
    expected = expectation(phi, stages, config.stage1_penalty)(psi)
    stage2 = ridge(second_stage_features(expected, xi, stages, None), stages.y, config.stage2_penalty * n_second)
    xi_moments = () if xi is None else xi(stages.covariates)[1]
    moments = (psi(stages.treatments)[1], phi_moments, xi_moments)
    return Heads(stage1, stage2.reshape(expected.shape[1] + 1, -1), moments)


@partial(jax.jit, static_argnames=("config", "schema"))
def _start(config: DFIVConfig, schema: Schema, key: Array) -> DeepFeaturesState:
    """Fresh networks and optimisers."""
    return config.training.init(config.build(schema, key))


def _check(data: IVData, use_instrument: bool) -> None:
    if use_instrument and data.instruments.shape[1] == 0:
        raise DataError("deep feature IV needs an instrument; pass at least one in instruments=")
    if data.n_rows < 4:
        raise DataError(f"deep feature IV needs at least 4 rows, two for each stage; there are {data.n_rows}")


@dataclass(frozen=True, eq=False)
class FittedDFIV:
    """A fitted deep feature IV.

    Attributes:
        config: the settled config.
        schema: names and kinds of the training data.
        scaler: the fitted scaling of each role.
        networks: psi, phi and xi.
        heads: the closed-form heads of both stages.
        history: mean losses of each chunk of training.
    """

    config: DFIVConfig
    schema: Schema
    scaler: Scaler
    networks: Networks
    heads: Heads
    history: tuple[HistoryRow, ...]

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """The structural function in original units, `(n,)`."""
        x, v = self.schema.check_query(treatment, covariates)
        scaled = self.schema.treatment.columns(self.scaler.treatment.transform(x)), self.scaler.covariates.transform(v)
        return self.scaler.outcome.inverse(_by_pieces(_structural, self.networks, self.heads, *scaled))

    def moment_error(self, data: IVData) -> float:
        """Stage 2's mean squared error on other rows, in squared units of the outcome.

        It compares y with the expectation of g(x, v) given w and v, and so needs no knowledge of the truth: the smaller
        on rows kept out of the fit, the better. The twin's is its plain mean squared error.
        """
        rows = self.scaler.transform(data if self.config.use_instrument else data.without_instruments())
        x = self.schema.treatment.columns(rows.x)
        expected = _by_pieces(_expected_outcome, self.networks, self.heads, x, rows.v, rows.w)
        return float(np.mean((data.outcome - self.scaler.outcome.inverse(expected)) ** 2))


_MOST_ROWS = 4096
_FEWEST_ROWS = 64


def _by_pieces(function: Any, networks: Networks, heads: Heads, *arrays: np.ndarray) -> np.ndarray:
    """`function` over pieces of rows, padded so that similar sizes share a compilation."""
    n = len(arrays[0])
    size = max(_FEWEST_ROWS, bucket_size(min(n, _MOST_ROWS)))
    parts = []
    for start in range(0, n, size):
        piece = [jnp.asarray(pad_rows(array[start : start + size], size)) for array in arrays]
        parts.append(np.asarray(function(networks, heads, *piece))[: n - start])
    return np.concatenate(parts)


def _combine(networks: Networks, heads: Heads, psi: Array, v: Array) -> Array:
    """`(psi, 1) stage2 (xi(v), 1)` for every row."""
    weights = psi @ heads.stage2[:-1] + heads.stage2[-1]
    if networks.covariate is None:
        return weights[:, -1]
    rows = Inputs(v[:, :0], v, jnp.ones(len(v)))
    xi, _ = networks.covariate(rows, moments=heads.moments[2])
    return jnp.sum(weights[:, :-1] * xi, axis=1) + weights[:, -1]


def _treatment_features(networks: Networks, heads: Heads, x: Array, v: Array) -> Array:
    rows = Inputs(x, v[:, :0], jnp.ones(len(x)))
    return networks.treatment(rows, moments=heads.moments[0])[0]


@jax.jit
def _structural(networks: Networks, heads: Heads, x: Array, v: Array) -> Array:
    return _combine(networks, heads, _treatment_features(networks, heads, x, v), v)


@jax.jit
def _expected_outcome(networks: Networks, heads: Heads, x: Array, v: Array, w: Array) -> Array:
    if networks.instrument is None or heads.stage1 is None:
        return _combine(networks, heads, _treatment_features(networks, heads, x, v), v)
    phi, _ = networks.instrument(Inputs(w, v, jnp.ones(len(x))), moments=heads.moments[1])
    return _combine(networks, heads, phi @ heads.stage1[:-1] + heads.stage1[-1], v)


def paper_preset() -> DFIVConfig:
    """The study's public settings: inputs as they come, one treatment feature, almost no weight decay.

    Three things differ from its code: normalised layers use the moments of their network's training rows at the
    current weights, not a running mean of them; vector and image blocks go through this package's shared extractors
    (every update convolves all rows at once: images need gigabytes and a GPU); and the updates of one epoch share a
    block of dropout draws, dealt out anew each time.
    """
    as_given = Identity()
    return DFIVConfig(
        treatment_net=(LayerShape(16), LayerShape(1, rectify=False)),
        instrument_net=None,
        covariate_net=None,
        blocks=CovariateConfig(),
        training=DeepFeatures(instrument_decay=0.0, covariate_decay=0.1),
        scaling=RoleScaling(as_given, as_given, as_given, as_given),
    )


def default_preset() -> DFIVConfig:
    """What users get: the study's algorithm and schedule, with the first stage kept from memorising its rows.

    It differs from the study in five ways, each chosen by stage 2's error on rows kept out of the fit: every role is
    standardised; psi has four features of unit variance in place of one of any size, so that a penalty means the same
    in any units; phi and xi have much stronger weight decay; a vector block is followed by the same layers as plain
    columns; and vector blocks are noised while the networks learn. Images are seen through dense layers instead of
    convolutions, shifted by up to 2 pixels and noised while the networks learn, which no such comparison has chosen.
    """
    return DFIVConfig()


PRESETS = {"default": default_preset, "paper": paper_preset}


def without_instrument(config: DFIVConfig) -> DFIVConfig:
    """The no-IV twin: features of treatment and covariates regressed on the outcome, without a first stage."""
    return replace(config, use_instrument=False)


class DFIV(IVEstimator):
    """Deep feature instrumental-variable regression (Xu et al., ICLR 2021).

    Args:
        preset: "default", or "paper" (the study's public settings, on inputs as they come).
        epochs: passes of feature updates.
        stage1_penalty: ridge penalty a row of the first stage's head.
        stage2_penalty: ridge penalty a row of the second stage's head.
        scaling: how each role is scaled; by default every role is standardised.
        use_instrument: False gives the no-IV twin.
        treatment_kind: "auto", "continuous", "binary" or "categorical", as in `IVData.from_arrays`.
        outcome_kind: the same for the outcome; it may have two levels, not more.
        random_state: the seed; None draws one and keeps it in `seed_`.
        progress: show progress bars on the terminal.

    Arguments left at None take the preset's value.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> w, v, u = rng.normal(size=(3, 200))
        >>> x = w + v + u
        >>> y = 2 * x + v - u
        >>> model = DFIV(epochs=2, random_state=0)
        >>> model.fit(y, x, instruments=w, covariates=v).predict(0.0, v[:3]).shape
        (3,)
    """

    def __init__(
        self,
        preset: Literal["default", "paper"] = "default",
        *,
        epochs: int | None = None,
        stage1_penalty: float | None = None,
        stage2_penalty: float | None = None,
        scaling: RoleScaling | None = None,
        use_instrument: bool = True,
        treatment_kind: RoleKind = "auto",
        outcome_kind: RoleKind = "auto",
        random_state: int | None = None,
        progress: bool = False,
    ) -> None:
        """Store the arguments; they are checked by `fit`."""
        self.preset = preset
        self.epochs = epochs
        self.stage1_penalty = stage1_penalty
        self.stage2_penalty = stage2_penalty
        self.scaling = scaling
        self.use_instrument = use_instrument
        self.treatment_kind = treatment_kind
        self.outcome_kind = outcome_kind
        self.random_state = random_state
        self.progress = progress

    def _config(self) -> DFIVConfig:
        config = chosen_preset(PRESETS, self.preset)
        names = ("epochs", "stage1_penalty", "stage2_penalty")
        changed = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        config = replace(config, training=replace(config.training, **changed), use_instrument=self.use_instrument)
        return config if self.scaling is None else replace(config, scaling=self.scaling)
