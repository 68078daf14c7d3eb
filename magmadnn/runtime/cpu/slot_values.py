"""What the argument block of a step's kernel holds, for arrays that are laid out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.gemm import MOST_AXES, Finish, Gemm, axis_slots
from magmadnn.compiler.kernels.operands import FULL, PaddedOperand
from magmadnn.compiler.kernels.rows import Rows
from magmadnn.compiler.layout import broadcast, fewest_axes, row_axes
from magmadnn.compiler.padding import Axis, Padding, padding_of
from magmadnn.compiler.regions.draft import Lowered, Work
from magmadnn.compiler.regions.region import RegionKind, product_of, reduced_by
from magmadnn.graph.dim import bind_shape, product
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array


def slot_values(
    work: Work,
    arrays: Mapping[Node, Array],
    sizes: Mapping[str, int],
    addresses: dict[Node, int] | None = None,
) -> dict[str, int]:
    """All slots of the kernel of a step, for its whole matrix.

    Args:
        work: the step.
        arrays: where values lie.
        sizes: of symbolic dimensions.
        addresses: of those that were asked for before, by steps over the same arrays.
    """
    addresses = {} if addresses is None else addresses
    lowered, region = work.lowered, work.region
    assert lowered is not None
    slots = lowered.kernel.slots
    rows = math.prod(bind_shape(region.rows, sizes))
    (columns,) = bind_shape((region.columns,), sizes)
    values = {"row0": 0, "row1": rows, "column0": 0, "column1": columns}
    for slot, number in lowered.numbers:
        (values[slot],) = bind_shape((number,), sizes)
    if region.kind is RegionKind.RANDOM:  # its elements are one long row
        values["row1"], values["column1"] = 1, rows * columns
    if region.kind is RegionKind.COLUMNS:
        values["outer0"], values["outer1"] = 0, rows
        (elements,) = bind_shape((product(reduced_by(region).inputs[0].shape),), sizes)
        values["row1"] = elements // max(rows * columns, 1)
    if region.kind is RegionKind.GEMM:
        assert isinstance(lowered.kernel, Gemm)
        a, b = (arrays[factor] for factor in product_of(region).inputs)
        joined = lowered.kernel.joined_a
        values["k"] = math.prod(a.shape[joined:]) if joined else a.shape[-1]
        if joined:
            values |= _joined_slots("a", a, joined)
        if lowered.kernel.joined_b:
            values |= _joined_slots("b", b, lowered.kernel.joined_b)
    for slot, node, spread in (*lowered.reads, *lowered.writes):
        array = arrays[node]
        if node not in addresses:
            addresses[node] = array.ctypes.data
        values[slot] = addresses[node]
        if f"{slot}_row" in slots:
            values[f"{slot}_row"] = _row_stride(array)
        if f"{slot}_outer" in slots:
            matrix = values["row1"] if spread == FULL else 1
            values[f"{slot}_outer"] = _row_stride(array) * matrix
        if slot == "c":  # whose rows may be several axes
            values["ldc"] = _row_stride(array, single=columns)
        elif f"ld{slot}" in slots:
            values[f"ld{slot}"] = _leading(array, getattr(lowered.kernel, f"transpose_{slot}"))
    if lowered.shapes:
        values |= _strided_slots(lowered, arrays, sizes)
    return values


def _strided_slots(
    lowered: Lowered, arrays: Mapping[Node, Array], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Where the rows of strided operands begin: see `kernels.operands.Operand.spread`."""
    kernel = lowered.kernel.epilogue if isinstance(lowered.kernel, Gemm) else lowered.kernel
    assert isinstance(kernel, Columns | Rows | Finish)
    operands = {operand.name: operand for operand in kernel.operands}
    nodes = {slot: node for slot, node, _ in lowered.reads}
    values: dict[str, int] = {}
    for slot, shape in lowered.shapes:
        operand, array = operands[slot], arrays[nodes[slot]]
        if isinstance(operand, PaddedOperand):
            found = padding_of(nodes[slot], array, bind_shape(shape, sizes), sizes)
            assert found is not None
            values |= zip(operand.slots[1:], padded_numbers(found, operand), strict=True)
            continue
        seen = broadcast(array, bind_shape(shape, sizes))
        assert seen is not None
        axes = row_axes(seen) if seen.size else []  # of no rows strides say nothing
        axes = [(1, 0)] * (operand.axes - len(axes)) + axes
        numbers = [size for size, _ in axes[1:]] + [step for _, step in axes]
        for name, number in zip(operand.slots[1:], numbers, strict=True):
            assert values.setdefault(name, number) == number  # of all operands that are alike
    return values


def padded_numbers(found: Padding, operand: PaddedOperand) -> list[int]:
    """What the slots of a padded operand hold, but for its address."""
    axes = [Axis(1, 0, 0, 1)] * (operand.axes - len(found.axes)) + list(found.axes)
    numbers = [axis.size for axis in axes[1:]]
    for what in ("step", "first", "end"):
        numbers += [getattr(axis, what) for axis in axes]
    sides = [found.left, found.right] if operand.has_edges else []
    return [*numbers, found.origin, *sides]


def _joined_slots(factor: str, array: Array, rows: int) -> dict[str, int]:
    """The axes of memory that are the rows of a factor, of which there are so many, and the columns."""
    values: dict[str, int] = {}
    for side, part in (("row", slice(rows)), ("column", slice(rows, None))):
        axes = fewest_axes(array.shape[part], array.strides[part], array.itemsize)
        axes = [(1, 0)] * (MOST_AXES - len(axes)) + axes
        numbers = (number for axis in axes for number in axis)
        values |= zip(axis_slots(factor, side), numbers, strict=True)
    return values


def _row_stride(array: Any, single: int = 0) -> int:
    """Elements from one row to the next of a matrix whose leading axes are packed; `single` of one row."""
    for stride, size in zip(array.strides[-2::-1], array.shape[-2::-1], strict=True):
        if size > 1:  # the stride of a single row says nothing
            return int(stride // array.itemsize)
    return single


def _leading(array: Any, transposed: bool) -> int:
    """The leading dimension of a matrix that is stored by rows, or transposed by columns.

    Strides alone do not tell which: along an axis of one element they may be any number.
    """
    by_lines = array.swapaxes(-1, -2) if transposed else array
    return _row_stride(by_lines, single=max(by_lines.shape[-1], 1))
