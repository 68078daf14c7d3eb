"""Solutions of equations by factors in lower precision and refinement: a call that no graph holds."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_void_p
from typing import Any

from magmadnn.backends.cuda.nodes.matrices import MatrixNode

from .handles import Copy, Handles, at, item_bytes

_FUNCTION = "DSgesv"  # float64 outside, float32 for factors: float16 takes ten times the steps


class Refinements:
    """Calls on one stream.

    Args:
        handles: of the libraries.
        copy: begins to copy from the host.
    """

    def __init__(self, handles: Handles, copy: Copy) -> None:
        self._handles, self._copy = handles, copy

    def workspace(self, node: MatrixNode) -> int:
        """Bytes of workspace on the device that the call of a node needs."""
        found = c_size_t()
        self._handles.by_solver(
            node, f"{_FUNCTION}_bufferSize", *self._arguments(node, 0), c_void_p(), byref(found)
        )
        return found.value

    def call(self, node: MatrixNode) -> None:
        """Give the stream the call of a node; how many steps were made is known on the host."""
        nbytes, steps = c_size_t(self.workspace(node)), c_int()
        for number in range(node.count):
            self._handles.by_solver(
                node, _FUNCTION, *self._arguments(node, number), c_void_p(node.workspace), nbytes,
                byref(steps), at(node.info, number, 4),
            )  # fmt: skip
            place = node.pieces[1] + 4 * number
            self._copy(place, ctypes.addressof(steps), 4, self._handles.stream)

    def _arguments(self, node: MatrixNode, number: int) -> list[Any]:
        n, width = c_int(node.columns), c_int(node.rows - 1)
        matrices, _, exchanges = node.pieces
        right, x = (c_void_p(table[number]) for table in node.operands)
        size = node.columns * node.columns * item_bytes(node)
        places = at(exchanges, number, 4 * node.columns)
        return [n, width, at(matrices, number, size), n, places, right, n, x, n]
