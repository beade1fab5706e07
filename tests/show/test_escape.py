"""No text of the user's can become markup: 100 and more payloads in every name, level, label, title and setting."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from bgmiv.show.analysis import Analysis, MethodRow
from bgmiv.show.compare import Comparison
from bgmiv.show.page import report_page
from bgmiv.show.summary import Summary, summary_html, summary_text
from bgmiv.show.words import clean

# Where the slider begins depends on what the texts say.
_FREE = {"selected"}


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
        self.shape.append((tag, tuple(name for name, _ in attrs if name not in _FREE)))
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


@pytest.fixture(scope="module")
def thin(analysis: Analysis) -> Analysis:
    """The same with few points, so that a hundred pages are made quickly."""
    few = [
        replace(
            curve,
            **{name: getattr(curve, name)[::8] for name in ("treatment", "estimate", "lower", "upper", "in_support")},
            sources=tuple(replace(s, deviations=tuple(row[::8] for row in s.deviations)) for s in curve.sources),
        )
        for curve in analysis.curves
    ]
    methods = tuple(replace(row, curve=row.curve[::8]) for row in analysis.methods)
    return replace(analysis, curves=tuple(few), methods=methods, history=analysis.history[:1])


def test_there_are_a_hundred_payloads(payloads: list[str]) -> None:
    assert len(set(payloads)) >= 100


@pytest.mark.parametrize("which", ["thin", "levelled"])
def test_every_payload_stays_text_on_the_page(
    which: str, payloads: list[str], poisoned: Any, request: pytest.FixtureRequest
) -> None:
    analysis: Analysis = request.getfixturevalue(which)
    plain = Skeleton(report_page(analysis))
    for payload in payloads:
        hostile = poisoned(analysis, payload)
        page = report_page(hostile)
        page.encode()
        found = Skeleton(page)
        assert found.shape == plain.shape, payload
        assert found.acting == plain.acting, payload
        assert page.lower().count("</script") == 2
        shown = set(found.texts)
        wanted = [hostile.title, *(c.name for c in hostile.question.columns), *hostile.settings, *hostile.versions]
        assert {clean(text) for text in wanted} <= shown, payload
        _check_block(page, [clean(name) for name in hostile.question.treatment_levels])


def _check_block(page: str, levels: list[str]) -> None:
    """The script's data cannot end the element they stand in, and say what they should."""
    start = page.index('<script type="application/json"')
    block = page[page.index(">", start) + 1 : page.index("</script>", start)]
    assert block.isascii()
    assert not set(block) & set("<>&")
    assert json.loads(block)["levels"] == levels


def test_notebook_fragments(thin: Analysis, payloads: list[str], poisoned: Any) -> None:
    row = MethodRow("a", 1.0, 0.5, 1.5, (), "b")
    both = Comparison("y", "x", "0", "1", 10, 0.95, (), (row,))
    plain, pair = Skeleton(summary_html(thin)), Skeleton(both._repr_html_())
    for payload in payloads:
        assert Skeleton(summary_html(poisoned(thin, payload))).shape == plain.shape, payload
        found = Skeleton(poisoned(both, payload)._repr_html_())
        assert found.shape == pair.shape, payload
        assert any(clean(payload) in text for text in found.texts) or len(payload) > 900


def test_text_moves_no_cursor_and_keeps_its_width(thin: Analysis, payloads: list[str], poisoned: Any) -> None:
    for payload in payloads:
        text = summary_text(poisoned(thin, payload))
        assert not [letter for letter in text if ord(letter) < 32 and letter != "\n"]
        assert max(map(len, text.splitlines())) <= 80
        str(Summary(poisoned(thin, payload))).encode()
