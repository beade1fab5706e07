"""What the commands share: reading and refusing options, printing, writing, and reporting errors."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import typer

from bgmiv.registry import METHODS, NO_INSTRUMENT, find_method, method_names, nearest_preset, preset_names

if TYPE_CHECKING:
    from bgmiv.diagnostics.verdict import Verdict
    from bgmiv.estimators.base import IVEstimator

__all__ = [
    "FAILED_FIT",
    "INTERRUPTED",
    "at_least",
    "blaming",
    "check_level",
    "check_method",
    "check_preset",
    "complete_method",
    "complete_preset",
    "exit_if_failed",
    "make_model",
    "method_help",
    "numbers",
    "plain",
    "print_json",
    "reported",
    "usable_folder",
    "verdict_record",
    "words",
    "writable_file",
]

P = ParamSpec("P")
T = TypeVar("T")
Number = TypeVar("Number", int, float)

INTERRUPTED = 130
"""The exit code of a command stopped by Ctrl-C, by the shell's convention."""

FAILED_FIT = 3
"""The exit code of every command that shows a fit which failed its held-out checks."""


def words(values: list[str]) -> list[str]:
    """Split every value at commas: options may be repeated or hold a list.

    >>> words(["bgm-iv,tsls", "bgm-iv-noiv"])
    ['bgm-iv', 'tsls', 'bgm-iv-noiv']
    """
    return [word.strip() for value in values for word in value.split(",") if word.strip()]


def numbers(values: list[str], convert: Callable[[str], Number], option: str, kind: str) -> list[Number]:
    """Numbers from an option that may be repeated or hold a list.

    >>> numbers(["1000,5000"], int, "--n", "a whole number")
    [1000, 5000]
    """
    found = []
    for word in words(values):
        try:
            found.append(convert(word))
        except ValueError:
            raise typer.BadParameter(f"{word!r} is not {kind}", param_hint=option) from None
    if not found:
        raise typer.BadParameter(f"give {kind}", param_hint=option)
    return found


def at_least(minimum: int, value: int, option: str) -> None:
    """Refuse a number that is too small, naming the option."""
    if value < minimum:
        raise typer.BadParameter(f"{value} is too small; choose {minimum} or more", param_hint=option)


def check_level(value: float) -> None:
    """Refuse a confidence level that does not lie between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise typer.BadParameter(f"{value} does not lie between 0 and 1, such as 0.95", param_hint="--level")


@contextmanager
def blaming(option: str) -> Iterator[None]:
    """A setting refused inside is reported as a bad value of that option, with exit code 2."""
    from bgmiv.errors import ConfigError

    try:
        yield
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def complete_method(incomplete: str) -> list[str]:
    """Methods that begin so, also after a comma.

    >>> complete_method("tsls,k")
    ['tsls,kiv', 'tsls,kiv-noiv']
    """
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in method_names() if name.startswith(last)]


def complete_preset(incomplete: str) -> list[str]:
    """Presets that begin so."""
    return [name for name in preset_names() if name.startswith(incomplete)]


def check_method(name: str, option: str = "--method") -> str:
    """Refuse an unknown method."""
    if name not in method_names():
        raise typer.BadParameter(f"unknown method {name!r}; there are {', '.join(method_names())}", param_hint=option)
    return name


def check_preset(name: str) -> str:
    """Refuse an unknown preset."""
    if name not in preset_names():
        known = ", ".join(preset_names())
        raise typer.BadParameter(f"unknown preset {name!r}; there are {known}", param_hint="--preset")
    return name


def make_model(
    method: str,
    preset: str,
    seed: int,
    kinds: Mapping[str, str],
    *,
    members: int | None = None,
    checkpoint: Path | None = None,
) -> IVEstimator:
    """An estimator of a method, under its nearest preset, that shows its progress."""
    estimator = find_method(method).estimator_class()
    arguments: dict[str, Any] = {**kinds, "use_instrument": not method.endswith(NO_INSTRUMENT)}
    known = estimator().get_params()
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
    found: IVEstimator = estimator(**arguments)
    return found


def method_help() -> str:
    """The methods there are, for help texts."""
    return ", ".join(METHODS)


def usable_folder(path: Path, option: str) -> Path:
    """Refuse a path that is a file, or that lies under one or where nothing can be written."""
    nearest = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    if not nearest.is_dir():
        raise typer.BadParameter(f"{nearest} is a file; name a folder", param_hint=option)
    if not os.access(nearest, os.W_OK):
        raise typer.BadParameter(f"nothing can be written in {nearest}; name another folder", param_hint=option)
    return path


def writable_file(path: Path, option: str, *, overwrite: bool = True) -> Path:
    """Refuse a path that is a folder, or whose folder cannot be written in; and one that exists unless replaced."""
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; name a file", param_hint=option)
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"the folder {path.parent} does not exist; make it first", param_hint=option)
    if not os.access(path.absolute().parent, os.W_OK):
        raise typer.BadParameter(f"nothing can be written in {path.absolute().parent}", param_hint=option)
    if path.exists() and not overwrite:
        raise typer.BadParameter(f"{path} exists; name another file or give --overwrite", param_hint=option)
    return path


def plain(value: Any) -> Any:
    """A value as JSON holds it: numbers that are not finite become null or the words "inf" and "-inf".

    >>> plain({"a": (1.0, float("inf")), "b": float("nan")})
    {'a': [1.0, 'inf'], 'b': None}
    """
    import numpy as np

    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else str(value)
    return value


def print_json(record: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(plain(record), indent=2, allow_nan=False, ensure_ascii=False))


def verdict_record(verdict: Verdict | None) -> dict[str, Any] | None:
    """The verdict on a fit, as every JSON output carries it."""
    return None if verdict is None else {"severity": verdict.severity, "reasons": list(verdict.reasons)}


def exit_if_failed(verdict: Verdict | None) -> None:
    """Say on stderr what the verdict holds against a fit; one that failed ends the command with its exit code."""
    if verdict is None or verdict.severity == "good":
        return
    typer.echo(f"Warning: {verdict.sentence}", err=True)
    if verdict.severity == "failed":
        raise typer.Exit(FAILED_FIT)


def reported(command: Callable[P, T]) -> Callable[P, T]:
    """A command whose expected errors are one clear line on stderr and exit code 1."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        from bgmiv.errors import BGMIVError

        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt as stopped:
            typer.echo(str(stopped) or "Interrupted.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except (BGMIVError, OSError) as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(1) from error

    return run
