"""BGM-IV: what determines a fit, how it goes, and what it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgmiv.compilation import enable_compilation_cache
from bgmiv.data.denoising import choose_noise
from bgmiv.data.ivdata import IVData
from bgmiv.data.reduction import BlockReduction, FittedReduction
from bgmiv.data.scaling import RoleScaling, ScaledData, Scaler
from bgmiv.data.schema import BlockKind, CovariateBlock, Schema
from bgmiv.errors import ConfigError, DivergedError
from bgmiv.estimators.bgmiv_result import FittedBGMIV, LatentAverage, Member
from bgmiv.estimators.checks import check_together
from bgmiv.infer import LatentMap
from bgmiv.integrate import check_rule
from bgmiv.model import BGMIVModel, LatentLayout, ModelConfig, build_model
from bgmiv.progress import Reporter, silent
from bgmiv.train import Alternating, DirectStart, HistoryRow, WarmStart, training_data
from bgmiv.train.checkpoint import Checkpoint, fingerprint
from bgmiv.train.ensemble import Ensemble, Folds
from bgmiv.train.looks import RowsLook, look_at_fold
from bgmiv.train.phases import Start, Trained, alternate, initial_latents, members_of, stack_members, warm_start
from bgmiv.trust.evidence import gather_evidence
from bgmiv.trust.verdict import Verdict, judge

__all__ = ["BGMIVConfig"]

# Where the keys of folds and of repeated attempts branch off from the fit's key.
_FOLDS, _RETRIES = 1_000_001, 2_000_000


class _Prepared(NamedTuple):
    """Data as training sees them: reduced, scaled, and divided into folds."""

    data: IVData
    reduction: FittedReduction
    scaler: Scaler
    scaled: ScaledData
    folds: Folds

    @property
    def weights(self) -> np.ndarray | None:
        """Sample weights in the order of the scaled rows."""
        return None if self.data.weights is None else self.data.weights[self.folds.order]

    @property
    def groups(self) -> np.ndarray | None:
        """Groups in the order of the scaled rows."""
        return None if self.data.groups is None else self.data.groups[self.folds.order]


@dataclass(frozen=True)
class BGMIVConfig:
    """Everything that determines a fit, given data and key.

    Args:
        layout: the latent partition; None takes the paper's (2, 2, 1, 2), or (2, 1, 1, 2) with a vector or image
            block.
        batch_size: of both phases; None takes the paper's 64, or 32 with a vector or image block.
        model: network shapes.
        reduction: how wide vector blocks are reduced before anything else; None leaves them as they are.
        scaling: how each role is scaled, fitted on the training rows.
        ensemble: how many members are trained, and what each leaves out.
        warm_start: the EGM phase, or the direct one; with 0 iterations latents start from the prior.
        alternating: Algorithm 1.
        latent_map: how latents are found from covariates at prediction: the encoder or the MAP, or a rule that averages
            the structural function over more than one latent state.
        use_instrument: False ignores the instrument and learns from the observed treatment (the no-IV twin).
        checkpoint: a folder that keeps an unfinished fit, so that the same fit goes on from there.
    """

    layout: LatentLayout | None = None
    batch_size: int | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    reduction: BlockReduction | None = None
    scaling: RoleScaling = field(default_factory=RoleScaling)
    ensemble: Ensemble = field(default_factory=Ensemble)
    warm_start: WarmStart | DirectStart = field(default_factory=WarmStart)
    alternating: Alternating = field(default_factory=Alternating)
    latent_map: LatentMap | LatentAverage = field(default_factory=LatentMap)
    use_instrument: bool = True
    checkpoint: str | None = None

    def resolved(self, schema: Schema, n_rows: int) -> BGMIVConfig:
        """The config with layout, batch size and iterations settled for a data set."""
        wide = any(block.kind in (BlockKind.vector, BlockKind.image) for block in schema.blocks)
        layout = self.layout or (LatentLayout(2, 1, 1, 2) if wide else LatentLayout(2, 2, 1, 2))
        batch_size = min(self.batch_size or (32 if wide else 64), n_rows)
        return replace(
            self,
            layout=layout,
            batch_size=batch_size,
            model=replace(self.model, layout=layout),
            warm_start=replace(self.warm_start.settled(n_rows), batch_size=batch_size),
            alternating=replace(self.alternating, batch_size=batch_size),
        )

    def fit(self, data: IVData, key: Array, reporter: Reporter = silent) -> FittedBGMIV:
        """Reduce, scale, warm-start, take e(v) as latents, alternate (Algorithm 1); members all together."""
        enable_compilation_cache()
        data = self._seen(data)
        config = self.resolved(data.schema, data.n_rows)
        checkpoint = config.open_checkpoint(data, key)
        prepared = config._prepare(data, key)
        config = config._denoising([prepared])
        together = config._train(config._start(prepared, _member_keys(config, key)), reporter, checkpoint)
        members = members_of(together) if config.ensemble.members > 1 else (together,)
        fitted = config._fitted(prepared, members, key, reporter)
        if checkpoint is not None:
            checkpoint.clear()
        return fitted

    def fit_many(
        self, data: Sequence[IVData], keys: Sequence[Array], reporter: Reporter = silent
    ) -> tuple[FittedBGMIV | DivergedError, ...]:
        """Fit data sets of one schema and number of rows together, as members of one compiled program.

        They share nothing: each has its own scaling, key, networks and history. They differ from single fits by
        rounding, which long training amplifies. On a CPU arithmetic takes nearly all of a step's time, and training
        together saves next to none of it; it pays on devices that a single fit leaves idle.

        Args:
            data: the data sets.
            keys: one key each, as for `fit`.
            reporter: told at every chunk's end, with losses averaged over all that train.

        Returns:
            A fitted result each, in the order given. A data set whose members all diverged has the error in its place.
            Once everything has diverged training stops, and all have the error of that moment.

        Raises:
            DataError: the data sets differ in schema or number of rows, or in the width that reduction leaves them.
            ConfigError: there are more or fewer keys than data sets, or a checkpoint folder, which keeps a single fit.
        """
        enable_compilation_cache()
        if self.checkpoint is not None:
            raise ConfigError("a checkpoint folder keeps a single fit: leave checkpoint out, or fit one by one.")
        data = [self._seen(one) for one in data]
        check_together(data, keys)
        config = self.resolved(data[0].schema, data[0].n_rows)
        prepared = [config._prepare(one, key) for one, key in zip(data, keys, strict=True)]
        check_together([one.data for one in prepared], keys)
        config = config._denoising(prepared)
        starts = [config._start(one, _member_keys(config, key)) for one, key in zip(prepared, keys, strict=True)]
        try:
            together = config._train(stack_members(starts), reporter)
        except DivergedError as error:
            return (error,) * len(data)
        members, k = members_of(together), config.ensemble.members
        return tuple(
            config._fitted_or_error(one, members[i * k : (i + 1) * k], key, reporter)
            for i, (one, key) in enumerate(zip(prepared, keys, strict=True))
        )

    def _seen(self, data: IVData) -> IVData:
        return data if self.use_instrument else data.without_instruments()

    def _prepare(self, data: IVData, key: Array) -> _Prepared:
        reduction = self.reduction.fit(data) if self.reduction else FittedReduction(data.schema, {})
        reduced = reduction.apply(data)
        scaler = self.scaling.fit(reduced)
        folds = self.ensemble.folds(data.n_rows, jax.random.fold_in(key, _FOLDS))
        scaled = scaler.transform(reduced)
        if folds.size:
            scaled = ScaledData(*(values[folds.order] for values in scaled))
        return _Prepared(reduced, reduction, scaler, scaled, folds)

    def _denoising(self, prepared: Sequence[_Prepared]) -> BGMIVConfig:
        """The config with the noise of wide vector blocks chosen: the least that any of the data sets asks for."""
        covariates = self.model.covariates
        if not covariates.noise_levels:
            return self

        def of(data: IVData, block: CovariateBlock) -> float:
            # Levels as indicators: their codes are names.
            roles = ((data.schema.treatment, data.treatment), (data.schema.outcome, data.outcome))
            targets = np.hstack([variable.columns(values) for variable, values in roles])
            return choose_noise(data.covariates[:, block.start : block.stop], targets, covariates.noise_levels)

        chosen = tuple(
            (block.name, min(of(one.data, block) for one in prepared))
            for block in prepared[0].data.schema.blocks
            if block.kind is BlockKind.vector and block.width > covariates.narrow_vector
        )
        return replace(self, model=replace(self.model, covariates=replace(covariates, block_noise=chosen)))

    def _start(self, prepared: _Prepared, keys: Array, members: Sequence[int] | None = None) -> Start:
        """Where training begins, for one key or for many; `members` says whose folds, by default those of all."""
        schema, n_instruments = prepared.data.schema, prepared.data.instruments.shape[1]

        def draw(key: Array) -> tuple[BGMIVModel, Array, Array, Array]:
            key_model, key_warm, key_latents, key_alternate = jax.random.split(key, 4)
            model = build_model(schema, n_instruments, self.model, key=key_model)
            return model, key_warm, key_latents, key_alternate

        # Many models drawn by one compiled program: layer by layer each would compile dozens of small ones.
        model, *key_phases = draw(keys) if keys.ndim == 0 else jax.jit(jax.vmap(draw))(keys)
        check_rule(self.warm_start.integration, model.treatment_head)
        check_rule(self.alternating.integration, model.treatment_head)
        starts, size = prepared.folds.starts, prepared.folds.size
        starts = starts if members is None else starts[list(members)]
        fold = (int(starts[0]), size) if keys.ndim == 0 else (starts, np.full(len(starts), size))
        sample = prepared.weights
        weights = self.ensemble.row_weights(keys, prepared.data.n_rows, sample, prepared.groups)
        looked = np.ones(prepared.data.n_rows) if sample is None and weights is not None else sample
        rows = training_data(prepared.scaled, self.alternating.batch_size, fold, weights, looked)
        return Start(model, rows, *key_phases)

    def _train(self, start: Start, reporter: Reporter, checkpoint: Checkpoint | None = None) -> Trained:
        """The phases, for one member or for many stacked ones."""
        model, warm_history = warm_start(self.warm_start, start.model, start.data, start.key_warm, reporter, checkpoint)
        latents = initial_latents(self.warm_start, model, start.data, start.key_latents)
        model, latents, history = alternate(
            self.alternating, model, latents, start.data, start.key_alternate, reporter, checkpoint
        )
        return Trained(model, latents, warm_history + history)

    def _fitted(
        self, prepared: _Prepared, trained: Sequence[Trained | DivergedError], key: Array, reporter: Reporter
    ) -> FittedBGMIV:
        """The result of the members that did not fail; those that did are trained again first, by themselves."""
        members = [self._member(prepared, i, one) for i, one in enumerate(trained)]
        for attempt in range(1, self.ensemble.attempts):
            failed = np.flatnonzero(self.ensemble.failed(_losses(members))).tolist()
            if not failed or not prepared.folds.size:
                break
            keys = jax.random.split(jax.random.fold_in(key, _RETRIES + attempt), len(failed))
            try:
                again = members_of(self._train(self._start(prepared, keys, failed), reporter))
            except DivergedError as error:
                again = (error,) * len(failed)
            for i, one in zip(failed, again, strict=True):
                members[i] = self._member(prepared, i, one, attempt + 1)
        failed = self.ensemble.failed(_losses(members)).tolist()
        kept = tuple(m for m, bad in zip(members, failed, strict=True) if isinstance(m, Member) and not bad)
        if not kept:
            raise next(_divergence(member) for member in members)
        fitted = FittedBGMIV(
            self, prepared.reduction.source, prepared.reduction, prepared.scaler, kept, Verdict("good")
        )
        evidence = gather_evidence(
            prepared.data,
            [member.held_out_rows for member in kept],
            [(member.held_out, member.training) for member in kept if member.held_out and member.training],
            lambda data: fitted.members_at(
                prepared.scaler.treatment.transform(data.treatment),
                prepared.scaler.covariates.transform(data.covariates),
            ),
            n_steps=min((member.steps_of(self.warm_start.name) for member in kept), default=0) or None,
            n_failed=len(members) - len(kept),
            uses_instrument=self.use_instrument,
        )
        return replace(fitted, verdict=judge(evidence))

    def _fitted_or_error(
        self, prepared: _Prepared, trained: Sequence[Trained | DivergedError], key: Array, reporter: Reporter
    ) -> FittedBGMIV | DivergedError:
        try:
            return self._fitted(prepared, trained, key, reporter)
        except DivergedError as error:
            return error

    def _member(
        self, prepared: _Prepared, index: int, trained: Trained | DivergedError, attempts: int = 1
    ) -> Member | DivergedError:
        if isinstance(trained, DivergedError):
            return trained
        latents = np.empty((prepared.data.n_rows, self.model.layout.dim), np.float32)
        latents[prepared.folds.order] = np.asarray(trained.latents)[: prepared.data.n_rows]
        held_out, training = self._looks(prepared, index, trained.model) if prepared.folds.size else (None, None)
        rows = prepared.folds.rows(index)
        return Member(trained.model, latents, trained.history, rows, held_out, training, attempts)

    def _looks(self, prepared: _Prepared, index: int, model: BGMIVModel) -> tuple[RowsLook, RowsLook]:
        """A look at the rows a member left out, and one at as many of those it was trained on, next to them."""
        n, start, size = len(prepared.folds.order), int(prepared.folds.starts[index]), prepared.folds.size
        before, after = min(start, size), min(n - start - size, size)
        trained_on = (start + size, after) if after >= before else (start - before, before)
        weights = prepared.weights
        data = training_data(prepared.scaled, self.alternating.batch_size, (0, 0), weights, weights)
        looks = []
        for fold in ((start, size), trained_on):
            first, count = (jnp.asarray(number, jnp.int32) for number in fold)
            part = data._replace(fold_start=first, fold_size=count)
            looks.append(RowsLook(*map(float, look_at_fold(model, self.warm_start.integration, part))))
        return looks[0], looks[1]

    def open_checkpoint(self, data: IVData, key: Array) -> Checkpoint | None:
        """The checkpoint of this very fit, if a folder was given."""
        if self.checkpoint is None:
            return None
        settings = replace(self, checkpoint=None)
        arrays = (data.outcome, data.treatment, data.covariates, data.instruments, data.weights, data.groups)
        return Checkpoint(self.checkpoint, fingerprint(settings, data.schema, key, *arrays))


def _member_keys(config: BGMIVConfig, key: Array) -> Array:
    """The key itself for a single member, else one a member."""
    return key if config.ensemble.members == 1 else jax.random.split(key, config.ensemble.members)


def _divergence(member: Member | DivergedError) -> DivergedError:
    """Why a member failed; one whose losses are all finite but not those of held-out rows broke in its last steps."""
    if isinstance(member, DivergedError):
        return member
    last = member.history[-1] if member.history else HistoryRow("held-out rows", 0, {})
    return DivergedError(last.phase, last.step)


def _losses(members: Sequence[Member | DivergedError]) -> np.ndarray:
    """Held-out losses; of members without held-out rows only whether they diverged is known."""
    return np.asarray(
        [np.inf if isinstance(m, DivergedError) else (m.held_out.outcome_loss if m.held_out else 1.0) for m in members]
    )
