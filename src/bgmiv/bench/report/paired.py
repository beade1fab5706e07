"""Methods compared on shared seeds: BGM-IV with the strongest baseline, each method with its no-instrument version."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import ttest_rel, wilcoxon
from statsmodels.stats.multitest import multipletests

from bgmiv.bench.report.frame import MIXED, OURS, add_labels, cell_marks, column_order, instrumental, paper_values
from bgmiv.bench.report.tables import DASH, Table, design_table, digits_for, lowest, setting_text, spread_text
from bgmiv.registry import NO_INSTRUMENT, method_label

__all__ = ["PairedTests", "instrument_table", "paired_table", "paired_tests", "paper_paired_table"]

_EXACT_PAIRS = 50
_WILCOXON = {
    "exact": "SciPy's exact distribution",
    "auto": 'SciPy\'s method "auto" (ties or more than 50 pairs: exact where it can be, or the normal approximation)',
}
_DIGITS = 3
_COLUMNS = ["rho", "n", "baseline", "repeats", "baseline_mean", "baseline_sd", "mean", "sd", "difference"]


class PairedTests(NamedTuple):
    """Two-sided paired tests.

    Args:
        wilcoxon_p: Wilcoxon's signed-rank test.
        wilcoxon_method: SciPy's method for it: `"exact"` without ties for at most 50 pairs, else `"auto"`.
        t_p: the paired t-test; NaN when all differences are equal.
    """

    wilcoxon_p: float
    wilcoxon_method: str
    t_p: float


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


def paired_table(frame: pd.DataFrame, design: str, preset: str, baselines: Collection[str] = ()) -> Table | None:
    """BGM-IV under a preset against the strongest baseline at each rho and n; None if no setting has a baseline.

    The strongest baseline is the other method with the lowest mean error on the seeds it shares with BGM-IV; methods
    that share at least two seeds go before those that share one. If baselines are named, it is one of these. Holm's
    correction is over the settings of the design.
    """
    labelled = add_labels(frame[frame["design"] == design])
    ours = labelled[(labelled["method"] == OURS) & (labelled["preset"] == preset)]
    pool = labelled[labelled["method"].isin(baselines)] if baselines else instrumental(labelled, design)
    others = pool[pool["method"] != OURS]
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
    if found["baseline"].isna().all():
        return None
    tested = found["wilcoxon_p"].notna()
    if tested.any():
        holm = multipletests(found.loc[tested, "wilcoxon_p"], method="holm")[1]
        found["wilcoxon_holm"] = pd.Series(holm, found.index[tested])
    by = [text for method, text in _WILCOXON.items() if (found["wilcoxon_method"] == method).any()]
    notes = (
        "Means ± standard deviations over the seeds that both methods have. The strongest baseline has the lowest "
        "mean on them. A negative difference: BGM-IV has the lower error. Tests are two-sided; Holm's correction "
        "is over the tested rows of this table.",
        *([f"Wilcoxon's signed-rank test by {'; else by '.join(by)}."] if by else []),
        *([] if tested.all() else ["Too few: fewer than two matched seeds, so there is no test."]),
    )
    digits = digits_for(found["mean"], at_least=_DIGITS)
    title = f"BGM-IV ({preset}) against the strongest baseline"
    return _strongest(f"paired-{design}-{preset}", title, design, found, digits, notes)


def paper_paired_table(frame: pd.DataFrame, design: str) -> Table | None:
    """The paper's own comparisons at the settings that BGM-IV has; None where it has none."""
    paper = paper_values()
    settings = frame.loc[(frame["design"] == design) & (frame["method"] == OURS), ["design", "rho", "n"]]
    printed = settings.drop_duplicates().merge(paper.paired)
    if printed.empty:
        return None
    labels = printed["baseline"].map(method_label)
    found = printed.drop(columns="design").assign(baseline=labels, wilcoxon_p=float("nan"), marks="")
    note = f"As printed in the paper (table {paper.sources['paired', design]})."
    title = "the paper's comparison with the strongest baseline"
    return _strongest(f"paired-{design}-paper-values", title, design, found, _DIGITS, (note,))


def _strongest(name: str, title: str, design: str, found: pd.DataFrame, digits: int, notes: tuple[str, ...]) -> Table:
    p_values = {"Wilcoxon p": "wilcoxon_p", "Wilcoxon p (Holm)": "wilcoxon_holm", "paired t p": "t_p"}
    shown = setting_text(found).assign(
        **{
            "strongest baseline": found["baseline"].fillna("no matched seeds") + found["marks"],
            "seeds": found["repeats"].map(str),
            "baseline": spread_text(found, digits, prefix="baseline_"),
            "BGM-IV": spread_text(found, digits),
            "mean difference": found["difference"].map(lambda d: DASH if pd.isna(d) else f"{d:.{digits}f}"),
            **{name: found[p].map(_p_text).mask(found["repeats"] < 2, "too few") for name, p in p_values.items()},
        }
    )
    bold = lowest(found[["baseline_mean", "mean"]]).set_axis(["baseline", "BGM-IV"], axis=1)
    return design_table(name, title, design, shown, found, ("rho", "strongest baseline"), bold, notes)


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
    return design_table(f"no-instrument-{design}", title, design, shown, found, words, bold, (note,))


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
    if pd.concat([ours, theirs])["libraries"].nunique() > 1:
        marks += MIXED
    return "".join(sorted(set(marks)))


def _p_text(p: float) -> str:
    """A p-value as the paper shows them."""
    if pd.isna(p):
        return DASH
    return f"{p:.4f}" if p >= 1e-4 else "0" if p == 0 else f"{p:.2e}"
