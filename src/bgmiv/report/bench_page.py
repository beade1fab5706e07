"""The bench's report: rows and plans in, sections out; then one page, and a file for each table and figure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from matplotlib.figure import Figure

from bgmiv.bench.plan import Plan
from bgmiv.bench.row import Row
from bgmiv.errors import ConfigError
from bgmiv.report import audits, html
from bgmiv.report.bench_figures import error_boxes, error_lines, series_of
from bgmiv.report.figures import figure_pdf, figure_png
from bgmiv.report.naming import OURS, Column, ablation_of, design_title, is_ablation
from bgmiv.report.paired import compare_with_strongest, paired_table, paper_paired_table
from bgmiv.report.render import markdown_text, to_csv, to_html, to_latex, to_markdown
from bgmiv.report.results import Results
from bgmiv.report.table import Table
from bgmiv.report.tables import (
    ablation_table,
    accuracy_columns,
    accuracy_table,
    paper_accuracy_table,
    support_table,
)
from bgmiv.report.twins import compare_with_twins, twin_table
from bgmiv.report.verdicts import verdict_table

__all__ = ["BenchReport", "Picture", "Section", "bench_report", "report_files"]

_READING = (
    "The structural error is the mean squared distance from the true structural function over the design's evaluation "
    "grid, on the outcome's scale; lower is better. Every method sees the same samples at the same seeds."
)


@dataclass(frozen=True)
class Picture:
    """A figure with the words that go with it."""

    name: str
    figure: Figure
    alternative: str
    caption: str


Part: TypeAlias = str | Table | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it; text parts are paragraphs."""

    title: str
    anchor: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class BenchReport:
    """Everything a store has to say, before it is a page."""

    title: str
    sections: tuple[Section, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        """Every table, in order."""
        return tuple(part for section in self.sections for part in section.parts if isinstance(part, Table))

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """Every figure, in order."""
        return tuple(part for section in self.sections for part in section.parts if isinstance(part, Picture))


def bench_report(rows: Iterable[Row], plans: Sequence[Plan] = (), baselines: Collection[str] = ()) -> BenchReport:
    """Put everything together that these rows allow; what they do not have is left out and named as missing.

    Args:
        rows: of a store, in any order.
        plans: against which runs are missing.
        baselines: methods that BGM-IV is compared with; all others that use their instrument if none is named.

    Raises:
        ConfigError: there are no rows, or a baseline has none.

    Example
    -------
    >>> bench_report([])
    Traceback (most recent call last):
    bgmiv.errors.ConfigError: there are no rows to report; run the bench first
    """
    results = Results.of(rows)
    if not results.rows:
        raise ConfigError("there are no rows to report; run the bench first")
    _check_baselines(results, baselines)
    sections = [
        _summary(results, plans),
        *(_design_section(results, design, baselines) for design in results.designs),
        _section("Runtime", audits.runtime_table(results), empty="Every fit failed, so there are no times."),
        _section("Failed fits", audits.failure_table(results), empty="No fit failed."),
        *([] if (judged := verdict_table(results)) is None else [_section("Verdicts", judged)]),
        _section("Versions", *_versions(results)),
        _section("Missing runs", *_missing(results, plans)),
    ]
    return BenchReport("Benchmarks of BGM-IV and its peers", tuple(sections))


def report_files(report: BenchReport) -> dict[str, bytes]:
    """The report's files by name: the page, the Markdown text, and each table and figure by itself."""
    pictures = {picture.name: figure_png(picture.figure) for picture in report.pictures}
    stems = _stems([*(table.name for table in report.tables), *pictures])
    files = {"index.html": _page(report, pictures).encode(), "report.md": _markdown(report, stems).encode()}
    for table in report.tables:
        for end, render in (("md", to_markdown), ("csv", to_csv), ("tex", to_latex)):
            files[f"tables/{stems[table.name]}.{end}"] = render(table).encode()
    for picture in report.pictures:
        files[f"figures/{stems[picture.name]}.png"] = pictures[picture.name]
        files[f"figures/{stems[picture.name]}.pdf"] = figure_pdf(picture.figure)
    return files


def _check_baselines(results: Results, baselines: Collection[str]) -> None:
    present = {row.method for row in results.rows} - {OURS}
    for name in baselines:
        if name not in present:
            raise ConfigError(
                f"no row of method {name!r} to compare with; methods with rows: {', '.join(sorted(present))}"
            )


def _section(title: str, *parts: Part | None, empty: str = "") -> Section:
    found = tuple(part for part in parts if part)
    return Section(title, title.lower().replace(" ", "-"), found or ((empty,) if empty else ()))


def _summary(results: Results, plans: Sequence[Plan]) -> Section:
    rows = results.rows
    failed = sum(row.status != "ok" for row in rows)
    methods = len({row.method for row in rows})
    said = f"{_count(len(rows), 'fit')} of {_count(methods, 'method')} on {_count(len(results.designs), 'design')}"
    said += f"; {failed} failed." if failed else "; none failed."
    missing = audits.missing_runs(results, plans)
    if not plans:
        said += " No plan is known, so nothing can be said about missing runs."
    elif missing:
        planned = len({spec for plan in plans for spec in plan.specs})
        said += (
            f" This report is partial: {missing} of {planned} planned fits are missing or failed (see Missing runs)."
        )
    else:
        said += " Every planned fit is there."
    mixed = audits.mixture_table(results)
    if mixed:
        said += f" Cells that mix versions: {len(mixed.rows)}; tables mark them with † (see Versions)."
    return Section("Summary", "summary", (said, _READING))


def _design_section(results: Results, design: str, baselines: Collection[str]) -> Section:
    parts: list[Part | None] = [
        accuracy_table(results, design),
        paper_accuracy_table(results, design),
        *_accuracy_pictures(results, design),
    ]
    presets = [column.preset for column in accuracy_columns(results, design) if column.method == OURS]
    for position, preset in enumerate(presets):
        comparisons = compare_with_strongest(results, design, preset, baselines)
        table = paired_table(results, comparisons)
        parts.append(table)
        if table and position == len(presets) - 1:
            parts.append(paper_paired_table(comparisons))
    parts += [
        twin_table(results, compare_with_twins(results, design)),
        ablation_table(results, design),
        _ablation_picture(results, design),
        support_table(results, design),
    ]
    return Section(design_title(design), f"design-{design}", tuple(part for part in parts if part))


def _accuracy_pictures(results: Results, design: str) -> list[Picture]:
    series = [one for one in series_of(results, design, accuracy_columns(results, design)) if any(one.values.values())]
    if not series:
        return []
    stars = " Open stars: the paper's means." if any(one.paper for one in series) else ""
    boxes = Picture(
        f"boxes-{design}",
        error_boxes(design, series),
        f"Box plots of the structural error of each method on {design_title(design)}",
        "Structural error over repeats: the middle half in the box, its median black, whiskers up to 1.5 times its "
        f"width. Fewer than five repeats are points.{stars}",
    )
    if len({setting.n for one in series for setting, values in one.values.items() if values}) < 2:
        return [boxes]
    lines = Picture(
        f"lines-{design}",
        error_lines(design, series),
        f"Mean structural error of each method against the sample size on {design_title(design)}",
        "Mean structural error over repeats. Bands reach one standard deviation up and down, at the lower end not "
        f"below the best repeat.{stars}",
    )
    return [lines, boxes]


def _ablation_picture(results: Results, design: str) -> Picture | None:
    columns = results.columns(design, lambda column: column.method == OURS)
    paired = [
        column
        for preset in (column.preset for column in columns if not is_ablation(column.preset))
        for column in (Column(OURS, preset), Column(OURS, ablation_of(preset)))
        if Column(OURS, ablation_of(preset)) in columns
    ]
    settings = set(results.settings(design, [column for column in paired if is_ablation(column.preset)]))
    kept = Results({setting: part for setting, part in results.cells.items() if setting in settings}, ())
    series = [one for one in series_of(kept, design, paired) if any(one.values.values())]
    if not series:
        return None
    return Picture(
        f"ablation-boxes-{design}",
        error_boxes(design, series, title="BGM-IV with its warm start and without it"),
        f"Box plots of the structural error of BGM-IV with and without its warm start on {design_title(design)}",
        "Structural error over repeats with the warm start and without it (no-egm).",
    )


def _versions(results: Results) -> list[Part | None]:
    mixed = audits.mixture_table(results)
    said = "No cell of the tables mixes versions of code, settings or libraries."
    return [mixed or said, audits.version_table(results)]


def _missing(results: Results, plans: Sequence[Plan]) -> list[Part]:
    if not plans:
        return ["No plan is stored with these rows and none was given."]
    names = ", ".join(f"{plan.name} ({len(plan.specs)} fits)" for plan in plans)
    return [f"Plans: {names}.", audits.missing_table(results, plans) or "Every planned fit is there."]


def _page(report: BenchReport, pictures: dict[str, bytes]) -> str:
    parts = [html.contents((section.anchor, section.title) for section in report.sections)]
    for section in report.sections:
        parts.append(html.heading(section.title, anchor=section.anchor))
        for part in section.parts:
            if isinstance(part, Table):
                parts.append(to_html(part))
            elif isinstance(part, Picture):
                parts.append(_image(part, pictures[part.name]))
            else:
                parts.append(html.paragraph(part))
    return html.page(report.title, parts)


def _image(picture: Picture, png: bytes) -> str:
    # 85 pixels an inch: figures of all widths have letters of one size, a little smaller than the text.
    return html.image(png, picture.alternative, picture.caption, width=round(85 * picture.figure.get_figwidth()))


def _markdown(report: BenchReport, stems: dict[str, str]) -> str:
    blocks = [f"# {report.title}"]
    for section in report.sections:
        blocks.append(f"## {markdown_text(section.title)}")
        for part in section.parts:
            if isinstance(part, Table):
                blocks.append(to_markdown(part).rstrip())
            elif isinstance(part, Picture):
                name = f"figures/{stems[part.name]}.png"
                blocks.append(f"![{markdown_text(part.alternative)}]({name})\n\n{markdown_text(part.caption)}")
            else:
                blocks.append(markdown_text(part))
    return "\n\n".join(blocks) + "\n"


def _stems(names: Sequence[str]) -> dict[str, str]:
    """A safe file name for each name: a design's name may come from a stranger's store."""
    stems: dict[str, str] = {}
    for name in names:
        stem = "".join(sign if sign.isascii() and (sign.isalnum() or sign == "-") else "-" for sign in name)[:80]
        taken = set(stems.values())
        number = 2
        free = stem
        while free in taken:
            free, number = f"{stem}-{number}", number + 1
        stems[name] = free
    return stems


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
