"""The numbers that the paper prints, to stand beside measured ones."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from bgmiv.bench.summary import Spread
from bgmiv.report.naming import OURS, Setting

__all__ = ["PaperAblation", "PaperPair", "PaperRuntime", "PaperValues", "paper_values"]


class PaperPair(NamedTuple):
    """A row of the paper's comparisons with the strongest baseline; errors / 1e4."""

    baseline: str
    baseline_error: Spread
    our_error: Spread
    difference: float
    wilcoxon_holm: float
    t_p: float


class PaperAblation(NamedTuple):
    """A row of the paper's ablation: errors / 1e4 with the warm start and without it."""

    full: Spread
    without: Spread


class PaperRuntime(NamedTuple):
    """A row of the paper's runtime audit, in minutes for one repeat."""

    mean: float
    median: float
    least: float
    most: float


@dataclass(frozen=True)
class PaperValues:
    """Every numeric table of the paper's results, as printed.

    Args:
        accuracy: mean and deviation of structural MSE / 1e4, by setting and method. The demand design's come from its
            ablation, since the paper shows its other results only as a figure.
        paired: comparisons with the strongest baseline, by setting.
        ablation: by setting.
        runtime: by design, sample size and method.
        sources: the label of each table in the paper, by kind and design.
    """

    accuracy: Mapping[Setting, Mapping[str, Spread]] = field(hash=False)
    paired: Mapping[Setting, PaperPair] = field(hash=False)
    ablation: Mapping[Setting, PaperAblation] = field(hash=False)
    runtime: Mapping[tuple[str, int, str], PaperRuntime] = field(hash=False)
    sources: Mapping[tuple[str, str], str] = field(hash=False)


@cache
def paper_values() -> PaperValues:
    """The paper's numbers.

    >>> error = paper_values().accuracy[Setting("vector-proxy", 0.5, 5000)]["bgm-iv"]
    >>> error.mean, error.deviation, error.values
    (0.23, 0.35, 20)
    """
    stored = tomllib.loads(files("bgmiv.report").joinpath("paper_values.toml").read_text(encoding="utf-8"))
    ablation = {
        Setting(design, rho, n): PaperAblation(_spread(full, table), _spread(without, table))
        for design, table in stored["ablation"].items()
        for rho, n, full, without in table["rows"]
    }
    paired = {
        Setting(design, rho, n): PaperPair(baseline, _spread(theirs, table), _spread(ours, table), *tests)
        for design, table in stored["paired"].items()
        for rho, n, baseline, theirs, ours, *tests in table["rows"]
    }
    runtime = {
        (design, table["n"], method): PaperRuntime(*minutes)
        for design, table in stored["runtime"].items()
        for method, *minutes in table["rows"]
    }
    accuracy: dict[Setting, dict[str, Spread]] = {setting: {OURS: row.full} for setting, row in ablation.items()}
    for design, table in stored["accuracy"].items():
        for rho, n, *spreads in table["rows"]:
            values = (_spread(pair, table) for pair in spreads)
            accuracy[Setting(design, rho, n)] = dict(zip(table["methods"], values, strict=True))
    sources = {(kind, design): table["source"] for kind, part in stored.items() for design, table in part.items()}
    return PaperValues(accuracy, paired, ablation, runtime, sources)


def _spread(pair: list[float], table: Mapping[str, Any]) -> Spread:
    mean, deviation = pair
    return Spread(mean, deviation, table["repeats"])
