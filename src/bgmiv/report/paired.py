"""BGM-IV against the strongest baseline on matched seeds."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import ttest_rel, wilcoxon
from statsmodels.stats.multitest import multipletests

from bgmiv.bench.summary import Spread
from bgmiv.report.naming import OURS, Column, Setting, column_labels, design_title, unit, unit_text
from bgmiv.report.paper_values import paper_values
from bgmiv.report.results import Results, pair_marks
from bgmiv.report.table import Number, PValue, Table, Value, digits_for
from bgmiv.report.tables import accuracy_columns, design_constants, lowest

__all__ = [
    "Comparison",
    "PairedTests",
    "compare_with_strongest",
    "paired_table",
    "paired_tests",
    "paper_paired_table",
]

_EXACT_PAIRS = 50
_DIGITS = 3


@dataclass(frozen=True)
class PairedTests:
    """Two-sided paired tests of the same seeds.

    Args:
        wilcoxon_p: Wilcoxon's signed-rank test.
        wilcoxon_method: SciPy's method: ``"exact"`` without ties for at most 50 pairs, else ``"auto"``.
        t_p: the paired t-test; None when all differences are equal.
    """

    wilcoxon_p: float
    wilcoxon_method: str
    t_p: float | None


@dataclass(frozen=True)
class Comparison:
    """BGM-IV and the strongest baseline at one setting, on the seeds that both have.

    Args:
        setting: where.
        ours, baseline: the two columns; the baseline is None if no other method shares a seed.
        seeds: the matched seeds.
        our_error, baseline_error: spreads over the matched seeds, on the raw scale.
        difference: mean of ours minus theirs, raw; None without matched seeds.
        tests: None with fewer than two matched seeds.
        wilcoxon_holm: Wilcoxon's p with Holm's correction over the settings of the design.
    """

    setting: Setting
    ours: Column
    baseline: Column | None
    seeds: tuple[int, ...]
    our_error: Spread
    baseline_error: Spread
    difference: float | None
    tests: PairedTests | None
    wilcoxon_holm: float | None = None


def paired_tests(ours: Sequence[float], theirs: Sequence[float]) -> PairedTests:
    """Wilcoxon's signed-rank test and the paired t-test, both two-sided (SciPy).

    >>> tests = paired_tests([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.5, 5.0, 6.5, 8.0])
    >>> tests.wilcoxon_p, tests.wilcoxon_method, round(tests.t_p, 4)
    (0.0625, 'exact', 0.0048)
    """
    difference = np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)
    sizes = np.abs(difference)
    untied = len(np.unique(sizes)) == len(sizes) and bool((sizes > 0).all())
    method = "exact" if untied and len(sizes) <= _EXACT_PAIRS else "auto"
    if not sizes.any():
        # No difference in any pair: the signed ranks are all zero, and t is 0/0.
        return PairedTests(1.0, method, None)
    with warnings.catch_warnings():
        # Nearly equal differences; SciPy warns and answers all the same.
        warnings.simplefilter("ignore", RuntimeWarning)
        rank_p = float(wilcoxon(ours, theirs, method=method).pvalue)
        t_p = float(ttest_rel(ours, theirs).pvalue)
    constant = bool(np.ptp(difference) == 0)
    return PairedTests(rank_p, method, None if constant or np.isnan(t_p) else t_p)


def compare_with_strongest(
    results: Results, design: str, preset: str, baselines: Collection[str] = ()
) -> tuple[Comparison, ...]:
    """BGM-IV under a preset against the strongest baseline of each setting.

    The strongest is the other method with the lowest mean error on the seeds it shares with BGM-IV; methods that share
    at least two seeds go before those that share one.

    Args:
        results: the rows.
        design: whose settings; Holm's correction is over them.
        preset: of BGM-IV; baselines take part with every preset they have.
        baselines: methods that may be the strongest; all that use their instrument if none is named.
    """
    ours = Column(OURS, preset)
    others = [
        column
        for column in (results.columns(design) if baselines else accuracy_columns(results, design))
        if column.method != OURS and (not baselines or column.method in baselines)
    ]
    found = tuple(_compare(results, setting, ours, others) for setting in results.settings(design, [ours]))
    plain = {k: one.tests.wilcoxon_p for k, one in enumerate(found) if one.tests is not None}
    if not plain:
        return found
    adjusted = dict(zip(plain, multipletests(list(plain.values()), method="holm")[1].tolist(), strict=True))
    return tuple(replace(one, wilcoxon_holm=adjusted.get(k)) for k, one in enumerate(found))


def _compare(results: Results, setting: Setting, ours: Column, others: Sequence[Column]) -> Comparison:
    mine = results.errors(setting, ours)

    def matched(column: Column) -> tuple[int, ...]:
        return tuple(sorted(set(mine) & set(results.errors(setting, column))))

    def rank(column: Column) -> tuple[bool, float]:
        theirs = results.errors(setting, column)
        return (len(matched(column)) < 2, Spread.of(theirs[seed] for seed in matched(column)).mean)

    baseline = min((column for column in others if matched(column)), key=rank, default=None)
    if baseline is None:
        return Comparison(setting, ours, None, (), Spread.of([]), Spread.of([]), None, None)
    theirs = results.errors(setting, baseline)
    seeds = matched(baseline)
    pair = [mine[seed] for seed in seeds], [theirs[seed] for seed in seeds]
    return Comparison(
        setting=setting,
        ours=ours,
        baseline=baseline,
        seeds=seeds,
        our_error=Spread.of(pair[0]),
        baseline_error=Spread.of(pair[1]),
        difference=float(np.mean(np.subtract(*pair))),
        tests=paired_tests(*pair) if len(seeds) >= 2 else None,
    )


_PAIRED_HEADER = (
    "rho",
    "n",
    "strongest baseline",
    "seeds",
    "baseline",
    "BGM-IV",
    "mean difference",
    "Wilcoxon p",
    "Wilcoxon p (Holm)",
    "paired t p",
)


def paired_table(results: Results, comparisons: Sequence[Comparison]) -> Table | None:
    """The comparisons of one design as the paper's table; None if no setting has a baseline."""
    if not any(one.baseline for one in comparisons):
        return None
    design, preset = comparisons[0].setting.design, comparisons[0].ours.preset
    names = column_labels(results.columns(design))
    rows: list[tuple[Value, ...]] = []
    marks = {}
    bold = set()
    digits = digits_for([one.our_error.scaled(1 / unit(design)) for one in comparisons], least=_DIGITS)
    for i, one in enumerate(comparisons):
        errors = [one.baseline_error.scaled(1 / unit(design)), one.our_error.scaled(1 / unit(design))]
        if found := pair_marks(results, one.setting, one.baseline, one.ours):
            marks[i, 2] = found
        bold |= {(i, 4 + j) for j in lowest(errors)}
        tests = one.tests
        rows.append(
            (
                f"{one.setting.rho:g}",
                one.setting.n,
                names[one.baseline] if one.baseline else "no matched seeds",
                len(one.seeds),
                *errors,
                None if one.difference is None else Number(one.difference / unit(design), digits),
                *_p_values(tests, one.wilcoxon_holm),
            )
        )
    methods = {one.tests.wilcoxon_method for one in comparisons if one.tests}
    few = any(one.tests is None for one in comparisons)
    return Table(
        name=f"paired-{design}-{preset}",
        title=f"{design_title(design)}, BGM-IV ({preset}) against the strongest baseline: {unit_text(design)}",
        header=_PAIRED_HEADER,
        rows=tuple(rows),
        bold=frozenset(bold),
        marks=marks,
        notes=(
            "Means ± standard deviations over the seeds that both methods have. The strongest baseline has the lowest "
            "mean on them. A negative difference: BGM-IV has the lower error. Tests are two-sided; Holm's correction "
            "is over the tested rows of this table.",
            _wilcoxon_note(methods),
            *(["Too few: fewer than two matched seeds, so there is no test."] if few else []),
        ),
        constants=design_constants(design),
        digits=digits,
        grouped=True,
    )


def paper_paired_table(comparisons: Sequence[Comparison]) -> Table | None:
    """The paper's own comparisons at the same settings; None where it has none."""
    paper = paper_values()
    shown = [(one.setting, paper.paired[one.setting]) for one in comparisons if one.setting in paper.paired]
    if not shown:
        return None
    design = shown[0][0].design
    names = column_labels([Column(pair.baseline, "") for _, pair in shown])
    return Table(
        name=f"paired-{design}-paper",
        title=f"{design_title(design)}, the paper's comparison with the strongest baseline: {unit_text(design)}",
        header=_PAIRED_HEADER,
        rows=tuple(
            (
                f"{setting.rho:g}",
                setting.n,
                names[Column(pair.baseline, "")],
                pair.our_error.values,
                pair.baseline_error,
                pair.our_error,
                Number(pair.difference, _DIGITS),
                None,
                PValue(pair.wilcoxon_holm),
                PValue(pair.t_p),
            )
            for setting, pair in shown
        ),
        bold=frozenset(
            (i, 4 + j) for i, (_, pair) in enumerate(shown) for j in lowest([pair.baseline_error, pair.our_error])
        ),
        notes=(f"As printed in the paper (table {paper.sources['paired', design]}).",),
        constants=design_constants(design),
        digits=_DIGITS,
        grouped=True,
    )


def _p_values(tests: PairedTests | None, holm: float | None) -> tuple[Value, Value, Value]:
    if tests is None:
        return ("too few", "too few", "too few")
    adjusted, t_p = (None if p is None else PValue(p) for p in (holm, tests.t_p))
    return (PValue(tests.wilcoxon_p), adjusted, t_p)


def _wilcoxon_note(methods: Collection[str]) -> str:
    exact = "SciPy's exact distribution"
    auto = 'SciPy\'s method "auto" (exact where it can be, else the normal approximation)'
    if methods == {"exact"}:
        return f"Wilcoxon's signed-rank test by {exact}."
    if methods == {"auto"}:
        return f"Wilcoxon's signed-rank test by {auto}."
    return f"Wilcoxon's signed-rank test by {exact}; where there are ties or more than {_EXACT_PAIRS} pairs, by {auto}."
