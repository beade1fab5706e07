"""Formulas such as `lwage ~ exper + C(region) + [educ ~ nearc4]`.

From a table to `IVData`, from later tables to the same covariates, and to plain values that a file can hold.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgmiv.data.blocks import Declaration, Level, category_entries, covariate_label, level_codes, ordered_levels
from bgmiv.data.formula_terms import FORM, FUNCTIONS, FormulaParts, Term, cut, read_terms, split_formula
from bgmiv.data.ivdata import IVData, checked_sampling
from bgmiv.data.messages import naming_rows
from bgmiv.data.schema import holds_words, with_levels
from bgmiv.data.table import Column, Missing, Table, check_no_missing, column_names, select_columns, without_missing
from bgmiv.errors import DataError

__all__ = ["FormulaFile", "FormulaReader", "formula_columns", "formula_file", "formula_reader", "from_formula"]

# Of one side of a formula; at twice as many the made-up table of a saved one would take a gigabyte.
_MAX_COLUMNS = 3000
# A typed formula is shorter; a saved one is written out term by term.
_MAX_CHARACTERS = 100_000
# More than twice the degrees and knots that a transform may have.
_MIN_ROWS = 250

Sides = dict[str, tuple[Term, ...]]
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
        names: list[str] = []
        for term in self.terms:
            names += [term.name] if term.column is not None else self.spec.column_names[_slices(self.spec)[term.name]]
        return tuple(map(str, names))

    def covariates(self, data: Any) -> Table:
        """The covariates of a table; one without columns if the formula has none."""
        table = check_no_missing(select_columns(data, _columns(self.terms)))
        if self.spec is None:
            return _assembled(self.terms, table, None)
        for column in table.columns:
            if column.name in self.levels:
                level_codes(column, self.levels[column.name], covariate_label(column.name))
        return _assembled(self.terms, table, _computed(self.spec, table, self.terms))


def formula_columns(formula: str, data: Any) -> tuple[str, ...]:
    """The columns of a table that a formula uses."""
    sides = _read_sides(split_formula(formula), column_names(data))
    return tuple(dict.fromkeys(name for terms in sides.values() for name in _columns(terms)))


@naming_rows
def from_formula(
    formula: str,
    data: Any,
    *,
    missing: Missing = "raise",
    blocks: Mapping[str, Declaration] | None = None,
    sample_weight: str | None = None,
    clusters: str | Sequence[str] | None = None,
    **options: Any,
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
        sample_weight, clusters: the names of the columns of sample weights and of clusters; two cluster two ways.
        **options: treatment_kind, outcome_kind and covariance, as in `IVData.from_arrays`.

    >>> table = {"wage": [9.0, 7, 8, 5], "educ": [12, 16, 11, 9], "near": [0, 3, 2, 1], "age": [30, 40, 50, 35]}
    >>> from_formula("np.log(wage) ~ age + I(age**2) + [educ ~ near]", table)[0]
    IVData(4 rows: np.log(wage), educ, near | age, I(age ** 2))
    """
    parts = split_formula(formula)
    sides = _read_sides(parts, column_names(data))
    _check_roles(sides)
    roles = {side: _columns(terms) for side, terms in sides.items()}
    sampling = checked_sampling(sample_weight, clusters, roles)
    used = [name for names in (*roles.values(), *sampling.values()) for name in names]
    table = without_missing(select_columns(data, used), missing)
    index, declared = table.index, set(blocks or ())
    levelled = declared.union(*(term.marked for term in sides["covariates"]))
    columns = [with_levels(c, levelled) if c.name in roles["covariates"] else c for c in table.columns]
    table = table._replace(columns=tuple(columns), index=None)
    levels = {side: _levels(sides[side], table) for side in ("instruments", "covariates")}
    for side, terms in sides.items():
        _check_width(terms, levels.get(side, {}), side)
    outcome, _ = _side(sides["outcome"], parts.outcome, table)
    treatment, _ = _side(sides["treatment"], parts.treatment, table)
    for side, single in (("outcome", outcome), ("treatment", treatment)):
        if len(single.columns) != 1:
            raise DataError(f"the formula's {side} makes {len(single.columns)} columns; there must be one.")
    instruments, _ = _side(sides["instruments"], parts.instruments, table, as_indicators=levels["instruments"])
    covariates, spec = _side(sides["covariates"], parts.covariates, table)
    words = frozenset(c.name for c in table.columns if c.name in levels["covariates"] and _is_categorical(c))
    options |= {argument: table.part(names) for argument, names in sampling.items()}
    ivdata = IVData.from_arrays(
        outcome,
        treatment,
        instruments=instruments,
        covariates=covariates if covariates.columns else None,
        blocks=blocks,
        **options,
    )
    return replace(ivdata, index=index), FormulaReader(sides["covariates"], levels["covariates"], spec, words)


def _read_sides(parts: FormulaParts, known: Sequence[str]) -> Sides:
    sides = {side: read_terms(text, side, known) if text else () for side, text in parts._asdict().items()}
    for side in ("outcome", "treatment"):
        terms = sides[side]
        if len(terms) != 1:
            names = ", ".join(_names(terms)) or "none"
            raise DataError(f"the formula has {len(terms)} {side}s ({names}); there must be one. {FORM}.")
    if not sides["instruments"]:
        raise DataError(f"the formula names no instruments. {FORM}.")
    return sides


def _check_roles(sides: Sides) -> None:
    """Refuse a column of the outcome or the treatment, and a term of the instruments, that stands elsewhere too."""
    for (one, terms), (other, others) in combinations(sides.items(), 2):
        names: Callable[[Iterable[Term]], list[str]] = _names if one == "instruments" else _columns
        shared = sorted(set(names(terms)) & set(names(others)))
        if shared:
            raise DataError(f"{shared[0]!r} is in the {one} and also in the {other}. Use it in one of them.")


def _columns(terms: Iterable[Term]) -> list[str]:
    return [name for term in terms for name in term.columns]


def _names(terms: Iterable[Term]) -> list[str]:
    return [term.name for term in terms]


def _is_categorical(column: Column) -> bool:
    return column.categorical or holds_words(column)


def _levels(terms: Sequence[Term], table: Table) -> dict[str, tuple[Level, ...]]:
    """The levels of each column that terms use as categories."""
    used, marked = set(_columns(terms)), set[str]().union(*(term.marked for term in terms))
    return {
        column.name: ordered_levels(category_entries(column, covariate_label(column.name)))
        for column in table.columns
        if column.name in used and (column.name in marked or _is_categorical(column))
    }


def _check_width(terms: Sequence[Term], levels: Mapping[str, Sequence[Level]], side: str) -> None:
    """Refuse terms that would make too many columns, before they are computed."""
    total = 0
    for term in terms:
        width = 1
        for factor in term.factors:
            known = levels.get(factor.column or "")
            width *= factor.width if known is None else len(known)
        total += width
        if total > _MAX_COLUMNS:
            where = f"the formula's {side} make more than {_MAX_COLUMNS} columns"
            raise DataError(f"{where} by the term {cut(term.name)!r}. Use fewer levels, degrees or interactions.")


def _side(terms: Sequence[Term], text: str, table: Table, *, as_indicators: Iterable[str] = ()) -> tuple[Table, Any]:
    """The columns of one side, and formulaic's specification of what it computed of them.

    Levels of the columns in `as_indicators` become indicators of all but the first.
    """
    shown = [term._replace(column=None) if (term.column or "") in as_indicators else term for term in terms]
    if all(term.column is not None for term in shown):
        return _assembled(shown, table, None), None
    matrix = _computed(text, table, terms)
    return _assembled(shown, table, matrix), matrix.model_spec


def _computed(spec: Any, table: Table, terms: Sequence[Term]) -> Any:
    """Formulaic's matrix of a formula's text, or of an earlier matrix's specification.

    The text must have been through `read_terms`: formulaic evaluates it as Python.
    """
    import pandas as pd
    from formulaic.materializers import PandasMaterializer

    factors = [factor for term in terms for factor in term.factors]
    numbers = {name: factor.text for factor in factors for name in factor.numbers}
    measured = {name for factor in factors if factor.levels_of is None for name in factor.columns}
    entries: dict[str, Any] = {}
    for column in table.columns:
        values = column.values
        if values.ndim > 1:
            raise DataError(f"column {column.name!r} is an array, which formulas cannot transform. Use fit_table.")
        if _is_categorical(column):
            if column.name in numbers:
                text = numbers[column.name]
                raise DataError(f"the formula's {cut(text)!r} computes with {column.name!r}, which holds words.")
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
    slices = {} if matrix is None else _slices(matrix.model_spec)
    columns: list[Column] = []
    for term in terms:
        if term.column is not None:
            column, marked = raw[term.column], bool(term.marked)
            source = column.name if marked else ""
            columns.append(Column(term.name, column.values, column.categorical or marked, source))
        else:
            part = matrix.iloc[:, slices[term.name]]
            columns += [Column(str(name), np.asarray(part.iloc[:, i])) for i, name in enumerate(part.columns)]
    return Table(tuple(columns), table.n_rows, bool(columns), table.index)


def _slices(spec: Any) -> dict[str, slice]:
    """Where the columns of each term are in formulaic's matrix."""
    return {str(term): place for term, place in spec.term_slices.items()}


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
            _plain(reader.terms),
            dict(reader.levels),
            tuple(sorted(reader.words)),
            () if reader.spec is None else tuple(_learnt(reader.spec.transform_state)),
        )
        again = formula_reader(file)
    except DataError:
        return None
    return file if again.terms == reader.terms and again.names == reader.names else None


def formula_reader(file: FormulaFile) -> FormulaReader:
    """The reader of plain values that anyone may have written; those that no formula gives are refused."""
    parts = [":".join(f"`{text}`" if is_column else f"{{{text}}}" for text, is_column in term) for term in file.terms]
    text = " + ".join(["1", *parts])
    if len(text) > _MAX_CHARACTERS:
        raise DataError(f"the saved formula is longer than {_MAX_CHARACTERS} letters.")
    terms = read_terms(text, "covariates", file.columns) if file.terms else ()
    if _plain(terms) != file.terms:
        raise DataError("the terms of the saved formula are not those that it says.")
    if file.columns != tuple(dict.fromkeys(_columns(terms))):
        raise DataError("the columns of the saved formula are not those of its terms.")
    if not set(file.words) <= set(file.levels) <= set(file.columns) or not all(file.levels.values()):
        raise DataError("the saved formula's levels are not those of its columns.")
    _check_width(terms, file.levels, "covariates")
    spec = None
    if any(term.column is None for term in terms):
        spec = _computed(text, _made_up(file), terms).model_spec
        spec = spec.update(transform_state=_restored(file.state, spec.transform_state))
    elif file.state:
        raise DataError("the saved formula has the state of a transform, and none of its terms is one.")
    return FormulaReader(terms, file.levels, spec, frozenset(file.words))


def _plain(terms: Iterable[Term]) -> tuple[tuple[tuple[str, bool], ...], ...]:
    return tuple(tuple((factor.text, factor.is_column) for factor in term.factors) for term in terms)


def _made_up(file: FormulaFile) -> Table:
    """A table in which every column has all of its levels, or distinct numbers."""
    n = max([_MIN_ROWS, *map(len, file.levels.values())])
    columns = []
    for name in file.columns:
        if name in file.levels:
            is_words = name in file.words
            kept = np.array(file.levels[name], dtype=object if is_words else None)
            columns.append(Column(name, kept[np.arange(n) % len(kept)], is_words))
        else:
            columns.append(Column(name, np.linspace(0.1, 0.9, n)))
    return Table(tuple(columns), n, True)


def _learnt(state: Mapping[Any, Any], path: Path = ()) -> Iterator[tuple[Path, State]]:
    """What transforms have learnt, as values that can be saved."""
    for key, kept in state.items():
        place, value = (*path, key), kept.item() if isinstance(kept, np.generic) else kept
        if isinstance(value, Mapping):
            yield from _learnt(value, place)
        elif isinstance(value, np.ndarray):
            yield place, np.array(value, dtype=np.float64, order="C")
        elif isinstance(value, list | tuple):
            yield place, tuple(float(entry) for entry in value)
        elif value is None or isinstance(value, bool | int | float | str):
            yield place, value
        else:
            raise DataError(f"a transform keeps a {type(value).__name__}, which cannot be saved.")


def _restored(state: Iterable[tuple[Path, State]], made_up: Mapping[str, Any]) -> dict[str, Any]:
    """The transforms' state; under the names, and of the types, that they have when they learn from made-up data."""
    expected = Counter((path, type(value)) for path, value in _learnt(made_up))
    if Counter((path, type(value)) for path, value in state) != expected:
        raise DataError("the saved formula's state is not that of its transforms.")
    restored: dict[Any, Any] = {name: {} for name in made_up}
    for path, value in state:
        if value is not None and not isinstance(value, str) and not np.all(np.isfinite(value)):
            raise DataError(f"a transform's state at {path!r} has a number that is not finite.")
        inner = restored
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = list(value) if isinstance(value, tuple) else value
    return restored
