"""Running a NativePlan: values are laid out once for each set of sizes, then kernels only run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from magmadnn.compiler.emit.llvm.kernel import ALIGNMENT, load
from magmadnn.compiler.lower import product_of, reduced_by
from magmadnn.compiler.native import NativePlan, Work
from magmadnn.compiler.regions import Region, RegionKind
from magmadnn.graph.dim import bind_shape, substitute
from magmadnn.graph.node import CONSTANT, PLACEHOLDER, SIZE, VARIABLE, Node
from magmadnn.graph.op import Array, Op

from .run import is_finite

_LAYOUTS_KEPT = (
    8  # sets of sizes whose memory is kept: whole and partial batch, validation, prediction
)

Action = Callable[[], None]
Patch = tuple[Any, int, Node, int]  # argument block, slot, placeholder, offset in bytes


class Instance:
    """A plan laid out in memory for given sizes.

    Attributes:
        arrays: the array of each value that has memory, or is a view of it.
    """

    def __init__(self, plan: NativePlan, sizes: Mapping[str, int]) -> None:
        self.plan, self.sizes = plan, dict(sizes)
        self.arrays: dict[Node, Array] = {}
        self._patches: list[Patch] = []
        self._called: list[Node] = []  # placeholders that calls of NumPy read
        self.nbytes = 0
        self._lay_out()
        self._actions = [self._action(work) for work in plan.work]

    # --- memory -----------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        """Arrays for all nodes: leaves, results in one arena, views."""
        places = self._arena()
        arena = aligned(self.nbytes)
        for node in self.plan.program.nodes():
            if self.plan.layouts.is_view(node):
                if node.inputs[0] in self.arrays:  # else it is a view of a value that is not stored
                    self.arrays[node] = self._view(node)
            elif node in self.plan.in_place:
                self.arrays[node] = _memory(self.plan.in_place[node])
            elif node in places:
                shape = bind_shape(node.shape, self.sizes)
                start, size = places[node]
                self.arrays[node] = arena[start : start + size].view(node.dtype).reshape(shape)
            elif not isinstance(node.op, Op):
                self.arrays[node] = self._leaf(node)

    def _arena(self) -> dict[Node, tuple[int, int]]:
        """Offset and size of each stored value; memory is used again after the last reader."""
        last = self._last_use()
        taken: list[tuple[int, int, int]] = []  # start, end, last use
        places: dict[Node, tuple[int, int]] = {}
        for number, work in enumerate(self.plan.work):
            taken = [t for t in taken if t[2] >= number]
            for node in work.needed:
                if node in self.plan.in_place:
                    continue
                shape = bind_shape(node.shape, self.sizes)
                size = int(np.prod(shape, dtype=np.int64)) * node.dtype.itemsize
                start = _first_gap(sorted(taken), max(size, 1))
                taken.append((start, start + max(size, 1), last.get(node, number)))
                places[node] = (start, size)
                self.nbytes = max(self.nbytes, start + max(size, 1))
        return places

    def _last_use(self) -> dict[Node, int]:
        """The number of the last step that reads each stored value."""
        bases, last = self.plan.layouts.bases, {}
        for number, work in enumerate(self.plan.work):
            for node in work.region.nodes:
                for operand in node.inputs:
                    last[bases[operand]] = number
        for root in self.plan.program.roots:
            last[bases[root]] = len(self.plan.work)
        return last

    def _leaf(self, node: Node) -> Array:
        if node.op is VARIABLE:
            return _memory(node)
        if node.op is SIZE:
            return np.asarray(node.attributes["dim"].bind(self.sizes), node.dtype)
        if node.op is CONSTANT:
            return np.ascontiguousarray(node.value)
        return np.empty(bind_shape(node.shape, self.sizes), node.dtype)  # replaced at each run

    def _view(self, node: Node) -> Array:
        assert isinstance(node.op, Op)
        attributes = {k: substitute(v, self.sizes) for k, v in node.attributes.items()}
        return np.asarray(node.op.numpy(self.arrays[node.inputs[0]], **attributes))

    # --- steps ------------------------------------------------------------------------------------

    def _action(self, work: Work) -> Action:
        if work.lowered is None:
            return self._call(work.region.nodes[0])
        kernel = work.lowered.kernel
        loaded = load([kernel])[0]
        block = self._block(work)
        size = getattr(kernel, "scratch_bytes", None)
        space = aligned(size(_target()) if size else 0)
        return loaded.prepared(block, space)

    def _call(self, node: Node) -> Action:
        """The op's NumPy function; its operands are looked up at each run, since feeds change."""
        op, arrays = node.op, self.arrays
        assert isinstance(op, Op)
        attributes = {k: substitute(v, self.sizes) for k, v in node.attributes.items()}
        out = arrays[node]
        fed = any(self.plan.layouts.bases[i].op is PLACEHOLDER for i in node.inputs)

        def call() -> None:
            operands = [self._current(i) if fed else arrays[i] for i in node.inputs]
            np.copyto(out, op.forward(operands, attributes, node.dtype))

        return call

    def _current(self, node: Node) -> Array:
        """The array of a value now, where it may be a view of something that is fed."""
        if self.plan.layouts.is_view(node):
            assert isinstance(node.op, Op)
            attributes = {k: substitute(v, self.sizes) for k, v in node.attributes.items()}
            return np.asarray(node.op.numpy(self._current(node.inputs[0]), **attributes))
        return self.arrays[node]

    def _block(self, work: Work) -> Array:
        """The argument block of a kernel."""
        lowered = work.lowered
        assert lowered is not None
        slots = lowered.kernel.slots
        values = self._extent(work.region, slots)
        pointers: dict[str, Node] = {}
        for slot, node, spread in (*lowered.reads, *lowered.writes):
            array = self.arrays[node]
            pointers[slot] = node
            values[slot] = array.ctypes.data
            if f"{slot}_row" in slots:
                values[f"{slot}_row"] = _row_stride(array)
            if slot in ("a", "b", "c") and f"ld{slot}" in slots:
                values[f"ld{slot}"] = _leading(array)
            del spread
        block = np.array([values[slot] for slot in slots], np.int64)
        for slot, node in pointers.items():
            base = self.plan.layouts.bases[node]
            if base.op is PLACEHOLDER:
                offset = self.arrays[node].ctypes.data - self.arrays[base].ctypes.data
                self._patches.append((block, slots.index(slot), base, offset))
        return block

    def _extent(self, region: Region, slots: tuple[str, ...]) -> dict[str, int]:
        """Rows, columns and depth of the kernel's matrix."""
        rows = int(np.prod(bind_shape(region.rows, self.sizes), dtype=np.int64))
        (columns,) = bind_shape((region.columns,), self.sizes)
        values = {"row0": 0, "row1": rows, "column0": 0, "column1": columns}
        if region.kind is RegionKind.COLUMNS:
            values["row1"] = self.arrays[reduced_by(region).inputs[0]].size // max(columns, 1)
        if "k" in slots:
            values["k"] = self.arrays[product_of(region).inputs[0]].shape[1]
        return values

    # --- running ----------------------------------------------------------------------------------

    def run(self, fed: Mapping[Node, Array], guard: bool) -> list[Array] | None:
        """The outputs, as arrays of their own, after every variable got its new value.

        With `guard`, None where an output is NaN or infinite; no variable is changed then.
        """
        held = {}
        for node, array in fed.items():
            held[node] = self.arrays[node] = np.ascontiguousarray(array)
        for block, slot, node, offset in self._patches:
            block[slot] = held[node].ctypes.data + offset
        for action in self._actions[: self.plan.checked]:
            action()
        outputs = [np.array(self._current(node)) for node in self.plan.program.outputs]
        if guard and not all(map(is_finite, outputs)):
            return None
        for action in self._actions[self.plan.checked :]:
            action()
        self._write()
        return outputs

    def _write(self) -> None:
        """Give variables the new values that do not lie in their memory already."""
        fresh = [
            (target, np.array(self._current(value)))
            for target, value in self.plan.program.updates
            if value not in self.plan.in_place
        ]
        for target, value in fresh:
            np.copyto(_memory(target), value)


def _memory(node: Node) -> Array:
    """The memory of a variable on the host, to be written."""
    storage = node.value
    tensor = getattr(storage, "tensor", storage)
    array: Array = tensor.numpy()
    return array


def _target() -> Any:
    from magmadnn.compiler.emit.llvm.target import host

    return host()


def aligned(nbytes: int) -> Array:
    """Bytes whose address is a multiple of what kernels expect."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def _first_gap(taken: list[tuple[int, int, int]], size: int) -> int:
    """The lowest aligned offset with `size` free bytes."""
    at = 0
    for start, end, _ in taken:
        if start - at >= size:
            break
        at = max(at, -(-end // ALIGNMENT) * ALIGNMENT)
    return at


def _row_stride(array: Array) -> int:
    """Elements from one row to the next of a matrix whose leading axes are packed."""
    if array.ndim < 2:
        return array.size
    return array.strides[-2] // array.itemsize


def _leading(array: Array) -> int:
    """The leading dimension of a matrix that is stored by rows or by columns."""
    rows, columns = array.strides
    if rows == array.itemsize and columns != array.itemsize:
        return columns // array.itemsize
    return rows // array.itemsize


class NativeRunner:
    """A plan and the layouts that it was run with lately."""

    def __init__(self, plan: NativePlan) -> None:
        self.plan = plan
        self._instances: OrderedDict[tuple[tuple[str, int], ...], Instance] = OrderedDict()

    def instance(self, sizes: Mapping[str, int]) -> Instance:
        """The layout for these sizes."""
        key = tuple(sorted(sizes.items()))
        if key not in self._instances:
            self._instances[key] = Instance(self.plan, sizes)
            if len(self._instances) > _LAYOUTS_KEPT:
                self._instances.popitem(last=False)
        self._instances.move_to_end(key)
        return self._instances[key]

    def run(
        self, fed: Mapping[Node, Array], sizes: Mapping[str, int], guard: bool = False
    ) -> list[Array] | None:
        """One run; None where `guard` finds NaN or infinity, and then nothing is updated."""
        return self.instance(sizes).run(fed, guard)
