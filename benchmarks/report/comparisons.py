"""The tables of a report, from measured rows: accuracy, comparisons on shared seeds, ablations, and all designs."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import ttest_rel, wilcoxon
from statsmodels.stats.multitest import multipletests

from bgmiv.bench import Plan, show
from bgmiv.bench.show import OURS, add_labels
from bgmiv.designs import make_design
from bgmiv.registry import NO_INSTRUMENT, method_label
from report.filled import family_of
from report.frame import FAILED, MIXED, OTHER, cell_marks, column_order, instrumental, libraries
from report.printed import printed_results
from report.published import TabCFDesign
from report.tables import DASH, Table, digits_for, spread_text

__all__ = [
    "PairedTests",
    "accuracy_table",
    "compare_strongest",
    "functional_table",
    "instrument_table",
    "lowest",
    "multiples",
    "multiples_table",
    "paired_table",
    "paired_tests",
    "paired_text",
    "plan_table",
    "printed_table",
    "setting_text",
    "summarise",
    "support_table",
]

_SETTING = ["design", "rho", "n"]
_EXACT_PAIRS = 50
_WILCOXON = {
    "exact": "SciPy's exact distribution",
    "auto": 'SciPy\'s method "auto" (ties or more than 50 pairs: exact where it can be, or the normal approximation)',
}
_DIGITS = 3
_COLUMNS = ["rho", "n", "baseline", "repeats", "baseline_mean", "baseline_sd", "mean", "sd", "difference"]


def summarise(rows: pd.DataFrame, by: Sequence[str], value: str = "mse") -> pd.DataFrame:
    """Mean, standard deviation and number of repeats of a column in each group, and the group's marks."""
    groups = rows.groupby(list(by), sort=False)
    cells = groups[value].agg(mean="mean", sd="std", repeats="count")
    return cells.assign(marks=[cell_marks(group) for _, group in groups])


def lowest(means: pd.DataFrame) -> pd.DataFrame:
    """Which means are the lowest of their row; none where fewer than two are there."""
    return means.eq(means.min(axis=1), axis=0) & (means.count(axis=1) > 1).to_numpy()[:, None]


def setting_text(settings: pd.DataFrame) -> pd.DataFrame:
    """The columns `rho` and `n` as texts."""
    return pd.DataFrame({"rho": settings["rho"].map("{:g}".format), "n": settings["n"].map(str)}, dtype=object)


def _design_table(
    name: str,
    title: str,
    design: str,
    text: pd.DataFrame,
    numbers: pd.DataFrame,
    words: tuple[str, ...],
    bold: pd.DataFrame | None,
    notes: tuple[str, ...],
) -> Table:
    """A table of one design's errors: its title and its CSV file say the design and the unit."""
    title = f"{show.design_title(design)}{title and f', {title}'}: {show.unit_text(design)}"
    first = pd.DataFrame({"design": design, "MSE divided by": show.design_unit(design)}, numbers.index)
    return Table(name, title, text, pd.concat([first, numbers], axis=1), words, bold, notes)


def accuracy_table(frame: pd.DataFrame, design: str) -> Table | None:
    """Mean and standard deviation of the structural error for each rho and n; None if there is nothing."""
    own = instrumental(frame, design)
    if own.empty:
        return None
    own = add_labels(own)
    cells = summarise(own, ["rho", "n", "label"])
    usual, said = _repeats(cells["repeats"])
    cells["text"] = spread_text(cells, digits_for(cells["mean"]), usual) + cells["marks"]
    preset = f" Preset: {own['preset'].iloc[0]}." if own["preset"].nunique() == 1 else ""
    note = f"{said} The lowest mean of each row is bold.{preset}"
    return _wide_table(f"accuracy-{design}", "", design, cells, column_order(own), note)


def _wide_table(name: str, title: str, design: str, cells: pd.DataFrame, labels: Sequence[str], note: str) -> Table:
    """A column a method from cells indexed by rho, n and label."""
    columns = list(labels)
    texts, means = (cells[part].unstack("label").reindex(columns=columns).reset_index() for part in ("text", "mean"))
    shown = pd.concat([setting_text(texts), texts[columns].fillna(DASH)], axis=1)
    numbers = cells.drop(columns="text").reset_index().rename(columns={"label": "method"})
    return _design_table(name, title, design, shown, numbers, ("rho",), lowest(means[columns]), (note,))


def support_table(frame: pd.DataFrame, design: str) -> Table:
    """Error everywhere, inside and outside the training support, a row for each setting and method."""
    own = add_labels(frame[frame["design"] == design]).rename(columns={"method": "name", "label": "method"})
    columns = {"everywhere": "mse", "inside": "inside", "outside": "outside"}
    parts = {name: summarise(own, ["design", "rho", "n", "method"], value) for name, value in columns.items()}
    parts |= {name: parts[name].assign(marks="") for name in ("inside", "outside")}
    return _cell_table(
        f"support-{design}",
        "inside and outside the training support",
        parts,
        "Inside: points of the evaluation grid such as training data show; outside, every method extrapolates.",
    )


def _cell_table(name: str, title: str, measured: Mapping[str, pd.DataFrame], note: str) -> Table:
    """A row for each entry of an index, a column for each frame of cells."""
    every = pd.concat(measured.values())
    usual, said = _repeats(every["repeats"])
    digits = digits_for(every["mean"])
    shown = pd.DataFrame(
        {column: spread_text(part, digits, usual) + part["marks"] for column, part in measured.items()}
    )
    keys = shown.index.to_frame(index=False)
    design = keys.pop("design").iloc[0]
    keys = keys.assign(**setting_text(keys))
    numbers = pd.concat(measured, names=["column"]).droplevel("design")[["mean", "sd", "repeats", "marks"]]
    text, words = pd.concat([keys, shown.reset_index(drop=True)], axis=1), tuple(name for name in keys if name != "n")
    return _design_table(name, title, design, text, numbers.reset_index(), words, None, (f"{said} {note}",))


def _repeats(numbers: pd.Series) -> tuple[int | None, str]:
    """The usual number of repeats, and the sentence that says what the cells show."""
    counts = numbers[numbers > 0].astype(int).value_counts()
    if counts.empty:
        return None, "There is no fit to average."
    usual = int(counts[counts == counts.max()].index.max())
    said = f"Mean ± standard deviation over {usual} repeats" if usual > 1 else "One repeat, so no standard deviation"
    return usual, said + (", or over as many as stand in brackets." if len(counts) > 1 else ".")


class PairedTests(NamedTuple):
    """Two-sided paired tests."""

    wilcoxon_p: float  # Wilcoxon's signed-rank test
    wilcoxon_method: str  # SciPy's method for it: "exact" without ties for at most 50 pairs, else "auto"
    t_p: float  # the paired t-test; NaN when all differences are equal


def paired_tests(ours: Sequence[float], theirs: Sequence[float]) -> PairedTests:
    """Wilcoxon's signed-rank test and the paired t-test, both two-sided (SciPy)."""
    difference = np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)
    sizes = np.abs(difference)
    untied = len(np.unique(sizes)) == len(sizes) and bool((sizes > 0).all())
    method = "exact" if untied and len(sizes) <= _EXACT_PAIRS else "auto"
    if not sizes.any():
        # The signed ranks are all zero, and t is 0/0.
        return PairedTests(1.0, method, float("nan"))
    with warnings.catch_warnings():
        # SciPy warns of nearly equal differences and answers all the same.
        warnings.simplefilter("ignore", RuntimeWarning)
        rank_p = float(wilcoxon(ours, theirs, method=method).pvalue)
        t_p = float(ttest_rel(ours, theirs).pvalue)
    return PairedTests(rank_p, method, t_p if np.ptp(difference) > 0 else float("nan"))


def compare_strongest(frame: pd.DataFrame, design: str, preset: str, baselines: Collection[str] = ()) -> pd.DataFrame:
    """BGM-IV under a preset against the strongest baseline of the same family of presets, a line for each rho and n.

    The strongest baseline is the other method with the lowest mean error on the seeds it shares with BGM-IV; methods
    that share at least two seeds go before those that share one. If baselines are named, it is one of these. Holm's
    correction is over the settings of the design.
    """
    own = frame[frame["design"] == design]
    ours = own[(own["method"] == OURS) & (own["preset"] == preset)]
    pool = own[own["method"].isin(baselines)] if baselines else instrumental(own, design)
    others = add_labels(pool[(pool["method"] != OURS) & (pool["preset"].map(family_of) == family_of(preset))])
    lines = []
    for (rho, n), mine in ours.groupby(["rho", "n"], sort=False):
        here = others[(others["rho"] == rho) & (others["n"] == n)]
        sides = {name: here[here["label"] == name] for name in column_order(here)}
        pairs = {name: pair for name, theirs in sides.items() if len(pair := _pair(mine, theirs))}
        best = min(pairs, key=lambda name: (len(pairs[name]) < 2, pairs[name]["theirs"].mean()), default=None)
        line: dict[str, Any] = {"rho": rho, "n": n, "baseline": best, "repeats": 0, "marks": cell_marks(mine)}
        if best is not None:
            line |= _errors(pairs[best]) | {"marks": _pair_marks(mine, sides[best])}
            if len(pairs[best]) > 1:
                line |= paired_tests(pairs[best]["ours"], pairs[best]["theirs"])._asdict()
        lines.append(line)
    found = pd.DataFrame(lines, columns=[*_COLUMNS, *PairedTests._fields, "wilcoxon_holm", "marks"])
    tested = found["wilcoxon_p"].notna()
    if tested.any():
        holm = multipletests(found.loc[tested, "wilcoxon_p"], method="holm")[1]
        found["wilcoxon_holm"] = pd.Series(holm, found.index[tested])
    return found


def paired_table(frame: pd.DataFrame, design: str, preset: str, baselines: Collection[str] = ()) -> Table | None:
    """The comparisons of :func:`compare_strongest`; None if no setting has a baseline."""
    found = compare_strongest(frame, design, preset, baselines)
    if found["baseline"].isna().all():
        return None
    by = [text for method, text in _WILCOXON.items() if (found["wilcoxon_method"] == method).any()]
    notes = (
        "Means ± standard deviations over the seeds that both methods have. The strongest baseline has the lowest "
        "mean on them. A negative difference: BGM-IV has the lower error. Tests are two-sided; Holm's correction "
        "is over the tested rows of this table.",
        *([f"Wilcoxon's signed-rank test by {'; else by '.join(by)}."] if by else []),
        *([] if found["wilcoxon_p"].notna().all() else ["Too few: fewer than two matched seeds, so there is no test."]),
    )
    shown = setting_text(found).join(paired_text(found, digits_for(found["mean"], at_least=_DIGITS)))
    bold = lowest(found[["baseline_mean", "mean"]]).set_axis(["baseline", "BGM-IV"], axis=1)
    title, words = f"BGM-IV ({preset}) against the strongest baseline", ("rho", "strongest baseline")
    return _design_table(f"paired-{design}-{preset}", title, design, shown, found, words, bold, notes)


def paired_text(found: pd.DataFrame, digits: int) -> pd.DataFrame:
    """Comparisons as they are read, without their settings."""
    p_values = {"Wilcoxon p": "wilcoxon_p", "Wilcoxon p (Holm)": "wilcoxon_holm", "paired t p": "t_p"}
    return pd.DataFrame(
        {
            "strongest baseline": found["baseline"].fillna("no matched seeds") + found["marks"],
            "seeds": found["repeats"].map(str),
            "baseline": spread_text(found, digits, prefix="baseline_"),
            "BGM-IV": spread_text(found, digits),
            "mean difference": found["difference"].map(lambda d: DASH if pd.isna(d) else f"{d:.{digits}f}"),
            **{name: found[p].map(_p_text).mask(found["repeats"] < 2, "too few") for name, p in p_values.items()},
        },
        dtype=object,
    )


def instrument_table(frame: pd.DataFrame, design: str) -> Table | None:
    """Every method against its no-instrument version, at each rho and n that has rows of both; None if none has."""
    own = frame[frame["design"] == design]
    ignored = own["method"].str.endswith(NO_INSTRUMENT)
    without = own[ignored].assign(method=own["method"].str.removesuffix(NO_INSTRUMENT))
    cell = ["rho", "n", "method", "preset"]
    versions = {key: rows for key, rows in without.groupby(cell)}  # noqa: C416
    lines = []
    for key, ours in add_labels(own[~ignored].merge(without[cell].drop_duplicates())).groupby(cell, sort=False):
        pair = _pair(ours, versions[key])
        line = {"rho": key[0], "n": key[1], "method": ours["label"].iloc[0], **_errors(pair)}
        wins = int((pair["ours"] < pair["theirs"]).sum())
        lines.append({**line, "wins": wins, "marks": _pair_marks(ours, versions[key])})
    if not lines:
        return None
    found = pd.DataFrame(lines)
    digits = digits_for(found["mean"], at_least=_DIGITS)
    lower = {-1.0: "with instrument", 0.0: "equal", 1.0: "without"}
    shown = setting_text(found).assign(
        **{
            "method": found["method"] + found["marks"],
            "seeds": found["repeats"].map(str),
            "with instrument": spread_text(found, digits),
            "without": spread_text(found, digits, prefix="baseline_"),
            "wins": found["wins"].map(str),
            "lower mean": np.sign(found["difference"]).map(lower).fillna("no matched seeds"),
        }
    )
    bold = lowest(found[["mean", "baseline_mean"]]).set_axis(["with instrument", "without"], axis=1)
    note = (
        "Means ± standard deviations over the seeds that both versions have. Wins: seeds on which the version with "
        "the instrument has the lower error."
    )
    title, words = "each method and its no-instrument version", ("rho", "method", "lower mean")
    return _design_table(f"no-instrument-{design}", title, design, shown, found, words, bold, (note,))


def _pair(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """The errors on the seeds that both have."""
    sides = {"ours": ours.set_index("seed")["mse"], "theirs": theirs.set_index("seed")["mse"]}
    return pd.DataFrame(sides).dropna()


def _errors(pair: pd.DataFrame) -> dict[str, Any]:
    ours, theirs = pair["ours"], pair["theirs"]
    return {
        "repeats": len(pair),
        "mean": ours.mean(),
        "sd": ours.std(),
        "baseline_mean": theirs.mean(),
        "baseline_sd": theirs.std(),
        "difference": (ours - theirs).mean(),
    }


def _pair_marks(ours: pd.DataFrame, theirs: pd.DataFrame) -> str:
    """Marks of either side, also mixed if their libraries differ; versions count only within a method."""
    marks = cell_marks(ours) + cell_marks(theirs)
    if libraries(pd.concat([ours, theirs])).nunique() > 1:
        marks += MIXED
    return "".join(sign for sign in (MIXED, FAILED, OTHER) if sign in marks)


def _p_text(p: float) -> str:
    """A p-value as the paper shows them."""
    if pd.isna(p):
        return DASH
    return f"{p:.4f}" if p >= 1e-4 else "0" if p == 0 else f"{p:.2e}"


def plan_table(frame: pd.DataFrame, plan: Plan) -> Table | None:
    """Mean errors of the default presets in every cell of a plan, a column a method; None without rows of it."""
    runs = pd.DataFrame([asdict(spec) for spec in plan.specs])
    own = frame[frame["preset"] == "default"].merge(runs)
    if own.empty:
        return None
    own, planned = add_labels(own), runs.groupby("design")["seed"].nunique()
    cells = summarise(own, [*_SETTING, "label"]).reset_index()
    texts = [
        spread_text(part, 3, int(planned[design])) + part["marks"]
        for design, part in cells.groupby("design", sort=False)
    ]
    cells["text"] = pd.concat(texts)
    wide = cells.set_index([*_SETTING, "label"])
    order = pd.MultiIndex.from_frame(runs[_SETTING].drop_duplicates())
    columns = column_order(own)
    text, means = (wide[part].unstack("label").reindex(order)[columns] for part in ("text", "mean"))
    keys = order.to_frame(index=False)
    keys = keys.assign(**setting_text(keys))
    shown = pd.concat([keys, text.fillna(DASH).reset_index(drop=True)], axis=1)
    units = sorted({show.unit_text(design) for design in keys["design"]})
    notes = (
        f"{' or '.join(units).capitalize()}: mean ± standard deviation over all planned seeds, or over as many as "
        "stand in brackets. The lowest mean of each row is bold. Default presets.",
    )
    bold = lowest(means.reset_index(drop=True))
    numbers = cells.drop(columns="text").rename(columns={"label": "method"})
    return Table(f"plan-{plan.name}", plan.title, shown, numbers, ("design", "rho"), bold, notes)


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
    keys = settings.assign(**setting_text(settings))
    values = found.reset_index(drop=True)
    shown, (ours, linear) = values.copy(), map(method_label, (OURS, "tsls"))
    if {ours, linear} <= set(values):
        shown["BGM-IV / 2SLS"] = values[ours] / values[linear]
    text = pd.concat([keys, shown.map("{:.2f}".format).where(shown.notna(), DASH)], axis=1)
    note = "Mean error over repeats divided by the lowest mean of the cell, default presets; 1.00 is the best method."
    title, numbers = "Errors as multiples of the best method's", pd.concat([settings, values], axis=1)
    return Table("multiples", title, text, numbers, ("design", "rho"), lowest(values), (note,))


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
    keys = keys.assign(**setting_text(keys))
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
    title = f"{show.design_title(design)}, as printed by its authors"
    return Table(f"printed-{design}", title, text, found, ("method",), notes=tuple(notes))
