"""How Sphinx builds these pages: `sphinx-build -W docs docs/_build/html` (part of scripts/test)."""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

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

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

# Docstrings write `name` for code, as the comments and Markdown do.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
# Types that are written out in full would hide the names of the arguments.
autodoc_type_aliases = {
    name: name
    for name in (
        "ActivationLike", "Array", "ArrayLike", "BatchSize", "DTypeLike", "Feeds", "LossLike",
        "MetricLike", "NDArray", "PathLike", "Regularizer", "Shape", "Targets", "Value",
    )
}  # fmt: skip
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]  # a list, like parameters

html_theme = "furo"
html_title = f"{project} {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]


def skip_member(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out methods that only do what the base class says: a layer's formula, a loss's terms.

    So are `set_fit_request` and its kin, which scikit-learn gives to estimators: they refer to its own pages.
    """
    owner, _, method = getattr(obj, "__qualname__", "").rpartition(".")
    if re.fullmatch(r"set_\w+_request", name):
        return True
    repeated = (inspect.getdoc(obj) or "").startswith("See `")
    if owner and (repeated or (method in ("build", "forward") and owner != "Layer")):
        return True
    return None


def shorten_signature(
    app: Any,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    result: str | None,
) -> tuple[str | None, str | None]:
    """Write `Array` for `TypeAliasForwardRef('Array')`, and for `<factory>` what can be parsed."""
    alias = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")

    def shortened(text: str) -> str:
        return alias.sub(r"\1", text.replace("<factory>", "..."))

    return signature and shortened(signature), result and shortened(result)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-signature", shorten_signature)
