"""Matrices spread over workers that feel like a regular mathematics library."""

from magmadnn.dmath.client.matrix import Matrix
from magmadnn.dmath.client.session import Session
from magmadnn.dmath.layouts import Layout
from magmadnn.dmath.names import FUNCTIONS
from magmadnn.dmath.rates import Rates
from magmadnn.dmath.recipes import Blocks, Columns, Replicated, Rows, cyclic

globals().update(FUNCTIONS)

__all__ = [
    "Blocks",
    "Columns",
    "Layout",
    "Matrix",
    "Rates",
    "Replicated",
    "Rows",
    "Session",
    "cyclic",
    *sorted(FUNCTIONS),
]
