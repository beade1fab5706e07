from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

from bgmiv.bench.plan import RunSpec
from bgmiv.bench.runner import run_one
from bgmiv.report import html
from bgmiv.report.demo import demo_page, demo_record, result_cells


class Balance(HTMLParser):
    """Collects tags that are opened and not closed, and every address."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(text: str) -> Balance:
    parser = Balance()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def test_every_text_is_escaped() -> None:
    bad = '<script>alert("x")</script> & co'
    text = html.page(
        bad,
        [html.heading(bad), html.paragraph(bad), html.table([bad], [[bad]]), html.image(b"png", bad, bad)],
    )
    assert "<script" not in text
    assert 'alert("' not in text
    parsed(text)


def test_demo_page_stands_alone() -> None:
    row = run_one(RunSpec("demand", 200, 0.5, "tsls", "default", 3))
    page = demo_page([row], b"\x89PNG")
    (address,) = parsed(page).addresses
    assert address.startswith("data:image/png;base64,")
    assert "seed 3" in page
    assert row.versions["jax"] in page
    assert "linear 2SLS" in page


def test_a_failed_fit_is_told_and_escaped() -> None:
    row = run_one(RunSpec("demand", 200, 0.5, "tsls", "default", 3))
    failed = replace(
        row,
        status="failed",
        error="ValueError: a < b",
        structural_mse=None,
        structural_mse_in_support=None,
        structural_mse_outside=None,
    )
    page = demo_page([failed], b"\x89PNG")
    assert "ValueError: a &lt; b" in page
    assert result_cells([failed])[0][1] == "failed"


def test_record_holds_rows_and_the_scale() -> None:
    row = run_one(RunSpec("demand", 1000, 0.5, "tsls", "default", 0))
    record = demo_record([row])
    assert record["rows"][0]["structural_mse"] == row.structural_mse
    assert 3.1e4 < record["constant_predictor"]["all"] < 3.4e4
