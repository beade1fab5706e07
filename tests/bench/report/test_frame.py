from __future__ import annotations

from pathlib import Path

import pytest

from bgmiv.bench.report.frame import add_labels, cell_marks, column_order, design_unit, mixed_versions, read_rows

from .conftest import NEWER, MakeCell


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
    labels = column_order(add_labels(frame))
    assert labels[2] == "KIV without the instrument (default)"
    assert labels[-2:] == ["BGM-IV (default)", "BGM-IV (paper)"]


def test_a_cell_has_rows_of_one_version_of_the_method(make_cell: MakeCell) -> None:
    todays = make_cell("kiv", [1.0, 2.0], timestamp="2026-02-01T12:00:00+00:00")
    others = make_cell("kiv", [3.0, 4.0, 5.0], **NEWER)
    frame = read_rows([*todays, *others])
    assert frame.loc[frame["current"], "structural_mse"].to_list() == [1.0, 2.0]
    # Where there are none of today's, the version that made the newest row.
    frame = read_rows([*make_cell("kiv", [6.0], method_version=8), *others])
    assert frame.loc[frame["current"], "structural_mse"].to_list() == [3.0, 4.0, 5.0]


def test_failed_fits_and_mixed_versions_are_marked(make_cell: MakeCell) -> None:
    other = {**NEWER, "versions": {"bgmiv": "0.1.0", "jax": "0.9.0"}}
    frame = read_rows([*make_cell("bgm-iv", [1.0, 2.0]), *make_cell("bgm-iv", [None], first_seed=5, **other)])
    assert frame["mse"].isna().to_list() == [False, False, True]
    assert mixed_versions(frame) == ["jax 0.10.2 (seeds 0-1) and 0.9.0 (seeds 5)"]
    assert (cell_marks(frame), cell_marks(frame[:2]), cell_marks(frame[2:])) == ("†‡§", "", "‡§")


def test_units_need_no_pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BGMIV_DATA_CACHE", str(tmp_path))
    assert design_unit("noisy-mnist") == design_unit("noisy-demand") > 1e4


def test_verdicts_come_from_the_evidence(make_cell: MakeCell) -> None:
    evidence = {"n_held_out": 400, "outcome_explained": 0.9, "first_stage_gain": 0.5, "of another version": 1.0}
    frame = read_rows([*make_cell("bgm-iv", [1.0]), *make_cell("bgm-iv", [1.0], first_seed=1, evidence=evidence)])
    assert (frame["verdict"].isna()[0], frame["verdict"][1]) == (True, "note")
