"""All designs and methods at a glance: multiples of the lowest error, and errors of average effects."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from bgmiv.bench.report.frame import OURS, add_labels, column_order, design_title
from bgmiv.bench.report.tables import DASH, Table, lowest
from bgmiv.designs import TabCFDesign, make_design, printed_results
from bgmiv.registry import NO_INSTRUMENT

__all__ = ["functional_table", "heat_map", "multiples", "multiples_table", "printed_table"]

_SETTING = ["design", "rho", "n"]
_LINEAR = "tsls"
# Multiples beyond this have one colour.
_MAX_SHOWN = 30.0


def multiples(frame: pd.DataFrame) -> pd.DataFrame:
    """Each method's mean error as a multiple of the lowest mean of its cell: a row a cell, a column a method.

    Default presets of methods that use the instrument, in cells in which at least two of them have rows.
    """
    shown = frame[(frame["preset"] == "default") & ~frame["method"].str.endswith(NO_INSTRUMENT)]
    if shown.empty:
        return pd.DataFrame()
    labelled = add_labels(shown)
    means = labelled.groupby([*_SETTING, "label"], sort=False)["mse"].mean().unstack("label")
    # Cells in the order of the rows, which pandas does not keep.
    means = means.reindex(pd.MultiIndex.from_frame(labelled[_SETTING].drop_duplicates()))
    means = means[column_order(labelled)].loc[means.count(axis=1) > 1]
    return means.div(means.min(axis=1), axis=0)


def multiples_table(frame: pd.DataFrame) -> Table | None:
    """Multiples of the lowest mean error in each cell, and BGM-IV's error as a multiple of linear 2SLS's."""
    found = multiples(frame)
    if found.empty:
        return None
    settings = found.index.to_frame(index=False)
    keys = pd.DataFrame(
        {"design": settings["design"], "rho": settings["rho"].map("{:g}".format), "n": settings["n"].map(str)}
    )
    values = found.reset_index(drop=True)
    labels = {method: add_labels(frame[frame["method"] == method].head(1))["label"] for method in (OURS, _LINEAR)}
    text = pd.concat([keys, values.map("{:.2f}".format).where(values.notna(), DASH)], axis=1)
    if all(len(label) and label.iloc[0] in values for label in labels.values()):
        ratio = values[labels[OURS].iloc[0]] / values[labels[_LINEAR].iloc[0]]
        text["BGM-IV / 2SLS"] = ratio.map("{:.2f}".format).where(ratio.notna(), DASH)
    notes = (
        "Mean error over repeats divided by the lowest mean of the cell, default presets; 1.00 is the best method.",
    )
    numbers = pd.concat([settings, values], axis=1)
    bold = lowest(values)
    return Table("multiples", "Errors as multiples of the best method's", text, numbers, ("design", "rho"), bold, notes)


def functional_table(frame: pd.DataFrame) -> Table | None:
    """Errors of the average contrast and slope: bias with its standard error, and root mean square."""
    known = frame[frame["functional_errors"].map(bool) & ~frame["method"].str.endswith(NO_INSTRUMENT)]
    if known.empty:
        return None
    errors = pd.DataFrame(known["functional_errors"].to_list(), known.index)
    labelled = add_labels(known)[[*_SETTING, "label"]]
    numbers = labelled[_SETTING].assign(method=labelled["label"]).drop_duplicates().set_index([*_SETTING, "method"])
    text = pd.DataFrame(index=numbers.index)
    for name in errors:
        groups = errors[name].groupby([labelled[key] for key in (*_SETTING, "label")], sort=False)
        bias, rmse = groups.mean(), groups.agg(lambda part: float(np.sqrt(np.mean(part**2))))
        spread = groups.std() / np.sqrt(groups.count())
        for part, values in ((f"{name} bias", bias), (f"{name} standard error", spread), (f"{name} RMSE", rmse)):
            numbers[part] = values.to_numpy()
        shown = zip(bias, spread, strict=True)
        text[f"{name}: bias (standard error)"] = [f"{b:+.3g} ({s:.2g})" if np.isfinite(b) else DASH for b, s in shown]
        text[f"{name}: RMSE"] = [f"{value:.3g}" if np.isfinite(value) else DASH for value in rmse]
    keys = numbers.index.to_frame(index=False)
    keys = keys.assign(rho=keys["rho"].map("{:g}".format), n=keys["n"].map(str))
    notes = ("Estimate minus truth of averages over the design's population, in its units, over all repeats.",)
    full, words = numbers.reset_index(), ("design", "rho", "method")
    shown_text = pd.concat([keys, text.reset_index(drop=True)], axis=1)
    return Table("average-effects", "Errors of average effects", shown_text, full, words, notes=notes)


def printed_table(frame: pd.DataFrame, design: str) -> Table | None:
    """What the authors of a benchmark print for the sizes of these rows; None if they print nothing."""
    sizes = set(frame.loc[frame["design"] == design, "n"])
    found = pd.DataFrame([one for one in printed_results() if one.design == design and one.n in sizes])
    if found.empty:
        return None
    pairs = zip(found["mean"], found["spread"], strict=True)
    shown = [f"{mean:.3g}" + (f" ± {spread:.2g}" if np.isfinite(spread) else "") for mean, spread in pairs]
    text = pd.DataFrame(
        {"n": found["n"].map(str), "method": found["method"], "mean squared error": shown}, dtype=object
    )
    first = found.iloc[0]
    notes = [f"{first['source']}; {first['runs']} runs, spread: {first['spread_kind']}."]
    made = make_design(design)
    if isinstance(made, TabCFDesign) and not made.separable:
        notes.append(made.estimand)
    title = f"{design_title(design)}, as printed by its authors"
    return Table(f"printed-{design}", title, text, found, ("method",), notes=tuple(notes))


def heat_map(found: pd.DataFrame) -> Figure:
    """Multiples as colours, a row a cell and a column a method; white is the best method of its row."""
    height = 1.6 + 0.22 * len(found)
    figure = Figure(figsize=(3.6 + 0.72 * found.shape[1], height), layout="constrained")
    panel = figure.subplots()
    values = found.to_numpy(float)
    image = panel.imshow(values, cmap="Oranges", norm=LogNorm(1.0, _MAX_SHOWN), aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            colour = "white" if value > 8.0 else "#222222"
            shown = f"{value:.1f}" if value < 99.5 else f"{value:.0f}"
            panel.text(j, i, shown, ha="center", va="center", fontsize=7, color=colour)
    panel.set_xticks(
        range(found.shape[1]), [label.replace("$", r"\$") for label in found.columns], rotation=35, ha="right"
    )
    rows = [f"{design}, n = {n}, rho = {rho:g}" for design, rho, n in found.index]
    panel.set_yticks(range(len(rows)), [row.replace("$", r"\$") for row in rows], fontsize=7.5)
    panel.tick_params(length=0)
    for side in panel.spines.values():
        side.set_visible(False)
    figure.colorbar(image, ax=panel, shrink=min(1.0, 3.0 / height), label="multiple of the lowest mean error")
    figure.suptitle(
        "Error of each method as a multiple of the best", fontsize=12.5, fontweight="bold", x=0.01, ha="left"
    )
    return figure
