"""No text of the user's can become markup: many payloads in every name, level, label, title and setting."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import pytest

from bgmiv.analysis.analysis import Analysis, MethodRow
from bgmiv.analysis.compare import Comparison
from bgmiv.analysis.markup import clean
from bgmiv.analysis.page import report_page
from bgmiv.analysis.text import summary_html, summary_text
from bgmiv.intervals import Interval


class Skeleton(HTMLParser):
    """The elements of a page with their attributes' names, the values that could act, and the texts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.shape: list[tuple[str, tuple[str, ...]]] = []
        self.texts: list[str] = []
        self.acting: Counter[str] = Counter()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shape.append((tag, tuple(name for name, _ in attrs)))
        self.acting.update(f"{name}={value}" for name, value in attrs if name in ("href", "src", "style", "id", "type"))
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        self.shape.append((f"/{tag}", ()))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data[:50]}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data[:50]}")


@pytest.mark.parametrize(("which", "step"), [("analysis", 8), ("levelled", 1)])
def test_every_payload_stays_text_on_the_page(
    which: str, step: int, payloads: list[str], poisoned: Any, request: pytest.FixtureRequest
) -> None:
    analysis: Analysis = request.getfixturevalue(which)
    plain = Skeleton(report_page(analysis))
    for payload in payloads[::step]:
        hostile = poisoned(analysis, payload)
        page = report_page(hostile)
        page.encode()
        found = Skeleton(page)
        assert found.shape == plain.shape, payload
        assert found.acting == plain.acting, payload
        assert page.lower().count("</script") == 2
        wanted = [hostile.title, *(c.name for c in hostile.question.columns), *hostile.settings, *hostile.versions]
        assert {clean(text) for text in wanted} <= set(found.texts), payload
        _check_block(page, [clean(name) for name in hostile.question.treatment_levels])


def _check_block(page: str, levels: list[str]) -> None:
    """The script's data cannot end the element they stand in, and say what they should."""
    start = page.index('<script type="application/json"')
    block = page[page.index(">", start) + 1 : page.index("</script>", start)]
    assert block.isascii()
    assert not set(block) & set("<>&")
    assert json.loads(block)["levels"] == levels


def test_notebook_fragments(analysis: Analysis, payloads: list[str], poisoned: Any) -> None:
    row = MethodRow("a", Interval(1.0, 0.5, 1.5, 0.95, {"sampling": 0.25}), ())
    both = Comparison("y", "x", ("none", "some"), 0.0, 1.0, 10, 0.95, (), (row,))
    plain, pair = Skeleton(summary_html(analysis)), Skeleton(both._repr_html_())
    for payload in payloads:
        assert Skeleton(summary_html(poisoned(analysis, payload))).shape == plain.shape, payload
        found = Skeleton(poisoned(both, payload)._repr_html_())
        assert found.shape == pair.shape, payload
        assert any(clean(payload) in text for text in found.texts) or len(payload) > 900


def test_text_moves_no_cursor_and_keeps_its_width(analysis: Analysis, payloads: list[str], poisoned: Any) -> None:
    for payload in payloads:
        text = summary_text(poisoned(analysis, payload))
        assert not [letter for letter in text if ord(letter) < 32 and letter != "\n"]
        assert max(map(len, text.splitlines())) <= 80
        text.encode()
