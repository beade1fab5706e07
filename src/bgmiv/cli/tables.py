"""What the commands on a table share: how its file is written, the roles of its columns, and their messages."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bgmiv.cli.options import bad, echo, words
from bgmiv.errors import BGMIVWarning, DataError, KindWarning

if TYPE_CHECKING:
    from bgmiv.estimators.base import IVEstimator

__all__ = [
    "Data",
    "FileFormat",
    "Roles",
    "chosen_form",
    "chosen_roles",
    "fitted_model",
    "read_data",
    "rows_used",
    "takes",
    "warnings_shown",
]

Data = Annotated[Path, typer.Argument(help="A CSV or Parquet file.", show_default=False)]

FileFormat = Any
"""A `CSVFormat`: how a CSV file is written."""

# The columns of the roles, by the arguments that declare their kinds.
_columns: ContextVar[Mapping[str, str]] = ContextVar("columns")

_KINDS = ("continuous", "binary", "categorical")
_COVARIANCES = ("auto", "classical", "robust", "cluster")


def chosen_form(
    encoding: Annotated[str, typer.Option(help="Encoding of a CSV file, such as latin-1.")] = "utf-8",
    delimiter: Annotated[str, typer.Option(help="Field separator of a CSV file, such as ';' or '\\t'.")] = ",",
    decimal: Annotated[str, typer.Option(help="Decimal mark of a CSV file, '.' or ','.")] = ".",
    na: Annotated[
        list[str] | None,
        typer.Option(help="Another code for missing values, such as '.' or -9, besides NA, NaN, null. Repeatable."),
    ] = None,
) -> FileFormat:
    """How the options say that a file is written."""
    from bgmiv.data.files import CSVFormat
    from bgmiv.data.messages import name_settings

    name_settings(_in_options)
    try:
        return CSVFormat(encoding, delimiter.replace("\\t", "\t"), decimal, tuple(na or ()))
    except DataError as error:
        raise bad(str(error), "--decimal" if decimal not in ".," else "--delimiter") from error


def read_data(file: Path, form: FileFormat) -> Any:
    """The table of a file; messages of this command call its rows by their lines."""
    from bgmiv.data.files import read_file
    from bgmiv.data.messages import name_rows

    table, lines = read_file(file, form)
    if lines is not None:
        name_rows(lines, "line")
    return table


class Roles(NamedTuple):
    """The roles of the columns, by a formula or by names; kinds, and the covariance, that are declared."""

    formula: str | None
    outcome: str
    treatment: str
    instruments: tuple[str, ...]
    covariates: tuple[str, ...]
    weights: str | None
    groups: tuple[str, ...]
    missing: str
    kinds: dict[str, str]
    blocks: dict[str, str]


def chosen_roles(
    formula: Annotated[
        str | None,
        typer.Option(help="'outcome ~ covariates + \\[treatment ~ instruments]', instead of the next four options."),
    ] = None,
    outcome: Annotated[str | None, typer.Option(help="Column of the outcome.")] = None,
    treatment: Annotated[str | None, typer.Option(help="Column of the treatment.")] = None,
    instruments: Annotated[
        list[str] | None, typer.Option(help="Columns of the instruments: a,b or repeat the option.")
    ] = None,
    covariates: Annotated[list[str] | None, typer.Option(help="Columns of the covariates, likewise.")] = None,
    weights: Annotated[str | None, typer.Option(help="Column of sample weights.")] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(help="Column of clusters: groups of rows that are not independent. Two columns, a,b: two ways."),
    ] = None,
    covariance: Annotated[
        str, typer.Option(help="What standard errors and tests allow for: auto, classical, robust or cluster.")
    ] = "auto",
    missing: Annotated[str, typer.Option(help="raise: refuse missing values; drop: drop such rows.")] = "raise",
    kind: Annotated[
        list[str] | None,
        typer.Option(help="COLUMN=KIND to declare a column: continuous, binary or categorical. Repeatable."),
    ] = None,
) -> Roles:
    """The roles that the options stand for; a bad option is blamed before the file is read."""
    if missing not in ("raise", "drop"):
        raise bad(f"{missing!r} is neither raise nor drop", "--missing")
    if covariance not in _COVARIANCES:
        raise bad(f"{covariance!r} is not one of {', '.join(_COVARIANCES)}", "--covariance")
    named = {"--outcome": outcome, "--treatment": treatment, "--instruments": instruments, "--covariates": covariates}
    given = [option for option, value in named.items() if value]
    if formula is not None:
        if given:
            raise bad(f"give a formula or {given[0]}, not both", "--formula")
        from bgmiv.data.formula import split_formula

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
    from bgmiv.data.messages import name_settings

    _columns.set(roles)
    name_settings(_in_options)
    w, v, clusters = (tuple(words(names or [])) for names in (instruments, covariates, groups))
    kinds["covariance"] = covariance
    return Roles(formula, outcome, treatment, w, v, weights, clusters, missing, kinds, blocks)


def takes(choose: Callable[..., Any], name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `choose` besides its own, and what comes of them as its argument `name`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own, shared = (inspect.signature(each, eval_str=True).parameters for each in (command, choose))

        @functools.wraps(command)
        def run(**given: Any) -> None:
            made = choose(**{option: given.pop(option) for option in shared})
            command(**{name: made}, **given)

        options = {**shared, **{option: parameter for option, parameter in own.items() if option != name}}
        keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in options.values()]
        run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        run.__annotations__ = {option: parameter.annotation for option, parameter in options.items()}
        return run

    return decorate


def fitted_model(model: IVEstimator, table: Any, roles: Roles) -> IVEstimator:
    """The estimator fitted on the table, by formula or by names."""
    more: dict[str, Any] = {"missing": roles.missing, "sample_weight": roles.weights}
    more["clusters"] = list(roles.groups) or None
    more["blocks"] = roles.blocks or None
    if roles.formula is not None:
        return model.fit_formula(roles.formula, table, **more)
    names: dict[str, Any] = {"instruments": list(roles.instruments), "covariates": list(roles.covariates) or None}
    return model.fit_table(table, outcome=roles.outcome, treatment=roles.treatment, **names, **more)


def rows_used(table: Any, roles: Roles) -> Any:
    """Which rows of the table have a value in every column that the fit uses."""
    from bgmiv.data.formula import formula_columns
    from bgmiv.data.table import complete_rows

    names = [*([] if roles.weights is None else [roles.weights]), *roles.groups]
    if roles.formula is not None:
        names += formula_columns(roles.formula, table)
    else:
        names += (roles.outcome, roles.treatment, *roles.instruments, *roles.covariates)
    return complete_rows(table, dict.fromkeys(names))


def _in_options(name: str, value: object, column: str) -> str:
    """How messages write an argument of the library.

    >>> _in_options("missing", "drop", ""), _in_options("blocks", "binary", "v"), _in_options("na_values", ["."], "")
    ('--missing drop', '--kind v=binary', "--na '.'")
    """
    column = _columns.get({}).get(name, column)
    if column:
        return f"--kind {column}" + ("" if value is None else f"={value}")
    if isinstance(value, list):
        return f"--na {value[0]!r}"
    if value is True:
        return f"--{name}"
    return f"--{name} {value!r}" if name in ("encoding", "delimiter", "decimal") else f"--{name} {value}"


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Warnings of the library as one line each on stderr."""

    def show(message: Warning | str, *_: Any) -> None:
        told = "Note" if isinstance(message, KindWarning) else "Warning"
        echo(f"{told}: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", BGMIVWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield
