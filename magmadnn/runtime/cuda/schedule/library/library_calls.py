"""Steps that are calls of the device's library: the call, and the kernels around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from magmadnn.backends.cuda.engine import MatrixNode
from magmadnn.compiler.cuda.library.calls import around, pieces
from magmadnn.compiler.cuda.library.surroundings import INFO
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.regions.draft import Work
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.schedule.hazards import Span
from magmadnn.runtime.cuda.schedule.launch import Item

from .rooms import Rooms

_INFO_BYTES = 4  # for each matrix
# What all calls write, whatever memory they have: the library's handle has memory that it does not tell of,
# so none may run beside another. There is nothing at these addresses.
_HANDLE = (1, 2)


class LibraryCalls:
    """Makes the launches of such steps.

    Args:
        layout: where values lie.
        rooms: gives workspaces.
    """

    def __init__(self, layout: Layout, rooms: Rooms) -> None:
        self._layout, self._rooms = layout, rooms
        self._infos: dict[Work, int] = {}
        self._tables: dict[tuple[int, ...], int] = {}  # of addresses: where they lie on the device

    def of(self, work: Work, values: Mapping[str, int]) -> list[Item]:
        """The launches of one step, in order."""
        assert work.lowered is not None and isinstance(work.lowered.kernel, Library)
        kernel, info = work.lowered.kernel, self._info(work, values["row1"])
        own = self._rooms.pieces(work, pieces(kernel, values))
        starts = tuple(start for start, _ in own)
        found = around(kernel, {**values, INFO: info[0]}, starts)
        if found is None:
            return []
        spans = {slot: self._layout.span(node) for slot, node, _ in work.lowered.reads}
        result = self._layout.span(work.lowered.writes[0][1])
        items = [Item(found.before, tuple(spans.values()), (result, *own))]
        if not found.calls:
            return items
        places = tuple(_places(kernel, values, *operand) for operand in found.operands)
        node = MatrixNode(
            kernel.function, kernel.dtype, kernel.settings, values["rows"], values["columns"],
            places, tuple(map(self._table, places)), info[0], 0, height=values["height"],
            width=values["width"], pieces=starts, matrices=values["row1"],
        )  # fmt: skip
        workspace = self._rooms.of(node)
        read = tuple(spans[slot] for slot, _ in found.operands if slot != "result")
        touched = (*own, result) if found.operands else own
        writes = (*touched, info, workspace, _HANDLE)
        items.append(Item(replace(node, workspace=workspace[0]), (*read, *touched), writes))
        if found.after is not None:
            items.append(Item(found.after, (info, result, *own), (result,)))
        return items

    def _info(self, work: Work, matrices: int) -> Span:
        """Memory in which the function says what it found."""
        if work not in self._infos:
            self._infos[work] = self._layout.put(np.zeros(max(matrices, 1), np.int32))
        return self._infos[work], self._infos[work] + _INFO_BYTES * max(matrices, 1)

    def _table(self, places: tuple[int, ...]) -> int:
        if places not in self._tables:
            self._tables[places] = self._layout.put(np.array(places, np.int64))
        return self._tables[places]


def _places(kernel: Library, values: Mapping[str, int], slot: str, skip: int) -> tuple[int, ...]:
    """The address of each matrix of an operand or of the result, so many elements behind its first."""
    size, item = values["rows"] * values["columns"], ITEM_BYTES[kernel.dtype]
    step = (size if slot == "result" else values[f"{slot}_step"]) * item
    return tuple(values[slot] + skip * item + k * step for k in range(values["row1"]))
