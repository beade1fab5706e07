"""HTML and SVG built from elements, so that no text can reach a page unescaped."""

from __future__ import annotations

from html import escape

from bgmiv.show.words import clean

__all__ = ["Markup", "element", "joined"]

_VOID = frozenset({"br", "hr", "input", "link", "meta"})


class Markup(str):
    """Text that is HTML already; made by `element` and `joined` only."""

    __slots__ = ()


def element(tag: str, /, *children: object, **attributes: object) -> Markup:
    """An element; children that are not `Markup` are texts, and are escaped like the values of attributes.

    Args:
        tag: its name.
        *children: elements and texts; None is nothing.
        **attributes: `class_` is class, other underscores are hyphens; False and None leave one out, True gives it no
            value.

    >>> element("p", "a < b ", element("b", "c"), class_="note", data_row=3, hidden=True)
    '<p class="note" data-row="3" hidden>a &lt; b <b>c</b></p>'
    """
    shown = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        shown.append(f" {label}" if value is True else f' {label}="{escape(clean(value, 4000), quote=True)}"')
    opening = f"<{tag}{''.join(shown)}>"
    return Markup(opening if tag in _VOID else f"{opening}{joined(*children)}</{tag}>")


def joined(*children: object) -> Markup:
    """Elements and texts one after another.

    >>> joined("R&D", None, element("br"))
    'R&amp;D<br>'
    """
    parts = (child if isinstance(child, Markup) else escape(clean(child)) for child in children if child is not None)
    return Markup("".join(parts))
