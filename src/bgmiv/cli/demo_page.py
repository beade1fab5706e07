"""The page of the demo: that of an analysis with the truth drawn in, and before it how close each method came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bgmiv.analysis.analysis import Analysis, MethodRow
from bgmiv.analysis.axes import axis_over
from bgmiv.analysis.markup import Markup, element
from bgmiv.analysis.page import report_page
from bgmiv.analysis.page.charts import Line, lines_chart, sample
from bgmiv.analysis.page.forest import ForestRow, forest, look_of
from bgmiv.bench.store import Row
from bgmiv.cli.demo import PANELS, DemoResult, constant_error
from bgmiv.designs import make_design
from bgmiv.designs.demand import demand, price_support
from bgmiv.numerals import number
from bgmiv.registry import method_label

__all__ = ["truth_page", "with_truth"]

_QUESTION = (
    "An airline sets ticket prices knowing something about demand that the analyst does not observe, so the "
    "association of price and sales is not the effect of price. A cost shifter moves prices and affects demand in no "
    "other way: it is the instrument. The question is what demand would be if the price were set by intervention, "
    "for each customer group and time of year. The market is simulated, so the answer is known; demand is in the "
    "units of a published benchmark and may be negative."
)
_READING = (
    "The error is the mean squared difference from the true demand function over 2,800 combinations of price, time "
    "and group: inside the central 99% of the prices of that season, and outside, where every method extrapolates. "
    "What the airline knows moves price and demand together (the demand shock has a standard deviation of 50). The "
    "fit without the instrument takes this for an effect of price, and the linear model misses that groups and "
    "seasons respond differently."
)


def with_truth(analysis: Analysis, row: Row) -> Analysis:
    """The analysis with the true average curve and effect as its last method."""
    data = make_design(row.design).sample(row.n, row.rho, row.seed)
    names = data.schema.flat_names
    time, group = (data.covariates[:, names.index(name)] for name in ("time", "group"))
    first = analysis.effects[0]
    prices = np.array([first.t0, first.t1, *analysis.curves[0].treatment])
    before, after, *curve = (float(np.mean(demand(price, time, group))) for price in prices)
    truth = MethodRow("the truth", after - before, None, None, tuple(curve), "truth")
    return replace(analysis, methods=(*analysis.methods, truth))


def truth_page(analysis: Analysis, results: Sequence[DemoResult]) -> str:
    """The page of an analysis with the truth in it."""
    row = results[0].row
    known = with_truth(analysis, row)
    drawn = {result.row.method: result for result in results if result.panels}
    failures = [f"{method_label(r.row.method)} failed: {r.row.error}" for r in results if r.row.status != "ok"]
    command = f"bgmiv demo --n {row.n} --rho {row.rho:g} --seed {row.seed} --preset {row.preset}"
    section = [
        element("h2", "How close is each method to the truth?"),
        element("p", _QUESTION),
        *(element("p", text, class_="caution failed") for text in failures),
        _errors([result.row for result in results]),
        element("p", _READING, class_="soft"),
        *_panels(known, drawn),
        element(
            "p",
            f"To reproduce it: {command}. What an analyst without the truth would have is in analysis.html.",
            class_="soft",
        ),
    ]
    return report_page(known, {("truth", "The truth"): section})


def _errors(rows: Sequence[Row]) -> Markup:
    constant = constant_error(rows[0])
    found = [(method_label(row.method), row.structural_mse, row.structural_mse_in_support, row.structural_mse_outside)
             for row in rows]  # fmt: skip
    own = found[0][1]
    lines = []
    for i, (name, everywhere, inside, outside) in enumerate([*found, ("constant (mean outcome)", *constant)]):
        if everywhere is None or inside is None or outside is None:
            lines.append(ForestRow(name, "", "failed", "", None, ()))
            continue
        times = f"{number(everywhere / own, 2)} times {found[0][0]}'s" if own and i else ""
        detail = f"inside {inside:,.0f}, outside {outside:,.0f}"
        look = "faint" if name == "constant (mean outcome)" else f"m{i}" if i else "main"
        lines.append(ForestRow(name, detail, f"{everywhere:,.0f}", times, everywhere, ((0.0, everywhere),), look))
    # The constant guess is the scale of the problem, and would hide the others.
    largest = max((line.estimate for line in lines[:-1] if line.estimate is not None), default=constant.all)
    return forest(lines, axis_over([0.0, largest]), caption="Errors", head=("Mean squared error", ""), zero=False)


def _panels(analysis: Analysis, drawn: dict[str, DemoResult]) -> list[Markup]:
    """True and estimated demand for some groups and seasons."""
    names = [row.name for row in analysis.methods]
    shown = [(names.index(method_label(method)), result) for method, result in drawn.items()
             if method_label(method) in names]  # fmt: skip
    panels = []
    for k, (group, time) in enumerate(PANELS.places):
        price, truth = PANELS.price, demand(PANELS.price, time, group)
        lines = [Line(look_of(analysis, i), price.tolist(), *result.panels[k]) for i, result in shown]
        # Bands of the others would hide one another.
        lines = [line if line.look == "main" else line._replace(lower=(), upper=()) for line in lines]
        low, high = (float(edge) for edge in price_support(time))
        inside = (price >= low) & (price <= high)
        values = [np.asarray(line.values)[inside] for line in lines]
        up = axis_over([*truth, *(value for part in values for value in part)])
        across = axis_over([price[0], price[-1]], margin=0.0)
        label = f"group {group}, time of year {number(time)} of 10"
        lines.append(Line("truth", price.tolist(), truth.tolist()))
        outside = [(price[0], max(low, price[0])), (min(high, price[-1]), price[-1])]
        chart = lines_chart(lines, across, up, f"Demand by price: {label}", [s for s in outside if s[0] < s[1]])
        panels.append(element("figure", element("h4", label), element("div", chart, class_="plot")))
    keys = [element("span", sample(analysis, i), names[i]) for i in [*(i for i, _ in shown), len(names) - 1]]
    return [
        element("h3", "Demand by price, if the price were set"),
        element("p", *keys, class_="key"),
        element("div", *panels, class_="panels"),
        element("p", "Hatched: prices that are not observed in that season.", class_="soft"),
    ]
