"""Formulas such as `lwage ~ exper + C(region) + [educ ~ nearc4]`: from a table to `IVData`, and again at prediction."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bgmiv.data.blocks import Level
from bgmiv.data.columns import Column, Table
from bgmiv.data.encode import category_entries, covariate_label, level_codes, ordered_levels
from bgmiv.data.expressions import FUNCTIONS, checked_columns, level_column
from bgmiv.data.formula_text import FORM, split_formula
from bgmiv.data.frames import (
    Missing,
    check_enough,
    check_known,
    checked_sampling,
    column_names,
    read_columns,
    with_levels,
    without_missing,
)
from bgmiv.data.ivdata import IVData
from bgmiv.data.layout import Declaration
from bgmiv.data.roles import RoleKind, holds_words
from bgmiv.errors import DataError

__all__ = [
    "FormulaReader",
    "assembled",
    "computed",
    "formula_columns",
    "formula_terms",
    "from_formula",
]

_SHOWN = 80


class _Term(NamedTuple):
    """A term's text, the columns it uses, those it uses other than as levels, and the column it is, if just one.

    Its factors are their texts, and whether each is the name of a column; its categories the columns in `C()`.
    """

    name: str
    columns: tuple[str, ...]
    measured: tuple[str, ...]
    column: str | None = None
    levels: bool = False
    factors: tuple[tuple[str, bool], ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class FormulaReader:
    """Computes the covariates of a formula from later tables, with what the transforms learnt at the fit.

    Args:
        terms: the covariates' terms, in order.
        levels: the levels of every column that is used as categories.
        spec: formulaic's specification of the computed terms with their state, or None if there are none.
        words: those of the columns in `levels` that are categorical without `C()`.
    """

    terms: tuple[_Term, ...]
    levels: Mapping[str, tuple[Level, ...]]
    spec: Any = None
    words: frozenset[str] = frozenset()

    def covariates(self, data: Any) -> Table:
        """The covariates of a table; one without columns if the formula has none.

        Raises:
            DataError: a column is absent, has missing values or a level unseen at the fit, or cannot be transformed.
        """
        used = dict.fromkeys(name for term in self.terms for name in term.columns)
        table = without_missing(read_columns(data, used), "raise")
        for column in table.columns:
            if column.name in self.levels:
                level_codes(column, self.levels[column.name], covariate_label(column.name))
        matrix = None if self.spec is None else computed(self.spec, table, self.terms)
        return assembled(self.terms, table, matrix)


def formula_columns(formula: str, data: Any) -> tuple[str, ...]:
    """The columns of a table that a formula uses.

    >>> formula_columns("wage ~ log(age) + [educ ~ near]", {"wage": [], "age": [], "educ": [], "near": [], "id": []})
    ('wage', 'educ', 'near', 'age')
    """
    parts, known = split_formula(formula), column_names(data)
    terms = [_single(parts.outcome, "outcome", known), _single(parts.treatment, "treatment", known)]
    terms += formula_terms(parts.instruments, "instruments", known)
    terms += formula_terms(parts.covariates, "covariates", known) if parts.covariates else ()
    return tuple(dict.fromkeys(name for term in terms for name in term.columns))


def from_formula(
    formula: str,
    data: Any,
    *,
    missing: Missing = "raise",
    blocks: Mapping[str, Declaration] | None = None,
    treatment_kind: RoleKind = "auto",
    outcome_kind: RoleKind = "auto",
    weights: str | None = None,
    groups: str | None = None,
) -> tuple[IVData, FormulaReader]:
    """Validated data from a formula and a table, and the reader of later tables.

    Args:
        formula: `outcome ~ covariates + [treatment ~ instruments]`. Terms are columns (odd names in backticks),
            `C(column)` for levels, interactions `a:b` and `a*b`, and transforms: `np.log(a)`, `I(a**2)`, `poly(a, 2)`,
            `scale(a)`, `bs(a, df=4)`. Strings and categories are levels without `C()`. A constant is always part of a
            method, never of the covariates: `1 +` may be written.
        data: a pandas, polars or pyarrow table, or a mapping of names to arrays.
        missing: "raise" to refuse missing values in the columns used, "drop" to leave out rows that have one.
        blocks: kinds of covariates by the names of their terms, as in `IVData.from_arrays`.
        treatment_kind: as in `IVData.from_arrays`.
        outcome_kind: as in `IVData.from_arrays`.
        weights: the name of the column of sample weights.
        groups: the name of the column of groups.

    Raises:
        DataError: the formula cannot be read, does what formulas may not, or does not fit the data.

    >>> table = {"wage": [9.0, 7, 8, 5], "educ": [12, 16, 11, 9], "near": [0, 3, 2, 1], "age": [30, 40, 50, 35]}
    >>> data, reader = from_formula("np.log(wage) ~ age + I(age**2) + [educ ~ near]", table)
    >>> data
    IVData(4 rows: np.log(wage), educ, near | age, I(age ** 2))
    >>> reader.covariates({"age": [20.0]}).columns[1].values
    array([400.])
    """
    parts = split_formula(formula)
    known = column_names(data)
    outcome = _single(parts.outcome, "outcome", known)
    treatment = _single(parts.treatment, "treatment", known)
    instruments = formula_terms(parts.instruments, "instruments", known)
    covariates = formula_terms(parts.covariates, "covariates", known) if parts.covariates else ()
    if not instruments:
        raise DataError(f"the formula names no instruments. {FORM}.")
    _check_roles(outcome, treatment, instruments, covariates)

    sampling = checked_sampling(
        weights,
        groups,
        {
            "outcome": outcome.columns,
            "treatment": treatment.columns,
            "instruments": [name for term in instruments for name in term.columns],
        },
    )
    used = [name for term in (outcome, treatment, *instruments, *covariates) for name in term.columns]
    used += sampling.values()
    table = without_missing(read_columns(data, used), missing)._replace(index=None)
    check_enough(table)
    declared = set(blocks or ())
    levels = _all_levels(covariates, table, declared)
    spec = matrix = None
    if any(term.column is None for term in covariates):
        matrix = computed(parts.covariates, table, covariates)
        spec = matrix.model_spec
    words = frozenset(c.name for c in table.columns if c.name in levels and (c.categorical or holds_words(c)))
    reader = FormulaReader(covariates, levels, spec, words)
    v = assembled(covariates, table, matrix)
    if covariates:
        v = v._replace(columns=tuple(c if c.name in declared else with_levels(c) for c in v.columns))
    ivdata = IVData.from_arrays(
        _one_column(outcome, parts.outcome, table, "outcome"),
        _one_column(treatment, parts.treatment, table, "treatment"),
        instruments=_instruments(instruments, parts.instruments, table),
        covariates=v if covariates else None,
        blocks=blocks,
        treatment_kind=treatment_kind,
        outcome_kind=outcome_kind,
        **{
            argument: Table(tuple(c for c in table.columns if c.name == name), table.n_rows, True)
            for argument, name in sampling.items()
        },
    )
    return ivdata, reader


def _parse(text: str) -> Any:
    from formulaic import Formula, SimpleFormula

    if any(len(power) > 1 for power in re.findall(r"(?:\*\*|\^)\s*(\d+)", text)):
        raise DataError(f"the formula's {text!r} has a power above 9. Compute it as a column of the table first.")
    try:
        parsed = Formula(text)
    # Formulaic has exceptions of its own and lets Python's through.
    except Exception as error:
        found = re.sub(r"⧛\[[\d;]*m|\x1b\[[\d;]*m|⧚", "", str(error)).splitlines() or [type(error).__name__]
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
        raise DataError(f"the formula's {shown!r} cannot be read: {found[0]}") from None
    if not isinstance(parsed, SimpleFormula):
        raise DataError(f"the formula's {text!r} has several parts. {FORM}.")
    return parsed


def formula_terms(text: str, side: str, known: Sequence[str]) -> tuple[_Term, ...]:
    """The terms of one side of a formula, found harmless.

    >>> [term.columns for term in formula_terms("a + np.log(b):c", "covariates", ["a", "b", "c"])]
    [('a',), ('b', 'c')]
    """
    parsed = _parse(text)
    terms, constant = [], False
    for term in parsed:
        factors = [factor for factor in term.factors if factor.eval_method.value != "literal"]
        if not factors:
            constant = True
            continue
        terms.append(_term(str(term), factors, known))
    if not constant:
        raise DataError(f"the formula's {side} leave the constant out (0 or -1), which no method can. Drop that.")
    return tuple(terms)


def _term(name: str, factors: Sequence[Any], known: Sequence[str]) -> _Term:
    columns: dict[str, None] = {}
    measured: dict[str, None] = {}
    categories: dict[str, None] = {}
    plain = levels = None
    used: tuple[str, ...]
    for factor in factors:
        if factor.eval_method.value == "lookup":
            check_known(factor.expr, known)
            plain, used, levels = factor.expr, (factor.expr,), None
        else:
            used = checked_columns(factor.expr, known)
            plain = levels = level_column(factor.expr, known)
        columns.update(dict.fromkeys(used))
        (measured if levels is None else categories).update(dict.fromkeys(used))
    if not columns:
        raise DataError(f"the formula's term {name!r} uses no column of the table. Leave it out.")
    single = len(factors) == 1
    parts = tuple((factor.expr, factor.eval_method.value == "lookup") for factor in factors)
    whole = (plain if single else None, single and levels is not None)
    return _Term(name, tuple(columns), tuple(measured), *whole, parts, tuple(categories))


def _single(text: str, side: str, known: Sequence[str]) -> _Term:
    terms = formula_terms(text, side, known)
    if len(terms) != 1:
        names = ", ".join(term.name for term in terms) or "none"
        raise DataError(f"the formula has {len(terms)} {side}s ({names}); there must be one. {FORM}.")
    return terms[0]


def _check_roles(outcome: _Term, treatment: _Term, instruments: Sequence[_Term], covariates: Sequence[_Term]) -> None:
    for role, term in (("outcome", outcome), ("treatment", treatment)):
        others = [("the instruments", other) for other in instruments] + [("the covariates", o) for o in covariates]
        others += [("the treatment", treatment)] if role == "outcome" else []
        for where, other in others:
            shared = sorted(set(term.columns) & set(other.columns))
            if shared:
                raise DataError(
                    f"{shared[0]!r} is in the {role} and also in {where} ({other.name}). Use it in one of them."
                )
    both = {term.name for term in instruments} & {term.name for term in covariates}
    if both:
        raise DataError(f"{sorted(both)[0]!r} is among the instruments and among the covariates. Drop one of them.")


def _all_levels(terms: Sequence[_Term], table: Table, declared: set[str]) -> dict[str, tuple[Level, ...]]:
    """The levels of each column that the covariates use as categories."""
    # Formulaic sees the whole formula as soon as one of its terms is computed.
    whole = any(term.column is None for term in terms)
    used = {name for term in terms for name in term.columns if whole or term.levels}
    marked = {name for term in terms for name in term.categories}
    levels = {}
    for column in table.columns:
        if column.name in used and (column.name in marked or column.categorical or holds_words(column)):
            if column.name not in declared | marked:
                with_levels(column)
            levels[column.name] = ordered_levels(category_entries(column, covariate_label(column.name)))
    return levels


def computed(spec: Any, table: Table, terms: Sequence[_Term]) -> Any:
    """Formulaic's matrix of a formula's text, or of an earlier matrix's specification.

    The text must have been through `formula_terms`: formulaic evaluates it as Python.
    """
    import pandas as pd
    from formulaic.materializers import PandasMaterializer

    entries: dict[str, Any] = {}
    measured = {name for term in terms for name in term.measured}
    for column in table.columns:
        if column.values.ndim > 1:
            raise DataError(f"column {column.name!r} is an array, which formulas cannot transform. Use fit_table.")
        values = column.values
        if column.categorical or holds_words(column):
            values = values.astype(object)
        elif values.dtype.kind in "biuf" and column.name in measured:
            # Powers of whole numbers overflow, and booleans have no arithmetic.
            values = values.astype(np.float64)
        entries[column.name] = values
    frame = pd.DataFrame(entries, index=pd.RangeIndex(table.n_rows))
    options = {"na_action": "ignore", "output": "pandas"} if isinstance(spec, str) else {}
    functions = {name: getattr(np, name) for name in FUNCTIONS}
    try:
        # Numbers that are not finite are reported with their column's name when the data are validated.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return PandasMaterializer(frame, context=functions).get_model_matrix(spec, **options)
    # A transform may raise anything on data it cannot take.
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"a term of the formula cannot be computed: {first}") from error


def assembled(terms: Sequence[_Term], table: Table, matrix: Any) -> Table:
    """The terms' columns: those of the table as they are, and those of formulaic's matrix."""
    raw = {column.name: column for column in table.columns}
    slices = {} if matrix is None else {str(term): at for term, at in matrix.model_spec.term_slices.items()}
    columns: list[Column] = []
    for term in terms:
        if term.column is not None:
            column = raw[term.column]
            columns.append(column._replace(name=term.name, categorical=column.categorical or term.levels))
            continue
        part = matrix.iloc[:, slices[term.name]]
        columns += [Column(str(name), np.asarray(part.iloc[:, i])) for i, name in enumerate(part.columns)]
    return Table(tuple(columns), table.n_rows, bool(columns), table.index)


def _one_column(term: _Term, text: str, table: Table, side: str) -> Table:
    matrix = computed(text, table, [term]) if term.column is None else None
    read = assembled([term], table, matrix)
    if len(read.columns) != 1:
        raise DataError(f"the formula's {side} {term.name!r} makes {len(read.columns)} columns; there must be one.")
    return read


def _instruments(terms: Sequence[_Term], text: str, table: Table) -> Table:
    """The instruments' columns, with levels as indicators of all but the first."""
    words = {c.name for c in table.columns if c.categorical or holds_words(c)}
    shown = [term._replace(column=None) if term.levels or term.column in words else term for term in terms]
    matrix = computed(text, table, terms) if any(term.column is None for term in shown) else None
    return assembled(shown, table, matrix)
