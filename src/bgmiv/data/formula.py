"""Formulas such as `lwage ~ exper + C(region) + [educ ~ nearc4]`.

From a table to `IVData`, from later tables to the same covariates, and to plain values that a file can hold. Formulaic
evaluates expressions as Python. Terms are arithmetic of columns and a fixed list of functions; anything else is refused
before that, and so is what would make columns without end.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np

from bgmiv.data.blocks import Declaration, Level, category_entries, level_codes, ordered_levels
from bgmiv.data.ivdata import IVData, check_names, column_arguments
from bgmiv.data.messages import Column, Floats, cut, first_line, naming_rows
from bgmiv.data.schema import is_categorical, with_levels
from bgmiv.data.table import ColumnReader, Missing, Table, check_known, column_names, select_columns, without_missing
from bgmiv.errors import DataError

__all__ = [
    "Factor", "FormulaFile", "FormulaReader", "Side", "Term", "formula_file", "formula_reader",
    "from_formula", "split_formula",
]  # fmt: skip

_FORM = "Write it as 'outcome ~ covariates + [treatment ~ instruments]'"

# Functions of numpy that may be written without `np.`; with it, all of one row at a time may.
_FUNCTIONS = frozenset(["log", "log2", "log10", "exp", "exp2", "sqrt", "abs", "log1p", "expm1"])
# Formulaic's own; what they learn from the data of the fit (means, knots) is used again at prediction.
_SPLINES = frozenset(["bs", "cc", "cr", "cs", "poly"])
_TRANSFORMS = _SPLINES | {"C", "I", "center", "scale", "standardize"}
_BOUNDS = frozenset(["lower_bound", "upper_bound", "a_min", "a_max"])
_ARGUMENTS = _BOUNDS | {
    "center", "constraints", "ddof", "degree", "df", "extrapolation", "include_intercept", "knots", "raw", "scale",
}  # fmt: skip
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr)
_SIGNS = (ast.UAdd, ast.USub, ast.Invert)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)

_MAX_POWER = 9
# Degrees, degrees of freedom, knots.
_MAX_SETTING = 100
# Of one side of a formula; at twice as many columns the made-up table of a saved one would take a gigabyte.
_MAX_COLUMNS = 3000
# More than twice the degrees and knots that a transform may have.
_MIN_ROWS = 250

Path = tuple[str | int, ...]
PlainTerms = tuple[tuple[tuple[str, bool], ...], ...]
State = Floats | tuple[float, ...] | None | bool | int | float | str


class Factor(NamedTuple):
    """A factor of a term: the name of a column, or an expression, as formulaic writes it.

    `columns` are the table's columns that it uses, `numbers` those of them that it computes with, `levels_of` is the
    column of `C(column)`, and `width` how many columns an expression makes at most, if it does not make levels.
    """

    text: str
    is_column: bool
    columns: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    levels_of: str | None = None
    width: int = 1

    @property
    def column(self) -> str | None:
        """The column that it is, or of which it is the levels."""
        return self.text if self.is_column else self.levels_of


class Term(NamedTuple):
    """One term of a formula; its name is its text."""

    name: str
    factors: tuple[Factor, ...]

    @property
    def column(self) -> str | None:
        """The column that it is, or of which it is the levels."""
        return self.factors[0].column if len(self.factors) == 1 else None


class Side(NamedTuple):
    """One side of a formula: its role, as formulaic has read it, and its terms, found harmless."""

    role: str
    parsed: Any
    terms: tuple[Term, ...]

    @property
    def factors(self) -> list[Factor]:
        """The factors of all terms."""
        return [factor for term in self.terms for factor in term.factors]

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns that it uses."""
        return tuple(dict.fromkeys(name for factor in self.factors for name in factor.columns))

    @property
    def plain(self) -> PlainTerms:
        """The texts of the factors of each term, and whether they are columns."""
        return tuple(tuple((factor.text, factor.is_column) for factor in term.factors) for term in self.terms)

    @property
    def marked(self) -> set[str]:
        """The columns in `C()`."""
        return {factor.levels_of for factor in self.factors if factor.levels_of is not None}


@dataclass(frozen=True, eq=False)
class FormulaReader:
    """Computes the covariates of a formula from later tables, with what the transforms learnt at the fit.

    `levels` are those of every column that is used as categories, `words` the ones of these columns that are so
    without `C()`. `spec` is formulaic's specification of the computed terms with their state, None without any.
    """

    side: Side
    names: tuple[str, ...]
    levels: Mapping[str, tuple[Level, ...]]
    spec: Any = None
    words: frozenset[str] = frozenset()

    def covariates(self, data: Any) -> Table:
        """The covariates of a table; one without columns if the formula has none."""
        table = ColumnReader(self.side.columns).covariates(data)
        for column in table.columns if self.spec is not None else ():
            if column.name in self.levels:
                level_codes(column._replace(role="covariates"), self.levels[column.name])
        return _side_table(self.side, table, self.levels, self.spec)[0]


@naming_rows()
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
    known = column_names(data)
    sides = {role: _read_side(text or "1", known, role) for role, text in split_formula(formula).items()}
    for role in ("outcome", "treatment"):
        terms = [term.name for term in sides[role].terms]
        if len(terms) != 1:
            raise DataError(f"the formula has {len(terms)} {role}s ({', '.join(terms) or 'none'}), not one. {_FORM}.")
    covariates, instruments = sides["covariates"], sides["instruments"]
    if shared := {term.name for term in covariates.terms} & {term.name for term in instruments.terms}:
        raise DataError(f"{min(shared)!r} is given both as covariates and as instruments. Use it in one of them.")
    sampling = column_arguments(sample_weight=sample_weight, clusters=clusters)
    used = {role: side.columns for role, side in sides.items()} | sampling
    # Instruments and covariates may share columns, in different terms.
    check_names(used | {"covariates": set(covariates.columns) - set(instruments.columns)})
    table = without_missing(select_columns(data, [name for names in used.values() for name in names]), missing)
    declared = {*(blocks or ()), *covariates.marked}
    columns = [with_levels(c, declared) if c.name in covariates.columns else c for c in table.columns]
    table = table._replace(columns=tuple(columns))
    given: dict[str, Any] = {argument: table.part(names) for argument, names in sampling.items()}
    levels = {role: _levels(side, table) for role, side in sides.items()}
    specs: dict[str, Any] = {}
    for role, side in sides.items():
        given[role], specs[role] = _side_table(side, table, levels[role])
    words = frozenset(c.name for c in table.columns if c.name in levels["covariates"] and is_categorical(c))
    reader = FormulaReader(covariates, given["covariates"].names, levels["covariates"], specs["covariates"], words)
    return IVData.from_arrays(**given, blocks=blocks, **options), reader


def split_formula(formula: str) -> dict[str, str]:
    """The four sides of a formula, taken apart at its bracket and its tildes; that of the covariates with a constant.

    >>> split_formula("lwage ~ exper + [educ ~ nearc4] + black")
    {'outcome': 'lwage', 'treatment': 'educ', 'instruments': 'nearc4', 'covariates': '1 + exper + black'}
    """
    if not isinstance(formula, str):
        raise DataError(f"a formula is a string, got {type(formula).__name__}. {_FORM}.")
    # Names in backticks, texts and what stands in parentheses may hold tildes and brackets of their own.
    masked, n_masked = re.sub(r"`[^`]*`|'[^']*'|\"[^\"]*\"", _blank, formula), 1
    while n_masked:
        masked, n_masked = re.subn(r"\([^()]*\)", _blank, masked)
    if (n_brackets := masked.count("[")) != 1:
        problem = "no bracket" if not n_brackets else f"{n_brackets} brackets, and there is one treatment"
        raise DataError(f"the formula has {problem}. {_FORM}.")
    places = re.fullmatch(r"([^~]*)~([^~\]]*)\[([^~\]]*)~([^~\]]*)\]([^~\]]*)", masked)
    if places is None:
        raise DataError(f"the formula needs one ~ before the bracket and one inside it, which is closed. {_FORM}.")
    outcome, before, treatment, instruments, after = (formula[slice(*places.span(i))].strip() for i in range(1, 6))
    if (before and not before.endswith("+")) or (after and after[0] not in "+-"):
        raise DataError(f"the formula's bracket is a term of its own: put + before and after it. {_FORM}.")
    covariates = f"1 + {before}".strip().removesuffix("+") + after
    return {"outcome": outcome, "treatment": treatment, "instruments": instruments, "covariates": covariates}


def _blank(match: re.Match[str]) -> str:
    return "_" * len(match[0])


def _read_side(text: str, known: Sequence[str], role: str) -> Side:
    """One side of a typed formula for a table with these columns, found harmless."""
    from formulaic import Formula
    from formulaic.parser.algos.tokenize import tokenize

    # Formulaic takes these for the constant, backticks or not.
    if odd := {"", "1"} & set(text.split("`")[1::2]):
        raise DataError(f"a formula cannot use the column {odd.pop()!r} by its name. Rename it, or use fit_table.")
    try:
        tokens = list(tokenize(text))
        operators = {sign for token in tokens if token.kind.value == "operator" for sign in token.token}
        powers = {power.token for sign, power in pairwise(tokens) if sign.token in ("**", "^")} - set("123456789")
        # To read what stands before a tilde, formulaic evaluates it.
        parsed = None if powers or operators & {"~", "|"} else Formula(text)
    # Formulaic has exceptions of its own and lets Python's through.
    except Exception as error:
        plain = re.sub(r"⧛\[[\d;]*m|\x1b\[[\d;]*m|⧚", "", first_line(error))
        raise DataError(f"the formula's {cut(text)!r} cannot be read: {plain}") from None
    if powers:
        raise DataError(f"the formula's {cut(text)!r} has a power above {_MAX_POWER} or no number. Use fewer.")
    if parsed is None:
        raise DataError(f"the formula's {cut(text)!r} has several parts. {_FORM}.")
    return _checked_side(parsed, known, role)


def _checked_side(formula: Any, known: Sequence[str], role: str) -> Side:
    """One side as formulaic has read it, once all of its terms are found harmless."""
    from formulaic import ModelSpec

    factors = {term: [factor for factor in term.factors if factor.eval_method.value != "literal"] for term in formula}
    read = {str(term): tuple(_read_factor(factor, known) for factor in own) for term, own in factors.items()}
    terms = [Term(name, own) for name, own in read.items() if own]
    # That of numbers only is the constant.
    if all(factors.values()):
        raise DataError(f"the formula's {role} leave the constant out (0 or -1), which no method can. Drop that.")
    return Side(role, ModelSpec.from_spec(formula, na_action="ignore", output="pandas"), tuple(terms))


def _read_factor(factor: Any, known: Sequence[str]) -> Factor:
    if factor.eval_method.value != "lookup":
        return _Expression(factor.expr, known).factor()
    check_known(factor.expr, known)
    return Factor(factor.expr, True, (factor.expr,))


class _Expression:
    """One expression: what it uses and makes, once all of it is found harmless; odd names in it stand in backticks."""

    def __init__(self, text: str, known: Sequence[str]) -> None:
        self.text, self.known = text, known
        # Which identifiers stand for oddly named columns.
        self.aliases: dict[str, str] = {}
        self.columns: dict[str, None] = {}
        self.numbers: dict[str, None] = {}
        self.width = 1

    def factor(self) -> Factor:
        """The factor of a term that it is."""
        from formulaic.utils.code import sanitize_variable_names

        try:
            # The very tree that formulaic evaluates.
            code = sanitize_variable_names(self.text, dict.fromkeys(self.known, 0), self.aliases)
            tree = ast.parse(code, mode="eval").body
            self.check(tree)
        except DataError:
            raise
        except (SyntaxError, ValueError, RecursionError, MemoryError, IndexError) as error:
            raise DataError(f"the formula's {cut(self.text)!r} cannot be read: {error}.") from None
        is_levels = isinstance(tree, ast.Call) and ast.unparse(tree.func) == "C"
        levels_of = next(iter(self.columns)) if is_levels else None
        return Factor(self.text, False, tuple(self.columns), tuple(self.numbers), levels_of, self.width)

    def check(self, node: ast.expr, *, as_number: bool = True) -> None:
        """Refuse what is not on the list; a name or a text that is not used as a number may hold words."""
        match node:
            case ast.Name():
                name = self.aliases.get(node.id, node.id)
                check_known(name, self.known)
                self.columns[name] = None
                if as_number:
                    self.numbers[name] = None
            case ast.Constant(value=value) if isinstance(value, int | float if as_number else int | float | str):
                pass
            case ast.UnaryOp() if isinstance(node.op, _SIGNS):
                self.check(node.operand)
            case ast.BinOp(op=ast.Pow()):
                # Powers of constants may be numbers without end.
                power = _literal(node.right)
                small = isinstance(power, int | float) and abs(power) <= _MAX_POWER
                if not small or not any(isinstance(part, ast.Name) for part in ast.walk(node.left)):
                    self.refuse(f"has a power other than of a column to a number up to {_MAX_POWER}")
                self.check(node.left)
            case ast.BinOp() if isinstance(node.op, _OPERATORS):
                self.check(node.left)
                self.check(node.right)
            case ast.Compare(ops=[operator]) if isinstance(operator, _COMPARISONS):
                self.width *= 2
                self.check(node.left, as_number=False)
                self.check(node.comparators[0], as_number=False)
            case ast.Call():
                self.check_call(node)
            case _:
                self.refuse(f"has {cut(ast.unparse(node), 40)!r}")

    def check_call(self, node: ast.Call) -> None:
        """A function on the list, with arguments that are expressions, or settings that are written out."""
        name = ast.unparse(node.func)
        function = getattr(np, name.removeprefix("np."), None) if name.startswith("np.") else None
        # A function with a signature does not handle each row by itself.
        by_row = isinstance(function, np.ufunc) and function.signature is None
        if not by_row and name not in _FUNCTIONS | _TRANSFORMS | {"np.clip", "np.where"}:
            self.refuse(f"calls {cut(name, 40)}")
        if not node.args or any(keyword.arg not in _ARGUMENTS for keyword in node.keywords):
            self.refuse(f"calls {name} with no argument or one that it may not have")
        if name == "C":
            if len(node.args) > 1 or node.keywords or not isinstance(node.args[0], ast.Name):
                raise DataError(f"the formula's {self.text!r}: C() takes one column of the table and nothing else.")
            return self.check(node.args[0], as_number=False)
        given = dict.fromkeys(node.args[1:], "") | {keyword.value: str(keyword.arg) for keyword in node.keywords}
        if name in _SPLINES:
            self.check_settings(name, [_literal(value) for value, argument in given.items() if argument not in _BOUNDS])
        self.check(node.args[0])
        for value, argument in given.items():
            if not argument or _literal(value) is ...:
                self.check(value)
        return None

    def check_settings(self, name: str, settings: Sequence[Any]) -> None:
        """What decides how many columns a spline or a polynomial makes."""
        # Knots and a degree, which is 3 by default, with a constant.
        width = 4.0
        for value in settings:
            if value is ...:
                self.refuse(f"gives {name} a setting that is computed")
            size = len(value) if isinstance(value, list | tuple) else value
            if isinstance(size, int | float):
                if not 1 <= size <= _MAX_SETTING and not isinstance(size, bool):
                    self.refuse(f"has a setting below 1 or above {_MAX_SETTING}")
                width += size
        self.width *= math.ceil(width)

    def refuse(self, what: str) -> NoReturn:
        """An error that says what formulas may call."""
        allowed = ", ".join([*sorted(_FUNCTIONS), *sorted(_TRANSFORMS)])
        raise DataError(
            f"the formula's {cut(self.text)!r} {what}, which formulas may not. They may call functions of numpy by "
            f"row, such as np.log, and {allowed}. Compute anything else as a column of the table first."
        )


def _literal(node: ast.expr) -> Any:
    """The value of what is written out; an ellipsis for what is computed."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ...


def _levels(side: Side, table: Table) -> dict[str, tuple[Level, ...]]:
    """The levels of each column that terms use as categories."""
    return {
        column.name: ordered_levels(category_entries(column._replace(role=side.role)))
        for column in table.columns
        if column.name in side.columns and (column.name in side.marked or is_categorical(column))
    }


def _check_width(side: Side, levels: Mapping[str, Sequence[Level]]) -> None:
    """Refuse terms that would make too many columns, before they are computed."""
    total = 0
    for term in side.terms:
        width = 1
        for factor in term.factors:
            known = levels.get(factor.column or "")
            width *= factor.width if known is None else len(known)
        total += width
        if total > _MAX_COLUMNS:
            where = f"the formula's {side.role} make more than {_MAX_COLUMNS} columns"
            raise DataError(f"{where} by the term {cut(term.name)!r}. Use fewer levels, degrees or interactions.")


def _side_table(side: Side, table: Table, levels: Mapping[str, Sequence[Level]], spec: Any = None) -> tuple[Table, Any]:
    """The columns of one side, those of the table as they are, and formulaic's specification of the computed ones.

    `spec` is an earlier specification. Levels of instruments become indicators of all but the first.
    """
    _check_width(side, levels)
    columns, indicators = table.by_name, levels if side.role == "instruments" else ()
    read: list[Column] = []
    matrix: Any = None
    places: dict[str, Any] = {}
    if any(term.column is None or term.column in indicators for term in side.terms):
        matrix = _computed(spec or side.parsed, table, side)
        spec = matrix.model_spec
        places = {str(term): place for term, place in spec.term_slices.items()}
    for term in side.terms:
        if term.column is None or term.column in indicators:
            part = matrix.iloc[:, places[term.name]]
            read += [Column(str(name), np.asarray(part.iloc[:, i])) for i, name in enumerate(part.columns)]
        elif term.factors[0].is_column:
            read.append(columns[term.column])
        else:
            # C() of a column.
            read.append(columns[term.column]._replace(name=term.name, categorical=True, source=term.column))
    return Table(tuple(read), table.n_rows, bool(read), table.index), spec


def _computed(spec: Any, table: Table, side: Side) -> Any:
    """Formulaic's matrix of a side as it was read, or of an earlier matrix's specification."""
    import pandas as pd
    from formulaic.materializers import PandasMaterializer

    numbers = {name: factor.text for factor in side.factors for name in factor.numbers}
    measured = {name for factor in side.factors if factor.levels_of is None for name in factor.columns}
    entries: dict[str, Any] = {}
    for column in table.columns:
        values = column.values
        if values.ndim > 1:
            raise DataError(f"column {column.name!r} is an array, which formulas cannot transform. Use fit_table.")
        if is_categorical(column):
            if column.name in numbers:
                text = numbers[column.name]
                raise DataError(f"the formula's {cut(text)!r} computes with {column.name!r}, which holds words.")
            values = values.astype(object)
        elif values.dtype.kind in "biuf" and column.name in measured:
            # Powers of whole numbers overflow, and booleans have no arithmetic.
            values = values.astype(np.float64)
        entries[column.name] = values
    frame = pd.DataFrame(entries, index=pd.RangeIndex(table.n_rows))
    functions = {name: getattr(np, name) for name in _FUNCTIONS}
    try:
        # Numbers that are not finite are reported with their column's name when the data are validated.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return PandasMaterializer(frame, context=functions).get_model_matrix(spec)
    # A transform may raise anything on data it cannot take.
    except Exception as error:
        raise DataError(f"a term of the formula cannot be computed: {first_line(error)}") from error


@dataclass(frozen=True, eq=False)
class FormulaFile:
    """A `FormulaReader` as plain values.

    The terms are kept one by one by their factors, not the formula's text, so that nothing is left to expand; each
    goes through the same checks as a formula that is typed. Formulaic's own objects are made anew, from a made-up
    table with the columns and levels of the fit, and only the `state` that its transforms had learnt (means, knots,
    polynomials) is put back: by the transform and the names (or degrees) under which it keeps it.
    """

    columns: tuple[str, ...]
    terms: PlainTerms
    levels: dict[str, tuple[Level, ...]]
    words: tuple[str, ...]
    state: tuple[tuple[Path, State], ...]


def formula_file(reader: FormulaReader) -> FormulaFile | None:
    """The reader as plain values; None if they would not give the same reader again."""
    side, words = reader.side, tuple(sorted(reader.words))
    try:
        state = () if reader.spec is None else tuple(_learnt(reader.spec.transform_state))
        file = FormulaFile(side.columns, side.plain, dict(reader.levels), words, state)
        again = formula_reader(file)
    except DataError:
        return None
    return file if again.side.terms == side.terms and again.names == reader.names else None


def formula_reader(file: FormulaFile) -> FormulaReader:
    """The reader of plain values that anyone may have written; those that no formula gives are refused."""
    from formulaic import Formula
    from formulaic.parser.types import Factor as ParsedFactor
    from formulaic.parser.types import Term as ParsedTerm

    parsed = [ParsedTerm([ParsedFactor("1", eval_method="literal")])]
    for term in file.terms:
        factors = [ParsedFactor(text, eval_method="lookup" if is_column else "python") for text, is_column in term]
        parsed.append(ParsedTerm(factors))
    side = _checked_side(Formula(parsed), file.columns, "covariates")
    if side.plain != file.terms or side.columns != file.columns:
        raise DataError("the terms and columns of the saved formula are not those that it says.")
    if not set(file.words) <= set(file.levels) <= set(file.columns) or not all(file.levels.values()):
        raise DataError("the saved formula's levels are not those of its columns.")
    table, spec = _side_table(side, _made_up(file), file.levels)
    state = _restored(file.state, {} if spec is None else spec.transform_state)
    spec = None if spec is None else spec.update(transform_state=state)
    return FormulaReader(side, table.names, file.levels, spec, frozenset(file.words))


def _made_up(file: FormulaFile) -> Table:
    """A table in which every column has all of its levels, or distinct numbers."""
    n = max([_MIN_ROWS, *map(len, file.levels.values())])
    columns = []
    for name in file.columns:
        if name in file.levels:
            is_words = name in file.words
            kept = np.array(file.levels[name], dtype=object if is_words else None)
            columns.append(Column(name, kept[np.arange(n) % len(kept)], categorical=is_words))
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


def _restored(state: Sequence[tuple[Path, State]], made_up: Mapping[str, Any]) -> dict[str, Any]:
    """The transforms' state; under the names, and of the types, that they have when they learn from made-up data."""
    expected = {path: type(value) for path, value in _learnt(made_up)}
    if {path: type(value) for path, value in state} != expected:
        raise DataError("the saved formula's state is not that of its transforms.")
    restored: dict[Any, Any] = {name: {} for name in made_up}
    for path, value in state:
        inner = restored
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = list(value) if isinstance(value, tuple) else value
    return restored
