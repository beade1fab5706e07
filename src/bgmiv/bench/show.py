"""Rows of the bench as one pandas DataFrame, and what is made of it: a table, a figure, and what a plan still needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bgmiv.bench.plan import todays_key
from bgmiv.bench.store import Row
from bgmiv.data.files import Tabular
from bgmiv.designs import DESIGNS, NoisyDemandDesign, find_design, make_design
from bgmiv.designs.base import DesignEntry
from bgmiv.errors import ConfigError
from bgmiv.registry import METHODS, NO_INSTRUMENT, method_label, method_style, preset_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "OURS",
    "Summary",
    "add_labels",
    "design_title",
    "design_unit",
    "error_figure",
    "method_order",
    "read_rows",
    "unit_text",
]

OURS = "bgm-iv"
"""The method that stands last in tables and figures."""

_CELL = ["design", "n", "rho", "method", "preset"]
_DASHES = ("-", "--", ":", "-.")


def read_rows(rows: Iterable[Row]) -> pd.DataFrame:
    """All rows of a store, one line a row, sorted by design, rho, n, method, preset and seed.

    Columns: those of :class:`~bgmiv.bench.store.Row` and

    - `ok`: whether the fit gave a result;
    - `mse`, `inside`, `outside`: structural errors in the design's unit, missing where the fit failed;
    - `current`: whether tables use the row. A cell (design, n, rho, method, preset) never mixes versions of method and
      design: where it has rows of today's versions it uses only these, otherwise those of its newest row's version;
    - `outdated`: whether another version of method or design made it than today's.

    Example:
        >>> from bgmiv.bench import RunSpec, run_one
        >>> rows = [run_one(RunSpec("demand", 500, 0.5, "tsls", "default", seed=seed)) for seed in (1, 2)]
        >>> read_rows(rows)[["seed", "ok", "current"]].to_numpy().tolist()
        [[1, True, True], [2, True, True]]
    """
    rows = sorted(rows, key=_row_order)
    frame = pd.DataFrame([asdict(row) for row in rows])
    if frame.empty:
        return frame
    units = frame["design"].map(design_unit)
    errors = {"mse": "structural_mse", "inside": "structural_mse_in_support", "outside": "structural_mse_outside"}
    for name, field in errors.items():
        frame[name] = frame[field].astype(float) / units
    frame["ok"] = frame["status"] == "ok"
    frame["outdated"] = [todays_key(row.spec) not in (None, row.key) for row in rows]
    time = pd.to_datetime(frame["timestamp"], utc=True, errors="coerce", format="ISO8601")
    versions = ["method_version", "design_version"]
    ordered = frame.assign(time=time, todays=~frame["outdated"]).sort_values(
        ["todays", "time", *versions], na_position="first"
    )
    of_cell = ordered[versions].eq(ordered.groupby(_CELL)[versions].transform("last")).all(axis=1)
    newest = ~ordered[of_cell].duplicated([*_CELL, "seed"], keep="last")
    return frame.assign(current=newest.reindex(frame.index, fill_value=False))


def design_title(design: str) -> str:
    """The design's name in headings; an unknown one goes by its own name."""
    return _entry(design).title


@cache
def design_unit(design: str) -> float:
    """What structural errors of the design are divided by: 1e4, 1, or the variance of g on its grid."""
    entry = _entry(design)
    if entry.unit is not None:
        return entry.unit
    made = entry.make()
    # The same g at the same points, without pictures, which may not be on this machine.
    made = replace(made, proxy="group") if isinstance(made, NoisyDemandDesign) else made
    return float(np.var(made.grid().truth))


def _entry(design: str) -> DesignEntry:
    """The design's entry, also one for a design that this version does not know."""
    try:
        return find_design(design)
    except ConfigError:
        return DesignEntry(design, design, partial(make_design, design))


def unit_text(design: str) -> str:
    """What the errors of a design are, in words."""
    texts = {None: "structural MSE / variance of g", 1e4: "structural MSE / 1e4"}
    return texts.get(_entry(design).unit, "structural MSE")


def add_labels(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with a column `label`: the method's, with the preset where the frame has several presets."""
    labels = frame["method"].map(method_label)
    return frame.assign(label=labels + " (" + frame["preset"] + ")" if frame["preset"].nunique() > 1 else labels)


def method_order(method: str, preset: str = "") -> tuple[int, str, bool, int, str]:
    """A sorting key: the registry's order of methods with BGM-IV last, each before its no-instrument version."""
    base, known, presets = method.removesuffix(NO_INSTRUMENT), [*METHODS, method], [*preset_names(), preset]
    place = len(known) if base == OURS else known.index(base if base in METHODS else method)
    return (place, base, method != base, presets.index(preset), preset)


def _row_order(row: Row) -> tuple[Any, ...]:
    designs = [*DESIGNS, row.design.partition(":")[0]]
    setting = (designs.index(designs[-1]), row.design, row.rho, row.n)
    return (*setting, *method_order(row.method, row.preset), row.seed)


@dataclass(frozen=True)
class Summary(Tabular):
    """Means over seeds of the rows in use: one line for each design, sample size, rho, method and preset.

    Args:
        rows: what :func:`read_rows` gives.

    Example:
        >>> from bgmiv.bench import RunSpec, run_one
        >>> rows = [run_one(RunSpec("demand", 500, 0.5, "tsls", "default", seed=seed)) for seed in (1, 2)]
        >>> Summary(read_rows(rows)).to_frame()[["method", "fits", "failed"]].to_numpy().tolist()
        [['tsls', 2, 0]]
    """

    rows: pd.DataFrame

    def to_frame(self) -> pd.DataFrame:
        """Fits and failed ones; mean and standard deviation of the error; its parts; mean times; whether outdated."""
        used = self.rows[self.rows["current"]]
        times = used[["seconds", "cpu_seconds"]].where(used["ok"])
        cells = used.assign(failed=~used["ok"], **times).groupby(_CELL, sort=False)
        means = cells[["inside", "outside", "seconds", "cpu_seconds"]].mean()
        errors = cells.agg(fits=("ok", "size"), failed=("failed", "sum"), mean=("mse", "mean"), sd=("mse", "std"))
        return errors.join(means).join(cells["outdated"].any()).reset_index()


def error_figure(rows: pd.DataFrame, design: str) -> Figure:
    """Mean error of each method against the sample size, a panel for each rho, on logarithmic axes.

    Bars reach one standard deviation up and down, at the lower end not below the best repeat.

    Args:
        rows: what :func:`read_rows` gives.
        design: whose rows are drawn.

    Example:
        >>> from bgmiv.bench import RunSpec, run_one
        >>> rows = read_rows([run_one(RunSpec("demand", 500, 0.5, "tsls", "default", seed=1))])
        >>> [panel.get_title() for panel in error_figure(rows, "demand").axes]
        ['rho = 0.5']
    """
    from matplotlib.figure import Figure

    own = add_labels(rows[(rows["design"] == design) & rows["current"] & rows["ok"]])
    levels, presets = own.groupby("rho"), sorted(own["preset"].unique())
    figure = Figure(figsize=(2.0 + 3.0 * len(levels), 4.0), layout="constrained")
    panels = figure.subplots(1, max(1, len(levels)), sharey=True, squeeze=False)[0]
    lines: dict[str, Any] = {}
    for panel, (rho, part) in zip(panels, levels, strict=False):
        for (method, preset, label), fits in part.groupby(["method", "preset", "label"], sort=False):
            errors = fits.groupby("n")["mse"].agg(["mean", "std", "min"]).fillna(0.0)
            below = np.minimum(errors["std"], errors["mean"] - errors["min"])
            colour, marker = method_style(method)
            lines[label.replace("$", r"\$")] = panel.errorbar(
                errors.index,
                errors["mean"],
                [below, errors["std"]],
                capsize=3,
                color=colour,
                marker=marker,
                linestyle=_DASHES[presets.index(preset) % len(_DASHES)],
            )
        panel.set(title=f"rho = {rho:g}", xlabel="sample size n", xscale="log", yscale="log")
    panels[0].set_ylabel(unit_text(design))
    if lines:
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(design_title(design).replace("$", r"\$"))
    return figure
