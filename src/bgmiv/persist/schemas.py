"""Whether a schema that was read from a file is one that data could have had."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from bgmiv.data.schema import BlockKind, CovariateBlock, Schema, Variable
from bgmiv.errors import ModelFileError

__all__ = ["check_schema"]

_ROLE_KINDS = (BlockKind.continuous, BlockKind.binary, BlockKind.categorical)


def check_schema(schema: Schema, where: str) -> None:
    """Refuse blocks that overlap or leave gaps, levels that are not unique, and kinds that contradict their parts.

    Args:
        schema: fields of the right types, as the codec gives them.
        where: what errors call it.

    Raises:
        ModelFileError: no data have such a schema.

    Example:
        >>> column = Variable("y", BlockKind.continuous)
        >>> blocks = (CovariateBlock("a", BlockKind.continuous, ("a",), 1, 2),)
        >>> check_schema(Schema(column, column, ("w",), blocks), "schema")
        Traceback (most recent call last):
        bgmiv.errors.ModelFileError: schema.blocks[0] begins at column 1 where 0 is the next: blocks overlap or
        leave a gap.
    """
    for role in ("outcome", "treatment"):
        _check_role(getattr(schema, role), f"{where}.{role}")
    _check_unique([block.name for block in schema.blocks], f"{where}.blocks: their names")
    start = 0
    for i, block in enumerate(schema.blocks):
        if block.start != start:
            raise ModelFileError(
                f"{where}.blocks[{i}] begins at column {block.start} where {start} is the next: blocks overlap or "
                "leave a gap."
            )
        _check_block(block, f"{where}.blocks[{i}]")
        start = block.stop


def _check_role(variable: Variable, where: str) -> None:
    if variable.kind not in _ROLE_KINDS:
        raise ModelFileError(f"{where}.kind is '{variable.kind}', which only covariates can be.")
    levels = variable.levels
    if levels is not None:
        _check_unique(levels, f"{where}.levels")
    fitting = {
        BlockKind.continuous: levels is None,
        BlockKind.binary: levels is None or len(levels) == 2,
        BlockKind.categorical: levels is not None and len(levels) > 2,
    }
    if not fitting[variable.kind]:
        count = "none" if levels is None else len(levels)
        raise ModelFileError(f"{where} is {variable.kind} and has {count} levels.")


def _check_block(block: CovariateBlock, where: str) -> None:
    if block.width < 1:
        raise ModelFileError(f"{where} has {block.width} columns; a block has one or more.")
    if (block.levels is not None) != (block.kind is BlockKind.categorical):
        raise ModelFileError(f"{where}: levels are for categorical blocks, and these have them; this is {block.kind}.")
    if (block.shape is not None) != (block.kind is BlockKind.image):
        raise ModelFileError(f"{where}: a shape is for images, and these have one; this is {block.kind}.")
    if block.levels is not None:
        _check_unique(block.levels, f"{where}.levels")
        if len(block.levels) != block.width or len(block.columns) != 1 or block.from_array:
            raise ModelFileError(
                f"{where} has {len(block.levels)} levels of {len(block.columns)} columns in {block.width} flat ones."
            )
        return
    _check_unique(block.columns, f"{where}.columns")
    if len(block.columns) != block.width:
        raise ModelFileError(f"{where} has {len(block.columns)} names for {block.width} columns.")
    if block.shape is not None and (len(block.shape) != 3 or min(block.shape) < 1 or prod(block.shape) != block.width):
        raise ModelFileError(f"{where}.shape is {block.shape}, not the height, width and channels of {block.width}.")


def _check_unique(names: Sequence[object], where: str) -> None:
    if len(set(names)) < len(names):
        raise ModelFileError(f"{where} are not unique.")
