"""Settings of the documentation: `make docs`.

The source folder is that of the repository, so that links between these pages, the benchmarks, the README and the changelog are
the same on the site and in the files, and are all checked.
"""

from __future__ import annotations

from bgmiv import __version__

project = "bgmiv"
version = release = __version__
author = "bgmiv developers"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]

root_doc = "docs/index"
include_patterns = ["docs/**", "benchmarks/*.md", "*.md"]
exclude_patterns = [".*", "out", "build", "dist", "src", "tests", "benchmarks/results", "**/.ipynb_checkpoints"]

myst_heading_anchors = 3
myst_links_external_new_tab = False

# Tutorials run where they leave no files; what has run is kept until its code changes.
nb_execution_mode = "cache"
nb_execution_cache_path = "out/docs-cache"
nb_execution_in_temp = True
nb_execution_timeout = 1800
nb_execution_raise_on_error = True
nb_merge_streams = True

templates_path = ["templates"]
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
# Types of other packages: their pages are not here, and the site is built without a network. Types of this package that
# only its own code names.
nitpick_ignore_regex = [(r"py:.*", r"(?!bgmiv\.).*")]

html_theme = "furo"
html_title = f"bgmiv {release}"
html_extra_path = ["extra"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
