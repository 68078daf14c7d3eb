"""How Sphinx builds these pages: `sphinx-build -W docs docs/_build/html` (part of scripts/test)."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

_here = Path(__file__).resolve().parent
_project = tomllib.loads((_here.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
sys.path[:0] = [str(_here.parent), str(_here / "_extensions")]  # this source, wherever it is built

project = _project["name"]
release = version = _project["version"]
author = "the magmadnn developers"
copyright = f"2026, {author}"  # Sphinx wants this name

extensions = [
    "myst_parser",  # pages are Markdown
    "sphinx.ext.autodoc",  # the reference comes from the docstrings,
    "sphinx.ext.napoleon",  # which are in Google's style
    "sphinx.ext.viewcode",
    "op_records",  # and from the records of the ops
]
exclude_patterns = ["_build"]

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3

# Docstrings write `name` for code, as the comments and Markdown do.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"{project} {release}"
html_show_sourcelink = False
