"""Formulas such as `lwage ~ exper + C(region) + [educ ~ nearc4]`.

From a table to `IVData`, from later tables to the same covariates, and to plain values that a file can hold. Formulaic
evaluates expressions as Python. Terms are arithmetic of columns and a fixed list of functions; anything else is refused
before that, and so is what would make terms or columns without end.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple, NoReturn

import numpy as np

from bgmiv.data.blocks import Declaration, Level, category_entries, level_codes, ordered_levels
from bgmiv.data.ivdata import IVData, check_names, column_arguments
from bgmiv.data.messages import Column, Floats, cut, naming_rows
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
_MAX_TERMS, _MAX_FACTORS, _MAX_COLUMNS = 3000, 10, 3000
# A typed formula is shorter; a saved one is written out term by term.
_MAX_TYPED, _MAX_SAVED = 10_000, 100_000
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
    """One term of a formula; its name is its text, and `column` the column that it is, or `C()` of, if it is one."""

    name: str
    factors: tuple[Factor, ...]
    column: str | None = None


class Side(NamedTuple):
    """One side of a formula: as formulaic has read it, and its terms, found harmless."""

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
        return _side_table(self.side, table, spec=self.spec)[0]


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
    sides = _read_sides(formula, column_names(data))
    roles = {name: side.columns for name, side in sides.items()}
    sampling = column_arguments(sample_weight=sample_weight, clusters=clusters)
    # Instruments and covariates may share columns, in different terms.
    check_names({**roles, **sampling, "covariates": ()})
    used = [name for names in (*roles.values(), *sampling.values()) for name in names]
    table = without_missing(select_columns(data, used), missing)
    declared = {*(blocks or ()), *sides["covariates"].marked}
    columns = [with_levels(c, declared) if c.name in roles["covariates"] else c for c in table.columns]
    table = table._replace(columns=tuple(columns))
    given: dict[str, Any] = {argument: table.part(names) for argument, names in sampling.items()}
    for name in ("outcome", "treatment", "instruments"):
        levels = _levels(sides[name], table, name)
        _check_width(sides[name].terms, levels, name)
        given[name], _ = _side_table(sides[name], table, as_indicators=levels if name == "instruments" else ())
    side = sides["covariates"]
    levels = _levels(side, table, "covariates")
    _check_width(side.terms, levels, "covariates")
    given["covariates"], spec = _side_table(side, table)
    words = frozenset(c.name for c in table.columns if c.name in levels and is_categorical(c))
    reader = FormulaReader(side, given["covariates"].names, levels, spec, words)
    return IVData.from_arrays(**given, blocks=blocks, **options), reader


def split_formula(formula: str) -> dict[str, str]:
    """The four sides of a formula, taken apart at its bracket and its tildes; that of the covariates with a constant.

    >>> split_formula("lwage ~ exper + [educ ~ nearc4] + black")
    {'outcome': 'lwage', 'treatment': 'educ', 'instruments': 'nearc4', 'covariates': '1 + exper + black'}
    """
    if not isinstance(formula, str):
        raise DataError(f"a formula is a string, got {type(formula).__name__}. {_FORM}.")
    if len(formula) > _MAX_TYPED:
        raise DataError(f"the formula is longer than {_MAX_TYPED} characters. Use fit_table instead.")
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


def _read_sides(formula: str, known: Sequence[str]) -> dict[str, Side]:
    """The sides of a formula for a table with these columns, each column and term in one role."""
    sides = {name: _read_side(text or "1", known, name) for name, text in split_formula(formula).items()}
    for name in ("outcome", "treatment"):
        terms = sides[name].terms
        if len(terms) != 1:
            names = ", ".join(term.name for term in terms) or "none"
            raise DataError(f"the formula has {len(terms)} {name}s ({names}); there must be one. {_FORM}.")
    if not sides["instruments"].terms:
        raise DataError(f"the formula names no instruments. {_FORM}.")
    for (one, side), (other, another) in combinations(sides.items(), 2):
        shared = set(side.columns) & set(another.columns)
        if one == "instruments":
            # A column may be in several of their terms.
            shared = {term.name for term in side.terms} & {term.name for term in another.terms}
        if shared:
            raise DataError(f"{min(shared)!r} is in the {one} and also in the {other}. Use it in one of them.")
    return sides


def _read_side(text: str, known: Sequence[str], name: str) -> Side:
    """One side of a formula for a table with these columns, found harmless."""
    from formulaic import Formula, ModelSpec
    from formulaic.parser import DefaultFormulaParser
    from formulaic.parser.algos.tokenize import tokenize

    # Formulaic takes these for the constant, backticks or not.
    if odd := {"", "1"} & set(text.split("`")[1::2]):
        raise DataError(f"a formula cannot use the column {odd.pop()!r} by its name. Rename it, or use fit_table.")
    try:
        # To read what stands before a tilde, formulaic evaluates it.
        if any(token.kind.value == "operator" and {"~", "|"} & set(token.token) for token in tokenize(text)):
            raise DataError(f"the formula's {cut(text)!r} has several parts. {_FORM}.")
        _check_size(DefaultFormulaParser().get_ast(text), text)
        parsed = Formula(text)
    except DataError:
        raise
    # Formulaic has exceptions of its own and lets Python's through.
    except Exception as error:
        first = re.sub(r"⧛\[[\d;]*m|\x1b\[[\d;]*m|⧚", "", str(error)).splitlines() or [type(error).__name__]
        raise DataError(f"the formula's {cut(text)!r} cannot be read: {first[0]}") from None
    factors = {term: [factor for factor in term.factors if factor.eval_method.value != "literal"] for term in parsed}
    terms = [_read_term(str(term), own, known) for term, own in factors.items() if own]
    # That of numbers only is the constant.
    if all(factors.values()):
        raise DataError(f"the formula's {name} leave the constant out (0 or -1), which no method can. Drop that.")
    return Side(ModelSpec.from_spec(parsed, na_action="ignore", output="pandas"), tuple(terms))


def _check_size(tree: Any, text: str) -> None:
    """Refuse sums, products and powers of terms that would be expanded into too many, before they are."""
    nodes = [tree]
    for node in nodes:
        # What has no arguments is a name, a number or an expression.
        nodes += [part for part in getattr(node, "args", ()) if hasattr(part, "args")]
    counts: dict[int, int] = {}
    for node in reversed(nodes):
        parts = [counts.get(id(part), 1) for part in getattr(node, "args", ())]
        operator = str(getattr(node, "operator", "+"))
        if operator in ("**", "^"):
            power = str(node.args[1])
            if power not in "123456789":
                raise DataError(f"the formula's {cut(text)!r} has a power above {_MAX_POWER} or no number. Use fewer.")
            counts[id(node)] = parts[0] ** int(power)
        else:
            counts[id(node)] = sum(parts) + (0 if operator in ("+", "-") else math.prod(parts))
        if counts[id(node)] > _MAX_TERMS:
            raise DataError(f"the formula's {cut(text)!r} has more than {_MAX_TERMS} terms. Use fewer, or fit_table.")


def _read_term(name: str, factors: Sequence[Any], known: Sequence[str]) -> Term:
    read = tuple(_read_factor(factor, known) for factor in factors)
    if len(read) > _MAX_FACTORS:
        raise DataError(f"the formula's term {cut(name)!r} has {len(read)} factors, more than {_MAX_FACTORS}.")
    if not any(factor.columns for factor in read):
        raise DataError(f"the formula's term {name!r} uses no column of the table. Leave it out.")
    return Term(name, read, read[0].column if len(read) == 1 else None)


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


def _levels(side: Side, table: Table, role: str) -> dict[str, tuple[Level, ...]]:
    """The levels of each column that terms use as categories."""
    return {
        column.name: ordered_levels(category_entries(column._replace(role=role)))
        for column in table.columns
        if column.name in side.columns and (column.name in side.marked or is_categorical(column))
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


def _side_table(side: Side, table: Table, *, spec: Any = None, as_indicators: Iterable[str] = ()) -> tuple[Table, Any]:
    """The columns of one side, those of the table as they are, and formulaic's specification of the computed ones.

    `spec` is an earlier specification. Levels of the columns in `as_indicators` become indicators of all but the first.
    """
    columns = table.by_name
    terms = [term._replace(column=None) if (term.column or "") in as_indicators else term for term in side.terms]
    read: list[Column] = []
    matrix: Any = None
    places: dict[str, Any] = {}
    if any(term.column is None for term in terms):
        matrix = _computed(spec or side.parsed, table, side)
        spec = matrix.model_spec
        places = {str(term): place for term, place in spec.term_slices.items()}
    for term in terms:
        if term.column is None:
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
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"a term of the formula cannot be computed: {first}") from error


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
    parts = [":".join(f"`{text}`" if is_column else f"{{{text}}}" for text, is_column in term) for term in file.terms]
    text = " + ".join(["1", *parts])
    if len(text) > _MAX_SAVED:
        raise DataError(f"the saved formula is longer than {_MAX_SAVED} letters.")
    side = _read_side(text, file.columns, "covariates")
    if side.plain != file.terms or side.columns != file.columns:
        raise DataError("the terms and columns of the saved formula are not those that it says.")
    if not set(file.words) <= set(file.levels) <= set(file.columns) or not all(file.levels.values()):
        raise DataError("the saved formula's levels are not those of its columns.")
    _check_width(side.terms, file.levels, "covariates")
    table, spec = _side_table(side, _made_up(file))
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
    if len(state) != len(expected) or {path: type(value) for path, value in state} != expected:
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
