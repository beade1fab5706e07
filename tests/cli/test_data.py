"""`bgmiv data`: real data sets as CSV files, and the files of MNIST."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bgmiv import TSLS
from bgmiv.cli.main import app
from bgmiv.data.files import read_table
from bgmiv.designs import load_empirical, mnist

CONTENTS = {name: f"small {name}".encode() for name in mnist._FILES}


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with small files in MNIST's place, an empty cache, and no network."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}
    monkeypatch.setattr(mnist, "_FILES", sums)
    monkeypatch.setattr(mnist, "_MIRRORS", ())
    monkeypatch.delenv("BGMIV_MNIST", raising=False)
    monkeypatch.setenv("BGMIV_DATA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    for name, content in CONTENTS.items():
        (tmp_path / "mine" / name).write_bytes(content)
    return tmp_path / "mine"


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["data", *map(str, arguments)], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


def test_local_files_are_checked_and_copied(local: Path, tmp_path: Path) -> None:
    code, out, err = run("mnist", "--path", local)
    assert code == 0, err
    assert out.strip() == f"MNIST, checked: {tmp_path / 'cache' / 'mnist'}"
    assert sorted(file.name for file in (tmp_path / "cache" / "mnist").iterdir()) == sorted(CONTENTS)
    assert run("mnist")[0] == 0


def test_errors_are_one_line_and_exit_code_one(local: Path, tmp_path: Path) -> None:
    code, out, err = run("mnist")
    assert (code, out) == (1, "")
    assert err.startswith("Error: MNIST is not in ")
    assert "--path" in err
    (local / next(iter(CONTENTS))).write_bytes(b"damaged")
    code, _, err = run("mnist", "--path", local)
    assert code == 1
    assert err.startswith(f"Error: {local / next(iter(CONTENTS))} has a wrong checksum: expected SHA-256")
    assert not (tmp_path / "cache" / "mnist" / next(iter(CONTENTS))).exists()


@pytest.mark.parametrize("name", ["mroz", "401ksubs"])
def test_real_data_are_written_as_csv_with_their_formula(name: str, tmp_path: Path) -> None:

    file = tmp_path / "data.csv"
    code, out, err = run(name, "--out", file, "--json")
    assert code == 0, err
    known = load_empirical(name)
    record = json.loads(out)
    assert (record["rows"], record["formula"]) == (known.n_rows, known.formula)
    slopes = [TSLS().fit_formula(known.formula, table).fitted_.slope for table in (read_table(file), known.table)]
    np.testing.assert_allclose(*slopes)
    code, _, err = run(name, "--out", file)
    assert code == 2
    assert "--overwrite" in err
    assert f"formula: {known.formula}" in run(name, "--out", file, "--overwrite")[1]
