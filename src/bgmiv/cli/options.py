"""Options that several commands have, and the checks of their values."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bgmiv._io import check_writable
from bgmiv.errors import BGMIVError, printable
from bgmiv.registry import METHODS, NO_INSTRUMENT, find_method, method_names, nearest_preset, preset_names

if TYPE_CHECKING:
    from bgmiv.estimators.base import IVEstimator

__all__ = [
    "METHOD_CHOICE", "AsJson", "CSVFileFormat", "ColumnRoles", "Data", "Level", "Overwrite", "Preset", "Seed",
    "check_outputs", "choice", "column_roles", "csv_format", "make_model", "method_help", "naming_option",
    "option_error", "read_data", "split_commas", "usable_folder", "with_options", "writable_file",
]  # fmt: skip


def option_error(message: str, option: str | None = None) -> typer.BadParameter:
    """The error for a value that is refused, which names its option; one that is raised in a callback needs no name."""
    return typer.BadParameter(printable(message), param_hint=option)


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
        given = split_commas(value) if isinstance(value, list) else value
        for name in given if isinstance(given, list) else [value]:
            if name is not None and name not in known:
                raise option_error(f"{name!r} is unknown; there are {', '.join(known)}")
        return given

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in known if name.startswith(last)]

    return {"callback": check, "autocompletion": complete}


def split_commas(values: list[str] | None) -> list[str]:
    """Split every value at commas: options may be repeated or hold a list.

    >>> split_commas(["bgm-iv,tsls", "bgm-iv-noiv"])
    ['bgm-iv', 'tsls', 'bgm-iv-noiv']
    """
    return [name.strip() for value in values or () for name in value.split(",") if name.strip()]


def _check_level(value: float) -> float:
    if not 0.5 < 0.5 + value / 2.0 < 1.0:
        raise option_error(f"{value} does not lie between 0 and 1, such as 0.95")
    return value


Data = Annotated[Path, typer.Argument(help="A CSV or Parquet file.", show_default=False)]
Preset = Annotated[str, typer.Option(help="Settings of the methods.", **choice(preset_names()))]
Seed = Annotated[int, typer.Option(help="Random seed: the same seed gives the same result.", min=0)]
Level = Annotated[float, typer.Option(help="Level of the intervals.", callback=_check_level)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


def with_options(**groups: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of functions; what each function returns is the command's argument of that name."""
    shared = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        options: dict[str, inspect.Parameter] = {}
        for parameters in reversed(shared.values()):
            options |= parameters
        options |= {name: option for name, option in own.items() if name not in groups}

        @functools.wraps(command)
        def run(**given: Any) -> None:
            for name, group in groups.items():
                given[name] = group(**{option: given.pop(option) for option in shared[name]})
            command(**given)

        keywords = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options.values()]
        run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        run.__annotations__ = {name: option.annotation for name, option in options.items()}
        return run

    return decorate


CSVFileFormat = Any
"""A `CSVFormat`: how a CSV file is written."""


def csv_format(
    encoding: Annotated[str, typer.Option(help="Encoding of a CSV file, such as latin-1.")] = "utf-8",
    delimiter: Annotated[str, typer.Option(help="Field separator of a CSV file, such as ';' or '\\t'.")] = ",",
    decimal: Annotated[str, typer.Option(help="Decimal mark of a CSV file, '.' or ','.")] = ".",
    na: Annotated[
        list[str] | None,
        typer.Option(help="Another code for missing values, such as '.' or -9, besides NA, NaN, null. Repeatable."),
    ] = None,
) -> CSVFileFormat:
    """How the options say that a file is written."""
    from bgmiv.data.files import CSVFormat
    from bgmiv.data.messages import name_settings

    name_settings(functools.partial(_as_option, {}))
    with naming_option("--decimal" if decimal not in ".," else "--delimiter"):
        return CSVFormat(encoding, delimiter.replace("\\t", "\t"), decimal, tuple(na or ()))


def read_data(file: Path, form: CSVFileFormat) -> Any:
    """The table of a file; messages of this command call its rows by their lines."""
    from bgmiv.data.files import read_file
    from bgmiv.data.messages import name_rows

    table, lines = read_file(file, form)
    if lines is not None:
        name_rows(lines, "line")
    return table


class ColumnRoles(NamedTuple):
    """What the columns of a table are, as the estimators take it."""

    formula: str | None
    names: dict[str, Any]  # of the columns by their roles; empty with a formula
    shared: dict[str, Any]  # what `fit_formula` and `fit_table` both take
    settings: dict[str, str]  # what the estimator takes: kinds and covariance

    def fit(self, model: IVEstimator, table: Any) -> IVEstimator:
        """The estimator fitted on the table, by formula or by names."""
        if self.formula is not None:
            return model.fit_formula(self.formula, table, **self.shared)
        return model.fit_table(table, **self.names, **self.shared)

    def complete_rows(self, table: Any) -> Any:
        """Which rows of the table have a value in every column that the fit uses."""
        from bgmiv.data.formula import formula_columns
        from bgmiv.data.table import complete_rows

        columns = {**self.names, "sample_weight": self.shared["sample_weight"], "clusters": self.shared["clusters"]}
        if self.formula is not None:
            columns["formula"] = formula_columns(self.formula, table)
        used: list[str] = []
        for names in columns.values():
            used += [names] if isinstance(names, str) else names or []
        return complete_rows(table, dict.fromkeys(used))


def column_roles(
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
    sample_weight: Annotated[str | None, typer.Option(help="Column of sample weights.")] = None,
    clusters: Annotated[
        list[str] | None,
        typer.Option(help="Column of clusters: rows that are not independent. Two columns, a,b: clusters two ways."),
    ] = None,
    covariance: Annotated[
        str,
        typer.Option(
            help="What standard errors and tests allow for: auto, classical, robust or cluster.",
            **choice(("auto", "classical", "robust", "cluster")),
        ),
    ] = "auto",
    missing: Annotated[
        str, typer.Option(help="raise: refuse missing values; drop: drop such rows.", **choice(("raise", "drop")))
    ] = "raise",
    kind: Annotated[
        list[str] | None,
        typer.Option(help="COLUMN=KIND to declare a column: continuous, binary or categorical. Repeatable."),
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
        names = {}
        with naming_option("--formula"):
            outcome, treatment, *_ = split_formula(formula)
    kinds = _declared_kinds(kind)
    roles = {"treatment_kind": str(treatment), "outcome_kind": str(outcome)}
    settings = {role: kinds.pop(name) for role, name in roles.items() if name in kinds}
    name_settings(functools.partial(_as_option, roles))
    shared = {"sample_weight": sample_weight, "clusters": split_commas(clusters) or None, "missing": missing}
    return ColumnRoles(formula, names, {**shared, "blocks": kinds or None}, {**settings, "covariance": covariance})


def _declared_kinds(declarations: list[str] | None) -> dict[str, str]:
    kinds = {}
    for entry in split_commas(declarations):
        name, _, kind = entry.rpartition("=")
        if not name or kind not in ("continuous", "binary", "categorical"):
            raise option_error(f"{entry!r} is not COLUMN=KIND with continuous, binary or categorical", "--kind")
        kinds[name] = kind
    return kinds


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
    given = {name: value for name, value in only_bgm.items() if value is not None}
    for name in given:
        if name not in known:
            raise option_error(f"{method} has none; it is for bgm-iv", f"--{name}")
    shared = {"preset": nearest_preset(method, preset), "random_state": seed, "progress": True, **given}
    arguments = {name: value for name, value in shared.items() if name in known}
    model: IVEstimator = estimator(**settings, **arguments, use_instrument=not method.endswith(NO_INSTRUMENT))
    return model


def method_help() -> str:
    """The methods there are, for help texts."""
    return ", ".join(METHODS)


METHOD_CHOICE = choice(method_names())


def usable_folder(path: Path, option: str) -> Path:
    """Refuse a path that is a file, or that lies under one or where nothing can be written."""
    nearest = next(parent for parent in (path.absolute(), *path.absolute().parents) if os.path.exists(parent))
    if not nearest.is_dir():
        raise option_error(f"{nearest} is a file; name a folder", option)
    with naming_option(option):
        check_writable(nearest)
    return path


def writable_file(path: Path, option: str, *, overwrite: bool) -> Path:
    """Refuse a path that is a folder, or whose folder cannot be written in; and one that exists unless replaced."""
    if path.is_dir():
        raise option_error(f"{path} is a folder; name a file", option)
    folder = Path(os.path.realpath(path)).parent
    if (path.exists() and not path.is_file()) or _is_opened(path):
        raise option_error(f"{path} is a device or a pipe, or links to itself; name a file", option)
    if not folder.is_dir():
        raise option_error(f"the folder {folder if path.is_symlink() else path.parent} does not exist", option)
    with naming_option(option):
        check_writable(folder)
    if path.exists() and not overwrite:
        raise option_error(f"{path} exists; name another file or give --overwrite", option)
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
            # Hard links have different paths.
            linked = path.exists() and source.exists() and path.samefile(source)
            if linked or real.is_relative_to(os.path.realpath(source)):
                raise option_error(f"{path} is read by this command, and would be overwritten; name another", option)
        for other, place in written.items():
            if real.is_relative_to(place) or place.is_relative_to(real):
                raise option_error(f"{path} and {other} {place} are in one place; keep them apart", option)
        written[option] = real
