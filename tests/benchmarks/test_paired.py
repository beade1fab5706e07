from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_rel, wilcoxon
from statsmodels.stats.multitest import multipletests

from bgmiv.bench.show import read_rows
from report.comparisons import instrument_table, paired_table, paired_tests

from ..conftest import NEWER, MakeCell


def test_comparison_with_the_strongest_baseline(make_cell: MakeCell) -> None:
    rng = np.random.default_rng(5)
    rows, pairs = [], []
    for rho in (0.1, 0.5, 0.9):
        shared = rng.normal(0.0, 300.0, 12)
        errors = {
            method: (mean + shared + rng.normal(0.0, spread, 12)).tolist()
            for method, mean, spread in (("kiv", 9000, 300), ("dfiv", 7000, 700), ("bgm-iv", 6300, 1900))
        }
        for method, values in errors.items():
            rows += make_cell(method, values, design="vector-proxy", rho=rho, n=5000)
        pairs.append((errors["bgm-iv"], errors["dfiv"]))
    frame = read_rows(rows)
    table = paired_table(frame, "vector-proxy", "default")
    assert table is not None
    found = table.numbers
    assert found["baseline"].to_list() == ["DFIV"] * 3
    assert found["wilcoxon_method"].to_list() == ["exact"] * 3
    plain = [wilcoxon(ours, theirs, method="exact").pvalue for ours, theirs in pairs]
    assert found["wilcoxon_p"].to_list() == pytest.approx(plain)
    assert found["wilcoxon_holm"].to_list() == pytest.approx(multipletests(plain, method="holm")[1])
    assert found["t_p"].to_list() == pytest.approx([ttest_rel(*pair).pvalue for pair in pairs])
    assert found["difference"].to_list() == pytest.approx([np.mean(np.subtract(*pair)) / 1e4 for pair in pairs])
    assert found["sd"].to_list() == pytest.approx([np.std(ours, ddof=1) / 1e4 for ours, _ in pairs])


def test_few_seeds_get_no_p(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("bgm-iv", [1.0, 2.0, 3.0]),
        *make_cell("kiv", [2.0, 3.5, 9.0]),
        *make_cell("bgm-iv", [1.0], n=5000),
        *make_cell("kiv", [2.0], n=5000),
        *make_cell("bgm-iv", [1.0], rho=0.9),
        *make_cell("kiv", [2.0], rho=0.9, first_seed=7),
    ]
    table = paired_table(read_rows(rows), "demand", "default")
    assert table is not None
    # Holm is over the settings that were tested: here one alone.
    assert table.numbers["wilcoxon_holm"].to_list() == pytest.approx([0.25, np.nan, np.nan], nan_ok=True)
    assert table.text.iloc[1].to_list()[3:4] + table.text.iloc[1].to_list()[7:] == ["1", *["too few"] * 3]
    assert table.text.iloc[2].to_list()[2:7] == ["no matched seeds", "0", "–", "–", "–"]
    assert any("fewer than two" in note for note in table.notes)
    assert paired_table(read_rows(rows[:3]), "demand", "default") is None


def test_strongest_is_chosen_on_matched_seeds_among_instrumental_methods(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("bgm-iv", [5.0, 6.0, 7.0]),
        # Good on average over all its seeds, worst on those that match.
        *make_cell("kiv", [9.0, 9.0, 9.0, 0.1, 0.1, 0.1, 0.1]),
        *make_cell("dfiv", [8.0, 8.5, 8.0]),
        # Better, but with one matched seed only.
        *make_cell("deepiv", [0.2]),
        # Better, but neither a no-instrument version nor an ablation is a baseline.
        *make_cell("kiv-noiv", [0.1, 0.1, 0.1]),
        *make_cell("bgm-iv", [0.1, 0.1, 0.1], preset="default-no-egm"),
        # Better, but under the paper's settings.
        *make_cell("dfiv", [0.1, 0.1, 0.1], preset="paper"),
    ]
    frame = read_rows(rows)
    for baselines, name in (((), "DFIV"), (["kiv-noiv"], "KIV without the instrument")):
        table = paired_table(frame, "demand", "default", baselines)
        assert table is not None
        assert table.numbers["baseline"].to_list() == [name]


def test_marks_of_pairs(make_cell: MakeCell) -> None:
    other = {"versions": {"bgmiv": "0.1.0", "jax": "0.9"}}
    # Each method has a version of its own: that alone mixes nothing.
    for changes, marks in ((other, "†‡"), (NEWER, "‡§")):
        rows = [*make_cell("bgm-iv", [1.0, None, 3.0]), *make_cell("kiv", [2.0, 3.0, 5.0], **changes)]
        table = paired_table(read_rows(rows), "demand", "default")
        assert table is not None
        assert table.numbers[["repeats", "marks"]].to_numpy().tolist() == [[2, marks]]


def test_ties_and_equal_differences() -> None:
    assert paired_tests([1.0, 2.0], [1.0, 2.0])[:2] == (1.0, "auto")
    tied = paired_tests([1.0, 2.0, 3.0, 9.0], [2.0, 3.0, 4.0, 1.0])
    assert tied.wilcoxon_method == "auto"
    assert 0 < tied.t_p < 1
    assert np.isnan(paired_tests([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]).t_p)
    many = np.random.default_rng(0).normal(size=(2, 60))
    assert paired_tests(*many.tolist()).wilcoxon_method == "auto"


def test_methods_against_their_no_instrument_versions(make_cell: MakeCell) -> None:
    rows = [
        *make_cell("kiv", [1.0, 2.0, 9.0], design="lowdim-sin"),
        *make_cell("kiv-noiv", [2.0, 3.0, 1.0, 100.0], design="lowdim-sin"),
        *make_cell("tsls", [1.0], design="lowdim-sin"),
        *make_cell("tsls-noiv", [2.0], design="lowdim-sin", first_seed=4),
        *make_cell("dfiv", [1.0], design="lowdim-sin"),
    ]
    table = instrument_table(read_rows(rows), "lowdim-sin")
    assert table is not None
    shown = {line[2]: line[3:] for line in table.text.to_numpy().tolist()}
    assert shown["KIV"] == ["3", "4.000 ± 4.359", "2.000 ± 1.000", "2", "without"]
    assert shown["2SLS"] == ["0", "–", "–", "0", "no matched seeds"]
    assert set(shown) == {"KIV", "2SLS"}
    assert instrument_table(read_rows(make_cell("kiv", [1.0])), "demand") is None
