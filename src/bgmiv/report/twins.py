"""Each method against its twin that ignores the instrument, on matched seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bgmiv.bench.summary import Spread
from bgmiv.report.naming import Column, Setting, column_labels, design_title, is_twin, twin_of, unit, unit_text
from bgmiv.report.results import Results, pair_marks
from bgmiv.report.table import Table, Value, digits_for
from bgmiv.report.tables import design_constants, lowest

__all__ = ["TwinComparison", "compare_with_twins", "twin_table"]


@dataclass(frozen=True)
class TwinComparison:
    """A method and its twin that ignores the instrument, on the seeds that both have; errors on the raw scale."""

    setting: Setting
    column: Column
    seeds: tuple[int, ...]
    error: Spread
    twin_error: Spread
    wins: int

    @property
    def verdict(self) -> str:
        """In words, which of the two has the lower mean."""
        if not self.seeds:
            return "no matched seeds"
        if self.error.mean == self.twin_error.mean:
            return "equals its twin"
        return "loses to its twin" if self.error.mean > self.twin_error.mean else "beats its twin"


def compare_with_twins(results: Results, design: str) -> tuple[TwinComparison, ...]:
    """Every method that has a twin in the store, against it, at every setting that has rows of both."""
    found = []
    for setting in results.settings(design):
        for column in results.columns(design, lambda column: not is_twin(column.method)):
            twin = Column(twin_of(column.method), column.preset)
            if results.fits(setting, column) and results.fits(setting, twin):
                mine, other = results.errors(setting, column), results.errors(setting, twin)
                seeds = tuple(sorted(set(mine) & set(other)))
                found.append(
                    TwinComparison(
                        setting=setting,
                        column=column,
                        seeds=seeds,
                        error=Spread.of(mine[seed] for seed in seeds),
                        twin_error=Spread.of(other[seed] for seed in seeds),
                        wins=sum(mine[seed] < other[seed] for seed in seeds),
                    )
                )
    return tuple(found)


def twin_table(results: Results, comparisons: Sequence[TwinComparison]) -> Table | None:
    """The comparisons of one design with twins; None if there are none."""
    if not comparisons:
        return None
    design = comparisons[0].setting.design
    names = column_labels({one.column for one in comparisons})
    rows: list[tuple[Value, ...]] = []
    marks = {}
    bold = set()
    digits = digits_for([one.error.scaled(1 / unit(design)) for one in comparisons], least=3)
    for i, one in enumerate(comparisons):
        errors = [one.error.scaled(1 / unit(design)), one.twin_error.scaled(1 / unit(design))]
        twin = Column(twin_of(one.column.method), one.column.preset)
        if found := pair_marks(results, one.setting, one.column, twin):
            marks[i, 2] = found
        bold |= {(i, 4 + j) for j in lowest(errors)}
        rows.append(
            (
                f"{one.setting.rho:g}",
                one.setting.n,
                names[one.column],
                len(one.seeds),
                *errors,
                one.wins,
                one.verdict,
            )
        )
    return Table(
        name=f"twins-{design}",
        title=f"{design_title(design)}, each method and its twin that ignores the instrument: {unit_text(design)}",
        header=("rho", "n", "method", "seeds", "with instrument", "twin", "wins", "verdict"),
        rows=tuple(rows),
        bold=frozenset(bold),
        marks=marks,
        notes=(
            "Means ± standard deviations over the seeds that both have; the verdict is about the means. Wins: seeds on "
            "which the method with its instrument has the lower error.",
        ),
        constants=design_constants(design),
        digits=digits,
        grouped=True,
    )
