"""An analysis as a file: what is left of a fit whose method is not saved itself."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from bgmiv.errors import ModelFileError
from bgmiv.persist import Codec, parse_json, read_file, write_folder
from bgmiv.show.analysis import (
    Analysis,
    ColumnSummary,
    Curve,
    CurveSource,
    EffectRow,
    HistoryLine,
    MethodRow,
    Question,
)
from bgmiv.trust.diagnosis import Check, Diagnosis, LinearEstimate
from bgmiv.trust.verdict import Finding, FitEvidence, Verdict

__all__ = ["ANALYSIS_FILE", "ANALYSIS_KINDS", "ANALYSIS_WITH_NAN", "holds_analysis", "load_analysis", "save_analysis"]

ANALYSIS_FILE = "analysis.json"
ANALYSIS_KINDS: dict[str, type] = {
    "analysis": Analysis,
    "question": Question,
    "column": ColumnSummary,
    "curve": Curve,
    "curve-source": CurveSource,
    "effect": EffectRow,
    "method": MethodRow,
    "history-line": HistoryLine,
    "diagnosis": Diagnosis,
    "check": Check,
    "linear": LinearEstimate,
    "verdict": Verdict,
    "finding": Finding,
    "evidence": FitEvidence,
}
"""The classes an analysis is made of, by their tags in files."""
ANALYSIS_WITH_NAN = (FitEvidence, Check, LinearEstimate, HistoryLine)
"""Those of them whose numbers may be NaN."""

_CODEC = Codec(ANALYSIS_KINDS, {}, ANALYSIS_WITH_NAN)
_FORMAT, _VERSION = "bgmiv analysis", 1
_MOST_BYTES = 1 << 24


def holds_analysis(folder: Path) -> bool:
    """Whether a folder holds an analysis and no model."""
    return (folder / ANALYSIS_FILE).is_file() and not (folder / "model.json").exists()


def save_analysis(folder: str | Path, analysis: Analysis, *, overwrite: bool = False) -> None:
    """Write an analysis to a folder of its own, as a whole or not at all.

    Args:
        folder: the folder.
        analysis: what is kept.
        overwrite: replace an analysis that is there; nothing else is ever replaced.

    Raises:
        ModelFileError: the folder cannot be written or may not be replaced.
    """
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "written_by": f"bgmiv {version('bgmiv')}",
        "analysis": _CODEC.encode(analysis, "analysis"),
    }
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)
    write_folder(
        Path(folder), {ANALYSIS_FILE: text.encode()}, overwrite=overwrite, is_ours=holds_analysis, check=_check_opens
    )


def _check_opens(folder: Path) -> None:
    load_analysis(folder)


def load_analysis(folder: str | Path) -> Analysis:
    """Read an analysis from a folder that anyone may have written.

    Args:
        folder: the folder.

    Raises:
        ModelFileError: it holds none, a damaged one, or one of another version.
    """
    path = Path(folder) / ANALYSIS_FILE
    found = parse_json(read_file(Path(folder), ANALYSIS_FILE, most=_MOST_BYTES), str(path))
    if type(found) is not dict or found.get("format") != _FORMAT:
        raise ModelFileError(f"{path} is not that of an analysis: its format is not '{_FORMAT}'.")
    if found.get("version") != _VERSION or set(found) != {"format", "version", "written_by", "analysis"}:
        raise ModelFileError(f"{path} is damaged, or has another version of the format than {_VERSION}. Fit again.")
    analysis: Analysis = _CODEC.decode(found["analysis"], Analysis, f"{path}: analysis")
    return analysis
