"""The one interface of fitted methods, and the evidence of held-out rows that a fit keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, cast

import numpy as np

from bgmiv.arrays import Booleans, Floats, Integers
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray
from bgmiv.data.query import Encoded, Query, Rows
from bgmiv.data.schema import Schema
from bgmiv.intervals import Sources
from bgmiv.linear_iv import Strength
from bgmiv.progress import HistoryRow, Reporter, silent
from bgmiv.support import LinearSupport

__all__ = [
    "MAX_FACTOR_POINTS", "FitEvidence", "FittedMethod", "HeldOutPredictions", "Measured", "MethodConfig", "Networks",
    "in_parts",
]  # fmt: skip

MAX_FACTOR_POINTS = 50_000
"""Factors are many numbers a point: so many points at a time."""

_MAX_FACTOR_ROWS, _MAX_NETWORK_ROWS = 20_000, 500

Measured = float | None
"""A number, or None where it could not be measured."""

Networks = Literal["trained", "nothing left", "not wanted", "few rows"]
"""Whether a method that may do without networks trained them, or why not."""


@dataclass(frozen=True)
class FitEvidence:
    """What held-out rows show about a fit; None for what could not be measured.

    Args:
        n_held_out: rows held out by some member and used here.
        outcome_explained: share of the outcome's held-out variance that E[y | w, v] explains.
        linear_explained, flexible_explained: the same for a linear and a kernel regression on w and v.
        covariates_gain: by how much the better of these two exceeds the better of the same on instruments alone.
        moment_risk: held-out violation of E[y - g | w, v] = 0, as a share of the outcome's variance.
        linear_moment_risk, treatment_moment_risk: the same for linear 2SLS, and for a cubic in the treatment alone.
        outcome_gap: held-out loss of the outcome divided by its training loss.
        treatment_gap: training minus held-out log-likelihood of the treatment, per row.
        first_stage_gain: what the instruments add to the held-out log-likelihood of the treatment, per row.
        disagreement: standard deviation of g between members at held-out rows, in standard deviations of the outcome.
        near_floor: share of rows whose treatment variance is at its lower bound.
        latent_spread: mean standard deviation of the latent coordinates; 1 under the prior.
        n_steps: training steps of the member with the fewest.
        n_members, n_failed: members whose average is the estimate, and those left out because training failed.
        discrete_outcome: whether the outcome has levels, whose variance is mostly noise even for a good fit.
        instrument_f, instrument_critical: effective F of the instruments, and its critical value.
        network_weight: of the networks' function in the last regression; None for a fit without one.
        networks: whether networks were trained, or why not; None for other methods.
        left_for_networks: how much of the outcome's variance may have been left for them, by the check on left-out rows
            (`bgmiv.bgm.network_check`); None where that was not asked.
        linear: whether a method that can fit curves has fitted a line: the data support nothing else.
        moment_p, moment_statistic: of `moment_test` on held-out rows.
        control_error, control_p: the squared error of g that held-out errors show given a control variable, as a share
            of the outcome's variance, and the p-value of there being none (`bgmiv.diagnostics.control`).
        control_visible: the least such share that would have been told from none.
        visible_shapes, shapes: how many shapes of a curve, a line among them, the instruments show, and of how many.
        n_penalised: covariate columns that are penalised because they are more than a quarter of the rows.

    Example:
        >>> evidence = FitEvidence(n_held_out=400, outcome_explained=0.3, linear_explained=0.2, flexible_explained=0.3)
        >>> evidence.moment_risk is None
        True
    """

    n_held_out: int = 0
    outcome_explained: Measured = None
    linear_explained: Measured = None
    flexible_explained: Measured = None
    covariates_gain: Measured = None
    moment_risk: Measured = None
    linear_moment_risk: Measured = None
    treatment_moment_risk: Measured = None
    outcome_gap: Measured = None
    treatment_gap: Measured = None
    first_stage_gain: Measured = None
    disagreement: Measured = None
    near_floor: Measured = None
    latent_spread: Measured = None
    n_steps: int | None = None
    n_members: int = 1
    n_failed: int = 0
    discrete_outcome: bool = False
    instrument_f: Measured = None
    instrument_critical: Measured = None
    network_weight: Measured = None
    networks: Networks | None = None
    left_for_networks: Measured = None
    linear: bool = False
    n_penalised: int = 0
    moment_p: Measured = None
    moment_statistic: Measured = None
    visible_shapes: int | None = None
    shapes: int | None = None
    control_error: Measured = None
    control_p: Measured = None
    control_visible: Measured = None

    def with_strength(self, strength: Strength | None) -> FitEvidence:
        """The evidence with the strength of the instruments, where it is known."""
        if strength is None:
            return self
        return replace(self, instrument_f=strength.f, instrument_critical=strength.critical)

    def with_last_stage(self, explained: float, weight: float, linear: bool, strength: Strength | None) -> FitEvidence:
        """The evidence on an estimate by a last regression, without what is about networks that do not enter.

        Their share of the explained variance says nothing of the estimate. Nor does a small one: a regression has the
        noise of its data. And the strength of instruments is tested instead of compared with a fixed gain. A line or a
        sieve is the same for all members, so that these cannot disagree.
        """
        evidence = replace(
            self,
            outcome_explained=explained,
            covariates_gain=None,
            first_stage_gain=None,
            outcome_gap=None,
            network_weight=weight,
            linear=linear,
        ).with_strength(strength)
        if weight:
            return evidence
        return replace(
            evidence,
            treatment_gap=None,
            near_floor=None,
            latent_spread=None,
            n_steps=None,
            n_failed=0,
            disagreement=None,
        )


class HeldOutPredictions(NamedTuple):
    """g at rows of a fit: their positions in the data, and values `(n,)` or `(n, K)`."""

    rows: Integers
    values: Floats


@dataclass(frozen=True, eq=False)
class _WithEvidence:
    """The one field that all fitted methods have."""

    evidence: FitEvidence | None = field(default=None, kw_only=True)


class FittedMethod(_WithEvidence, ABC):
    """A fitted method: immutable, and complete without the rows it was fitted on.

    A final subclass is a frozen dataclass with the fields `schema` and `support`, and gives `encode` and `at`; what a
    method does not have (intervals, held-out rows, latents) stays as it is here.

    Attributes:
        evidence: what held-out rows say of the fit; None until `judge_fit` has looked at them.
    """

    schema: Schema
    support: LinearSupport
    closed_form: ClassVar[bool] = False
    """Whether it is fitted again in a moment, so that rows can be held out after the fit."""

    compiled: ClassVar[bool] = False
    """Whether its answers are compiled programs, which a forked process cannot run."""

    @property
    def history(self) -> tuple[HistoryRow, ...]:
        """Training history; empty for methods in closed form."""
        return ()

    @property
    def is_linear(self) -> bool:
        """Whether it is linear although the method could have fitted a curve."""
        return False

    @property
    def interval_kind(self) -> str:
        """What its intervals are, in a sentence or two; empty for a method that gives point estimates only."""
        return ""

    @property
    def is_line(self) -> bool:
        """Whether the data leave hardly a doubt that g is linear in the treatment with one slope for all rows."""
        return False

    @property
    def first_stage_f(self) -> float | None:
        """The effective F of the first stage that the fit has used; None if it is a linear one, or is not known."""
        return None

    @property
    def n_members(self) -> int:
        """How many models the estimate is an average of."""
        return 1

    @property
    def encoding_key(self) -> object:
        """What `encode` depends on; results with the same object share what was encoded."""
        return self

    @abstractmethod
    def encode(self, covariates: FloatArray) -> Encoded:
        """What it computes of covariates alone: arrays with one entry a row."""

    @abstractmethod
    def at(self, query: Query) -> Floats:
        """g in units of the outcome, `(m, n)`; for an outcome of K > 2 levels `(m, n, K)`, their probabilities."""

    def factors(self, query: Query) -> Sources:
        """Independent sources of uncertainty about `at`, with factors `(k, m, n)` or `(k, m, n, K)`."""
        return ()

    def average_factors(self, query: Query) -> Sources:
        """The same of weighted averages of `at` over the rows, with factors `(k, m)` or `(k, m, K)`."""
        shares, parts = query.rows.shares, []
        for some, part in in_parts(query, MAX_FACTOR_POINTS // len(query.treatment)):
            sources = self.factors(part)
            parts.append([np.tensordot(source.factors, shares[some], axes=(2, 0)) for source in sources])
        totals = [np.sum(means, axis=0) for means in zip(*parts, strict=True)]
        return tuple(source._replace(factors=total) for source, total in zip(sources, totals, strict=True))

    @property
    def max_factor_rows(self) -> int:
        """How many rows the uncertainty of an average is computed of at most: few where networks are differentiated."""
        return _MAX_NETWORK_ROWS if self.history else _MAX_FACTOR_ROWS

    def in_support(self, query: Query) -> Booleans:
        """Where the data show such a treatment at such covariates, `(m, n)`."""
        return self.support.inside(query.treatment, query.rows.covariates)

    def held_out_predictions(self, data: IVData, rows: Rows, max_rows: int) -> HeldOutPredictions | None:
        """g at rows of the fit, each by a model that has not seen the row; None if every model has seen every row."""
        return None

    def latent_usage(self, data: IVData, rows: Rows, seed: int) -> dict[str, float] | None:
        """How much each part of the latents matters to the treatment and the outcome; None without latents."""
        return None


class MethodConfig(Protocol):
    """A method: a frozen config that fits; a dataclass with the field `use_instrument`, or one that replaces less."""

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> FittedMethod:
        """Fit on validated data; the same seed gives the same fit."""

    def without_instrument(self) -> Self:
        """The same method with its instruments ignored."""
        return replace(cast(Any, self), use_instrument=False)


def in_parts(query: Query, max_rows: int) -> Iterator[tuple[slice, Query]]:
    """A query for so many rows at a time, and which rows these are; the query itself if it has no more."""
    n, size = len(query.rows), max(1, max_rows)
    if n <= size:
        yield slice(None), query
        return
    for start in range(0, n, size):
        some = slice(start, start + size)
        yield some, query.take(some)
