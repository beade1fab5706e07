from __future__ import annotations

import pytest

from bgmiv.bench import Row
from bgmiv.bench.plan import load_plan
from bgmiv.bench.show import read_rows
from bgmiv.designs import DESIGNS
from report.exhibits import Exhibit, paper_exhibits
from report.figures import Picture
from report.filled import filled
from report.paper import agreement_table, exhibit_parts
from report.printed import paper_values, printed_results
from report.published import NETWORK_CURVES, TABCF_SCENARIOS
from report.tables import Table

from ..conftest import NEWER, MakeCell


def test_tables_of_the_paper_agree_with_one_another() -> None:
    paper = paper_values()
    accuracy = paper.accuracy.set_index(["design", "rho", "n", "method"]).sort_index()
    for pair in paper.paired.itertuples():
        setting = (pair.design, pair.rho, pair.n)
        assert pair.difference == pytest.approx(pair.mean - pair.baseline_mean, abs=0.0021)
        for method, mean, sd in (("bgm-iv", pair.mean, pair.sd), (pair.baseline, pair.baseline_mean, pair.baseline_sd)):
            assert accuracy.loc[(*setting, method), ["mean", "sd"]].to_list() == pytest.approx([mean, sd], abs=0.0101)
        assert accuracy.loc[setting, "mean"].idxmin() == "bgm-iv"
    assert len(paper.paired) == 45
    for row in paper.ablation.itertuples():
        assert accuracy.loc[(row.design, row.rho, row.n, "bgm-iv"), "mean"] < row.mean
    assert len(paper.ablation) == 9
    kiv = paper.runtime.set_index("method").loc["kiv"]
    assert kiv[["mean", "median", "min", "max"]].to_list() == [6.71, 6.48, 6.43, 7.72]
    assert paper.sources["accuracy", "mnist-hd"] == "tab:mnist_hd_mse"


def lines(parts: tuple[object, ...]) -> list[list[str]]:
    (table,) = [part for part in parts if isinstance(part, Table)]
    return table.text.to_numpy().tolist()


@pytest.mark.parametrize("exhibit", paper_exhibits(), ids=lambda exhibit: exhibit.name)
def test_every_exhibit_renders_without_any_fit_of_its_own(exhibit: Exhibit, make_cell: MakeCell) -> None:
    parts = exhibit_parts(read_rows(make_cell("tsls", [1.0], design="lowdim-sin")), exhibit)
    said = [part for part in parts if isinstance(part, str)]
    if exhibit.sweeps:
        assert "Filled: the paper's settings: 0 of " in said[0]
    if "boxes" in exhibit.kind:
        assert "nothing to draw" in said[-1]
    else:
        assert any(isinstance(part, Table | Picture) for part in parts)


def shown(name: str, rows: list[Row]) -> list[list[str]]:
    (exhibit,) = [exhibit for exhibit in paper_exhibits() if exhibit.name == name]
    return lines(exhibit_parts(read_rows(rows), exhibit))


def test_printed_values_stand_beside_both_families(make_cell: MakeCell) -> None:
    cell = {"design": "vector-proxy", "n": 5000, "first_seed": 1}
    rows = [
        *make_cell("bgm-iv", [100.0, 200.0], **cell),
        *make_cell("dfiv", [300.0, 500.0], **cell),
        *make_cell("bgm-iv", [1000.0, 3000.0], **cell, preset="paper-qmc"),
        # Neither seed 0 nor a preset of no family's plan is in the table.
        *make_cell("kiv", [1.0], **{**cell, "first_seed": 0}),
        *make_cell("bgm-iv", [1.0], **cell, preset="paper"),
    ]
    own = [line[2:] for line in shown("table-1", rows) if line[:2] == ["0.5", "5000"]]
    assert own == [
        ["printed", "0.90 ± 0.02", "1.11 ± 0.06", "0.70 ± 0.08", "5.78 ± 0.34", "0.23 ± 0.35"],
        ["paper", "–", "–", "–", "–", "0.200 ± 0.141 (2)"],
        ["default", "–", "–", "0.040 ± 0.014 (2)", "–", "0.015 ± 0.007 (2)"],
    ]
    pairs = [line[2:] for line in shown("table-8", rows) if line[:2] == ["0.5", "5000"]]
    assert pairs[0] == ["printed", "DFIV", "20", "0.696 ± 0.085", "0.227 ± 0.346", "-0.468", "–", "0.0005", "1.73e-05"]
    # DFIV's default fits are no match for BGM-IV under the paper's settings.
    assert [pair[:3] for pair in pairs[1:]] == [["paper", "no matched seeds", "0"], ["default", "DFIV", "2"]]
    table = agreement_table(read_rows(rows))
    (line,) = [x for x in table.text.to_numpy().tolist() if x[:3] == ["vector-proxy", "5000", "0.5"]]
    apart = (0.2 - 0.23) / (0.02 / 2 + 0.35**2 / 20) ** 0.5
    assert line[6:9] == [f"{apart:+.1f}", "DFIV 0.040", "yes (2)"]
    assert table.notes[0] == "Default against default, BGM-IV has the lower mean in 1 of 1 cells."


def test_both_ablations_beside_the_printed_one(make_cell: MakeCell) -> None:
    cell = {"n": 5000, "first_seed": 1}
    rows = [
        *make_cell("bgm-iv", [400.0, 500.0], **cell, preset="paper-qmc"),
        *make_cell("bgm-iv", [11000.0, 12000.0], **cell, preset="paper-qmc-egm0"),
        *make_cell("bgm-iv", [32000.0], **cell, preset="paper-qmc-no-egm"),
    ]
    own = [line[2:] for line in shown("table-11", rows) if line[0] == "0.5"]
    assert own[0] == ["printed", "0.04 ± 0.01", "1.51 ± 0.77", "–", "–", "–"]
    assert own[1][:4] == ["paper", "0.045 ± 0.007 (2)", "1.150 ± 0.071 (2)", "3.200 (1)"]


def test_runtime_has_mean_median_and_ends(make_cell: MakeCell) -> None:
    rows = [
        row
        for rho, seconds in ((0.1, 60.0), (0.5, 120.0), (0.9, 300.0))
        for row in make_cell("kiv", [1.0], design="vector-proxy", n=5000, rho=rho, first_seed=1, seconds=seconds)
    ]
    own = {line[1]: line[2:] for line in shown("table-6", rows) if line[0] == "KIV"}
    assert own["printed"] == ["5", "6.71", "6.48", "6.43", "7.72", "–"]
    assert own["default"][:5] == ["3", "2.67", "2.00", "1.00", "5.00"]
    assert own["paper"] == ["–"] * 6


def test_what_is_missing_and_what_it_costs(make_cell: MakeCell) -> None:
    cell = {"design": "vector-proxy", "n": 1000, "first_seed": 1, "cpu_seconds": 36.0}
    rows = [*make_cell("kiv", [1.0, 2.0, None], **cell), *make_cell("kiv", [1.0], **{**cell, "first_seed": 9}, **NEWER)]
    plan = load_plan("paper/table-1").part(rho=[0.5], n=[1000, 5000], methods=["kiv", "dfiv"], presets=["default"])
    (found,) = filled(read_rows(rows), plan.specs)
    assert (found.cells, found.filled_cells, found.fits, found.done, found.other) == (4, 1, 80, 2, 1)
    # 18 fits of KIV at n = 1000 and 20 of five times the size, at the time of the rows; of DFIV nothing is known.
    assert (found.hours, found.unknown) == (pytest.approx(0.01 * (18 + 5 * 20)), 40)


def test_printed_results_name_designs_and_sources() -> None:
    found = printed_results()
    assert {one.design for one in found} == {f"network-{c}" for c in NETWORK_CURVES} | {
        f"tabcf-{s}" for s in TABCF_SCENARIOS
    }
    assert all(one.design in DESIGNS and "repository" in one.source and "commit" in one.source for one in found)
    best = {one.design: one for one in found if one.method == "KMM"}
    assert (best["network-abs"].mean, best["network-abs"].spread, best["network-abs"].runs) == (0.032, 0.006, 30)


def test_the_paper_has_all_its_tables_and_figures() -> None:
    exhibits = {exhibit.name: exhibit for exhibit in paper_exhibits()}
    # Figure 1 is a drawing of the model.
    assert set(exhibits) == {f"table-{i}" for i in range(1, 14)} | {f"figure-{i}" for i in range(2, 10)}
    tables = [exhibits[name].plan for name in ("figure-2", "table-1", "table-2", "table-7")]
    printed = {spec for plan in tables for spec in plan.specs if spec.preset == "default"}
    assert len(printed) == 5250
    assert {spec.preset for plan in tables for spec in plan.specs if spec.method != "bgm-iv"} == {"default", "paper"}
    assert len({exhibit.label for exhibit in exhibits.values()}) == len(exhibits)
