"""The terms of a formula: its four sides, and what each term may compute.

Formulaic evaluates expressions as Python. Terms are arithmetic of columns and a fixed list of functions; anything else
is refused before that, and so is what would make terms or columns without end.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from bgmiv.data.table import check_known
from bgmiv.errors import DataError

__all__ = ["FORM", "FUNCTIONS", "Factor", "FormulaParts", "Term", "cut", "read_terms", "split_formula"]

FORM = "Write it as 'outcome ~ covariates + [treatment ~ instruments]'"

FUNCTIONS = frozenset(["log", "log2", "log10", "exp", "exp2", "sqrt", "abs", "log1p", "expm1"])
"""Functions of numpy that may be written without `np.`; with it, all of one row at a time may."""

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
_MAX_TERMS, _MAX_FACTORS = 3000, 10
_MAX_CHARACTERS = 10_000


class FormulaParts(NamedTuple):
    """The four sides of a formula, as text; `covariates` may be empty."""

    outcome: str
    treatment: str
    instruments: str
    covariates: str


def split_formula(formula: str) -> FormulaParts:
    """Take a formula apart at its bracket and its tildes.

    >>> split_formula("lwage ~ exper + [educ ~ nearc4] + black")
    FormulaParts(outcome='lwage', treatment='educ', instruments='nearc4', covariates='exper + black')
    """
    if not isinstance(formula, str):
        raise DataError(f"a formula is a string, got {type(formula).__name__}. {FORM}.")
    if len(formula) > _MAX_CHARACTERS:
        raise DataError(f"the formula is longer than {_MAX_CHARACTERS} characters. Use fit_table instead.")
    # Names in backticks, texts and what stands in parentheses may hold tildes and brackets of their own.
    masked, n_masked = re.sub(r"`[^`]*`|'[^']*'|\"[^\"]*\"", _blank, formula), 1
    while n_masked:
        masked, n_masked = re.subn(r"\([^()]*\)", _blank, masked)
    n_brackets = masked.count("[")
    if n_brackets != 1:
        problem = "no bracket" if not n_brackets else f"{n_brackets} brackets, and there is one treatment"
        raise DataError(f"the formula has {problem}. {FORM}.")
    places = re.fullmatch(r"([^~]*)~([^~\]]*)\[([^~\]]*)~([^~\]]*)\]([^~\]]*)", masked)
    if places is None:
        raise DataError(f"the formula needs one ~ before the bracket and one inside it, which is closed. {FORM}.")
    outcome, before, treatment, instruments, after = (
        formula[slice(*places.span(group))].strip() for group in range(1, 6)
    )
    if (before and not before.endswith("+")) or (after and after[0] not in "+-"):
        raise DataError(f"the formula's bracket is a term of its own: put + before and after it. {FORM}.")
    for side, text in (("outcome", outcome), ("treatment", treatment), ("instruments", instruments)):
        if not text:
            raise DataError(f"the formula names no {side}. {FORM}.")
    before = before.removesuffix("+").strip()
    covariates = f"{before} {after}".strip() if before else after.removeprefix("+").strip()
    return FormulaParts(outcome, treatment, instruments, covariates)


def _blank(found: re.Match[str]) -> str:
    return "_" * len(found[0])


class Factor(NamedTuple):
    """A factor of a term.

    Attributes:
        text: as formulaic writes it.
        is_column: whether it is the name of a column; otherwise it is an expression.
        columns: the table's columns that it uses.
        numbers: those of them that it computes with.
        levels_of: the column of `C(column)`, else None.
        width: how many columns an expression makes at most, if it does not make levels.
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

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns that it uses."""
        return tuple(dict.fromkeys(name for factor in self.factors for name in factor.columns))

    @property
    def marked(self) -> set[str]:
        """The columns in `C()`."""
        return {factor.levels_of for factor in self.factors if factor.levels_of is not None}


def read_terms(text: str, side: str, known: Sequence[str]) -> tuple[Term, ...]:
    """The terms of one side of a formula, found harmless."""
    from formulaic import Formula, SimpleFormula
    from formulaic.parser import DefaultFormulaParser

    # Formulaic takes these for the constant, backticks or not.
    if odd := {"", "1"} & set(text.split("`")[1::2]):
        raise DataError(f"a formula cannot use the column {odd.pop()!r} by its name. Rename it, or use fit_table.")
    try:
        _check_size(DefaultFormulaParser().get_ast(text), text)
        parsed = Formula(text)
    except DataError:
        raise
    # Formulaic has exceptions of its own and lets Python's through.
    except Exception as error:
        first = re.sub(r"⧛\[[\d;]*m|\x1b\[[\d;]*m|⧚", "", str(error)).splitlines() or [type(error).__name__]
        raise DataError(f"the formula's {cut(text)!r} cannot be read: {first[0]}") from None
    if not isinstance(parsed, SimpleFormula):
        raise DataError(f"the formula's {cut(text)!r} has several parts. {FORM}.")
    terms, has_constant = [], False
    for term in parsed:
        factors = [factor for factor in term.factors if factor.eval_method.value != "literal"]
        has_constant = has_constant or not factors
        if factors:
            terms.append(_read_term(str(term), factors, known))
    if not has_constant:
        raise DataError(f"the formula's {side} leave the constant out (0 or -1), which no method can. Drop that.")
    return tuple(terms)


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
    read = []
    for factor in factors:
        text = factor.expr
        if factor.eval_method.value == "lookup":
            check_known(text, known)
            read.append(Factor(text, True, (text,)))
        else:
            read.append(_Expression(text, known).factor())
    if len(read) > _MAX_FACTORS:
        raise DataError(f"the formula's term {cut(name)!r} has {len(read)} factors, more than {_MAX_FACTORS}.")
    term = Term(name, tuple(read), read[0].column if len(read) == 1 else None)
    if not term.columns:
        raise DataError(f"the formula's term {name!r} uses no column of the table. Leave it out.")
    return term


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
            case ast.Constant(value=bool() | int() | float()):
                pass
            case ast.Constant(value=str()) if not as_number:
                pass
            case ast.UnaryOp() if isinstance(node.op, _SIGNS):
                self.check(node.operand)
            case ast.BinOp(op=ast.Pow()):
                self.check_power(node)
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

    def check_power(self, node: ast.BinOp) -> None:
        """Powers of constants may be numbers without end."""
        power = _literal(node.right)
        small = isinstance(power, int | float) and abs(power) <= _MAX_POWER
        if not small or not any(isinstance(part, ast.Name) for part in ast.walk(node.left)):
            self.refuse(f"has a power other than of a column to a number up to {_MAX_POWER}")
        self.check(node.left)

    def check_call(self, node: ast.Call) -> None:
        """A function on the list, with arguments that are expressions, or settings that are written out."""
        name = ast.unparse(node.func)
        if name not in FUNCTIONS | _TRANSFORMS | {"np.clip", "np.where"} and not _is_ufunc(name):
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
                if not isinstance(size, bool) and not 1 <= size <= _MAX_SETTING:
                    self.refuse(f"has a setting below 1 or above {_MAX_SETTING}")
                width += size
        self.width *= math.ceil(width)

    def refuse(self, what: str) -> NoReturn:
        """An error that says what formulas may call."""
        allowed = ", ".join([*sorted(FUNCTIONS), *sorted(_TRANSFORMS)])
        raise DataError(
            f"the formula's {cut(self.text)!r} {what}, which formulas may not. They may call functions of numpy by "
            f"row, such as np.log, and {allowed}. Compute anything else as a column of the table first."
        )


def _is_ufunc(name: str) -> bool:
    """Whether it is a function of numpy that handles each row by itself."""
    function = getattr(np, name.removeprefix("np."), None) if name.startswith("np.") else None
    return isinstance(function, np.ufunc) and function.signature is None


def _literal(node: ast.expr) -> Any:
    """The value of what is written out; an ellipsis for what is computed."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ...


def cut(text: str, max_length: int = 80) -> str:
    """The beginning of a text that is too long for a message."""
    return text if len(text) <= max_length else text[:max_length] + "..."
