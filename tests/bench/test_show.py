from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from bgmiv.bench.show import Summary, design_unit, error_figure, read_rows

from ..conftest import NEWER, MakeCell


def test_the_newest_row_of_a_run_is_used(make_cell: MakeCell) -> None:
    # The third is later on the clock and earlier in time; the last has no time.
    times = ("2026-02-01T12:00:00+00:00", "2026-02-01T12:30:00+00:00", "2026-02-01T14:00:00+04:00", "yesterday")
    rows = [row for k, time in enumerate(times) for row in make_cell("kiv", [1e4 * k], timestamp=time)]
    for found in (rows, rows[::-1]):
        frame = read_rows(found)
        assert frame.loc[frame["current"], "mse"].to_list() == [1.0]


def test_rows_and_columns_have_one_order(make_cell: MakeCell) -> None:
    names = ["zoo", "bgm-iv", "kiv-noiv", "kiv", "tsls"]
    rows = [*make_cell("kiv", [1.0], design="airline"), *(row for name in names for row in make_cell(name, [1.0]))]
    rows += [*make_cell("bgm-iv", [1.0], preset="paper"), *make_cell("kiv", [1.0], n=100)]
    frame = read_rows(rows)
    assert frame["design"].to_list() == ["demand"] * 7 + ["airline"]
    assert frame["method"].to_list()[:-1] == ["kiv", "tsls", "kiv", "kiv-noiv", "zoo", "bgm-iv", "bgm-iv"]


def test_a_cell_has_rows_of_one_version_of_the_method(make_cell: MakeCell) -> None:
    todays = make_cell("kiv", [1.0, 2.0], timestamp="2026-02-01T12:00:00+00:00")
    others = make_cell("kiv", [3.0, 4.0, 5.0], **NEWER)
    frame = read_rows([*todays, *others])
    assert frame.loc[frame["current"], "structural_mse"].to_list() == [1.0, 2.0]
    # Where there are none of today's, the version that made the newest row.
    frame = read_rows([*make_cell("kiv", [6.0], method_version=8), *others])
    assert frame.loc[frame["current"], "structural_mse"].to_list() == [3.0, 4.0, 5.0]


def test_units_need_no_pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BGMIV_DATA_CACHE", str(tmp_path))
    assert design_unit("noisy-mnist") == design_unit("noisy-demand") > 1e4


def test_the_table_has_a_line_a_cell_of_rows_in_use(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("kiv", [1e4, 3e4, None], seconds=2.0),
        *make_cell("kiv", [9e4], **NEWER),
        *make_cell("dfiv", [1.0]),
    ]
    rows[2] = replace(rows[2], seconds=99.0)
    table = Summary(read_rows(rows)).to_frame().set_index("method")
    assert table.loc["kiv", ["fits", "failed", "outdated"]].to_list() == [3, 1, False]
    found = table.loc["kiv", ["mean", "sd", "inside", "seconds"]].to_list()
    assert found == pytest.approx([2.0, 2.0**0.5, 2.0, 2.0])
    assert np.isnan(table.loc["dfiv", "sd"])


def test_the_figure_has_a_panel_a_level_and_a_line_a_method(make_cell: MakeCell) -> None:
    name = r"$\frac{a}{$ <b> _x"
    rows = [row for n in (100, 500) for rho in (0.1, 0.9) for row in make_cell(name, [1.0, 9.0], n=n, rho=rho)]
    rows += make_cell("kiv", [2.0], rho=0.9)
    figure = error_figure(read_rows(rows), "demand")
    assert [panel.get_title() for panel in figure.axes] == ["rho = 0.1", "rho = 0.9"]
    assert [len(panel.containers) for panel in figure.axes] == [1, 2]
    assert list(figure.axes[0].containers[0].lines[0].get_ydata()) == pytest.approx([5e-4, 5e-4])
    # A bar does not reach below the best repeat, and a name is never a formula.
    assert min(np.ravel(figure.axes[0].containers[0].lines[2][0].get_segments()[0])[1::2]) == pytest.approx(1e-4)
    figure.savefig(BytesIO())
