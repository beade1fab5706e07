"""The documentation holds together without being built: names, examples, links. `make docs` builds it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

import bgmiv

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    path for folder, pattern in ((ROOT, "*.md"), (DOCS, "**/*.md"), (ROOT / "benchmarks", "*.md"))
    for path in folder.glob(pattern) if "generated" not in path.parts
)  # fmt: skip


def api_names() -> list[str]:
    """The names listed on the page of the API, from the package on."""
    return [
        f"bgmiv.{name}" for name in re.findall(r"^   ([A-Za-z][\w.]*)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    ]


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    names = api_names()
    assert len(names) == len(set(names))
    assert {f"bgmiv.{name}" for name in bgmiv.__all__} <= set(names)


def test_every_name_of_the_api_has_an_example() -> None:
    without = []
    for name in api_names():
        module, _, public = name.rpartition(".")
        if ">>>" not in (getattr(importlib.import_module(module), public).__doc__ or ""):
            without.append(name)
    assert without == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    titles = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "")).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "", text)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        found = (page.parent / path) if path else page
        if not found.exists() or (anchor and found.suffix == ".md" and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


def test_the_files_that_a_contributor_is_sent_to_exist() -> None:
    named = re.findall(r"`([\w./-]+(?:\.(?:py|md|toml)|/))`", (ROOT / "CONTRIBUTING.md").read_text())
    places = (ROOT, ROOT / "src" / "bgmiv")
    missing = [name for name in named if not any((place / name).exists() for place in places)]
    assert len(named) > 50
    assert [name for name in missing if "NAME" not in name] == []


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = {DOCS / "index.md"}
    for page in PAGES:
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            for entry in (line for line in block.splitlines() if line and not line.startswith(":")):
                listed |= {found.resolve() for found in page.parent.glob(f"{entry}.md")}
    assert {page for page in PAGES if page.is_relative_to(DOCS)} <= {path.resolve() for path in listed}


def test_the_readme_is_short_and_its_picture_small() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    assert (DOCS / "static" / "curve.png").stat().st_size < 150_000
