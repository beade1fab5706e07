"""Settings of the documentation: `make docs`.

The source folder is that of the repository, so that links between these pages, the benchmarks, the README and the
changelog are the same on the site and in the files, and are all checked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bgmiv import __version__

HERE = Path(__file__).parent

project = "bgmiv"
version = release = __version__
author = "bgmiv developers"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]

root_doc = "docs/index"
include_patterns = ["docs/**", "benchmarks/*.md", "*.md"]
exclude_patterns = [
    ".*",
    "out",
    "build",
    "dist",
    "src",
    "tests",
    "docs/templates",
    "benchmarks/results",
    "**/.ipynb_checkpoints",
]

myst_heading_anchors = 3
myst_links_external_new_tab = False

# Tutorials run where they leave no files; what has run is kept until its code changes.
nb_execution_mode = "cache"
nb_execution_cache_path = "out/docs-cache"
nb_execution_in_temp = True
nb_execution_timeout = 1800
nb_execution_raise_on_error = True
nb_merge_streams = True

# Relative ones would be looked for in the source folder.
templates_path = [str(HERE / "templates")]
autosummary_generate = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_attr_annotations = False
python_use_unqualified_type_names = True
default_role = "code"

nitpicky = True
# Types in signatures: of other packages, whose pages cannot be linked without a network, and of parts of this one that
# users do not call. References to documented names (`bgmiv.<name>`) are checked.
nitpick_ignore_regex = [(r"py:.*", r"(?!bgmiv\.).*"), (r"py:class", r"bgmiv\.[a-z_]+\..*")]

html_theme = "furo"
html_title = f"bgmiv {release}"
html_extra_path = ["extra"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False


def _plain_maths(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Formulas between dollars as code: pages need no script from a network."""

    def code(found: re.Match[str]) -> str:
        return f"``{' '.join(found[1].split())}``"

    lines[:] = re.sub(r"\$\$?([^$]+)\$\$?", code, "\n".join(lines)).split("\n")


def setup(app: Any) -> None:
    """What Sphinx calls first."""
    app.connect("autodoc-process-docstring", _plain_maths)
