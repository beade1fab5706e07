"""The page in a real browser: it loads quietly, answers to hand and keyboard, and hostile names stay inert."""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bgmiv.analysis.analysis import Analysis, ColumnSummary, Curve, Group, contrast
from bgmiv.analysis.markup import clean
from bgmiv.analysis.page import write_report
from bgmiv.numerals import share, together

ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
Opened = Callable[..., Any]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium or the one named by BGMIV_CHROMIUM; `make browser` installs it where it can."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install -e '.[dev]')")
    found = os.environ.get("BGMIV_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.skip("no chromium: run `make browser`, or name one in BGMIV_CHROMIUM")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    """Open an analysis; at the end nothing may have been said, asked, thrown or fetched."""
    events: list[str] = []
    contexts = []

    def open_page(analysis: Analysis, width: int = 1200, **options: Any) -> Any:
        path = write_report(analysis, tmp_path / f"report-{len(contexts)}.html")
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: events.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: events.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (events.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: events.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert events == []


def fits(page: Any) -> bool:
    """Whether nothing sticks out at the side."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def shown_lines(page: Any) -> list[str]:
    """The paths of the curve that can be seen."""
    return page.evaluate(
        "Array.from(document.querySelectorAll('#curve path.line')).filter(p => p.getClientRects().length)"
        ".map(p => p.getAttribute('d'))"
    )


def ends(curve: Curve, t0: float, t1: float) -> tuple[float, float, float]:
    """The effect between two treatments and its interval, as Python reads it off the curve."""
    found = contrast(curve, t0, t1, 0.95)[0]
    return found.estimate, found.lower, found.upper


def read_contrast(page: Any) -> tuple[float, ...]:
    return tuple(float(page.locator("#contrast").get_attribute(f"data-{n}")) for n in ("estimate", "lower", "upper"))


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("which", ["analysis", "levelled", "bare"])
def test_it_loads_quietly_and_fits(which: str, width: int, opened: Opened, request: pytest.FixtureRequest) -> None:
    page = opened(request.getfixturevalue(which), width, color_scheme="dark" if width == 390 else "light")
    assert fits(page)
    unnamed = page.evaluate(
        "Array.from(document.querySelectorAll('input, select')).filter(e => !(e.labels.length || e.ariaLabel)).length"
    )
    assert unnamed == 0


def test_hovering_and_keys_read_the_curve(opened: Opened, analysis: Analysis) -> None:
    page = opened(analysis)
    curve = analysis.curves[0]
    assert shown_lines(page)[0].count("L") + 1 == len(curve.treatment)
    box = page.locator("#curve").bounding_box()
    for i in (8, 30):
        way = (curve.treatment[i] - curve.treatment[0]) / (curve.treatment[-1] - curve.treatment[0])
        page.mouse.move(box["x"] + way * box["width"], box["y"] + 40)
        value, low, high = together(curve.estimate[i], curve.band_lower[i], curve.band_upper[i])
        assert float(page.text_content("#read-treatment")) == pytest.approx(curve.treatment[i], abs=1e-3)
        assert page.text_content("#read-estimate") == value
        assert page.text_content("#read-interval") == f"{low} to {high}"
        assert page.text_content("#read-share") == f"{share(curve.in_support[i])} of rows"
    page.focus("#place")
    page.keyboard.press("ArrowRight")
    assert float(page.text_content("#read-treatment")) == pytest.approx(curve.treatment[31], abs=1e-3)
    assert together(curve.estimate[31], curve.band_lower[31], curve.band_upper[31])[0] in page.get_attribute(
        "#place", "aria-valuetext"
    )


def test_groups_and_other_methods_come_and_go(opened: Opened, analysis: Analysis) -> None:
    page = opened(analysis)
    before, value = shown_lines(page), page.text_content("#contrast-value")
    page.check("[data-toggle='2']")
    assert len(shown_lines(page)) == len(before) + 1
    page.select_option("#group", "3")
    after = shown_lines(page)
    assert after
    assert not set(before) & set(after)
    assert page.locator("[data-toggle='2']").is_disabled()
    assert page.text_content("#contrast-value") == together(*ends(analysis.curves[3], 12.0, 16.0))[0] != value
    assert analysis.curves[3].group.label in page.text_content("#contrast-share")
    assert page.locator("tr.chosen").count() == 1
    page.select_option("#group", "0")
    page.uncheck("[data-toggle='2']")
    assert shown_lines(page) == before


def test_contrasts_are_those_of_python(opened: Opened, analysis: Analysis) -> None:
    page = opened(analysis)
    first = analysis.effects[0]
    assert read_contrast(page) == (first.estimate, first.lower, first.upper)
    value = together(*read_contrast(page))[0]
    assert page.text_content("#contrast-value") == page.text_content(".tiles dd") == value
    assert f" by {value} on average" in page.text_content(".answer")
    for t0, t1 in ((6.0, 18.0), (12.1, 12.9), (16.0, 9.33)):
        page.fill("#t0", str(t0))
        page.fill("#t1", str(t1))
        wanted = ends(analysis.curves[0], t0, t1)
        assert read_contrast(page) == pytest.approx(wanted, abs=2e-5)
        value, low, high = together(*read_contrast(page))
        assert page.text_content("#contrast-value") == value
        assert page.text_content("#contrast-interval") == f"95% interval {low} to {high}"
    page.fill("#t1", "99")
    assert page.text_content("#contrast-interval") == "Choose values from 6 to 18."
    page.focus("#t1-slide")
    page.keyboard.press("Home")
    assert page.input_value("#t1") == "6"


def test_the_band_is_shown_and_the_interval_of_a_point_on_demand(opened: Opened, analysis: Analysis) -> None:
    page = opened(analysis)
    curve = analysis.curves[0]
    i = int(page.input_value("#place"))
    assert not page.locator("[data-curve='0'] .band.inner").is_visible()
    assert page.text_content("#read-interval-name") == "95% band"
    page.check("#pointwise")
    assert page.locator("[data-curve='0'] .band.inner").is_visible()
    assert page.text_content("#read-interval-name") == "95% interval"
    low, high = together(curve.estimate[i], curve.lower[i], curve.upper[i])[1:]
    assert page.text_content("#read-interval") == f"{low} to {high}"


def test_a_direct_effect_moves_the_estimates(opened: Opened, analysis: Analysis) -> None:
    page = opened(analysis)
    first, direct = analysis.effects[0], analysis.instruments.direct[0]

    def read(name: str) -> list[float]:
        return [float(value) for value in page.get_attribute(f"#direct-{name}", "data-values").split()]

    assert read("fit") == pytest.approx([first.estimate, first.lower, first.upper], rel=1e-6)
    assert read("line") == pytest.approx([4.0 * end for end in direct.interval(0.0, 0.95)], rel=1e-6)
    page.focus("#direct")
    page.keyboard.press("End")
    gamma = float(page.text_content("#direct-gamma"))
    assert read("fit")[0] == pytest.approx(first.estimate + 4.0 * gamma * direct.slope, abs=5e-3)
    assert read("line") == pytest.approx([4.0 * end for end in direct.interval(gamma, 0.95)], abs=5e-3)
    assert "(" in page.get_attribute("#direct", "aria-valuetext")


def test_tables_are_copied_and_saved(browser: Any, analysis: Analysis, tmp_path: Path) -> None:
    evil = replace(analysis.effects[1], group=Group("x", '=HYPERLINK("x")', 9))
    effects = (analysis.effects[0], evil, *analysis.effects[2:])
    path = write_report(replace(analysis, effects=effects), tmp_path / "report.html")
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(path.as_uri())
    page.click("[data-table='effects'][data-do='csv']")
    page.wait_for_selector("button:text-is('Copied')")
    rows = list(csv.DictReader(io.StringIO(page.evaluate("navigator.clipboard.readText()"))))
    assert [float(row["estimate"]) for row in rows] == pytest.approx([row.estimate for row in effects], rel=1e-9)
    assert rows[1]["group"] == '\'=HYPERLINK("x")'
    page.click("[data-table='methods'][data-do='latex']")
    page.wait_for_function("navigator.clipboard.readText().then(t => t.startsWith('\\\\begin{tabular}{lrrr}'))")
    text = page.evaluate("navigator.clipboard.readText()")
    assert "2SLS & $0.526$ & $0.097$ & $0.955$ \\\\\n" in text
    with page.expect_download() as download:
        page.click("[data-table='first-stage'][data-do='file']")
    assert download.value.suggested_filename == "first-stage.csv"
    saved = Path(download.value.path()).read_text()
    assert saved.splitlines()[:2] == [
        "name,along,place,mean,lower,upper,fitted,n_rows",
        "educ,nearc4,0,13,12.9,13.1,13,957",
    ]
    context.close()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
def test_no_serious_barriers(opened: Opened, analysis: Analysis, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = axe.Axe().run(opened(analysis, width, color_scheme=scheme)).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert not [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in serious]


def test_the_ends_of_a_slider_are_on_the_curve(opened: Opened, analysis: Analysis) -> None:
    """The field shows four digits, which may round to just outside of the curve."""
    shifted = [replace(curve, treatment=(6.00012345, *curve.treatment[1:-1], 18.00045)) for curve in analysis.curves]
    page = opened(replace(analysis, curves=tuple(shifted)))
    for key in ("Home", "End"):
        page.focus("#t1-slide")
        page.keyboard.press(key)
        assert page.text_content("#contrast-value")


def test_levels_and_a_method_without_intervals(opened: Opened, levelled: Analysis, bare: Analysis) -> None:
    page = opened(levelled)
    first = levelled.effects[0]
    assert read_contrast(page) == pytest.approx((first.estimate, first.lower, first.upper), abs=2e-5)
    page.select_option("#t1", "3")
    page.select_option("#group", "1")
    assert read_contrast(page) == pytest.approx(ends(levelled.curves[1], 0.0, 3.0), abs=2e-5)
    assert page.locator("[data-curve='1'] .mark").first.is_visible()
    assert not page.locator("[data-curve='0'] .mark").first.is_visible()
    page = opened(bare)
    assert page.text_content("#read-interval") == "none"
    assert page.text_content("#contrast-interval") == "no interval"
    assert page.locator("#group").count() == 0


def test_on_paper_and_without_scripts(opened: Opened, analysis: Analysis) -> None:
    paper = opened(analysis, color_scheme="dark")
    paper.emulate_media(media="print")
    plain = opened(analysis, 390, java_script_enabled=False)
    for page in (paper, plain):
        assert page.locator("#curve path.line.main").first.bounding_box()["width"] > 100
        assert page.locator(".answer").is_visible()
        for hidden in (".controls", ".contrast", "#group", "nav"):
            assert not page.locator(hidden).is_visible()
    caution = "getComputedStyle(document.querySelector('.caution')).backgroundColor"
    assert paper.evaluate(caution) == "rgb(253, 241, 221)"
    assert paper.pdf(format="A4").startswith(b"%PDF")


def test_hostile_names_stay_inert(opened: Opened, levelled: Analysis, payloads: list[str], poisoned: Any) -> None:
    """All payloads on one page, in columns, settings, levels, groups and methods at once."""
    columns = tuple(ColumnSummary(text, text, text, text) for text in payloads)
    settings = dict(zip(payloads, payloads, strict=True))
    curve = levelled.curves[0]
    groups = tuple(replace(curve, group=Group(text, text, 9)) for text in payloads)
    effects = tuple(replace(levelled.effects[0], group=Group(text, text, 9)) for text in payloads)
    methods = tuple(replace(levelled.methods[1], name=text) for text in payloads[::4])
    hostile = replace(
        levelled,
        question=replace(levelled.question, columns=columns, treatment_levels=tuple(payloads[:4])),
        settings=settings,
        versions=settings,
        curves=groups,
        effects=effects,
        methods=methods,
    )
    page = opened(hostile, 390)
    assert fits(page)
    page.select_option("#group", "5")
    page.mouse.move(100, 300)
    assert page.evaluate("window.hacked") is None
    names = page.evaluate("Array.from(document.querySelectorAll('#data tbody th')).map(e => e.textContent)")
    assert names == [clean(text) for text in payloads]
    assert page.locator("img, iframe, object, embed, form, base, math, video, audio, marquee").count() == 0
    assert page.locator("script").count() == 2
    worst = opened(poisoned(levelled, "</script><img src=x onerror=window.hacked=1>"), 1440)
    assert fits(worst)
    assert worst.evaluate("window.hacked") is None


def test_the_policy_stops_scripts_styles_and_loading(browser: Any, bare: Analysis, tmp_path: Path) -> None:
    page = browser.new_page()
    page.goto(write_report(bare, tmp_path / "report.html").as_uri())
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.hacked = 1";
            document.body.append(script);
            const link = document.createElement("a");
            link.setAttribute("onclick", "window.hacked = 2");
            document.body.append(link);
            link.click();
        }"""
    )
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("fetch('data:,x').then(() => 'loaded', () => 'stopped')") == "stopped"
    page.close()
