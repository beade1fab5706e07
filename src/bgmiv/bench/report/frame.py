"""Rows of the bench as one pandas DataFrame, which everything else here reads, and the paper's numbers beside it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bgmiv.bench import Row, RunSpec, identify
from bgmiv.designs import DESIGNS, NoisyDemandDesign, find_design
from bgmiv.designs.base import DesignEntry
from bgmiv.diagnostics.verdict import FitEvidence, judge
from bgmiv.errors import ConfigError
from bgmiv.registry import METHODS, NO_INSTRUMENT, method_label, preset_names

__all__ = [
    "ABLATED",
    "FAILED",
    "MIXED",
    "OTHER",
    "OURS",
    "PaperValues",
    "add_labels",
    "cell_marks",
    "column_order",
    "design_title",
    "design_unit",
    "family_of",
    "instrumental",
    "method_order",
    "mixed_versions",
    "paper_values",
    "ranges",
    "read_rows",
    "unit_text",
]

OURS = "bgm-iv"
"""The method that is compared with the others."""

ABLATED = ("-no-egm", "-egm0")
"""Endings of presets without their first phase: not at all, or one iteration of it, as in the authors' code."""

MIXED, FAILED, OTHER = "†", "‡", "§"
"""Marks of a cell: its rows come from several versions of libraries; some fits failed; another version of the method
or design than today's made them."""


def read_rows(rows: Iterable[Row]) -> pd.DataFrame:
    """All rows of a store, one line a row, sorted by design, rho, n, method, preset and seed.

    Columns: those of :class:`~bgmiv.bench.store.Row` and

    - `ok`: whether the fit gave a result;
    - `mse`, `inside`, `outside`: structural errors in the design's unit, missing where the fit failed;
    - `verdict`: on the fit under today's thresholds: good, doubtful or failed, missing without held-out rows;
    - `versions`: of the libraries, by name; `libraries`: the same as one text;
    - `current`: whether tables use the row. A cell (design, n, rho, method, preset) never mixes versions of method and
      design: where it has rows of today's they are used alone, and otherwise those of the version that made its newest;
    - `outdated`: whether another version of method or design made it than today's.
    """
    frame = pd.DataFrame(sorted((_line(row) for row in rows), key=_row_order))
    if frame.empty:
        return frame
    time = pd.to_datetime(frame["timestamp"], utc=True, errors="coerce", format="ISO8601")
    versions = ["method_version", "design_version"]
    ordered = frame.assign(time=time, todays=~frame["outdated"]).sort_values(
        ["todays", "time", *versions], na_position="first"
    )
    cell = ["design", "n", "rho", "method", "preset"]
    of_cell = ordered[versions].eq(ordered.groupby(cell)[versions].transform("last")).all(axis=1)
    newest = ~ordered[of_cell].duplicated([*cell, "seed"], keep="last")
    return frame.assign(current=newest.reindex(frame.index, fill_value=False))


def _line(row: Row) -> dict[str, Any]:
    fields = asdict(row)
    ok, unit = row.status == "ok", design_unit(row.design)
    errors = {"mse": "structural_mse", "inside": "structural_mse_in_support", "outside": "structural_mse_outside"}
    scaled = {
        name: fields[field] / unit if ok and fields[field] is not None else float("nan")
        for name, field in errors.items()
    }
    libraries = dict(sorted(row.versions.items()))
    made_by = row.method_version, row.design_version
    return {
        **fields,
        **scaled,
        "ok": ok,
        "verdict": _verdict(row.evidence),
        "versions": libraries,
        "libraries": ", ".join(f"{name} {number}" for name, number in libraries.items()),
        "outdated": _todays(row.design, row.method, row.preset) not in (None, made_by),
    }


@cache
def _todays(design: str, method: str, preset: str) -> tuple[int, int] | None:
    """Today's versions of method and design; None for those that this version does not know."""
    with suppress(ConfigError):
        key = identify(RunSpec(design, 1, 0.0, method, preset, 0))
        return key.method_version, key.design_version
    return None


def _verdict(evidence: Mapping[str, Any]) -> str | None:
    if not evidence.get("n_held_out"):
        return None
    return judge(FitEvidence(**{k: v for k, v in evidence.items() if k in FitEvidence.__dataclass_fields__})).severity


def design_title(design: str) -> str:
    """The design's name in headings; an unknown one goes by its own name."""
    entry = _entry(design)
    return entry.title if entry else design


@cache
def design_unit(design: str) -> float:
    """What structural errors of the design are divided by: 1e4, 1, or the variance of g on its grid."""
    entry = _entry(design)
    if entry is None:
        return 1.0
    if entry.unit is not None:
        return entry.unit
    made = entry.make()
    # The same g at the same points, without pictures, which may not be on this machine.
    made = replace(made, proxy="group") if isinstance(made, NoisyDemandDesign) else made
    return float(np.var(made.grid().truth))


def _entry(design: str) -> DesignEntry | None:
    """The design's entry; None for one that this version does not know."""
    with suppress(ConfigError):
        return find_design(design)
    return None


def unit_text(design: str) -> str:
    """What the errors of a design are, in words."""
    entry = _entry(design)
    if entry is not None and entry.unit is None:
        return "structural MSE / variance of g"
    return "structural MSE / 1e4" if design_unit(design) == 1e4 else "structural MSE"


def instrumental(frame: pd.DataFrame, design: str) -> pd.DataFrame:
    """The design's rows that stand in its accuracy table: methods that use the instrument, with all their phases."""
    own = frame[frame["design"] == design]
    return own[~own["method"].str.endswith(NO_INSTRUMENT) & ~own["preset"].str.endswith(ABLATED)]


def family_of(preset: str) -> str:
    """The family of a preset, within which methods are compared: `default`, or `paper` for `paper-qmc` as well."""
    return preset.split("-")[0]


def add_labels(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with a column `label`: the method's, with the preset where the frame has several presets."""
    labels = frame["method"].map(method_label)
    return frame.assign(label=labels + " (" + frame["preset"] + ")" if frame["preset"].nunique() > 1 else labels)


def column_order(frame: pd.DataFrame) -> list[str]:
    """The labels of a frame, each a column of a table, by method and preset."""
    columns = frame[["method", "preset", "label"]].drop_duplicates().itertuples(index=False)
    return [column.label for column in sorted(columns, key=lambda column: method_order(column.method, column.preset))]


def cell_marks(rows: pd.DataFrame) -> str:
    """The marks of a cell made of these rows."""
    marks = {MIXED: mixed_versions(rows), FAILED: not rows["ok"].all(), OTHER: rows["outdated"].any()}
    return "".join(sign for sign, holds in marks.items() if holds)


def mixed_versions(rows: pd.DataFrame) -> list[str]:
    """In words, every library of which the rows of one cell have more than one version."""
    versions = rows["versions"].to_list()
    found = []
    for name in dict.fromkeys(name for version in versions for name in version):
        seeds: dict[str, list[int]] = {}
        for version, seed in zip(versions, rows["seed"], strict=True):
            seeds.setdefault(version.get(name, "not named"), []).append(seed)
        if len(seeds) > 1:
            found.append(f"{name} " + " and ".join(f"{which} (seeds {ranges(own)})" for which, own in seeds.items()))
    return found


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers in short, as in `0-2, 5, 7-8`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(str(end) for end in part) for part in parts)


def method_order(method: str, preset: str = "") -> tuple[int, str, bool, int, str]:
    """A sorting key: the registry's order of methods with BGM-IV last, each before its no-instrument version."""
    base, known, presets = method.removesuffix(NO_INSTRUMENT), [*METHODS, method], [*preset_names(), preset]
    place = len(known) if base == OURS else known.index(base if base in METHODS else method)
    return (place, base, method != base, presets.index(preset), preset)


def _row_order(line: Mapping[str, Any]) -> tuple[Any, ...]:
    designs = [*DESIGNS, line["design"].partition(":")[0]]
    setting = (designs.index(designs[-1]), line["design"], line["rho"], line["n"])
    return (*setting, *method_order(line["method"], line["preset"]), line["seed"])


class PaperValues(NamedTuple):
    """Every numeric table of the paper's results, as printed; errors are structural MSE / 1e4.

    The demand design's accuracy comes from its ablation, since the paper shows its other results only as a figure.
    """

    accuracy: pd.DataFrame
    paired: pd.DataFrame  # BGM-IV against the strongest baseline
    ablation: pd.DataFrame  # BGM-IV without its warm start
    runtime: pd.DataFrame  # minutes for one repeat
    sources: Mapping[tuple[str, str], str]  # the label of each table in the paper, by kind and design


@cache
def paper_values() -> PaperValues:
    """The paper's numbers, from paper_values.toml."""
    stored = tomllib.loads(files("bgmiv.bench.report").joinpath("paper_values.toml").read_text(encoding="utf-8"))
    accuracy, paired, ablation, runtime = [], [], [], []
    for design, table in stored["accuracy"].items():
        for rho, n, *errors in table["rows"]:
            for method, error in zip(table["methods"], errors, strict=True):
                accuracy.append((design, rho, n, method, *error, table["repeats"]))
    for design, table in stored["ablation"].items():
        for rho, n, full, without in table["rows"]:
            ablation.append((design, rho, n, *without, table["repeats"]))
            if design not in stored["accuracy"]:
                accuracy.append((design, rho, n, OURS, *full, table["repeats"]))
    for design, table in stored["paired"].items():
        for rho, n, baseline, theirs, ours, *tests in table["rows"]:
            paired.append((design, rho, n, baseline, *theirs, *ours, *tests, table["repeats"]))
    for design, table in stored["runtime"].items():
        runtime += [(design, table["n"], *row) for row in table["rows"]]
    setting, cell = ["design", "rho", "n"], ["mean", "sd", "repeats"]
    pair = ["baseline", "baseline_mean", "baseline_sd", "mean", "sd", "difference", "wilcoxon_holm", "t_p", "repeats"]
    return PaperValues(
        pd.DataFrame(accuracy, columns=[*setting, "method", *cell]),
        pd.DataFrame(paired, columns=[*setting, *pair]),
        pd.DataFrame(ablation, columns=[*setting, *cell]),
        pd.DataFrame(runtime, columns=["design", "n", "method", "mean", "median", "min", "max"]),
        {(kind, design): table["source"] for kind, part in stored.items() for design, table in part.items()},
    )
