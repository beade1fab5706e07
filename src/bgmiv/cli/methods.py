"""Methods and presets by name, known without loading any of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

__all__ = ["METHODS", "PRESETS", "check_method", "check_preset", "complete_method", "complete_preset", "make_model"]

_FACES = {
    "bgm-iv": "BGMIV",
    "tsls": "TSLS",
    "kiv": "KIV",
    "deepiv": "DeepIV",
    "dfiv": "DFIV",
    "deepgmm": "DeepGMM",
}
_TWIN = "-noiv"

METHODS = tuple(name for face in _FACES for name in (face, face + _TWIN))
"""Names of methods, each followed by its twin that ignores the instrument."""

PRESETS = ("default", "paper", "paper-qmc", "default-no-egm", "paper-qmc-no-egm")
"""Names of presets."""


def complete_method(incomplete: str) -> list[str]:
    """Methods that begin so, also after a comma.

    >>> complete_method("tsls,k")
    ['tsls,kiv', 'tsls,kiv-noiv']
    """
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in METHODS if name.startswith(last)]


def complete_preset(incomplete: str) -> list[str]:
    """Presets that begin so.

    >>> complete_preset("paper")
    ['paper', 'paper-qmc', 'paper-qmc-no-egm']
    """
    return [name for name in PRESETS if name.startswith(incomplete)]


def check_method(name: str, option: str = "--method") -> str:
    """Refuse an unknown method."""
    if name not in METHODS:
        raise typer.BadParameter(f"{name!r} is no method; there are {', '.join(METHODS)}", param_hint=option)
    return name


def check_preset(name: str) -> str:
    """Refuse an unknown preset."""
    if name not in PRESETS:
        raise typer.BadParameter(f"{name!r} is no preset; there are {', '.join(PRESETS)}", param_hint="--preset")
    return name


def make_model(
    method: str,
    preset: str,
    seed: int,
    kinds: Mapping[str, str],
    *,
    members: int | None = None,
    checkpoint: Path | None = None,
) -> Any:
    """An estimator of the method, under its nearest preset, that shows its progress.

    Args:
        method: a name that was checked.
        preset: a name that was checked.
        seed: of the fit.
        kinds: `treatment_kind` and `outcome_kind`, where they are declared.
        members, checkpoint: arguments of BGM-IV.
    """
    import bgmiv
    from bgmiv.estimators.registry import nearest_preset

    name = method.removesuffix(_TWIN)
    face = getattr(bgmiv, _FACES[name])
    arguments: dict[str, Any] = {**kinds, "use_instrument": name == method}
    known = face().get_params()
    for argument, value in (
        ("preset", nearest_preset(method, preset)),
        ("random_state", seed),
        ("progress", True),
        ("members", members),
        ("checkpoint", checkpoint),
    ):
        if argument in known:
            arguments[argument] = value
        elif argument in ("members", "checkpoint") and value is not None:
            raise typer.BadParameter(f"{method} has none; it is for bgm-iv", param_hint=f"--{argument}")
    return face(**arguments)
