from __future__ import annotations

from bgmiv.bench.show import add_labels, read_rows
from report.frame import cell_marks, column_order, mixed_versions

from ..conftest import NEWER, MakeCell


def test_columns_have_one_order(make_cell: MakeCell) -> None:
    names = ["zoo", "bgm-iv", "kiv-noiv", "kiv", "tsls"]
    rows = [*make_cell("bgm-iv", [1.0], preset="paper"), *(row for name in names for row in make_cell(name, [1.0]))]
    labels = column_order(add_labels(read_rows(rows)))
    assert labels[2] == "KIV without the instrument (default)"
    assert labels[-2:] == ["BGM-IV (default)", "BGM-IV (paper)"]


def test_failed_fits_and_mixed_versions_are_marked(make_cell: MakeCell) -> None:
    other = {**NEWER, "versions": {"bgmiv": "0.1.0", "jax": "0.9.0"}}
    frame = read_rows([*make_cell("bgm-iv", [1.0, 2.0]), *make_cell("bgm-iv", [None], first_seed=5, **other)])
    assert frame["mse"].isna().to_list() == [False, False, True]
    assert mixed_versions(frame) == ["jax 0.10.2 (seeds 0-1) and 0.9.0 (seeds 5)"]
    assert (cell_marks(frame), cell_marks(frame[:2]), cell_marks(frame[2:])) == ("†‡§", "", "‡§")
