from __future__ import annotations

import pytest

from bgmiv.bench.report.frame import paper_values


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
