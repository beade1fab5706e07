"""The paper's tables from measured rows: accuracy, the warm start's ablation, error inside and outside the support."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bgmiv.bench.summary import Spread
from bgmiv.report.naming import (
    OURS,
    Column,
    ablation_of,
    column_labels,
    design_title,
    is_ablation,
    is_twin,
    unit,
    unit_text,
)
from bgmiv.report.paper_values import paper_values
from bgmiv.report.results import Results, cell_marks, spread_of
from bgmiv.report.table import Mark, Table, Value, digits_for

__all__ = [
    "ablation_table",
    "accuracy_columns",
    "accuracy_table",
    "design_constants",
    "lowest",
    "paper_accuracy_table",
    "repeats_note",
    "support_table",
]


def accuracy_columns(results: Results, design: str) -> tuple[Column, ...]:
    """The columns of the accuracy table: methods that use the instrument, with their warm start."""
    return results.columns(design, lambda column: not is_twin(column.method) and not is_ablation(column.preset))


def accuracy_table(results: Results, design: str) -> Table | None:
    """Mean and deviation of the structural error for each confounding level and size; None if there is nothing.

    The lowest mean of each row is bold.
    """
    columns = accuracy_columns(results, design)
    settings = results.settings(design, columns)
    if not settings:
        return None
    spreads = [
        [spread_of(results.errors(setting, column).values(), unit(design)) for column in columns]
        for setting in settings
    ]
    labels = column_labels(columns)
    marks = {
        (i, j + 2): found
        for i, setting in enumerate(settings)
        for j, column in enumerate(columns)
        if (found := cell_marks(results.fits(setting, column)))
    }
    every = [spread for line in spreads for spread in line]
    usual, note = repeats_note(every)
    empty = {
        (i, j) for i, setting in enumerate(settings) for j, c in enumerate(columns) if not results.fits(setting, c)
    }
    return Table(
        name=f"accuracy-{design}",
        title=f"{design_title(design)}: {unit_text(design)}",
        header=("rho", "n", *labels.values()),
        rows=tuple(
            (f"{setting.rho:g}", setting.n, *(None if (i, j) in empty else spread for j, spread in enumerate(line)))
            for i, (setting, line) in enumerate(zip(settings, spreads, strict=True))
        ),
        bold=frozenset((i, j + 2) for i, line in enumerate(spreads) for j in lowest(line)),
        marks=marks,
        notes=(f"{note} The lowest mean of each row is bold. {_presets(columns)}",),
        constants=design_constants(design),
        digits=digits_for(every),
        usual=usual,
        grouped=True,
    )


def paper_accuracy_table(results: Results, design: str) -> Table | None:
    """The paper's own values for the rows of the accuracy table; None where the paper gives no numbers."""
    paper = paper_values()
    settings = [s for s in results.settings(design, accuracy_columns(results, design)) if s in paper.accuracy]
    if not settings:
        return None
    methods = tuple(paper.accuracy[settings[0]])
    spreads = [list(paper.accuracy[setting].values()) for setting in settings]
    source = paper.sources.get(("accuracy", design)) or paper.sources["ablation", design]
    return Table(
        name=f"accuracy-{design}-paper",
        title=f"{design_title(design)}, the paper's values: {unit_text(design)}",
        header=("rho", "n", *column_labels([Column(method, "") for method in methods]).values()),
        rows=tuple((f"{s.rho:g}", s.n, *line) for s, line in zip(settings, spreads, strict=True)),
        bold=frozenset((i, j + 2) for i, line in enumerate(spreads) for j in lowest(line)),
        notes=(
            f"As printed in the paper (table {source}), mean ± standard deviation over {spreads[0][0].values} repeats.",
        ),
        constants=design_constants(design),
        grouped=True,
    )


def ablation_table(results: Results, design: str) -> Table | None:
    """BGM-IV with its warm start and without it, beside the paper's ablation; None if nothing ran without it."""
    paper = paper_values().ablation
    presets = [column.preset for column in results.columns(design, lambda c: c.method == OURS)]
    rows: list[tuple[Value, ...]] = []
    marks: dict[tuple[int, int], tuple[Mark, ...]] = {}
    bold = set()
    for preset in (name for name in presets if not is_ablation(name) and ablation_of(name) in presets):
        pair = (Column(OURS, preset), Column(OURS, ablation_of(preset)))
        for setting in results.settings(design, pair[1:]):
            printed = paper.get(setting)
            spreads = [spread_of(results.errors(setting, column).values(), unit(design)) for column in pair]
            fits = [results.fits(setting, column) for column in pair]
            for j in range(2):
                if found := cell_marks(fits[j]):
                    marks[len(rows), 3 + j] = found
            bold |= {(len(rows), 3 + j) for j in lowest(spreads)}
            rows.append(
                (
                    preset,
                    f"{setting.rho:g}",
                    setting.n,
                    *(spread if found else None for spread, found in zip(spreads, fits, strict=True)),
                    *((printed.full, printed.without) if printed else (None, None)),
                )
            )
    if not rows:
        return None
    measured = [value for row in rows for value in row[3:5] if isinstance(value, Spread)]
    usual, note = repeats_note(measured)
    return Table(
        name=f"ablation-{design}",
        title=f"{design_title(design)}, the warm start's ablation: {unit_text(design)}",
        header=("preset", "rho", "n", "BGM-IV", "BGM-IV (EGM=0)", "paper: BGM-IV", "paper: BGM-IV (EGM=0)"),
        rows=tuple(rows),
        bold=frozenset(bold),
        marks=marks,
        notes=(f"{note} EGM=0: the same settings, with no step of the warm start.",),
        constants=design_constants(design),
        digits=digits_for(measured),
        column_digits={5: 2, 6: 2},
        usual=usual,
        grouped=True,
    )


def support_table(results: Results, design: str) -> Table:
    """Error everywhere, inside and outside the training support, a row for each setting and method, twins too."""
    columns = results.columns(design)
    labels = column_labels(columns)
    lines: list[tuple[Value, ...]] = []
    marks = {}
    for setting in results.settings(design):
        for column in (c for c in columns if results.fits(setting, c)):
            fits = results.fits(setting, column)
            good = [row for row in fits if row.status == "ok"]
            if found := cell_marks(fits):
                marks[len(lines), 3] = found
            parts = (
                [row.structural_mse for row in good],
                [row.structural_mse_in_support for row in good],
                [row.structural_mse_outside for row in good],
            )
            spreads = [spread_of(part, unit(design)) for part in parts]
            lines.append((f"{setting.rho:g}", setting.n, labels[column], *spreads))
    every = [spread for line in lines for spread in line[3:] if isinstance(spread, Spread)]
    usual, note = repeats_note(every)
    return Table(
        name=f"support-{design}",
        title=f"{design_title(design)}, inside and outside the training support: {unit_text(design)}",
        header=("rho", "n", "method", "everywhere", "inside", "outside"),
        rows=tuple(lines),
        marks=marks,
        notes=(
            f"{note} Inside: points of the evaluation grid such as training data show; outside, every method "
            "extrapolates.",
        ),
        constants=design_constants(design),
        digits=digits_for(every),
        usual=usual,
        grouped=True,
    )


def repeats_note(spreads: Sequence[Spread]) -> tuple[int | None, str]:
    """The usual number of repeats, and the sentence that says what the cells show.

    >>> repeats_note([Spread(1.0, 0.1, 20), Spread(2.0, 0.1, 20)])
    (20, 'Mean ± standard deviation over 20 repeats.')
    >>> repeats_note([Spread(1.0, 0.1, 20), Spread(2.0, 0.1, 20), Spread(3.0, 0.1, 18)])
    (20, 'Mean ± standard deviation over 20 repeats, or over as many as stand in brackets.')
    """
    numbers = Counter(spread.values for spread in spreads if spread.values)
    if not numbers:
        return None, "There is no fit to average."
    usual = max(numbers, key=lambda number: (numbers[number], number))
    said = f"Mean ± standard deviation over {usual} repeats" if usual > 1 else "One repeat, so no standard deviation"
    return usual, said + (", or over as many as stand in brackets." if len(numbers) > 1 else ".")


def lowest(spreads: Sequence[Spread]) -> tuple[int, ...]:
    """Positions of the lowest mean; none if fewer than two have one.

    >>> lowest([Spread(2.0, 0.1, 5), Spread(1.0, 0.1, 5), Spread.of([])])
    (1,)
    """
    means = [spread.mean for spread in spreads if spread.values]
    if len(means) < 2:
        return ()
    return tuple(j for j, spread in enumerate(spreads) if spread.values and spread.mean == min(means))


def design_constants(design: str) -> tuple[tuple[str, str], ...]:
    """What a file of numbers must say by itself: the design and the unit of its errors.

    >>> design_constants("demand")
    (('design', 'demand'), ('MSE divided by', '10000'))
    """
    return (("design", design), ("MSE divided by", f"{unit(design):g}"))


def _presets(columns: Sequence[Column]) -> str:
    names = {column.preset for column in columns}
    if len(names) == 1:
        return f"Preset: {names.pop()}."
    labels = column_labels(columns)
    single: dict[str, list[str]] = {}
    for column, label in labels.items():
        if not label.endswith(f"({column.preset})"):
            single.setdefault(column.preset, []).append(label)
    return " ".join(f"Preset of {', '.join(methods)}: {preset}." for preset, methods in single.items())
