"""Steps that are convolutions by the device's library: nodes, in the library's terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from magmadnn.backends.cuda.engine import CONVOLUTIONS, ConvolutionNode, Engine
from magmadnn.compiler.cuda.library.zeros import zeros
from magmadnn.compiler.kernels.library import WholeLibrary
from magmadnn.compiler.plan.native_plan import Work
from magmadnn.runtime.cuda.algorithms import algorithm_of
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.schedule.launch import Item

from .rooms import Rooms

_LEAST_AXES = 2  # of places: the library takes no fewer


def can_convolve(kernel: WholeLibrary) -> bool:
    """Whether a function is a convolution, or what its gradients are."""
    return kernel.function in CONVOLUTIONS


class Convolutions:
    """Makes the launches of such steps.

    Args:
        layout: where values lie.
        engine: the device.
        rooms: gives workspaces.
        tensor_float: whether float32 may be multiplied as TF32.
    """

    def __init__(self, layout: Layout, engine: Engine, rooms: Rooms, tensor_float: bool) -> None:
        self._layout, self._engine, self._rooms = layout, engine, rooms
        self._tensor_float = tensor_float

    def of(self, work: Work, values: Mapping[str, int]) -> list[Item]:
        """The launch of one step; none where the result has no elements, zeros where an operand has none."""
        assert work.lowered is not None
        kernel, node = work.lowered.kernel, work.lowered.writes[0][1]
        assert isinstance(kernel, WholeLibrary)
        operands = [operand for _, operand, _ in work.lowered.reads]
        result = self._layout.span(node)
        frames = [self._layout.frames[n] for n in (*operands, node)]
        if not frames[-1].size:
            return []
        if not all(frame.size for frame in frames):
            return [Item(zeros(frames[-1].nbytes, values["result"]), (), (result,))]
        # x, w and y, of which one is the result
        order = {
            "fprop": (0, 1, 2),
            "dgrad": (2, 1, 0),
            "wgrad": (0, 2, 1),
        }[kernel.function]
        addresses = values["x0"], values["x1"], values["result"]
        x, w, y = (addresses[k] for k in order)
        shapes = tuple(_with_places(frames[k].shape) for k in order)
        told = {name: _for_places(name, value) for name, value in kernel.settings}
        call = ConvolutionNode(
            kernel.function, kernel.dtype, kernel.dtype, self._tensor_float,
            (shapes[0], shapes[1], shapes[2]), **told, x=x, w=w, y=y, workspace=0,
        )  # fmt: skip
        call = replace(call, algorithm=algorithm_of(self._engine, self._layout.device, call))
        room = self._rooms.of(call)
        reads = tuple(map(self._layout.span, operands))
        return [Item(replace(call, workspace=room[0]), reads, (result, room))]


def _with_places(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with axes of one place in front of too few."""
    missing = _LEAST_AXES - (len(shape) - 2)
    return (shape[0], *[1] * missing, *shape[1:])


def _for_places(name: str, value: Any) -> Any:
    """A setting with entries for such axes."""
    if name == "groups":
        return value
    return (*[(0, 0) if name == "padding" else 1] * (_LEAST_AXES - len(value)), *value)
