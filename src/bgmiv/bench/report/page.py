"""Self-contained HTML pages: no scripts, nothing loaded from anywhere, every text escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape

from bgmiv.analysis.markup import asset
from bgmiv.bench.report.tables import Table

__all__ = ["contents", "heading", "image", "page", "paragraph", "table"]

_STYLE = asset("bench.css")

_TALL = 30
"""Rows from which a table scrolls under its header."""

_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode("ascii")
_POLICY = f"default-src 'none'; img-src data:; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"


def heading(text: str, anchor: str = "") -> str:
    """A heading; with an anchor, links can lead to it."""
    name = f' id="{escape(anchor)}"' if anchor else ""
    return f"<h2{name}>{escape(text)}</h2>"


def paragraph(text: str, *, note: bool = False) -> str:
    """A paragraph; a note is set smaller and paler."""
    return f'<p class="note">{escape(text)}</p>' if note else f"<p>{escape(text)}</p>"


def contents(entries: Iterable[tuple[str, str]]) -> str:
    """A table of contents from pairs of anchor and text."""
    items = "".join(f'<li><a href="#{escape(anchor)}">{escape(text)}</a></li>' for anchor, text in entries)
    return f"<nav><ul>{items}</ul></nav>"


def table(shown: Table) -> str:
    """A table with its title and notes. A long one scrolls under its header."""
    wide, starts = shown.wide, shown.group_starts
    classes = [
        ' class="left wide"' if name in wide else ' class="left"' if name in shown.words else "" for name in shown.text
    ]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(classes, shown.text, strict=True))
    body = ""
    for i, row in enumerate(shown.lines):
        texts = (f"<b>{escape(text)}</b>" if bold else escape(text) for text, bold in row)
        cells = "".join(f"<td{kind}>{text}</td>" for kind, text in zip(classes, texts, strict=True))
        body += ('<tr class="start">' if i in starts else "<tr>") + f"{cells}</tr>"
    title = escape(shown.title)
    frame = "scroll tall" if len(shown.text) > _TALL else "scroll"
    inner = f'<table aria-label="{title}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    # What scrolls must be reachable by keyboard.
    return "".join(
        [f'<p class="title">{title}</p><div class="{frame}" tabindex="0">{inner}</div>']
        + [paragraph(note, note=True) for note in shown.footnotes]
    )


def image(png: bytes, alternative: str, caption: str, width: int | None = None) -> str:
    """A picture inside the page itself, as a data address; never wider than the page or the width asked for."""
    data = base64.b64encode(png).decode("ascii")
    asked = "" if width is None else f' width="{width}"'
    return (
        f'<figure><img alt="{escape(alternative)}"{asked} src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page from parts made by the other functions here.

    The page's own policy forbids scripts and loading: only its one style and pictures inside it are allowed.
    """
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )
