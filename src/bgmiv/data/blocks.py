"""The kinds of covariates, how a user declares them, and where they sit in the flat matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bgmiv.errors import DataError

__all__ = ["BlockKind", "BlockSpec", "CovariateBlock", "Level"]

Level = str | int | float | bool


class BlockKind(StrEnum):
    """What a block of covariates holds, hence how it is scaled and modelled.

    >>> BlockKind("image") == "image"
    True
    """

    continuous = "continuous"
    binary = "binary"
    categorical = "categorical"
    vector = "vector"
    image = "image"


@dataclass(frozen=True)
class BlockSpec:
    """A user's declaration of one block of covariates.

    Args:
        kind: one of the names in `BlockKind`.
        columns: the table's columns that form the block, next to each other and in the table's order; left
            out when the block is the single column or array that the declaration is keyed by.
        shape: height, width and (optionally) channels of an image that comes as flat columns.

    >>> BlockSpec("vector", columns=["proxy_0", "proxy_1"]).columns
    ('proxy_0', 'proxy_1')
    >>> BlockSpec("image", shape=(28, 28)).shape
    (28, 28, 1)
    """

    kind: BlockKind | str
    columns: Sequence[str] | None = None
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Normalise the kind, the columns and the shape, refusing what no block can be."""
        try:
            object.__setattr__(self, "kind", BlockKind(self.kind))
        except ValueError:
            known = ", ".join(repr(kind.value) for kind in BlockKind)
            raise DataError(f"blocks: unknown kind {self.kind!r}; use one of {known}.") from None
        if isinstance(self.columns, str):
            object.__setattr__(self, "columns", (self.columns,))
        elif self.columns is not None:
            object.__setattr__(self, "columns", tuple(str(column) for column in self.columns))
        if self.columns is not None and (not self.columns or len(set(self.columns)) < len(self.columns)):
            raise DataError(f"blocks: give one or more distinct column names, got {list(self.columns)}.")
        if self.shape is not None:
            object.__setattr__(self, "shape", _image_shape(self.kind, self.shape))


def _image_shape(kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if kind != BlockKind.image:
        raise DataError(f"blocks: a shape is for images only, not for a {str(kind)!r} block; leave it out.")
    sizes = tuple(int(size) for size in shape)
    if len(sizes) not in (2, 3) or min(sizes) < 1:
        raise DataError(f"blocks: give an image's shape as (height, width, channels), got {shape}.")
    return sizes if len(sizes) == 3 else (*sizes, 1)


@dataclass(frozen=True)
class CovariateBlock:
    """One typed block of covariates and its place in the flat matrix.

    Args:
        name: the block's name.
        kind: what it holds.
        columns: names of its input columns (an array entry `proxy` of width two has `proxy[0]`, `proxy[1]`).
        start: first column of the flat matrix.
        stop: one past the last column of the flat matrix.
        shape: height, width and channels of an image, otherwise None (of scores that stand for images too).
        levels: levels of a categorical column, the most frequent first, in the order of its one-hot columns, otherwise
            None.
        from_array: whether the block was one two- or more-dimensional entry of a mapping.

    >>> block = CovariateBlock("region", BlockKind.categorical, ("region",), 3, 5, levels=("north", "south"))
    >>> block.width, block.flat_names
    (2, ('region=north', 'region=south'))
    """

    name: str
    kind: BlockKind
    columns: tuple[str, ...]
    start: int
    stop: int
    shape: tuple[int, ...] | None = None
    levels: tuple[Level, ...] | None = None
    from_array: bool = False

    @property
    def width(self) -> int:
        """Number of columns in the flat matrix."""
        return self.stop - self.start

    @property
    def flat_names(self) -> tuple[str, ...]:
        """One name for each column of the flat matrix."""
        if self.levels is None:
            return self.columns
        return tuple(f"{self.name}={level}" for level in self.levels)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names a table or mapping uses for this block."""
        return (self.name,) if self.from_array else self.columns

    @property
    def holds_pixels(self) -> bool:
        """Whether it holds pictures themselves; an image block without a shape holds scores of pictures."""
        return self.kind is BlockKind.image and self.shape is not None

    @property
    def scaled(self) -> bool:
        """Whether scaling applies; zeros and ones, and pixels from 0 to 1, are left as they are."""
        return self.kind not in (BlockKind.binary, BlockKind.categorical, BlockKind.image)
