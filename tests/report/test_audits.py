from __future__ import annotations

import pytest

from bgmiv.bench.plan import Plan, Sweep
from bgmiv.bench.summary import Spread
from bgmiv.report import audits
from bgmiv.report.results import Results
from bgmiv.report.table import Number

from .conftest import MakeCell, a_row


def test_runtime_is_measured_and_beside_the_papers(make_cell: MakeCell) -> None:
    rows = [
        a_row(design="vector-proxy", n=5000, seed=0, seconds=10.0, cpu_seconds=8.0),
        a_row(design="vector-proxy", n=5000, seed=1, seconds=20.0, cpu_seconds=18.0, compilation_cache=True, batched=4),
        *make_cell("tsls", [1.0, None], design="vector-proxy", n=5000, compilation_cache=True),
        *make_cell("tsls", [1.0], design="demand", n=200),
    ]
    table = audits.runtime_table(Results.of(rows))
    assert table is not None
    assert [row[:4] for row in table.rows] == [
        ("demand", 200, "linear 2SLS (default)", 1),
        ("vector-proxy", 5000, "linear 2SLS (default)", 1),
        ("vector-proxy", 5000, "BGM-IV (default)", 2),
    ]
    last = dict(zip(table.header, table.rows[2], strict=True))
    assert last["wall s"] == Spread(15.0, pytest.approx(7.0710678), 2)
    assert (last["CPU min"], last["CPU max"]) == (Number(8.0, 1), Number(18.0, 1))
    assert (last["compilation"], last["trained together"]) == ("may be left out in 1 of 2", "1 or 4")
    assert (last["paper minutes"], last["paper min"], last["paper max"]) == tuple(
        Number(x, 2) for x in (5.86, 3.09, 9.96)
    )
    assert [row[10] for row in table.rows[:2]] == ["included", "may be left out"]
    assert table.rows[0][-3:] == (None, None, None)
    assert audits.runtime_table(Results.of(make_cell("kiv", [None]))) is None


def test_failures_are_counted_with_their_words(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("kiv", [1.0, None, None, 4.0]),
        *make_cell("kiv", [None], first_seed=4, error="MemoryError"),
        *make_cell("tsls", [1.0]),
    ]
    table = audits.failure_table(Results.of(rows))
    assert table is not None
    expected = ("KIV", "default", "5", "3", "60.0", "1-2, 4", "DivergedError: not finite (2); MemoryError")
    assert [texts[3:] for texts in table.texts] == [expected]
    assert audits.failure_table(Results.of(make_cell("tsls", [1.0]))) is None


def test_versions_say_which_rows_come_from_which_code(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("kiv", [1.0, 2.0], code="a" * 16),
        *make_cell("kiv", [3.0, 4.0], code="b" * 16, first_seed=1, timestamp="2026-03-01T00:00:00+00:00"),
    ]
    results = Results.of(rows)
    table = audits.version_table(results)
    assert [(row[3], row[5], row[6]) for row in table.rows] == [("a" * 16, 1, 1), ("b" * 16, 2, 0)]
    assert table.rows[0][-1] == "bgmiv 0.1.0, jax 0.10.2"
    mixed = audits.mixture_table(results)
    assert mixed is not None
    assert mixed.rows[0][-1] == f"code {'a' * 16} (seeds 0) and {'b' * 16} (seeds 1-2)"
    assert audits.mixture_table(Results.of(rows[:2])) is None


def test_missing_runs_of_a_plan(make_cell: MakeCell) -> None:
    plan = Plan("mine", "three seeds", (Sweep(["demand"], [1000, 5000], [0.5], ["tsls", "kiv"], repeats=3),))
    rows = [
        *make_cell("tsls", [1.0, 2.0, 3.0]),
        *make_cell("kiv", [1.0, None]),
        *make_cell("kiv", [1.0, 2.0, 3.0], n=5000),
        *make_cell("tsls", [9.0], n=5000, first_seed=2),
        *make_cell("dfiv", [9.0]),
    ]
    table = audits.missing_table(Results.of(rows), [plan])
    assert table is not None
    assert table.texts == (
        ("mine", "demand", "0.5", "1000", "KIV", "default", "3", "1", "1", "1", "2"),
        ("mine", "demand", "0.5", "5000", "linear 2SLS", "default", "3", "1", "0", "2", "0-1"),
    )
    assert audits.missing_runs(Results.of(rows), [plan, plan]) == 4
    assert audits.missing_table(Results.of(make_cell("tsls", [1.0])), []) is None
    done = Plan("done", "one", (Sweep(["demand"], [1000], [0.5], ["tsls"]),))
    assert audits.missing_table(Results.of(rows), [done]) is None
