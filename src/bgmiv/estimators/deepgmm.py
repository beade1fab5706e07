"""DeepGMM (Bennett, Kallus, Schnabel 2019): the structural function in a game against a critic of its moments."""

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
from bgmiv.data.scaling import Identity, RoleScaling, ScaledData, Scaler, treatment_as_columns
from bgmiv.data.schema import BlockKind, Schema
from bgmiv.errors import ConfigError, DataError, DivergedError
from bgmiv.estimators.base import IVEstimator, chosen_preset
from bgmiv.estimators.checks import check_no_weights, check_one_number
from bgmiv.progress import Reporter, silent
from bgmiv.train.covariate_net import CovariateNet, net_values, split_rows
from bgmiv.train.deepgmm import Choice, GameState, MomentGame, choose, last
from bgmiv.train.history import HistoryRow
from bgmiv.train.loop import run_phase, training_data

__all__ = ["PRESETS", "DeepGMM", "DeepGMMConfig", "FittedDeepGMM", "default_preset", "paper_preset"]

# Networks memorise wide blocks; the share is the one that was compared with none in benchmarks/choose_baselines.py.
_WIDE_HOLDOUT = 0.2


@dataclass(frozen=True)
class DeepGMMConfig:
    """Everything that determines a fit, given data and key.

    Args:
        hidden: hidden widths of both players' networks.
        covariates: features of the covariate blocks; only its settings of vector and image features act.
        game: how the game is played.
        learning_rates: g's learning rates; one run each, and the held-out rows choose among all rounds of all runs.
            Where no rows are held out only the first is used.
        holdout: share of rows that no player trains on; 0 takes the last g, None is 0.2 where there is a vector or
            image block and 0 otherwise.
        scaling: how each role is scaled, fitted on all rows.
        use_instrument: False lets the critic see the treatment in place of the instruments: the moments then say that
            the treatment is its own instrument (the no-IV twin).
    """

    hidden: tuple[int, ...] = (128, 64, 32)
    covariates: CovariateConfig = field(default_factory=CovariateConfig)
    game: MomentGame = field(default_factory=MomentGame)
    learning_rates: tuple[float, ...] = (1e-3, 5e-4)
    holdout: float | None = None
    scaling: RoleScaling = field(default_factory=RoleScaling)
    use_instrument: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        if any(width < 1 for width in self.hidden):
            raise ConfigError(f"hidden must hold positive widths, got {self.hidden}.")
        if not self.learning_rates or min(self.learning_rates) <= 0.0:
            raise ConfigError(f"learning_rates must hold positive numbers, got {self.learning_rates}.")
        if self.holdout is not None and not 0.0 <= self.holdout < 1.0:
            raise ConfigError(f"holdout must lie in [0, 1), got {self.holdout}.")

    def held_out_share(self, schema: Schema) -> float:
        """The share of rows that no player trains on."""
        if self.holdout is not None:
            return self.holdout
        return _WIDE_HOLDOUT if _wide(schema) else 0.0

    def fit(self, data: IVData, key: Array, reporter: Reporter = silent) -> FittedDeepGMM:
        """Scale and play; with rows held out, one game a learning rate and the best of all rounds by their moments."""
        enable_compilation_cache()
        check_one_number(data, "DeepGMM")
        check_no_weights(data, "DeepGMM")
        if self.use_instrument and data.instruments.shape[1] == 0:
            raise DataError("DeepGMM needs an instrument; pass at least one in instruments=")
        key_split, key_nets, key_game = jax.random.split(key, 3)

        scaler = self.scaling.fit(data)
        rows = treatment_as_columns(scaler.transform(data), data.schema)
        if not self.use_instrument:
            rows = rows._replace(w=rows.x.reshape(data.n_rows, -1))
        train, held_out = split_rows(rows, self.held_out_share(data.schema), key_split)
        states, history = self._play(data.schema, train, held_out, key_nets, key_game, reporter)
        choice = last(states[0]) if held_out is None else choose(states, self.game.damping)
        return FittedDeepGMM(self, data.schema, scaler, choice, history)

    def _play(
        self,
        schema: Schema,
        train: ScaledData,
        held_out: ScaledData | None,
        key_nets: Array,
        key_game: Array,
        reporter: Reporter,
    ) -> tuple[list[GameState], tuple[HistoryRow, ...]]:
        """The final state of each learning rate's game; a game that diverges is left out unless all do."""
        rows, watched = training_data(train, 1), training_data(held_out or train, 1)
        key_g, key_f = jax.random.split(key_nets)
        g = self._network(schema, schema.treatment.width, key_g)
        f = self._network(schema, train.w.shape[1], key_f)
        states: list[GameState] = []
        history: tuple[HistoryRow, ...] = ()
        failure: DivergedError | None = None
        # Without held-out rows nothing could choose among several.
        for learning_rate in self.learning_rates if held_out else self.learning_rates[:1]:
            try:
                state, more = run_phase(
                    self.game, self.game.init(g, f, watched, learning_rate), rows, key_game, reporter=reporter
                )
            except DivergedError as error:
                failure = error
                continue
            states.append(state)
            history += more
        if failure is not None and not states:
            raise failure
        return states, history

    def _network(self, schema: Schema, n_side: int, key: Array) -> CovariateNet:
        key_features, key_net = jax.random.split(key)
        features = build_features(schema.blocks, self.covariates, key=key_features)
        return CovariateNet(features, n_side, self.hidden, 1, dropout=0.0, key=key_net)


def _wide(schema: Schema) -> bool:
    return any(block.kind in (BlockKind.vector, BlockKind.image) for block in schema.blocks)


@dataclass(frozen=True, eq=False)
class FittedDeepGMM:
    """A fitted DeepGMM.

    Attributes:
        config: the config.
        schema: names and kinds of the training data.
        scaler: the fitted scaling of each role.
        choice: the chosen network, the run and round it comes from, and its held-out moment violation.
        history: the held-out residuals' mean squares of each chunk of each run.
    """

    config: DeepGMMConfig
    schema: Schema
    scaler: Scaler
    choice: Choice
    history: tuple[HistoryRow, ...]

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """The structural function in original units, `(n,)`."""
        x, v = self.schema.check_query(treatment, covariates)
        sides = self.schema.treatment.columns(self.scaler.treatment.transform(x))
        values = net_values(self.choice.net, sides, self.scaler.covariates.transform(v))
        return self.scaler.outcome.inverse(values[:, 0])


def paper_preset() -> DeepGMMConfig:
    """The DFIV study's public settings for the demand design: all rows at once, five critic steps to one of g.

    20,000 updates of plain Adam (0.5, 0.9) at 5e-4 and 2.5e-3, the moment norm's own penalty alone, roles in their own
    units, the last g taken.
    """
    unscaled = RoleScaling(outcome=Identity(), treatment=Identity(), covariates=Identity(), instruments=Identity())
    game = MomentGame(
        rounds=100,
        round_updates=200,
        batch_size=None,
        critic_steps=5,
        damping=0.0,
        optimistic=False,
        schedule="constant",
    )
    return DeepGMMConfig(game=game, learning_rates=(5e-4,), holdout=0.0, scaling=unscaled)


def default_preset() -> DeepGMMConfig:
    """What users get: the paper's game on standardised roles, cooled down; with a vector block its held-out choice.

    It differs from the paper and its public code in these ways. All roles are standardised. Both learning rates fall to
    zero along a cosine: at constant ones the players circle, and the error of the last g is a matter of luck. The
    critic's square is weighed by residual^2 + 0.1 instead of residual^2: where the outcome is nearly free of noise, the
    optimal weights 1 / E[residual^2 | w, v] have no bound. Cooled down, the last g has a lower moment risk on new rows
    than one trained on four fifths of the data and chosen on the fifth held out; except with a vector or image block,
    whose rows the networks would memorise. There the choice is made in one pass: the paper trains once to gather
    critics and to choose the learning rate, then again to choose the epoch; here every round of every learning rate is
    a candidate at once, and the critics of all of them judge it on the rows that no player saw. Vector blocks are
    noised in training; images are seen through dense layers instead of convolutions, shifted by up to 2 pixels and
    noised in training.

    Schedule, damping, learning rates and held-out share were chosen by the held-out moment risk
    (`bgmiv.trust.moment_risk`), see benchmarks/choose_baselines.md.
    """
    images = ImageConfig(features="dense", shift=2, noise=0.2)
    return DeepGMMConfig(covariates=CovariateConfig(dropout=0.0, vector_noise=1.0, images=images))


PRESETS = {"default": default_preset, "paper": paper_preset}


class DeepGMM(IVEstimator):
    """DeepGMM: the deep generalised method of moments.

    The structural function g minimises, and a critic f of instruments and covariates maximises,
    E[f r] - E[f^2 r~^2] / 4 with r = outcome - g; both by optimistic Adam. The last g is kept or, with rows held out,
    the one with the smallest violation on them. `default_preset` says where this differs from the paper.

    Args:
        preset: "default", or "paper" (the DFIV study's public settings).
        updates: updates of g in each game, in rounds of at most 100.
        batch_size: rows a batch.
        learning_rates: g's learning rates to choose among.
        hidden: hidden widths of both networks.
        damping: added to the squared residuals that weigh the critic's square.
        holdout: share of rows held out for the choice; 0 takes the last g of the first learning rate. By default 0.2
            where there is a vector or image block and 0 otherwise.
        scaling: how each role is scaled.
        use_instrument: False gives the no-IV twin: the critic sees the treatment in place of the instruments.
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
        >>> model = DeepGMM(updates=20, hidden=(8,), learning_rates=(1e-3,), random_state=0)
        >>> model.fit(2 * x + v - u, x, instruments=w, covariates=v).predict(0.0, v[:3]).shape
        (3,)

    Reference:
        A. Bennett, N. Kallus, T. Schnabel (2019), Deep generalized method of moments for instrumental variable
        analysis, NeurIPS. Optimistic Adam: C. Daskalakis et al. (2018), Training GANs with optimism, ICLR.
    """

    def __init__(
        self,
        preset: Literal["default", "paper"] = "default",
        *,
        updates: int | None = None,
        batch_size: int | None = None,
        learning_rates: tuple[float, ...] | None = None,
        hidden: tuple[int, ...] | None = None,
        damping: float | None = None,
        holdout: float | None = None,
        scaling: RoleScaling | None = None,
        use_instrument: bool = True,
        treatment_kind: RoleKind = "auto",
        outcome_kind: RoleKind = "auto",
        random_state: int | None = None,
        progress: bool = False,
    ) -> None:
        """Store the arguments; they are checked by `fit`."""
        self.preset = preset
        self.updates = updates
        self.batch_size = batch_size
        self.learning_rates = learning_rates
        self.hidden = hidden
        self.damping = damping
        self.holdout = holdout
        self.scaling = scaling
        self.use_instrument = use_instrument
        self.treatment_kind = treatment_kind
        self.outcome_kind = outcome_kind
        self.random_state = random_state
        self.progress = progress

    def _config(self) -> DeepGMMConfig:
        config = chosen_preset(PRESETS, self.preset)
        game = {name: getattr(self, name) for name in ("batch_size", "damping") if getattr(self, name) is not None}
        if self.updates is not None:
            if self.updates < 1:
                raise ConfigError(f"updates must be at least 1, got {self.updates}.")
            game["rounds"] = -(-self.updates // 100)
            game["round_updates"] = -(-self.updates // game["rounds"])
        names = ("learning_rates", "hidden", "holdout", "scaling")
        return replace(
            config,
            game=replace(config.game, **game),
            use_instrument=self.use_instrument,
            **{name: getattr(self, name) for name in names if getattr(self, name) is not None},
        )
