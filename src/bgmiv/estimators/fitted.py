"""What methods share: presets, checks of their data, and a fitted function that is linear in its coefficients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

import numpy as np

from bgmiv.arrays import Floats
from bgmiv.covariance import ErrorsName
from bgmiv.data.ivdata import IVData
from bgmiv.data.messages import FloatArray, role_label
from bgmiv.data.query import Encoded, Query, Rows
from bgmiv.data.schema import Schema
from bgmiv.errors import ConfigError, DataError
from bgmiv.fitted import FittedMethod, MethodConfig
from bgmiv.intervals import Sources
from bgmiv.preprocess.reduction import FittedReduction
from bgmiv.sieve.bases import SieveFunction
from bgmiv.support import LinearSupport

__all__ = [
    "FittedSieve", "MethodConfig", "check_instrument", "check_no_weights", "check_one_number", "chosen_preset",
    "usable_rows", "with_given",
]  # fmt: skip

C = TypeVar("C")


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

    def factors(self, query: Query) -> Sources:
        """Which rows were drawn, by the robust covariance; and the bias of smoothing, by its prior."""
        return self.function.factors(query, query.rows.encoded_by(self))

    def average_factors(self, query: Query) -> Sources:
        """The same of averages: where all rows have the same treatments, columns are averaged before their products."""
        if query.treatment.shape[1] > 1 or self.function.effects.names:
            return super().average_factors(query)
        parts = self.function.covariates(query.rows.encoded_by(self)[0])
        means = {kind: query.rows.shares[None] @ part for kind, part in parts.items()}
        middle = replace(self.function, covariates=cast(Any, lambda _: means))
        nothing = np.zeros((1, 0), np.int64)
        sources = middle.factors(Query(query.treatment, Rows(np.zeros((1, 0)))), (nothing,) * 4)
        return tuple(source._replace(factors=source.factors[..., 0]) for source in sources)


def chosen_preset(presets: Mapping[str, Callable[[], C]], name: str) -> C:
    """The config of a preset; an unknown name is an error that lists the known ones."""
    if name not in tuple(presets):
        raise ConfigError(f"preset must be one of {', '.join(presets)}, got {name!r}.")
    return presets[name]()


def with_given(settings: C, estimator: object) -> C:
    """Settings with an estimator's arguments of the same names; those left at None stay as they are."""
    own: Any = settings
    given = {one.name: vars(estimator).get(one.name) for one in fields(own)}
    return replace(own, **{name: value for name, value in given.items() if value is not None})


def check_instrument(data: IVData, method: str, *, use_instrument: bool) -> None:
    """Refuse data without instruments, for a method that uses them."""
    if use_instrument and data.instruments.shape[1] == 0:
        raise DataError(f"{method} needs an instrument; pass at least one in instruments=.")


def usable_rows(data: IVData, method: str, *, use_instrument: bool) -> IVData:
    """The rows with a weight above zero; refuses outcomes and instruments that a method in closed form cannot use."""
    check_one_number(data, method)
    check_instrument(data, method, use_instrument=use_instrument)
    return data if data.weights is None or data.weights.all() else data.take(data.weights > 0)


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
