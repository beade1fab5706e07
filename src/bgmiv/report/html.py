"""Small self-contained HTML pages: no scripts, nothing loaded from anywhere, every text escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["heading", "image", "page", "paragraph", "table"]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin-bottom: .4rem; }
h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .9rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { font-weight: 600; border-bottom-width: 2px; }
figure { margin: 1.2rem 0; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
figcaption, .note { color: #777; font-size: .92rem; }
"""


def heading(text: str) -> str:
    """A heading of the second level.

    >>> heading("a < b")
    '<h2>a &lt; b</h2>'
    """
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, *, note: bool = False) -> str:
    """A paragraph; a note is set smaller and paler.

    >>> paragraph("R&D", note=True)
    '<p class="note">R&amp;D</p>'
    """
    return f'<p class="note">{escape(text)}</p>' if note else f"<p>{escape(text)}</p>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts; the first column is on the left, the others on the right.

    >>> "<tr><td>a &lt; b</td></tr>" in table(["rule"], [["a < b"]])
    True
    """
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def image(png: bytes, alternative: str, caption: str) -> str:
    """A picture inside the page itself, as a data address."""
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<figure><img alt="{escape(alternative)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page from parts made by the other functions here.

    >>> page("T", [heading("H")]).count("<h")
    4
    """
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )
