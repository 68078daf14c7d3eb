"""Workspaces of calls of the device's libraries."""

from __future__ import annotations

from collections.abc import Callable

from magmadnn.backends.cuda.engine import PRODUCT_WORKSPACE, ConvolutionNode, Engine, MatrixNode
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.schedule.hazards import Span


class Rooms:
    """Gives calls a workspace: one of the device's, or where they want more one that calls like them share.

    Calls that share one run one after the other.

    Args:
        layout: keeps those that are made.
        engine: says how much a call wants.
        workspace: gives a piece of `PRODUCT_WORKSPACE` bytes.
    """

    def __init__(self, layout: Layout, engine: Engine, workspace: Callable[[], Span]) -> None:
        self._layout, self._engine, self._workspace = layout, engine, workspace
        self._large: dict[int, Span] = {}  # by their bytes

    def of(self, node: MatrixNode | ConvolutionNode) -> Span:
        """A workspace for a call."""
        nbytes = self._engine.workspace(node)
        if nbytes <= PRODUCT_WORKSPACE:
            return self._workspace()
        nbytes = 1 << (nbytes - 1).bit_length()
        if nbytes not in self._large:
            start = self._layout.reserved(nbytes)
            self._large[nbytes] = start, start + nbytes
        return self._large[nbytes]
