"""Searching hyperparameters: `md.search.run(build, space, x, y, ...)`.

A space is a dict of parameters with the values that they may have; a study is what a search has found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magmadnn.calls import check_methods, explains_names

from .honest.auditing import Audit, audit
from .honest.leaks import Finding
from .honest.nested_search import nested
from .honest.outer_rows import Nested
from .kept_studies import load
from .objectives import Reaches, reaches
from .searching import run
from .spaces.dimensions import (
    Dimension,
    choice,
    grid,
    integer,
    log_integer,
    log_uniform,
    uniform,
)
from .study import Study
from .study_table import StudyTable
from .trials.records import Trial

__all__ = [
    "Audit",
    "Dimension",
    "Finding",
    "Nested",
    "Reaches",
    "Study",
    "StudyTable",
    "Trial",
    "audit",
    "choice",
    "grid",
    "integer",
    "load",
    "log_integer",
    "log_uniform",
    "nested",
    "reaches",
    "run",
    "uniform",
]

check_methods(Study, "model", "scores", "importance", "plot", "report", "measure_seconds")

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.search", __all__)
