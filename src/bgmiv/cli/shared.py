"""What the commands share: options and the checks of their values, what is printed, errors and exit codes."""

from __future__ import annotations

import functools
import inspect
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import is_dataclass
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer import Argument, BadParameter, Option
from typer.core import TyperGroup

from bgmiv._io import check_file, check_writable
from bgmiv.errors import BGMIVError, BGMIVWarning, KindWarning, printable
from bgmiv.registry import NO_INSTRUMENT, find_method, method_names, nearest_preset, preset_names

if TYPE_CHECKING:
    from bgmiv.diagnostics.verdict import Verdict
    from bgmiv.estimators.base import IVEstimator

__all__ = [
    "METHOD_CHOICE", "AsJson", "ColumnRoles", "Commands", "Data", "Level", "Listed", "Overwrite", "Preset", "Seed",
    "check_outputs", "choice", "column_roles", "csv_format", "echo", "exit_if_failed", "make_model",
    "naming_option", "option_error", "plain", "print_json", "print_result", "print_table", "read_data", "split_commas",
    "usable_folder", "warnings_shown", "with_options", "writable_file",
]  # fmt: skip


def option_error(message: str, option: str | None = None) -> BadParameter:
    """The error for a value that is refused, which names its option; one that is raised in a callback needs no name."""
    return BadParameter(printable(message), param_hint=option)


@contextmanager
def naming_option(option: str) -> Iterator[None]:
    """What is refused inside is reported as a bad value of that option, with exit code 2."""
    try:
        yield
    except BGMIVError as error:
        raise option_error(str(error), option) from error


def choice(known: Sequence[str]) -> dict[str, Any]:
    """Arguments of `typer.Option` for an option with some known values, or a list of them with commas between."""

    def check(value: Any) -> Any:
        given = split_commas(value) if isinstance(value, list) else [value]
        for name in given:
            if name not in (None, *known):
                raise option_error(f"{name!r} is unknown; there are {', '.join(known)}")
        return given if isinstance(value, list) else value

    def complete(incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return {"callback": check, "autocompletion": complete}


Listed = list[str] | None
"""An option that is repeated, or holds a list with commas."""


def split_commas(values: Listed) -> list[str]:
    """Split every value at commas: options may be repeated or hold a list.

    >>> split_commas(["bgm-iv,tsls", "bgm-iv-noiv"])
    ['bgm-iv', 'tsls', 'bgm-iv-noiv']
    """
    return [name.strip() for value in values or () for name in value.split(",") if name.strip()]


def _check_level(value: float) -> float:
    if not 0.5 < 0.5 + value / 2.0 < 1.0:
        raise option_error(f"{value} does not lie between 0 and 1, such as 0.95")
    return value


Data = Annotated[Path, Argument(help="A CSV or Parquet file.", show_default=False)]
Preset = Annotated[str, Option(help="Settings of the methods.", **choice(preset_names()))]
Seed = Annotated[int, Option(help="Random seed: the same seed gives the same result.", min=0)]
Level = Annotated[float, Option(help="Level of the intervals.", callback=_check_level)]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace what is there.")]


def with_options(**groups: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of functions; what each function returns is the command's argument of that name."""
    shared = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        options: dict[str, inspect.Parameter] = {}
        for parameters in (*reversed(shared.values()), inspect.signature(command, eval_str=True).parameters):
            options |= parameters
        for name in groups:
            del options[name]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            for name, group in groups.items():
                given[name] = group(**{option: given.pop(option) for option in shared[name]})
            command(**given)

        keywords = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options.values()]
        run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        return run

    return decorate


def csv_format(
    encoding: Annotated[str, Option(help="Encoding of a CSV file, such as latin-1.")] = "utf-8",
    delimiter: Annotated[str, Option(help="Field separator of a CSV file, such as ';' or '\\t'.")] = ",",
    decimal: Annotated[str, Option(help="Decimal mark of a CSV file, '.' or ','.")] = ".",
    na: Annotated[
        Listed, Option(help="Another code for missing values, such as '.' or -9, besides NA, NaN, null. Repeatable.")
    ] = None,
) -> Any:
    """How the options say that a file is written."""
    from bgmiv.data.files import CSVFormat
    from bgmiv.data.messages import name_settings

    name_settings(functools.partial(_as_option, {}))
    with naming_option("--decimal" if decimal not in ".," else "--delimiter"):
        return CSVFormat(encoding, delimiter.replace("\\t", "\t"), decimal, tuple(na or ()))


def read_data(file: Path, form: Any) -> Any:
    """The table of a file; messages of this command call its rows by their lines."""
    from bgmiv.data.files import read_file
    from bgmiv.data.messages import name_rows

    table, lines = read_file(file, form)
    if lines is not None:
        name_rows(lines, "line")
    return table


class ColumnRoles(NamedTuple):
    """What the columns of a table are, as the estimators take it."""

    names: dict[str, Any]  # the formula, or the columns by their roles
    shared: dict[str, Any]  # what `fit_formula` and `fit_table` both take
    settings: dict[str, str]  # what the estimator takes: kinds and covariance

    def fit(self, model: IVEstimator, table: Any) -> IVEstimator:
        """The estimator fitted on the table, by formula or by names."""
        fit = model.fit_formula if "formula" in self.names else model.fit_table
        return fit(data=table, **self.names, **self.shared)


def column_roles(
    formula: Annotated[
        str | None,
        Option(help="'outcome ~ covariates + \\[treatment ~ instruments]', instead of the next four options."),
    ] = None,
    outcome: Annotated[str | None, Option(help="Column of the outcome.")] = None,
    treatment: Annotated[str | None, Option(help="Column of the treatment.")] = None,
    instruments: Annotated[Listed, Option(help="Columns of the instruments: a,b or repeat the option.")] = None,
    covariates: Annotated[Listed, Option(help="Columns of the covariates, likewise.")] = None,
    sample_weight: Annotated[
        str | None, Option("--sample-weight", "--weights", help="Column of sample weights.")
    ] = None,
    clusters: Annotated[
        Listed,
        Option(
            "--clusters",
            "--groups",
            help="Column of clusters: rows that are not independent. Two columns, a,b: clusters two ways.",
        ),
    ] = None,
    covariance: Annotated[
        str,
        Option(
            help="What standard errors and tests allow for: auto, classical, robust or cluster.",
            **choice(("auto", "classical", "robust", "cluster")),
        ),
    ] = "auto",
    missing: Annotated[
        str, Option(help="raise: refuse missing values; drop: drop such rows.", **choice(("raise", "drop")))
    ] = "raise",
    kind: Annotated[
        Listed, Option(help="COLUMN=KIND to declare a column: continuous, binary or categorical. Repeatable.")
    ] = None,
) -> ColumnRoles:
    """The roles that the options stand for; a bad option is named before the file is read."""
    from bgmiv.data.formula import split_formula
    from bgmiv.data.messages import name_settings

    names: dict[str, Any] = {
        "outcome": outcome,
        "treatment": treatment,
        "instruments": split_commas(instruments),
        "covariates": split_commas(covariates) or None,
    }
    given = [f"--{role}" for role, columns in names.items() if columns]
    if formula is None:
        if not given:
            example = "--formula 'y ~ v + [x ~ w]', or --outcome, --treatment and --instruments"
            raise option_error(f"say which column is which: {example}", "--formula")
        for option in ("--outcome", "--treatment", "--instruments"):
            if option not in given:
                raise option_error("name a column of the file", option)
    elif given:
        raise option_error(f"give a formula or {given[0]}, not both", "--formula")
    else:
        names = {"formula": formula}
        with naming_option("--formula"):
            outcome, treatment, *_ = split_formula(formula)
    kinds = {}
    for entry in split_commas(kind):
        name, _, declared = entry.rpartition("=")
        if not name or declared not in ("continuous", "binary", "categorical"):
            raise option_error(f"{entry!r} is not COLUMN=KIND with continuous, binary or categorical", "--kind")
        kinds[name] = declared
    roles = {"treatment_kind": str(treatment), "outcome_kind": str(outcome)}
    settings = {role: kinds.pop(name) for role, name in roles.items() if name in kinds}
    name_settings(functools.partial(_as_option, roles))
    shared = {"sample_weight": sample_weight, "clusters": split_commas(clusters) or None, "missing": missing}
    return ColumnRoles(names, {**shared, "blocks": kinds or None}, {**settings, "covariance": covariance})


def _as_option(roles: Mapping[str, str], name: str, value: object, column: str) -> str:
    """How messages write an argument of the library; `roles` are columns by the arguments that declare their kinds.

    >>> _as_option({}, "missing", "drop", ""), _as_option({}, "na_values", ["."], "")
    ('--missing drop', "--na '.'")
    >>> _as_option({}, "blocks", "binary", "v"), _as_option({"outcome_kind": "y"}, "outcome_kind", "binary", "")
    ('--kind v=binary', '--kind y=binary')
    """
    column = roles.get(name, column)
    if column:
        return f"--kind {column}" + ("" if value is None else f"={value}")
    if isinstance(value, list):
        return f"--na {value[0]!r}"
    if value is True:
        return f"--{name}"
    return f"--{name} {value!r}" if name in ("encoding", "delimiter", "decimal") else f"--{name} {value}"


def make_model(method: str, preset: str, seed: int, settings: Mapping[str, Any], **only_bgm: Any) -> IVEstimator:
    """An estimator of a method, under its nearest preset, that shows its progress; others have no `only_bgm`."""
    estimator = find_method(method).estimator_class()
    known = estimator().get_params()
    for name, value in only_bgm.items():
        if value is not None and name not in known:
            raise option_error(f"{method} has none; it is for bgm-iv", f"--{name}")
    shared = {"preset": nearest_preset(method, preset), "random_state": seed, "progress": True, **only_bgm, **settings}
    arguments = {name: value for name, value in shared.items() if name in known and value is not None}
    return estimator(**arguments, use_instrument=not method.endswith(NO_INSTRUMENT))


METHOD_CHOICE = choice(method_names())


def usable_folder(path: Path, option: str) -> Path:
    """Refuse a path that is a file, or that lies under one or where nothing can be written."""
    with naming_option(option):
        check_writable(path)
    return path


def writable_file(path: Path, option: str, *, overwrite: bool) -> Path:
    """Refuse a path where no file can be written; and one that exists unless replaced."""
    with naming_option(option):
        check_file(path)
    if path.exists() and not overwrite:
        raise option_error(f"{path} exists; name another file or give --overwrite", option)
    return path


def check_outputs(outputs: Mapping[str, Path | None], *inputs: Path) -> None:
    """Refuse to write where something is read, or where another output goes: links are followed.

    `outputs` are paths by their options; an input may be a folder, in which nothing is written.
    """
    written: dict[str, Path] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        real = Path(os.path.realpath(path))
        for source in inputs:
            if real.is_relative_to(os.path.realpath(source)):
                raise option_error(f"{path} is read by this command, and would be overwritten; name another", option)
        for other, place in written.items():
            if real.is_relative_to(place) or place.is_relative_to(real):
                raise option_error(f"{path} and {other} {place} are in one place; keep them apart", option)
        written[option] = real


class Commands(TyperGroup):
    """All commands: expected errors are one clear line on stderr and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            # What messages call the rows of a file ends with the command.
            return copy_context().run(super().invoke, ctx)
        except KeyboardInterrupt as stopped:
            echo(str(stopped) or "Interrupted.", err=True)
            # By the shell's convention.
            raise typer.Exit(130) from None
        except (BGMIVError, OSError) as error:
            echo(f"Error: {error}", err=True)
            raise typer.Exit(1) from error


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a text; nothing in it that came from data can act on the terminal."""
    typer.echo(printable(text), err=err, nl=nl)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> None:
    """Print a table whose first column is text and whose others are numbers."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=columns).set_index(columns[0]).rename_axis(index=None, columns=columns[0])
    text = frame.to_string(float_format="{:.4g}".format, na_rep="-")
    echo(f"\n{title}\n{text}\n{caption}", nl=bool(caption))


def plain(value: Any) -> Any:
    """A value as JSON holds it: numbers that are not finite become null or the words "inf" and "-inf".

    >>> plain({"a": (1.0, float("inf")), "b": float("nan")})
    {'a': [1.0, 'inf'], 'b': None}
    """
    import numpy as np

    if is_dataclass(value):
        value = value.to_dict() if hasattr(value, "to_dict") else vars(value)
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


def print_result(record: dict[str, Any], verdict: Verdict) -> None:
    """One JSON object on stdout, with the verdict on the fit it comes from."""
    names = ("severity", "reasons", "not_measured")
    print_json({**record, "verdict": {name: getattr(verdict, name) for name in names}})


def exit_if_failed(verdict: Verdict) -> None:
    """Say on stderr what the verdict holds against a fit; one that failed ends the command with its exit code."""
    if verdict.severity in ("doubtful", "failed"):
        echo(f"Warning: {verdict.sentence}", err=True)
        if verdict.severity == "failed":
            raise typer.Exit(3)


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
