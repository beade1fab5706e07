"""What the commands share: options and the roles of columns, refusing bad ones, printing, and reporting errors."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, ParamSpec, TypeVar

import typer

from bgmiv._io import check_writable
from bgmiv.errors import BGMIVError, BGMIVWarning, ConfigError, DataError, StoreError
from bgmiv.registry import METHODS, NO_INSTRUMENT, find_method, method_names, nearest_preset, preset_names

if TYPE_CHECKING:
    from bgmiv.diagnostics.verdict import Verdict
    from bgmiv.estimators.base import IVEstimator

__all__ = [
    "FAILED_FIT",
    "INTERRUPTED",
    "AsJson",
    "Data",
    "Level",
    "Roles",
    "at_least",
    "bad",
    "blaming",
    "check_level",
    "check_method",
    "check_preset",
    "chosen_roles",
    "complete_method",
    "complete_preset",
    "exit_if_failed",
    "fitted_model",
    "in_options",
    "make_model",
    "method_help",
    "numbers",
    "plain",
    "print_json",
    "reported",
    "rows_used",
    "takes_roles",
    "usable_folder",
    "verdict_record",
    "warnings_shown",
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

Data = Annotated[Path, typer.Argument(help="A CSV or Parquet file.", show_default=False)]
Level = Annotated[float, typer.Option(help="Of the intervals.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_KINDS = ("continuous", "binary", "categorical")


def bad(message: str, option: str) -> typer.BadParameter:
    """The error for a value that is refused, which names its option."""
    return typer.BadParameter(message, param_hint=option)


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
    if not 0.0 < value < 1.0:
        raise bad(f"{value} does not lie between 0 and 1, such as 0.95", "--level")


@contextmanager
def blaming(option: str) -> Iterator[None]:
    """A setting refused inside is reported as a bad value of that option, with exit code 2."""
    try:
        yield
    except (ConfigError, StoreError) as error:
        raise bad(str(error), option) from error


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
    for name, value in only_bgm.items():
        if value is not None and name not in known:
            raise bad(f"{method} has none; it is for bgm-iv", f"--{name}")
    shared = {"preset": nearest_preset(method, preset), "random_state": seed, "progress": True, **only_bgm}
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
    if not path.absolute().parent.is_dir():
        raise bad(f"the folder {path.parent} does not exist; make it first", option)
    with blaming(option):
        check_writable(path.absolute().parent)
    if path.exists() and not overwrite:
        raise bad(f"{path} exists; name another file or give --overwrite", option)
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
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt as stopped:
            typer.echo(str(stopped) or "Interrupted.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except (BGMIVError, OSError) as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(1) from error

    return run


class Roles(NamedTuple):
    """The roles of the columns, by a formula or by names, and kinds that are declared."""

    formula: str | None
    outcome: str
    treatment: str
    instruments: tuple[str, ...]
    covariates: tuple[str, ...]
    weights: str | None
    groups: str | None
    missing: str
    kinds: dict[str, str]
    blocks: dict[str, str]


def chosen_roles(
    formula: Annotated[
        str | None,
        typer.Option(
            help="'outcome ~ covariates + \\[treatment ~ instruments]', instead of the four options after it."
        ),
    ] = None,
    outcome: Annotated[str | None, typer.Option(help="The outcome's column.")] = None,
    treatment: Annotated[str | None, typer.Option(help="The treatment's column.")] = None,
    instruments: Annotated[
        list[str] | None, typer.Option(help="The instruments' columns: a,b, or the option repeated.")
    ] = None,
    covariates: Annotated[list[str] | None, typer.Option(help="The covariates' columns, likewise.")] = None,
    weights: Annotated[str | None, typer.Option(help="The column of sample weights.")] = None,
    groups: Annotated[str | None, typer.Option(help="The column of groups of rows that are not independent.")] = None,
    missing: Annotated[str, typer.Option(help="raise: refuse missing values; drop: leave such rows out.")] = "raise",
    kind: Annotated[
        list[str] | None,
        typer.Option(help="COLUMN=KIND where the file does not tell: continuous, binary, categorical. Repeatable."),
    ] = None,
) -> Roles:
    """The roles that the options stand for; a bad option is blamed before the file is read."""
    if missing not in ("raise", "drop"):
        raise bad(f"{missing!r} is neither raise nor drop", "--missing")
    named = {"--outcome": outcome, "--treatment": treatment, "--instruments": instruments, "--covariates": covariates}
    given = [option for option, value in named.items() if value]
    if formula is not None:
        if given:
            raise bad(f"give a formula or {given[0]}, not both", "--formula")
        from bgmiv.data.formula_terms import split_formula

        try:
            outcome, treatment, *_ = split_formula(formula)
        except DataError as error:
            raise bad(str(error), "--formula") from error
    elif not given:
        example = "--formula 'y ~ v + [x ~ w]', or --outcome, --treatment and --instruments"
        raise bad(f"say which column is which: {example}", "--formula")
    elif absent := [option for option in ("--outcome", "--treatment", "--instruments") if option not in given]:
        raise bad("name a column of the file", absent[0])
    assert outcome is not None
    assert treatment is not None
    blocks = {}
    for entry in words(kind or []):
        name, equals, declared = entry.rpartition("=")
        if not equals or not name or declared not in _KINDS:
            raise bad(f"{entry!r} is not COLUMN=KIND with one of {', '.join(_KINDS)}", "--kind")
        blocks[name] = declared
    roles = {"treatment_kind": treatment, "outcome_kind": outcome}
    kinds = {role: blocks.pop(name) for role, name in roles.items() if name in blocks}
    w, v = (tuple(words(names or [])) for names in (instruments, covariates))
    return Roles(formula, outcome, treatment, w, v, weights, groups, missing, kinds, blocks)


def takes_roles(command: Callable[..., None]) -> Callable[..., None]:
    """A command that fits a file: it has the options of `chosen_roles` besides its own, and is given their `roles`."""
    own, shared = (inspect.signature(each, eval_str=True).parameters for each in (command, chosen_roles))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        roles = chosen_roles(**{name: given.pop(name) for name in shared})
        command(roles=roles, **given)

    options = {**shared, **{name: parameter for name, parameter in own.items() if name != "roles"}}
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in options.values()]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in options.items()}
    return run


def fitted_model(model: IVEstimator, table: Any, roles: Roles) -> IVEstimator:
    """The estimator fitted on the table, by formula or by names.

    Raises:
        DataError: the data cannot be used; the message names options of the command line.
    """
    more: dict[str, Any] = {name: getattr(roles, name) for name in ("missing", "weights", "groups")}
    more["blocks"] = roles.blocks or None
    try:
        if roles.formula is not None:
            return model.fit_formula(roles.formula, table, **more)
        names: dict[str, Any] = {"instruments": list(roles.instruments), "covariates": list(roles.covariates) or None}
        return model.fit_table(table, outcome=roles.outcome, treatment=roles.treatment, **names, **more)
    except DataError as error:
        raise DataError(in_options(str(error), roles)) from error


def rows_used(table: Any, roles: Roles) -> Any:
    """Which rows of the table have a value in every column that the fit uses."""
    from bgmiv.data.formula import formula_columns
    from bgmiv.data.read import complete_rows

    names = [name for name in (roles.weights, roles.groups) if name is not None]
    if roles.formula is not None:
        names += formula_columns(roles.formula, table)
    else:
        names += (roles.outcome, roles.treatment, *roles.instruments, *roles.covariates)
    return complete_rows(table, dict.fromkeys(names))


def in_options(text: str, roles: Roles) -> str:
    """A message of the library in the words of the command line.

    >>> roles = chosen_roles("y ~ v + [x ~ w]")
    >>> in_options("Fill them, or leave such rows out with missing='drop'.", roles)
    'Fill them, or leave such rows out with --missing drop.'
    >>> in_options("say treatment_kind='binary', or use blocks={'v': 'categorical'}.", roles)
    'say --kind x=binary, or use --kind v=categorical.'
    """
    text = text.replace("missing='drop'", "--missing drop")
    for role, name in (("treatment", roles.treatment), ("outcome", roles.outcome)):
        # In a replacement a backslash is special.
        replacement = f"--kind {name}=".replace("\\", r"\\") + r"\1"
        text = re.sub(rf"\b{role}_kind='(\w+)'", replacement, text)
    return re.sub(r"blocks=\{'([^']+)': '(\w+)'[^}]*\}", r"--kind \1=\2", text)


@contextmanager
def warnings_shown(roles: Roles | None = None) -> Iterator[None]:
    """Warnings of the library as one line each on stderr."""

    def show(message: Warning | str, *_: Any) -> None:
        text = str(message) if roles is None else in_options(str(message), roles)
        typer.echo(f"Warning: {text}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", BGMIVWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield
