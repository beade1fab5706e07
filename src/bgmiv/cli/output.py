"""What the verbs print and where they write: one JSON object, and paths checked beforehand."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, is_dataclass
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from bgmiv.show.analysis import Analysis

__all__ = ["analysis_record", "plain", "print_json", "writable_file"]


def plain(value: Any) -> Any:
    """A value as JSON holds it: numbers that are not finite become null or the words "inf" and "-inf".

    >>> plain({"a": (1.0, float("inf")), "b": float("nan")})
    {'a': [1.0, 'inf'], 'b': None}
    """
    import numpy as np

    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else str(value)
    return value


def print_json(record: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(plain(record), indent=2, allow_nan=False, ensure_ascii=False))


def analysis_record(analysis: Analysis) -> dict[str, Any]:
    """An analysis without what only computers of intervals need: the deviations of its curves."""
    record: dict[str, Any] = plain(analysis)
    for curve in record["curves"]:
        curve.pop("sources", None)
    return record


def writable_file(path: Path, option: str, *, overwrite: bool = True) -> Path:
    """Refuse a path that is a folder, or whose folder is not there; and one that exists unless it may be replaced."""
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; name a file", param_hint=option)
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"the folder {path.parent} does not exist; make it first", param_hint=option)
    if not os.access(path.absolute().parent, os.W_OK):
        raise typer.BadParameter(f"nothing can be written in {path.absolute().parent}", param_hint=option)
    if path.exists() and not overwrite:
        raise typer.BadParameter(f"{path} exists; name another file or give --overwrite", param_hint=option)
    return path
