"""The within transform against least squares on the indicators themselves."""

from __future__ import annotations

import numpy as np
import pytest

from bgmiv.data.ivdata import IVData
from bgmiv.data.within import LevelEffects, Within, absorbed_blocks, ordinary_columns


def indicators(codes: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    return np.hstack([np.eye(size)[column] for column, size in zip(codes.T, sizes, strict=True)])


def places(codes: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    return codes + np.cumsum([0, *sizes])[:-1]


def drawn_codes(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, tuple[int, ...]]:
    firm = rng.integers(0, 40, size=600)
    second = {
        "one": [],
        "two": [rng.integers(0, 25, size=600)],
        # Firms of either half meet other periods: the indicators have one more redundancy.
        "apart": [rng.integers(0, 10, size=600) + 10 * (firm >= 20)],
        "nested": [firm // 4],
        "three": [rng.integers(0, 25, size=600), rng.integers(0, 6, size=600)],
    }[kind]
    codes = np.column_stack([firm, *second])
    return codes, tuple(int(column.max()) + 1 for column in codes.T)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["one", "two", "apart", "nested", "three"])
def test_residuals_are_those_of_least_squares_on_indicators(kind: str, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    codes, sizes = drawn_codes(kind, rng)
    columns = rng.normal(size=(600, 3)) + 100.0
    weights = rng.uniform(0.2, 3.0, size=600) if weighted else None
    within = Within.fit(("a", "b", "c")[: len(sizes)], sizes, places(codes, sizes), weights)
    dummies = indicators(codes, sizes)
    root = np.ones((600, 1)) if weights is None else np.sqrt(weights)[:, None]
    slopes = np.linalg.lstsq(dummies * root, columns * root, rcond=1e-10)[0]
    assert within.residual(columns) == pytest.approx(columns - dummies @ slopes, abs=1e-10)
    assert within.residual(columns[:, 0]) == pytest.approx((columns - dummies @ slopes)[:, 0], abs=1e-10)
    assert within.dof() == np.linalg.matrix_rank(dummies)
    net = within.net(lambda rows: [columns[rows, :1], columns[rows, 1:]])
    assert np.hstack(net(slice(5, 90))) == pytest.approx((columns - dummies @ slopes)[5:90], abs=1e-10)


def test_columns_that_the_indicators_determine_are_exactly_zero() -> None:
    rng = np.random.default_rng(0)
    codes, sizes = drawn_codes("two", rng)
    within = Within.fit(("a", "b"), sizes, places(codes, sizes))
    own = rng.normal(size=40)[codes[:, 0]] + 1e6
    assert not within.residual(own).any()


def test_a_covariate_nested_in_the_groups_counts_as_one() -> None:
    codes, sizes = drawn_codes("two", np.random.default_rng(0))
    within = Within.fit(("a", "b"), sizes, places(codes, sizes))
    assert within.dof() == 40 + 25 - 1
    assert within.dof(codes[:, 0] // 2) == 1 + 25 - 1
    assert within.dof(codes[:, 1]) == 40 + 1 - 1
    assert within.dof(codes[:, ::-1]) == 1
    assert within.dof(np.arange(600)) == 40 + 25 - 1


def test_levels_without_rows_have_the_mean_of_the_others() -> None:
    within = Within.fit(("a",), (4,), np.array([[0], [0], [1], [3]]))
    found, _ = within.split(lambda rows: [np.array([[1.0], [3.0], [5.0], [7.0]])[rows]])
    assert found[:, 0].tolist() == [2.0, 5.0, 4.0, 7.0]
    assert within.dof() == 3


def test_nothing_is_absorbed_of_few_levels() -> None:
    rng = np.random.default_rng(0)
    y, x, w = rng.normal(size=(3, 400))
    names = {"firm": np.arange(400) % 21, "region": np.arange(400) % 20, "size": rng.normal(size=400)}
    blocks = {"firm": "categorical", "region": "categorical"}
    data = IVData.from_arrays(y, x, instruments=w, covariates=names, blocks=blocks)
    (found,) = absorbed_blocks(data.schema, 400)
    assert found.name == "firm"
    assert [block.name for block in absorbed_blocks(data.schema, 100)] == ["firm", "region"]
    kept = ordinary_columns(data.schema, ["firm"])
    assert [data.schema.flat_names[column] for column in kept] == [f"region={i}" for i in range(1, 20)] + ["size"]
    none = IVData.from_arrays(y, x, instruments=w, covariates=names["size"])
    within = Within.of(none.schema, none.covariates)
    assert not within
    assert within.dof() == 0
    assert within.residual(y) is y


@pytest.mark.parametrize("n_levels", [30, 400])
def test_noise_of_a_level_is_that_of_its_mean(n_levels: int) -> None:
    rng = np.random.default_rng(0)
    codes = np.concatenate([np.arange(n_levels), rng.integers(0, n_levels, size=5 * n_levels)])[:, None]
    weights = rng.uniform(0.5, 2.0, size=len(codes))
    within = Within.fit(("a",), (n_levels,), codes, weights)
    y, x = rng.normal(size=(2, len(codes)))
    effects = LevelEffects.fit(within, y, lambda rows: [x[rows, None]], np.array([0.0]), len(y) - within.dof())
    factors = effects.noise(codes.astype(np.int64), 2)
    assert factors.shape == (min(n_levels, 100), 2, len(codes))
    total = np.bincount(codes[:, 0], weights, n_levels)
    squares = np.bincount(codes[:, 0], weights**2, n_levels)
    net = within.residual(y)
    sigma = np.sqrt(np.average(net**2, weights=weights) * len(y) / (len(y) - within.dof()))
    wanted = sigma * np.sqrt(squares) / total
    assert sigma == pytest.approx(1.0, abs=0.15)
    assert np.linalg.norm(factors[:, 0], axis=0) == pytest.approx(wanted[codes[:, 0]])
    # Of one level and two treatments nothing is left; the average over all rows has the noise of independent means.
    assert not (factors[:, 1] - factors[:, 0]).any()
    shares = np.bincount(codes[:, 0]) / len(codes)
    average = np.linalg.norm(factors[:, 0].mean(axis=1))
    assert average == pytest.approx(np.linalg.norm(shares * wanted), rel=0.3 if n_levels > 100 else 1e-8)
