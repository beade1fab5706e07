"""What the commands print: texts, tables, JSON, warnings and errors, and the exit codes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import asdict, is_dataclass
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperGroup

from bgmiv.errors import BGMIVError, BGMIVWarning, KindWarning, printable

if TYPE_CHECKING:
    from bgmiv.diagnostics.verdict import Verdict

__all__ = [
    "FAILED_FIT", "INTERRUPTED", "Commands", "counted", "echo", "exit_if_failed", "plain", "print_json", "print_result",
    "print_table", "warnings_shown",
]  # fmt: skip

T = TypeVar("T")

INTERRUPTED = 130
"""The exit code of a command stopped by Ctrl-C, by the shell's convention."""

FAILED_FIT = 3
"""The exit code of every command that shows a fit which failed its held-out checks."""

_OLD_OPTIONS = {"--weights": "--sample-weight", "--groups": "--clusters"}


class Commands(TyperGroup):
    """All commands: expected errors are one clear line on stderr and exit code 1; old names of options are known."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments, old names of options by their new ones."""
        renamed = []
        for argument in args:
            option, equals, value = argument.partition("=")
            renamed.append(_OLD_OPTIONS.get(option, option) + equals + value)
        return super().parse_args(ctx, renamed)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            # What messages call the rows of a file ends with the command.
            return copy_context().run(super().invoke, ctx)
        except KeyboardInterrupt as stopped:
            echo(str(stopped) or "Interrupted.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except (BGMIVError, OSError) as error:
            echo(f"Error: {error}", err=True)
            raise typer.Exit(1) from error


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a text; nothing in it that came from data can act on the terminal."""
    typer.echo(printable(text), err=err, nl=nl)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> None:
    """Print a table whose first column is text and whose others are numbers."""
    import pandas as pd

    first, *_ = columns
    frame = pd.DataFrame(list(rows), columns=list(columns)).set_index(first).rename_axis(index=None, columns=first)
    text = frame.to_string(float_format="{:.4g}".format, na_rep="-")
    echo(f"\n{title}\n{text}\n{caption}", nl=bool(caption))


def counted(fits: Iterable[T], total: int) -> Iterator[T]:
    """The fits as they are done, with a bar on the terminal; lines that are printed meanwhile stand above it."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return iter(track(fits, "all fits", total, console=console, disable=not console.is_terminal))


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
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else str(value)
    return value


def print_json(record: Any) -> None:
    """One JSON value on stdout."""
    typer.echo(printable(json.dumps(plain(record), indent=2, allow_nan=False, ensure_ascii=False), escape=True))


def print_result(record: dict[str, Any], verdict: Verdict | None) -> None:
    """One JSON object on stdout, with the verdict on the fit it comes from."""
    names = ("severity", "reasons", "not_measured")
    judged = None if verdict is None else {name: getattr(verdict, name) for name in names}
    print_json({**record, "verdict": judged})


def exit_if_failed(verdict: Verdict | None) -> None:
    """Say on stderr what the verdict holds against a fit; one that failed ends the command with its exit code."""
    if verdict is None or verdict.severity in ("good", "note"):
        return
    echo(f"Warning: {verdict.sentence}", err=True)
    if verdict.severity == "failed":
        raise typer.Exit(FAILED_FIT)


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Warnings of the library as one line each on stderr."""

    def show(message: Warning | str, *_: Any) -> None:
        label = "Note" if isinstance(message, KindWarning) else "Warning"
        echo(f"{label}: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", BGMIVWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield
