"""The tables and figures of the paper: what each shows, and how."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache

from bgmiv.bench.plan import PLANS, Plan, Sweep, load_plan, ready_plans

__all__ = ["Exhibit", "paper_exhibits"]


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper.

    Args:
        name: its number in the paper, as in `table-1`; its plan is `paper/table-1`.
        label: its label in the paper's source.
        kind: how it is shown (`report/paper.py`).
        title: what it shows.
        design: the design it is about; None for tables of settings and resources.
        plan: the fits it needs; some exhibits share them, and tables of settings need none.
    """

    name: str
    label: str
    kind: str
    title: str
    design: str | None
    plan: Plan

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """The sweeps of its plan."""
        return self.plan.sweeps


@cache
def paper_exhibits() -> tuple[Exhibit, ...]:
    """Every table and figure of the paper's results, settings and resources, in the paper's order.

    Example:
        >>> [exhibit.name for exhibit in paper_exhibits()][:3]
        ['figure-2', 'table-1', 'figure-3']
    """
    content = tomllib.loads((PLANS / "paper.toml").read_text(encoding="utf-8"))
    exhibits = []
    for name, entry in content["exhibit"].items():
        plan = Plan(f"paper/{name}", f"{name.replace('-', ' ').capitalize()} of the paper: {entry['title']}", ())
        if plan.name in ready_plans():
            plan = load_plan(plan.name)
        exhibits.append(Exhibit(name, entry["label"], entry["kind"], entry["title"], entry.get("design"), plan))
    return tuple(exhibits)
