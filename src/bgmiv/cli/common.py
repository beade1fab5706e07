"""What the verbs share: reading lists, refusing bad options, reporting errors."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import typer

__all__ = [
    "FAILED_FIT",
    "INTERRUPTED",
    "at_least",
    "blaming",
    "numbers",
    "reported",
    "share_between",
    "usable_folder",
    "words",
]

P = ParamSpec("P")
T = TypeVar("T")
Number = TypeVar("Number", int, float)

INTERRUPTED = 130
"""The exit code of a command stopped by Ctrl-C, by the shell's convention."""

FAILED_FIT = 3
"""The exit code of a fit against which held-out rows speak."""


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
    """Refuse a number that is too small, naming the option.

    >>> at_least(1, 3, "--workers")
    """
    if value < minimum:
        raise typer.BadParameter(f"{value} is too small; choose {minimum} or more", param_hint=option)


def share_between(value: float, option: str) -> None:
    """Refuse a level that does not lie between 0 and 1.

    >>> share_between(0.95, "--level")
    """
    if not 0.0 < value < 1.0:
        raise typer.BadParameter(f"{value} does not lie between 0 and 1, such as 0.95", param_hint=option)


@contextmanager
def blaming(option: str) -> Iterator[None]:
    """A setting refused inside is reported as a bad value of that option, with exit code 2."""
    from bgmiv.errors import ConfigError

    try:
        yield
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def usable_folder(path: Path, option: str) -> Path:
    """Refuse a path that is a file, or that lies under one or where nothing can be written."""
    nearest = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    if not nearest.is_dir():
        raise typer.BadParameter(f"{nearest} is a file; name a folder", param_hint=option)
    if not os.access(nearest, os.W_OK):
        raise typer.BadParameter(f"nothing can be written in {nearest}; name another folder", param_hint=option)
    return path


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
