"""What the commands that fit share: a file, and the roles of its columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bgmiv.cli.options import words

if TYPE_CHECKING:
    from bgmiv.estimators.base import IVEstimator

__all__ = [
    "Covariates",
    "Data",
    "Formula",
    "Groups",
    "Instruments",
    "Kind",
    "MissingValues",
    "Outcome",
    "Roles",
    "Treatment",
    "Weights",
    "chosen_roles",
    "fitted_model",
    "in_options",
    "rows_used",
    "warnings_shown",
]

Data = Annotated[Path, typer.Argument(help="A CSV or Parquet file.", show_default=False)]
Formula = Annotated[
    str | None,
    typer.Option(help="'outcome ~ covariates + \\[treatment ~ instruments]', instead of the four options after it."),
]
Outcome = Annotated[str | None, typer.Option(help="The outcome's column.")]
Treatment = Annotated[str | None, typer.Option(help="The treatment's column.")]
Instruments = Annotated[list[str] | None, typer.Option(help="The instruments' columns: a,b, or the option repeated.")]
Covariates = Annotated[list[str] | None, typer.Option(help="The covariates' columns, likewise.")]
Weights = Annotated[str | None, typer.Option(help="The column of sample weights.")]
Groups = Annotated[str | None, typer.Option(help="The column of groups of rows that are not independent.")]
MissingValues = Annotated[
    str, typer.Option("--missing", help="raise: refuse missing values; drop: leave such rows out.")
]
Kind = Annotated[
    list[str] | None,
    typer.Option(help="COLUMN=KIND where the file does not tell: continuous, binary, categorical. Repeatable."),
]

_KINDS = ("continuous", "binary", "categorical")


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
    formula: str | None,
    outcome: str | None,
    treatment: str | None,
    instruments: list[str] | None,
    covariates: list[str] | None,
    weights: str | None,
    groups: str | None,
    missing: str,
    kind: list[str] | None,
) -> Roles:
    """The roles that the options stand for; a bad option is blamed before the file is read."""
    if missing not in ("raise", "drop"):
        raise typer.BadParameter(f"{missing!r} is neither raise nor drop", param_hint="--missing")
    named = {"--outcome": outcome, "--treatment": treatment, "--instruments": instruments, "--covariates": covariates}
    given = [option for option, value in named.items() if value]
    if formula is not None:
        if given:
            raise typer.BadParameter(f"give a formula or {given[0]}, not both", param_hint="--formula")
        from bgmiv.data.formula_terms import split_formula
        from bgmiv.errors import DataError

        try:
            parts = split_formula(formula)
        except DataError as error:
            raise typer.BadParameter(str(error), param_hint="--formula") from error
        outcome, treatment = parts.outcome, parts.treatment
    elif not given:
        raise typer.BadParameter(
            "say which column is which: --formula 'y ~ v + [x ~ w]', or --outcome, --treatment and --instruments",
            param_hint="--formula",
        )
    for option, value in (("--outcome", outcome), ("--treatment", treatment), ("--instruments", instruments)):
        if not value and formula is None:
            raise typer.BadParameter("name a column of the file", param_hint=option)
    assert outcome is not None
    assert treatment is not None
    blocks = _kinds(kind or [])
    kinds = {
        f"{role}_kind": blocks.pop(name)
        for role, name in (("treatment", treatment), ("outcome", outcome))
        if name in blocks
    }
    return Roles(
        formula,
        outcome,
        treatment,
        tuple(words(instruments or [])),
        tuple(words(covariates or [])),
        weights,
        groups,
        missing,
        kinds,
        blocks,
    )


def _kinds(declared: list[str]) -> dict[str, str]:
    found = {}
    for entry in words(declared):
        name, equals, kind = entry.rpartition("=")
        if not equals or not name or kind not in _KINDS:
            raise typer.BadParameter(
                f"{entry!r} is not COLUMN=KIND with one of {', '.join(_KINDS)}", param_hint="--kind"
            )
        found[name] = kind
    return found


def fitted_model(model: IVEstimator, table: Any, roles: Roles) -> IVEstimator:
    """The estimator fitted on the table, by formula or by names.

    Raises:
        DataError: the data cannot be used; the message names options of the command line.
    """
    from bgmiv.errors import DataError

    more: dict[str, Any] = {"missing": roles.missing, "weights": roles.weights, "groups": roles.groups}
    try:
        if roles.formula is not None:
            return model.fit_formula(roles.formula, table, blocks=roles.blocks or None, **more)
        return model.fit_table(
            table,
            outcome=roles.outcome,
            treatment=roles.treatment,
            instruments=list(roles.instruments),
            covariates=list(roles.covariates) or None,
            blocks=roles.blocks or None,
            **more,
        )
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

    >>> roles = chosen_roles("y ~ v + [x ~ w]", None, None, None, None, None, None, "raise", None)
    >>> in_options("Fill them, or leave such rows out with missing='drop'.", roles)
    'Fill them, or leave such rows out with --missing drop.'
    >>> in_options("say treatment_kind='binary', or use blocks={'v': 'categorical'}.", roles)
    'say --kind x=binary, or use --kind v=categorical.'
    """
    text = text.replace("missing='drop'", "--missing drop")
    for role in ("treatment", "outcome"):
        name = roles.treatment if role == "treatment" else roles.outcome
        # In a replacement a backslash is special.
        replacement = f"--kind {name}=".replace("\\", r"\\") + r"\1"
        text = re.sub(rf"\b{role}_kind='(\w+)'", replacement, text)
    return re.sub(r"blocks=\{'([^']+)': '(\w+)'[^}]*\}", r"--kind \1=\2", text)


@contextmanager
def warnings_shown(roles: Roles | None = None) -> Iterator[None]:
    """Warnings of the library as one line each on stderr."""
    import warnings

    from bgmiv.errors import BGMIVWarning

    def show(message: Warning | str, *_: Any) -> None:
        text = str(message) if roles is None else in_options(str(message), roles)
        typer.echo(f"Warning: {text}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", BGMIVWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield
