"""Steps that are Fourier transforms by the device's library: along the last axes of packed arrays."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.backends.cuda.engine import FourierNode
from magmadnn.compiler.cuda.library.scaled import scaled
from magmadnn.compiler.cuda.text.variant import Chip
from magmadnn.compiler.regions.draft import Work
from magmadnn.graph.dim import substitute
from magmadnn.graph.node import Node
from magmadnn.graph.op import Op
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.schedule.copies import copied_bytes
from magmadnn.runtime.cuda.schedule.launch import Item

from .rooms import Rooms

_MOST_AXES = 3
_FUNCTIONS = ("c2c", "r2c", "c2r")


def is_transform(layout: Layout, work: Work) -> bool:
    """Whether the library has the transform that a step is."""
    node = work.region.nodes[0]
    op = node.op
    if len(work.region.nodes) != 1 or not isinstance(op, Op) or op.library is None:
        return False
    if op.library.function not in _FUNCTIONS:  # of complex matrices, say
        return False
    source, goal = layout.frames[node.inputs[0]], layout.frames[node]
    axes = node.attributes["axes"]
    last = set(axes) == set(range(-len(axes), 0)) and 0 < len(axes) <= _MOST_AXES
    if op.library.function != "c2c":  # the last axis is the one that is halved
        last = last and axes[-1] == -1
    one = op.library.function != "c2r" or len(axes) == 1
    packed = source.flags.c_contiguous and goal.flags.c_contiguous
    return bool(last and one and packed and source.size and goal.size)


class Transforms:
    """Makes the launches of such steps.

    Args:
        layout: where values lie.
        rooms: gives workspaces.
        chip: what emitters know of the device.
    """

    def __init__(self, layout: Layout, rooms: Rooms, chip: Chip) -> None:
        self._layout, self._rooms, self._chip = layout, rooms, chip

    def of(self, work: Work) -> list[Item]:
        """The launches of one step: the transform, and a kernel that scales where that is wanted."""
        node = work.region.nodes[0]
        assert isinstance(node.op, Op) and node.op.library is not None
        kind = node.op.library.function
        told = {k: substitute(v, self._layout.sizes) for k, v in node.attributes.items()}
        operand, (source, goal) = node.inputs[0], self._frames(node)
        axes = len(told["axes"])
        sizes = source.shape[-axes:] if kind != "c2r" else (told["n"],)
        count = math.prod(source.shape[:-axes])
        inverse = kind == "c2r" or bool(told.get("inverse"))
        call = FourierNode(
            kind, goal.dtype in (np.float64, np.complex128), sizes, count, inverse,
            self._layout.address(operand), self._layout.address(node), 0,
        )  # fmt: skip
        reads, result = self._layout.span(operand), self._layout.span(node)
        items: list[Item] = []
        if kind == "c2r":  # which writes over what it reads
            (copy,) = self._rooms.pieces(work, (source.nbytes,))
            items += copied_bytes(source.nbytes, call.source, copy[0], self._chip)
            call, reads = replace(call, source=copy[0]), copy
        room = self._rooms.of(call)
        touched = (result, room) if kind != "c2r" else (result, room, reads)
        items.append(Item(replace(call, workspace=room[0]), (reads,), touched))
        factor = _factor(math.prod(sizes), told["norm"], inverse)
        if factor != 1.0:
            real = goal.dtype.type(0).real.dtype.name
            launch = scaled(real, goal.nbytes // np.dtype(real).itemsize, factor, call.result)
            items.append(Item(launch, (result,), (result,)))
        return items

    def _frames(self, node: Node) -> tuple[Any, Any]:
        return self._layout.frames[node.inputs[0]], self._layout.frames[node]


def _factor(count: int, norm: str, inverse: bool) -> float:
    """What NumPy multiplies a transform of so many numbers by."""
    power = {"backward": float(inverse), "ortho": 0.5, "forward": float(not inverse)}[norm]
    return float(count ** (-power))
