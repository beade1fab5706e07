"""Formulas such as `lwage ~ exper + C(region) + [educ ~ nearc4]`.

From a table to `IVData`, from later tables to the same covariates, and to plain values that a file can hold.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.blocks import Declaration, Level, category_entries, covariate_label, level_codes, ordered_levels
from bgmiv.data.formula_terms import FORM, FUNCTIONS, FormulaParts, Term, checked_columns, formula_terms, split_formula
from bgmiv.data.ivdata import Covariance, IVData, checked_sampling
from bgmiv.data.messages import naming_rows
from bgmiv.data.read import Missing, check_no_missing, column_names, select_columns, with_levels, without_missing
from bgmiv.data.schema import RoleKind, holds_words
from bgmiv.data.table import Column, Table
from bgmiv.errors import DataError

__all__ = ["FormulaFile", "FormulaReader", "formula_columns", "formula_file", "formula_reader", "from_formula"]

# A typed formula has 10,000 letters at most; written out term by term it may be longer.
_MAX_CHARACTERS, _MAX_FACTORS = 100_000, 10
# Of one side of a formula; at twice as many the made-up table of a saved one would take a gigabyte.
_MAX_COLUMNS = 3000
# More than twice the degrees and knots that a transform may have.
_MIN_ROWS = 250

Path = tuple[str | int, ...]
State = NDArray[np.float64] | tuple[float, ...] | None | bool | int | float | str


@dataclass(frozen=True, eq=False)
class FormulaReader:
    """Computes the covariates of a formula from later tables, with what the transforms learnt at the fit.

    `levels` are those of every column that is used as categories, `words` the ones of these columns that are so
    without `C()`. `spec` is formulaic's specification of the computed terms with their state, None without any.
    """

    terms: tuple[Term, ...]
    levels: Mapping[str, tuple[Level, ...]]
    spec: Any = None
    words: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """The covariates' names."""
        slices = _slices(self.spec)
        return tuple(
            str(name)
            for term in self.terms
            for name in ([term.name] if term.column is not None else self.spec.column_names[slices[term.name]])
        )

    def covariates(self, data: Any) -> Table:
        """The covariates of a table; one without columns if the formula has none."""
        table = check_no_missing(select_columns(data, _columns(self.terms)))
        for column in table.columns:
            if column.name in self.levels:
                level_codes(column, self.levels[column.name], covariate_label(column.name))
        matrix = None if self.spec is None else _computed(self.spec, table, self.terms)
        return _assembled(self.terms, table, matrix)


def formula_columns(formula: str, data: Any) -> tuple[str, ...]:
    """The columns of a table that a formula uses."""
    _, outcome, treatment, instruments, covariates = _sides(formula, data)
    return tuple(dict.fromkeys(_columns([outcome, treatment, *instruments, *covariates])))


@naming_rows
def from_formula(
    formula: str,
    data: Any,
    *,
    missing: Missing = "raise",
    blocks: Mapping[str, Declaration] | None = None,
    treatment_kind: RoleKind = "auto",
    outcome_kind: RoleKind = "auto",
    sample_weight: str | None = None,
    clusters: str | Sequence[str] | None = None,
    covariance: Covariance = "auto",
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
        treatment_kind, outcome_kind, covariance: as in `IVData.from_arrays`.
        sample_weight, clusters: the names of the columns of sample weights and of clusters; two cluster two ways.

    >>> table = {"wage": [9.0, 7, 8, 5], "educ": [12, 16, 11, 9], "near": [0, 3, 2, 1], "age": [30, 40, 50, 35]}
    >>> from_formula("np.log(wage) ~ age + I(age**2) + [educ ~ near]", table)[0]
    IVData(4 rows: np.log(wage), educ, near | age, I(age ** 2))
    """
    parts, outcome, treatment, instruments, covariates = _sides(formula, data)
    if not instruments:
        raise DataError(f"the formula names no instruments. {FORM}.")
    _check_roles(outcome, treatment, instruments, covariates)
    roles = {"outcome": outcome.columns, "treatment": treatment.columns, "instruments": _columns(instruments)}
    sampling = checked_sampling(sample_weight, clusters, roles)
    used = [*_columns([outcome, treatment, *instruments, *covariates])]
    used += [name for names in sampling.values() for name in names]
    table = without_missing(select_columns(data, used), missing)
    index, table = table.index, table._replace(index=None)
    declared = set(blocks or ())
    levels = _all_levels(covariates, table, declared)
    for side, terms in (("covariates", covariates), ("instruments", instruments), ("roles", (outcome, treatment))):
        _check_width(terms, table, side)
    spec = matrix = None
    if any(term.column is None for term in covariates):
        matrix = _computed(parts.covariates, table, covariates)
        spec = matrix.model_spec
    words = frozenset(c.name for c in table.columns if c.name in levels and _is_categorical(c))
    reader = FormulaReader(covariates, levels, spec, words)
    v = _assembled(covariates, table, matrix)
    v = v._replace(columns=tuple(with_levels(column, declared) for column in v.columns))
    ivdata = IVData.from_arrays(
        _one_column(outcome, parts.outcome, table, "outcome"),
        _one_column(treatment, parts.treatment, table, "treatment"),
        instruments=_instruments(instruments, parts.instruments, table),
        covariates=v if covariates else None,
        blocks=blocks,
        treatment_kind=treatment_kind,
        outcome_kind=outcome_kind,
        covariance=covariance,
        **{
            argument: Table(tuple(c for name in names for c in table.columns if c.name == name), table.n_rows, True)
            for argument, names in sampling.items()
        },
    )
    return replace(ivdata, index=index), reader


def _sides(formula: str, data: Any) -> tuple[FormulaParts, Term, Term, tuple[Term, ...], tuple[Term, ...]]:
    """The formula's text by side, and the terms of outcome, treatment, instruments and covariates."""
    parts, known = split_formula(formula), column_names(data)
    single = []
    for side, text in (("outcome", parts.outcome), ("treatment", parts.treatment)):
        terms = formula_terms(text, side, known)
        if len(terms) != 1:
            names = ", ".join(term.name for term in terms) or "none"
            raise DataError(f"the formula has {len(terms)} {side}s ({names}); there must be one. {FORM}.")
        single.append(terms[0])
    instruments = formula_terms(parts.instruments, "instruments", known)
    covariates = formula_terms(parts.covariates, "covariates", known) if parts.covariates else ()
    return parts, single[0], single[1], instruments, covariates


def _columns(terms: Iterable[Term]) -> list[str]:
    return [name for term in terms for name in term.columns]


def _is_categorical(column: Column) -> bool:
    return column.categorical or holds_words(column)


def _check_roles(outcome: Term, treatment: Term, instruments: Sequence[Term], covariates: Sequence[Term]) -> None:
    others = [("instruments", term) for term in instruments] + [("covariates", term) for term in covariates]
    pairs = [("outcome", outcome, *other) for other in (*others, ("treatment", treatment))]
    pairs += [("treatment", treatment, *other) for other in others]
    for role, term, where, other in pairs:
        shared = sorted(set(term.columns) & set(other.columns))
        if shared:
            place = f"the {role} and also in the {where} ({other.name})"
            raise DataError(f"{shared[0]!r} is in {place}. Use it in one of them.")
    both = {term.name for term in instruments} & {term.name for term in covariates}
    if both:
        raise DataError(f"{sorted(both)[0]!r} is among the instruments and among the covariates. Drop one of them.")


def _all_levels(terms: Sequence[Term], table: Table, declared: set[str]) -> dict[str, tuple[Level, ...]]:
    """The levels of each column that the covariates use as categories."""
    # Formulaic sees the whole formula as soon as one of its terms is computed.
    whole = any(term.column is None for term in terms)
    used = set(_columns(term for term in terms if whole or term.levels))
    marked = {name for term in terms for name in term.categories}
    levels = {}
    for column in table.columns:
        if column.name in used and (column.name in marked or _is_categorical(column)):
            with_levels(column, declared | marked)
            levels[column.name] = ordered_levels(category_entries(column, covariate_label(column.name)))
    return levels


def _check_width(terms: Sequence[Term], table: Table, side: str) -> None:
    """Refuse terms that would make too many columns, before they are computed."""
    marked = {name for term in terms for name in term.categories}
    used = [column for column in table.columns if column.name in set(_columns(terms))]
    words = {column.name for column in used if _is_categorical(column)}
    n_levels = {
        column.name: len(set(category_entries(column, covariate_label(column.name))))
        for column in used
        if column.name in words | marked
    }
    total = 0
    for term in terms:
        total += term.width(n_levels, words)
        if total > _MAX_COLUMNS:
            where = f"the formula's {side} make more than {_MAX_COLUMNS} columns"
            raise DataError(f"{where} by the term {term.name[:80]!r}. Use fewer levels, degrees or interactions.")


def _computed(spec: Any, table: Table, terms: Sequence[Term]) -> Any:
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
        if _is_categorical(column):
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


def _assembled(terms: Sequence[Term], table: Table, matrix: Any) -> Table:
    """The terms' columns: those of the table as they are, and those of formulaic's matrix."""
    raw = {column.name: column for column in table.columns}
    slices = _slices(None if matrix is None else matrix.model_spec)
    columns: list[Column] = []
    for term in terms:
        if term.column is not None:
            column = raw[term.column]
            source = "" if term.name == column.name else column.name
            categorical = column.categorical or term.levels
            columns.append(column._replace(name=term.name, categorical=categorical, source=source))
            continue
        part = matrix.iloc[:, slices[term.name]]
        columns += [Column(str(name), np.asarray(part.iloc[:, i])) for i, name in enumerate(part.columns)]
    return Table(tuple(columns), table.n_rows, bool(columns), table.index)


def _slices(spec: Any) -> dict[str, slice]:
    """Where the columns of each term are in formulaic's matrix."""
    return {} if spec is None else {str(term): at for term, at in spec.term_slices.items()}


def _one_column(term: Term, text: str, table: Table, side: str) -> Table:
    matrix = _computed(text, table, [term]) if term.column is None else None
    read = _assembled([term], table, matrix)
    if len(read.columns) != 1:
        raise DataError(f"the formula's {side} {term.name!r} makes {len(read.columns)} columns; there must be one.")
    return read


def _instruments(terms: Sequence[Term], text: str, table: Table) -> Table:
    """The instruments' columns, with levels as indicators of all but the first."""
    words = {column.name for column in table.columns if _is_categorical(column)}
    shown = [term._replace(column=None) if term.levels or term.column in words else term for term in terms]
    matrix = _computed(text, table, terms) if any(term.column is None for term in shown) else None
    return _assembled(shown, table, matrix)


@dataclass(frozen=True, eq=False)
class FormulaFile:
    """A `FormulaReader` as plain values.

    The terms are kept one by one by their factors, not the formula's text, so that nothing is left to expand; each
    goes through the same checks as a formula that is typed. Formulaic's own objects are made anew, from a made-up
    table with the columns and levels of the fit, and only the `state` that its transforms had learnt (means, knots,
    polynomials) is put back: by the transform and the names (or degrees) under which it keeps it.
    """

    columns: tuple[str, ...]
    terms: tuple[tuple[tuple[str, bool], ...], ...]
    levels: dict[str, tuple[Level, ...]]
    words: tuple[str, ...]
    state: tuple[tuple[Path, State], ...]


def formula_file(reader: FormulaReader) -> FormulaFile | None:
    """The reader as plain values; None if they would not give the same reader again."""
    try:
        file = FormulaFile(
            tuple(dict.fromkeys(_columns(reader.terms))),
            tuple(term.factors for term in reader.terms),
            dict(reader.levels),
            tuple(sorted(reader.words)),
            () if reader.spec is None else tuple(_learnt(reader.spec.transform_state)),
        )
        again = formula_reader(file)
    except DataError:
        return None
    return file if again.terms == reader.terms and _same(again.spec, reader.spec) else None


def formula_reader(file: FormulaFile) -> FormulaReader:
    """The reader of plain values that anyone may have written; those that no formula gives are refused."""
    text = _text(file)
    terms = formula_terms(text, "covariates", file.columns) if file.terms else ()
    if tuple(term.factors for term in terms) != file.terms:
        raise DataError("the terms of the saved formula are not those that it says.")
    if file.columns != tuple(dict.fromkeys(_columns(terms))):
        raise DataError("the columns of the saved formula are not those of its terms.")
    if not set(file.words) <= set(file.levels) <= set(file.columns) or not all(file.levels.values()):
        raise DataError("the saved formula's levels are not those of its columns.")
    spec = None
    if any(term.column is None for term in terms):
        if max(map(len, file.levels.values()), default=0) > _MAX_COLUMNS:
            raise DataError(f"a column of the saved formula has more than {_MAX_COLUMNS} levels.")
        table = _made_up(file)
        _check_width(terms, table, "covariates")
        spec = _computed(text, table, terms).model_spec
        spec = spec.update(transform_state=_restored(file.state, spec.transform_state))
    elif file.state:
        raise DataError("the saved formula has the state of a transform, and none of its terms is one.")
    return FormulaReader(terms, file.levels, spec, frozenset(file.words))


def _text(file: FormulaFile) -> str:
    """A formula of these terms; every expression in it was found harmless."""
    parts = ["1"]
    for term in file.terms:
        if not 1 <= len(term) <= _MAX_FACTORS:
            raise DataError(f"a term of the saved formula has {len(term)} factors; it has 1 to {_MAX_FACTORS}.")
        parts.append(":".join(_factor(text, is_column, file.columns) for text, is_column in term))
    text = " + ".join(parts)
    if len(text) > _MAX_CHARACTERS:
        raise DataError(f"the saved formula is longer than {_MAX_CHARACTERS} letters.")
    return text


def _factor(text: str, is_column: bool, columns: Sequence[str]) -> str:
    # What stands between these signs is one factor, whatever it holds; so it must not hold them.
    if is_column:
        if "`" in text or text not in columns:
            raise DataError(f"the saved formula's {text[:80]!r} is none of its columns.")
        return f"`{text}`"
    if "{" in text or "}" in text:
        raise DataError(f"the saved formula's {text[:80]!r} has a brace.")
    checked_columns(text, columns)
    return "{" + text + "}"


def _made_up(file: FormulaFile) -> Table:
    """A table in which every column has all of its levels, or distinct numbers."""
    n = max([_MIN_ROWS, *map(len, file.levels.values())])
    columns = []
    for name in file.columns:
        if name in file.levels:
            words = name in file.words
            kept = np.array(file.levels[name], dtype=object if words else None)
            columns.append(Column(name, kept[np.arange(n) % len(kept)], words))
        else:
            columns.append(Column(name, np.linspace(0.1, 0.9, n)))
    return Table(tuple(columns), n, True)


def _learnt(state: Mapping[Any, Any], path: Path = ()) -> Iterator[tuple[Path, State]]:
    """What transforms have learnt, as values that can be saved."""
    for key, kept in state.items():
        if type(key) not in (str, int):
            raise DataError(f"a transform keeps its state under a {type(key).__name__}.")
        place, value = (*path, key), kept.item() if isinstance(kept, np.generic) else kept
        if isinstance(value, Mapping):
            yield from _learnt(value, place)
        elif value is None or isinstance(value, bool | int | float | str):
            yield place, value
        elif isinstance(value, list | tuple) and all(isinstance(entry, int | float | np.number) for entry in value):
            yield place, tuple(float(entry) for entry in value)
        elif isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
            yield place, np.array(value, dtype=np.float64, order="C")
        else:
            raise DataError(f"a transform keeps a {type(value).__name__}, which cannot be saved.")


def _restored(state: Iterable[tuple[Path, State]], made_up: Mapping[str, Any]) -> dict[str, Any]:
    """The transforms' state; under the names, and of the types, that they have when they learn from made-up data."""
    expected = Counter((path, type(value)) for path, value in _learnt(made_up))
    if Counter((path, type(value)) for path, value in state) != expected:
        raise DataError("the saved formula's state is not that of its transforms.")
    found: dict[Any, Any] = {name: {} for name in made_up}
    for path, value in state:
        if value is not None and not isinstance(value, str) and not np.all(np.isfinite(value)):
            raise DataError(f"a transform's state at {path!r} has a number that is not finite.")
        inner = found
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = list(value) if isinstance(value, tuple) else value
    return found


def _same(one: Any, other: Any) -> bool:
    """Whether two of formulaic's specifications are the same in all that predictions depend on."""
    if one is None or other is None:
        return one is other
    first, second = (dict[Path, Any](_learnt(spec.transform_state)) for spec in (one, other))
    if first.keys() != second.keys() or not all(np.array_equal(first[path], second[path]) for path in first):
        return False
    encoders = [
        {
            str(factor): (kind.value, [str(entry) for entry in state.get("categories", ())])
            for factor, (kind, state) in spec.encoder_state.items()
        }
        for spec in (one, other)
    ]
    return encoders[0] == encoders[1] and tuple(one.column_names) == tuple(other.column_names)
