"""Analyses in files: they come back as they were, and what a stranger changed is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bgmiv.errors import ModelFileError
from bgmiv.show.analysis import Analysis
from bgmiv.show.files import ANALYSIS_FILE, holds_analysis, load_analysis, save_analysis

Document = dict[str, Any]


@pytest.fixture
def folder(analysis: Analysis, tmp_path: Path) -> Path:
    save_analysis(tmp_path / "fit", analysis)
    return tmp_path / "fit"


def test_it_comes_back(folder: Path, analysis: Analysis) -> None:
    assert holds_analysis(folder)
    assert load_analysis(folder) == analysis
    with pytest.raises(ModelFileError, match="overwrite"):
        save_analysis(folder, analysis)
    save_analysis(folder, analysis, overwrite=True)
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(ModelFileError):
        save_analysis(folder, analysis, overwrite=True)
    assert (folder / "thesis.txt").read_text() == "years of work"


def put(value: Any, *path: Any) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        inner: Any = document
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value

    return change


ATTACKS: dict[str, tuple[Callable[[Document], None], str]] = {
    "another format": (put("bgmiv model", "format"), "format is not"),
    "newer version": (put(2, "version"), "another version"),
    "extra key": (put(1, "code"), "damaged"),
    "another class": (put("os.system", "analysis", "is"), "must be a 'analysis'"),
    "extra field": (put("x", "analysis", "onload"), "unknown 'onload'"),
    "number for text": (put(3, "analysis", "title"), "title must be a text"),
    "text for number": (put("many", "analysis", "question", "n_rows"), "n_rows must be a whole number"),
    "list for object": (put([], "analysis", "question"), "question must be"),
    "level as truth": (put(True, "analysis", "level"), "level must be a number"),
    "curve of text": (put(["1"], "analysis", "curves", 0, "estimate"), "estimate\\[0\\] must be a number"),
    "endless curve": (put([0.0] * 2000, "analysis", "curves", 0, "estimate"), "more than 1000"),
    "curve of NaN": (
        put([{"is": "float", "value": "nan"}], "analysis", "curves", 0, "estimate"),
        "estimate\\[0\\] must be a number",
    ),
    "unknown level of a check": (put("superb", "analysis", "diagnosis", "checks", 0, "level"), "one of 'good'"),
}


@pytest.mark.parametrize(("attack", "message"), ATTACKS.values(), ids=ATTACKS.keys())
def test_it_is_refused(folder: Path, attack: Callable[[Document], None], message: str) -> None:
    path = folder / ANALYSIS_FILE
    document = json.loads(path.read_text())
    attack(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ModelFileError, match=message):
        load_analysis(folder)


def test_what_is_no_file_of_ours_is_refused(folder: Path, tmp_path: Path) -> None:
    path = folder / ANALYSIS_FILE
    path.write_bytes(b"\xff\x00garbage")
    with pytest.raises(ModelFileError, match="no usable JSON"):
        load_analysis(folder)
    path.unlink()
    with pytest.raises(ModelFileError):
        load_analysis(folder)
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    path.symlink_to(secret)
    with pytest.raises(ModelFileError):
        load_analysis(folder)
