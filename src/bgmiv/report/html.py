"""Small self-contained HTML pages: no scripts, nothing loaded from anywhere, every text escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable, Sequence
from html import escape

__all__ = ["contents", "heading", "image", "page", "paragraph", "table"]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 74rem; margin: 2.5rem auto; padding: 0 1.2rem;
  overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin-bottom: .4rem; }
h2 { font-size: 1.25rem; margin-top: 2.6rem; }
h3 { font-size: 1.05rem; margin-top: 1.8rem; }
a { color: inherit; }
nav { columns: 15rem; margin: 1.4rem 0; }
nav ul { margin: 0; padding-left: 1.1rem; }
.scroll { overflow-x: auto; }
.tall { max-height: 34rem; overflow-y: auto; border: 1px solid #8886; border-radius: 6px; padding: 0 .7rem; }
.tall th { position: sticky; top: 0; background: Canvas; }
table { border-collapse: collapse; font-size: .92em; font-variant-numeric: tabular-nums; }
p, figcaption { max-width: 50rem; }
.title { font-weight: 600; margin: 1.8rem 0 .5rem; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #8884; }
td { white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { font-weight: 600; border-bottom-width: 2px; vertical-align: bottom; }
.left { text-align: left; }
.wide { white-space: normal; min-width: 18rem; }
.start td { border-top: 2px solid #8884; }
td b { font-weight: 700; }
figure { margin: 1.2rem 0; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
figcaption, .note { color: #6b6b6b; font-size: .92em; }
@media (prefers-color-scheme: dark) { figcaption, .note { color: #9a9a9a; } }
@media (max-width: 40rem) {
  body { font-size: 15px; margin: 1.2rem auto; padding: 0 .8rem; }
  table { font-size: .86em; }
  th, td { padding: .3rem .55rem; }
}
@media print {
  body { max-width: none; margin: 0; font-size: 10pt; }
  nav { display: none; }
  .scroll { overflow: visible; max-height: none; border: 0; padding: 0; }
  .tall th { position: static; }
  table { font-size: 8pt; }
  th, td { padding: .15rem .4rem; }
  td { white-space: normal; }
  tr, figure { break-inside: avoid; }
  h2, h3, .title { break-after: avoid; }
  thead { display: table-header-group; }
}
"""

_TALL = 30
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode("ascii")
_POLICY = f"default-src 'none'; img-src data:; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"


def heading(text: str, *, anchor: str = "", level: int = 2) -> str:
    """A heading, of the second level unless told; with an anchor links can lead to it.

    >>> heading("a < b", anchor="rule")
    '<h2 id="rule">a &lt; b</h2>'
    """
    name = f' id="{escape(anchor)}"' if anchor else ""
    return f"<h{level}{name}>{escape(text)}</h{level}>"


def paragraph(text: str, *, note: bool = False) -> str:
    """A paragraph; a note is set smaller and paler.

    >>> paragraph("R&D", note=True)
    '<p class="note">R&amp;D</p>'
    """
    return f'<p class="note">{escape(text)}</p>' if note else f"<p>{escape(text)}</p>"


def contents(entries: Iterable[tuple[str, str]]) -> str:
    """A table of contents from pairs of anchor and text.

    >>> contents([("rule", "a < b")])
    '<nav><ul><li><a href="#rule">a &lt; b</a></li></ul></nav>'
    """
    items = "".join(f'<li><a href="#{escape(anchor)}">{escape(text)}</a></li>' for anchor, text in entries)
    return f"<nav><ul>{items}</ul></nav>"


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str = "",
    bold: Collection[tuple[int, int]] = (),
    left: Collection[int] = (),
    wide: Collection[int] = (),
    group_starts: Collection[int] = (),
) -> str:
    """A table of texts; the first column is on the left, the others on the right. A long one scrolls under its header.

    Args:
        header: a text a column.
        rows: the texts of each row.
        caption: a line over it.
        bold: positions (row, column) in bold.
        left: further columns that stand on the left.
        wide: columns whose long texts are broken into lines.
        group_starts: rows with a line above them.

    >>> "<tr><td>a &lt; b</td></tr>" in table(["rule"], [["a < b"]])
    True
    """

    def opened(tag: str, column: int) -> str:
        classes = [name for name, columns in (("left", left), ("wide", wide)) if column in columns]
        return f'<{tag} class="{" ".join(classes)}">' if classes else f"<{tag}>"

    def line(i: int, texts: Sequence[str]) -> str:
        cells = (f"<b>{escape(text)}</b>" if (i, j) in bold else escape(text) for j, text in enumerate(texts))
        start = '<tr class="start">' if i in group_starts else "<tr>"
        return start + "".join(f"{opened('td', j)}{cell}</td>" for j, cell in enumerate(cells)) + "</tr>"

    title = f'<p class="title">{escape(caption)}</p>' if caption else ""
    name = f' aria-label="{escape(caption)}"' if caption else ""
    head = "".join(f"{opened('th', j)}{escape(text)}</th>" for j, text in enumerate(header))
    lines = [line(i, texts) for i, texts in enumerate(rows)]
    body, frame = "".join(lines), "scroll tall" if len(lines) > _TALL else "scroll"
    inner = f"<table{name}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    # What scrolls must be reachable by keyboard.
    return f'{title}<div class="{frame}" tabindex="0">{inner}</div>'


def image(png: bytes, alternative: str, caption: str, *, width: int | None = None) -> str:
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

    >>> page("T", [heading("H")]).count("<h")
    4
    """
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )
