"""The paper's tables and figures from measured rows: its printed values beside ours, and what is missing said.

Lines of a table are `printed` (the paper's), `paper` (the paper's settings: BGM-IV's `paper-qmc`, the others' `paper`)
and `default`. Rows that the exhibit's plan does not name are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from bgmiv.bench.show import OURS, design_title, method_order, unit_text
from bgmiv.registry import method_label
from report import figures, settings
from report.comparisons import compare_strongest, lowest, paired_text, setting_text, summarise
from report.exhibits import Exhibit, paper_exhibits
from report.figures import Picture
from report.filled import Filled, family_of, filled
from report.printed import paper_values
from report.tables import DASH, Table, digits_for, spread_text

__all__ = ["FAMILIES", "agreement_table", "exhibit_parts", "filled_table"]

FAMILIES = {"paper": "the paper's settings", "default": "default settings"}
"""Families of presets by what reports call them."""

_PRINTED = "printed"
_LINES = (_PRINTED, *FAMILIES)
_OURS_UNDER = {"paper": "paper-qmc", "default": "default"}
_DESIGNS = ("demand", "vector-proxy", "mnist", "mnist-hd")
_ABLATIONS = {
    "paper-qmc": "BGM-IV",
    "paper-qmc-egm0": "EGM = 0, one iteration (authors' code)",
    "paper-qmc-no-egm": "EGM = 0, latents from the prior (text)",
}
_SEEDS_NOTE = "Mean ± standard deviation over all planned seeds, or over as many as stand in brackets."

Part: TypeAlias = str | Table | Picture


def filled_table(frame: pd.DataFrame) -> Table:
    """How many cells and fits of each table and figure of the paper there are, and what the rest would take."""
    lines = []
    alike: dict[Any, list[Exhibit]] = {}
    for exhibit in paper_exhibits():
        alike.setdefault(exhibit.sweeps or exhibit.name, []).append(exhibit)
    for first, *more in alike.values():
        name = ", ".join(exhibit.name.replace("-", " ") for exhibit in (first, *more))
        for one in filled(frame, first.plan.specs):
            hours = f"{one.hours:.3g}" if one.unknown == 0 else f"{one.hours:.3g} + ? ({one.unknown} fits)"
            counts = {"cells": f"{one.filled_cells} of {one.cells}", "fits": f"{one.done} of {one.fits}"}
            lines.append(
                {"exhibit": name, "what": first.title, "settings": one.family, **counts}
                | {"by other versions": one.other, "CPU-hours left": hours}
            )
        if not first.sweeps:
            whole = {"cells": "whole", "fits": DASH, "by other versions": DASH, "CPU-hours left": DASH}
            lines.append({"exhibit": name, "what": first.title, "settings": DASH, **whole})
    found = pd.DataFrame(lines)
    notes = (
        "A cell is a design, sample size, rho, method and preset; it is filled if it has at least one fit by today's "
        "version of the method. CPU-hours: of one processor, "
        "from the times of stored rows of the same design, method and preset; a question mark where there are none.",
    )
    words = ("exhibit", "what", "settings")
    return Table("paper-filled", "How much of the paper is here", found.astype(str), found, words, notes=notes)


def exhibit_parts(frame: pd.DataFrame, exhibit: Exhibit) -> tuple[Part, ...]:
    """What there is to show of a table or figure of the paper, and before it how much of it is there."""
    render = _RENDER[exhibit.kind]
    if not exhibit.sweeps:
        return (render(frame, exhibit),)
    runs = pd.DataFrame([asdict(spec) for spec in exhibit.plan.specs])
    own = frame.merge(runs)
    said = "Filled: " + ". ".join(_filled_text(one) for one in filled(frame, exhibit.plan.specs)) + "."
    shown = render(own, exhibit)
    return (said, *(shown if isinstance(shown, tuple) else (shown,)))


def _filled_text(one: Filled) -> str:
    older = f", {one.other} more by other versions (§)" if one.other else ""
    cost = f"; the rest takes about {one.hours:.3g} CPU-hours" if one.hours else ""
    cost += f"; of {one.unknown} no stored row tells the time" if one.unknown else ""
    counts = f"{one.filled_cells} of {one.cells} cells and {one.done} of {one.fits} fits"
    return f"{FAMILIES[one.family]}: {counts}{older}{cost}"


def _name(exhibit: Exhibit) -> str:
    return f"{exhibit.name.replace('-', ' ').capitalize()}: {exhibit.title}"


def _by_family(own: pd.DataFrame) -> pd.DataFrame:
    return own.assign(settings=own["preset"].map(family_of))


def _settings_of(exhibit: Exhibit) -> list[tuple[float, int]]:
    """The pairs of rho and n, in the order in which the paper prints them."""
    specs = list(dict.fromkeys((spec.rho, spec.n) for spec in exhibit.plan.specs))
    accuracy = paper_values().accuracy
    printed = accuracy.loc[accuracy["design"] == exhibit.design, ["rho", "n"]].drop_duplicates()
    order = list(printed.itertuples(index=False, name=None))
    return [pair for pair in order if pair in specs] if set(specs) <= set(order) else specs


def _accuracy(own: pd.DataFrame, exhibit: Exhibit) -> Table:
    """Three lines a setting: as printed, under the paper's settings, and by default; a column a method."""
    paper = paper_values().accuracy
    key, columns = ["rho", "n", "settings", "method"], ["mean", "sd", "repeats", "marks"]
    printed = paper[paper["design"] == exhibit.design].assign(settings=_PRINTED, marks="").set_index(key)[columns]
    measured = summarise(_by_family(own), key)
    usual = max(sweep.repeats for sweep in exhibit.sweeps)
    measured["text"] = spread_text(measured, digits_for(measured["mean"]), usual) + measured["marks"]
    cells = pd.concat([printed.assign(text=spread_text(printed, 2)), measured])
    methods = sorted({spec.method for spec in exhibit.plan.specs}, key=method_order)
    index = pd.MultiIndex.from_tuples(
        [(*pair, line) for pair in _settings_of(exhibit) for line in _LINES], names=key[:3]
    )
    text, means = (cells[part].unstack("method").reindex(index, columns=methods) for part in ("text", "mean"))
    kept = text.notna().any(axis=1)
    absent = _absent(index[~kept])
    text, means = text[kept].fillna(DASH), means[kept].astype(float).reset_index(drop=True)
    keys = text.index.to_frame(index=False)
    keys = keys.assign(**setting_text(keys))
    names = {method: method_label(method) for method in methods}
    shown = pd.concat([keys, text.reset_index(drop=True)], axis=1).rename(columns=names)
    notes = (f"{_SEEDS_NOTE} The lowest mean of each line is bold; methods are compared within a line.", *absent)
    title = f"{_name(exhibit)}: {unit_text(str(exhibit.design))}"
    numbers = cells.drop(columns="text").reset_index()
    bold = lowest(means).rename(columns=names)
    return Table(f"paper-{exhibit.name}", title, shown, numbers, ("rho", "settings"), bold, notes)


def _absent(lines: pd.MultiIndex) -> list[str]:
    """A sentence a family with the settings of which there is no fit at all."""
    found = []
    for family, words in FAMILIES.items():
        by_size: dict[int, list[str]] = {}
        for rho, n, line in lines:
            if line == family:
                by_size.setdefault(n, []).append(f"{rho:g}")
        if by_size:
            where = "; ".join(f"n = {n}, rho {', '.join(levels)}" for n, levels in sorted(by_size.items()))
            found.append(f"No fit under {words} at {where}.")
    return found


def _pictures(
    own: pd.DataFrame, exhibit: Exhibit, draw: Callable[..., Any], caption: str, groups: Mapping[str, str]
) -> tuple[Part, ...]:
    """A picture a group of presets, or the sentence that there is nothing to draw yet."""
    found: list[Part] = []
    for family, words in groups.items():
        series = figures.make_series(own[own["preset"].map(family_of) == family])
        if not series:
            found.append(f"No fit under {words} yet, so that there is nothing to draw of them.")
            continue
        stars = " Open stars: the paper's means." if any(len(one.paper) for one in series) else ""
        figure = draw(str(exhibit.design), series, title=f"{exhibit.name.replace('-', ' ')}, {words}")
        alternative = f"{_name(exhibit)}, {words}"
        found.append(
            Picture(f"paper-{exhibit.name}-{family}", figure, alternative, f"{_name(exhibit)}. {caption}{stars}")
        )
    return tuple(found)


_BOX_CAPTION = (
    "Structural error over repeats: the middle half in the box, its median black, whiskers up to 1.5 times its width. "
    "Fewer than five repeats are points."
)


def _lines(own: pd.DataFrame, exhibit: Exhibit) -> tuple[Part, ...]:
    caption = "Mean structural error over repeats. Bands reach one standard deviation, and not below the best repeat."
    pictures = _pictures(own, exhibit, figures.error_lines, caption, FAMILIES)
    return (_accuracy(own, exhibit), *pictures)


def _boxes(own: pd.DataFrame, exhibit: Exhibit) -> tuple[Part, ...]:
    return _pictures(own, exhibit, figures.error_boxes, _BOX_CAPTION, FAMILIES)


def _ablation_boxes(own: pd.DataFrame, exhibit: Exhibit) -> tuple[Part, ...]:
    return _pictures(own, exhibit, figures.error_boxes, _BOX_CAPTION, {"paper": FAMILIES["paper"]})


def _paired(own: pd.DataFrame, exhibit: Exhibit) -> Table:
    """BGM-IV against the strongest baseline of its family at each setting, and the paper's comparison."""
    design = str(exhibit.design)
    paper = paper_values().paired
    printed = paper[paper["design"] == design].drop(columns="design")
    printed = printed.assign(baseline=printed["baseline"].map(method_label), wilcoxon_p=np.nan, marks="")
    parts = {_PRINTED: printed}
    parts |= {family: compare_strongest(own, design, preset) for family, preset in _OURS_UNDER.items()}
    order = _settings_of(exhibit)
    found = pd.concat([part.assign(settings=name) for name, part in parts.items() if len(part)], ignore_index=True)
    place = [(order.index((line.rho, line.n)), _LINES.index(line.settings)) for line in found.itertuples()]
    found = found.iloc[sorted(range(len(place)), key=place.__getitem__)].reset_index(drop=True)
    keys = setting_text(found).assign(settings=found["settings"])
    notes = (
        "Means ± standard deviations over the seeds that both methods have; the strongest baseline has the lowest mean "
        "on them, among methods of the same family of presets. A negative difference: BGM-IV has the lower "
        "error. Tests are two-sided; Holm's correction is over the tested settings of a family. Too few: fewer than "
        "two seeds.",
    )
    bold = lowest(found[["baseline_mean", "mean"]]).set_axis(["baseline", "BGM-IV"], axis=1)
    digits = {line: 3 if line == _PRINTED else digits_for(found["mean"], at_least=3) for line in _LINES}
    texts = [paired_text(part, digits[str(line)]) for line, part in found.groupby("settings")]
    shown = keys.join(pd.concat(texts))
    title = f"{_name(exhibit)}: {unit_text(design)}"
    return Table(f"paper-{exhibit.name}", title, shown, found, ("rho", "settings", "strongest baseline"), bold, notes)


def _ablation(own: pd.DataFrame, exhibit: Exhibit) -> Table:
    """BGM-IV with EGM, with one iteration of it, and without it, beside the paper's two columns."""
    paper = paper_values()
    full = paper.accuracy[paper.accuracy["method"] == OURS].assign(preset="paper-qmc")
    printed = pd.concat([full, paper.ablation.assign(preset="paper-qmc-egm0")]).assign(settings=_PRINTED, marks="")
    key, columns = ["rho", "n", "settings", "preset"], ["mean", "sd", "repeats", "marks"]
    printed = printed[printed["design"] == exhibit.design].set_index(key)[columns]
    measured = summarise(_by_family(own), key)
    usual = exhibit.sweeps[0].repeats
    measured["text"] = spread_text(measured, digits_for(measured["mean"]), usual) + measured["marks"]
    cells = pd.concat([printed.assign(text=spread_text(printed, 2)), measured])
    index = pd.MultiIndex.from_tuples(
        [(*pair, line) for pair in _settings_of(exhibit) for line in (_PRINTED, "paper")], names=key[:3]
    )
    text = cells["text"].unstack("preset").reindex(index, columns=list(_ABLATIONS)).fillna(DASH)
    keys = text.index.to_frame(index=False)
    keys = keys.assign(**setting_text(keys))
    shown = pd.concat([keys, text.reset_index(drop=True)], axis=1).rename(columns=_ABLATIONS)
    for preset in ("paper-qmc", "paper-qmc-egm0"):
        apart = [
            _standard_errors(measured, printed, (*pair[:2], "paper", preset), (*pair[:2], _PRINTED, preset))
            if pair[2] != _PRINTED
            else DASH
            for pair in index
        ]
        shown[f"{'BGM-IV' if preset == 'paper-qmc' else 'EGM = 0'}, standard errors apart"] = apart
    notes = (
        f"{_SEEDS_NOTE} The authors' code makes one EGM iteration when told 0, and starts the latents at the nearly "
        "untrained encoder's; the paper's text starts them at draws from the prior. Standard errors apart: our mean "
        "minus the printed one, divided by the standard error of the difference.",
    )
    title = f"{_name(exhibit)}: {unit_text(str(exhibit.design))}"
    numbers = cells.drop(columns="text").reset_index()
    return Table(f"paper-{exhibit.name}", title, shown, numbers, ("rho", "settings"), notes=notes)


def _standard_errors(ours: pd.DataFrame, printed: pd.DataFrame, key: tuple[Any, ...], theirs: tuple[Any, ...]) -> str:
    """Our mean minus the printed one in standard errors of the difference; a dash with fewer than two seeds."""
    if key not in ours.index or theirs not in printed.index or ours.loc[key, "repeats"] < 2:
        return DASH
    one, two = ours.loc[key], printed.loc[theirs]
    error = np.sqrt(one["sd"] ** 2 / one["repeats"] + two["sd"] ** 2 / two["repeats"])
    return f"{(one['mean'] - two['mean']) / error:+.1f}"


def agreement_table(frame: pd.DataFrame) -> Table:
    """BGM-IV in every cell of the paper's four designs: as printed, under the paper's settings, and by default."""
    lines: list[dict[str, str]] = []
    compared, behind = 0, list[str]()
    exhibits = {
        exhibit.design: exhibit for exhibit in reversed(paper_exhibits()) if exhibit.kind in ("accuracy", "lines")
    }
    accuracy = paper_values().accuracy
    key = ["rho", "n", "preset"]
    for design in _DESIGNS:
        exhibit = exhibits[design]
        runs = pd.DataFrame([asdict(spec) for spec in exhibit.plan.specs])
        own = frame.merge(runs)
        cells = summarise(own[own["method"] == OURS], key)
        theirs = accuracy[(accuracy["design"] == design) & (accuracy["method"] == OURS)].assign(preset=_PRINTED)
        printed = theirs.set_index(key)[["mean", "sd", "repeats"]]
        best = compare_strongest(own, design, "default").set_index(["rho", "n"])
        usual, digits = exhibit.sweeps[0].repeats, digits_for(cells["mean"])
        shown = pd.concat([spread_text(printed, 2), spread_text(cells, digits, usual) + cells["marks"]])
        for rho, n in sorted(_settings_of(exhibit), key=lambda pair: (pair[1], pair[0])):
            values = {name: shown.get((rho, n, name), DASH) for name in (_PRINTED, *_OURS_UNDER.values())}
            if set(values.values()) == {DASH}:
                continue
            line = {"design": design, "n": str(n), "rho": f"{rho:g}", **values}
            apart = _standard_errors(cells, printed, (rho, n, "paper-qmc"), (rho, n, _PRINTED))
            rival, lead, p = DASH, DASH, DASH
            if (rho, n) in best.index and best.loc[(rho, n), "repeats"] > 0:
                pair = best.loc[(rho, n)]
                rival = f"{pair['baseline']} {pair['baseline_mean']:.{digits}f}"
                lead = f"{'yes' if pair['difference'] < 0 else 'no'} ({pair['repeats']})"
                compared += 1
                behind += [] if pair["difference"] < 0 else [f"{design}, n = {n}, rho = {rho:g}"]
                p = DASH if pd.isna(pair["wilcoxon_holm"]) else f"{pair['wilcoxon_holm']:.2g}"
            line |= {"standard errors apart": apart, "best other method, default": rival}
            lines.append({**line, "BGM-IV lower (seeds)": lead, "Wilcoxon p (Holm)": p})
    found = pd.DataFrame(lines)
    said = f"Default against default, BGM-IV has the lower mean in {compared - len(behind)} of {compared} cells"
    notes = (
        f"{said}{', not at ' + '; '.join(behind) if behind else ''}.",
        f"Structural MSE / 1e4. {_SEEDS_NOTE} Standard errors apart: paper-qmc minus printed. The best other method "
        "and the test are by default presets on the seeds that both have; Holm's correction is over a design's cells. "
        "Cells of which there is neither a printed value nor a fit are left out.",
    )
    title = "BGM-IV on the paper's designs: as printed, under the paper's settings, and by default"
    return Table("paper-agreement", title, found, found, ("design", "best other method, default"), notes=notes)


def _times(own: pd.DataFrame) -> pd.DataFrame:
    """Minutes by method and settings, the paper's among them."""
    good = _by_family(own[own["ok"]])
    minutes = good.assign(minutes=good["seconds"] / 60.0, cpu=good["cpu_seconds"] / 60.0)
    groups = minutes.groupby(["method", "settings"])
    found = groups["minutes"].agg(["count", "mean", "median", "min", "max"]).join(groups["cpu"].mean())
    printed = paper_values().runtime.assign(settings=_PRINTED, count=5).set_index(["method", "settings"])
    ordered = found.sort_index(level="settings", ascending=False)
    return pd.concat([printed[["count", "mean", "median", "min", "max"]], ordered])


def _runtime(own: pd.DataFrame, exhibit: Exhibit) -> Table:
    """Mean, median, least and most minutes of one fit, by method and settings."""
    methods = sorted({spec.method for spec in exhibit.plan.specs}, key=method_order)
    index = pd.MultiIndex.from_product([methods, _LINES], names=["method", "settings"])
    found = _times(own).reindex(index).reset_index()
    text = found[["method", "settings"]].assign(method=found["method"].map(method_label))
    text["confounding levels"] = found["count"].map(lambda count: DASH if pd.isna(count) else f"{count:.0f}")
    names = {"mean": "mean", "median": "median", "min": "min", "max": "max", "cpu": "CPU mean"}
    for name, label in names.items():
        text[label] = found[name].map(lambda minutes: DASH if pd.isna(minutes) else f"{minutes:.2f}")
    notes = (
        "Minutes by the clock of a fit with its grid prediction, one fit a confounding level; CPU: of one processor. "
        "Ours ran on one thread of a busy two-core machine without a GPU, with compiled programs from the disk cache "
        "where they were there. The paper's are inferred from the times of files on a cluster, in part with GPUs.",
    )
    return Table(f"paper-{exhibit.name}", _name(exhibit), text, found, ("method", "settings"), notes=notes)


def _bars(own: pd.DataFrame, exhibit: Exhibit) -> Picture:
    figure = figures.time_bars(_times(own), _name(exhibit))
    caption = "Mean minutes of one fit by the clock; whiskers from the shortest to the longest."
    return Picture(f"paper-{exhibit.name}", figure, _name(exhibit), caption)


_RENDER: dict[str, Callable[[pd.DataFrame, Exhibit], Any]] = {
    "accuracy": _accuracy,
    "lines": _lines,
    "boxes": _boxes,
    "paired": _paired,
    "ablation": _ablation,
    "ablation-boxes": _ablation_boxes,
    "runtime": _runtime,
    "bars": _bars,
    "shared-settings": lambda _, exhibit: settings.shared_settings(_name(exhibit), exhibit.name),
    "design-settings": lambda _, exhibit: settings.design_settings(_name(exhibit), exhibit.name),
    "resources": lambda frame, exhibit: settings.resources(frame, _name(exhibit), exhibit.name, design_title),
}
