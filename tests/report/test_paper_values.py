from __future__ import annotations

import pytest

from bgmiv.report.naming import Setting
from bgmiv.report.paper_values import PaperRuntime, paper_values

PAPER = paper_values()
DESIGNS = {"vector-proxy": (1000, 5000, 10000), "mnist": (1000, 5000, 10000), "mnist-hd": (5000, 10000, 20000)}
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)


@pytest.mark.parametrize("design", DESIGNS)
def test_every_setting_of_the_papers_tables_is_there(design: str) -> None:
    settings = {Setting(design, rho, n) for rho in LEVELS for n in DESIGNS[design]}
    assert {setting for setting in PAPER.accuracy if setting.design == design} == settings
    assert {setting for setting in PAPER.paired if setting.design == design} == settings
    for setting in settings:
        values = PAPER.accuracy[setting]
        assert tuple(values) == ("deepgmm", "deepiv", "kiv", "dfiv", "bgm-iv")
        assert min(values, key=lambda method: values[method].mean) == "bgm-iv"
        assert {spread.values for spread in values.values()} == {10 if design == "mnist-hd" else 20}


def test_tables_of_the_paper_agree_with_one_another() -> None:
    for setting, pair in PAPER.paired.items():
        assert pair.difference == pytest.approx(pair.our_error.mean - pair.baseline_error.mean, abs=0.0021)
        for method, error in (("bgm-iv", pair.our_error), (pair.baseline, pair.baseline_error)):
            printed = PAPER.accuracy[setting][method]
            assert printed.mean == pytest.approx(error.mean, abs=0.0101)
            assert printed.deviation == pytest.approx(error.deviation, abs=0.0101)
    for setting, ablation in PAPER.ablation.items():
        assert PAPER.accuracy[setting]["bgm-iv"] == ablation.full
        assert ablation.full.mean < ablation.without.mean


def test_ablation_and_runtime() -> None:
    assert set(PAPER.ablation) == {
        Setting(design, rho, 5000) for design in ("demand", "vector-proxy", "mnist") for rho in (0.1, 0.5, 0.9)
    }
    assert PAPER.ablation[Setting("mnist", 0.5, 5000)].without.mean == 2.62
    assert PAPER.runtime["vector-proxy", 5000, "kiv"] == PaperRuntime(6.71, 6.48, 6.43, 7.72)
    assert len(PAPER.runtime) == 5
    assert all(row.least <= row.median <= row.most for row in PAPER.runtime.values())
    assert len(PAPER.sources) == 10
