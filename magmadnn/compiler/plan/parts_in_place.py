"""Values that are computed where they lie in the result of a movement, so that the movement copies nothing.

The parts of a concatenation along the last axis are columns of its result: a kernel that can write rows
which are further apart than they are long can write there. Those of a single row lie one after the other,
whatever matrix each is; sums of columns can lie there too. That is decided when all else is: kernels, phases
and what is stored stay as they are, and only what can walk over rows that lie apart may read such a value.

Products of stacks on a GPU write each matrix wherever a movement wants its rows: attention's heads beside
each other, [batch, head, time, depth] as [batch, time, head * depth].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import FULL, ROW, SCALAR
from magmadnn.compiler.layout import Layouts, lies_in_rows, spread_of
from magmadnn.compiler.regions.copies import takes_in_rows
from magmadnn.compiler.regions.draft import Draft, Work
from magmadnn.compiler.regions.region import RegionKind, product_of
from magmadnn.graph.computed_by import RESULT
from magmadnn.graph.dim import bind_shape, product, substitute
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array, Op

_WRITERS = (RegionKind.ROWS, RegionKind.GEMM, RegionKind.MOVE)
_ANY_STRIDES = (
    RegionKind.MOVE,
    RegionKind.CALL,
    RegionKind.COLLECTIVE,
)  # what reads operands that lie in any way


def places_of(
    node: Node, result: Array, shapes: Sequence[tuple[int, ...]], sizes: Mapping[str, int]
) -> dict[int, Array]:
    """Where in the result of a movement its operands lie as they are, by their numbers.

    Args:
        node: the movement.
        result: its memory, with any strides.
        shapes: of its operands.
        sizes: of symbolic dimensions.
    """
    op = node.op
    assert isinstance(op, Op)
    if op.boxes is None:
        return {}
    one = np.empty((), result.dtype)
    operands = [np.broadcast_to(one, shape) for shape in shapes]  # of which nothing is read
    attributes = {k: substitute(v, sizes) for k, v in node.attributes.items()}
    found: dict[int, Array] = {}
    for goal, source in op.boxes(result, *operands, **attributes):
        whole = isinstance(source, tuple) and source[1] is operands[source[0]]
        if whole and (np.may_share_memory(goal, result) or not goal.size):
            found[source[0]] = goal
    return found


def stack_within(
    layouts: Layouts, part: Node, node: Node, result: Array, sizes: Mapping[str, int]
) -> Array | None:
    """Where a value lies in the result of a movement that gives all of its elements in another order.

    None where none of its axes stand for it: the movement splits or joins those that it reorders.

    Args:
        layouts: of the program.
        part: the value, whose memory the movement's operand is a view of.
        node: the movement.
        result: its memory, packed.
        sizes: of symbolic dimensions.
    """
    assert isinstance(node.op, Op)
    (operand,) = node.inputs
    steps, at = list[Node](), operand
    while at is not part:
        steps.append(at)
        at = at.inputs[0]
    seen = packed = np.empty(bind_shape(part.shape, sizes), part.dtype)  # nobody touches elements
    if not packed.size:
        return np.lib.stride_tricks.as_strided(result, packed.shape, packed.strides)
    for step in reversed(steps):
        seen = layouts.seen(step, seen, sizes)
    attributes = {k: substitute(v, sizes) for k, v in node.attributes.items()}
    if node.op.boxes is None:
        one = np.empty(seen.shape, part.dtype)
        moved = np.asarray(node.op.numpy(one, **attributes))
        goal = _unmoved(one, moved, result) if np.may_share_memory(moved, one) else None
    else:
        (goal, source), *others = node.op.boxes(result, seen, **attributes)
        whole = isinstance(source, tuple) and source[1] is seen and not others
        goal = goal if whole and np.may_share_memory(goal, result) else None
    return None if goal is None else _unmoved(packed, seen, goal)


def _unmoved(packed: Array, seen: Array, goal: Array) -> Array | None:
    """Memory in the shape of a packed array of which `seen` is a view, if that is `goal`; else None."""
    if seen.shape != goal.shape or seen.size != packed.size:
        return None
    axes = zip(seen.strides, seen.shape, goal.strides, strict=True)
    lies = {(stride, size): step for stride, size, step in axes if size > 1}
    own = list(zip(packed.strides, packed.shape, strict=True))
    if sorted(pair for pair in own if pair[1] > 1) == sorted(lies):
        strides = [lies.get(pair, packed.itemsize) for pair in own]
        return np.lib.stride_tricks.as_strided(goal, packed.shape, strides)
    alike = seen.flags.c_contiguous and goal.flags.c_contiguous
    return goal.reshape(packed.shape) if alike else None


def parts_placed(draft: Draft, stacks: bool = False) -> dict[Node, Node]:
    """For each value that is computed within the result of a movement, that movement.

    Args:
        draft: with kernels for all regions.
        stacks: whether products of stacks can write matrices anywhere.
    """
    return _Places(draft, stacks).found


class _Places:
    """The search of `parts_placed`.

    Attributes:
        found: the movements, by values.
    """

    def __init__(self, draft: Draft, stacks: bool) -> None:
        self.found: dict[Node, Node] = {}
        self._layouts, self._in_place = draft.layouts, draft.in_place
        moves = [w for w in draft.work if w.region.kind is RegionKind.MOVE and w.lowered]
        if not any(stacks or len(work.region.nodes[0].inputs) > 1 for work in moves):
            return
        self._roots = {self._layouts.bases[root] for root in draft.program.roots}
        self._maker = {node: work for work in draft.work for node in work.needed}
        self._arrays: dict[Node, Array] = {}  # of values whose places are found,
        self._starts: dict[Node, int] = {}  # and addresses of the memory that they have parts of
        self._views: dict[Node, list[Node]] = {}
        self._readers: dict[Node, list[Work]] = {}
        for node, base in self._layouts.bases.items():
            if base is not node:
                self._views.setdefault(base, []).append(node)
        for work in draft.work:
            read = {self._layouts.bases[i] for node in work.region.nodes for i in node.inputs}
            for base in read:
                self._readers.setdefault(base, []).append(work)
        for work in reversed(moves):  # a movement may lie in a later one
            (node,) = work.region.nodes
            if len(node.inputs) > 1 and node not in self._roots:
                self._place_parts(node)
            elif stacks and len(node.inputs) == 1 and node not in (*self._roots, *self.found):
                self._place_stack(node)

    def _place_stack(self, node: Node) -> None:
        """Say that a stack is computed within a movement, if nothing else reads it."""
        layouts, part = self._layouts, self._layouts.bases[node.inputs[0]]
        work, readers = self._maker.get(part), self._readers.get(part, ())
        if work is None or len(readers) != 1 or not _is_stack(work, part):
            return
        if part in (*self._roots, *self._in_place) or product(part.shape) != product(node.shape):
            return
        own = layouts.padded | layouts.joined.keys()
        if any(v in own or layouts.loaded(v) is not None for v in self._views.get(part, ())):
            return
        goal = stack_within(layouts, part, node, layouts.arrays[node], layouts.sizes)
        if goal is not None and goal.strides[-1] == goal.itemsize and min(goal.strides) > 0:
            self.found[part] = node

    def _place_parts(self, node: Node) -> None:
        result = self._arrays.get(node, self._layouts.arrays[node])
        start = self._starts.get(node, result.ctypes.data)
        shapes = [self._layouts.arrays[i].shape for i in node.inputs]
        bases = [self._layouts.bases[i] for i in node.inputs]
        for number, goal in places_of(node, result, shapes, self._layouts.sizes).items():
            part, whole = bases[number], self._as_stored(node.inputs[number], goal)
            if whole is not None and bases.count(part) == 1 and self._may_lie(part, whole, start):
                self.found[part], self._arrays[part], self._starts[part] = node, whole, start

    def _as_stored(self, operand: Node, goal: Array) -> Array | None:
        """The place of an operand in the shape in which it is stored; None where that is another matrix."""
        base = self._layouts.bases[operand]
        if operand is base:
            return goal
        shape = self._layouts.arrays[base].shape
        if not self._layouts.is_whole(operand) or spread_of(goal) != FULL:
            return None
        is_row = goal.ndim == 1 or shape[-1:] == goal.shape[-1:]
        return goal.reshape(shape) if is_row else None

    def _may_lie(self, part: Node, goal: Array, start: int) -> bool:
        """Whether a value may be computed at such a place, in memory that begins at an address."""
        work = self._maker.get(part)
        if (
            work is None
            or work.lowered is None
            or part in (*self._roots, *self._in_place, *self.found)
        ):
            return False
        if spread_of(goal) != FULL or not self._is_written(part, work, goal, start):
            return False
        arrays = self._seen(part, goal)
        readers = self._readers.get(part, ())
        return arrays is not None and all(self._is_read(w, part, arrays, start) for w in readers)

    def _is_written(self, part: Node, work: Work, goal: Array, start: int) -> bool:
        """Whether the kernel of a step can store a value in rows that lie apart."""
        region = work.region
        if region.kind is RegionKind.LIBRARY:
            call = part.op.library if isinstance(part.op, Op) else None
            strided = call is not None and RESULT in call.strided
            return strided and lies_in_rows(goal, start, call.alignment if call else 1)
        if region.kind is RegionKind.COLUMNS and goal.ndim == 1:
            return part is not work.room
        if region.kind not in _WRITERS or part is work.room:
            return False
        rows = region.kind is RegionKind.MOVE or region.columns == part.shape[-1]
        assert work.lowered is not None
        return rows and all(
            spread == FULL for _, node, spread in work.lowered.writes if node is part
        )

    def _seen(self, part: Node, goal: Array) -> dict[Node, Array] | None:
        """The value at its place, and its views there; None where one would be none."""
        arrays, is_block = {part: goal}, goal.strides == self._layouts.arrays[part].strides
        for node in self._views.get(part, ()):
            old = self._layouts.arrays[node]
            cut = (
                old.flags.c_contiguous
                and not is_block
                and old.size == goal.size
                and old.shape[-1:] != goal.shape[-1:]
            )
            own = node in self._layouts.joined or node in self._layouts.padded
            if cut or own or self._layouts.loaded(node) is not None:
                return None  # of rows that lie apart other shapes are copies
            view = self._layouts.seen(node, arrays[node.inputs[0]], self._layouts.sizes)
            if not np.may_share_memory(view, goal):
                return None
            arrays[node] = view
        return arrays

    def _is_read(self, work: Work, part: Node, arrays: Mapping[Node, Array], start: int) -> bool:
        """Whether the kernel of a step can read the value, or its views, where they would lie."""
        kind, op = work.region.kind, work.region.nodes[0].op
        if kind in _ANY_STRIDES:
            return not isinstance(op, Op) or op.on_device is None  # GPUs send packed arrays
        if kind is RegionKind.LIBRARY:
            (node,) = work.region.nodes
            read = (operand for operand in node.inputs if operand in arrays)
            return all(takes_in_rows(node, x, arrays[x], start) for x in read)
        if kind not in (RegionKind.ROWS, RegionKind.COLUMNS, RegionKind.GEMM):
            return False
        assert work.lowered is not None
        for slot, node, spread in work.lowered.reads:
            if node not in arrays:
                continue
            if kind is RegionKind.GEMM and slot in ("a", "b"):
                if not _is_alike(self._layouts.arrays[node], arrays[node]):
                    return False
            elif spread != FULL or node.shape[-1:] != (work.region.columns,):
                return False
            elif spread_of(arrays[node]) != FULL:
                return False
        return True


def _is_stack(work: Work, part: Node) -> bool:
    """Whether a step computes a stack of products, and nothing of it but this value, row by row."""
    kernel = None if work.lowered is None else work.lowered.kernel
    if not isinstance(kernel, Gemm) or work.needed != (part,) or part is work.room:
        return False
    if (
        kernel.joined
        or product_of(work.region).ndim < 3
        or part.shape != product_of(work.region).shape
    ):
        return False
    finish = kernel.epilogue
    if finish is None:
        return True
    return isinstance(finish, Finish) and all(o.spread in (SCALAR, ROW) for o in finish.operands)


def _is_alike(old: Array, new: Array) -> bool:
    """Whether a factor of a product can be read at another place as it is now: along the same axis."""
    near = [array.strides.index(array.itemsize) if _is_plain(array) else -1 for array in (old, new)]
    return near[0] == near[1] >= 0


def _is_plain(array: Array) -> bool:
    """Whether one of the axes of a matrix has its elements side by side, and the other one does not."""
    return array.ndim == 2 and array.strides.count(array.itemsize) == 1 and min(array.strides) > 0
