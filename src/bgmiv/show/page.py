"""One page that holds an analysis: nothing is loaded, nothing but its own script runs, and it works without it."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from bgmiv.errors import ConfigError, DataError
from bgmiv.show.analysis import Analysis
from bgmiv.show.charts import sparkline
from bgmiv.show.markup import Markup, element
from bgmiv.show.payload import payload, safe_json
from bgmiv.show.sections import checks, curve, effects, headline, methods, section, strength
from bgmiv.show.words import clean
from bgmiv.writing import write_whole

__all__ = ["check_path", "report_page", "write_report"]

_PAPER = "Luo and Liu, BGM-IV: an AI-powered Bayesian generative modeling approach for instrumental variable analysis."


def report_page(analysis: Analysis) -> str:
    """The whole page as HTML.

    Its policy lets only its own style and script act, by their hashes, and loads nothing. Every text is escaped where
    it enters an element, and the script writes texts only.

    Args:
        analysis: what is shown.

    Raises:
        DataError: it has no curve, or one whose parts differ in length.
    """
    _check_curves(analysis)
    style, script = _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; script-src 'sha256-{_hash(script)}'; style-src 'sha256-{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = [
        curve(analysis),
        effects(analysis),
        strength(analysis),
        checks(analysis),
        methods(analysis),
        _data(analysis),
        _history(analysis),
        _again(analysis),
    ]
    shown = [part for part in parts if part is not None]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", analysis.title),
        element("style", Markup(style)),
    )
    version = clean(analysis.versions.get("bgmiv", ""))
    foot = element(
        "footer", element("p", f"Made by bgmiv {version}".rstrip() + ". This file is the whole page: it loads nothing.")
    )
    body = element(
        "body",
        element("a", "Skip to the answer", href="#curve-section", class_="unseen skip"),
        element("div", _contents(shown), element("main", headline(analysis), *shown, foot), class_="sheet"),
        element("script", Markup(safe_json(payload(analysis))), type="application/json", id="analysis"),
        element("script", Markup(script)),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def write_report(analysis: Analysis, path: str | os.PathLike[str]) -> Path:
    """Write the page to a file, whole or not at all.

    Args:
        analysis: what is shown.
        path: of the file; its folder must exist.

    Returns:
        The path.

    Raises:
        ConfigError: the path is a folder, or its folder does not exist.
    """
    target = check_path(path)
    write_whole(target, report_page(analysis).encode())
    return target


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path of a page to write; checked before anything slow is done.

    Raises:
        ConfigError: the path is a folder, or its folder does not exist.
    """
    target = Path(path)
    if target.is_dir():
        raise ConfigError(
            f"path {str(target)!r} is a folder. Name a file in it, such as {str(target / 'report.html')!r}."
        )
    if not target.parent.is_dir():
        raise ConfigError(f"the folder {str(target.parent)!r} of path {str(target)!r} does not exist. Make it first.")
    return target


def _check_curves(analysis: Analysis) -> None:
    if not analysis.curves or not all(one.treatment for one in analysis.curves):
        raise DataError("the analysis has no curve to show.")
    for one in analysis.curves:
        parts = (one.estimate, one.in_support, *((one.lower, one.upper) if one.lower or one.upper else ()))
        rows = [row for source in one.sources for row in source.deviations]
        if any(len(part) != len(one.treatment) for part in (*parts, *rows)):
            raise DataError(f"the curve of {clean(one.label)!r} has parts of different lengths.")


def _asset(name: str) -> str:
    return files("bgmiv.show").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


_TITLES = {
    "curve-section": "The curve",
    "effects": "For whom?",
    "strength": "Instruments",
    "checks": "Checks",
    "methods": "Other methods",
    "data": "Data",
    "history": "Training",
    "again": "Do it again",
}


def _contents(parts: Sequence[Markup]) -> Markup:
    links = [
        element("li", element("a", title, href=f"#{anchor}"))
        for anchor, title in _TITLES.items()
        if any(part.startswith(f'<section id="{anchor}"') for part in parts)
    ]
    return element("nav", element("ul", *links), aria_label="Contents")


def _data(analysis: Analysis) -> Markup:
    question = analysis.question
    sentences = [f"{question.n_rows:,} rows" + (f" of {clean(question.source)}" if question.source else "") + "."]
    if question.n_dropped:
        sentences.append(f"{question.n_dropped:,} rows with missing values were left out.")
    if question.weights:
        sentences.append(f"Rows are weighted by {clean(question.weights)}.")
    if question.groups:
        sentences.append(f"Rows are drawn together in groups by {clean(question.groups)}.")
    names = [element("th", text, scope="col") for text in ("Column", "Role", "Kind", "Holds")]
    rows = [
        element(
            "tr",
            element("th", element("bdi", column.name), scope="row"),
            element("td", column.role),
            element("td", column.kind),
            element("td", column.text),
        )
        for column in question.columns
    ]
    table = element("table", element("thead", element("tr", *names)), element("tbody", *rows), class_="plain")
    return section(
        "data",
        "The question and the data",
        element("p", " ".join(sentences)),
        element("pre", element("code", question.formula)) if question.formula else None,
        element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Columns") if rows else None,
    )


def _history(analysis: Analysis) -> Markup | None:
    if not analysis.history:
        return None
    phases: list[Markup] = []
    for phase, lines in groupby(analysis.history, key=lambda line: line.phase):
        cards = [element("div", element("h4", line.name), sparkline(line), class_="spark-card") for line in lines]
        phases += [element("h3", phase), element("div", *cards, class_="sparks")]
    return section("history", "Training", element("p", "Losses along the steps of training."), *phases)


def _again(analysis: Analysis) -> Markup:
    settings = {"method": analysis.method, "seed": str(analysis.seed), **analysis.settings}
    lists = [
        element("div", element("h3", title), element("dl", *_pairs(values), class_="pairs"))
        for title, values in (("Settings", settings), ("Versions", analysis.versions))
    ]
    version = clean(analysis.versions.get("bgmiv", ""))
    install = f"Install bgmiv {version}, give it the same rows, the settings and the seed, and the numbers come back."
    cite = f"{_PAPER} " if "BGM" in analysis.method.upper() else ""
    return section(
        "again",
        "Do it again",
        element("p", install),
        element("div", *lists, class_="cards"),
        element("h3", "Cite"),
        element("p", f"{cite}bgmiv, version {version}: instrumental-variable analysis in Python."),
    )


def _pairs(values: dict[str, str]) -> list[Markup]:
    return [
        element("div", element("dt", element("bdi", name)), element("dd", element("bdi", text)))
        for name, text in values.items()
    ]
