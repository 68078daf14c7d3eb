"""The launches of a plan over laid-out memory, with what each reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from magmadnn.backends.cuda.engine import Engine, ProductNode
from magmadnn.compiler.cuda.fused.folded import folded
from magmadnn.compiler.cuda.fused.transposed import Turn, transposed, turn_of
from magmadnn.compiler.cuda.gemm.finish import finishing, finishing_slots
from magmadnn.compiler.cuda.gemm.gemm import choose_gemm
from magmadnn.compiler.cuda.gemm.small import small_gemm
from magmadnn.compiler.cuda.gemm.stacked import Axes, choose_shared, choose_stacked
from magmadnn.compiler.cuda.library.calls import can_call
from magmadnn.compiler.cuda.module import can_emit, choose
from magmadnn.compiler.cuda.text.finite import MOST_PARTS, look_finite
from magmadnn.compiler.cuda.text.variant import WARP, Launch
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.formula import ITEM_BYTES
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.kernels.library import Library, WholeLibrary
from magmadnn.compiler.kernels.moves import FAULTS, Move
from magmadnn.compiler.kernels.rows import Rows
from magmadnn.compiler.lower.row_blocks import in_blocks
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.draft import Lowered, Work
from magmadnn.compiler.regions.region import product_of
from magmadnn.graph.node import Node, naming_scope
from magmadnn.runtime.cpu.boxes import boxes_of, rows_of
from magmadnn.runtime.cpu.slot_values import slot_values
from magmadnn.runtime.cuda.algorithms import algorithm_of
from magmadnn.runtime.cuda.code import chip_of
from magmadnn.runtime.cuda.layout import Layout

from .array_calls import array_call, takes_arrays
from .batched_products import Group, apart, groups_of, stack_axes
from .hazards import Span
from .host_calls import host_call
from .launch import Item
from .library.among_gpus import calls_of, is_collective, is_gpus_own
from .library.convolutions import Convolutions, can_convolve
from .library.few_pooled import FewPooledSteps, takes_few_pooled
from .library.fourier import Transforms, is_transform
from .library.library_calls import LibraryCalls
from .library.pooling import PoolingSteps, takes_pooling
from .library.rooms import InTurn, Rooms
from .loops import LoopSteps
from .pads import padded_copy
from .small import is_small
from .wide_boxes import alignment_of, widened


def runs_on_device(plan: NativePlan, work: Work) -> bool:
    """Whether there is code for the device, in a loop for all of it; NumPy computes the step otherwise."""
    loop = plan.loops.get(work.region.nodes[0])
    if loop is not None:
        return all(runs_on_device(loop.step, inner) for inner in loop.step.work)
    if is_collective(work):
        return is_gpus_own(work)
    if takes_arrays(work):
        return True
    kernel = None if work.lowered is None else work.lowered.kernel
    if isinstance(kernel, Library):
        return can_call(kernel)
    if isinstance(kernel, WholeLibrary):
        return can_convolve(kernel) or takes_pooling(kernel) or takes_few_pooled(kernel)
    return kernel is not None and (isinstance(kernel, Gemm) or can_emit(kernel))


def may_fault(plan: NativePlan) -> bool:
    """Whether a kernel notes rows that are not there."""
    own = (w.lowered is not None and FAULTS in w.lowered.kernel.slots for w in plan.work)
    return any(own) or any(may_fault(loop.step) for loop in plan.loops.values())


class Items:
    """Makes the launches of steps.

    Args:
        layout: where values lie.
        engine: the device.
        workspaces: gives pieces of scratch memory for calls of the library, which take them in turn.
        tensor_float: whether products of float32 may be computed in TF32.
        within: whether the plan is the body of a loop, whose launches go with those of others.

    Attributes:
        small: whether all launches of a step can be parts of one kernel, and are to be.
        chip: what emitters know of the device.
    """

    def __init__(
        self,
        layout: Layout,
        engine: Engine,
        workspaces: Callable[[], Sequence[Span]],
        tensor_float: bool,
        *,
        within: bool = False,
    ) -> None:
        self._layout, self._workspaces = layout, InTurn(workspaces)
        self._tensor_float = tensor_float
        chip = chip_of(engine)
        self.small = not within and is_small(layout.plan, layout.frames, layout.sizes, chip)
        self.chip = replace(chip, together=WARP) if self.small else chip
        self._engine = engine
        rooms = Rooms(layout, engine, self._workspaces)
        self._library = LibraryCalls(layout, rooms)
        self._convolutions = Convolutions(layout, engine, rooms, tensor_float, self.chip)
        self._pooling, self._few_pooled = PoolingSteps(layout), FewPooledSteps(layout)
        self._transforms = Transforms(layout, rooms, self.chip)
        self._scales_of: dict[Work, int] = {}  # of products: where alpha and beta are
        # of movements: how many boxes and rows, where boxes and constants lie, elements of an item, tiles
        self._boxes: dict[tuple[Node, int], tuple[int, int, int, int, int, Turn | None]] = {}
        self._loops: dict[Work, LoopSteps] = {}
        self._numbers: dict[Work, dict[str, int]] = {}  # slots, of which addresses change

    def _loop(self, work: Work) -> LoopSteps:
        if work not in self._loops:
            plan = self._layout.plan.loops[work.region.nodes[0]]
            self._loops[work] = LoopSteps(plan, work, self._layout, self._within, self.chip)
        return self._loops[work]

    def _within(self, layout: Layout) -> Items:
        return Items(layout, self._engine, self._workspaces.all_of, self._tensor_float, within=True)

    def of(self, work: Work, any_size: bool = False) -> list[Item]:
        """The launches of one step, in order; a call of the host where there is no code for the device.

        With `any_size` products of a small plan take their sizes as arguments, to be launched by themselves
        until the one kernel of the step is compiled. Bits are the same.
        """
        if work.region.nodes[0] in self._layout.plan.loops:
            return list(self._loop(work).items())
        if not runs_on_device(self._layout.plan, work):
            return [Item(host_call(self._layout, work), (), ())]
        if is_collective(work):
            return calls_of(self._layout, work)
        if takes_arrays(work):
            if is_transform(self._layout, work):
                return self._transforms.of(work)
            return [self._on_arrays(work)]
        assert work.lowered is not None
        values = self._values(work)
        reads = tuple(self._layout.span(node) for _, node, _ in work.lowered.reads)
        writes = tuple(self._layout.span(node) for _, node, _ in work.lowered.writes)
        if isinstance(work.lowered.kernel, Gemm):
            return self._product(work, values, reads, writes, any_size)
        if isinstance(work.lowered.kernel, Library):
            return self._library.of(work, values)
        if isinstance(work.lowered.kernel, WholeLibrary):
            return self._whole_library(work.lowered.kernel).of(work, values)
        room = self._layout.room(work)
        if isinstance(work.lowered.kernel, Columns | Rows) and room is not None:
            return self._in_blocks(work.lowered, values, room)
        kernel = work.lowered.kernel
        if isinstance(kernel, Move):
            padded = self._padded(work)
            if padded is not None:
                launch = choose(*padded, self.chip)
            else:
                launch = self._moved(kernel, work.region.nodes[0], values)
        else:
            launch = choose(kernel, values, self.chip)
        return [] if launch is None else [Item(launch, reads, writes)]

    def _whole_library(self, kernel: WholeLibrary) -> Convolutions | PoolingSteps | FewPooledSteps:
        """What makes the launches of a function of whole arrays."""
        if takes_few_pooled(kernel):
            return self._few_pooled
        return self._pooling if takes_pooling(kernel) else self._convolutions

    def _on_arrays(self, work: Work) -> Item:
        """A call of NumPy's functions where values lie on the device."""
        span = self._layout.span
        reads = dict.fromkeys(
            span(i) for node in work.region.nodes for i in node.inputs if self._lies(i)
        )
        writes = dict.fromkeys(map(span, work.needed))
        return Item(array_call(self._layout, work), tuple(reads), tuple(writes))

    def _lies(self, node: Node) -> bool:
        """Whether a value has memory."""
        return self._layout.plan.layouts.bases[node] in self._layout.frames

    def _in_blocks(self, lowered: Lowered, values: Mapping[str, int], room: Span) -> list[Item]:
        """Launches that reduce blocks, and one that combines their results."""
        blocks = in_blocks(lowered.kernel, values, room[0])
        assert blocks is not None
        stored = tuple(
            self._layout.span(n) for s, n, _ in lowered.writes if s in blocks.first.slots
        )
        rest = tuple(self._layout.span(n) for s, n, _ in lowered.writes if s in blocks.last.slots)

        def read_by(kernel: Kernel) -> tuple[Span, ...]:
            nodes = (node for slot, node, _ in lowered.reads if slot in kernel.slots)
            return tuple(self._layout.span(node) for node in nodes)

        made = []
        for own in blocks.values:
            first = choose(blocks.first, own, self.chip)
            assert first is not None
            made.append(Item(first, read_by(blocks.first), (*stored, *blocks.partials(own))))
        last = choose(blocks.last, blocks.last_values, self.chip)
        assert last is not None
        return [*made, Item(last, (*read_by(blocks.last), room), rest)]

    def _product(
        self,
        work: Work,
        values: Mapping[str, int],
        reads: tuple[Span, ...],
        writes: tuple[Span, ...],
        any_size: bool,
    ) -> list[Item]:
        """One kernel; or the library's product, and a kernel for what is done to its elements."""
        assert work.lowered is not None
        gemm, node = work.lowered.kernel, product_of(work.region)
        assert isinstance(gemm, Gemm)
        rows, columns = values["row1"], values["column1"]
        if not rows or not columns:
            return []
        own, axes = None, None
        if gemm.joined_a:
            gemm, axes = apart(gemm, values)
        elif node.ndim > 2:
            axes = stack_axes(work, self._layout)
        if self.small:
            own = small_gemm(gemm, values, any_size)
        elif axes is None:
            own = choose_gemm(gemm, values, self.chip, self._tensor_float)
        else:
            chosen = choose_shared if node.ndim == 2 else choose_stacked
            own = chosen(gemm, values, axes, self.chip, self._tensor_float)
        if own is not None:
            return [Item(own, reads, writes[:-1] if gemm.unread else writes)]
        whole = ProductNode(
            gemm.dtype, self._tensor_float, (rows, columns, values["k"]),
            (gemm.transpose_a, gemm.transpose_b), values["a"], values["b"], values["c"],
            (values["lda"], values["ldb"], values["ldc"]), 0, halves=gemm.halves,
        )  # fmt: skip
        if node.ndim == 2 and axes is not None:
            ((count, step),) = axes["a"]
            each = rows // count
            whole = replace(
                whole,
                sizes=(each, *whole.sizes[1:]),
                count=count,
                steps=(step, 0, each * values["ldc"]),
            )
        if node.ndim == 2 and (made := self._folded(work, whole, values)):
            return made
        rest, goal, items = finishing(gemm), self._part(work, "c"), list[Item]()
        groups, each = [Group(whole, {}, rows)], False
        if node.ndim > 2 and axes is not None:
            groups, each = self._groups(work, whole, axes, values, rest is not None)
        bare = writes[-1]  # the product's own memory is the last
        for group in groups:
            items.append(self._by_library(group.product, reads[:2], goal))
            if rest is not None and (each or group is groups[-1]):
                told = {**values, **group.slots, "row1": group.rows} if each else values
                filled = {slot: told[finishing_slots(slot)] for slot in rest.slots}
                launch = choose(rest, filled, self.chip)
                assert launch is not None
                items.append(Item(launch, (*reads[2:], bare), writes))
        return items

    def _groups(
        self,
        work: Work,
        whole: ProductNode,
        axes: Mapping[str, Axes],
        values: Mapping[str, int],
        finished: bool,
    ) -> tuple[list[Group], bool]:
        """The library's calls for a stack, and whether what is done to elements follows each of them."""
        nodes = {slot: node for slot, node, _ in work.lowered.writes} if work.lowered else {}
        nodes |= dict(zip("ab", product_of(work.region).inputs, strict=False))
        items = {slot: self._layout.frames[node].itemsize for slot, node in nodes.items()}
        lines = {slot: values[finishing_slots(f"{slot}_row")] for slot in axes if slot not in "ab"}
        each = finished and bool(lines)
        addresses = {slot: values[slot] for slot in (*axes, "c")}
        return groups_of(whole, axes, addresses, items, lines if each else None), each

    def _folded(self, work: Work, bare: ProductNode, values: Mapping[str, int]) -> list[Item]:
        """The library's product with all that is done to its elements; nothing where it cannot."""
        assert work.lowered is not None and isinstance(work.lowered.kernel, Gemm)
        found = folded(work.lowered.kernel)
        if found is None:
            return []
        spans = {slot: self._layout.span(node) for slot, node, _ in work.lowered.reads}
        slot, over, reads = found.result.name, found.over, tuple(spans.values())
        if over is not None and any(values[over + s] != values[slot + s] for s in ("", "_row")):
            return []
        stored = None if found.result.dtype == bare.dtype else found.result.dtype
        if stored is not None and bare.halves is None:
            return []  # no such product is documented, so the library is not asked: it may say yes
        row = values["ldc"] if slot == "c" else values[f"{slot}_row"]
        product = replace(
            bare, c=values[slot], strides=(*bare.strides[:2], row), stored=stored,
            bias=0 if found.bias is None else values[found.bias], positive=found.positive,
            steps=(*bare.steps[:2], bare.sizes[0] * row if bare.count > 1 else 0),
        )  # fmt: skip
        before: list[Item] = []
        if found.scales is not None:
            before, scales = self._scales(work, found.scales, values, spans)
            product, reads = replace(product, scales=scales[0]), (*reads, scales)
        if not self._engine.algorithms(product):
            return []
        made = [*before, self._by_library(product, reads, self._part(work, slot))]
        if found.after is not None:
            launch = choose(found.after, values, self.chip)
            assert launch is not None
            goal = made[-1].writes[0]
            made.append(Item(launch, (*reads[2:], goal), (goal,)))
        return made

    def _scales(
        self, work: Work, kernel: Rows, values: Mapping[str, int], spans: Mapping[str, Span]
    ) -> tuple[list[Item], Span]:
        """A launch that computes alpha and beta, and where they are."""
        if work not in self._scales_of:
            self._scales_of[work] = self._layout.put(np.zeros(2, np.float32))
        start = self._scales_of[work]
        numbers = {**values, "row0": 0, "row1": 1, "column0": 0, "column1": 1, "alpha": start}
        numbers |= {"beta": start + 4, "alpha_row": 1, "beta_row": 1}
        launch = choose(kernel, numbers, self.chip)
        assert launch is not None
        goal = start, start + 8
        return [Item(launch, tuple(spans[o.name] for o in kernel.operands), (goal,))], goal

    def _part(self, work: Work, slot: str) -> Span | None:
        """What stands for the memory of a result that lies within that of a movement; None for others."""
        assert work.lowered is not None
        node = next(node for name, node, _ in work.lowered.writes if name == slot)
        return self._layout.span(node) if node in self._layout.plan.inside else None

    def _by_library(
        self, product: ProductNode, reads: tuple[Span, ...], goal: Span | None = None
    ) -> Item:
        """The launch of a library's product; `goal` stands for what it writes, if rows lie apart."""
        workspace = self._workspaces.take()
        nbytes = product.result_items * ITEM_BYTES[product.stored or product.dtype]
        written = goal or (product.c, product.c + nbytes)
        product = replace(product, workspace=workspace[0])
        algorithm = algorithm_of(self._engine, self._layout.device, product)
        return Item(replace(product, algorithm=algorithm), reads, (written, workspace))

    def _values(self, work: Work) -> dict[str, int]:
        """All slots of a kernel for its whole matrix, with addresses on the device."""
        assert work.lowered is not None
        if work not in self._numbers:
            self._numbers[work] = slot_values(work, self._layout.frames, self._layout.sizes)
        values = dict(self._numbers[work])
        for slot, node, _ in (*work.lowered.reads, *work.lowered.writes):
            values[slot] = self._layout.address(node)
        values[FAULTS] = self._layout.faults
        return values

    def _padded(self, work: Work) -> tuple[Rows, dict[str, int]] | None:
        """The kernel of a copy with a constant around it, where that is one over rows."""
        node, layout = work.region.nodes[0], self._layout
        if len(node.inputs) != 1:
            return None
        (operand,) = node.inputs
        source, goal = layout.address(operand), layout.address(node)
        places = (source, layout.span(operand)[1]), (goal, layout.span(node)[1])
        arrays = layout.frames[operand], layout.frames[node]
        return padded_copy(node, *arrays, layout.sizes, places)

    def _moved(self, kernel: Move, node: Node, values: dict[str, int]) -> Launch | None:
        """The launch of a movement, for whose slots its table and constants are put on the device.

        Items are those that the table counts: elements, or several at a time.
        """
        layout, sources = self._layout, len(node.inputs)
        alignment = alignment_of([values["result"], *(values[f"x{k}"] for k in range(sources))])
        if (node, alignment) not in self._boxes:
            operands = [layout.frames[i] for i in node.inputs]
            with naming_scope(node):
                table, constants = boxes_of(node, layout.frames[node], operands, layout.sizes)
            table, constants, each = widened(table, constants, sources, alignment)
            turn = None if self.small else turn_of(table, sources)
            found = len(table), rows_of(table), layout.put(table), layout.put(constants), each, turn
            self._boxes[node, alignment] = found
        count, rows, at, constants_at, each, turn = self._boxes[node, alignment]
        values["table"], values[f"x{sources}"] = at, constants_at
        values["boxes"], values["row1"] = count, rows
        values["column1"] = -(-layout.frames[node].size // (max(rows, 1) * each))
        if turn is not None:
            made = transposed(turn, kernel.item_bytes * each, values["x0"], values["result"])
            if made is not None:
                return made
        return choose(replace(kernel, item_bytes=kernel.item_bytes * each), values, self.chip)


def finite_items(fault: Span, values: Sequence[tuple[str, Span]]) -> list[Item]:
    """Launches that set a word where a value is NaN or infinite: (dtype, memory) of each.

    Values of dtypes that cannot be either are left out.
    """
    real = [(dtype, span) for dtype, span in values if dtype in ("float32", "float64")]
    items = []
    for start in range(0, len(real), MOST_PARTS):
        some = real[start : start + MOST_PARTS]
        parts = [(d, (s[1] - s[0]) // ITEM_BYTES[d], s[0]) for d, s in some]
        reads = tuple(span for _, span in some)
        items.append(Item(look_finite(fault[0], parts), reads, (fault,)))
    return items
