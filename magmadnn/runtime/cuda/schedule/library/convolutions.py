"""Steps that are convolutions by the device's library: nodes, in the library's terms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from magmadnn.backends.cuda.engine import FUSED_CONVOLUTIONS, ConvolutionNode, Engine
from magmadnn.compiler.cuda.library.ends import ends
from magmadnn.compiler.cuda.library.few_channels import launches as few_launches
from magmadnn.compiler.cuda.library.few_channels.sizes import Few, few_of
from magmadnn.compiler.cuda.library.zeros import zeros
from magmadnn.compiler.cuda.text.variant import Chip
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.library import WholeLibrary
from magmadnn.compiler.layout import row_axes
from magmadnn.compiler.regions.draft import Work
from magmadnn.graph.op import Array
from magmadnn.runtime.cuda.algorithms import algorithm_of
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.schedule.copies import copied_rows
from magmadnn.runtime.cuda.schedule.hazards import Span
from magmadnn.runtime.cuda.schedule.launch import Item

from .rooms import Rooms

ALIGNMENT = 16  # bytes, of all that the library is given
# Which of x, w and y are read, in the order of the op's operands.
_OPERANDS = {"fprop": (0, 1), "dgrad": (2, 1), "wgrad": (0, 2)}
_ADDED, _BIAS = 3, 4  # behind x, w and y, in the numbers of operands
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
        chip: what emitters know of the device.
    """

    def __init__(
        self, layout: Layout, engine: Engine, rooms: Rooms, tensor_float: bool, chip: Chip
    ) -> None:
        self._layout, self._engine, self._rooms = layout, engine, rooms
        self._tensor_float, self._chip = tensor_float, chip

    def of(self, work: Work, values: Mapping[str, int]) -> list[Item]:
        """The launches of one step: one, or two where the library does not do what follows the convolution.

        Of a convolution of many models a call of the library for each, or one launch of a kernel of our own.
        Nothing where the result has no elements; zeros where an operand has none, but for what follows.
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
        models = _models_of(kernel, frames[0])
        call = self._call(kernel, [f[0] for f in frames] if models else frames, values)
        few = few_of(call, models)
        if few is not None and all(frame.size for frame in frames):
            return self._own(work, few, call, models, reads, result)
        if not models:
            return self._one(work, call, frames, reads, result)
        items = list[Item]()
        for number in range(models):  # which may run beside each other
            own, spans = _of_model(number, frames, values, (*reads, result))
            parts = [frame[number] for frame in frames]
            call = self._call(kernel, parts, own)
            items += self._one(work, call, parts, spans[:-1], spans[-1])
        return items

    def _one(
        self,
        work: Work,
        call: ConvolutionNode,
        frames: Sequence[Array],
        reads: tuple[Span, ...],
        result: Span,
    ) -> list[Item]:
        """The launches of one convolution without kernels of our own for few channels."""
        if not all(frame.size for frame in frames):
            itemsize, columns = frames[-1].itemsize, frames[-1].shape[-1]
            row = (call.pitches[call.result] or columns) * itemsize
            at = call.addresses[call.result]
            zero = zeros(frames[-1].nbytes, at, columns * itemsize, row)
            return [Item(zero, (), (result,)), *self._ends(call, reads, result)]
        if call.bias and not self._engine.algorithms(call):
            plain = replace(call, bias=0, added=0, positive=False)
            made = self._calls(work, plain, reads[:2], result)
            return [*made, *self._ends(call, reads, result)]
        return self._calls(work, call, reads, result)

    def _call(
        self, kernel: WholeLibrary, frames: Sequence[Array], values: Mapping[str, int]
    ) -> ConvolutionNode:
        """A step in the library's terms.

        Args:
            kernel: what it computes.
            frames: how operands and result lie.
            values: addresses.
        """
        # x, w and y, of which one is the result
        order = {
            "fprop": (0, 1, -1),
            "fprop_fused": (0, 1, -1),
            "dgrad": (-1, 1, 0),
            "wgrad": (0, -1, 1),
        }[kernel.function]
        addresses = [values[f"x{k}"] for k in range(kernel.operands)]
        x, w, y = ([*addresses, values["result"]][k] for k in order)
        full = tuple(_with_places(frames[k].shape) for k in order)
        apart = [_pitch(frames[k]) for k in order]
        told = {name: _for_places(name, value) for name, value in kernel.settings}
        bias, added = (*addresses[2:], 0, 0)[:2]
        return ConvolutionNode(
            kernel.function.removesuffix("_fused"), kernel.dtype, kernel.dtype, self._tensor_float,
            (full[0], full[1], full[2]), **told, x=x, w=w, y=y, workspace=0, bias=bias, added=added,
            pitches=(apart[0], apart[1], apart[2]),
        )  # fmt: skip

    def _own(
        self,
        work: Work,
        few: Few,
        call: ConvolutionNode,
        models: int,
        reads: tuple[Span, ...],
        result: Span,
    ) -> list[Item]:
        """The launches of kernels of our own, for few channels."""
        if call.function == "fprop":
            return [Item(few_launches.forward(few, call, models), reads, (result,))]
        if call.function == "dgrad":
            return [Item(few_launches.inputs(few, call, models), reads, (result,))]
        (room,) = self._rooms.pieces(work, (few_launches.part_bytes(few, call, models),))
        parts, sums = few_launches.filters(few, call, room[0], models)
        return [Item(parts, reads, (room,)), Item(sums, (room,), (result,))]

    def _calls(
        self, work: Work, call: ConvolutionNode, reads: tuple[Span, ...], result: Span
    ) -> list[Item]:
        """The launch of a call, by an algorithm that is chosen for it; on copies where it needs some."""
        if not _is_aligned(call) or (any(call.pitches) and not self._engine.algorithms(call)):
            return self._on_copies(work, call, reads, result)
        return self._called(call, reads, result)

    def _called(self, call: ConvolutionNode, reads: tuple[Span, ...], result: Span) -> list[Item]:
        call = replace(call, algorithm=algorithm_of(self._engine, self._layout.device, call))
        room = self._rooms.of(call)
        return [Item(replace(call, workspace=room[0]), reads, (result, room))]

    def _on_copies(
        self, work: Work, call: ConvolutionNode, reads: tuple[Span, ...], result: Span
    ) -> list[Item]:
        """The same with what lies apart, or at odd addresses, packed in memory of its own."""
        whole = call.shapes[call.result]
        shapes = [*call.shapes, whole, (1, whole[-1])]
        pitches, addresses = (*call.pitches, 0, 0), _addresses(call)
        moved = [k for k in range(len(shapes)) if _is_moved(call, k)]
        nbytes = [math.prod(shapes[k]) * ITEM_BYTES[_dtype_of(call, k)] for k in moved]
        rooms = dict(zip(moved, self._rooms.pieces(work, tuple(nbytes)), strict=True))
        operands = (*_OPERANDS[call.function], _BIAS, _ADDED)
        given = dict(zip(operands, reads, strict=False))
        before, after = list[Item](), list[Item]()
        for k, room in rooms.items():
            rows, columns = math.prod(shapes[k][:-1]), shapes[k][-1]
            there, here = (addresses[k], pitches[k] or columns), (room[0], columns)
            is_result = k == call.result
            ways = (here, there) if is_result else (there, here)
            launch = copied_rows(_dtype_of(call, k), rows, columns, *ways, self._chip)
            assert launch is not None
            if is_result:
                after.append(Item(launch, (room,), (result,)))
            else:
                before.append(Item(launch, (given[k],), (room,)))
        x, w, y, added, bias = (rooms[k][0] if k in rooms else a for k, a in enumerate(addresses))
        packed = replace(call, x=x, w=w, y=y, added=added, bias=bias, pitches=(0, 0, 0))
        read = tuple(rooms.get(k, span) for k, span in given.items())
        return [*before, *self._called(packed, read, rooms.get(call.result, result)), *after]

    def _ends(self, call: ConvolutionNode, reads: tuple[Span, ...], result: Span) -> list[Item]:
        """A kernel for what follows the convolution, in place; none where nothing does."""
        if not call.bias:
            return []
        return [Item(ends(call), (result, *reads[2:]), (result,))]


def _models_of(kernel: WholeLibrary, images: Array) -> int:
    """How many models a convolution is of; 0 where images have no axis of models in front."""
    axes = len(dict(kernel.settings)["strides"])
    return images.shape[0] if images.ndim == axes + 3 else 0


def _of_model(
    number: int, frames: Sequence[Array], values: Mapping[str, int], spans: Sequence[Span]
) -> tuple[dict[str, int], tuple[Span, ...]]:
    """Addresses of what is one model's of operands and result, which lie packed, and the memory of that.

    An operand that is a part of something else is touched as a whole.
    """
    own, parts = dict(values), list[Span]()
    slots = (*(f"x{k}" for k in range(len(frames) - 1)), "result")
    for slot, frame, span in zip(slots, frames, spans, strict=True):
        start, nbytes = values[slot], frame.nbytes // len(frame)
        own[slot] = start + number * nbytes
        is_all = span == (start, start + frame.nbytes)
        parts.append((own[slot], own[slot] + nbytes) if is_all else span)
    return own, tuple(parts)


def _pitch(frame: Array) -> int:
    """Elements from one place of an image to the next; 0 where it is packed."""
    if frame.flags.c_contiguous:
        return 0
    rows = row_axes(frame)
    return rows[-1][1] if rows else 0


def _addresses(call: ConvolutionNode) -> tuple[int, ...]:
    """Of x, w, y, what is added and the bias, in the order of their numbers."""
    return call.x, call.w, call.y, call.added, call.bias


def _is_moved(call: ConvolutionNode, number: int) -> bool:
    """Whether an operand or the result, by its number, lies apart or at an odd address."""
    return bool((*call.pitches, 0, 0)[number] or _addresses(call)[number] % ALIGNMENT)


def _is_aligned(call: ConvolutionNode) -> bool:
    """Whether all addresses are multiples of what the library is told they are."""
    return not any(address % ALIGNMENT for address in _addresses(call))


def _dtype_of(call: ConvolutionNode, number: int) -> str:
    """The dtype of an operand or the result, by its number."""
    return call.stored if number in (call.result, _ADDED) else call.dtype


def _with_places(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with axes of one place in front of too few."""
    missing = _LEAST_AXES - (len(shape) - 2)
    return (shape[0], *[1] * missing, *shape[1:])


def _for_places(name: str, value: Any) -> Any:
    """A setting with entries for such axes."""
    if name in ("groups", "positive"):
        return value
    return (*[(0, 0) if name == "padding" else 1] * (_LEAST_AXES - len(value)), *value)
