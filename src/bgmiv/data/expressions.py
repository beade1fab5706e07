"""What a formula may compute: arithmetic of columns and a fixed list of functions, and nothing else.

A formula is evaluated as Python by formulaic. What is not on the lists below is refused before that.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from bgmiv.data.frames import check_known
from bgmiv.errors import DataError

__all__ = ["FUNCTIONS", "NUMPY_FUNCTIONS", "TRANSFORMS", "checked_columns", "level_column"]

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
_LARGEST_POWER = 9


def checked_columns(expression: str, known: Sequence[str]) -> tuple[str, ...]:
    """The columns that an expression of a formula uses, once all of it is found harmless.

    Args:
        expression: one factor of a formula, in which odd names stand in backticks.
        known: the table's columns.

    Raises:
        DataError: the expression does something that is not on the list, or names an unknown column.

    >>> checked_columns("np.log(wage + 1)", ["wage"])
    ('wage',)
    >>> checked_columns("open('file')", ["wage"])
    Traceback (most recent call last):
    ...
    bgmiv.errors.DataError: the formula's "open('file')" calls open, which formulas may not. They may call functions of
    numpy by row, such as np.log, and abs, exp, exp2, expm1, log, log10, log1p, log2, sqrt, C, I, bs, cc, center, cr,
    cs, poly, scale, standardize. Compute anything else as a column of the table first.
    """
    tree, aliases = _parsed(expression, known)
    found: dict[str, None] = {}
    try:
        _check(tree, expression, aliases, known, found)
    except RecursionError:
        raise DataError(f"the formula's {expression[:80]!r}... is nested too deeply. Compute it as a column.") from None
    return tuple(found)


def level_column(expression: str, known: Sequence[str]) -> str | None:
    """The column of `C(column)`; None for any other expression.

    >>> level_column("C(region)", ["region"]), level_column("np.log(wage)", ["wage"])
    ('region', None)
    """
    tree, aliases = _parsed(expression, known)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "C":
        (argument,) = tree.args
        assert isinstance(argument, ast.Name)
        return aliases.get(argument.id, argument.id)
    return None


def _parsed(expression: str, known: Sequence[str]) -> tuple[ast.expr, dict[str, str]]:
    """The very tree that formulaic evaluates, and which identifiers in it stand for oddly named columns."""
    from formulaic.utils.code import sanitize_variable_names

    aliases: dict[str, str] = {}
    try:
        code = sanitize_variable_names(expression, dict.fromkeys(known, 0), aliases)
        return ast.parse(code, mode="eval").body, aliases
    except (SyntaxError, ValueError, RecursionError, MemoryError, IndexError) as error:
        raise DataError(f"the formula's {expression!r} cannot be read: {error}.") from None


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
            small = _is_number(node.right) and abs(ast.literal_eval(node.right)) <= _LARGEST_POWER
            if not small or _no_column(node.left):
                _refuse(expression, f"has a power other than of a column to a number up to {_LARGEST_POWER}")
            inner(node.left)
        case ast.BinOp() if isinstance(node.op, _OPERATORS):
            inner(node.left, node.right)
        case ast.UnaryOp() if isinstance(node.op, _SIGNS):
            inner(node.operand)
        case ast.Compare() if all(isinstance(op, _COMPARISONS) for op in node.ops):
            _check_comparison(node, expression)
            inner(*(part for part in (node.left, *node.comparators) if not _is_text(part)))
        case ast.Call():
            _check_call(node, expression)
            inner(*node.args)
            inner(*(keyword.value for keyword in node.keywords if not _is_setting(keyword.value)))
        case ast.Attribute():
            _refuse(expression, f"takes .{node.attr} of something")
        case _:
            _refuse(expression, f"has a part of kind {type(node).__name__}")


def _check_comparison(node: ast.Compare, expression: str) -> None:
    if len(node.ops) > 1:
        _refuse(expression, "chains comparisons (join two by & instead)")


def _check_call(node: ast.Call, expression: str) -> None:
    match node.func:
        case ast.Name(id=name) if name in FUNCTIONS | TRANSFORMS:
            pass
        case ast.Attribute(value=ast.Name(id="np"), attr=name) if name in NUMPY_FUNCTIONS:
            pass
        case _:
            called = ast.unparse(node.func)
            _refuse(expression, f"calls {called if len(called) <= 40 else called[:40] + '...'}")
    if not node.args:
        _refuse(expression, f"calls {name} of nothing")
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        _refuse(expression, "unpacks arguments by *")
    if any(keyword.arg is None or keyword.arg.startswith("_") or keyword.arg == "out" for keyword in node.keywords):
        _refuse(expression, f"passes {name} an argument that is not the user's to pass")
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
    return _is_number(node) or (isinstance(node, ast.Constant) and (node.value is None or _is_text(node)))


def _no_column(node: ast.expr) -> bool:
    return not any(isinstance(part, ast.Name) for part in ast.walk(node))


def _refuse(expression: str, what: str) -> None:
    allowed = ", ".join([*sorted(FUNCTIONS), *sorted(TRANSFORMS)])
    shown = expression if len(expression) <= 80 else expression[:80] + "..."
    raise DataError(
        f"the formula's {shown!r} {what}, which formulas may not. They may call functions of numpy by row, such as "
        f"np.log, and {allowed}. Compute anything else as a column of the table first."
    )
