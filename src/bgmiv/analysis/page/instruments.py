"""Sections of the page about the instruments: strength, first stage and reduced form, balance, and direct effects."""

from __future__ import annotations

import math

from bgmiv.analysis.analysis import Analysis, EffectRow
from bgmiv.analysis.axes import axis_over, effect_axis
from bgmiv.analysis.instruments import Balance, DirectEffect
from bgmiv.analysis.markup import Markup, clean, element, shortened
from bgmiv.analysis.page.charts import Line, binned_chart, lines_chart
from bgmiv.analysis.page.forest import ForestRow, forest
from bgmiv.analysis.page.parts import Parts, cards, tools
from bgmiv.analysis.text import checks_of
from bgmiv.intervals import ANDERSON_RUBIN
from bgmiv.linear_iv import LinearEstimate
from bgmiv.numerals import aligned, number, percent, robust_set_text

__all__ = ["direct_numbers", "direct_section", "strength_section"]

# Applied work usually takes a standardised difference above a tenth as a sign of imbalance.
_NOTABLE = 0.1
_N_POINTS = 41
_NUMBERS = ("estimate", "slope", "variance", "covariance", "slope_variance")


def strength_section(analysis: Analysis) -> Parts:
    """The checks of the instruments, pictures of what they move, the linear estimate, and balance."""
    strength, linear = checks_of(analysis)[0], analysis.diagnosis.linear
    if not strength and linear is None:
        return []
    parts = [element("h2", "How strong are the instruments?"), cards(strength)]
    return [*parts, *_pictures(analysis), *_linear(linear), *_balance(analysis)]


def _pictures(analysis: Analysis) -> Parts:
    means = analysis.instruments.means
    if not means:
        return []
    level, treatment = percent(analysis.level), shortened(analysis.question.treatment, 40)
    figures = []
    for title, table, each in zip(
        ("First stage", "Reduced form"), ("first-stage", "reduced-form"), means, strict=False
    ):
        along = shortened(each.along, 40) or f"{treatment}, predicted by the instruments"
        name = shortened(each.name, 40)
        figure = element(
            "figure",
            element("h4", f"{title}: {name} by {shortened(each.along, 30) or 'the instruments'}"),
            element("p", name, class_="axis-name"),
            element("div", binned_chart(each, f"{title}: {name} by {along}"), class_="plot"),
            element("p", along, class_="axis-name across"),
            tools(table, title, only_file=True),
        )
        figures.append(figure)
    given = "binned means adjusted for covariates" if analysis.question.covariates else "binned means"
    text = (
        f"Dots are {given} with {level} intervals; dashed lines are linear regressions. If the first stage is flat, "
        "the instruments say nothing about the effect. Two-stage least squares divides the slope of the reduced form "
        "by that of the first stage."
    )
    heading = element("h3", "First stage and reduced form")
    return [heading, element("p", text), element("div", *figures, class_="pair")]


def _linear(linear: LinearEstimate | None) -> Parts:
    if linear is None:
        return []
    level = percent(linear.level)
    ends = ((linear.coefficient, linear.lower, linear.upper), (linear.ols, *linear.ols_interval))
    (slope, low, high), (ols, ols_low, ols_high) = aligned(ends)
    rows = [
        ForestRow("Two-stage least squares", "robust standard errors", slope, f"{low} to {high}",
                  linear.coefficient, (ends[0][1:],)),
        ForestRow("Weak-instrument-robust set", "Anderson and Rubin", "", robust_set_text(linear.robust_set), None,
                  linear.robust_set, "m2"),
        ForestRow("Conditional likelihood ratio", "Moreira, for errors with equal variance", "",
                  robust_set_text(linear.likelihood_ratio_set), None, linear.likelihood_ratio_set, "m2"),
        ForestRow("Ordinary least squares", "without the instruments", ols, f"{ols_low} to {ols_high}", linear.ols,
                  (ends[1][1:],), "m1", "square"),
    ]  # fmt: skip
    axis = effect_axis([*ends, *((linear.coefficient, *pair) for pair in linear.robust_set)])
    table = forest(rows, axis, caption="Linear effect of the treatment", head=("Slope", f"{level} interval"))
    text = (
        "The linear effect of one unit of treatment, for comparison. Where the weak-instrument-robust set is much "
        "wider than the usual interval, rely on the set."
    )
    return [element("h3", "If the effect were linear"), element("p", text), table, tools("linear", "the linear effect")]


def _balance(analysis: Analysis) -> Parts:
    """Whether instruments go with covariates; nothing without covariates."""
    found = analysis.instruments.balance
    if not found:
        return []
    text = (
        "A randomly assigned instrument is balanced: its mean does not depend on the covariates. An instrument that is "
        "as good as random only given the covariates need not be, and then these have to be controlled for, as they "
        "are here. But an imbalance in observed covariates suggests one in unobserved causes: differences beyond 0.1 "
        "need an explanation."
    )
    parts: list[Markup | None] = [element("h3", "Balance of the instruments"), element("p", text)]
    for each in found:
        parts += [element("h4", element("bdi", shortened(each.instrument, 60)), class_="name"), _balance_table(each)]
        parts.append(element("p", _joint(each, analysis), class_="soft"))
    return [*parts, tools("balance", "balance")]


def _balance_table(balance: Balance) -> Markup:
    rows = [
        ForestRow(name, "", f"{value:.2f}", "imbalanced" if abs(value) > _NOTABLE else "", value, (),
                  "m1" if abs(value) > _NOTABLE else "main")
        for name, value in zip(balance.covariates, balance.differences, strict=True)
    ]  # fmt: skip
    reach = max(1.5 * _NOTABLE, *(abs(value) for value in balance.differences))
    head = "Difference of means (standard deviations)" if balance.binary else "Correlation"
    caption = f"Balance of {clean(balance.instrument)} over covariates"
    return forest(rows, axis_over([-reach, reach]), caption=caption, head=(head, ""))


def _joint(balance: Balance, analysis: Analysis) -> str:
    p = "p < 0.001" if balance.p < 0.001 else f"p = {balance.p:.3f}"
    more = balance.n_covariates - len(balance.covariates)
    rest = f" The other {more} covariate columns differ less." if more else ""
    reading = "predict the instrument" if balance.p < 0.05 else "do not significantly predict the instrument"
    return f"Together the covariates {reading}: F = {number(balance.f)}, {p}, with robust standard errors.{rest}"


def direct_section(analysis: Analysis) -> Parts:
    """What is left of the effect if an instrument also acts on the outcome directly; with a slider."""
    shown = [(i, each) for i, each in enumerate(analysis.instruments.direct) if _reach(analysis, each) is not None]
    if not shown:
        return []
    question = analysis.question
    treatment, outcome = shortened(question.treatment, 40), shortened(question.changed, 40)
    text = (
        f"The estimates assume that the instruments affect {outcome} only through {treatment}. If one also had a "
        "direct effect, the estimate and its interval would move along the lines below. No data can say how large a "
        "direct effect is; ask what could cause one."
    )
    options = [element("option", shortened(each.instrument, 60), value=i) for i, each in shown]
    choice = element("label", element("span", "Instrument"), element("select", *options, id="direct-instrument"))
    parts: list[Markup | None] = [element("h2", "What if an instrument had a direct effect?"), element("p", text)]
    if len(shown) > 1:
        parts.append(element("div", choice, class_="controls needs-js"))
    panels = [_panel(analysis, i, each, first=i == shown[0][0]) for i, each in shown]
    names = {"direct-fit": clean(analysis.method), "direct-line": "2SLS"}
    cells = [("direct effect", "direct-gamma"), *((shortened(name, 30), anchor) for anchor, name in names.items())]
    read = [element("div", element("dt", name), element("dd", "", id=anchor)) for name, anchor in cells]
    slider = element(
        "input", type="range", id="direct", min=-100, max=100, step=1, value=0, aria_label="Size of the direct effect"
    )
    readout = element("dl", *read, class_="readout three")
    reader = element("div", slider, readout, class_="needs-js reader")
    reference = "Conley, Hansen and Rossi (2012), Plausibly exogenous, Review of Economics and Statistics 94, 260-272"
    text = "The estimate of the fit is shifted by as much as that of 2SLS; the width of its interval is kept."
    last = element("p", f"{reference}. {text}", class_="soft")
    return [*parts, *panels, reader, tools("direct", "direct effects", only_file=True), last]


def _reach(analysis: Analysis, direct: DirectEffect) -> float | None:
    """How far the slider goes: twice the direct effect that takes the effect away; None if nothing moves."""
    effect, change = analysis.effects[0], analysis.effects[0].t1 - analysis.effects[0].t0
    numbers = (effect.estimate, change, direct.scale, *(getattr(direct, name) for name in _NUMBERS))
    if not direct.slope or not change or not all(math.isfinite(value) for value in numbers):
        return None
    sizes = [abs(direct.breakdown(analysis.level)), abs(effect.estimate / (direct.slope * change))]
    finite = [size for size in sizes if math.isfinite(size) and size > 0.0]
    return 2.0 * min(finite) if finite else 2.0 * math.sqrt(direct.variance) / abs(direct.slope)


def _shifting_ends(effect: EffectRow) -> tuple[float, float] | None:
    """The ends of an interval that keeps its width; None without one."""
    if effect.lower is None or effect.upper is None or effect.interval.method == ANDERSON_RUBIN:
        return None
    return (effect.lower, effect.upper) if math.isfinite(effect.upper - effect.lower) else None


def _lines(analysis: Analysis, direct: DirectEffect, reach: float) -> list[Line]:
    """The fit's effect and that of 2SLS along the direct effect."""
    effect = analysis.effects[0]
    change = effect.t1 - effect.t0
    place = [reach * (2.0 * k / (_N_POINTS - 1) - 1.0) for k in range(_N_POINTS)]
    line = zip(*([end * change for end in direct.interval(gamma, analysis.level)] for gamma in place), strict=True)
    if analysis.methods and analysis.methods[0].note == "line":
        return [Line("main", place, *line)]
    ends = (effect.estimate, *(_shifting_ends(effect) or ()))
    shifted = ([end + gamma * direct.slope * change for gamma in place] for end in ends)
    return [Line("m2", place, *line), Line("main", place, *shifted)]


def _panel(analysis: Analysis, i: int, direct: DirectEffect, *, first: bool) -> Markup:
    question, reach = analysis.question, _reach(analysis, direct)
    assert reach is not None
    name, outcome = shortened(direct.instrument, 40), shortened(question.changed, 40)
    change, lines = question.change_text(analysis.effects[0]), _lines(analysis, direct, reach)
    across = axis_over([-reach, reach], margin=0.0)
    up = axis_over([0.0, *(value for line in lines for part in line[2:] for value in part)])
    breakdown = direct.breakdown(analysis.level)
    if breakdown == 0.0:
        text = "The 2SLS interval contains zero even without a direct effect."
    elif math.isinf(breakdown):
        text = "No direct effect would bring zero into the 2SLS interval."
    else:
        text = (
            f"The 2SLS interval reaches zero at a direct effect of {number(breakdown)}, that is, "
            f"{number(breakdown * direct.scale, 2)} units of {outcome} per standard deviation of {name}."
        )
    if len(lines) > 1:
        text = f"Solid: {shortened(analysis.method, 40)}. Dotted: 2SLS. {text}"
    if analysis.diagnosis.weak_instruments:
        text += " The instruments are weak: these intervals are too narrow."
    label = f"Average effect of {change} by direct effect of {name}"
    axis = f"direct effect of {name} (units of {outcome} per unit of {name})"
    return element(
        "figure",
        element("p", f"Average effect, {change}", class_="axis-name"),
        element("div", lines_chart(lines, across, up, label), class_="plot"),
        element("p", axis, class_="axis-name across"),
        element("figcaption", text),
        data_direct=i,
        data_span=" ".join(map(repr, (up.low, up.high))),
        hidden=not first,
    )


def direct_numbers(analysis: Analysis) -> list[dict[str, float | None]]:
    """What the slider computes with, for each instrument that it moves."""
    effect = analysis.effects[0]
    lower, upper = _shifting_ends(effect) or (None, None)
    shared = {"change": effect.t1 - effect.t0, "fit": effect.estimate, "lower": lower, "upper": upper}
    return [
        {name: getattr(each, name) for name in _NUMBERS}
        | shared
        | {"reach": reach, "quantile": each.quantile(analysis.level)}
        if reach is not None
        else {}
        for each, reach in ((each, _reach(analysis, each)) for each in analysis.instruments.direct)
    ]
