"""How values lie in memory, found out without running anything.

A movement op (reshape, transpose, broadcast, slice) mostly gives a view: other strides over the same
memory. Whether it does, and which, NumPy itself tells: the op's NumPy function is applied to arrays of
stand-in sizes that nobody reads. A symbolic size gets a prime of its own, so that what holds for the
stand-ins holds for all sizes.

A conversion of half precision that kernels do as they read (`loads.py`) is a view too: of its operand's
memory, whose strides and dtype its stand-in has.

So is a matrix that a product reads in place though its rows, or columns, are several axes of memory
(`regions/copies.py`). Its stand-in keeps all these axes; `Layouts.joined` says how many are rows.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from magmadnn.compiler.kernels.gemm import MOST_AXES
from magmadnn.compiler.kernels.operands import (
    COLUMN,
    FULL,
    PADDED,
    ROW,
    ROW_AXES,
    SCALAR,
    STRIDED,
    STRIDED_COLUMN,
)
from magmadnn.compiler.padding import Padding, padding_of
from magmadnn.graph.dim import Dim, Shape, bind_shape, product, substitute
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array, Op, OpKind
from magmadnn.graph.spec import Spec

from .stand_ins import MOST_SYMBOLS, PRIMES, stand_ins_for

_LARGE_BYTES = 1 << 16
_MAPPED_BYTES = (
    1 << 20
)  # from here on a stand-in is a mapping of its own, ten times as fast as NumPy's memory
# which Python knows from 3.12 on; Linux has one number for it on all processors that we run on
_UNRESERVED = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else None)


@dataclass(frozen=True)
class Joinable:
    """How a matrix is read that may lie in memory as more axes.

    Attributes:
        moved: the movements that read it: transposes.
        second: whether a product has it, or one of these, as its second factor.
        single: whether a product that reads it has a single row or column.
        stacked: whether products read it as a stack of matrices of equally many rows: its rows are two axes
            of memory, and elements of a row lie side by side.
    """

    moved: tuple[Node, ...]
    second: bool
    single: bool
    stacked: bool = False


class Layouts:
    """Stand-in arrays for all nodes of a program.

    Attributes:
        arrays: a stand-in for each node.
        bases: the node whose memory a node's value lies in; itself where it has memory of its own.
        sizes: of stand-ins, by symbols.
        joined: matrices that lie in memory as more axes, and how many of these are their rows.
        padded: movements that put a constant around their operand, in whose memory readers look it up; their
            stand-ins are the operands'.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        copied: Container[Node] = (),
        loads: Container[Node] = (),
        joinable: Mapping[Node, Joinable] = MappingProxyType({}),
        paddable: Container[Node] = (),
    ) -> None:
        """Lay out.

        Args:
            nodes: of a program, in order.
            copied: movements that get memory of their own, though they could be views.
            loads: conversions that get none: readers convert what lies in their operand's memory.
            joinable: matrices that may lie in memory as more axes.
            paddable: movements that may get none, if they put one constant around their operand.
        """
        self.arrays: dict[Node, Array] = {}
        self.bases: dict[Node, Node] = {}
        self.joined: dict[Node, int] = {}
        self.padded: set[Node] = set()
        self._uneven: set[Node] = set()  # joined matrices of two axes, neither of them contiguous
        self._joinable, self._paddable = joinable, paddable
        self.sizes: dict[str, int] = {}
        self._met: set[Dim] = set()  # sizes whose symbols have a stand-in
        self._loaded: dict[Node, Node] = {}
        self._spreads: dict[Any, str | None] = {}
        self._copied, self._loads = copied, loads
        order = list(nodes)
        self._stand_ins = stand_ins_for(order)
        for node in order:
            self._place(node)

    def renewed(self, new: Mapping[Node, Node]) -> Layouts:
        """The same for a program of other nodes; stand-ins are shared.

        Args:
            new: what stands for each node.
        """
        other = Layouts(())
        other.arrays = {new[node]: array for node, array in self.arrays.items()}
        other.bases = {new[node]: new[base] for node, base in self.bases.items()}
        other.sizes = self.sizes
        other._copied = {new[node] for node in self.bases if node in self._copied}
        other._loads = {new[node] for node in self.bases if node in self._loads}
        other.joined = {new[node]: rows for node, rows in self.joined.items()}
        other.padded = {new[node] for node in self.padded}
        other._uneven = {new[node] for node in self._uneven}
        return other

    def laid_out(self, new: Mapping[Node, Node]) -> Layouts | None:
        """The same for a program of other nodes and sizes; None where not the same values are views.

        Args:
            new: what stands for each node, in their order.
        """
        copied = {new[node] for node in self.bases if node in self._copied}
        loads = {new[node] for node in self.bases if node in self._loads}
        joinable = {
            new[node]: replace(how, moved=tuple(new[reader] for reader in how.moved))
            for node, how in self._joinable.items()
        }
        paddable = {new[node] for node in self.bases if node in self._paddable}
        other = Layouts(new.values(), copied, loads, joinable, paddable)
        alike = all(other.bases[new[node]] is new[base] for node, base in self.bases.items())
        same = other.padded == {new[node] for node in self.padded}
        same = same and other.joined == {new[node]: rows for node, rows in self.joined.items()}
        return other if alike and same else None

    @staticmethod
    def bytes_of(spec: Spec) -> int:
        """How large a stand-in is at most, where no index asks for larger ones."""
        symbols = dict.fromkeys(spec.symbols, max(PRIMES))
        return math.prod(bind_shape(spec.shape, symbols)) * spec.dtype.itemsize

    def _place(self, node: Node) -> None:
        for size in node.shape:
            if not isinstance(size, Dim) or size in self._met:
                continue
            self._met.add(size)
            for symbol in sorted(size.symbols):
                next_one = self._stand_ins[len(self.sizes) % MOST_SYMBOLS]
                self.sizes.setdefault(symbol, next_one)
        view = self._view(node)
        if view is None:
            self.arrays[node] = _unread(bind_shape(node.shape, self.sizes), node.dtype)
            self.bases[node] = node
        else:
            self.arrays[node] = view
            self.bases[node] = self.bases[node.inputs[0]]
            loaded = node if node in self._loads else self._loaded.get(node.inputs[0])
            if loaded is not None:
                self._loaded[node] = loaded

    def _view(self, node: Node) -> Array | None:
        """The view that a movement gives of its operand; None where it copies or is no movement."""
        if node in self._loads:
            return self.arrays[node.inputs[0]]
        if not isinstance(node.op, Op) or node.op.kind is not OpKind.MOVEMENT:
            return None
        if len(node.inputs) != 1 or node in self._copied:
            return None
        source = self.arrays[node.inputs[0]]
        if node.inputs[0] in self.joined:
            self.joined[node] = source.ndim - self.joined[node.inputs[0]]
            return self.seen(node, source, self.sizes)
        if self._is_padded(node, source):
            self.padded.add(node)
            return source
        if rows := self._joined_rows(node, source):
            self.joined[node] = rows
            return source
        if self._is_assembled(node, source):
            return None
        if source.size * source.itemsize >= _LARGE_BYTES and not source.flags.c_contiguous:
            packed = self._packed(node, source)
            if packed is not None:
                return _reshaped(source, packed.shape)
        result = self.seen(node, source, self.sizes)
        same_memory = result.size and source.size and np.may_share_memory(result, source)
        if not same_memory or result.dtype != source.dtype:
            return None
        if self._is_uneven(node, result):
            self.joined[node] = 1
            self._uneven.add(node)
        return result

    def _is_padded(self, node: Node, source: Array) -> bool:
        """Whether readers look a movement up in its operand's memory, and convert what they find."""
        if node not in self._paddable or node.inputs[0] in self.padded:
            return False
        found = self.padding(node, self.sizes)
        return found is not None and len(found.axes) <= ROW_AXES

    def padding(
        self, node: Node, sizes: Mapping[str, int], source: Array | None = None
    ) -> Padding | None:
        """How the operand of a movement lies in its result.

        Args:
            node: the movement.
            sizes: of symbolic dimensions.
            source: its operand; the stand-in unless given.
        """
        array = self.arrays[node.inputs[0]] if source is None else source
        return padding_of(node, array, bind_shape(node.shape, sizes), sizes)

    def _is_assembled(self, node: Node, source: Array) -> bool:
        """Whether a movement's result is made of several parts, which is told without copying any."""
        assert isinstance(node.op, Op)
        if node.op.boxes is None:
            return False
        result = _unread(bind_shape(node.shape, self.sizes), node.dtype)
        attributes = {k: substitute(v, self.sizes) for k, v in node.attributes.items()}
        part, _ = next(iter(node.op.boxes(result, source, **attributes)))
        return bool(part.size < result.size)

    def _joined_rows(self, node: Node, source: Array) -> int:
        """How many leading axes of a movement's operand are the rows of the matrix that it gives.

        0 where it is no matrix in the order of the operand's elements, is a view as it is, or has readers
        that take it for more than a matrix or a transposed one. A second factor, which is copied into
        panels anyhow, is joined where the matrix has more elements than its memory: others were not faster.
        """
        if (
            node not in self._joinable
            or source.flags.c_contiguous
            or node.inputs[0] in self._loaded
        ):
            return 0
        matrix = self._packed(node, source)
        if matrix is None or _reshaped(source, matrix.shape) is not None:
            return 0
        how, memory = self._joinable[node], self.arrays[self.bases[node.inputs[0]]]
        if how.second and matrix.size <= memory.size:
            return 0
        if how.stacked:
            outer, row, element = source.strides
            forwards = outer >= 0 and row > 0 and element == source.itemsize
            return 2 if forwards and matrix.shape[1] == source.shape[2] else 0
        readers = (self._moved(reader, matrix, self.sizes) for reader in how.moved)
        if not all(_is_transpose(found, matrix) for found in readers):
            return 0
        for rows in range(1, source.ndim):
            most = max(rows, source.ndim - rows)
            if math.prod(source.shape[:rows]) == matrix.shape[0] and most <= MOST_AXES:
                return rows
        return 0

    def _is_uneven(self, node: Node, matrix: Array) -> bool:
        """Whether a view is a first factor whose rows and columns both lie apart, or repeat themselves.

        Products of a single row or column have kernels that read packed matrices: with a copy they take a
        third of the time.
        """
        how = self._joinable.get(node)
        if how is None or how.second or how.single or how.stacked:
            return False
        if node.inputs[0] in self._loaded or is_gemm_operand(matrix):
            return False
        readers = (self._moved(reader, matrix, self.sizes) for reader in how.moved)
        return all(_is_transpose(found, matrix) for found in readers)

    def _packed(self, node: Node, source: Array) -> Array | None:
        """What a movement makes of packed elements; None where it changes their order, or leaves some out."""
        packed = _unread(source.shape, np.dtype(np.uint8))
        made = self._moved(node, packed, self.sizes)
        kept = made.flags.c_contiguous and made.ctypes.data == packed.ctypes.data
        return made if kept and made.size == packed.size else None

    def seen(self, node: Node, source: Array, sizes: Mapping[str, int]) -> Array:
        """What a movement, or a conversion on reading, makes of its operand's memory.

        Args:
            node: the movement.
            source: its operand.
            sizes: of symbolic dimensions.
        """
        if node in self._loads or node in self.padded:
            return source
        if node in self.joined and node not in self._uneven:
            if node.inputs[0] not in self.joined:
                return source
            rows = self.joined[node.inputs[0]]
            return source.transpose((*range(rows, source.ndim), *range(rows)))
        return self._moved(node, source, sizes)

    @staticmethod
    def _moved(node: Node, source: Array, sizes: Mapping[str, int]) -> Array:
        """What the NumPy function of a movement gives."""
        assert isinstance(node.op, Op)
        attributes = {k: substitute(v, sizes) for k, v in node.attributes.items()}
        return np.asarray(node.op.numpy(source, **attributes))

    def is_factor(self, node: Node) -> bool:
        """Whether kernels of products can read a matrix, or a stack of them, where it lies."""
        if node in self.padded:
            return False
        return node in self.joined or is_gemm_operand(self.arrays[node])

    def is_view(self, node: Node) -> bool:
        """Whether the node is other strides over memory that another node owns."""
        return self.bases[node] is not node

    def loaded(self, node: Node) -> Node | None:
        """The last conversion between a value and the memory that it lies in; None where there is none."""
        return self._loaded.get(node)

    def digits(self, node: Node) -> str:
        """The half precision that readers make of a value, or that it lies in; empty where there is none."""
        loaded = self.loaded(node)
        return "" if loaded is None else loaded.inputs[0].dtype.name

    def is_whole(self, node: Node) -> bool:
        """Whether the node's value is its base's memory, element by element, maybe in another shape."""
        array, base = self.arrays[node], self.arrays[self.bases[node]]
        return node not in self.padded and array.size == base.size and array.flags.c_contiguous

    def spread(self, node: Node, rows: tuple[Any, ...], columns: Any) -> str | None:
        """How a value spreads over the matrix [rows, columns] that its shape broadcasts to.

        Args:
            node: the value.
            rows: the leading axes of the matrix.
            columns: the last axis; 1 and no rows for a scalar.

        Returns:
            See `kernels.operands.Operand.spread`; None if it is laid out in no such way.
        """
        if node in self.padded:
            own = node.shape[-1] == columns and product(node.shape[:-1]) == product(rows)
            return PADDED if own else None
        array = self.arrays[node]
        key = array.shape, array.strides, array.itemsize, rows, columns
        if key not in self._spreads:  # deep networks ask the same of each of their layers
            seen = broadcast(array, bind_shape((*rows, columns), self.sizes))
            self._spreads[key] = None if seen is None else spread_of(seen)
        return self._spreads[key]

    def row_axes(self, node: Node, shape: Shape) -> tuple[tuple[int, int], ...]:
        """The axes of the rows of a value that is read in a shape: see the function of this name."""
        seen = broadcast(self.arrays[node], bind_shape(shape, self.sizes))
        assert seen is not None
        return tuple(row_axes(seen))

    def is_run(self, node: Node, rows: tuple[Any, ...], columns: Any) -> bool:
        """Whether a value of several axes is one contiguous row, as a matrix of a single row is read."""
        array = self.arrays[node]
        size = bind_shape((columns,), self.sizes)
        if node in self.padded:
            return False
        return not rows and array.ndim > 1 and (array.size,) == size and array.flags.c_contiguous

    def number(self, node: Node, rows: tuple[Any, ...]) -> str | None:
        """How a value of shape [rows] or [rows, 1], or a scalar, is read row by row: `column` or `scalar`.

        None if it cannot be.
        """
        array = self.arrays[node]
        if node in self.padded:
            return None
        if node.shape == rows and array.ndim:
            array = array[..., None]
        domain = bind_shape((*rows, 1), self.sizes)
        try:
            found = spread_of(np.broadcast_to(array, domain))
        except ValueError:
            return None
        return found if found in (COLUMN, SCALAR) else None


def _unread(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array that nobody reads or writes: where it is large, it takes none of the system's memory."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _MAPPED_BYTES or _UNRESERVED is None:
        return np.empty(shape, dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _UNRESERVED
    try:
        return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), dtype).reshape(shape)
    except OSError:  # a process has so many mappings and no more
        return np.empty(shape, dtype)


def spread_of(seen: Array) -> str | None:
    """How an array over [..., columns] repeats itself; None if a kernel cannot walk it."""
    long = [(s, n) for s, n in zip(seen.strides, seen.shape, strict=True) if n > 1]
    if all(stride == 0 for stride, _ in long):
        return SCALAR
    *leading, (last, columns) = zip(seen.strides, seen.shape, strict=True)
    leading = [(s, n) for s, n in leading if n > 1]
    if (last == 0 or columns == 1) and _is_packed(leading, seen.itemsize):
        return COLUMN
    few = len(row_axes(seen)) <= ROW_AXES
    if last != seen.itemsize:
        return STRIDED_COLUMN if (last == 0 or columns == 1) and few else None
    if not leading:
        return FULL
    if all(stride == 0 for stride, _ in leading):
        return ROW
    if _is_packed(leading, leading[-1][0]):
        return FULL
    return STRIDED if few else None


def lies_in_rows(array: Array, start: int, alignment: int) -> bool:
    """Whether an array [..., columns] is packed, or equally spaced rows at multiples of some bytes.

    Args:
        array: whose strides count.
        start: address of the memory that it has a part of.
        alignment: of its first element in that memory, and of its rows.
    """
    if array.flags.c_contiguous:
        return True
    steps = [s for s, n in zip(array.strides[:-1], array.shape[:-1], strict=True) if n > 1]
    numbers = (array.ctypes.data - start, *steps)
    return spread_of(array) == FULL and not any(number % alignment for number in numbers)


def broadcast(array: Array, domain: tuple[int, ...]) -> Array | None:
    """An array seen in a larger shape; axes of size 1 before it do not count. None where it does not fit."""
    while array.ndim > len(domain) and array.shape[0] == 1:
        array = array[0]
    try:
        return np.broadcast_to(array, domain)
    except ValueError:
        return None


def row_axes(seen: Array) -> list[tuple[int, int]]:
    """The leading axes of an array [..., columns], as few as can be: (size, elements apart)."""
    return fewest_axes(seen.shape[:-1], seen.strides[:-1], seen.itemsize)


def fewest_axes(
    shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> list[tuple[int, int]]:
    """Axes of an array, as few as can be: (size, elements apart)."""
    axes: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        step = stride // itemsize
        if axes and axes[-1][1] == step * size:
            size *= axes.pop()[0]
        axes.append((size, step))
    return axes


def _is_packed(axes: list[tuple[int, int]], step: int) -> bool:
    """Whether axes with (stride, size) are one axis with stride `step`."""
    for stride, size in reversed(axes):
        if stride != step:
            return False
        step *= size
    return True


def _reshaped(array: Array, shape: tuple[int, ...]) -> Array | None:
    """A view in another shape; None where there is none."""
    try:
        return np.reshape(array, shape, copy=False)
    except ValueError:  # it would have to be copied
        return None


def _is_transpose(array: Array, matrix: Array) -> bool:
    """Whether it is a matrix with rows and columns exchanged, in the same memory."""
    same = array.ctypes.data == matrix.ctypes.data
    return same and array.shape == matrix.shape[::-1] and array.strides == matrix.strides[::-1]


def is_gemm_operand(array: Any) -> bool:
    """Whether the rows or the columns of a matrix are contiguous."""
    rows, columns = array.strides[-2:]
    return array.itemsize in (rows, columns) and min(rows, columns) > 0
