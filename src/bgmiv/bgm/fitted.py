"""BGM-IV: what a fit with networks leaves, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from bgmiv.arrays import Booleans, Floats
from bgmiv.bgm.config import BGMIVConfig, LatentMap, LatentPosterior
from bgmiv.bgm.last_stage import FittedBGMIV, fit_sieve_stage
from bgmiv.bgm.latents import latent_draws, latents_of, structural_at_draws, structural_means
from bgmiv.bgm.members import Member, learned_means
from bgmiv.bgm.model import BGMIVModel
from bgmiv.bgm.uncertainty import MAX_POINTS, Directions, ModelSupport, tangent_factors
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query, Rows, rows_of
from bgmiv.data.scaling import Scaler
from bgmiv.data.schema import Schema
from bgmiv.diagnostics.held_out import held_out_values
from bgmiv.fitted import HeldOutPredictions
from bgmiv.intervals import Source
from bgmiv.preprocess.reduction import FittedReduction
from bgmiv.progress import HistoryRow, mean_history
from bgmiv.sieve.bases import SieveFunction
from bgmiv.training import padded_size

__all__ = ["FittedNetworks"]

_QUASI_POSTERIOR = (
    "Quasi-posterior intervals: the outcome network's weights linearised around their trained values, robust to "
    "heteroskedasticity (and to dependence within groups), the shrinkage bias that is likely under the prior that "
    "training stands for, and the spread between members. Measured coverage is in the documentation."
)
_OF_NETWORKS = (
    " Where the estimate uses the networks, they also include the uncertainty of the networks' weights, their "
    "shrinkage bias and the spread between members."
)
# Latent states from which the latent source of uncertainty is made.
_LATENT_DRAWS = 64
# Rows in which the use of the latents is measured.
_MAX_USAGE_ROWS = 1000


@dataclass(frozen=True, eq=False)
class FittedNetworks(FittedBGMIV):
    """A fitted BGM-IV whose networks were trained.

    Attributes:
        schema: names and kinds of the training data.
        config: the resolved config.
        reduction: how wide vector blocks are reduced.
        scaler: the fitted scaling of each role, after the reduction.
        members: the trained models; predictions are averages over them.
        model_support: where the members' treatment models and latents place the data.
        directions: draws of the outcome generators' weights around what was trained; None where the estimate does not
            depend on them.
        last_stage: the last regression, by which the networks' function enters the estimate; None where it is the
            estimate.

    Example:
        >>> from bgmiv import BGMIV
        >>> w, v, u = np.random.default_rng(0).normal(size=(3, 400))
        >>> model = BGMIV(networks=True, iterations=50, members=2, random_state=0)
        >>> model = model.fit(v - u + w, w + v + u, instruments=w, covariates=v)
        >>> len(model.fitted_.members), model.fitted_.interval_kind != ""
        (2, True)
    """

    schema: Schema
    config: BGMIVConfig
    reduction: FittedReduction
    scaler: Scaler
    members: tuple[Member, ...]
    model_support: ModelSupport
    directions: Directions | None = None
    last_stage: SieveFunction | None = None
    compiled = True

    @property
    def network_weight(self) -> float:
        """The weight of the networks' function in the estimate, which is all of it without a last stage."""
        return 1.0 if self.last_stage is None else self.last_stage.weight

    @property
    def uses_networks(self) -> bool:
        """Whether the estimate depends on the networks: held-out rows may support a line or a sieve alone."""
        return self.network_weight != 0.0

    @property
    def first_stage_f(self) -> float | None:
        """That of the last stage."""
        return None if self.last_stage is None else self.last_stage.first_stage_f

    @property
    def model(self) -> BGMIVModel:
        """The first member's networks."""
        return self.members[0].model

    @property
    def n_members(self) -> int:
        """How many models the estimate is an average of."""
        return len(self.members)

    @property
    def history(self) -> tuple[HistoryRow, ...]:
        """Losses of each chunk of training, averaged over members."""
        return mean_history([member.history for member in self.members])

    @property
    def interval_kind(self) -> str:
        """What the intervals are."""
        if self.last_stage is None:
            return _QUASI_POSTERIOR
        return super().interval_kind + _OF_NETWORKS * self.uses_networks

    @property
    def encoding_key(self) -> object:
        """The members, which stay the same when more is known of the fit."""
        return self.members

    def encode(self, covariates: FloatArray) -> Encoded:
        """Each member's latents `(n, d)` (eq. test_time_map), and then what the last stage needs."""
        reduced = self.reduction.transform(covariates)
        v = self.scaler.covariates.transform(reduced)
        latents = tuple(latents_of(member.model, v, self.config.latents) for member in self.members)
        if self.last_stage is None:
            return latents
        return *latents, *self.last_stage.encode(self.reduction.schema, reduced)

    def _encoded(self, rows: Rows) -> tuple[Encoded, Encoded]:
        """Each member's latents, and what the last stage has computed."""
        encoded, n_members = rows.encoded_by(self), len(self.members)
        return encoded[:n_members], encoded[n_members:]

    def scaled_covariates(self, v: FloatArray) -> np.ndarray:
        """Flat covariates as the networks see them: reduced and scaled."""
        return self.scaler.covariates.transform(self.reduction.transform(v))

    def _reduced(self, data: IVData) -> IVData:
        """Rows as training saw them before they were scaled."""
        return self.reduction.apply(data if self.config.use_instrument else data.without_instruments())

    def latents(self, covariates: Any, member: int = 0) -> np.ndarray:
        """Test-time latents from covariates alone under one member, `(n, d)`."""
        return self._encoded(rows_of(self.schema, covariates))[0][member]

    def at(self, query: Query) -> Floats:
        """The structural function in units of the outcome (eq. structural_prediction), averaged over members."""
        learned = self.members_at(query).mean(axis=0) if self.uses_networks else None
        if self.last_stage is None:
            assert learned is not None
            return learned
        return self.last_stage.at(query, self._encoded(query.rows)[1], learned)

    def members_at(self, query: Query) -> Floats:
        """What the networks of each member say, without a last stage: `(members, m, n)` or `(members, m, n, K)`."""
        return np.stack([self._member_at(i, query) for i in range(len(self.members))])

    def _member_at(self, i: int, query: Query) -> Floats:
        model = self.members[i].model
        if isinstance(self.config.latents, LatentMap):
            z = self._encoded(query.rows)[0][i]
            values = self._collect(query, lambda x, rows, size: structural_means(model, x, z[rows], size), 4096)
        else:
            draws = self._draws(i, query)
            values = self._collect(
                query, lambda x, rows, _: structural_at_draws(model, x, draws[rows]).mean(axis=1), 256
            )
        return self.scaler.outcome.inverse(values)

    def _draws(self, i: int, query: Query) -> np.ndarray:
        """Draws of the rows' latents under one member, `(n, k, d)`."""
        scaled = self.scaler.treatment.transform(query.treatment.ravel())
        return query.rows.encoded_by(_LatentDraws(self, i, scaled))[0]

    def _collect(
        self, query: Query, function: Callable[[np.ndarray, np.ndarray, int], np.ndarray], max_points: int
    ) -> np.ndarray:
        """A function of scaled treatments, row positions and a padded size, at all points of a query."""
        size = padded_size(int(np.prod(query.shape)), max_points)
        scale = self.scaler.treatment.transform
        return query.collect(lambda x, rows: function(scale(x), rows, size), size)

    def factors(self, query: Query) -> tuple[Source, ...]:
        """Sources of uncertainty about `at`, in units of the outcome.

        "sampling" is what other rows of the same kind would change ("weights" in the networks, where there is a last
        stage), "shrinkage" what the networks' weight decay and early end take from g, and "network" what training once
        more would change. "latent" (only with `latents="posterior"`) is what the covariates leave open about the
        latents.
        """
        last: tuple[Source, ...] = ()
        each = self.members_at(query) if self.uses_networks else None
        if self.last_stage is not None:
            learned = None if each is None else each.mean(axis=0)
            last = self.last_stage.factors(query, self._encoded(query.rows)[1], learned)
        if each is None:
            return last
        k, unit = len(each), self.network_weight * self._unit
        assert self.directions is not None
        moved = partial(self._moved, query)
        noise: Any = sum(map(moved, range(k), self.directions.noise)) / k
        bias = np.concatenate(list(map(moved, range(k), self.directions.bias)))
        sources = [
            Source(name, factors * (unit / np.sqrt(len(factors))), len(factors))
            for name, factors in (("weights" if last else "sampling", noise), ("shrinkage", bias))
        ]
        if k > 1:
            # Their squares add up to the variance between members.
            differences = (each - each.mean(axis=0)) / np.sqrt(k - 1)
            sources.append(Source("network", self.network_weight * differences, k - 1))
        if isinstance(self.config.latents, LatentPosterior):
            sources.append(self._latent_source(query))
        return (*last, *sources)

    @property
    def _unit(self) -> float:
        """Of the scaled outcome, in units of the outcome."""
        return float(np.ravel(self.scaler.outcome.scale)[0])

    def _moved(self, query: Query, i: int, directions: np.ndarray) -> Floats:
        """What directions `(k, weights)` change of a member's structural mean on the scaled outcome, `(k, m, n)`."""
        member, z = self.members[i].model, self._encoded(query.rows)[0][i]
        return np.moveaxis(self._collect(query, partial(tangent_factors, member, directions, z), MAX_POINTS), 2, 0)

    def _latent_source(self, query: Query) -> Source:
        """What the covariates leave open about the latents, at draws of the first member."""
        draws = self._draws(0, query)
        some = draws[:, np.linspace(0, draws.shape[1] - 1, _LATENT_DRAWS).round().astype(int)]
        values = self._collect(query, lambda x, rows, _: structural_at_draws(self.model, x, some[rows]), 256)
        values = np.moveaxis(values, 2, 0)
        factors = (values - values.mean(axis=0)) * (self._unit / np.sqrt(_LATENT_DRAWS))
        return Source("latent", np.asarray(factors, np.float64), _LATENT_DRAWS - 1)

    def in_support(self, query: Query) -> Booleans:
        """Where the fit's treatment model and its latents place the data, `(m, n)`."""
        latents, support = self._encoded(query.rows)[0], self.model_support
        usual = support.novelty.usual(latents[0])

        def inside(x: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
            density = support.log_density(self.members, x, [z[rows] for z in latents], size)
            return usual[rows] & (density >= support.min_log_density)

        return self._collect(query, inside, MAX_POINTS)

    def held_out_predictions(self, data: IVData, rows: Rows, max_rows: int) -> HeldOutPredictions | None:
        """g at rows of the fit, each by networks and coefficients of a last stage that have not seen the row.

        The last stage is fitted again without each fold. None if there are no members that held rows out, or if the
        last stage cannot be fitted without a fold.
        """
        if not self.uses_networks:
            return super().held_out_predictions(data, rows, max_rows)
        parts = [member.held_out_rows for member in self.members]
        if not all(len(part) for part in parts):
            return None
        query = Query(data.treatment[None], rows)
        if self.last_stage is None:
            return held_out_values(parts, query, self.members_at, max_rows)
        reduced = self._reduced(data)
        scaled = self.scaler.transform(reduced)
        learned = learned_means(self.members, self.config.initial.integration, scaled, self.scaler)
        functions = []
        for part in parts:
            rest = np.isfinite(learned.own)
            rest[part] = False
            stage = fit_sieve_stage(self.config, reduced.take(rest), learned.take(rest))
            if stage is None:
                return None
            functions.append(stage.function)

        def members_at(query: Query) -> Floats:
            each = zip(functions, self.members_at(query), strict=True)
            return np.stack([self._at_new_rows(function, query, learned) for function, learned in each])

        return held_out_values(parts, query, members_at, max_rows)

    def latent_usage(self, data: IVData, rows: Rows, seed: int) -> dict[str, float] | None:
        """Mean change of what the first member predicts when one part of the latents is exchanged between rows.

        Of 1000 rows at most, and for each part of the latents that has coordinates: `"<part>.treatment"`,
        `"<part>.outcome"` and `"<part>.covariates"`, mean absolute changes of the treatment's mean, the outcome's mean
        (probabilities, where these have levels) and the covariates' reconstruction, in standard deviations of each as
        training sees it. None for a fit without covariates, whose latents are the same in every row, and for an
        estimate without the networks.
        """
        if not self.schema.blocks or not self.uses_networks:
            return None
        chosen = np.random.default_rng(seed).permutation(data.n_rows)[:_MAX_USAGE_ROWS]
        scaled, schema = self.scaler.transform(self._reduced(data.take(chosen))), self.schema
        z = self._encoded(rows)[0][0][chosen]
        # Probabilities are in units of their own.
        scales = {
            "treatment": 1.0 if schema.treatment.discrete else scaled.x.std(),
            "outcome": 1.0 if schema.outcome.discrete else scaled.y.std(),
            "covariates": scaled.v.std(axis=0),
        }
        before = _predicted(self.model, scaled.w, scaled.x, z)
        usage: dict[str, float] = {}
        for name, columns in self.model.layout.parts.items():
            if columns.start == columns.stop:
                continue
            exchanged = z.copy()
            exchanged[:, columns] = np.roll(z[:, columns], 1, axis=0)
            after = _predicted(self.model, scaled.w, scaled.x, exchanged)
            for (target, scale), old, new in zip(scales.items(), before, after, strict=True):
                change = np.abs(np.asarray(new) - np.asarray(old)) / np.where(scale > 0, scale, 1.0)
                usage[f"{name}.{target}"] = float(np.mean(change))
        return usage


@dataclass(frozen=True, eq=False)
class _LatentDraws:
    """Draws of rows' latents under one member, which `Rows` keeps like any encoding; `x` is where they are judged."""

    fitted: FittedNetworks
    member: int
    x: np.ndarray

    @property
    def encoding_key(self) -> object:
        return self.fitted.members[self.member]

    def encode(self, covariates: FloatArray) -> Encoded:
        rule = self.fitted.config.latents
        assert isinstance(rule, LatentPosterior)
        v = self.fitted.scaled_covariates(covariates)
        return (latent_draws(self.fitted.members[self.member].model, v, rule, self.x),)


@jax.jit
def _predicted(model: BGMIVModel, w: Array, x: Array, z: Array) -> tuple[Array, Array, Array]:
    treatment = jax.vmap(model.treatment_head.mean)(jax.vmap(model.treatment_raw)(w, z))
    outcome = jax.vmap(model.structural_mean)(x, z)
    return treatment, outcome, jax.vmap(model.covariates.mean)(z)
