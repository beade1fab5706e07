"""Numbers and sentences as people read them, the same in text, figures and pages."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from bgmiv.show.analysis import Analysis, EffectRow
from bgmiv.trust.diagnosis import Check, CheckLevel

__all__ = [
    "STRENGTH_CHECKS",
    "Trust",
    "aligned",
    "answer",
    "clean",
    "level_names",
    "number",
    "percent",
    "sentence",
    "share",
    "shortened",
    "span",
    "strength_checks",
    "together",
    "trust",
]

STRENGTH_CHECKS = ("effective-f", "robust-f", "nonlinear-first-stage", "anderson-rubin")
"""Keys of the checks that say how strongly the instruments move the treatment."""

_LONGEST = 1000
_BREAKS = re.compile("[\\t\\n\\r\\u2028\\u2029]")
# Control letters, changes of direction, halves of pairs, and what is no letter.
_BROKEN = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufdd0-\\ufdef\\ufffe\\uffff]"
)
_ORDER: tuple[CheckLevel, ...] = ("good", "note", "doubtful", "bad")
_OF_VERDICT: dict[str, CheckLevel] = {"good": "good", "doubtful": "doubtful", "failed": "bad"}


def sentence(text: str) -> str:
    """A text of the user's as a sentence.

    >>> sentence("the mean of lwage")
    'The mean of lwage.'
    """
    shown = clean(text).strip()
    return f"{shown[:1].upper()}{shown[1:].rstrip('.')}." if shown else ""


def clean(text: object, longest: int = _LONGEST) -> str:
    r"""A text of the user's fit to be shown: one line, and nothing that moves the cursor or the direction of reading.

    >>> clean("two\nlines \x1b[31m of \u202eevil")
    'two lines �[31m of �evil'
    >>> clean("x" * 4000)[-3:]
    'xx…'
    """
    letters = _BROKEN.sub("\ufffd", _BREAKS.sub(" ", str(text)))
    return letters if len(letters) <= longest else letters[: longest - 1] + "…"


def shortened(text: object, width: int) -> str:
    """A text of at most `width` letters, cut in the middle.

    >>> shortened("the share of benefits in income", 15)
    'the sha… income'
    """
    whole = clean(text)
    if len(whole) <= width:
        return whole
    tail = (width - 1) // 2
    return whole[: width - 1 - tail] + "…" + whole[len(whole) - tail :]


def number(value: float | None, digits: int = 3) -> str:
    """A number to so many digits.

    >>> number(0.123456), number(1234567.0), number(-12.0), number(None), number(float("inf"))
    ('0.123', '1,234,567', '-12', 'n/a', 'infinity')
    """
    if value is None or math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    size = abs(value)
    if size and not 1e-4 <= size < 1e9:
        return f"{value:.{digits - 1}e}"
    if size >= 10**digits:
        return f"{value:,.0f}"
    return f"{float(f'{value:.{digits}g}'):g}"


def together(*values: float | None, digits: int = 3) -> tuple[str, ...]:
    """Numbers that are read together, with the decimals that their differences need.

    >>> together(0.1315, 0.0242, 0.2388)
    ('0.132', '0.024', '0.239')
    >>> together(9418.8, 6000.1, None)
    ('9,419', '6,000', 'n/a')
    """
    return aligned([values], digits)[0]


def aligned(rows: Sequence[Sequence[float | None]], digits: int = 3) -> list[tuple[str, ...]]:
    """Rows of numbers that are read together, all with the decimals that a usual row needs.

    >>> aligned([(0.503, 0.405, 0.601), (0.31, 0.27, 0.35), (0.37, None, None)])
    [('0.503', '0.405', '0.601'), ('0.310', '0.270', '0.350'), ('0.370', 'n/a', 'n/a')]
    >>> aligned([(3.0, -14.6, 20.6), (-0.0899, 0.018)])
    [('3.0', '-14.6', '20.6'), ('-0.090', '0.018')]
    """
    needed = [_decimals(row, digits) for row in rows]
    usual = sorted(found for found in needed if found is not None)
    common = usual[(len(usual) - 1) // 2] if usual else None
    # A row of quite another size keeps its own: with those of the others it would show nothing, or too much.
    kept = [common if own is not None and common is not None and abs(own - common) < 2 else own for own in needed]
    return [tuple(_fixed(value, decimals, digits) for value in row) for row, decimals in zip(rows, kept, strict=True)]


def _decimals(values: Sequence[float | None], digits: int) -> int | None:
    """How many decimals show the differences; None if some of these numbers need powers of ten."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    largest = max((abs(value) for value in finite), default=0.0)
    scale = max(finite, default=0.0) - min(finite, default=0.0) or largest
    if not scale or scale < 1e-4 or largest >= 1e9:
        return None
    return min(max(digits - 1 - math.floor(math.log10(scale)), 0), 8)


def _fixed(value: float | None, decimals: int | None, digits: int) -> str:
    if value is None or not math.isfinite(value) or decimals is None or abs(value) >= 1e9:
        return number(value, digits)
    text = f"{value:,.{decimals}f}"
    return text.lstrip("-") if not text.strip("-0.,") else text


def percent(level: float) -> str:
    """A level as it is said.

    >>> percent(0.95), percent(0.995)
    ('95%', '99.5%')
    """
    return f"{100.0 * level:.4g}%"


def share(value: float) -> str:
    """A share of people; one that is not all is never shown as all.

    >>> share(0.974), share(0.9999), share(0.0), share(0.002)
    ('97%', '>99%', '0%', '<1%')
    """
    if math.isnan(value):
        return "n/a"
    if 0.0 < value < 0.01:
        return "<1%"
    return ">99%" if 0.99 < value < 1.0 else f"{value:.0%}"


def span(lower: float | None, upper: float | None) -> str:
    """An interval's ends.

    >>> span(0.0242, 0.2388)
    '0.024 to 0.239'
    """
    low, high = together(lower, upper)
    return f"{low} to {high}"


def answer(analysis: Analysis, row: EffectRow) -> str:
    """What was found, in one sentence."""
    question = analysis.question
    names = [shortened(text, 60) for text in (question.treatment, row.t1, row.t0, question.outcome_meaning)]
    value, low, high = together(row.estimate, row.lower, row.upper)
    change = "Setting {} to {} instead of {} would change {}".format(*names)
    if row.lower is None or row.upper is None:
        return f"{change} by {value} on average (this method gives no interval)."
    return f"{change} by {value} on average ({percent(analysis.level)} interval {low} to {high})."


class Trust(NamedTuple):
    """How far the answer can be believed: a level, a word for it, and why in a sentence."""

    level: CheckLevel
    word: str
    sentence: str


def trust(analysis: Analysis) -> Trust:
    """The worst of checks and verdict, in words."""
    verdict = analysis.verdict
    checks = _checks(analysis)
    levels = [check.level for check in checks]
    if verdict is not None:
        levels.append(_OF_VERDICT[verdict.level])
    if not levels:
        return Trust("note", "not checked", "Nothing was checked.")
    worst = _ORDER[max(_ORDER.index(level) for level in levels)]
    against = [clean(check.title) for check in checks if check.level == worst]
    if verdict is not None and _OF_VERDICT[verdict.level] == worst:
        against.append("the fit in held-out rows")
    listed = "; ".join(title[:1].lower() + title[1:] if title[1:2].islower() else title for title in against)
    if worst == "bad":
        return Trust("bad", "do not rely on it", f"Speaking against it: {listed}.")
    if worst == "doubtful":
        return Trust("doubtful", "read with care", f"In doubt: {listed}.")
    return Trust(
        "good",
        "no check against it",
        "That the instruments touch the outcome only through the treatment cannot be checked; it has to be argued.",
    )


def level_names(analysis: Analysis) -> tuple[str, ...]:
    """The names of the levels a treatment has, in the order of their codes; those of 0 and 1 are 0 and 1."""
    if analysis.question.treatment_levels or analysis.curves[0].treatment != (0.0, 1.0):
        return analysis.question.treatment_levels
    return ("0", "1")


def _checks(analysis: Analysis) -> tuple[Check, ...]:
    """The checks without the verdict, which has a place of its own."""
    twice = () if analysis.verdict is None else ("verdict",)
    return tuple(check for check in analysis.diagnosis.checks if check.key not in twice)


def strength_checks(analysis: Analysis) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """The checks of the instruments' strength, and the others."""
    checks = _checks(analysis)
    strong = tuple(check for check in checks if check.key in STRENGTH_CHECKS)
    return strong, tuple(check for check in checks if check.key not in STRENGTH_CHECKS)
