"""Texts and elements of HTML as they are shown, the same in text, figures and pages."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from importlib.resources import files
from string import Formatter
from typing import Any

from bgmiv.errors import printable

__all__ = ["Markup", "asset", "clean", "element", "filled", "joined", "sentence", "shortened"]

_MAX_LETTERS = 1000
_BREAKS = re.compile("[\\t\\n\\r\\u2028\\u2029]")


def asset(name: str) -> str:
    """A style sheet or a script of the pages."""
    return files("bgmiv.analysis").joinpath("assets", name).read_text(encoding="utf-8")


class Markup(str):
    """Text that is HTML already; made by `element`, `filled` and `joined` only."""

    __slots__ = ()


def element(tag: str, /, *children: object, **attributes: object) -> Markup:
    """An element; children that are not `Markup` are texts, and are escaped like the values of attributes.

    A child None is nothing. Of attributes, `class_` is class and other underscores are hyphens; False and None leave
    one out, True gives it no value.

    >>> element("p", "a < b ", element("b", "c"), class_="note", data_row=3, hidden=True)
    '<p class="note" data-row="3" hidden>a &lt; b <b>c</b></p>'
    """
    shown = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        shown.append(f" {label}" if value is True else f' {label}="{escape(clean(value, 4000), quote=True)}"')
    return Markup(f"<{tag}{''.join(shown)}>{joined(*children)}</{tag}>")


def joined(*children: object) -> Markup:
    """Elements and texts one after another; texts are escaped."""
    parts = (child if isinstance(child, Markup) else escape(clean(child)) for child in children if child is not None)
    return Markup("".join(parts))


def filled(name: str, /, **values: object) -> Markup:
    """A piece of `report.html` by its name, with values in the places of their names in braces.

    Values are as children of `element`, or lists of them: texts are escaped, for attributes as well. A piece may take
    a part of a value, `{check.title}`, and cut a text to a width, `{title:40}`.

    >>> filled("tile", name="Average effect", text="a < b", more="")
    '<div><dt>Average effect</dt><dd>a &lt; b</dd><dd class="soft"></dd></div>'
    """
    return Markup(_Filler().vformat(_pieces()[name], (), values))


class _Filler(Formatter):
    def format_field(self, value: Any, width: str) -> str:
        shown = shortened(value, int(width)) if width else value
        return joined(*shown) if isinstance(shown, list) else joined(shown)


@cache
def _pieces() -> dict[str, str]:
    """Those of the page's markup by name, without the white space between elements."""
    lines = "".join(line.strip() for line in asset("report.html").splitlines())
    parts = re.split("<!-- ([a-z-]+) -->", lines)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def clean(text: object, max_letters: int = _MAX_LETTERS) -> str:
    r"""A user's text made fit to be shown: one line, and nothing that moves the cursor or the direction of reading.

    >>> clean("two\nlines \x1b[31m of \u202eevil")
    'two lines �[31m of �evil'
    >>> clean("x" * 4000)[-3:]
    'xx…'
    """
    letters = printable(_BREAKS.sub(" ", str(text)))
    return letters if len(letters) <= max_letters else letters[: max_letters - 1] + "…"


def shortened(text: object, width: int) -> str:
    """A text of at most `width` letters, cut in the middle."""
    whole = clean(text)
    if len(whole) <= width:
        return whole
    tail = (width - 1) // 2
    return whole[: width - 1 - tail] + "…" + whole[len(whole) - tail :]


def sentence(text: str) -> str:
    """A text with a capital and a full stop."""
    shown = clean(text).strip()
    return f"{shown[:1].upper()}{shown[1:].rstrip('.')}." if shown else ""
