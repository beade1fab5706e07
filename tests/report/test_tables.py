from __future__ import annotations

import csv
import io
import random
from dataclasses import replace

import numpy as np
import pytest

from bgmiv.bench.row import Row
from bgmiv.report.naming import Column, Setting
from bgmiv.report.render import to_csv
from bgmiv.report.results import Results, mixture
from bgmiv.report.table import Mark
from bgmiv.report.tables import ablation_table, accuracy_table, paper_accuracy_table, support_table

from .conftest import MakeCell, a_row


@pytest.fixture
def rows(make_cell: MakeCell) -> list[Row]:
    rng = np.random.default_rng(1)
    found: list[Row] = []
    for design, rho, n in (("vector-proxy", 0.9, 1000), ("vector-proxy", 0.1, 5000), ("vector-proxy", 0.1, 1000)):
        for method, mean in (("bgm-iv", 5000), ("dfiv", 7000), ("tsls", 9000), ("kiv-noiv", 100)):
            errors = (mean * rng.uniform(0.5, 1.5, 5)).tolist()
            found += make_cell(method, errors, design=design, rho=rho, n=n)
    return found


def test_accuracy_has_the_papers_order_and_bold(rows: list[Row]) -> None:
    table = accuracy_table(Results.of(rows), "vector-proxy")
    assert table is not None
    assert table.header == ("rho", "n", "linear 2SLS", "DFIV", "BGM-IV")
    assert [row[:2] for row in table.rows] == [("0.1", 1000), ("0.1", 5000), ("0.9", 1000)]
    for i, (rho, n) in enumerate(((0.1, 1000), (0.1, 5000), (0.9, 1000))):
        means = {
            method: np.mean([r.structural_mse for r in rows if (r.method, r.rho, r.n) == (method, rho, n)])
            for method in ("tsls", "dfiv", "bgm-iv")
        }
        best = min(means, key=lambda method: means[method])
        assert [j for row, j in table.bold if row == i] == [2 + list(means).index(best)]
    (line,) = [
        line for line in csv.DictReader(io.StringIO(to_csv(table))) if (line["rho"], line["n"]) == ("0.9", "1000")
    ]
    own = [r.structural_mse for r in rows if (r.method, r.rho) == ("dfiv", 0.9)]
    assert float(line["DFIV mean"]) == pytest.approx(np.mean(own) / 1e4, rel=1e-9)
    assert float(line["DFIV sd"]) == pytest.approx(np.std(own, ddof=1) / 1e4, rel=1e-9)
    assert (line["DFIV repeats"], line["MSE divided by"]) == ("5", "10000")
    assert table.notes[0].startswith("Mean ± standard deviation over 5 repeats.")


def test_accuracy_is_the_same_bytes_from_the_same_rows(rows: list[Row]) -> None:
    def text(found: list[Row]) -> str:
        table = accuracy_table(Results.of(found), "vector-proxy")
        assert table is not None
        return to_csv(table)

    other = [replace(row, seconds=row.seconds * 3, cpu_seconds=1.0, timestamp="2027-05-05T00:00:00Z") for row in rows]
    random.Random(0).shuffle(other)
    assert text(other) == text(rows)
    assert "2026" not in text(rows)


def test_the_papers_values_stand_beside(rows: list[Row]) -> None:
    table = paper_accuracy_table(Results.of(rows), "vector-proxy")
    assert table is not None
    assert table.header == ("rho", "n", "DeepGMM", "DeepIV", "KIV", "DFIV", "BGM-IV")
    assert table.texts[1] == (
        "0.1",
        "5000",
        *("5.92 ± 0.38", "1.12 ± 0.06", "0.90 ± 0.02", "0.68 ± 0.07", "0.32 ± 0.41"),
    )
    assert table.bold == {(0, 6), (1, 6), (2, 6)}
    assert "tab:vector_mse" in table.notes[0]
    assert paper_accuracy_table(Results.of([a_row(design="linear-gaussian")]), "linear-gaussian") is None
    demand = paper_accuracy_table(Results.of([a_row(n=5000, rho=0.1), a_row(n=1000, rho=0.1)]), "demand")
    assert demand is not None
    assert demand.texts == (("0.1", "5000", "0.05 ± 0.01"),)


def test_presets_are_columns_of_their_own(make_cell: MakeCell) -> None:
    found = [
        *make_cell("bgm-iv", [1.0, 2.0], design="lowdim-sin", preset="paper-qmc"),
        *make_cell("bgm-iv", [3.0, 4.0], design="lowdim-sin"),
        *make_cell("bgm-iv", [0.1, 0.1], design="lowdim-sin", preset="default-no-egm"),
        *make_cell("kiv", [3.0], design="lowdim-sin", preset="paper"),
    ]
    table = accuracy_table(Results.of(found), "lowdim-sin")
    assert table is not None
    assert table.header[2:] == ("KIV", "BGM-IV (default)", "BGM-IV (paper-qmc)")
    assert table.texts[0][2:] == ("3.00 (1)", "3.50 ± 0.71", "1.50 ± 0.71")
    assert table.title.endswith("structural MSE")
    assert "Preset of KIV: paper." in table.notes[0]


def test_a_partial_store_gives_a_partial_table(make_cell: MakeCell) -> None:
    found = [
        *make_cell("bgm-iv", [1.0, 2.0]),
        *make_cell("kiv", [None, None]),
        *make_cell("dfiv", [2.0, None], rho=0.9),
    ]
    table = accuracy_table(Results.of(found), "demand")
    assert table is not None
    assert [texts[2:] for texts in table.texts] == [("–", "–", "0.00015 ± 0.00007"), ("–", "0.00020 (1)", "–")]
    assert table.marks == {(0, 2): (Mark.FAILED,), (1, 3): (Mark.FAILED,)}
    assert table.bold == frozenset()
    assert accuracy_table(Results.of(make_cell("kiv-noiv", [1.0])), "demand") is None


def test_the_newest_row_of_a_run_is_used() -> None:
    old = a_row(structural_mse=1.0, code="a" * 16, timestamp="2026-02-01T12:00:00+00:00")
    new = a_row(structural_mse=2.0, code="b" * 16, timestamp="2026-02-01T12:30:00+00:00")
    # Later on the clock, earlier in time.
    east = a_row(structural_mse=3.0, code="c" * 16, timestamp="2026-02-01T14:00:00+04:00")
    strange = a_row(structural_mse=4.0, code="e" * 16, timestamp="yesterday")
    for found in ([old, new, east, strange], [strange, east, new, old]):
        results = Results.of(found)
        assert results.errors(Setting("demand", 0.5, 1000), Column("bgm-iv", "default")) == {0: 2.0}
        assert len(results.superseded) == 3


def test_mixed_versions_are_marked_and_named(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("bgm-iv", [1.0, 2.0], code="a" * 16),
        *make_cell("bgm-iv", [3.0], first_seed=5, code="b" * 16, versions={"bgmiv": "0.1.0", "jax": "0.9.0"}),
        *make_cell("kiv", [3.0, 4.0, 5.0]),
    ]
    table = accuracy_table(Results.of(rows), "demand")
    assert table is not None
    assert table.marks == {(0, 3): (Mark.MIXED,)}
    assert f"† {Mark.MIXED.footnote}" in table.footnotes
    words = mixture(rows[:3])
    assert words == (
        f"code {'a' * 16} (seeds 0-1) and {'b' * 16} (seeds 5)",
        "jax 0.10.2 (seeds 0-1) and 0.9.0 (seeds 5)",
    )
    assert mixture(rows[3:]) == ()
    # The same run made twice by two versions is not a mixture: one row is used.
    assert accuracy_table(Results.of([rows[0], replace(rows[0], code="f" * 16)]), "demand").marks == {}


def test_ablation_beside_the_papers(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("bgm-iv", [200.0, 300.0], n=5000),
        *make_cell("bgm-iv", [9000.0, 8000.0], n=5000, preset="default-no-egm"),
        *make_cell("bgm-iv", [9000.0, 8000.0], n=5000, preset="paper-qmc"),
    ]
    table = ablation_table(Results.of(rows), "demand")
    assert table is not None
    expected = ("default", "0.5", "5000", "0.025 ± 0.007", "0.850 ± 0.071", "0.04 ± 0.01 (20)", "1.51 ± 0.77 (20)")
    assert table.texts == (expected,)
    assert table.bold == {(0, 3)}
    assert ablation_table(Results.of(rows[:2]), "demand") is None


def test_inside_and_outside(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("kiv", [2e4], structural_mse_in_support=1e4, structural_mse_outside=None),
        *make_cell("kiv-noiv", [3e4], structural_mse_in_support=2e4, structural_mse_outside=9e4),
    ]
    table = support_table(Results.of(rows), "demand")
    assert [texts[2:] for texts in table.texts] == [
        ("KIV", "2.00", "1.00", "–"),
        ("KIV, no instrument", "3.00", "2.00", "9.00"),
    ]
