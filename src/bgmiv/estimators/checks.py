"""What a method may refuse in data that others take, and data sets that cannot be fitted together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from jax import Array

from bgmiv.data.checks import role_label
from bgmiv.data.ivdata import IVData
from bgmiv.errors import ConfigError, DataError

__all__ = ["check_no_weights", "check_one_number", "check_together"]


def check_no_weights(data: IVData, method: str) -> None:
    """Refuse sample weights, for a method that cannot honour them.

    Raises:
        DataError: the data have weights; the message says what to do.

    Example:
        >>> data = IVData.from_arrays([1, 2, 4], [5.0, 1.0, 2.0], instruments=[3, 1, 2], weights=[1, 2, 1])
        >>> check_no_weights(data, "KIV")
        Traceback (most recent call last):
        bgmiv.errors.DataError: KIV does not take sample weights (weights). Leave them out, or use BGMIV or TSLS.
    """
    if data.weights is not None:
        raise DataError(
            f"{method} does not take sample weights ({data.weights_name}). Leave them out, or use BGMIV or TSLS."
        )


def check_together(data: Sequence[IVData], keys: Sequence[Array]) -> None:
    """Raise an error that says what is wrong, unless the data sets can be fitted together.

    Raises:
        ConfigError: there are no data sets, or not one key each.
        DataError: they differ in schema or number of rows.

    Example:
        >>> import jax
        >>> data = IVData.from_arrays([1.0, 2.0, 4.0], [0.5, 0.1, 0.2], instruments=[3.0, 1.0, 2.0])
        >>> check_together([data, data.take([0, 1])], [jax.random.key(0), jax.random.key(1)])
        Traceback (most recent call last):
        bgmiv.errors.DataError: data sets 0 and 1 have 3 and 2 rows: they cannot be fitted together, only one by one.
    """
    if not data or len(data) != len(keys):
        raise ConfigError(f"fit_many takes one key for each data set, got {len(keys)} keys for {len(data)} data sets.")
    for i, other in enumerate(data):
        found = _difference(data[0], other)
        if found:
            raise DataError(f"data sets 0 and {i} {found}: they cannot be fitted together, only one by one.")


def _difference(one: IVData, other: IVData) -> str:
    if one.n_rows != other.n_rows:
        return f"have {one.n_rows} and {other.n_rows} rows"
    blocks, others = one.schema.blocks, other.schema.blocks
    if len(blocks) != len(others):
        return f"have {len(blocks)} and {len(others)} blocks of covariates"
    for block, against in zip(blocks, others, strict=True):
        for part in fields(block):
            if getattr(block, part.name) != getattr(against, part.name):
                return f"differ in the {part.name} of covariate block {block.name!r}"
    if (one.weights is None) != (other.weights is None):
        return "differ in whether rows have sample weights"
    for part in fields(one.schema):
        if getattr(one.schema, part.name) != getattr(other.schema, part.name):
            return f"differ in the schema's '{part.name}'"
    return ""


def check_one_number(data: IVData, method: str) -> None:
    """Refuse an outcome of three or more levels, for a method that predicts one number a row.

    Raises:
        DataError: the outcome is categorical; the message says what to do.

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
