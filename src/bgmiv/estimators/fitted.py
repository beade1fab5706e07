"""What a method gives: a frozen config that fits, and a fitted result that answers questions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from bgmiv.covariance import ErrorsName
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray, role_label
from bgmiv.data.query import Encoded, Query, Rows
from bgmiv.data.schema import Schema
from bgmiv.diagnostics.check import HeldOutPredictions
from bgmiv.diagnostics.held_out import cross_fitted, held_out_evidence
from bgmiv.diagnostics.moments import MAX_TESTED
from bgmiv.diagnostics.strength import strength_of
from bgmiv.diagnostics.support import LinearSupport
from bgmiv.diagnostics.verdict import FitEvidence, Verdict, judge
from bgmiv.effects import average_in_parts
from bgmiv.errors import ConfigError, DataError
from bgmiv.intervals import Floats, Source
from bgmiv.preprocess.reduction import FittedReduction
from bgmiv.progress import HistoryRow, Reporter, silent
from bgmiv.sieve.bases import SieveFunction

__all__ = [
    "FittedMethod", "FittedSieve", "MethodConfig", "check_instrument", "check_no_weights", "check_one_number",
    "chosen_preset", "judge_fit",
]  # fmt: skip

C = TypeVar("C")
F = TypeVar("F", bound="FittedMethod")

_MAX_FACTOR_ROWS, _MAX_NETWORK_ROWS = 20_000, 500


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
    def verdict(self) -> Verdict | None:
        """What held-out rows say of the fit; None if nobody has looked at any."""
        return None if self.evidence is None else judge(self.evidence)

    @property
    def is_linear(self) -> bool:
        """Whether it is a line although the method could have bent it."""
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

    def factors(self, query: Query) -> tuple[Source, ...]:
        """Independent sources of uncertainty about `at`, with factors `(k, m, n)` or `(k, m, n, K)`."""
        return ()

    def average_factors(self, query: Query) -> tuple[Source, ...]:
        """The same of weighted averages of `at` over the rows, with factors `(k, m)` or `(k, m, K)`."""
        return average_in_parts(self.factors, query)

    @property
    def max_factor_rows(self) -> int:
        """How many rows the uncertainty of an average is computed of at most: few where networks are differentiated."""
        return _MAX_NETWORK_ROWS if self.history else _MAX_FACTOR_ROWS

    def in_support(self, query: Query) -> NDArray[np.bool_]:
        """Where the data show such a treatment at such covariates, `(m, n)`."""
        return self.support.inside(query.treatment, query.rows.covariates)

    def with_uncertainty(self, data: IVData, rows: Rows) -> Self:
        """The same fit with what its intervals need of the data it was fitted on, whose covariates `rows` holds."""
        return self

    def held_out_predictions(self, data: IVData, rows: Rows, max_rows: int) -> HeldOutPredictions | None:
        """g at rows of the fit, each by a model that has not seen the row; None if every model has seen every row."""
        return None

    def latent_usage(self, data: IVData, rows: Rows, seed: int) -> dict[str, float] | None:
        """How much each part of the latents matters to the treatment and the outcome; None without latents."""
        return None


@dataclass(frozen=True, eq=False)
class FittedSieve(FittedMethod):
    """A fitted structural function that is linear in its coefficients; a final subclass says what its intervals are.

    Attributes:
        schema, support, reduction: what the fit keeps of its data.
        function: the structural function, and the covariance of its coefficients.
        errors: what the covariance allows for: "classical", "robust" or "clustered".
    """

    schema: Schema
    support: LinearSupport
    reduction: FittedReduction
    function: SieveFunction
    errors: ErrorsName
    closed_form = True

    @property
    def is_linear(self) -> bool:
        """Whether no term but the linear ones entered."""
        return self.function.is_linear

    @property
    def is_line(self) -> bool:
        """Whether a line has a probability above 0.95."""
        return self.function.is_line

    @property
    def first_stage_f(self) -> float | None:
        """That of the prediction of the treatment."""
        return self.function.first_stage_f

    def encode(self, covariates: FloatArray) -> Encoded:
        """What the function computes of covariates."""
        return self.function.encode(self.reduction.schema, self.reduction.transform(covariates))

    def at(self, query: Query) -> Floats:
        """The structural function in units of the outcome, `(m, n)`."""
        return self.function.at(query, query.rows.encoded_by(self))

    def factors(self, query: Query) -> tuple[Source, ...]:
        """Which rows were drawn, by the robust covariance; and the bias of smoothing, by its prior."""
        return self.function.factors(query, query.rows.encoded_by(self))

    def average_factors(self, query: Query) -> tuple[Source, ...]:
        """The same of averages: where all rows have the same treatments, columns are averaged before their products."""
        if query.treatment.shape[1] > 1 or self.function.effects is not None:
            return super().average_factors(query)
        parts = self.function.covariates(query.rows.encoded_by(self)[0])
        means = {kind: query.rows.shares[None] @ part for kind, part in parts.items()}
        middle = replace(self.function, covariates=cast(Any, lambda _: means))
        no_rows = np.zeros((1, 0))
        found = middle.factors(Query(query.treatment, Rows(no_rows)), (no_rows, no_rows, no_rows, no_rows))
        return tuple(source._replace(factors=source.factors[..., 0]) for source in found)


class MethodConfig(Protocol):
    """A method: a frozen config that fits; a dataclass with the field `use_instrument`, or one that replaces less."""

    def fit(self, data: IVData, seed: int = 0, reporter: Reporter = silent) -> FittedMethod:
        """Fit on validated data; the same seed gives the same fit."""

    def without_instrument(self) -> Self:
        """The same method with its instruments ignored."""
        return replace(cast(Any, self), use_instrument=False)


def judge_fit(
    fitted: F, data: IVData, rows: Rows, refit: Callable[[IVData], FittedMethod], *, use_instrument: bool, seed: int = 0
) -> F:
    """The same fit with all that held-out rows say of it.

    Args:
        fitted: the fit.
        data: the rows of the fit, whose covariates `rows` holds.
        rows: see `data`.
        refit: the same method on other rows, for one in closed form: it holds rows out afterwards.
        use_instrument: False for a fit that ignores its instruments, of which their checks say nothing.
        seed: of the moment test's bootstrap.
    """
    known = FitEvidence() if fitted.evidence is None else fitted.evidence
    if not use_instrument:
        return replace(cast(Any, fitted), evidence=known)
    known = replace(known, linear=known.linear or fitted.is_linear)
    found = fitted.held_out_predictions(data, rows, MAX_TESTED)
    if found is None and fitted.closed_form:
        found = cross_fitted(data, lambda part: refit(part).at, MAX_TESTED)
    evidence = held_out_evidence(known, found, data, seed, strength_of(data, fitted.first_stage_f))
    return replace(cast(Any, fitted), evidence=evidence)


def chosen_preset(presets: Mapping[str, Callable[[], C]], name: str) -> C:
    """The config of a preset; an unknown name is an error that lists the known ones."""
    if name not in tuple(presets):
        raise ConfigError(f"preset must be one of {', '.join(presets)}, got {name!r}.")
    return presets[name]()


def check_instrument(data: IVData, method: str, *, use_instrument: bool = True) -> None:
    """Refuse data without instruments, for a method that uses them."""
    if use_instrument and data.instruments.shape[1] == 0:
        raise DataError(f"{method} needs an instrument; pass at least one in instruments=.")


def check_no_weights(data: IVData, method: str) -> None:
    """Refuse sample weights, for a method that cannot honour them.

    Example:
        >>> data = IVData.from_arrays([1, 2, 4], [5.0, 1.0, 2.0], instruments=[3, 1, 2], sample_weight=[1, 2, 1])
        >>> check_no_weights(data, "KIV")
        Traceback (most recent call last):
        bgmiv.errors.DataError: KIV does not take sample weights (sample_weight). Leave them out, or use BGMIV, NPIV or
        TSLS.
    """
    if data.weights is not None:
        raise DataError(
            f"{method} does not take sample weights ({data.weights_name}). Leave them out, or use BGMIV, NPIV or TSLS."
        )


def check_one_number(data: IVData, method: str) -> None:
    """Refuse an outcome of three or more levels, for a method that predicts one number a row.

    Example:
        >>> data = IVData.from_arrays([1, 2, 3], [5.0, 1.0, 2.0], instruments=[3, 1, 2], outcome_kind="categorical")
        >>> check_one_number(data, "KIV")
        Traceback (most recent call last):
        bgmiv.errors.DataError: outcome has 3 levels, and KIV predicts one number a row. Fit one level at a time, with
        outcome == level, or use BGMIV.
    """
    variable = data.schema.outcome
    if variable.width > 1:
        raise DataError(
            f"{role_label('outcome', variable.name)} has {variable.width} levels, and {method} predicts one number a "
            "row. Fit one level at a time, with outcome == level, or use BGMIV."
        )
