"""Errors as they are printed: by the paper, and by the authors of other benchmarks."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from bgmiv.bench.show import OURS

__all__ = ["PaperValues", "PrintedResult", "paper_values", "printed_results"]

_HERE = Path(__file__).parent


class PaperValues(NamedTuple):
    """Every numeric table of the paper's results, as printed; errors are structural MSE / 1e4.

    The demand design's accuracy comes from its ablation, since the paper shows its other results only as a figure.
    """

    accuracy: pd.DataFrame
    paired: pd.DataFrame  # BGM-IV against the strongest baseline
    ablation: pd.DataFrame  # BGM-IV without its warm start
    runtime: pd.DataFrame  # minutes for one repeat
    sources: Mapping[tuple[str, str], str]  # the label of each table in the paper, by kind and design


@cache
def paper_values() -> PaperValues:
    """The paper's numbers, from paper_values.toml."""
    stored = tomllib.loads(_HERE.joinpath("paper_values.toml").read_text(encoding="utf-8"))
    accuracy, paired, ablation, runtime = [], [], [], []
    for design, table in stored["accuracy"].items():
        for rho, n, *errors in table["rows"]:
            for method, error in zip(table["methods"], errors, strict=True):
                accuracy.append((design, rho, n, method, *error, table["repeats"]))
    for design, table in stored["ablation"].items():
        for rho, n, full, without in table["rows"]:
            ablation.append((design, rho, n, *without, table["repeats"]))
            if design not in stored["accuracy"]:
                accuracy.append((design, rho, n, OURS, *full, table["repeats"]))
    for design, table in stored["paired"].items():
        for rho, n, baseline, theirs, ours, *tests in table["rows"]:
            paired.append((design, rho, n, baseline, *theirs, *ours, *tests, table["repeats"]))
    for design, table in stored["runtime"].items():
        runtime += [(design, table["n"], *row) for row in table["rows"]]
    setting, cell = ["design", "rho", "n"], ["mean", "sd", "repeats"]
    pair = ["baseline", "baseline_mean", "baseline_sd", "mean", "sd", "difference", "wilcoxon_holm", "t_p", "repeats"]
    return PaperValues(
        pd.DataFrame(accuracy, columns=[*setting, "method", *cell]),
        pd.DataFrame(paired, columns=[*setting, *pair]),
        pd.DataFrame(ablation, columns=[*setting, *cell]),
        pd.DataFrame(runtime, columns=["design", "n", "method", "mean", "median", "min", "max"]),
        {(kind, design): table["source"] for kind, part in stored.items() for design, table in part.items()},
    )


class PrintedResult(NamedTuple):
    """An error that the authors of a benchmark print."""

    design: str  # the benchmark's name here
    n: int  # rows of a sample
    method: str  # what they call the method
    mean: float  # of the mean squared error over runs
    spread: float | None  # of it, None where none is printed
    spread_kind: str  # what the spread is
    runs: int  # how many samples
    source: str  # repository, commit and file


@cache
def printed_results() -> tuple[PrintedResult, ...]:
    """All printed errors; the sixteen curves of the AdversarialGMM study come without."""
    text = _HERE.joinpath("published_values.toml").read_text(encoding="utf-8")
    found = []
    for study in tomllib.loads(text).values():
        for design, rows in study["rows"].items():
            for n, *values in rows:
                found += [
                    PrintedResult(
                        *(design, n, method, mean, spread[0] if spread else None),
                        *(study["spread"], study["runs"], study["source"]),
                    )
                    for method, (mean, *spread) in zip(study["methods"], values, strict=True)
                ]
    return tuple(found)
