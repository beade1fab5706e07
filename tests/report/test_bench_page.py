from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from bgmiv.bench.plan import Plan, Sweep
from bgmiv.bench.row import Row
from bgmiv.bench.store import RowStore
from bgmiv.cli.report import report
from bgmiv.errors import ConfigError
from bgmiv.report.bench_page import bench_report, report_files
from bgmiv.writing import write_whole

from .conftest import MakeCell, a_row

HOSTILE = "../../<script>alert(1)</script>\\input{x} $a_b"


class Page(HTMLParser):
    """Tags in order, anchors, addresses and policies of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.handlers: list[str] = []
        self.policy = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        found = {name: value or "" for name, value in attrs}
        self.handlers += [name for name in found if name.startswith("on") or name == "style"]
        if "id" in found:
            self.ids.append(found["id"])
        if "href" in found:
            self.links.append(found["href"])
        if "src" in found:
            self.sources.append(found["src"])
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def rows(make_cell: MakeCell) -> list[Row]:
    rng = np.random.default_rng(3)
    found: list[Row] = []
    for n in (1000, 5000):
        for method, mean in (("bgm-iv", 3000.0), ("bgm-iv-noiv", 3500.0), ("kiv", 9000.0), ("tsls", 20000.0)):
            errors = (mean * rng.uniform(0.5, 1.5, 3)).tolist()
            found += make_cell(method, errors, design="vector-proxy", n=n)
    found += make_cell("bgm-iv", [20000.0, 22000.0], design="vector-proxy", n=5000, preset="default-no-egm")
    found += make_cell("kiv", [0.1, None], design="lowdim-sin")
    return found


PLAN = Plan("small", "three seeds", (Sweep(["vector-proxy"], [1000], [0.5], ["bgm-iv", "dfiv"], repeats=3),))


def test_the_page_stands_alone(rows: list[Row]) -> None:
    text = report_files(bench_report(rows, [PLAN]))["index.html"].decode()
    page = Page(text)
    assert not page.tags & {"script", "link", "iframe", "object", "form", "base"}
    assert page.handlers == []
    assert page.policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert page.sources
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert page.links == [f"#{name}" for name in page.ids]
    assert len(set(page.ids)) == len(page.ids)
    assert "viewport" in text
    assert "@media print" in text


def test_the_page_has_every_part(rows: list[Row]) -> None:
    made = bench_report(rows, [PLAN])
    assert [table.name for table in made.tables] == [
        "accuracy-vector-proxy",
        "accuracy-vector-proxy-paper",
        "paired-vector-proxy-default",
        "paired-vector-proxy-paper",
        "twins-vector-proxy",
        "ablation-vector-proxy",
        "support-vector-proxy",
        "accuracy-lowdim-sin",
        "support-lowdim-sin",
        "runtime",
        "failures",
        "versions",
        "missing",
    ]
    assert [picture.name for picture in made.pictures] == [
        "lines-vector-proxy",
        "boxes-vector-proxy",
        "ablation-boxes-vector-proxy",
        "boxes-lowdim-sin",
    ]
    assert made.sections[0].parts[0] == (
        "28 fits of 4 methods on 2 designs; 1 failed. This report is partial: 3 of 6 planned fits are missing or "
        "failed (see Missing runs)."
    )
    files = report_files(made)
    assert len(files) == 2 + 3 * 13 + 2 * 4
    assert "# Benchmarks" in files["report.md"].decode()
    for link in re.findall(r"\]\((.+?)\)", files["report.md"].decode()):
        assert link in files


def test_hostile_names_stay_names(make_cell: MakeCell, tmp_path: Path) -> None:
    found = [
        *make_cell(HOSTILE, [1.0, 2.0], design=HOSTILE, preset=HOSTILE, versions={HOSTILE: HOSTILE}),
        *make_cell("bgm-iv", [1.0, 3.0], design=HOSTILE, error=HOSTILE, code=HOSTILE),
        *make_cell("kiv", [None], design=HOSTILE + "\n", error=HOSTILE),
    ]
    files = report_files(bench_report(found))
    page = Page(files["index.html"].decode())
    assert "script" not in page.tags
    assert len(set(page.ids)) == len(page.ids)
    assert all(re.fullmatch(r"(tables|figures)/[\w-]+\.\w+|(index|report)\.\w+", name) for name in files)
    for name, content in files.items():
        if name.endswith(".tex"):
            assert r"\input{x}" not in content.decode()
        if name.endswith((".md", ".html")):
            assert "<script" not in content.decode()


def test_mixed_versions_are_said_first_and_in_words(rows: list[Row]) -> None:
    changed = [replace(row, code="e" * 16) if (row.method, row.seed) == ("kiv", 2) else row for row in rows]
    made = bench_report(changed)
    assert "Cells that mix versions: 2" in str(made.sections[0].parts[0])
    text = report_files(made)["index.html"].decode()
    assert f"code {'d' * 16} (seeds 0-1) and {'e' * 16} (seeds 2)" in text
    assert "†" in report_files(made)["tables/accuracy-vector-proxy.md"].decode()
    assert "mixed" in report_files(made)["tables/accuracy-vector-proxy.csv"].decode()


def test_every_fit_failed(make_cell: MakeCell) -> None:
    made = bench_report(make_cell("kiv", [None, None]))
    assert made.pictures == ()
    assert "Every fit failed" in report_files(made)["index.html"].decode()


def test_unknown_baselines_are_refused(rows: list[Row]) -> None:
    with pytest.raises(
        ConfigError, match="no row of method 'dfiv' to compare with; methods with rows: bgm-iv-noiv, kiv"
    ):
        bench_report(rows, baselines=["dfiv"])
    named = bench_report(rows, baselines=["tsls"])
    (table,) = [table for table in named.tables if table.name == "paired-vector-proxy-default"]
    assert {row[2] for row in table.rows} == {"linear 2SLS"}


def test_a_file_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "file.txt"
    write_whole(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def run(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(report)
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def stored(folder: Path, rows: list[Row]) -> RowStore:
    store = RowStore(folder)
    for row in rows:
        store.write(row)
    return store


def test_command_writes_the_report(tmp_path: Path, rows: list[Row]) -> None:
    stored(tmp_path / "rows", rows).keep_plan(PLAN)
    done = run(tmp_path / "rows", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    written = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert written == set(report_files(bench_report(rows, [PLAN])))
    for name in written:
        assert f"wrote {tmp_path / 'out' / name}" in done.output
    assert "Plans: small (6 fits)." in (tmp_path / "out" / "report.md").read_text()
    first = {path.name: path.read_bytes() for path in (tmp_path / "out" / "tables").glob("*.csv")}
    assert run(tmp_path / "rows", "--out", tmp_path / "again").exit_code == 0
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "again" / "tables").glob("*.csv")}


def test_command_takes_a_plan_and_baselines(tmp_path: Path) -> None:
    stored(tmp_path / "rows", [a_row(), a_row(method="kiv"), a_row(method="tsls")])
    done = run(tmp_path / "rows", "--out", tmp_path / "out", "--plan", "demand", "--baseline", "kiv,tsls")
    assert done.exit_code == 0, done.output
    assert "Plans: demand (" in (tmp_path / "out" / "report.md").read_text()
    assert (tmp_path / "out" / "tables" / "missing.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--plan", "nowhere"), "--plan"),
        (("--baseline", "dfiv"), "methods with rows: tsls"),
        (("--out", "rows/file"), "is a file; name a folder"),
    ],
)
def test_command_refuses_before_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "rows", [a_row(method="tsls")])
    (tmp_path / "rows" / "file").write_text("x")
    done = run("rows", "--out", "out", *arguments)
    assert done.exit_code == 2, done.output
    assert words in " ".join(done.output.replace("│", " ").split())
    assert not (tmp_path / "out").exists()


def test_command_on_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    done = run(tmp_path / "rows", "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "No rows in" in done.output
    assert not (tmp_path / "out").exists()
    assert run(tmp_path / "absent", "--out", tmp_path / "out").exit_code == 2
