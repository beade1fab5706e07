"""The bench's report: rows and plans in, sections out; then RESULTS.md, one page, and a file a table or figure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from bgmiv._io import safe_name
from bgmiv.bench import Plan, Row
from bgmiv.bench.show import OURS, design_title, method_order, read_rows
from bgmiv.diagnostics.verdict import judge
from bgmiv.errors import ConfigError
from bgmiv.fitted import FitEvidence
from bgmiv.registry import method_label
from report import comparisons, figures, paper, tables
from report.exhibits import paper_exhibits
from report.figures import Picture
from report.frame import cell_marks, instrumental, libraries, mixed_versions, ranges
from report.paper import Part
from report.tables import DASH, Table, markdown_text, spread_text

__all__ = ["Report", "Section", "bench_report", "paper_sections", "report_files", "to_text", "verdict_table"]

_READING = (
    "The structural error is the mean squared distance from the true structural function over the design's evaluation "
    "grid, on the outcome's scale; lower is better. Every method sees the same samples at the same seeds."
)
_BAD_RATIO = 3.0
"""A fit is called bad here if its structural error is more than this many times its cell's median."""

_CELL = ["design", "rho", "n", "method", "preset"]
_WORDS = ("design", "rho", "method", "preset")


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it; text parts are paragraphs."""

    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Report:
    """Everything a store has to say, before it is files."""

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


def bench_report(rows: Iterable[Row], plans: Sequence[Plan] = (), baselines: Collection[str] = ()) -> Report:
    """Put everything together that these rows allow; what they do not have is left out and named as missing.

    Raises:
        ConfigError: there are no rows, or a baseline has none.
    """
    every = read_rows(rows)
    if every.empty:
        raise ConfigError("there are no rows to report; run the bench first")
    frame = every[every["current"]]
    present = sorted(set(frame["method"]) - {OURS})
    for name in baselines:
        if name not in present:
            raise ConfigError(f"no row of method {name!r} to compare with; methods with rows: {', '.join(present)}")
    mixed, judged = _mixture_table(frame), verdict_table(frame)
    sections = [
        Section("Summary", (_summary(frame, plans, mixed), _READING)),
        *paper_sections(frame, plans),
        *_overview(frame),
        *(_design_section(frame, design, baselines) for design in frame["design"].unique()),
        Section("Runtime", (_runtime_table(frame) or "Every fit failed, so there are no times.",)),
        Section("Failed fits", (_failure_table(frame) or "No fit failed.",)),
        *([Section("Verdicts", (judged,))] if judged else []),
        Section("Versions", (mixed or "No cell mixes versions of algorithms or libraries.", _version_table(every))),
        Section("Missing runs", _missing(frame, plans)),
    ]
    return Report("Benchmarks of BGM-IV and its peers", tuple(sections))


def report_files(report: Report) -> dict[str, bytes]:
    """The report's files by name: the page, the Markdown text, and each table and figure by itself."""
    pictures = {picture.name: figures.figure_bytes(picture.figure) for picture in report.pictures}
    files = {"index.html": _html(report, pictures).encode(), "report.md": _markdown(report).encode()}
    for table in report.tables:
        for end, render in (("md", tables.to_markdown), ("csv", tables.to_csv), ("tex", tables.to_latex)):
            files[f"tables/{safe_name(table.name)}.{end}"] = render(table).encode()
    for picture in report.pictures:
        files[f"figures/{safe_name(picture.name)}.png"] = pictures[picture.name]
        files[f"figures/{safe_name(picture.name)}.pdf"] = figures.figure_bytes(picture.figure, "pdf")
    return files


def paper_sections(frame: pd.DataFrame, plans: Sequence[Plan]) -> list[Section]:
    """The paper's tables and figures of which there are rows, or whose plans are asked for."""
    asked, designs = {plan.name for plan in plans}, set(frame["design"])
    wanted = [one for one in paper_exhibits() if one.plan.name in asked or one.design in designs or not one.sweeps]
    if not any(exhibit.sweeps for exhibit in wanted):
        return []
    found = (Section(exhibit.plan.title, paper.exhibit_parts(frame, exhibit)) for exhibit in wanted)
    return [Section("The paper", (paper.filled_table(frame),)), *found]


def _summary(frame: pd.DataFrame, plans: Sequence[Plan], mixed: Table | None) -> str:
    counts = {"fit": len(frame), "method": frame["method"].nunique(), "design": frame["design"].nunique()}
    fits, methods, designs = (f"{number} {word}{'s' if number != 1 else ''}" for word, number in counts.items())
    said = f"{fits} of {methods} on {designs}; {int((~frame['ok']).sum()) or 'none'} failed."
    if not plans:
        said += " No plan is known, so nothing can be said about missing runs."
    elif left := int((~(done := _planned(frame, plans)["done"])).sum()):
        said += f" This report is partial: {left} of {len(done)} planned fits are missing or failed (see Missing runs)."
    else:
        said += " Every planned fit is there."
    if mixed:
        said += f" Cells that mix versions of libraries: {len(mixed.text)}; tables mark them with † (see Versions)."
    return said


def _overview(frame: pd.DataFrame) -> list[Section]:
    """All cells and methods in one figure and one table, and average effects; nothing with one method."""
    table, averages = comparisons.multiples_table(frame), comparisons.functional_table(frame)
    parts: list[Part] = []
    if table is not None:
        picture = Picture(
            "multiples",
            figures.heat_map(comparisons.multiples(frame)),
            "Heat map of every method's error in every cell, as a multiple of the best method's",
            "Mean error over repeats, divided by the lowest mean of the row; default presets.",
        )
        parts += [picture, table]
    parts += [averages] if averages is not None else []
    return [Section("All designs at a glance", tuple(parts))] if parts else []


def _design_section(frame: pd.DataFrame, design: str, baselines: Collection[str]) -> Section:
    shown = instrumental(frame, design)
    parts: list[Part | None] = [
        comparisons.accuracy_table(frame, design),
        comparisons.printed_table(frame, design),
        *_accuracy_pictures(shown, design),
    ]
    ours = shown[shown["method"] == OURS]
    presets = sorted(ours["preset"].unique(), key=lambda preset: method_order(OURS, preset))
    parts += [comparisons.paired_table(frame, design, preset, baselines) for preset in presets]
    parts += [comparisons.instrument_table(frame, design), comparisons.support_table(frame, design)]
    return Section(design_title(design), tuple(part for part in parts if part))


def _accuracy_pictures(own: pd.DataFrame, design: str) -> list[Picture]:
    series = figures.make_series(own)
    if not series:
        return []
    stars = " Open stars: the paper's means." if any(len(one.paper) for one in series) else ""
    boxes = Picture(
        f"boxes-{design}",
        figures.error_boxes(design, series),
        f"Box plots of the structural error of each method on {design_title(design)}",
        "Structural error over repeats: the middle half in the box, its median black, whiskers up to 1.5 times its "
        f"width. Fewer than five repeats are points.{stars}",
    )
    if own.loc[own["ok"], "n"].nunique() < 2:
        return [boxes]
    lines = Picture(
        f"lines-{design}",
        figures.error_lines(design, series),
        f"Mean structural error of each method against the sample size on {design_title(design)}",
        "Mean structural error over repeats. Bands reach one standard deviation up and down, at the lower end not "
        f"below the best repeat.{stars}",
    )
    return [lines, boxes]


def _runtime_table(frame: pd.DataFrame) -> Table | None:
    """Wall and CPU seconds of one fit for each design, size, method and preset, over all confounding levels."""
    good = frame[frame["ok"]]
    if good.empty:
        return None
    lines = []
    designs = good["design"].unique().tolist()
    groups = good.groupby(["design", "n", "method", "preset"])
    for (design, n, method, preset), fits in sorted(
        groups, key=lambda item: (designs.index(item[0][0]), item[0][1], method_order(*item[0][2:]))
    ):
        line: dict[str, Any] = {"design": design, "n": n, "method": method, "preset": preset, "repeats": len(fits)}
        for name, column in (("wall", "seconds"), ("CPU", "cpu_seconds")):
            for end, value in fits[column].agg(["mean", "std", "min", "max"]).items():
                line[f"{name} {'sd' if end == 'std' else end}"] = value
        cached = int(fits["compilation_cache"].sum())
        share = "" if cached == len(fits) else f" in {cached} of {len(fits)}"
        line["compilation"] = f"may be left out{share}" if cached else "included"
        lines.append({**line, "marks": cell_marks(fits)})
    found = pd.DataFrame(lines)
    text = pd.DataFrame({"design": found["design"], "n": found["n"].map(str)})
    text["method"] = found["method"].map(method_label) + " (" + found["preset"] + ")" + found["marks"]
    text["fits"] = found["repeats"].map(str)
    for name in ("wall", "CPU"):
        text[f"{name} s"] = spread_text(found, 1, prefix=f"{name} ")
        text[[f"{name} min", f"{name} max"]] = found[[f"{name} min", f"{name} max"]].map("{:.1f}".format)
    text["compilation"] = found["compilation"]
    notes = (
        "Mean ± standard deviation of times measured around each fit that did not fail, over all confounding "
        "levels and seeds. Compilation counts, unless compiled programs may have come from the disk cache.",
    )
    title = "Runtime of one fit with its grid prediction: seconds"
    return Table("runtime", title, text, found, ("design", "method", "compilation"), notes=notes)


def _failure_table(frame: pd.DataFrame) -> Table | None:
    """Cells with failed fits: their share and the error texts; None if no fit failed."""

    def count(fits: pd.DataFrame) -> dict[str, Any] | None:
        failed = fits[~fits["ok"]]
        if failed.empty:
            return None
        counts = failed["error"].replace("", "no error text").value_counts().sort_index()
        errors = "; ".join(f"{text} ({number})" if number > 1 else text for text, number in counts.items())
        share = {"fits": len(fits), "failed": len(failed), "% failed": f"{100 * len(failed) / len(fits):.1f}"}
        return {**share, "seeds": ranges(failed["seed"].to_list()), "errors": errors}

    return _cell_list(frame, "failures", "Failed fits by cell", count, ("seeds", "errors"))


def verdict_table(frame: pd.DataFrame) -> Table | None:
    """Verdicts by design, and how they agree with the structural error; None if no row has any."""
    judged = frame.assign(verdict=frame["evidence"].map(_verdict)).dropna(subset=["verdict", "mse"])
    if judged.empty:
        return None
    medians = judged.groupby(_CELL)["mse"].transform("median")
    judged = judged.assign(
        bad=judged["mse"] > _BAD_RATIO * medians, flagged=judged["verdict"].isin(("doubtful", "failed"))
    )
    lines = [
        {
            "design": design,
            "method": method_label(method),
            "preset": preset,
            "fits": len(fits),
            **{word: int((fits["verdict"] == word).sum()) for word in ("good", "note", "doubtful", "failed")},
            f"error above {_BAD_RATIO:g} medians": int(fits["bad"].sum()),
            "of these flagged": int((fits["bad"] & fits["flagged"]).sum()),
            "others flagged": int((~fits["bad"] & fits["flagged"]).sum()),
        }
        for (design, method, preset), fits in judged.groupby(["design", "method", "preset"], sort=False)
    ]
    note = (
        "A verdict needs no truth: it rests on rows that training left out. Beside it stands how many fits have a "
        f"structural error above {_BAD_RATIO:g} times the median of their cell, and how many of these were flagged "
        "(doubtful or failed). A note is a fit that no check speaks against, of which not every check could be made."
    )
    title = "Verdicts that fits passed on themselves from held-out rows"
    return _list("verdicts", title, lines, ("design", "method", "preset"), note)


def _verdict(evidence: Mapping[str, Any]) -> str | None:
    """The verdict under today's thresholds: good, note, doubtful or failed; None without held-out rows."""
    if not evidence.get("n_held_out"):
        return None
    return judge(FitEvidence(**{k: v for k, v in evidence.items() if k in FitEvidence.__dataclass_fields__})).severity


def _mixture_table(frame: pd.DataFrame) -> Table | None:
    """Every cell whose rows come from more than one version of a library, and of which; None if there is none."""

    def name(fits: pd.DataFrame) -> dict[str, Any] | None:
        found = mixed_versions(fits)
        return {"what is mixed": "; ".join(found)} if found else None

    return _cell_list(frame, "mixed-versions", "Cells of mixed versions of libraries", name, ("what is mixed",))


def _version_table(every: pd.DataFrame) -> Table:
    """Which libraries the rows of each method ran under, how many rows are in use, and how many are older."""
    groups = every.assign(libraries=libraries(every)).groupby(["method", "preset", "libraries"])["current"]
    lines = [
        {
            "method": method_label(method),
            "preset": preset,
            "fits": int(used.sum()),
            "older rows": int((~used).sum()),
            "libraries": under,
        }
        for (method, preset, under), used in sorted(groups, key=lambda item: method_order(*item[0][:2]))
    ]
    note = "Older rows: of earlier versions of the method; their cells have newer ones, and no table uses them."
    title = "Versions of the libraries behind the rows"
    return _list("versions", title, lines, ("method", "preset", "libraries"), note)


def _missing_table(frame: pd.DataFrame, plans: Iterable[Plan]) -> Table | None:
    """Cells that have fewer good fits than a plan asks for; None if every plan is complete."""
    lines = []
    for plan in plans:
        for key, cell in _planned(frame, [plan]).groupby(_CELL, sort=False):
            absent = cell.loc[cell["ok"].isna(), "seed"].to_list()
            done = int(cell["done"].sum())
            if done < len(cell):
                counts = {"planned": len(cell), "done": done, "failed": len(cell) - done - len(absent)}
                missing = {"missing": len(absent), "missing seeds": ranges(absent) or DASH}
                lines.append({"plan": plan.name, **_cell_names(key), **counts, **missing})
    if not lines:
        return None
    return _list("missing", "Cells with fewer fits than planned", lines, ("plan", *_WORDS, "missing seeds"))


def _planned(frame: pd.DataFrame, plans: Iterable[Plan]) -> pd.DataFrame:
    """The different runs of some plans; `ok` is missing for those without a row."""
    runs = pd.DataFrame([asdict(spec) for plan in plans for spec in plan.specs]).drop_duplicates()
    runs = runs.merge(frame[[*runs.columns, "ok"]], how="left")
    return runs.assign(done=runs["ok"].eq(True))


def _missing(frame: pd.DataFrame, plans: Sequence[Plan]) -> tuple[Part, ...]:
    if not plans:
        return ("No plan is stored with these rows and none was given.",)
    names = ", ".join(f"{plan.name} ({len(plan.specs)} fits)" for plan in plans)
    return (f"Plans: {names}.", _missing_table(frame, plans) or "Every planned fit is there.")


def _cell_list(
    frame: pd.DataFrame,
    name: str,
    title: str,
    tell: Callable[[pd.DataFrame], dict[str, Any] | None],
    words: tuple[str, ...],
    note: str = "",
) -> Table | None:
    """A line for each cell of which there is something to tell; None if there is none."""
    cells = frame.groupby(_CELL, sort=False)
    lines = [{**_cell_names(key), **told} for key, fits in cells if (told := tell(fits)) is not None]
    return _list(name, title, lines, (*_WORDS, *words), note) if lines else None


def _cell_names(key: tuple[str, float, int, str, str]) -> dict[str, Any]:
    design, rho, n, method, preset = key
    return {"design": design, "rho": f"{rho:g}", "n": n, "method": method_label(method), "preset": preset}


def _list(name: str, title: str, lines: Sequence[dict[str, Any]], words: tuple[str, ...], note: str = "") -> Table:
    numbers = pd.DataFrame(list(lines))
    return Table(name, title, numbers.astype(str), numbers, words, notes=(note,) if note else ())


def _html(report: Report, pictures: dict[str, bytes]) -> str:
    parts = [tables.contents((safe_name(section.title), section.title) for section in report.sections)]
    for section in report.sections:
        parts.append(tables.heading(section.title, safe_name(section.title)))
        for part in section.parts:
            if isinstance(part, Table):
                parts.append(tables.to_html(part))
            elif isinstance(part, Picture):
                # 85 pixels an inch: figures of all widths have letters of one size, a little smaller than the text.
                width = round(85 * part.figure.get_figwidth())
                parts.append(tables.image(pictures[part.name], part.alternative, part.caption, width))
            else:
                parts.append(tables.paragraph(part))
    return tables.page(report.title, parts)


def _markdown(report: Report) -> str:
    return f"# {report.title}\n\n" + to_text(report.sections)


def to_text(sections: Iterable[Section], folder: str = "figures") -> str:
    """Sections as Markdown, with their pictures in that folder."""
    blocks = []
    for section in sections:
        blocks.append(f"## {markdown_text(section.title)}")
        for part in section.parts:
            if isinstance(part, Table):
                blocks.append(tables.to_markdown(part).rstrip())
            elif isinstance(part, Picture):
                name = f"{folder}/{safe_name(part.name)}.png"
                blocks.append(f"![{markdown_text(part.alternative)}]({name})\n\n{markdown_text(part.caption)}")
            else:
                blocks.append(markdown_text(part))
    return "\n\n".join(blocks) + "\n"
