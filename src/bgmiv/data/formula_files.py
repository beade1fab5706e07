"""A formula's reader as plain values that a file can hold, and back.

The terms are kept one by one, not the formula's text, so that nothing is left to expand; each of their parts goes
through the same checks as a formula that is typed. Formulaic's own objects are made anew, from a made-up table with the
columns and levels of the fit, and only the numbers that its transforms had learnt (means, knots, polynomials) are put
back.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any, Literal

import numpy as np

from bgmiv.data.blocks import Level
from bgmiv.data.columns import Column, Table
from bgmiv.data.expressions import checked_columns
from bgmiv.data.formulas import FormulaReader, assembled, computed, formula_terms
from bgmiv.errors import DataError

__all__ = ["FactorFile", "FormulaFile", "LevelsFile", "StateFile", "covariate_names", "formula_file", "formula_reader"]

# A typed formula has 10,000 letters at most; written out term by term it may be longer.
_LONGEST, _MOST_FACTORS = 100_000, 10
# Degrees, degrees of freedom and the like: larger ones would make columns without end.
_LARGEST_SETTING = 1000
_FEWEST_ROWS = 50


@dataclass(frozen=True)
class FactorFile:
    """A factor of a term: a column's name, or an expression."""

    text: str
    is_column: bool


@dataclass(frozen=True)
class LevelsFile:
    """The levels of a column; `words` says that it is categorical by itself, without `C()`."""

    column: str
    levels: tuple[Level, ...]
    words: bool


@dataclass(frozen=True)
class StateFile:
    """One thing that a transform has learnt.

    Args:
        path: the transform and the names (or degrees) under which it keeps it.
        kind: what it is.
        numbers: its number, or its numbers.
        shape: of an array.
        text: of a text.
    """

    path: tuple[str | int, ...]
    kind: Literal["nothing", "truth", "whole", "number", "text", "list", "array"]
    numbers: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    text: str = ""

    def __post_init__(self) -> None:
        """Refuse numbers that do not make up such a thing."""
        counts = {"nothing": 0, "text": 0, "list": len(self.numbers), "array": prod(self.shape)}
        if len(self.path) < 2 or len(self.path) > 4 or len(self.numbers) != counts.get(self.kind, 1):
            raise DataError(f"a transform's state at {self.path!r} is no {self.kind}.")
        if min(self.shape, default=0) < 0 or not all(isfinite(number) for number in self.numbers):
            raise DataError(f"a transform's state at {self.path!r} has a number that is not finite.")

    @property
    def value(self) -> Any:
        """The thing itself."""
        match self.kind:
            case "nothing":
                return None
            case "text":
                return self.text
            case "list":
                return list(self.numbers)
            case "array":
                return np.array(self.numbers, dtype=np.float64).reshape(self.shape)
            case "truth":
                return bool(self.numbers[0])
            case "whole":
                return int(self.numbers[0])
        return self.numbers[0]


@dataclass(frozen=True)
class FormulaFile:
    """A formula's covariates.

    Args:
        columns: the table's columns that are used.
        terms: the factors of each term, in order.
        levels: of every column that is used as categories.
        state: what the transforms have learnt.
    """

    columns: tuple[str, ...]
    terms: tuple[tuple[FactorFile, ...], ...]
    levels: tuple[LevelsFile, ...]
    state: tuple[StateFile, ...]


def formula_file(reader: FormulaReader) -> FormulaFile | None:
    """The reader as plain values; None if they would not give the same reader again.

    >>> from bgmiv.data.formulas import from_formula
    >>> table = {"y": [1.0, 5, 2, 3], "x": [2.0, 1, 4, 7], "w": [3.0, 1, 5, 2], "age": [30.0, 50, 20, 40]}
    >>> _, reader = from_formula("y ~ center(age) + [x ~ w]", table)
    >>> file = formula_file(reader)
    >>> file.state[1]
    StateFile(path=('center(age)', 'center'), kind='number', numbers=(35.0,), shape=(), text='')
    >>> formula_reader(file).covariates({"age": [36.0]}).columns[0].values
    array([1.])
    """
    try:
        found = FormulaFile(
            tuple(dict.fromkeys(name for term in reader.terms for name in term.columns)),
            tuple(tuple(FactorFile(text, is_column) for text, is_column in term.factors) for term in reader.terms),
            tuple(LevelsFile(name, levels, name in reader.words) for name, levels in reader.levels.items()),
            () if reader.spec is None else tuple(_leaves((), reader.spec.transform_state)),
        )
        again = formula_reader(found)
    except DataError:
        return None
    same = again.terms == reader.terms and again.levels == dict(reader.levels) and again.words == reader.words
    return found if same and _signature(again.spec) == _signature(reader.spec) else None


def formula_reader(file: FormulaFile) -> FormulaReader:
    """The reader of plain values that anyone may have written.

    Raises:
        DataError: no formula gives such values.
    """
    terms = formula_terms(_text(file), "covariates", file.columns) if file.terms else ()
    if [term.factors for term in terms] != [tuple((f.text, f.is_column) for f in term) for term in file.terms]:
        raise DataError("the terms of the saved formula are not those that it says.")
    levels = {entry.column: entry.levels for entry in file.levels}
    words = frozenset(entry.column for entry in file.levels if entry.words)
    if len(levels) < len(file.levels) or not set(levels) <= set(file.columns) or not all(levels.values()):
        raise DataError("the saved formula's levels are not those of its columns.")
    spec = None
    if any(term.column is None for term in terms):
        spec = computed(_text(file), _made_up(file), terms).model_spec
        spec = spec.update(transform_state=_restored(file.state, spec.transform_state))
    elif file.state:
        raise DataError("the saved formula has the state of a transform, and none of its terms is one.")
    return FormulaReader(terms, levels, spec, words)


def covariate_names(file: FormulaFile) -> tuple[str, ...]:
    """The names of the covariates that the reader of these values makes.

    Raises:
        DataError: no formula gives such values.
    """
    if not file.terms:
        return ()
    terms, table = formula_terms(_text(file), "covariates", file.columns), _made_up(file)
    matrix = computed(_text(file), table, terms) if any(term.column is None for term in terms) else None
    return assembled(terms, table, matrix).names


def _text(file: FormulaFile) -> str:
    """A formula of these terms; every expression in it was found harmless."""
    parts = ["1"]
    for term in file.terms:
        if not 1 <= len(term) <= _MOST_FACTORS:
            raise DataError(f"a term of the saved formula has {len(term)} factors; it has 1 to {_MOST_FACTORS}.")
        parts.append(":".join(_factor(factor, file.columns) for factor in term))
    text = " + ".join(parts)
    if len(text) > _LONGEST:
        raise DataError(f"the saved formula is longer than {_LONGEST} letters.")
    return text


def _factor(factor: FactorFile, columns: Sequence[str]) -> str:
    # What stands between these signs is one factor, whatever it holds; so it must not hold them.
    if factor.is_column:
        if "`" in factor.text or factor.text not in columns:
            raise DataError(f"the saved formula's {factor.text[:80]!r} is none of its columns.")
        return f"`{factor.text}`"
    if "{" in factor.text or "}" in factor.text:
        raise DataError(f"the saved formula's {factor.text[:80]!r} has a brace.")
    checked_columns(factor.text, columns)
    _largest_setting(factor.text)
    return "{" + factor.text + "}"


def _largest_setting(text: str) -> int:
    """The largest whole number in an expression, at least 0; too large a one is refused."""
    # Backticks are no Python; what is between them is a name.
    plain = "a".join(text.split("`")[::2])
    try:
        nodes = [node.value for node in ast.walk(ast.parse(plain, mode="eval")) if isinstance(node, ast.Constant)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"the saved formula's {text[:80]!r} cannot be read: {error}.") from None
    wholes = [node for node in nodes if isinstance(node, int)]
    if any(call in plain for call in ("bs", "cc", "cr", "cs", "poly")) and max(wholes, default=0) > _LARGEST_SETTING:
        raise DataError(f"the saved formula's {text[:80]!r} has a setting above {_LARGEST_SETTING}.")
    return max([0, *wholes])


def _made_up(file: FormulaFile) -> Table:
    """A table in which every column has all of its levels, or distinct numbers."""
    settings = [min(_largest_setting(f.text), _LARGEST_SETTING) for t in file.terms for f in t if not f.is_column]
    levels = {entry.column: entry for entry in file.levels}
    n = max(_FEWEST_ROWS, 2 * max(settings, default=0), *(len(entry.levels) for entry in file.levels), 0)
    columns = []
    for name in file.columns:
        if name in levels:
            entry = levels[name]
            kept = np.array(entry.levels, dtype=object) if entry.words else np.array(entry.levels)
            columns.append(Column(name, kept[np.arange(n) % len(kept)], entry.words))
        else:
            columns.append(Column(name, np.linspace(0.1, 0.9, n)))
    return Table(tuple(columns), n, True)


def _leaves(path: tuple[str | int, ...], value: Any) -> Iterator[StateFile]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if type(key) not in (str, int):
                raise DataError(f"a transform keeps its state under a {type(key).__name__}.")
            yield from _leaves((*path, key), inner)
        return
    value = value.item() if isinstance(value, np.generic) else value
    if value is None:
        yield StateFile(path, "nothing")
    elif isinstance(value, str):
        yield StateFile(path, "text", text=value)
    elif isinstance(value, bool):
        yield StateFile(path, "truth", (float(value),))
    elif isinstance(value, int):
        yield StateFile(path, "whole", (float(value),))
    elif isinstance(value, float):
        yield StateFile(path, "number", (value,))
    elif isinstance(value, list | tuple) and all(isinstance(entry, int | float | np.number) for entry in value):
        yield StateFile(path, "list", tuple(float(entry) for entry in value))
    elif isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        numbers = tuple(float(entry) for entry in value.ravel())
        yield StateFile(path, "array", numbers, tuple(int(size) for size in value.shape))
    else:
        raise DataError(f"a transform keeps a {type(value).__name__}, which cannot be saved.")


def _restored(leaves: Sequence[StateFile], made_up: Mapping[str, Any]) -> dict[str, Any]:
    """The transforms' state; under the names, and of the kinds, that they have when they learn from made-up data."""
    expected = Counter((leaf.path, leaf.kind) for leaf in _leaves((), made_up))
    if Counter((leaf.path, leaf.kind) for leaf in leaves) != expected:
        raise DataError("the saved formula's state is not that of its transforms.")
    found: dict[Any, Any] = {name: {} for name in made_up}
    for leaf in leaves:
        inner = found
        for key in leaf.path[:-1]:
            inner = inner.setdefault(key, {})
        inner[leaf.path[-1]] = leaf.value
    return found


def _signature(spec: Any) -> Any:
    """All of formulaic's specification that predictions depend on."""
    if spec is None:
        return None
    encoders = {
        str(factor): (kind.value, [str(entry) for entry in state.get("categories", ())])
        for factor, (kind, state) in spec.encoder_state.items()
    }
    return sorted(map(repr, _leaves((), spec.transform_state))), encoders, tuple(spec.column_names)
