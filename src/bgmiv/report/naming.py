"""What reports call designs and columns, the order they stand in, and the unit of a design's errors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from bgmiv.report.figures import METHOD_LABELS

__all__ = [
    "OURS",
    "Column",
    "Setting",
    "ablation_of",
    "column_labels",
    "column_order",
    "design_order",
    "design_title",
    "is_ablation",
    "is_twin",
    "ranges",
    "twin_of",
    "unit",
    "unit_text",
]

OURS = "bgm-iv"
"""The method that is compared with the others."""

_TWIN = "-noiv"
_ABLATION = "-no-egm"
_METHODS = ("tsls", "deepgmm", "deepiv", "kiv", "dfiv")
_PRESETS = tuple(name + end for name in ("default", "paper", "paper-qmc") for end in ("", _ABLATION))
_DESIGNS = {
    "demand": "Demand design",
    "vector-proxy": "High-dimensional vector proxy",
    "mnist": "MNIST images",
    "mnist-hd": "MNIST images with nuisance covariates",
    "demand-confounded": "Demand design, strongly confounded",
    "binary-confounded": "Binary treatment, strongly confounded",
    "binary-treatment": "Binary treatment with a categorical covariate",
    "categorical-treatment": "Treatment of three levels",
    "binary-outcome": "Binary outcome",
    "linear-gaussian": "Linear Gaussian design",
    "lowdim-sin": "Low-dimensional curve: sine",
    "lowdim-abs": "Low-dimensional curve: absolute value",
    "lowdim-step": "Low-dimensional curve: step",
    "lowdim-linear": "Low-dimensional curve: line",
}
_THOUSANDS = ("demand", "vector-proxy", "mnist", "mnist-hd", "demand-confounded")


class Setting(NamedTuple):
    """One row of the paper's tables: a design at one confounding level and sample size."""

    design: str
    rho: float
    n: int

    def __str__(self) -> str:
        return f"{self.design}, rho = {self.rho:g}, n = {self.n}"


class Column(NamedTuple):
    """One column of the paper's tables: a method under a preset."""

    method: str
    preset: str


def design_title(design: str) -> str:
    """The design's name in headings; one that is not known here goes by its own name.

    >>> design_title("demand"), design_title("airline")
    ('Demand design', 'airline')
    """
    return _DESIGNS.get(design, design)


def design_order(design: str) -> tuple[int, str]:
    """A sorting key: the paper's order, then ours, then the alphabet.

    >>> sorted(["zoo", "mnist", "demand"], key=design_order)
    ['demand', 'mnist', 'zoo']
    """
    known = list(_DESIGNS)
    return (known.index(design) if design in known else len(known), design)


def unit(design: str) -> float:
    """What structural errors of this design are divided by in tables and figures: 1e4 for the demand family, else 1.

    >>> unit("vector-proxy"), unit("lowdim-sin")
    (10000.0, 1.0)
    """
    return 1e4 if design in _THOUSANDS else 1.0


def unit_text(design: str) -> str:
    """What the errors are, in words.

    >>> unit_text("vector-proxy"), unit_text("lowdim-sin")
    ('structural MSE / 1e4', 'structural MSE')
    """
    return "structural MSE / 1e4" if unit(design) == 1e4 else "structural MSE"


def is_twin(method: str) -> bool:
    """Whether the method ignores its instrument.

    >>> is_twin("kiv-noiv"), is_twin("kiv")
    (True, False)
    """
    return method.endswith(_TWIN)


def twin_of(method: str) -> str:
    """The same method with its instrument ignored.

    >>> twin_of("kiv")
    'kiv-noiv'
    """
    return method + _TWIN


def is_ablation(preset: str) -> bool:
    """Whether the preset leaves the warm start out.

    >>> is_ablation("default-no-egm"), is_ablation("default")
    (True, False)
    """
    return preset.endswith(_ABLATION)


def ablation_of(preset: str) -> str:
    """The same preset with its warm start left out.

    >>> ablation_of("paper-qmc")
    'paper-qmc-no-egm'
    """
    return preset + _ABLATION


def column_order(column: Column) -> tuple[int, str, bool, int, str]:
    """A sorting key: the paper's order of methods with BGM-IV last, each before its twin, then presets.

    >>> columns = [Column("bgm-iv", "paper"), Column("bgm-iv", "default"), Column("kiv-noiv", "default")]
    >>> [column.method for column in sorted([*columns, Column("kiv", "default")], key=column_order)]
    ['kiv', 'kiv-noiv', 'bgm-iv', 'bgm-iv']
    """
    base = column.method.removesuffix(_TWIN)
    known = len(_METHODS) + 1 if base == OURS else _METHODS.index(base) if base in _METHODS else len(_METHODS)
    preset = _PRESETS.index(column.preset) if column.preset in _PRESETS else len(_PRESETS)
    return (known, base, is_twin(column.method), preset, column.preset)


def column_labels(columns: Collection[Column]) -> dict[Column, str]:
    """What to call each column; the preset is named where a method has several.

    >>> list(column_labels([Column("kiv", "default"), Column("bgm-iv", "default")]).values())
    ['KIV', 'BGM-IV']
    >>> list(column_labels([Column("bgm-iv", "default"), Column("bgm-iv", "paper-qmc")]).values())
    ['BGM-IV (default)', 'BGM-IV (paper-qmc)']
    """
    presets: dict[str, set[str]] = {}
    for method, preset in columns:
        presets.setdefault(method, set()).add(preset)
    return {
        column: METHOD_LABELS.get(column.method, column.method)
        + (f" ({column.preset})" if len(presets[column.method]) > 1 else "")
        for column in columns
    }


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers in short.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(str(end) for end in part) for part in parts)
