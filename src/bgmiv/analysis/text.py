"""An analysis in words: its headline and how far to trust it, and its summary in text and as HTML for notebooks."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bgmiv.analysis.analysis import Analysis, Answer, MethodRow
from bgmiv.analysis.markup import Markup, asset, clean, element, filled, sentence, shortened
from bgmiv.diagnostics.explanations import Check, Severity, worst
from bgmiv.diagnostics.verdict import not_measured_remark
from bgmiv.linear_iv import LinearEstimate
from bgmiv.numerals import aligned, percent, robust_set_text, set_text, share, together

__all__ = [
    "NOTES", "TextTable", "Trust", "answer", "assumptions", "cautions", "checks_of", "estimate_cells", "facts",
    "failed", "groups_left_out", "headline", "html_table", "method_table", "summary_html", "summary_text",
    "text_table", "trust",
]  # fmt: skip

TextTable = tuple[list[str], list[list[str]]]
"""The header and the rows."""

_STRENGTH = ("effective-f", "robust-f", "nonlinear-first-stage", "anderson-rubin", "ill-posedness")
NOTES = {
    "no-instrument": "the same method as a regression, without the instruments",
    "line": "linear in the treatment",
    "line-without-instrument": "linear in the treatment, without the instruments",
    "truth": "known because the data are simulated",
}
"""What to know of a method's answer, by the note of its row."""

_ACT = "Each check says what it means and what to do."
_WIDTH = 80
_MAX_NAMED = 6
# Fewer treated rows than these without the instrument are as good as none.
_ONE_SIDED = 0.005


def estimate_cells(rows: Sequence[Answer]) -> list[tuple[str, str]]:
    """The estimate and the interval of each row, with as many decimals in all of them."""
    cells = []
    numbers = aligned([(row.estimate, row.lower, row.upper) for row in rows])
    for row, (value, low, high) in zip(rows, numbers, strict=True):
        text = "none" if row.lower is None else f"{low} to {high}"
        cells.append((value, robust_set_text(row.interval.pieces) if row.robust else text))
    return cells


def headline(analysis: Analysis) -> str:
    """The answer, after what has to be known before using it."""
    return " ".join([*cautions(analysis), answer(analysis)])


def answer(analysis: Analysis) -> str:
    """The estimate for all rows, in a sentence or two that say no more than the checks allow."""
    row, question = analysis.effects[0], analysis.question
    treatment, outcome = shortened(question.treatment, 60), shortened(question.changed, 60)
    t0, t1 = (question.treatment_text(t) for t in (row.t0, row.t1))
    change = f"setting {treatment} to {t1} instead of {t0}"
    severity = trust(analysis).severity
    if severity == "failed":
        method = clean(analysis.method)
        text = f"The data do not support an estimate of the effect of {treatment} on {outcome} by {method}."
        return " ".join([text, *_instead(analysis, change)])
    value, interval = _with_interval(row, analysis.level)
    verb = "is estimated to change" if severity == "doubtful" else "would change"
    return f"{change[:1].upper()}{change[1:]} {verb} {outcome} by {value} on average ({interval})."


def _instead(analysis: Analysis, change: str) -> list[str]:
    """What can be said where the fit's number cannot be used."""
    row, level, linear = analysis.effects[0], percent(analysis.level), analysis.diagnosis.linear
    if analysis.diagnosis.weak_instruments:
        if row.robust and not failed(analysis):
            return [f"The weak-instrument-robust {level} set for {change}: {robust_set_text(row.interval.pieces)}."]
        if linear is None:
            return []
        unit = f"one unit of {shortened(analysis.question.treatment, 60)}"
        return [f"The weak-instrument-robust {level} set for the linear effect of {unit}: "
                f"{robust_set_text(linear.robust_set)}."]  # fmt: skip
    line = next((other for other in analysis.methods[1:] if other.note == "line"), None)
    if line is None:
        return []
    value, interval = _with_interval(line, analysis.level)
    return [f"The linear estimate (2SLS) for {change} is {value} ({interval})."]


def failed(analysis: Analysis) -> bool:
    """Whether the fit failed its held-out checks."""
    return analysis.verdict is not None and analysis.verdict.severity == "failed"


def _with_interval(row: Answer, level: float) -> tuple[str, str]:
    ((value, interval),) = estimate_cells([row])
    kind = f"weak-instrument-robust {percent(level)} set:" if row.robust else f"{percent(level)} interval"
    return value, "this method gives no interval" if row.lower is None else f"{kind} {interval}"


def cautions(analysis: Analysis) -> list[str]:
    """What has to be read before the answer, in sentences; empty if nothing is against it."""
    verdict, weak = analysis.verdict, analysis.diagnosis.weak_instruments
    strength, others = checks_of(analysis)
    against = worst(check.severity for check in (others if weak else strength + others))
    sentences = []
    if failed(analysis):
        sentences.append("This fit failed its held-out checks: do not use its estimate.")
    elif against == "failed":
        sentences.append("A check failed: do not rely on this estimate.")
    elif verdict is not None and verdict.severity == "doubtful":
        sentences.append("Read with caution: the held-out checks leave this fit in doubt.")
    elif against == "doubtful":
        sentences.append("Read with caution: a check is in doubt.")
    if weak:
        if failed(analysis):
            text = "the linear estimate needs a weak-instrument-robust set, too"
        elif analysis.effects[0].robust:
            text = (
                "report the interval of the average effect, which allows for this, rather than the estimate, and do "
                "not interpret the shape of the curve"
            )
        elif analysis.effects[0].lower is not None:
            text = (
                "the estimate may be far off, and intervals of this kind are too narrow. Rely on the "
                "weak-instrument-robust set"
            )
        else:
            text = "the estimate may be far off"
        sentences.append(f"The instruments are weak: {text}.")
    return sentences


class Trust(NamedTuple):
    """How far the answer can be relied on: a severity, a word for it, and why in a sentence."""

    severity: Severity
    word: str
    sentence: str


def trust(analysis: Analysis) -> Trust:
    """The worst of checks and verdict, in words."""
    judged = [(check.severity, clean(check.title)) for part in checks_of(analysis) for check in part]
    if analysis.verdict is not None:
        judged.append((analysis.verdict.severity, "the fit on held-out rows"))
    severity = worst(each for each, _ in judged)
    against = [title for each, title in judged if each == severity]
    listed = "; ".join(title[:1].lower() + title[1:] if title[1:2].islower() else title for title in against)
    if severity == "failed":
        return Trust("failed", "do not rely on it", f"Failed: {listed}. {_ACT}")
    if severity == "doubtful":
        return Trust("doubtful", "read with caution", f"In doubt: {listed}. {_ACT}")
    text = "No data can show that the instruments affect the outcome only through the treatment: that has to be argued."
    if analysis.verdict is not None and analysis.verdict.not_measured:
        return Trust("note", "not fully checked", f"{not_measured_remark(analysis.verdict.not_measured)} {text}")
    return Trust("good", "passed its checks", text)


def checks_of(analysis: Analysis) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """The checks of the instruments' strength, and the others without the verdict, which has a place of its own."""
    checks = [check for check in analysis.diagnosis.checks if check.key != "verdict"]
    strength = tuple(check for check in checks if check.key in _STRENGTH)
    return strength, tuple(check for check in checks if check.key not in _STRENGTH)


class _Section(NamedTuple):
    """A part of the summary, whatever it is written in: a table, checks, names with texts, and sentences."""

    title: str
    table: TextTable | None = None
    checks: Sequence[Check] = ()
    pairs: Mapping[str, str] = {}
    sentences: Sequence[str] = ()


def _sections(analysis: Analysis) -> list[_Section]:
    strength, others = checks_of(analysis)
    sections = [
        _Section("Average effects", _effect_table(analysis), sentences=groups_left_out(analysis)),
        _Section("Strength of the instruments", checks=strength, pairs=_linear_pairs(analysis.diagnosis.linear)),
        _Section("Other checks", checks=others),
    ]
    if len(analysis.methods) > 1:
        sections.append(_Section("The same effect by other methods", method_table(analysis.methods, analysis.level)))
    if analysis.verdict is not None:
        title = f"Fit on held-out rows: {analysis.verdict.severity}"
        sections.append(_Section(title, sentences=analysis.verdict.lines))
    return [section for section in sections if any(section[1:])]


def summary_text(analysis: Analysis) -> str:
    """The summary in lines of at most 80 columns."""
    belief = trust(analysis)
    parts = [_ruled(shortened(analysis.title, _WIDTH)), *_pair_lines(facts(analysis))]
    for i, section in enumerate(_sections(analysis)):
        parts.append(f"\n{section.title}\n{'-' * _WIDTH}")
        parts += [_wrapped(headline(analysis)) + "\n"] if i == 0 else []
        parts += [text_table(*section.table)] if section.table else []
        parts += [*map(_check_text, section.checks), *_pair_lines(section.pairs)]
        parts += [_wrapped(sentence, "- ", "  ") for sentence in section.sentences]
    parts += [_ruled(f"Trust: {belief.word}"), _wrapped(belief.sentence)]
    parts += [_wrapped(sentence(analysis.interval_kind)), "=" * _WIDTH]
    return "\n".join(part for part in parts if part)


def _pair_lines(pairs: Mapping[str, str]) -> list[str]:
    names = {name: f"{shortened(name, 16)}: " for name in pairs}
    indent = max(map(len, names.values()), default=0)
    return [_wrapped(shortened(text, 250), names[name].ljust(indent), " " * indent) for name, text in pairs.items()]


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns that have a name on the right; before them the first, cut to what is left of the width."""
    lines = [header, *rows]
    others = [[line[j] for line in lines] for j, name in enumerate(header) if name and j]
    others = [[cell.rjust(max(map(len, column)) + 2) for cell in column] for column in others]
    first = max(_WIDTH - sum(len(column[0]) for column in others), 9)
    names = [shortened(line[0], first).ljust(first) for line in lines]
    return "\n".join("".join(cells).rstrip() for cells in zip(names, *others, strict=True))


def facts(analysis: Analysis) -> dict[str, str]:
    """What the analysis is about, by name; what is not known is left out."""
    question = analysis.question
    names = question.covariates
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    dropped = f" ({question.n_dropped:,} dropped for missing values)" if question.n_dropped else ""
    effective = f" (sampling weights; Kish's effective number is {question.n_effective:,.0f})"
    known = {
        "Outcome": question.outcome,
        "Treatment": question.treatment,
        "Instruments": ", ".join(question.instruments),
        "Covariates": (", ".join(names[:_MAX_NAMED]) or "none") + more,
        "Formula": question.formula,
        "Data": question.source,
        sentence(analysis.units)[:-1]: f"{question.n_rows:,}{dropped}",
        "Weights": question.weights and question.weights + effective,
        "Groups": question.groups,
        "Method": analysis.method,
        "Seed": str(analysis.seed),
    }
    return {name: text for name, text in known.items() if text}


def groups_left_out(analysis: Analysis) -> list[str]:
    """Of columns with more groups than are shown, how many are."""
    cut = Counter((row.group.column, row.group.n_groups) for row in analysis.effects if row.group.n_groups)
    return [f"{shortened(name, 40)}: the {count} largest of {of} groups." for (name, of), count in cut.items()]


def _effect_table(analysis: Analysis) -> TextTable:
    rows = [
        [clean(row.group.label), f"{row.group.n_rows:,}", *cells, share(row.in_support)]
        for row, cells in zip(analysis.effects, estimate_cells(analysis.effects), strict=True)
    ]
    return ["", shortened(analysis.units, 11), "effect", f"{percent(analysis.level)} interval", "in support"], rows


def method_table(methods: Sequence[MethodRow], level: float) -> TextTable:
    """The same effect by several methods: name, estimate, interval, and what to know of each."""
    cells = zip(methods, estimate_cells(methods), strict=True)
    rows = [[clean(row.name), *texts, NOTES.get(row.note, "")] for row, texts in cells]
    return ["", "effect", f"{percent(level)} interval", ""], rows


def _linear_pairs(linear: LinearEstimate | None) -> dict[str, str]:
    if linear is None:
        return {}
    level = percent(linear.level)
    value, error, low, high = together(linear.coefficient, linear.std_error, linear.lower, linear.upper)
    ols, ols_error = together(linear.ols, linear.ols_std_error)
    pairs = {
        "Linear 2SLS": f"{value} per unit (standard error {error}; {level} interval {low} to {high})",
        "Linear OLS": f"{ols} per unit (standard error {ols_error})",
        f"Robust set, {level}": robust_set_text(linear.robust_set),
        f"CLR set, {level}": f"{robust_set_text(linear.likelihood_ratio_set)} (for errors with equal variance)",
    }
    return pairs if linear.tf is None else pairs | {f"tF interval, {level}": set_text(*linear.tf)}


def _check_text(check: Check) -> str:
    head, *rest = textwrap.wrap(clean(check.title), _WIDTH - 11)
    lines = [f"{head:<{_WIDTH - 10}}{'[' + check.severity + ']':>10}", *rest]
    return "\n".join(lines + [_wrapped(text, "  ", "  ") for text in (check.value, check.reading)])


def _wrapped(text: str, first: str = "", later: str = "") -> str:
    return textwrap.fill(clean(text), _WIDTH, initial_indent=first, subsequent_indent=later)


def _ruled(title: str) -> str:
    return f"{'=' * _WIDTH}\n{title}\n{'=' * _WIDTH}"


def summary_html(analysis: Analysis) -> str:
    """The summary as a fragment of HTML with a style of its own that touches nothing else; every text is escaped."""
    written = []
    for section in _sections(analysis):
        checks = [[one.title, one.value, filled("level", check=one), one.reading] for one in section.checks]
        parts = [html_table(*section.table, class_="numbers")] if section.table else []
        parts += [html_table([], rows) for rows in (checks, list(section.pairs.items())) if rows]
        parts += [element("p", text) for text in section.sentences]
        written.append(filled("summary-section", title=section.title, parts=parts))
    return filled(
        "summary",
        style=Markup(asset("summary.css")),
        analysis=analysis,
        headline=headline(analysis),
        trust=trust(analysis),
        facts=html_table([], list(facts(analysis).items())),
        sections=written,
        interval_kind=sentence(analysis.interval_kind),
    )


def html_table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, class_: str | None = None) -> Markup:
    """A table whose first column is a header."""

    def line(tag: str, texts: Sequence[Any], scope: str | None = None) -> Markup:
        cells = [element(tag, text, scope=scope) for text in texts[1:]]
        return element("tr", element("th", texts[0], scope=scope or "row"), *cells)

    head = element("thead", line("th", header, "col")) if header else None
    return element("table", head, element("tbody", *(line("td", row) for row in rows)), class_=class_)


def assumptions(analysis: Analysis) -> dict[str, str]:
    """What is estimated for this data set, and what has to hold, in sentences by name."""
    question, estimand, units = analysis.question, analysis.estimand, analysis.units
    outcome, treatment = shortened(question.changed, 60), shortened(question.treatment, 60)
    listed = shortened(" and ".join(question.instruments), 80)
    s = "" if len(question.instruments) > 1 else "s"
    given = " given the covariates" if question.covariates else ""
    statements = {
        "Estimand": f"The structural function g: the mean of {outcome}{given} if {treatment} were set by intervention. "
        f"An average effect is the mean difference of g over the {question.n_rows:,} {units}, and its interval is for "
        f"these {units}, not for the population that they were drawn from.",
        "Exclusion and independence": f"{listed} affect{s} {outcome} only through {treatment}, and share{s} no cause "
        f"with it{given}. The data cannot show this: it has to be argued.",
        "Additive errors": f"Unobserved causes shift {outcome} and do not change the effect of {treatment}. If effects "
        f"differ between {units} with the same covariates and {treatment} is chosen with them in mind, the estimate is "
        f"an average that weights {units} by how much {listed} move{s} their {treatment}.",
    }
    if estimand.binary_instrument:
        statements["Binary instrument"] = (
            f"For given covariates it identifies one number: the effect on {units} whose {treatment} it moves (the "
            "local average treatment effect), if it moves none the other way (monotonicity). The shape of the curve "
            "comes from the covariates and from assuming smoothness."
        )
    if estimand.treated is not None:
        low, high = estimand.treated
        text = f"{share(low)} of {units} are treated at one value of the instrument, {share(high)} at the other."
        if min(low, 1.0 - high) < _ONE_SIDED:
            treated = low < _ONE_SIDED
            who = "treated" if treated else "untreated"
            condition = f"{given}," if given else ""
            text += f" Noncompliance is one-sided:{condition} the effect on the {units} that it moves is the effect "
            text += f"on the {who}."
            if any(row.group.treatment == treated for row in analysis.effects):
                text += f" Its mean is shown by group. The mean over all {units} carries it over to {units} that are "
                text += f"not {who}, and relies on additive errors for that."
        statements["Compliance"] = text
    statements["Relevance"] = f"{listed} move{s} {treatment}{given}: see the effective F."
    inside = share(analysis.effects[0].in_support)
    statements["Overlap"] = (
        f"Comparable {units} are observed at both values of {treatment} for {inside} of the {units}."
    )
    if any(check.key == "ill-posedness" for check in analysis.diagnosis.checks):
        statements["Ill-posedness"] = (
            "The instruments show only the mean of g given the instruments, which is smoother than g: sudden changes "
            f"along {treatment} cannot be seen. The check of ill-posedness says how much can."
        )
    statements["If a control function disagrees"] = (
        "It assumes more: that the errors of treatment and outcome are jointly independent of the instruments, and "
        "that a single error drives the treatment. Where this holds it shows sudden changes as well. If the two "
        "answers differ, doubt this assumption or the smoothness assumed here."
    )
    return statements
