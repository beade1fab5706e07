"""Sections of the page behind its answer: assumptions, the data, training, and how to repeat it."""

from __future__ import annotations

from itertools import groupby

from bgmiv.analysis.analysis import Analysis
from bgmiv.analysis.markup import clean, element, sentence, shortened
from bgmiv.analysis.page.charts import sparkline
from bgmiv.analysis.page.parts import Parts, pairs, tools
from bgmiv.analysis.text import estimate_cells, weights_text
from bgmiv.numerals import percent, share

__all__ = ["again_section", "assumption_texts", "assumptions_section", "data_section", "history_section"]

_PAPER = "Luo and Liu, BGM-IV: an AI-powered Bayesian generative modeling approach for instrumental variable analysis."

# Fewer treated rows than these without the instrument are as good as none.
_ONE_SIDED = 0.005


def assumption_texts(analysis: Analysis) -> dict[str, str]:
    """What is estimated for this data set, and what has to hold, in sentences by name."""
    question, estimand, units = analysis.question, analysis.estimand, analysis.units
    outcome, treatment = shortened(question.changed, 60), shortened(question.treatment, 60)
    listed = shortened(" and ".join(question.instruments), 80)
    s = "" if len(question.instruments) > 1 else "s"
    given = " given the covariates" if question.covariates else ""
    found = {
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
        found["Binary instrument"] = (
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
            text += _averaged_over(analysis, who, 1.0 if treated else 0.0)
        found["Compliance"] = text
    found["Relevance"] = f"{listed} move{s} {treatment}{given}: see the effective F."
    inside = share(analysis.effects[0].in_support)
    found["Overlap"] = f"Comparable {units} are observed at both values of {treatment} for {inside} of the {units}."
    if any(check.key == "detail" for check in analysis.diagnosis.checks):
        found["Detail"] = (
            "The instruments show only the mean of g given the instruments, which is smoother than g: sudden changes "
            f"along {treatment} cannot be seen. The check of detail says how much can."
        )
    found["If a control function disagrees"] = (
        "It assumes more: that the errors of treatment and outcome are jointly independent of the instruments, and "
        "that a single error drives the treatment. Where this holds it shows more detail. If the two answers differ, "
        "doubt this assumption or the smoothness assumed here."
    )
    return found


def _averaged_over(analysis: Analysis, who: str, treatment: float) -> str:
    """The mean over the treated or the untreated rows beside that over all."""
    rows = analysis.effects
    some = next((row for row in rows if row.group.treatment == treatment), None)
    if some is None:
        return ""
    units, change = analysis.units, analysis.question.change_text(rows[0])
    (mean, ends), (own, own_ends) = estimate_cells([rows[0], some])
    return (
        f" For {change} its mean over the {some.group.n_rows:,} {who} {units} is {own} ({percent(analysis.level)} "
        f"interval {own_ends}). The mean over all {units}, {mean} ({ends}), carries it over to {units} that are not "
        f"{who}, and relies on additive errors for that."
    )


def assumptions_section(analysis: Analysis) -> Parts:
    """What is estimated, and what it rests on."""
    rows = [
        element("tr", element("th", name, scope="row"), element("td", text))
        for name, text in assumption_texts(analysis).items()
    ]
    table = element("table", element("tbody", *rows), class_="plain terms")
    return [element("h2", "Estimand and assumptions"), element("div", table, class_="scroll")]


def data_section(analysis: Analysis) -> Parts:
    """The question and its columns."""
    question, units = analysis.question, analysis.units
    text = f"{question.n_rows:,} {units}" + (f" of {clean(question.source)}" if question.source else "") + "."
    if question.n_dropped:
        text += f" {question.n_dropped:,} {units} with missing values were dropped."
    if question.weights:
        text += f" {sentence(units)[:-1]} are weighted by {weights_text(analysis)}."
    if question.groups:
        text += f" {sentence(units)[:-1]} are clustered by {clean(question.groups)}."
    names = [element("th", name, scope="col") for name in ("Column", "Role", "Kind", "Summary")]
    rows = []
    for column in question.columns:
        cells = [element("td", cell) for cell in (column.role, column.kind, column.text)]
        rows.append(element("tr", element("th", element("bdi", column.name), scope="row"), *cells))
    table = element("table", element("thead", element("tr", *names)), element("tbody", *rows), class_="plain")
    return [
        element("h2", "Data"),
        element("p", text),
        element("pre", element("code", question.formula)) if question.formula else None,
        element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Columns"),
        tools("data", "the columns"),
    ]


def history_section(analysis: Analysis) -> Parts:
    """Losses along training; nothing for a method in closed form."""
    if not analysis.history:
        return []
    parts = [element("h2", "Training"), element("p", "Loss by training step.")]
    for phase, lines in groupby(analysis.history, key=lambda line: line.phase):
        cards = [element("div", element("h4", line.name), sparkline(line), class_="spark-card") for line in lines]
        parts += [element("h3", phase), element("div", *cards, class_="sparks")]
    return [*parts, tools("history", "losses", only_file=True)]


def again_section(analysis: Analysis) -> Parts:
    """Settings, versions, the day, and what to cite."""
    settings = {"method": analysis.method, "seed": str(analysis.seed), **analysis.settings}
    settings |= {"made on": analysis.made} if analysis.made else {}
    lists = [
        element("div", element("h3", title), pairs(values, "pairs"))
        for title, values in (("Settings", settings), ("Versions", analysis.versions))
    ]
    version = clean(analysis.versions.get("bgmiv", ""))
    install = f"To repeat the numbers, install bgmiv {version} and fit the same data with these settings and this seed."
    cite = f"{_PAPER} " if analysis.method.startswith("BGM-IV") else ""
    return [
        element("h2", "Reproduce it"),
        element("p", install),
        element("div", *lists, class_="cards"),
        element("h3", "Cite"),
        element("p", f"{cite}bgmiv, version {version}: instrumental-variable analysis in Python."),
    ]
