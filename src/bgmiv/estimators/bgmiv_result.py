"""BGM-IV: what a fit leaves, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bgmiv.data.reduction import FittedReduction
from bgmiv.data.scaling import Scaler
from bgmiv.data.schema import Schema
from bgmiv.infer import LatentMap, latents_of, structural_means
from bgmiv.model import BGMIVModel
from bgmiv.train import HistoryRow
from bgmiv.train.looks import RowsLook
from bgmiv.trust.verdict import Verdict

if TYPE_CHECKING:
    from bgmiv.estimators.bgmiv_fit import BGMIVConfig

__all__ = ["FittedBGMIV", "LatentAverage", "Member"]


class LatentAverage(Protocol):
    """A rule that averages the structural function over latent states of each row."""

    def structural_means(self, model: BGMIVModel, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The averages at scaled treatments `(n,)` and covariates `(n, p)`."""


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
    """

    config: BGMIVConfig
    schema: Schema
    reduction: FittedReduction
    scaler: Scaler
    members: tuple[Member, ...]
    verdict: Verdict

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
        rule = self.config.latent_map
        v = self._scale(self.schema.check_covariates(covariates))
        return latents_of(self.members[member].model, v, rule if isinstance(rule, LatentMap) else LatentMap(steps=0))

    def predict(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """The structural function in original units, `(n,)` (eq. structural_prediction), averaged over members."""
        return np.mean(self.predict_members(treatment, covariates), axis=0)

    def predict_members(self, treatment: Any, covariates: Any = None) -> np.ndarray:
        """The structural function of each member in original units, `(members, n)`."""
        x, v = self.schema.check_query(treatment, covariates)
        return self.members_at(self.scaler.treatment.transform(x), self._scale(v))

    def members_at(self, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        """`predict_members` at scaled treatments and reduced, scaled covariates."""
        return np.stack([self.scaler.outcome.inverse(self._means(member.model, x, v)) for member in self.members])

    def _means(self, model: BGMIVModel, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        rule = self.config.latent_map
        if isinstance(rule, LatentMap):
            return structural_means(model, x, latents_of(model, v, rule))
        return rule.structural_means(model, x, v)

    def _scale(self, v: np.ndarray) -> np.ndarray:
        return self.scaler.covariates.transform(self.reduction.transform(v))
