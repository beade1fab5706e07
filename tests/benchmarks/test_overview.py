from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bgmiv.bench import Row
from bgmiv.bench.show import read_rows
from report.comparisons import functional_table, multiples, multiples_table, printed_table
from report.figures import heat_map
from report.results import bench_report

from ..conftest import MakeCell


@pytest.fixture
def rows(make_cell: MakeCell) -> list[Row]:
    cells = {"tsls": [2.0, 4.0], "kiv": [9.0, 9.0], "bgm-iv": [1.0, 2.0], "tsls-noiv": [0.1, 0.1]}
    found = [row for method, errors in cells.items() for row in make_cell(method, errors, design="lowdim-sin")]
    return [*found, *make_cell("bgm-iv", [0.5], design="lowdim-sin", preset="paper"), *make_cell("kiv", [1.0])]


def test_errors_are_multiples_of_the_lowest_mean_of_their_cell(rows: list[Row]) -> None:
    found = multiples(read_rows(rows))
    # Without no-instrument versions, other presets, and cells of one method.
    assert found.to_dict("records") == [{"2SLS": 2.0, "KIV": 6.0, "BGM-IV": 1.0}]
    table = multiples_table(read_rows(rows))
    assert table is not None
    assert table.text.iloc[0].to_list() == ["lowdim-sin", "0.5", "1000", "2.00", "6.00", "1.00", "0.50"]
    assert table.bold is not None
    assert table.bold.iloc[0].to_list() == [False, False, True]
    texts = [text.get_text() for text in heat_map(found).axes[0].texts]
    assert texts == ["2.0", "6.0", "1.0"]


def test_average_effects_have_bias_and_root_mean_square(make_row: Callable[..., Row]) -> None:
    rows = [
        make_row(design="noisy-linear", method="tsls", seed=seed, functional_errors={"contrast": error})
        for seed, error in enumerate((0.3, -0.1))
    ]
    table = functional_table(read_rows(rows))
    assert table is not None
    line = table.numbers.iloc[0]
    assert line["contrast bias"] == pytest.approx(0.1)
    assert line["contrast standard error"] == pytest.approx(0.2)
    assert line["contrast RMSE"] == pytest.approx(np.sqrt(0.05))
    assert functional_table(read_rows([make_row()])) is None


def test_the_report_has_it_where_there_are_two_methods(rows: list[Row], make_cell: MakeCell) -> None:
    assert "All designs at a glance" in [section.title for section in bench_report(rows).sections]
    assert all(section.title != "All designs at a glance" for section in bench_report(make_cell("kiv", [1.0])).sections)


def test_printed_values_stand_beside_ours(make_cell: MakeCell) -> None:
    frame = read_rows(make_cell("tsls", [1.0], design="tabcf-a3-b11"))
    table = printed_table(frame, "tabcf-a3-b11")
    assert table is not None
    assert dict(zip(table.text["method"], table.text["mean squared error"], strict=True))["DIV"].startswith("0.61")
    # What a moment does not identify is said beside the numbers.
    assert len(table.notes) == 2
    assert printed_table(read_rows(make_cell("tsls", [1.0])), "vector-proxy") is None
