"""The four sides of a formula's text."""

from __future__ import annotations

from typing import NamedTuple

from bgmiv.errors import DataError

__all__ = ["FORM", "FormulaParts", "split_formula"]

FORM = "Write it as 'outcome ~ covariates + [treatment ~ instruments]'"
"""What messages say about the form of a formula."""

_LONGEST = 10_000
_PAIRS = {")": "(", "]": "[", "}": "{"}


class FormulaParts(NamedTuple):
    """The four sides of a formula, as text; `covariates` may be empty."""

    outcome: str
    treatment: str
    instruments: str
    covariates: str


def split_formula(formula: str) -> FormulaParts:
    """Take a formula apart at its bracket and its tildes.

    Raises:
        DataError: there is not one bracket with one tilde in it, or a side is empty.

    >>> split_formula("lwage ~ exper + [educ ~ nearc4] + black")
    FormulaParts(outcome='lwage', treatment='educ', instruments='nearc4', covariates='exper + black')
    """
    if not isinstance(formula, str):
        raise DataError(f"a formula is a string, got {type(formula).__name__}. {FORM}.")
    if len(formula) > _LONGEST:
        raise DataError(
            f"the formula is longer than {_LONGEST} characters. Use fit_table with lists of columns instead."
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
