"""DeepIV (Hartford et al. 2017): a mixture-density first stage, and an outcome network trained through its draws."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
import numpy as np
from jax import Array

from bgmiv.compilation import enable_compilation_cache
from bgmiv.covariates import CovariateConfig, ImageConfig, build_features
from bgmiv.data.ivdata import IVData
from bgmiv.data.roles import RoleKind
from bgmiv.data.scaling import Identity, RoleScaling, Scaler, treatment_as_columns
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError, DataError
from bgmiv.estimators.base import IVEstimator, chosen_preset
from bgmiv.estimators.checks import check_no_weights, check_one_number
from bgmiv.likelihood import Bernoulli, GaussianMixture, Head, Levels
from bgmiv.progress import Reporter, silent
from bgmiv.train.covariate_net import CovariateNet, net_values, split_rows
from bgmiv.train.deepiv import (
    OutcomeObjective,
    Stage,
    StageSettings,
    TreatmentObjective,
    train_stage,
    treatment_raws,
)
from bgmiv.train.history import HistoryRow

__all__ = ["PRESETS", "DeepIV", "DeepIVConfig", "FittedDeepIV", "default_preset", "paper_preset"]

# Networks memorise wide blocks; the share is the one that was compared with none in benchmarks/choose_baselines.py.
_WIDE_HOLDOUT = 0.1


@dataclass(frozen=True)
class DeepIVConfig:
    """Everything that determines a fit, given data and key.

    Args:
        n_components: Gaussian components of a continuous treatment's distribution; a discrete one is
            summed over exactly.
        hidden: hidden widths of both networks; None takes the study's (128, 64, 32), or (32,) behind the features of a
            vector or image block.
        covariates: features of the covariate blocks; only its settings of vector and image features act.
        dropout: share of hidden units dropped in training; None takes the study's 1000 / (1000 + n), at most 0.5.
        treatment_stage: how the first stage is trained.
        outcome_stage: how the second stage is trained.
        n_samples: treatment draws a row and step in the second stage.
        scaling: how each role is scaled, fitted on all rows.
        holdout: share of rows kept out of training, on which each stage chooses its epoch; 0 takes the last epoch, None
            is 0.1 where there is a vector or image block and 0 otherwise.
        use_instrument: False learns the outcome from the observed treatment (the no-IV twin).
    """

    n_components: int = 10
    hidden: tuple[int, ...] | None = None
    covariates: CovariateConfig = field(default_factory=CovariateConfig)
    dropout: float | None = None
    treatment_stage: StageSettings = StageSettings(weight_decay=1e-6)
    outcome_stage: StageSettings = StageSettings(weight_decay=1e-3)
    n_samples: int = 2
    scaling: RoleScaling = field(default_factory=RoleScaling)
    holdout: float | None = 0.0
    use_instrument: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        if self.hidden is not None and any(width < 1 for width in self.hidden):
            raise ConfigError(f"hidden must hold positive widths, got {self.hidden}.")
        if self.dropout is not None and not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout must lie in [0, 1), got {self.dropout}.")
        GaussianMixture(self.n_components)
        OutcomeObjective(n_samples=self.n_samples)
        if self.holdout is not None and not 0.0 <= self.holdout < 1.0:
            raise ConfigError(f"holdout must lie in [0, 1), got {self.holdout}.")

    def resolved(self, schema: Schema, n_rows: int) -> DeepIVConfig:
        """The config with widths, dropout, batch sizes and held-out share settled for a data set."""
        hidden = self.hidden if self.hidden is not None else ((32,) if _wide(schema) else (128, 64, 32))
        return replace(
            self,
            hidden=hidden,
            holdout=self.held_out_share(schema),
            dropout=min(1000.0 / (1000.0 + n_rows), 0.5) if self.dropout is None else self.dropout,
            treatment_stage=_fitting(self.treatment_stage, n_rows),
            outcome_stage=_fitting(self.outcome_stage, n_rows),
        )

    def held_out_share(self, schema: Schema) -> float:
        """The share of rows kept out of training."""
        if self.holdout is not None:
            return self.holdout
        return _WIDE_HOLDOUT if _wide(schema) else 0.0

    def fit(self, data: IVData, key: Array, reporter: Reporter = silent) -> FittedDeepIV:
        """Scale, fit the treatment's distribution, then the outcome through its draws."""
        enable_compilation_cache()
        check_one_number(data, "DeepIV")
        check_no_weights(data, "DeepIV")
        if self.use_instrument and data.instruments.shape[1] == 0:
            raise DataError("DeepIV needs an instrument; pass at least one in instruments=")
        data = data if self.use_instrument else data.without_instruments()
        key_split, *keys = jax.random.split(key, 5)

        scaler = self.scaling.fit(data)
        rows = scaler.transform(data)
        if not self.use_instrument:
            rows = treatment_as_columns(rows, data.schema)
        train, held_out = split_rows(rows, self.held_out_share(data.schema), key_split)
        config = self.resolved(data.schema, len(train.x))
        treatment_net, objective = None, OutcomeObjective(None)
        history: tuple[HistoryRow, ...] = ()
        if config.use_instrument:
            head = config.treatment_head(data.schema)
            first = Stage(TreatmentObjective(head), config.treatment_stage, held_out is not None)
            net = config.network(data.schema, data.instruments.shape[1], head.raw_dim, keys[0])
            treatment_net, history = train_stage(first, net, train, held_out, keys[1], reporter)
            train = treatment_raws(treatment_net, train)
            held_out = None if held_out is None else treatment_raws(treatment_net, held_out)
            objective = OutcomeObjective(head, config.n_samples)
        second = Stage(objective, config.outcome_stage, held_out is not None)
        net = config.network(data.schema, data.schema.treatment.width, 1, keys[2])
        outcome_net, more = train_stage(second, net, train, held_out, keys[3], reporter)
        return FittedDeepIV(config, data.schema, scaler, treatment_net, outcome_net, history + more)

    def treatment_head(self, schema: Schema) -> Head:
        """The treatment's distribution: exact if it is discrete, else a Gaussian mixture."""
        if schema.treatment.kind is BlockKind.categorical:
            return Levels(schema.treatment.width)
        return Bernoulli(1) if schema.treatment.kind is BlockKind.binary else GaussianMixture(self.n_components)

    def network(self, schema: Schema, n_side: int, n_out: int, key: Array) -> CovariateNet:
        """A stage's network, for a settled config."""
        assert self.hidden is not None
        assert self.dropout is not None
        key_features, key_net = jax.random.split(key)
        features = build_features(schema.blocks, self.covariates, key=key_features)
        return CovariateNet(features, n_side, self.hidden, n_out, dropout=self.dropout, key=key_net)


def _wide(schema: Schema) -> bool:
    return any(block.kind in (BlockKind.vector, BlockKind.image) for block in schema.blocks)


def _fitting(settings: StageSettings, n_rows: int) -> StageSettings:
    return replace(settings, batch_size=min(settings.batch_size, n_rows))


@dataclass(frozen=True, eq=False)
class FittedDeepIV:
    """A fitted DeepIV.

    Attributes:
        config: the settled config.
        schema: names and kinds of the training data.
        scaler: the fitted scaling of each role.
        treatment_net: the first stage's network; None for the no-IV twin.
        outcome_net: the structural function's network.
        history: mean losses of each chunk of training.
    """

    config: DeepIVConfig
    schema: Schema
    scaler: Scaler
    treatment_net: CovariateNet | None
    outcome_net: CovariateNet
    history: tuple[HistoryRow, ...]

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """The structural function in original units, `(n,)`."""
        x, v = self.schema.check_query(treatment, covariates)
        sides = self.schema.treatment.columns(self.scaler.treatment.transform(x))
        values = net_values(self.outcome_net, sides, self.scaler.covariates.transform(v))
        return self.scaler.outcome.inverse(values[:, 0])


def paper_preset() -> DeepIVConfig:
    """The DFIV study's public settings: 300 epochs, batches of 100, 2 draws, Adam at 1e-3, dropout 1000 / (1000 + n).

    The study decays weights by 1e-4 against the first stage's loss summed over a batch of 100, hence 1e-6 here, and by
    1e-3 in the second. Covariates and instruments stay in their units, as there; treatment and outcome are
    standardised (the study's constants for the demand design are close to that). Its second stage minimises the mean of
    (y - g(x_i))^2 over draws, which is biased; here the draws' pairs give the unbiased gradient.
    """
    return DeepIVConfig(scaling=RoleScaling(covariates=Identity(), instruments=Identity()))


def default_preset() -> DeepIVConfig:
    """What users get: the study's epochs on standardised roles, without dropout, the step size falling to zero.

    It differs from the study in these ways. All four roles are standardised. Dropout is left out: in the first stage it
    widens the treatment's distribution, in the second it flattens g. The step size falls along a cosine, and the last
    epoch is kept. Only with a vector or image block, whose rows the networks would memorise, does each stage keep the
    epoch with the lowest loss on a tenth of the rows, held out. Vector blocks are noised in training, and the networks
    behind their features have all three hidden layers. Images are seen through dense layers instead of convolutions,
    shifted by up to 2 pixels and noised in training.

    Dropout, schedule and held-out share were chosen by the held-out moment risk (`bgmiv.trust.moment_risk`), see
    benchmarks/choose_baselines.md.
    """
    return DeepIVConfig(
        hidden=(128, 64, 32),
        covariates=CovariateConfig(
            dropout=0.0, vector_noise=1.0, images=ImageConfig(features="dense", shift=2, noise=0.2)
        ),
        dropout=0.0,
        treatment_stage=StageSettings(schedule="cosine", weight_decay=1e-6),
        outcome_stage=StageSettings(schedule="cosine", weight_decay=1e-3),
        holdout=None,
    )


PRESETS = {"default": default_preset, "paper": paper_preset}


class DeepIV(IVEstimator):
    """DeepIV: deep instrumental variables.

    The treatment's distribution given instruments and covariates is a mixture-density network (level
    probabilities for a discrete treatment); the structural function is a network trained through draws of it, with the
    unbiased two-sample gradient (a discrete treatment is summed over exactly).

    Args:
        preset: "default", or "paper" (the DFIV study's public settings).
        epochs: passes over the rows in each stage.
        batch_size: rows a batch in each stage.
        n_components: Gaussian components of a continuous treatment's distribution.
        n_samples: treatment draws a row and step.
        hidden: hidden widths of both networks.
        dropout: share of hidden units dropped in training.
        scaling: how each role is scaled.
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
        >>> model = DeepIV(epochs=2, hidden=(8,), random_state=0)
        >>> model.fit(2 * x + v - u, x, instruments=w, covariates=v).predict(0.0, v[:3]).shape
        (3,)

    Reference:
        J. Hartford, G. Lewis, K. Leyton-Brown, M. Taddy (2017), Deep IV: a flexible approach for counterfactual
        prediction, ICML. Settings: L. Xu et al. (2021), Learning deep features in instrumental variable regression,
        ICLR, and its public code.
    """

    def __init__(
        self,
        preset: Literal["default", "paper"] = "default",
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        n_components: int | None = None,
        n_samples: int | None = None,
        hidden: tuple[int, ...] | None = None,
        dropout: float | None = None,
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
        self.batch_size = batch_size
        self.n_components = n_components
        self.n_samples = n_samples
        self.hidden = hidden
        self.dropout = dropout
        self.scaling = scaling
        self.use_instrument = use_instrument
        self.treatment_kind = treatment_kind
        self.outcome_kind = outcome_kind
        self.random_state = random_state
        self.progress = progress

    def _config(self) -> DeepIVConfig:
        config = chosen_preset(PRESETS, self.preset)
        stage = {name: getattr(self, name) for name in ("epochs", "batch_size") if getattr(self, name) is not None}
        names = ("n_components", "n_samples", "hidden", "dropout", "scaling")
        return replace(
            config,
            treatment_stage=replace(config.treatment_stage, **stage),
            outcome_stage=replace(config.outcome_stage, **stage),
            use_instrument=self.use_instrument,
            **{name: getattr(self, name) for name in names if getattr(self, name) is not None},
        )
