"""What stands behind the tables: times, failures, versions, and what is missing from the plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from bgmiv.bench.plan import Plan
from bgmiv.bench.row import Row
from bgmiv.report.naming import Column, Setting, column_labels, column_order, design_order, ranges
from bgmiv.report.paper_values import paper_values
from bgmiv.report.results import Results, cell_marks, mixture, spread_of
from bgmiv.report.table import Number, Table, Value

__all__ = ["failure_table", "missing_runs", "missing_table", "mixture_table", "runtime_table", "version_table"]


def runtime_table(results: Results) -> Table | None:
    """Wall and processor seconds of one fit for each design, size, method and preset, over all confounding levels."""
    paper = paper_values().runtime
    groups: dict[tuple[str, int, Column], list[Row]] = {}
    for row in results.rows:
        if row.status == "ok":
            groups.setdefault((row.design, row.n, Column(row.method, row.preset)), []).append(row)
    rows: list[tuple[Value, ...]] = []
    marks = {}
    order = sorted(groups, key=lambda group: (design_order(group[0]), group[1], column_order(group[2])))
    for design, n, column in order:
        fits = groups[design, n, column]
        if found := cell_marks(fits):
            marks[len(rows), 2] = found
        wall, cpu = [row.seconds for row in fits], [row.cpu_seconds for row in fits]
        minutes = paper.get((design, n, column.method))
        rows.append(
            (
                design,
                n,
                f"{column_labels([column])[column]} ({column.preset})",
                len(fits),
                *(spread_of(wall), Number(min(wall), 1), Number(max(wall), 1)),
                *(spread_of(cpu), Number(min(cpu), 1), Number(max(cpu), 1)),
                _compilation(fits),
                _batches(fits),
                *(
                    (Number(minutes.mean, 2), Number(minutes.least, 2), Number(minutes.most, 2))
                    if minutes
                    else [None] * 3
                ),
            )
        )
    if not rows:
        return None
    return Table(
        name="runtime",
        title="Runtime of one fit with its grid prediction: seconds, beside the paper's minutes",
        header=(
            *("design", "n", "method", "fits", "wall s", "wall min", "wall max", "CPU s", "CPU min", "CPU max"),
            *("compilation", "trained together", "paper minutes", "paper min", "paper max"),
        ),
        rows=tuple(rows),
        marks=marks,
        notes=(
            "Mean ± standard deviation of times measured around each fit that did not fail, over all confounding "
            "levels and seeds. Compilation counts, unless compiled programs may have come from the disk cache. Where "
            "repeats were trained together a fit's time is its share.",
            "The paper's minutes are for one repeat per worker, inferred from the times of files; its workers were "
            "cluster nodes, in part with GPUs.",
        ),
        digits=1,
        grouped=True,
    )


def failure_table(results: Results) -> Table | None:
    """Cells with failed fits: their share and the error texts; None if no fit failed."""
    rows = []
    for setting, part in results.cells.items():
        for column, fits in part.items():
            errors = Counter(row.error or "no error text" for row in fits if row.status != "ok")
            if errors:
                failed = errors.total()
                texts = "; ".join(f"{text} ({count})" if count > 1 else text for text, count in sorted(errors.items()))
                seeds = ranges([row.seed for row in fits if row.status != "ok"])
                rows.append(
                    (
                        *(
                            setting.design,
                            f"{setting.rho:g}",
                            setting.n,
                            column_labels([column])[column],
                            column.preset,
                        ),
                        *(len(fits), failed, Number(100 * failed / len(fits), 1), seeds, texts),
                    )
                )
    if not rows:
        return None
    header = ("design", "rho", "n", "method", "preset", "fits", "failed", "% failed", "seeds", "errors")
    return Table(name="failures", title="Failed fits by cell", header=header, rows=tuple(rows), grouped=True)


def version_table(results: Results) -> Table:
    """Which rows come from which version of the code, and under which libraries they ran."""
    used, older = (Counter(map(_version, rows)) for rows in (results.rows, results.superseded))
    rows = [
        (design, column_labels([column])[column], column.preset, code, config, used[key], older[key], libraries)
        for key in sorted(used | older, key=lambda key: (design_order(key[0]), column_order(key[1]), *key[2:]))
        for design, column, code, config, libraries in [key]
    ]
    return Table(
        name="versions",
        title="Versions of code, settings and libraries behind the rows",
        header=("design", "method", "preset", "code", "settings", "fits", "older rows", "libraries"),
        rows=tuple(rows),
        notes=(
            "Each method has its own version of the code that decides its numbers. Older rows: a newer row of the same "
            "run replaces them, and no table uses them.",
        ),
        grouped=True,
    )


def mixture_table(results: Results) -> Table | None:
    """Every cell whose rows come from more than one version, and of what; None if there is none."""
    rows = [
        (
            setting.design,
            f"{setting.rho:g}",
            setting.n,
            column_labels([column])[column],
            column.preset,
            "; ".join(words),
        )
        for setting, part in results.cells.items()
        for column, fits in part.items()
        if (words := mixture(fits))
    ]
    if not rows:
        return None
    header = ("design", "rho", "n", "method", "preset", "what is mixed")
    return Table(name="mixed-versions", title="Cells of mixed versions", header=header, rows=tuple(rows), grouped=True)


def missing_runs(results: Results, plans: Iterable[Plan]) -> int:
    """How many different runs of the plans have no row, or only a failed one."""
    planned = {
        (Setting(s.design, s.rho, s.n), Column(s.method, s.preset), s.seed) for plan in plans for s in plan.specs
    }
    return sum(seed not in _done(results, setting, column) for setting, column, seed in planned)


def missing_table(results: Results, plans: Sequence[Plan]) -> Table | None:
    """Cells that have fewer good fits than a plan asks for; None if every plan is complete."""
    rows = []
    for plan in plans:
        cells: dict[tuple[Setting, Column], list[int]] = {}
        for spec in plan.specs:
            cell = (Setting(spec.design, spec.rho, spec.n), Column(spec.method, spec.preset))
            cells.setdefault(cell, []).append(spec.seed)
        order = sorted(cells, key=lambda cell: (design_order(cell[0].design), cell[0][1:], column_order(cell[1])))
        for setting, column in order:
            seeds = cells[setting, column]
            fits = {row.seed: row.status for row in results.fits(setting, column) if row.seed in seeds}
            failed = [seed for seed, status in fits.items() if status != "ok"]
            absent = [seed for seed in seeds if seed not in fits]
            if failed or absent:
                label = column_labels([column])[column]
                done = len(set(seeds)) - len(failed) - len(absent)
                rows.append(
                    (
                        *(plan.name, setting.design, f"{setting.rho:g}", setting.n, label, column.preset),
                        *(len(set(seeds)), done, len(failed), len(absent), ranges(absent) or None),
                    )
                )
    if not rows:
        return None
    return Table(
        name="missing",
        title="Cells with fewer fits than planned",
        header=(
            *("plan", "design", "rho", "n", "method", "preset"),
            *("planned", "done", "failed", "missing", "missing seeds"),
        ),
        rows=tuple(rows),
        grouped=True,
    )


def _version(row: Row) -> tuple[str, Column, str, str, str]:
    libraries = ", ".join(f"{name} {number}" for name, number in sorted(row.versions.items()))
    return (row.design, Column(row.method, row.preset), row.code, row.config, libraries)


def _done(results: Results, setting: Setting, column: Column) -> set[int]:
    return {row.seed for row in results.fits(setting, column) if row.status == "ok"}


def _compilation(fits: Sequence[Row]) -> str:
    cached = sum(row.compilation_cache for row in fits)
    if cached == 0:
        return "included"
    return "may be left out" if cached == len(fits) else f"may be left out in {cached} of {len(fits)}"


def _batches(fits: Sequence[Row]) -> str:
    sizes = sorted({row.batched for row in fits})
    return "one by one" if sizes == [1] else " or ".join(str(size) for size in sizes)
