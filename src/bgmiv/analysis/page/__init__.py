"""One page that holds an analysis: nothing is loaded, nothing but its own script runs, and it works without it."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from bgmiv._io import check_writable, remove_strays, write_whole
from bgmiv.analysis.analysis import Analysis
from bgmiv.analysis.markup import Markup, asset, clean, element
from bgmiv.analysis.page.answer import checks_section, curve_section, effects_section, headline, methods_section
from bgmiv.analysis.page.background import again_section, assumptions_section, data_section, history_section
from bgmiv.analysis.page.instruments import direct_section, strength_section
from bgmiv.analysis.page.parts import Parts
from bgmiv.analysis.page.payload import payload, safe_json
from bgmiv.errors import ConfigError, StoreError

__all__ = ["check_path", "report_page", "write_report"]


def report_page(analysis: Analysis, first: Mapping[tuple[str, str], Parts] | None = None) -> str:
    """The whole page as HTML; `first` are sections before the others, by their anchors and names.

    Its policy lets only its own style and script act, by their hashes, and loads nothing. Every text is escaped where
    it enters an element, and the script writes texts only.
    """
    style, script = texts = [asset(name) for name in ("report.css", "report.js")]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in texts]
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes[1]}'; style-src 'sha256-{hashes[0]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    sections: dict[tuple[str, str], Parts] = {
        **(first or {}),
        ("curve-section", "The curve"): curve_section(analysis),
        ("effects", "By group"): effects_section(analysis),
        ("strength", "Instruments"): strength_section(analysis),
        ("sensitivity", "Sensitivity"): direct_section(analysis),
        ("checks", "Checks"): checks_section(analysis),
        ("methods", "Methods"): methods_section(analysis),
        ("assumptions", "Assumptions"): assumptions_section(analysis),
        ("data", "Data"): data_section(analysis),
        ("history", "Training"): history_section(analysis),
        ("again", "Reproduce"): again_section(analysis),
    }
    shown = {names: parts for names, parts in sections.items() if parts}
    links = [element("li", element("a", name, href=f"#{anchor}")) for anchor, name in shown]
    written = [element("section", *parts, id=anchor) for (anchor, _), parts in shown.items()]
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
    made = f"Made by bgmiv {clean(analysis.versions.get('bgmiv', ''))}".rstrip()
    made += f" on {clean(analysis.made)}, seed {analysis.seed}" if analysis.made else ""
    foot = element("footer", element("p", f"{made}. This file is self-contained and loads nothing from the network."))
    nav = element("nav", element("ul", *links), aria_label="Contents")
    body = element(
        "body",
        element("a", "Skip to the curve", href="#curve-section", class_="unseen skip"),
        element("div", nav, element("main", headline(analysis), *written, foot), class_="sheet"),
        element("script", Markup(safe_json(payload(analysis))), type="application/json", id="analysis"),
        element("script", Markup(script)),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def write_report(analysis: Analysis, path: str | os.PathLike[str]) -> Path:
    """Write the page to a file, whole or not at all, and give its path; raises as `check_path` does."""
    target = check_path(path)
    remove_strays(target)
    write_whole(target, report_page(analysis).encode())
    return target


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path of a page to write; checked before anything slow is done.

    Raises:
        ConfigError: the path is a folder, a device or a pipe, or its folder does not exist.
        StoreError: nothing can be written there.
    """
    target = Path(path)
    try:
        is_folder = target.is_dir()
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}. Choose another name.") from error
    if is_folder:
        example = str(target / "report.html")
        raise ConfigError(f"path {str(target)!r} is a folder. Name a file in it, such as {example!r}.")
    if os.path.exists(target) and not target.is_file():
        raise ConfigError(f"path {str(target)!r} is a device or a pipe. Name a file.")
    if not target.parent.is_dir():
        raise ConfigError(f"the folder {str(target.parent)!r} of path {str(target)!r} does not exist. Make it first.")
    check_writable(target.parent)
    return target
