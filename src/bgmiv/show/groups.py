"""Whom an analysis shows apart: groups of the rows by covariates or by labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.ivdata import IVData
from bgmiv.data.schema import BlockKind, CovariateBlock
from bgmiv.errors import DataError

__all__ = ["Group", "groups_of"]

_MOST_GROUPS = 8
_MOST_LEVELS = 6


class Group(NamedTuple):
    """Some of the rows, under a label."""

    label: str
    rows: NDArray[np.int64]


def groups_of(data: IVData, by: Any) -> list[Group]:
    """The groups to be shown apart.

    Raises:
        DataError: a name is no covariate that divides people, or labels do not fit the rows.
    """
    if isinstance(by, Mapping):
        return [group for name, labels in by.items() for group in _labelled(name, np.asarray(labels), data.n_rows)]
    if by is None:
        few = [block for block in data.schema.blocks if _divides(block)]
        return [group for block in few[:2] for group in _of_block(data, block)][:_MOST_GROUPS]
    names = [by] if isinstance(by, str) else list(by)
    blocks = {name: block for block in data.schema.blocks for name in block.columns}
    found = []
    for name in names:
        if name not in blocks:
            known = ", ".join(repr(each) for each in list(blocks)[:10])
            raise DataError(f"by={name!r} is no covariate of the fit. It has {known or 'none'}.")
        found += _of_block(data, blocks[name], name)
    return found


def _divides(block: CovariateBlock) -> bool:
    return block.kind is BlockKind.binary or (block.levels is not None and 2 <= len(block.levels) <= _MOST_LEVELS)


def _of_block(data: IVData, block: CovariateBlock, name: str = "") -> list[Group]:
    name = name or block.columns[0]
    if block.levels is not None:
        flat = data.covariates[:, block.start : block.stop]
        levels = [(str(level), flat[:, i] > 0.5) for i, level in enumerate(block.levels)]
        return [Group(f"{name} = {text}", np.flatnonzero(rows)) for text, rows in levels[:_MOST_GROUPS]]
    if block.kind not in (BlockKind.binary, BlockKind.continuous):
        raise DataError(f"by={name!r} is a {block.kind} block, which does not divide people. Name a single column.")
    values = data.covariates[:, block.start + block.columns.index(name)].astype(np.float64)
    if block.kind is BlockKind.binary:
        return [Group(f"{name} = {value:g}", np.flatnonzero(values == value)) for value in np.unique(values)]
    low, high = np.quantile(values, [1 / 3, 2 / 3])
    cuts = {
        f"{name} below {low:.4g}": values < low,
        f"{name} {low:.4g} to {high:.4g}": (values >= low) & (values <= high),
        f"{name} above {high:.4g}": values > high,
    }
    return [Group(label, np.flatnonzero(rows)) for label, rows in cuts.items() if rows.any()]


def _labelled(name: str, labels: NDArray[Any], n: int) -> list[Group]:
    if labels.shape != (n,):
        raise DataError(f"by={name!r} has labels of shape {labels.shape}; pass one for each of the {n} rows.")
    texts = labels.astype(str)
    kinds, counts = np.unique(texts, return_counts=True)
    if len(kinds) > _MOST_GROUPS and labels.dtype.kind in "iuf":
        low, high = np.quantile(labels.astype(np.float64), [1 / 3, 2 / 3])
        parts = {"below": labels < low, "to": (labels >= low) & (labels <= high), "above": labels > high}
        words = {"below": f"below {low:.4g}", "to": f"{low:.4g} to {high:.4g}", "above": f"above {high:.4g}"}
        return [Group(f"{name} {words[key]}", np.flatnonzero(rows)) for key, rows in parts.items() if rows.any()]
    if len(kinds) > _MOST_GROUPS:
        raise DataError(f"by={name!r} has {len(kinds)} values, and at most {_MOST_GROUPS} groups are shown apart.")
    return [Group(f"{name} = {kind}", np.flatnonzero(texts == kind)) for kind in kinds[np.argsort(-counts)]]
