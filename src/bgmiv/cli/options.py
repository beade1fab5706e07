"""What the commands share: options, refusing bad ones, paths, printing, and reporting errors."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import asdict, is_dataclass
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from bgmiv._io import check_writable
from bgmiv.errors import BGMIVError, ConfigError, StoreError, printable
from bgmiv.registry import METHODS, NO_INSTRUMENT, find_method, method_names, nearest_preset, preset_names

if TYPE_CHECKING:
    from bgmiv.diagnostics.verdict import Verdict
    from bgmiv.estimators.base import IVEstimator

__all__ = [
    "FAILED_FIT",
    "INTERRUPTED",
    "AsJson",
    "Level",
    "Preset",
    "Seed",
    "at_least",
    "bad",
    "blaming",
    "check_level",
    "check_method",
    "check_outputs",
    "check_preset",
    "complete_method",
    "echo",
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


def complete_method(incomplete: str) -> list[str]:
    """Methods that begin so, also after a comma.

    >>> complete_method("tsls,k")
    ['tsls,kiv', 'tsls,kiv-noiv']
    """
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in method_names() if name.startswith(last)]


def _complete_preset(incomplete: str) -> list[str]:
    """Presets that begin so."""
    return [name for name in preset_names() if name.startswith(incomplete)]


Preset = Annotated[str, typer.Option(help="Settings of the methods.", autocompletion=_complete_preset)]
Seed = Annotated[int, typer.Option(help="Random seed: the same seed gives the same result.")]
Level = Annotated[float, typer.Option(help="Level of the intervals.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def bad(message: str, option: str) -> typer.BadParameter:
    """The error for a value that is refused, which names its option."""
    return typer.BadParameter(printable(message), param_hint=option)


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a text; nothing in it that came from data can act on the terminal."""
    typer.echo(printable(text), err=err, nl=nl)


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
            raise bad(f"{word!r} is not {kind}", option) from None
    if not found:
        raise bad(f"give {kind}", option)
    return found


def at_least(minimum: int, value: int, option: str) -> None:
    """Refuse a number that is too small, naming the option."""
    if value < minimum:
        raise bad(f"{value} is too small; choose {minimum} or more", option)


def check_level(value: float) -> None:
    """Refuse a confidence level that does not lie between 0 and 1."""
    if not 0.5 < 0.5 + value / 2.0 < 1.0:
        raise bad(f"{value} does not lie between 0 and 1, such as 0.95", "--level")


@contextmanager
def blaming(option: str) -> Iterator[None]:
    """A setting refused inside is reported as a bad value of that option, with exit code 2."""
    try:
        yield
    except (ConfigError, StoreError) as error:
        raise bad(str(error), option) from error


def check_method(name: str, option: str = "--method") -> None:
    """Refuse an unknown method."""
    if name not in method_names():
        raise bad(f"unknown method {name!r}; there are {', '.join(method_names())}", option)


def check_preset(name: str) -> None:
    """Refuse an unknown preset."""
    if name not in preset_names():
        raise bad(f"unknown preset {name!r}; there are {', '.join(preset_names())}", "--preset")


def make_model(method: str, preset: str, seed: int, kinds: Mapping[str, str], **only_bgm: Any) -> IVEstimator:
    """An estimator of a method, under its nearest preset, that shows its progress; others have no `only_bgm`."""
    estimator = find_method(method).estimator_class()
    known = estimator().get_params()
    given = {name: value for name, value in only_bgm.items() if value is not None}
    for name in given:
        if name not in known:
            raise bad(f"{method} has none; it is for bgm-iv", f"--{name}")
    shared = {"preset": nearest_preset(method, preset), "random_state": seed, "progress": True, **given}
    arguments = {**kinds, "use_instrument": not method.endswith(NO_INSTRUMENT)}
    found: IVEstimator = estimator(**arguments, **{name: value for name, value in shared.items() if name in known})
    return found


def method_help() -> str:
    """The methods there are, for help texts."""
    return ", ".join(METHODS)


def usable_folder(path: Path, option: str) -> Path:
    """Refuse a path that is a file, or that lies under one or where nothing can be written."""
    nearest = next(parent for parent in (path.absolute(), *path.absolute().parents) if os.path.exists(parent))
    if not nearest.is_dir():
        raise bad(f"{nearest} is a file; name a folder", option)
    with blaming(option):
        check_writable(nearest)
    return path


def writable_file(path: Path, option: str, *, overwrite: bool = True) -> Path:
    """Refuse a path that is a folder, or whose folder cannot be written in; and one that exists unless replaced."""
    if path.is_dir():
        raise bad(f"{path} is a folder; name a file", option)
    folder = Path(os.path.realpath(path)).parent
    if (path.exists() and not path.is_file()) or _is_opened(path):
        raise bad(f"{path} is a device or a pipe, or links to itself; name a file", option)
    if not folder.is_dir():
        raise bad(f"the folder {folder if path.is_symlink() else path.parent} does not exist; make it first", option)
    with blaming(option):
        check_writable(folder)
    if path.exists() and not overwrite:
        raise bad(f"{path} exists; name another file or give --overwrite", option)
    return path


def _is_opened(path: Path) -> bool:
    """Whether it stands for a file that this process has opened, such as /dev/stdout, or leads to itself."""
    for _ in range(40):
        if path.absolute().is_relative_to("/proc"):
            return True
        if not path.is_symlink():
            return False
        path = path.parent / os.readlink(path)
    return True


def check_outputs(outputs: Mapping[str, Path | None], *inputs: Path | None) -> None:
    """Refuse to write where something is read, or where another output goes: links are followed.

    `outputs` are paths by their options; an input may be a folder, in which nothing is written.
    """
    read = [path for path in inputs if path is not None]
    written: dict[str, Path] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        real = Path(os.path.realpath(path))
        for source in read:
            # Hard links have different paths.
            if real.is_relative_to(os.path.realpath(source)) or _same_file(path, source):
                raise bad(f"{path} is read by this command, and would be overwritten; name another", option)
        for other, place in written.items():
            if real.is_relative_to(place) or place.is_relative_to(real):
                raise bad(f"{path} and {other} {place} are in one place; keep them apart", option)
        written[option] = real


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


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
    typer.echo(printable(json.dumps(plain(record), indent=2, allow_nan=False, ensure_ascii=False), escape=True))


def verdict_record(verdict: Verdict | None) -> dict[str, Any] | None:
    """The verdict on a fit, as every JSON output carries it."""
    if verdict is None:
        return None
    found = {"severity": verdict.severity, "reasons": list(verdict.reasons)}
    return found | {"not_measured": list(verdict.not_measured)}


def exit_if_failed(verdict: Verdict | None) -> None:
    """Say on stderr what the verdict holds against a fit; one that failed ends the command with its exit code."""
    if verdict is None or verdict.severity in ("good", "note"):
        return
    echo(f"Warning: {verdict.sentence}", err=True)
    if verdict.severity == "failed":
        raise typer.Exit(FAILED_FIT)


def reported(command: Callable[P, T]) -> Callable[P, T]:
    """A command whose expected errors are one clear line on stderr and exit code 1."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            # What messages call the rows of a file ends with the command.
            return copy_context().run(command, *args, **kwargs)
        except KeyboardInterrupt as stopped:
            echo(str(stopped) or "Interrupted.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except (BGMIVError, OSError) as error:
            echo(f"Error: {error}", err=True)
            raise typer.Exit(1) from error

    return run
