"""What the argument blocks of a plan hold, as polynomials: looked up in layouts for several sets of sizes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.plan.memory import arena_of
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.region import product_of
from magmadnn.errors import GraphError
from magmadnn.graph.dim import Dim, Size, bind_shape, dims_of, product, substitute
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array, Op
from magmadnn.runtime.cpu.native import Instance
from magmadnn.runtime.cpu.runs import Boxes, RowRuns, boxes_of, runs_of_rows
from magmadnn.runtime.cpu.slot_values import slot_values

_DEGREE = 3  # of polynomials: a product of three unknown sizes
_CHECKS = 4  # sets of sizes beyond those that determine the polynomials
_FIRST_SIZE = 11  # sizes of 1 and 2 are laid out like others by chance


class Layout:
    """The plan laid out for one set of sizes; `carried`: variables that have no value yet."""

    def __init__(
        self, plan: NativePlan, sizes: Mapping[str, int], carried: Collection[Node] = ()
    ) -> None:
        self.plan, self.sizes = plan, sizes
        held = {n: np.empty(bind_shape(n.shape, sizes), n.dtype) for n in carried}
        self.arrays = Instance(plan, sizes, prepared=False, held=held).arrays
        self._runs: dict[tuple[Node, int], RowRuns | None] = {}
        self._boxes: dict[Node, Boxes | None] = {}
        self.values = {
            work: slot_values(work, self.arrays, sizes)
            for work in plan.work
            if work.lowered is not None
        }

    def offset(self, node: Node) -> int:
        """Bytes from the beginning of the memory in which a value lies to the value."""
        base = self.plan.layouts.bases[node]
        return int(self.arrays[node].ctypes.data - self.arrays[base].ctypes.data)

    def walked(self, node: Node) -> Array | None:
        """The operand of a movement, seen so that its elements come in the order of the result's."""
        if len(node.inputs) != 1:
            return None
        assert isinstance(node.op, Op)
        source = self.arrays[node.inputs[0]]
        attributes = {k: substitute(v, self.sizes) for k, v in node.attributes.items()}
        result = np.asarray(node.op.numpy(source, **attributes))
        if np.may_share_memory(result, source):
            return result
        # Floats, since a pad may be infinite.
        numbers = np.arange(source.size, dtype=np.float64).reshape(source.shape)
        same = np.array_equal(np.ravel(node.op.numpy(numbers, **attributes)), numbers.ravel())
        return source if same else None

    def row_runs(self, node: Node, axes: int) -> RowRuns | None:
        """The runs of a movement for one of the rows that `axes` leading axes number."""
        key = (node, axes)
        if key not in self._runs:
            operands = [self.arrays[i] for i in node.inputs]
            self._runs[key] = runs_of_rows(node, operands, self.sizes, axes)
        return self._runs[key]

    def row_step(self, node: Node, axes: int, number: int, axis: int) -> int:
        """Bytes from one row's elements to the next's of an operand of a movement."""
        found = self.row_runs(node, axes)
        assert found is not None
        return found.steps[number][axis] * node.dtype.itemsize

    def boxes(self, node: Node) -> Boxes | None:
        """Where in the result of a movement its operands lie as they are."""
        if node not in self._boxes:
            operands = [self.arrays[i] for i in node.inputs]
            self._boxes[node] = boxes_of(node, operands, self.sizes)
        return self._boxes[node]

    def box_offset(self, node: Node, number: int) -> int:
        """Bytes from the result's first element to where an operand begins in it."""
        found = self.boxes(node)
        assert found is not None
        steps = zip(found.starts[number], self.arrays[node].strides, strict=True)
        return int(sum(start * stride for start, stride in steps))

    def rows_of_a(self, work: Work) -> int:
        """Bytes from row to row of the first factor of a product, as its kernel counts them."""
        assert work.lowered is not None
        kernel, factor = work.lowered.kernel, self.arrays[product_of(work.region).inputs[0]]
        assert isinstance(kernel, Gemm)
        return int(factor.itemsize * (1 if kernel.transpose_a else self.values[work]["lda"]))

    def stack_stride(self, node: Node, leading: tuple[Size, ...], axis: int) -> int:
        """Bytes from one factor of a stack to the next along an axis of the result."""
        array = self.arrays[node]
        shape = tuple(_bound(size, self.sizes) for size in leading)
        return int(np.broadcast_to(array, (*shape, *array.shape[-2:])).strides[axis])

    def walk_offset(self, node: Node) -> int:
        """Bytes from the beginning of the operand of a copy to its first element."""
        seen = self.walked(node)
        assert seen is not None
        return int(seen.ctypes.data - self.arrays[node.inputs[0]].ctypes.data)

    def walk_stride(self, node: Node, axis: int) -> int:
        """Bytes from one element of the operand of a copy to the next."""
        seen = self.walked(node)
        assert seen is not None
        return int(seen.strides[axis])

    def slot(self, work: Work, slot: str) -> int:
        """A number of a step's argument block."""
        return int(self.values[work][slot])

    def stride(self, node: Node, axis: int) -> int:
        """Bytes from one element of a value to the next."""
        return int(self.arrays[node].strides[axis])


class Samples:
    """Layouts for several sets of sizes, and the polynomials through numbers that they give."""

    def __init__(
        self, plan: NativePlan, symbols: Sequence[str], carried: Collection[Node] = ()
    ) -> None:
        degrees = range(_DEGREE + 1)
        self._monomials = [
            tuple(itertools.chain.from_iterable([s] * d for s, d in zip(symbols, ds, strict=True)))
            for ds in itertools.product(degrees, repeat=len(symbols))
            if sum(ds) <= _DEGREE
        ]
        count = len(self._monomials) + _CHECKS
        draw = np.random.default_rng(1)
        first = _FIRST_SIZE + _shortest(plan)
        columns = {s: first + draw.permutation(3 * count)[:count] for s in symbols}
        self._sizes = [{s: int(columns[s][k]) for s in symbols} for k in range(count)]
        self._layouts = [Layout(plan, sizes, carried) for sizes in self._sizes]
        self.first = self._layouts[0]
        self._inverse = _inverted(self._rows(len(self._monomials)))
        self.lives = arena_of(plan, self._sizes[0]).lives

    def runs(self, node: Node) -> tuple[int, RowRuns] | None:
        """How many leading axes number rows that are made alike, for all sizes, and the runs of one."""
        for axes in range(1, node.ndim):
            found = [layout.row_runs(node, axes) for layout in self._layouts]
            first = found[0]
            if first is not None and all(one is not None and _is_same(one, first) for one in found):
                return axes, first
        return None

    def around(self, node: Node) -> Array | None:
        """What lies around the operands of a movement; None if they do not lie in its result as they are."""
        found = [layout.boxes(node) for layout in self._layouts]
        values = [boxes.around for boxes in found if boxes is not None]
        whole = len(values) == len(found) and len({value.tobytes() for value in values}) == 1
        return values[0] if whole else None

    def _rows(self, count: int) -> list[list[int]]:
        """The value of each monomial for the first so many sets of sizes."""
        return [
            [int(np.prod([sizes[s] for s in m], dtype=np.int64)) for m in self._monomials]
            for sizes in self._sizes[:count]
        ]

    def size(self, number: Any) -> Size:
        """`number(layout)` as a polynomial.

        Raises:
            GraphError: if it is none.
        """
        found = [int(number(layout)) for layout in self._layouts]
        if len(set(found)) == 1:
            return found[0]
        terms = {
            monomial: sum(a * b for a, b in zip(row, found, strict=False))
            for monomial, row in zip(self._monomials, self._inverse, strict=True)
        }
        if any(c.denominator != 1 for c in terms.values()):
            raise _no_polynomial()
        total: Size = 0
        for monomial, coefficient in terms.items():
            total = total + int(coefficient) * product([Dim.symbol(s) for s in monomial])
        if any(_bound(total, s) != f for s, f in zip(self._sizes, found, strict=True)):
            raise _no_polynomial()
        return total


def _is_same(one: RowRuns, other: RowRuns) -> bool:
    same = np.array_equal(one.table, other.table)
    return same and one.constants.tobytes() == other.constants.tobytes()


def _shortest(plan: NativePlan) -> int:
    """What sizes must be above, so that no dimension such as `time - 3` is negative."""
    nodes = plan.program.nodes()
    dims = (d for n in nodes for d in dims_of((n.shape, *n.attributes.values())))
    return max((-c for d in dims for c in d.terms.values() if c < 0), default=0)


def _bound(size: Size, sizes: Mapping[str, int]) -> int:
    return size.bind(sizes) if isinstance(size, Dim) else size


def _no_polynomial() -> GraphError:
    return GraphError(
        "export: memory is laid out in a way that no polynomial over the sizes tells; give the Input a "
        "fixed shape"
    )


def _inverted(rows: list[list[int]]) -> list[list[Fraction]]:
    """The inverse of a matrix, exactly."""
    n = len(rows)
    work = [
        [Fraction(x) for x in row] + [Fraction(i == k) for i in range(n)]
        for k, row in enumerate(rows)
    ]
    for k in range(n):
        pivot = next(i for i in range(k, n) if work[i][k])
        work[k], work[pivot] = work[pivot], work[k]
        work[k] = [x / work[k][k] for x in work[k]]
        for i in range(n):
            if i != k and work[i][k]:
                factor = work[i][k]
                work[i] = [x - factor * y for x, y in zip(work[i], work[k], strict=True)]
    return [row[n:] for row in work]
