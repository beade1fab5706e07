"""Sections of the page behind its answer: what is estimated under which assumptions, the data, and training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from bgmiv.analysis.analysis import Analysis
from bgmiv.analysis.charts import sparkline
from bgmiv.analysis.markup import Markup, clean, element, share, shortened
from bgmiv.diagnostics.check import Check

__all__ = ["assumption_texts", "assumptions_section", "data_section", "history_section", "shape_bars"]

Parts = Sequence[Markup | None]

# Fewer treated rows than these without the instrument are as good as none.
_ONE_SIDED = 0.005


def assumption_texts(analysis: Analysis) -> dict[str, str]:
    """What is estimated for this data set, and what has to hold, in sentences by name."""
    question, estimand = analysis.question, analysis.estimand
    outcome, treatment = shortened(question.changed, 60), shortened(question.treatment, 60)
    listed = shortened(" and ".join(question.instruments), 80)
    s = "" if len(question.instruments) > 1 else "s"
    given = " given the covariates" if question.covariates else ""
    found = {
        "What is estimated": f"The curve g: the mean of {outcome} if {treatment} were set to a value by intervention"
        f"{given}. An average effect is the mean of its differences over the {question.n_rows:,} rows.",
        "Exclusion and independence": f"{listed} affect{s} {outcome} only through {treatment}, and share{s} no cause "
        f"with it{given}. No data can show this: it has to be argued.",
        "Additive errors": f"What is not observed adds to {outcome} and does not change the effect of {treatment}. If "
        "effects differ between rows with the same covariates, and rows choose by them, what is estimated is an "
        f"average that weights rows by how much {listed} move{s} their {treatment}.",
    }
    if estimand.binary_instrument:
        found["One instrument with two values"] = (
            f"It shows one number for given covariates: the effect on rows whose {treatment} it moves (the local "
            "average treatment effect), if it moves no row the other way (monotonicity). The shape of a curve beyond "
            "that rests on the covariates and on smoothness."
        )
    if estimand.treated is not None:
        low, high = estimand.treated
        text = f"{share(low)} of rows are treated at one value of the instrument, {share(high)} at the other."
        if min(low, 1.0 - high) < _ONE_SIDED:
            who = "treated" if low < _ONE_SIDED else "untreated"
            text += f" Compliance is one-sided, so that the effect on rows it moves is the effect on the {who}."
        found["Compliance"] = text
    found["Relevance"] = f"{listed} move{s} {treatment}{given}: see the effective F."
    inside = share(analysis.effects[0].in_support)
    found["Overlap"] = f"Comparable rows are observed at both values of {treatment}: they are for {inside} of rows."
    if any(check.key == "detail" for check in analysis.diagnosis.checks):
        found["Detail"] = (
            "The instruments show the curve only through its mean given them, which is smoother: sudden changes along "
            f"{treatment} are not to be seen in it. The check of detail says how much is."
        )
    found["If a control function disagrees"] = (
        "It assumes more: that the errors of treatment and outcome are together independent of the instruments, and "
        "that one error drives the treatment. Where that holds it shows more detail; a difference between the two "
        "answers is a reason to doubt it, or the smoothness assumed here."
    )
    return found


def shape_bars(check: Check) -> Markup | None:
    """Bars of the singular values that a check of detail has."""
    values = [value for name, value in check.numbers.items() if name.startswith("shape_")]
    if not values:
        return None
    bars = [
        element("rect", x=0, y=14 * i, width=f"{100 * value:.2f}%", height=10, rx=3, class_=f"filled {check.severity}")
        for i, value in enumerate(values)
    ]
    label = f"Singular values: {', '.join(f'{value:.2f}' for value in values)}"
    return element("svg", *bars, class_="shapes", role="img", aria_label=label, height=14 * len(values))


def assumptions_section(analysis: Analysis) -> Parts:
    """What is estimated, and what it rests on."""
    rows = [
        element("tr", element("th", name, scope="row"), element("td", text))
        for name, text in assumption_texts(analysis).items()
    ]
    table = element("table", element("tbody", *rows), class_="plain")
    return [element("h2", "What is estimated, and what it rests on"), element("div", table, class_="scroll")]


def data_section(analysis: Analysis) -> Parts:
    """The question and its columns."""
    question = analysis.question
    text = f"{question.n_rows:,} rows" + (f" of {clean(question.source)}" if question.source else "") + "."
    if question.n_dropped:
        text += f" {question.n_dropped:,} rows with missing values were left out."
    if question.weights:
        text += f" Rows are weighted by {clean(question.weights)}."
    if question.groups:
        text += f" Rows are clustered by {clean(question.groups)}."
    names = [element("th", name, scope="col") for name in ("Column", "Role", "Kind", "Holds")]
    rows = []
    for column in question.columns:
        cells = [element("td", cell) for cell in (column.role, column.kind, column.text)]
        rows.append(element("tr", element("th", element("bdi", column.name), scope="row"), *cells))
    table = element("table", element("thead", element("tr", *names)), element("tbody", *rows), class_="plain")
    return [
        element("h2", "The question and the data"),
        element("p", text),
        element("pre", element("code", question.formula)) if question.formula else None,
        element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Columns"),
    ]


def history_section(analysis: Analysis) -> Parts:
    """Losses along training; nothing for a method in closed form."""
    if not analysis.history:
        return []
    parts = [element("h2", "Training"), element("p", "Losses along the steps of training.")]
    for phase, lines in groupby(analysis.history, key=lambda line: line.phase):
        cards = [element("div", element("h4", line.name), sparkline(line), class_="spark-card") for line in lines]
        parts += [element("h3", phase), element("div", *cards, class_="sparks")]
    return parts
