"""BGM-IV: what a fit leaves, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from bgmiv.data.ivdata import IVData
from bgmiv.data.reduction import FittedReduction
from bgmiv.data.scaling import Scaler
from bgmiv.data.schema import Schema
from bgmiv.effects import Source
from bgmiv.errors import NotFittedError
from bgmiv.infer import LatentMap, latents_of, structural_means
from bgmiv.model import BGMIVModel
from bgmiv.train import HistoryRow
from bgmiv.train.looks import RowsLook
from bgmiv.trust.model_support import ModelSupport, Points, fit_model_support
from bgmiv.trust.tangent import tangent_deviations, tangent_directions
from bgmiv.trust.verdict import Verdict

if TYPE_CHECKING:
    from bgmiv.estimators.bgmiv_fit import BGMIVConfig

__all__ = ["FittedBGMIV", "LatentAverage", "Member"]


_QUASI_POSTERIOR = (
    "Quasi-posterior intervals: the outcome network's weights linearised around what was trained, robust to "
    "heteroskedasticity (and to dependence within groups), and the spread between members. They are pointwise, and "
    "measured coverage is in the documentation."
)
# Latent states from which the latent source of uncertainty is made.
_LATENT_DRAWS = 64


class LatentAverage(Protocol):
    """A rule that averages the structural function over latent states of each row."""

    def structural_means(self, model: BGMIVModel, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The averages at scaled treatments `(n,)` and covariates `(n, p)`."""

    def structural_draws(self, model: BGMIVModel, x: np.ndarray, v: np.ndarray, count: int) -> np.ndarray:
        """The structural function at `count` latent states of each row, `(count, n)`."""


@dataclass(frozen=True, eq=False)
class Member:
    """One trained model of a fit.

    Attributes:
        model: the trained networks.
        training_latents: the training rows' latents after Algorithm 1, `(n, d)`; `(0, d)` in a model that was loaded.
        history: mean losses of each chunk of training.
        held_out_rows: positions of the rows this member was not trained on.
        held_out: a look at those rows after training; None without such rows.
        training: a look at as many rows it was trained on.
        attempts: how often it was trained.
    """

    model: BGMIVModel
    training_latents: np.ndarray
    history: tuple[HistoryRow, ...]
    held_out_rows: np.ndarray
    held_out: RowsLook | None = None
    training: RowsLook | None = None
    attempts: int = 1

    def steps_of(self, phase: str) -> int:
        """Steps of a training phase; none if it was left out."""
        return max((row.step for row in self.history if row.phase == phase), default=0)


@dataclass(frozen=True, eq=False)
class FittedBGMIV:
    """A fitted BGM-IV.

    Attributes:
        config: the settled config.
        schema: names and kinds of the training data.
        reduction: how wide vector blocks are reduced.
        scaler: the fitted scaling of each role, after the reduction.
        members: the trained models; predictions are averages over them.
        verdict: whether held-out rows speak for or against the fit, and why.
        directions: draws of the outcome generators' weights around what was trained, `(members, k, weights)`; None
            until `with_uncertainty` is called with the data.
        support: where the data lie; None likewise.
    """

    config: BGMIVConfig
    schema: Schema
    reduction: FittedReduction
    scaler: Scaler
    members: tuple[Member, ...]
    verdict: Verdict
    directions: np.ndarray | None = None
    support: ModelSupport | None = None

    most_points: ClassVar[int] = 8000

    @property
    def model(self) -> BGMIVModel:
        """The first member's networks."""
        return self.members[0].model

    @property
    def training_latents(self) -> np.ndarray:
        """The first member's latents of the training rows after Algorithm 1, `(n, d)`."""
        return self.members[0].training_latents

    @property
    def history(self) -> tuple[HistoryRow, ...]:
        """Losses of each chunk of training, averaged over members."""
        return tuple(
            HistoryRow(rows[0].phase, rows[0].step, {
                name: float(np.mean([row.metrics[name] for row in rows])) for name in rows[0].metrics
            })
            for rows in zip(*(member.history for member in self.members), strict=False)
        )  # fmt: skip

    def latents(self, covariates: Any, member: int = 0) -> np.ndarray:
        """Test-time latents from covariates alone under one member, `(n, d)` (eq. test_time_map).

        They are the encoder's where the structural function is averaged over many.
        """
        return self._latents(
            self.members[member].model, self.scaled_covariates(self.schema.check_covariates(covariates))
        )

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """The structural function in original units, `(n,)` (eq. structural_prediction), averaged over members."""
        return np.mean(self.predict_members(treatment, covariates), axis=0)

    def predict_members(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """The structural function of each member in original units, `(members, n)`."""
        x, v = self.schema.check_query(treatment, covariates)
        return self.members_at(self.scaler.treatment.transform(x), self.scaled_covariates(v))

    def members_at(self, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        """`predict_members` at scaled treatments and reduced, scaled covariates."""
        return np.stack([self.scaler.outcome.inverse(self._means(member.model, x, v)) for member in self.members])

    def with_uncertainty(self, data: IVData) -> FittedBGMIV:
        """The same fit with what intervals and support flags need of the data it was fitted on."""
        if self.directions is not None:
            return self
        seen = data if self.config.use_instrument else data.without_instruments()
        scaled = self.scaler.transform(self.reduction.apply(seen))
        models = [member.model for member in self.members]
        latents = [self._latents(model, scaled.v) for model in models]
        directions = tangent_directions(
            models,
            latents,
            scaled,
            self.config.warm_start.integration,
            weights=data.weights,
            groups=data.groups,
            held_out=[member.held_out_rows for member in self.members],
        )
        return replace(self, directions=directions, support=fit_model_support(models, scaled, latents))

    @property
    def interval_kind(self) -> str:
        """What the intervals are."""
        if self.config.ensemble.bootstrap:
            return "Pointwise intervals by the spread of members, each trained on bootstrapped rows or groups."
        return _QUASI_POSTERIOR

    def deviations(self, treatment: Any, covariates: Any = None) -> tuple[Source, ...]:
        """Sources of uncertainty about `predict`, in units of the outcome.

        "sampling" is what other rows of the same kind would change, and "network" what training once more would; both
        together are "bootstrap" where members were trained on bootstrapped rows. "latent" (only with
        `latents="posterior"`) is what the covariates leave open about the latents.
        """
        if self.directions is None:
            raise NotFittedError("this result was not completed by with_uncertainty(data), which intervals need.")
        x, v = self.schema.check_query(treatment, covariates)
        x, v = self.scaler.treatment.transform(x), self.scaled_covariates(v)
        k = len(self.members)
        if self.config.ensemble.bootstrap and k > 1:
            return (Source("bootstrap", self._spread(x, v), k - 1), *self._latent_source(x, v))
        unit = float(np.ravel(self.scaler.outcome.scale)[0])
        moved = [
            tangent_deviations(member.model, along, x, self._latents(member.model, v))
            for member, along in zip(self.members, self.directions, strict=True)
        ]
        count = len(self.directions[0])
        sources = [Source("sampling", np.mean(moved, axis=0) * (unit / np.sqrt(count)), count)]
        if k > 1:
            sources.append(Source("network", self._spread(x, v), k - 1))
        return (*sources, *self._latent_source(x, v))

    def _spread(self, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Members' deviations from their mean at scaled points, whose squares add up to their variance."""
        values = self.members_at(x, v)
        return np.asarray((values - values.mean(axis=0)) / np.sqrt(len(values) - 1), np.float64)

    def _latent_source(self, x: np.ndarray, v: np.ndarray) -> tuple[Source, ...]:
        """What the covariates leave open about the latents, where the fit averages over their posterior."""
        rule = self.config.latent_map
        if isinstance(rule, LatentMap):
            return ()
        draws = rule.structural_draws(self.model, x, v, _LATENT_DRAWS)
        unit = float(np.ravel(self.scaler.outcome.scale)[0])
        deviations = (draws - draws.mean(axis=0)) * (unit / np.sqrt(_LATENT_DRAWS))
        return (Source("latent", np.asarray(deviations, np.float64), _LATENT_DRAWS - 1),)

    def inside(self, treatment: np.ndarray, covariates: np.ndarray) -> np.ndarray:
        """Which checked rows of treatments and flat covariates the data show."""
        if self.support is None:
            raise NotFittedError("this result was not completed by with_uncertainty(data), which support flags need.")
        v = self.scaled_covariates(covariates)
        models = [member.model for member in self.members]
        points = Points(self.scaler.treatment.transform(treatment), [self._latents(model, v) for model in models])
        return self.support.inside(models, points)

    def _latents(self, model: BGMIVModel, v: np.ndarray) -> np.ndarray:
        """Latents of scaled covariates; the encoder's where the structural function is averaged over many."""
        rule = self.config.latent_map
        return latents_of(model, v, rule if isinstance(rule, LatentMap) else LatentMap(steps=0))

    def _means(self, model: BGMIVModel, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        rule = self.config.latent_map
        if isinstance(rule, LatentMap):
            return structural_means(model, x, latents_of(model, v, rule))
        return rule.structural_means(model, x, v)

    def scaled_covariates(self, v: np.ndarray) -> np.ndarray:
        """Flat covariates as the networks see them: reduced and scaled."""
        return self.scaler.covariates.transform(self.reduction.transform(v))
