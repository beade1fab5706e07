from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import make_report
from bgmiv.bench import Plan, Row, RowStore, Sweep
from bgmiv.errors import ConfigError
from report.results import Report, bench_report, report_files
from report.tables import Table

from ..conftest import NEWER, MakeCell

HOSTILE = "../../<script>alert(1)</script>\\input{x} $a_b"
PLAN = Plan("small", "three seeds", (Sweep(["vector-proxy"], [1000], [0.5], ["bgm-iv", "dfiv"], repeats=3),))


class Page(HTMLParser):
    """What a page opens, links to and loads; every tag must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


@pytest.fixture
def rows(make_cell: MakeCell) -> list[Row]:
    rng = np.random.default_rng(3)
    found: list[Row] = []
    for n in (1000, 5000):
        for method, mean in (("bgm-iv", 3000.0), ("bgm-iv-noiv", 3500.0), ("kiv", 9000.0), ("tsls", 20000.0)):
            found += make_cell(method, (mean * rng.uniform(0.5, 1.5, 3)).tolist(), design="vector-proxy", n=n)
    found += make_cell("bgm-iv", [20000.0, 22000.0], design="vector-proxy", n=5000, preset="default-no-egm")
    return [*found, *make_cell("kiv", [0.1, None], design="lowdim-sin")]


def named(made: Report, name: str) -> Table:
    (table,) = [table for table in made.tables if table.name == name]
    return table


def test_the_report_has_every_part_and_stands_alone(rows: list[Row]) -> None:
    made = bench_report(rows, [PLAN])
    design = ["accuracy", "paired-*-default", "no-instrument", "support"]
    names = ["paper-filled", *(f"paper-table-{i}" for i in (1, 3, 4, 5, 6, 8, 12)), "multiples"]
    names += [part.replace("-*", "-vector-proxy") if "*" in part else f"{part}-vector-proxy" for part in design]
    names += ["accuracy-lowdim-sin", "support-lowdim-sin", "runtime", "failures", "versions", "missing"]
    assert [table.name for table in made.tables] == names
    pictures = ["paper-figure-3-default", "paper-figure-5", "multiples", "lines-vector-proxy", "boxes-vector-proxy"]
    pictures += ["boxes-lowdim-sin"]
    assert [picture.name for picture in made.pictures] == pictures
    assert made.sections[0].parts[0] == (
        "28 fits of 4 methods on 2 designs; 1 failed. This report is partial: 3 of 6 planned fits are missing or "
        "failed (see Missing runs)."
    )
    files = report_files(made)
    assert len(files) == 2 + 3 * len(names) + 2 * len(pictures)
    assert all(link in files for link in re.findall(r"\]\((.+?)\)", files["report.md"].decode()))
    page = Page(files["index.html"].decode())
    assert not page.tags & {"script", "link", "iframe", "object", "form", "base"}
    assert not any(name.startswith("on") or name == "style" for name, _ in page.attributes)
    assert page.values("content")[0].startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert len(page.values("src")) == len(pictures)
    assert all(source.startswith("data:image/png;base64,") for source in page.values("src"))
    assert page.values("href") == [f"#{name}" for name in page.values("id")]


def test_hostile_names_stay_names(make_cell: MakeCell) -> None:
    found = [
        *make_cell(HOSTILE, [1.0, 2.0], design=HOSTILE, preset=HOSTILE, versions={HOSTILE: HOSTILE}),
        *make_cell("bgm-iv", [1.0, 3.0], design=HOSTILE, error=HOSTILE),
        *make_cell("kiv", [None], design=HOSTILE + "\n", error=HOSTILE),
    ]
    files = report_files(bench_report(found))
    assert "script" not in Page(files["index.html"].decode()).tags
    assert all(re.fullmatch(r"(tables|figures)/[\w-]+\.\w+|(index|report)\.\w+", name) for name in files)
    for name, content in files.items():
        if name.endswith(".tex"):
            assert r"\input{x}" not in content.decode()
        if name.endswith((".md", ".html")):
            assert "<script" not in content.decode()


def test_runtime_is_measured(make_cell: MakeCell) -> None:
    setting = {"design": "vector-proxy", "n": 5000}
    rows = [
        *make_cell("bgm-iv", [1.0], **setting, seconds=10.0, cpu_seconds=8.0),
        *make_cell("bgm-iv", [1.0], **setting, seed=1, seconds=20.0, cpu_seconds=18.0, compilation_cache=True),
        *make_cell("tsls", [1.0, None], **setting, compilation_cache=True),
        *make_cell("tsls", [1.0], n=200),
    ]
    first, second, last = named(bench_report(rows), "runtime").text.to_numpy().tolist()
    assert first[:4] == ["demand", "200", "2SLS (default)", "1"]
    assert second[10:] == ["may be left out"]
    times = ["15.0 ± 7.1", "10.0", "20.0", "13.0 ± 7.1", "8.0", "18.0"]
    assert last[2:] == ["BGM-IV (default)", "2", *times, "may be left out in 1 of 2"]


def test_failures_versions_and_missing_runs(make_cell: MakeCell) -> None:
    plan = Plan("mine", "three seeds", (Sweep(["demand"], [1000, 5000], [0.5], ["tsls", "kiv"], repeats=3),))
    rows = [
        *make_cell("tsls", [1.0, 2.0, 3.0]),
        *make_cell("kiv", [1.0, None]),
        *make_cell("kiv", [1.0, 2.0, 3.0], n=5000),
        *make_cell("kiv", [5.0], n=5000, **NEWER),
        *make_cell("tsls", [9.0], n=5000, first_seed=2, versions={"bgmiv": "0.1.0", "jax": "0.10.3"}),
        *make_cell("tsls", [9.0], n=5000, first_seed=7),
    ]
    made = bench_report(rows, [plan, plan])
    failed = ["demand", "0.5", "1000", "KIV", "default", "2", "1", "50.0", "1", "DivergedError: not finite"]
    assert named(made, "failures").text.to_numpy().tolist() == [failed]
    (mixed,) = named(made, "mixed-versions").text["what is mixed"]
    assert mixed == "jax 0.10.3 (seeds 2) and 0.10.2 (seeds 7)"
    versions = named(made, "versions").numbers.set_index("method")
    assert versions.loc["KIV", ["fits", "older rows", "libraries"]].to_list() == [5, 1, "bgmiv 0.1.0, jax 0.10.2"]
    missing = named(made, "missing").text.to_numpy().tolist()
    assert missing[:2] == missing[2:]
    assert ["mine", "demand", "0.5", "1000", "KIV", "default", "3", "1", "1", "1", "2"] in missing
    assert ["mine", "demand", "0.5", "5000", "2SLS", "default", "3", "1", "0", "2", "0-1"] in missing
    assert "4 of 12 planned fits" in str(made.sections[0].parts[0])
    assert "Cells that mix versions of libraries: 1" in str(made.sections[0].parts[0])


def test_verdicts_beside_the_truth(make_cell: MakeCell) -> None:
    good = {"n_held_out": 400, "outcome_explained": 0.9, "first_stage_gain": 0.5, "moment_risk": 0.0}
    good |= {"linear_explained": 0.9, "flexible_explained": 0.9, "control_error": 0.0, "control_p": 0.5}
    bad = {"n_held_out": 400, "outcome_explained": 0.9, "first_stage_gain": 0.0}
    rows = [
        *make_cell("bgm-iv", [1.0], n=100),
        *make_cell("bgm-iv", [1.0, 1.0], evidence={**good, "of another version": 1.0}),
        *make_cell("bgm-iv", [2.0, 9.0], first_seed=2, evidence=bad),
    ]
    table = named(bench_report(rows), "verdicts")
    counts = table.numbers.iloc[0]
    assert (counts["fits"], counts["good"], counts["doubtful"] + counts["failed"]) == (4, 2, 2)
    assert counts[["error above 3 medians", "of these flagged", "others flagged"]].to_list() == [1, 1, 1]


def test_baselines(rows: list[Row]) -> None:
    with pytest.raises(ConfigError, match=r"no row of method 'dfiv' .* methods with rows: bgm-iv-noiv, kiv"):
        bench_report(rows, baselines=["dfiv"])
    table = named(bench_report(rows, baselines=["tsls"]), "paired-vector-proxy-default")
    assert set(table.numbers["baseline"]) == {"2SLS"}


def test_the_script_writes_the_report(tmp_path: Path, make_cell: MakeCell, capsys: pytest.CaptureFixture[str]) -> None:
    store, out = RowStore(tmp_path / "rows"), tmp_path / "out"
    for row in (row for method in ("bgm-iv", "kiv", "tsls") for row in make_cell(method, [1.0])):
        store.write(row)
    store.keep_plan(PLAN)
    make_report.main([str(store.folder), "--out", str(out), "--baseline", "kiv", "--baseline", "tsls"])
    written = [path for path in out.rglob("*") if path.is_file()]
    assert {path.suffix for path in written} == {".html", ".md", ".csv", ".tex", ".png", ".pdf"}
    said = capsys.readouterr().out
    assert all(f"wrote {path}" in said for path in written)
    assert "Plans: small (6 fits)." in (out / "report.md").read_text()


def test_no_rows_are_no_report() -> None:
    with pytest.raises(ConfigError, match="there are no rows to report"):
        bench_report([])
