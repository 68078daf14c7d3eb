"""Steps that are convolutions by the device's library: nodes, in the library's terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from magmadnn.backends.cuda.engine import FUSED_CONVOLUTIONS, ConvolutionNode, Engine
from magmadnn.compiler.cuda.library import few_channels
from magmadnn.compiler.cuda.library.ends import ends
from magmadnn.compiler.cuda.library.zeros import zeros
from magmadnn.compiler.kernels.library import WholeLibrary
from magmadnn.compiler.plan.native_plan import Work
from magmadnn.runtime.cuda.algorithms import algorithm_of
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.schedule.hazards import Span
from magmadnn.runtime.cuda.schedule.launch import Item

from .rooms import Rooms

_LEAST_AXES = 2  # of places: the library takes no fewer


def can_convolve(kernel: WholeLibrary) -> bool:
    """Whether a function is a convolution, or what its gradients are."""
    return kernel.function in FUSED_CONVOLUTIONS


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
        """The launches of one step: one, or two where the library does not do what follows the convolution.

        None where the result has no elements; zeros where an operand has none, but for what follows.
        """
        assert work.lowered is not None
        kernel, node = work.lowered.kernel, work.lowered.writes[0][1]
        assert isinstance(kernel, WholeLibrary)
        operands = [operand for _, operand, _ in work.lowered.reads]
        result = self._layout.span(node)
        frames = [self._layout.frames[n] for n in (*operands, node)]
        if not frames[-1].size:
            return []
        reads = tuple(map(self._layout.span, operands))
        call = self._call(kernel, [frame.shape for frame in frames], values)
        if not all(frame.size for frame in frames):
            zero = Item(zeros(frames[-1].nbytes, values["result"]), (), (result,))
            return [zero, *self._ends(call, reads, result)]
        few = few_channels.few_of(call)
        if few is not None:
            return self._own(work, few, call, reads, result)
        if call.bias and not self._engine.algorithms(call):
            plain = replace(call, bias=0, added=0, positive=False)
            return [*self._calls(plain, reads[:2], result), *self._ends(call, reads, result)]
        return self._calls(call, reads, result)

    def _call(
        self, kernel: WholeLibrary, shapes: list[tuple[int, ...]], values: Mapping[str, int]
    ) -> ConvolutionNode:
        """A step in the library's terms."""
        # x, w and y, of which one is the result
        order = {
            "fprop": (0, 1, -1),
            "fprop_fused": (0, 1, -1),
            "dgrad": (-1, 1, 0),
            "wgrad": (0, -1, 1),
        }[kernel.function]
        addresses = [values[f"x{k}"] for k in range(kernel.operands)]
        x, w, y = ([*addresses, values["result"]][k] for k in order)
        full = tuple(_with_places(shapes[k]) for k in order)
        told = {name: _for_places(name, value) for name, value in kernel.settings}
        bias, added = (*addresses[2:], 0, 0)[:2]
        return ConvolutionNode(
            kernel.function.removesuffix("_fused"), kernel.dtype, kernel.dtype, self._tensor_float,
            (full[0], full[1], full[2]), **told, x=x, w=w, y=y, workspace=0, bias=bias, added=added,
        )  # fmt: skip

    def _own(
        self,
        work: Work,
        few: few_channels.Few,
        call: ConvolutionNode,
        reads: tuple[Span, ...],
        result: Span,
    ) -> list[Item]:
        """The launches of kernels of our own, for few channels."""
        if call.function == "fprop":
            return [Item(few_channels.forward(few, call), reads, (result,))]
        if call.function == "dgrad":
            return [Item(few_channels.inputs(few, call), reads, (result,))]
        (room,) = self._rooms.pieces(work, (few_channels.part_bytes(few, call),))
        parts, sums = few_channels.filters(few, call, room[0])
        return [Item(parts, reads, (room,)), Item(sums, (room,), (result,))]

    def _calls(self, call: ConvolutionNode, reads: tuple[Span, ...], result: Span) -> list[Item]:
        """The launch of a call, by an algorithm that is chosen for it."""
        call = replace(call, algorithm=algorithm_of(self._engine, self._layout.device, call))
        room = self._rooms.of(call)
        return [Item(replace(call, workspace=room[0]), reads, (result, room))]

    def _ends(self, call: ConvolutionNode, reads: tuple[Span, ...], result: Span) -> list[Item]:
        """A kernel for what follows the convolution, in place; none where nothing does."""
        if not call.bias:
            return []
        shape = call.shapes[call.result]
        launch = ends(call.stored, shape, call.y, call.bias, call.added, call.positive)
        return [Item(launch, (result, *reads[2:]), (result,))]


def _with_places(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with axes of one place in front of too few."""
    missing = _LEAST_AXES - (len(shape) - 2)
    return (shape[0], *[1] * missing, *shape[1:])


def _for_places(name: str, value: Any) -> Any:
    """A setting with entries for such axes."""
    if name in ("groups", "positive"):
        return value
    return (*[(0, 0) if name == "padding" else 1] * (_LEAST_AXES - len(value)), *value)
