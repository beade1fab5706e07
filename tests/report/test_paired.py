from __future__ import annotations

import csv
import io
from itertools import product

import numpy as np
import pytest
from scipy.stats import ttest_rel, wilcoxon
from statsmodels.stats.multitest import multipletests

from bgmiv.bench.row import Row
from bgmiv.report.naming import Column, Setting
from bgmiv.report.paired import compare_with_strongest, paired_table, paired_tests, paper_paired_table
from bgmiv.report.render import to_csv
from bgmiv.report.results import Results
from bgmiv.report.table import Mark
from bgmiv.report.twins import compare_with_twins, twin_table

from .conftest import MakeCell

SETTINGS = list(product((0.1, 0.25, 0.5, 0.75, 0.9), (1000, 5000, 10000)))


@pytest.fixture
def paper_like(make_cell: MakeCell) -> list[Row]:
    """The paper's comparison: 15 settings, 20 seeds, errors that share a part of the sample's."""
    rng = np.random.default_rng(5)
    rows: list[Row] = []
    for rho, n in SETTINGS:
        shared = rng.normal(0.0, 300.0, 20)
        for method, mean, spread in (("kiv", 9000, 300), ("dfiv", 7000, 700), ("bgm-iv", 6300, 1900)):
            errors = mean + shared + rng.normal(0.0, spread, 20)
            rows += make_cell(method, errors.tolist(), design="vector-proxy", rho=rho, n=n)
    return rows


def errors_of(rows: list[Row], method: str, rho: float, n: int) -> list[float]:
    found = {r.seed: r.structural_mse for r in rows if (r.method, r.rho, r.n) == (method, rho, n)}
    return [error for _, error in sorted(found.items()) if error is not None]


def test_the_papers_comparison(paper_like: list[Row]) -> None:
    results = Results.of(paper_like)
    found = compare_with_strongest(results, "vector-proxy", "default")
    assert [(one.setting.rho, one.setting.n) for one in found] == SETTINGS
    pairs = [(errors_of(paper_like, "bgm-iv", *s), errors_of(paper_like, "dfiv", *s)) for s in SETTINGS]
    plain = [wilcoxon(ours, theirs, method="exact").pvalue for ours, theirs in pairs]
    holm = multipletests(plain, method="holm")[1]
    for one, (ours, theirs), p, adjusted in zip(found, pairs, plain, holm, strict=True):
        assert one.baseline == Column("dfiv", "default")
        assert one.seeds == tuple(range(20))
        assert one.tests is not None
        assert one.tests.wilcoxon_method == "exact"
        assert one.tests.wilcoxon_p == p
        assert one.wilcoxon_holm == adjusted
        assert one.tests.t_p == ttest_rel(ours, theirs).pvalue
        assert one.difference == pytest.approx(np.mean(ours) - np.mean(theirs))
        assert one.our_error.deviation == pytest.approx(np.std(ours, ddof=1))
    assert len(set(holm)) > 3
    assert (holm > plain).any()


def test_the_table_and_the_papers_beside_it(paper_like: list[Row]) -> None:
    results = Results.of(paper_like)
    found = compare_with_strongest(results, "vector-proxy", "default")
    table = paired_table(results, found)
    assert table is not None
    assert len(table.rows) == 15
    assert any("exact distribution" in note for note in table.notes)
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert lines[4]["strongest baseline"] == "DFIV"
    assert float(lines[4]["Wilcoxon p (Holm)"]) == pytest.approx(found[4].wilcoxon_holm or 0.0, rel=1e-9)
    assert float(lines[4]["mean difference"]) == pytest.approx((found[4].difference or 0.0) / 1e4, rel=1e-9)
    printed = paper_paired_table(found)
    assert printed is not None
    assert printed.header == table.header
    assert [row[:3] for row in printed.rows] == [row[:3] for row in table.rows]
    assert printed.texts[1][4:] == ("0.685 ± 0.068", "0.324 ± 0.405", "-0.361", "–", "0.0043", "0.0009")


def test_few_seeds_get_no_p(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("bgm-iv", [1.0, 2.0, 3.0]),
        *make_cell("kiv", [2.0, 3.5, 9.0]),
        *make_cell("bgm-iv", [1.0], n=5000),
        *make_cell("kiv", [2.0], n=5000),
        *make_cell("bgm-iv", [1.0], rho=0.9),
        *make_cell("kiv", [2.0], rho=0.9, first_seed=7),
    ]
    results = Results.of(rows)
    three, one, none = compare_with_strongest(results, "demand", "default")
    assert three.tests is not None
    # Holm is over the cells that were tested: here one alone.
    assert three.wilcoxon_holm == three.tests.wilcoxon_p == wilcoxon([1.0, 2.0, 3.0], [2.0, 3.5, 9.0]).pvalue
    assert (one.seeds, one.tests, one.wilcoxon_holm) == ((0,), None, None)
    assert (none.seeds, none.baseline, none.difference) == ((), None, None)
    table = paired_table(results, (three, one, none))
    assert table is not None
    assert table.texts[1][7:] == ("too few",) * 3
    assert table.texts[2][2:6] == ("no matched seeds", "0", "–", "–")
    assert any("fewer than two" in note for note in table.notes)


def test_strongest_is_chosen_on_matched_seeds_among_instrumental_methods(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("bgm-iv", [5.0, 6.0, 7.0]),
        # Good on average over all its seeds, worst on those that match.
        *make_cell("kiv", [9.0, 9.0, 9.0, 0.1, 0.1, 0.1, 0.1]),
        *make_cell("dfiv", [8.0, 8.5, 8.0]),
        # Better, but with one matched seed only.
        *make_cell("deepiv", [0.2]),
        # Better, but a twin and an ablation are no baselines.
        *make_cell("kiv-noiv", [0.1, 0.1, 0.1]),
        *make_cell("bgm-iv", [0.1, 0.1, 0.1], preset="default-no-egm"),
    ]
    results = Results.of(rows)
    (one,) = compare_with_strongest(results, "demand", "default")
    assert one.baseline == Column("dfiv", "default")
    (named,) = compare_with_strongest(results, "demand", "default", ["kiv-noiv"])
    assert named.baseline == Column("kiv-noiv", "default")


def test_failed_seeds_are_left_out_and_marked(make_cell: MakeCell) -> None:
    rows = [*make_cell("bgm-iv", [1.0, None, 3.0, 4.0]), *make_cell("kiv", [2.0, 3.0, 5.0, None])]
    results = Results.of(rows)
    found = compare_with_strongest(results, "demand", "default")
    assert found[0].seeds == (0, 2)
    table = paired_table(results, found)
    assert table is not None
    assert table.marks == {(0, 2): (Mark.FAILED,)}


def test_sides_of_different_libraries_are_marked(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("bgm-iv", [1.0, 2.0, 3.0], code="a" * 16),
        *make_cell("kiv", [2.0, 3.5, 5.0], code="b" * 16, versions={"jax": "0.9.0"}),
    ]
    results = Results.of(rows)
    table = paired_table(results, compare_with_strongest(results, "demand", "default"))
    assert table is not None
    assert table.marks == {(0, 2): (Mark.MIXED,)}


@pytest.mark.parametrize(
    ("ours", "theirs", "method"),
    [
        ([1.0, 2.0, 3.0, 4.0], [1.5, 2.25, 4.0, 6.0], "exact"),
        ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.0, 2.0, 5.5, 6.25], "auto"),
        ([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 3.0, 5.0, 5.5, 6.75], "auto"),
        (np.arange(60.0).tolist(), (np.arange(60.0) ** 1.01 + 0.3).tolist(), "auto"),
    ],
)
def test_tests_equal_scipys(ours: list[float], theirs: list[float], method: str) -> None:
    found = paired_tests(ours, theirs)
    assert found.wilcoxon_method == method
    assert found.wilcoxon_p == wilcoxon(ours, theirs, method=method).pvalue
    assert found.t_p == ttest_rel(ours, theirs).pvalue


def test_equal_differences_have_no_t() -> None:
    assert paired_tests([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).wilcoxon_p == 1.0
    assert paired_tests([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).t_p is None
    assert paired_tests([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]).t_p is None


def test_twins(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("kiv", [1.0, 2.0, 3.0, 8.0]),
        *make_cell("kiv-noiv", [2.0, 3.0, 2.0, None]),
        *make_cell("bgm-iv", [5.0, 6.0]),
        *make_cell("bgm-iv-noiv", [4.0, 9.0, 1.0], first_seed=1),
        *make_cell("dfiv", [5.0, 6.0]),
        *make_cell("tsls", [1.0]),
        *make_cell("tsls-noiv", [1.0], first_seed=3),
    ]
    results = Results.of(rows)
    tsls, kiv, bgm = compare_with_twins(results, "demand")
    assert (tsls.seeds, tsls.verdict) == ((), "no matched seeds")
    assert (kiv.setting, kiv.seeds, kiv.wins, kiv.verdict) == (
        Setting("demand", 0.5, 1000),
        (0, 1, 2),
        2,
        "beats its twin",
    )
    assert (bgm.seeds, bgm.wins, bgm.verdict) == ((1,), 0, "loses to its twin")
    table = twin_table(results, (tsls, kiv, bgm))
    assert table is not None
    assert table.header[2:] == ("method", "seeds", "with instrument", "twin", "wins", "verdict")
    assert [row[-1] for row in table.rows] == ["no matched seeds", "beats its twin", "loses to its twin"]
    assert table.bold == {(1, 4), (2, 5)}
    assert twin_table(results, ()) is None
