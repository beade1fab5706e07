from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from bgmiv.bench.metrics import structural_error
from bgmiv.bench.row import Row
from bgmiv.bench.summary import Spread, summarise
from bgmiv.designs import StructuralGrid


def grid(in_support: list[bool]) -> StructuralGrid:
    m = len(in_support)
    return StructuralGrid(np.zeros(m), {}, np.arange(float(m)), np.array(in_support))


def test_error_is_split_by_support() -> None:
    predicted = np.arange(4.0) + [1.0, 1.0, 3.0, 3.0]
    error = structural_error(predicted, grid([True, True, False, False]))
    assert error == (5.0, 1.0, 9.0)


def test_an_empty_part_is_not_a_number() -> None:
    error = structural_error(np.arange(2.0), grid([True, True]))
    assert error.in_support == 0.0
    assert math.isnan(error.outside)


def test_cells_gather_seeds(make_row: Callable[..., Row]) -> None:
    rows = [
        make_row(seed=0, structural_mse=1.0),
        make_row(seed=1, structural_mse=3.0),
        make_row(seed=2, status="failed", structural_mse=None),
        make_row(n=500, structural_mse=7.0),
    ]
    first, second = summarise(rows)
    assert (first.fits, first.failed) == (3, 1)
    assert first.all.mean == 2.0
    assert first.all.deviation == pytest.approx(math.sqrt(2.0))
    assert (second.n, second.all.mean) == (500, 7.0)
    assert math.isnan(second.all.deviation)


def test_a_cell_of_failures_has_no_mean(make_row: Callable[..., Row]) -> None:
    (cell,) = summarise([make_row(status="failed", structural_mse=None)])
    assert str(cell.all) == "-"
    assert Spread.of([]).scaled(2.0).values == 0
