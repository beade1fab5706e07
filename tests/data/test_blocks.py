"""Typed blocks: where each kind of covariate goes in the flat matrix."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bgmiv.data import BlockKind, BlockSpec, CovariateBlock, IVData
from bgmiv.errors import KindWarning

rng = np.random.default_rng(1)
N = 12
Y, X, W = rng.normal(size=(3, N))


def build(covariates, blocks=None):
    return IVData.from_arrays(Y, X, instruments=W, covariates=covariates, blocks=blocks)


def layout(data):
    return [(block.name, str(block.kind), block.start, block.stop) for block in data.schema.blocks]


def normal(*shape):
    return rng.normal(size=(N, *shape))


def pixels(*shape):
    return rng.random(size=(N, *shape))


def flags():
    return np.arange(N) % 3 == 0


LAYOUTS = {
    "none": (None, None, []),
    "no entries": ({}, None, []),
    "matrix": (normal(3), None, [("covariates", "continuous", 0, 3)]),
    "one column": ({"age": normal()}, None, [("age", "continuous", 0, 1)]),
    "vector design": (
        {"time": normal(), "proxy": normal(7)},
        None,
        [("time", "continuous", 0, 1), ("proxy", "vector", 1, 8)],
    ),
    "runs": (
        {"a": normal(), "b": normal(), "f": flags(), "c": normal(), "d": normal()},
        None,
        [("covariates", "continuous", 0, 2), ("f", "binary", 2, 3), ("covariates_2", "continuous", 3, 5)],
    ),
    "taken name": (
        {"covariates": flags(), "b": normal(), "c": normal()},
        None,
        [("covariates", "binary", 0, 1), ("covariates_2", "continuous", 1, 3)],
    ),
    "declared": (
        {"a": normal(), "g": np.arange(N) % 3, "f": flags().astype(int), "b": flags()},
        {"g": "categorical", "f": BlockKind.binary, "b": "continuous"},
        [("a", "continuous", 0, 1), ("g", "categorical", 1, 4), ("f", "binary", 4, 5), ("b", "continuous", 5, 6)],
    ),
    "group": (
        pd.DataFrame(normal(4), columns=["a", "p0", "p1", "b"]),
        {"proxy": BlockSpec("vector", columns=["p0", "p1"])},
        [("a", "continuous", 0, 1), ("proxy", "vector", 1, 3), ("b", "continuous", 3, 4)],
    ),
    "array columns": (
        normal(4),
        {"proxy": BlockSpec("vector", columns=["covariate_2", "covariate_3"])},
        [("covariates", "continuous", 0, 2), ("proxy", "vector", 2, 4)],
    ),
    "wide flags": ({"f": flags()[:, None] ^ [[0, 1]]}, {"f": "binary"}, [("f", "binary", 0, 2)]),
    "images": (
        {"grey": pixels(2, 3), "colour": pixels(2, 3, 3), "flat": pixels(6)},
        {"flat": BlockSpec("image", shape=(3, 2))},
        [("grey", "image", 0, 6), ("colour", "image", 6, 24), ("flat", "image", 24, 30)],
    ),
    "image as vector": ({"grey": normal(2, 3)}, {"grey": "vector"}, [("grey", "vector", 0, 6)]),
}


@pytest.mark.parametrize(("covariates", "blocks", "expected"), LAYOUTS.values(), ids=LAYOUTS)
def test_layout(covariates, blocks, expected):
    data = build(covariates, blocks)
    assert layout(data) == expected
    assert data.covariates.shape == (N, data.schema.n_covariates)
    assert len(data.schema.flat_names) == data.schema.n_covariates
    assert hash(data.schema) == hash(data.schema)


def test_image_shape_and_pixel_order():
    photos = pixels(2, 3, 3)
    data = build({"photo": photos, "grey": photos[..., 0]})
    assert [block.shape for block in data.schema.blocks] == [(2, 3, 3), (2, 3, 1)]
    np.testing.assert_array_equal(data.covariates[:, :18].reshape(N, 2, 3, 3), photos)
    assert data.schema.covariate_names[:2] == ("photo[0]", "photo[1]")


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        (["b", "a", "c"] * 4, ("b", "a", "c")),
        (["b", "a", "a"] * 4, ("a", "b")),
        ([3, 1, 2] * 4, (3, 1, 2)),
        ([0.5, -1.0, 2.0] * 4, (0.5, -1.0, 2.0)),
        ([True, False, True] * 4, (True, False)),
        (np.array(["x", "y", "x"] * 4, dtype=object), ("x", "y")),
        (np.array([np.int64(2), np.int64(1)] * 6, dtype=object), (2, 1)),
    ],
)
def test_levels_are_python_values_by_frequency(values, levels):
    data = build({"g": values}, {"g": "categorical"})
    (block,) = data.schema.blocks
    assert block.levels == levels
    assert {type(level) for level in block.levels} <= {str, int, float, bool}
    assert block.flat_names == tuple(f"g={level}" for level in levels)
    np.testing.assert_array_equal(data.covariates.sum(axis=1), 1)
    np.testing.assert_array_equal(np.array(levels)[data.covariates.argmax(axis=1)], list(values))


def test_examples_are_the_same_every_time():
    """A suite that is red at random is not believed when it is right; `make fuzz` looks for new examples."""
    assert settings.default.derandomize


# A word that ends in a zero byte is refused.
WORDS = st.text(max_size=3).filter(lambda word: not word.endswith("\0"))


@given(st.lists(WORDS, min_size=2, max_size=30).filter(lambda values: len(set(values)) > 1))
@example(["\0a", "", " ", "nan"])
def test_one_hot_codes_can_be_read_back(values):
    n = len(values)
    data = IVData.from_arrays(
        np.arange(n) * 0.7,
        np.arange(n) + 0.3,
        instruments=np.sqrt(np.arange(n) + 0.6),
        covariates={"g": np.array(values, dtype=object)},
        blocks={"g": "categorical"},
    )
    levels = data.schema.blocks[0].levels
    assert sorted(levels) == sorted(set(values))
    assert [levels[code] for code in data.covariates.argmax(axis=1)] == values


def test_a_category_dtype_needs_no_declaration():
    values = ["a", "b", "a"] * 4
    for series in (pd.Series(values, dtype="category"), pl.Series(values, dtype=pl.Categorical)):
        (block,) = build({"g": series}, None).schema.blocks
        assert (block.kind, block.levels) == (BlockKind.categorical, ("a", "b"))


def test_undeclared_zeros_and_ones_are_binary_and_told_in_one_line():
    flag = np.arange(N) % 2
    entries = {"age": np.arange(N), "black": flag, "poor": 1.0 - flag, "north": flag == 0}
    with pytest.warns(KindWarning, match=r"0 and 1: covariates 'black', 'poor'.*blocks=\{'black': 'con") as caught:
        data = build(entries, None)
    assert len(caught) == 1
    blocks = [(str(block.kind), block.columns) for block in data.schema.blocks]
    # Those next to each other are one block; a boolean is one of its own.
    assert blocks == [("continuous", ("age",)), ("binary", ("black", "poor")), ("binary", ("north",))]
    build(entries, {"black": "continuous", "poor": "binary"})
    build(entries, {"flags": BlockSpec("continuous", columns=["black", "poor"])})


def test_the_name_of_a_column_is_no_kind():
    entries = {"age": np.arange(N), "continuous": np.arange(N) % 2 == 0, "size": np.arange(N) * 2.0}
    assert [block.kind for block in build(entries, None).schema.blocks] == ["continuous", "binary", "continuous"]


def test_block_answers():
    block = CovariateBlock("proxy", BlockKind.vector, ("proxy[0]", "proxy[1]"), 3, 5, from_array=True)
    assert (block.width, block.scaled, block.input_names) == (2, True, ("proxy",))
