"""What was asked of which data, in words and figures."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import BlockKind, CovariateBlock, Variable
from bgmiv.show.analysis import ColumnSummary, Question

__all__ = ["question_of"]


def question_of(data: IVData, *, formula: str = "", source: str = "", n_dropped: int = 0) -> Question:
    """The question and a summary of every column.

    Example:
        >>> data = IVData.from_arrays([1.0, 2.0, 4.0], [0.5, 0.1, 0.2], instruments=[3.0, 1.0, 2.0])
        >>> question_of(data).columns[0].text
        'mean 2.333, deviation 1.25, from 1 to 4'
    """
    schema = data.schema
    outcome = schema.outcome
    meaning = f"the mean of {outcome.name}"
    if outcome.kind is BlockKind.binary:
        meaning = f"the probability that {outcome.name} is {outcome.levels[1] if outcome.levels else 1}"
    elif outcome.levels is not None:
        meaning = f"the probability that {outcome.name} is {outcome.levels[0]}"
    return Question(
        outcome=outcome.name,
        treatment=schema.treatment.name,
        instruments=tuple(schema.instruments),
        covariates=tuple(name for block in schema.blocks for name in block.input_names),
        outcome_meaning=meaning,
        treatment_levels=tuple(str(each) for each in schema.treatment.levels or ()),
        formula=" ".join(formula.split()),
        source=source,
        n_rows=data.n_rows,
        n_dropped=n_dropped,
        weights=data.weights_name if data.weights is not None else "",
        groups=data.groups_name if data.groups is not None else "",
        columns=_columns(data),
    )


def _columns(data: IVData) -> tuple[ColumnSummary, ...]:
    schema = data.schema
    roles = (("outcome", schema.outcome, data.outcome), ("treatment", schema.treatment, data.treatment))
    found = [
        ColumnSummary(variable.name, role, str(variable.kind.value), _role(variable, values))
        for role, variable, values in roles
    ]
    for name, values in zip(schema.instruments, data.instruments.T, strict=True):
        found.append(ColumnSummary(name, "instrument", "continuous", _spread(values)))
    for block in schema.blocks:
        found += _block_columns(data, block)
    return tuple(found)


def _block_columns(data: IVData, block: CovariateBlock) -> list[ColumnSummary]:
    kind, values = str(block.kind.value), data.covariates[:, block.start : block.stop]
    if block.levels is not None:
        shares = values.mean(axis=0)
        listed = [f"{level} {share:.0%}" for level, share in zip(block.levels, shares, strict=True)]
        more = f", and {len(listed) - 6} more" if len(listed) > 6 else ""
        return [ColumnSummary(block.name, "covariate", kind, ", ".join(listed[:6]) + more)]
    if block.kind in (BlockKind.continuous, BlockKind.binary):
        texts = [_spread(column) if block.kind is BlockKind.continuous else _share(column) for column in values.T]
        pairs = zip(block.columns, texts, strict=True)
        return [ColumnSummary(name, "covariate", kind, text) for name, text in pairs]
    size = "×".join(map(str, block.shape)) if block.shape else f"{block.width} columns"
    return [ColumnSummary(block.name, "covariate", kind, size)]


def _role(variable: Variable, values: NDArray[Any]) -> str:
    if variable.levels is not None:
        shares = np.bincount(values.astype(np.int64), minlength=len(variable.levels)) / len(values)
        return ", ".join(f"{level} {share:.0%}" for level, share in zip(variable.levels, shares, strict=True))
    return _share(values) if variable.kind is BlockKind.binary else _spread(values)


def _share(values: NDArray[Any]) -> str:
    return f"{float(np.mean(values)):.1%} are 1"


def _spread(values: NDArray[Any]) -> str:
    v = values.astype(np.float64)
    return f"mean {v.mean():.4g}, deviation {v.std():.3g}, from {v.min():.4g} to {v.max():.4g}"
