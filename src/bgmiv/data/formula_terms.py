"""The terms of a formula: its four sides, and what each term may compute.

A formula is evaluated as Python by formulaic. Terms are arithmetic of columns and a fixed list of functions; anything
else is refused before that, and so is what would make terms or columns without end.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from bgmiv.data.read import check_known
from bgmiv.errors import DataError

__all__ = [
    "FORM",
    "FUNCTIONS",
    "NUMPY_FUNCTIONS",
    "Expression",
    "FormulaParts",
    "Term",
    "checked_columns",
    "formula_terms",
    "split_formula",
]

FORM = "Write it as 'outcome ~ covariates + [treatment ~ instruments]'"

# fmt: off
NUMPY_FUNCTIONS = frozenset(
    [
        "abs", "absolute", "arccos", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "cbrt", "ceil", "clip",
        "cos", "cosh", "deg2rad", "exp", "exp2", "expm1", "fabs", "floor", "fmax", "fmin", "hypot", "isfinite", "log",
        "log10", "log1p", "log2", "logaddexp", "maximum", "minimum", "mod", "power", "rint", "sign", "sin", "sinh",
        "sqrt", "square", "tan", "tanh", "trunc", "where",
    ]
)
# fmt: on
"""Functions of one row at a time, written `np.log(x)`."""

FUNCTIONS = frozenset(["log", "log2", "log10", "exp", "exp2", "sqrt", "abs", "log1p", "expm1"])
"""Those that may be written without `np.`."""

TRANSFORMS = frozenset(["C", "I", "bs", "cc", "center", "cr", "cs", "poly", "scale", "standardize"])
"""Formulaic's own; what they learn from the data of the fit (means, knots) is used again at prediction."""

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr)
_SIGNS = (ast.UAdd, ast.USub, ast.Invert)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_MAX_POWER = 9
_SPLINES = frozenset(["bs", "cc", "cr", "cs", "poly"])
# Degrees, degrees of freedom, knots.
_MAX_SETTING = 100
_BOUNDS = ("lower_bound", "upper_bound")
_MAX_TERMS = 3000
_MAX_CHARACTERS = 10_000
_PAIRS = {")": "(", "]": "[", "}": "{"}


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
        raise DataError(
            f"the formula is longer than {_MAX_CHARACTERS} characters. Use fit_table with lists of columns instead."
        )
    tildes, opened, closed = _marks(formula)
    if len(opened) != 1:
        found = "no bracket" if not opened else f"{len(opened)} brackets, and there is one treatment"
        raise DataError(f"the formula has {found}. {FORM}.")
    (start,), (stop,) = opened, closed
    outer = [at for at in tildes if not start < at < stop]
    inside = [at for at in tildes if start < at < stop]
    if len(outer) != 1 or outer[0] > start:
        raise DataError(f"the formula needs one ~ between the outcome and the rest, before the bracket. {FORM}.")
    if len(inside) != 1:
        raise DataError(f"the formula's bracket needs one ~ between treatment and instruments. {FORM}.")
    before, after = formula[outer[0] + 1 : start].strip(), formula[stop + 1 :].strip()
    if (before and not before.endswith("+")) or (after and after[0] not in "+-"):
        raise DataError(f"the formula's bracket is a term of its own: put + before and after it. {FORM}.")
    before, after = before.removesuffix("+").strip(), after.removeprefix("+").strip()
    joint = " " if not before or not after or after.startswith("-") else " + "
    parts = FormulaParts(
        formula[: outer[0]].strip(),
        formula[start + 1 : inside[0]].strip(),
        formula[inside[0] + 1 : stop].strip(),
        f"{before}{joint}{after}".strip(),
    )
    for side, text in zip(("outcome", "treatment", "instruments"), parts[:3], strict=True):
        if not text:
            raise DataError(f"the formula names no {side}. {FORM}.")
    return parts


def _marks(formula: str) -> tuple[list[int], list[int], list[int]]:
    """Where the outermost tildes and brackets are, outside quotes and backticks."""
    tildes, opened, closed, stack = [], [], [], ""
    quote = ""
    for at, sign in enumerate(formula):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "`'\"":
            quote = sign
        elif sign in "([{":
            if sign == "[" and not stack:
                opened.append(at)
            stack += sign
        elif sign in _PAIRS:
            if not stack.endswith(_PAIRS[sign]):
                raise DataError(f"the formula has a {sign!r} that closes nothing. {FORM}.")
            stack = stack[:-1]
            if sign == "]" and not stack:
                closed.append(at)
        elif sign == "~" and stack in ("", "["):
            tildes.append(at)
    if stack or quote:
        raise DataError(f"the formula has a {(quote or stack[-1])!r} that is never closed. {FORM}.")
    return tildes, opened, closed


class Expression(NamedTuple):
    """A factor of a term: the columns it uses, those of them that it uses as numbers, and its width.

    `column` is the column that it is, and `levels` says whether it is `C(column)`. `width` is how many columns it makes
    at most, if it is neither.
    """

    columns: tuple[str, ...]
    numbers: tuple[str, ...]
    column: str | None = None
    levels: bool = False
    width: int = 1


class Term(NamedTuple):
    """One term of a formula; its name is its text.

    `columns` are the table's columns that it uses, `measured` those it uses as numbers and `categories` those in `C()`.
    `column` is the column that it is, if it is just one, and `levels` says whether it is `C(column)`. `factors` are
    their texts, and whether each is the name of a column; `parts` what these use.
    """

    name: str
    columns: tuple[str, ...]
    measured: tuple[str, ...]
    column: str | None = None
    levels: bool = False
    factors: tuple[tuple[str, bool], ...] = ()
    categories: tuple[str, ...] = ()
    parts: tuple[Expression, ...] = ()

    def width(self, n_levels: Mapping[str, int], words: Container[str]) -> int:
        """How many columns it makes at most, given the number of levels of columns, and which of them hold words."""
        width = 1
        for part in self.parts:
            if part.column is not None:
                width *= n_levels[part.column] if part.levels or part.column in words else 1
                continue
            for name in part.numbers:
                if name in words:
                    raise DataError(f"the formula's term {self.name!r} computes with {name!r}, which holds words.")
            width *= part.width
        return width


def formula_terms(text: str, side: str, known: Sequence[str]) -> tuple[Term, ...]:
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
        found = re.sub(r"⧛\[[\d;]*m|\x1b\[[\d;]*m|⧚", "", str(error)).splitlines() or [type(error).__name__]
        raise DataError(f"the formula's {_cut(text)!r} cannot be read: {found[0]}") from None
    if not isinstance(parsed, SimpleFormula):
        raise DataError(f"the formula's {text!r} has several parts. {FORM}.")
    factors = [[factor for factor in term.factors if factor.eval_method.value != "literal"] for term in parsed]
    if all(factors):
        raise DataError(f"the formula's {side} leave the constant out (0 or -1), which no method can. Drop that.")
    return tuple(_term(str(term), kept, known) for term, kept in zip(parsed, factors, strict=True) if kept)


def _check_size(tree: Any, text: str) -> None:
    """Refuse sums, products and powers of terms that would be expanded into too many, before they are."""
    nodes = [tree]
    for node in nodes:
        # What has no arguments is a name, a number or an expression.
        nodes += [part for part in getattr(node, "args", ()) if hasattr(part, "args")]
    counts: dict[int, int] = {}
    for node in reversed(nodes):
        parts = [counts.get(id(part), 1) for part in getattr(node, "args", ())]
        match str(getattr(node, "operator", "+")):
            case "**" | "^":
                power = str(node.args[1])
                if not (power.isdigit() and len(power) == 1):
                    what = f"{_cut(power)!r}, a power above {_MAX_POWER} or no number"
                    raise DataError(f"the formula's {_cut(text)!r} has {what}. Compute it as a column of the table.")
                count = parts[0] ** int(power)
            case "+" | "-" | "~" | "|":
                count = sum(parts)
            case _:
                count = sum(parts) + math.prod(parts)
        if count > _MAX_TERMS:
            raise DataError(f"the formula's {_cut(text)!r} has more than {_MAX_TERMS} terms. Use fewer, or fit_table.")
        counts[id(node)] = count


def _term(name: str, factors: Sequence[Any], known: Sequence[str]) -> Term:
    texts = tuple((factor.expr, factor.eval_method.value == "lookup") for factor in factors)
    parts = tuple(_looked_up(text, known) if is_column else checked_columns(text, known) for text, is_column in texts)
    columns = tuple(dict.fromkeys(name for part in parts for name in part.columns))
    if not columns:
        raise DataError(f"the formula's term {name!r} uses no column of the table. Leave it out.")
    categories = tuple(dict.fromkeys(name for part in parts if part.levels for name in part.columns))
    measured = tuple(dict.fromkeys(name for part in parts if not part.levels for name in part.columns))
    only = parts[0] if len(parts) == 1 else Expression((), ())
    return Term(name, columns, measured, only.column, only.levels, texts, categories, parts)


def _looked_up(name: str, known: Sequence[str]) -> Expression:
    check_known(name, known)
    return Expression((name,), (name,), name)


def checked_columns(expression: str, known: Sequence[str]) -> Expression:
    """What an expression uses and makes, once all of it is found harmless; odd names in it stand in backticks."""
    from formulaic.utils.code import sanitize_variable_names

    # The very tree that formulaic evaluates, and which identifiers in it stand for oddly named columns.
    aliases: dict[str, str] = {}
    found: dict[str, None] = {}
    try:
        code = sanitize_variable_names(expression, dict.fromkeys(known, 0), aliases)
        tree = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError, IndexError) as error:
        raise DataError(f"the formula's {_cut(expression)!r} cannot be read: {error}.") from None
    try:
        _check(tree, expression, aliases, known, found)
        numbers, width = dict[str, None](), [1]
        _measure(tree, aliases, numbers, width)
    except RecursionError:
        raise DataError(f"the formula's {expression[:80]!r}... is nested too deeply. Compute it as a column.") from None
    is_levels = isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "C"
    column = next(iter(found)) if is_levels else None
    return Expression(tuple(found), tuple(numbers), column, is_levels, math.prod(width))


def _measure(node: ast.AST, aliases: dict[str, str], numbers: dict[str, None], width: list[int]) -> None:
    """Collect the names that an expression computes with, and the most columns that its parts make."""
    if isinstance(node, ast.Compare):
        # What is compared may be words; what comes of it is true or false.
        width.append(2)
        return
    if isinstance(node, ast.Name):
        numbers[aliases.get(node.id, node.id)] = None
    if isinstance(node, ast.Call):
        width.append(_columns_made(node))
    # The function's own name is none of a column.
    skipped = node.func if isinstance(node, ast.Call) else None
    for part in ast.iter_child_nodes(node):
        if part is not skipped:
            _measure(part, aliases, numbers, width)


def _columns_made(call: ast.Call) -> int:
    if not isinstance(call.func, ast.Name) or call.func.id not in _SPLINES:
        return 1
    # Degrees of freedom, or knots and a degree, which is 3 by default, with a constant.
    return 4 + sum(_size(value) for value in _settings(call))


def _settings(call: ast.Call) -> list[ast.expr]:
    """What decides how many columns a spline or polynomial makes."""
    return [*call.args[1:], *(keyword.value for keyword in call.keywords if keyword.arg not in _BOUNDS)]


def _size(node: ast.expr) -> int:
    if isinstance(node, ast.List | ast.Tuple):
        return len(node.elts)
    return math.ceil(min(abs(ast.literal_eval(node)), 2 * _MAX_SETTING)) if _is_number(node) else 0


def _check(
    node: ast.expr, expression: str, aliases: dict[str, str], known: Sequence[str], found: dict[str, None]
) -> None:
    def inner(*nodes: ast.expr) -> None:
        for part in nodes:
            _check(part, expression, aliases, known, found)

    match node:
        case ast.Name():
            name = aliases.get(node.id, node.id)
            check_known(name, known)
            found[name] = None
        case ast.Constant() if _is_number(node):
            pass
        case ast.BinOp(op=ast.Pow()):
            small = _is_number(node.right) and abs(ast.literal_eval(node.right)) <= _MAX_POWER
            if not small or not any(isinstance(part, ast.Name) for part in ast.walk(node.left)):
                _refuse(expression, f"has a power other than of a column to a number up to {_MAX_POWER}")
            inner(node.left)
        case ast.BinOp() if isinstance(node.op, _OPERATORS):
            inner(node.left, node.right)
        case ast.UnaryOp() if isinstance(node.op, _SIGNS):
            inner(node.operand)
        case ast.Compare() if all(isinstance(op, _COMPARISONS) for op in node.ops):
            if len(node.ops) > 1:
                _refuse(expression, "chains comparisons (join two by & instead)")
            inner(*(part for part in (node.left, *node.comparators) if not _is_text(part)))
        case ast.Call():
            _check_call(node, expression)
            inner(*node.args)
            inner(*(keyword.value for keyword in node.keywords if not _is_setting(keyword.value)))
        case ast.Attribute():
            _refuse(expression, f"takes .{node.attr} of something")
        case _:
            _refuse(expression, f"has a part of kind {type(node).__name__}")


def _check_call(node: ast.Call, expression: str) -> None:
    match node.func:
        case ast.Name(id=name) if name in FUNCTIONS | TRANSFORMS:
            pass
        case ast.Attribute(value=ast.Name(id="np"), attr=name) if name in NUMPY_FUNCTIONS:
            pass
        case _:
            _refuse(expression, f"calls {_cut(ast.unparse(node.func), 40)}")
    if not node.args:
        _refuse(expression, f"calls {name} of nothing")
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        _refuse(expression, "unpacks arguments by *")
    if any(keyword.arg is None or keyword.arg.startswith("_") or keyword.arg == "out" for keyword in node.keywords):
        _refuse(expression, f"passes {name} an argument that is not the user's to pass")
    if name in _SPLINES:
        for value in _settings(node):
            if not _is_setting(value):
                _refuse(expression, f"gives {name} a setting that is computed")
            if isinstance(value, ast.Constant) and type(value.value) in (int, float) and _size(value) < 1:
                raise DataError(f"the formula's {_cut(expression)!r} has a setting below 1, which makes no columns.")
            if _size(value) > _MAX_SETTING:
                what = f"has a setting above {_MAX_SETTING}. Use fewer degrees or knots"
                raise DataError(f"the formula's {_cut(expression)!r} {what}.")
    if name == "C" and (len(node.args) > 1 or node.keywords or not isinstance(node.args[0], ast.Name)):
        raise DataError(f"the formula's {expression!r}: C() takes one column of the table and nothing else.")


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_setting(node: ast.expr) -> bool:
    """Whether it is a constant, or a list of numbers, as transforms take for their options."""
    if isinstance(node, ast.List | ast.Tuple):
        return all(_is_number(part) for part in node.elts)
    return _is_number(node) or _is_text(node) or (isinstance(node, ast.Constant) and node.value is None)


def _refuse(expression: str, what: str) -> None:
    allowed = ", ".join([*sorted(FUNCTIONS), *sorted(TRANSFORMS)])
    raise DataError(
        f"the formula's {_cut(expression)!r} {what}, which formulas may not. They may call functions of numpy by row, "
        f"such as np.log, and {allowed}. Compute anything else as a column of the table first."
    )


def _cut(text: str, max_length: int = 80) -> str:
    return text if len(text) <= max_length else text[:max_length] + "..."
