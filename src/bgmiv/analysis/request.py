"""What an analysis is asked for, and what that means for some rows: the groups and the treatments it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import BlockKind, CovariateBlock, Schema
from bgmiv.diagnostics.diagnose import changes_of
from bgmiv.effects import check_level
from bgmiv.errors import ConfigError, DataError

__all__ = ["AnalysisRequest", "Grid", "GroupRows", "grid_of", "groups_of"]

_N_DOSES = 41
_MAX_GROUPS = 8
_MAX_LEVELS = 6
_MAX_DEFAULT_COLUMNS = 2


@dataclass(frozen=True)
class AnalysisRequest:
    """Everything that decides what an analysis of a fit holds; equal requests have equal answers.

    The fields are the arguments of `analysis`, where None stands for the default. `compare` has only the names of the
    other methods. `labels` has one label a row for names in `by` that are no covariates; analyses do not keep them.
    """

    by: tuple[str, ...] | None = None
    treatments: tuple[Any, ...] | None = None
    t0: Any = None
    t1: Any = None
    level: float = 0.95
    no_instrument: bool = True
    title: str = ""
    source: str = ""
    compare: tuple[str, ...] = ()
    labels: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    @classmethod
    def of(
        cls,
        *,
        by: Any = None,
        treatments: Any = None,
        t0: Any = None,
        t1: Any = None,
        level: float = 0.95,
        no_instrument: bool = True,
        title: str | None = None,
        source: str = "",
        compare: Any = (),
    ) -> AnalysisRequest:
        """A request from arguments as users give them; `by` may be a mapping of names to one label a row.

        Raises:
            ConfigError: only one of t0 and t1 is given, or the level is not between 0 and 1.

        Example:
            >>> AnalysisRequest.of(by="region", level=0.9) == AnalysisRequest.of(by=["region"], level=0.9)
            True
        """
        check_level(level)
        if (t0 is None) != (t1 is None):
            raise ConfigError("t0 and t1 are given together or not at all.")
        labels: tuple[tuple[str, tuple[Any, ...]], ...] = ()
        if isinstance(by, Mapping):
            labels = tuple((str(name), tuple(np.asarray(values).tolist())) for name, values in by.items())
        names = None if by is None else (by,) if isinstance(by, str) else tuple(map(str, by))
        doses = None if treatments is None else tuple(np.atleast_1d(np.asarray(treatments)).tolist())
        t0, t1 = (value.item() if isinstance(value, np.generic) else value for value in (t0, t1))
        others = tuple(map(str, compare))
        return cls(names, doses, t0, t1, float(level), bool(no_instrument), title or "", str(source), others, labels)


class Grid(NamedTuple):
    """The treatments of the curves in rising order, the two of them that are compared, and the level of intervals."""

    doses: NDArray[np.float64]
    t0: float
    t1: float
    level: float

    @property
    def places(self) -> NDArray[np.intp]:
        """Where the two treatments stand among the doses."""
        return np.searchsorted(self.doses, [self.t0, self.t1])


def grid_of(schema: Schema, data: IVData | None, request: AnalysisRequest) -> Grid:
    """The treatments asked about as numbers or codes; those compared are always among the doses.

    Raises:
        ConfigError: there are no rows to choose the treatments by.
    """
    if request.t0 is not None:
        pair = (float(schema.check_treatment(request.t0, 1)[0]), float(schema.check_treatment(request.t1, 1)[0]))
    elif data is not None:
        pair = changes_of(data)[0][:2]
    else:
        raise ConfigError("t0 and t1 are missing, and no model holds its rows. Give both.")
    if schema.treatment.kind is not BlockKind.continuous:
        doses = np.arange(float(len(schema.treatment.levels or (0, 1))))
    elif request.treatments is not None:
        doses = schema.check_treatment(np.asarray(request.treatments), len(request.treatments))
    else:
        ends = sorted(pair) if data is None else np.quantile(data.treatment.astype(np.float64), [0.01, 0.99])
        doses = np.linspace(ends[0], ends[1], _N_DOSES)
    return Grid(np.unique(np.concatenate([np.asarray(doses, np.float64), pair])), *pair, request.level)


class GroupRows(NamedTuple):
    """Some of the rows: the column that divides them, a label, and their positions."""

    column: str
    label: str
    rows: NDArray[np.int64]


def groups_of(data: IVData, request: AnalysisRequest) -> list[GroupRows]:
    """The groups to be shown apart; none that is empty.

    Raises:
        DataError: a name is no covariate that divides the rows, or labels do not fit the rows.
    """
    if request.by is None:
        few = [
            block
            for block in data.schema.blocks
            if block.kind is BlockKind.binary or (block.levels is not None and 2 <= len(block.levels) <= _MAX_LEVELS)
        ]
        found = [g for block in few[:_MAX_DEFAULT_COLUMNS] for g in _of_column(data, block, block.columns[0])]
        return [group for group in found if len(group.rows)][:_MAX_GROUPS]
    labels, blocks = dict(request.labels), data.schema.blocks
    columns = {name: (block, name) for block in blocks for name in block.columns}
    # A formula's term such as C(region) also goes by the name of its column.
    columns = {block.source or name: (block, name) for block, name in columns.values()} | columns
    found = []
    for name in request.by:
        if name in labels:
            found += _labelled(name, np.asarray(labels[name]), data.n_rows)
        elif name in columns:
            found += _of_column(data, *columns[name])
        else:
            known = ", ".join(repr(each) for each in list(columns)[:10])
            raise DataError(f"by={name!r} is no covariate of the fit. It has {known or 'none'}.")
    return [group for group in found if len(group.rows)]


def _of_column(data: IVData, block: CovariateBlock, column: str) -> list[GroupRows]:
    name = block.source or column
    if block.levels is not None:
        flat = data.covariates[:, block.start : block.stop]
        levels = list(enumerate(block.levels))[:_MAX_GROUPS]
        return [GroupRows(name, f"{name} = {level}", np.flatnonzero(flat[:, i] > 0.5)) for i, level in levels]
    if block.kind not in (BlockKind.binary, BlockKind.continuous):
        raise DataError(f"by={name!r} is a {block.kind} block, which does not divide the rows. Name a single column.")
    values = data.covariates[:, block.start + block.columns.index(column)].astype(np.float64)
    kinds = np.unique(values)
    if len(kinds) > _MAX_GROUPS:
        return _thirds(name, values)
    return [GroupRows(name, f"{name} = {value:g}", np.flatnonzero(values == value)) for value in kinds]


def _labelled(name: str, labels: NDArray[Any], n: int) -> list[GroupRows]:
    if labels.shape != (n,):
        raise DataError(f"by={name!r} has labels of shape {labels.shape}; pass one for each of the {n} rows.")
    kinds, codes, counts = np.unique(labels.astype(str), return_inverse=True, return_counts=True)
    if len(kinds) <= _MAX_GROUPS:
        return [GroupRows(name, f"{name} = {kinds[i]}", np.flatnonzero(codes == i)) for i in np.argsort(-counts)]
    if labels.dtype.kind in "iuf":
        return _thirds(name, labels.astype(np.float64))
    raise DataError(f"by={name!r} has {len(kinds)} values, and at most {_MAX_GROUPS} groups are shown apart.")


def _thirds(name: str, values: NDArray[np.float64]) -> list[GroupRows]:
    low, high = np.quantile(values, [1 / 3, 2 / 3])
    parts = {
        f"{name} below {low:.4g}": values < low,
        f"{name} {low:.4g} to {high:.4g}": (values >= low) & (values <= high),
        f"{name} above {high:.4g}": values > high,
    }
    return [GroupRows(name, label, np.flatnonzero(rows)) for label, rows in parts.items()]
