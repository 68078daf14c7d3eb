"""The tasks of a plan: argument blocks over laid-out memory, cut into tiles for threads.

What a kernel computes does not depend on how its matrix is cut, so neither do results depend on the number
of threads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.compiler.kernels.columns import Columns
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.gemv import Gemv
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.kernels.library import FUNCTION, SMALL, WORKSPACE, Library
from magmadnn.compiler.kernels.moves import FAULTS
from magmadnn.compiler.kernels.rows import Rows
from magmadnn.compiler.llvm.driver.driver import Task
from magmadnn.compiler.llvm.gemm.blocking import for_joined_rows
from magmadnn.compiler.llvm.gemm.gemm import gemm_used_bytes, tile_for
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.llvm.kernel import Loaded, block, load, scratch, scratch_bytes
from magmadnn.compiler.llvm.library.calls import workspace_bytes
from magmadnn.compiler.llvm.library.small import is_small
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.compiler.lower.row_blocks import RowBlocks, in_blocks
from magmadnn.compiler.lower.size_rules import selected, streaming
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.draft import Lowered, Work
from magmadnn.compiler.regions.region import RegionKind, product_of, walk_length
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import PLACEHOLDER, Node, naming_scope
from magmadnn.graph.op import Array

from .boxes import boxes_of, rows_of
from .cuts import (
    LEAST_ELEMENTS,
    Part,
    SharedFactor,
    even_ends,
    halves,
    is_deep,
    parts_of_blocks,
    parts_of_stack,
    shared_factor,
    shrinking_ends,
)
from .host_call import HostCalls
from .matrices.lapack import function_of, is_native
from .slot_values import slot_values

# What a part is made of at least, some 5 microseconds: below, a barrier costs more than threads gain.
_LEAST_PRODUCTS = 200_000
_LEAST_READ = 80_000  # elements of a matrix times a vector: as long as it takes to read them
_LEAST_TILES = 4  # of a product that is cut by rows, since each part reads all of the other factor
_STACKED_PARTS = 4  # products of a stack for each thread, from which on none is cut
_TURNED = 4  # times as many rows as columns, before a product with B transposed is cut by rows
_COLUMN_STEP = 64  # of kernels other than products, in which rows may be cut anywhere


@dataclass(frozen=True)
class Patch:
    """An address in an argument block that follows what is fed, or moves from step to step."""

    block: Array
    slot: int
    node: Node  # a placeholder, or what is `moving`
    offset: int  # bytes from where it begins


class Tasks:
    """Makes the tasks of a plan for given arrays.

    Attributes:
        patches: addresses to be set before each run.
        scratch_bytes: what each thread needs.
        useful_threads: how many threads have something to gain: one, where no step is worth cutting.
        calls: steps that Python computes; told before each run.
        faults: [1], not 0 after a run in which a number of a row was out of range, or NumPy raised something.
    """

    def __init__(
        self,
        plan: NativePlan,
        arrays: Mapping[Node, Array],
        sizes: Mapping[str, int],
        threads: int,
        function: Callable[[Work], Callable[[], None]],
        beside: Iterable[Kernel] = (),
        rooms: Mapping[Node, Array] = MappingProxyType({}),
        moving: Collection[Node] = (),
        *,
        compiled: bool = True,
    ) -> None:
        """Find kernels for the sizes, and compile them.

        Args:
            plan: what is computed.
            arrays: where values lie.
            sizes: of symbolic dimensions.
            threads: how many threads take tasks.
            function: what computes a step that has no kernel.
            beside: kernels that are needed too; compiled together they take less time.
            rooms: memory for partial results, by the first value that a step stores.
            moving: values whose addresses are among `patches`, beside placeholders.
            compiled: False for `workspace_bytes` alone.
        """
        self.plan, self.arrays, self.sizes, self.threads = plan, arrays, sizes, threads
        self.patches: list[Patch] = []
        self.scratch_bytes = 0
        self.useful_threads = 1
        self.work_of: dict[int, Work] = {}  # by the id of a task
        self.faults = np.zeros(1, np.int64)
        self._function, self._moving = function, moving
        self.calls: HostCalls | None = None  # of what NumPy computes
        self._faults_at, known = self.faults.ctypes.data, dict[Node, int]()
        self._values = {
            work: slot_values(work, arrays, sizes, known)
            for work in plan.work
            if plan.is_own or is_native(work)
        }
        self._lowered = {work: self._selected(work) for work in self._values}
        self._blocks = self._cut_rows(rooms)
        self._products = {
            work: self._parts(work)
            for work, lowered in self._lowered.items()
            if isinstance(lowered.kernel, Gemm) and not lowered.kernel.joined
        }
        self._shared = self._sharing()
        self._copies: list[Task] = []  # of shared factors, in the phase that is made
        self._rooms: list[Array] = []  # for them; other phases use them again
        self._taken = 0  # by that phase
        self._joins: list[Task] = []  # of partial results, in the phase that is made
        if not compiled:
            return
        needed = [lowered.kernel for lowered in self._lowered.values()]
        needed += [blocks.last for blocks in self._blocks.values()]
        needed += [*(shared.copying.kernel for shared in self._shared.values()), *beside]
        load(needed, cache=kernel_cache())

    @property
    def workspace_bytes(self) -> int:
        """What kernels touch beside their operands: scratch memory of each thread, copies of factors."""
        own = max((self._used(work) for work in self._lowered), default=0)
        copies = Counter(work.phase for work in self._shared)
        room = max((shared.layout.nbytes for shared in self._shared.values()), default=0)
        return self.threads * own + max(copies.values(), default=0) * room

    def _used(self, work: Work) -> int:
        kernel, values = self._lowered[work].kernel, self._values[work]
        if not isinstance(kernel, Gemm):
            return scratch_bytes(kernel, host())
        rows, columns = values["row1"], values["column1"]
        if work in self._products:  # a thread has some of them
            if _cut_along(work, values) == "row":
                rows = -(-rows // self.threads)
            else:
                columns = -(-columns // self.threads)
        return gemm_used_bytes(kernel, host(), rows, columns, values["k"])

    def _selected(self, work: Work) -> Lowered:
        """The step with the kernel that suits its sizes."""
        assert work.lowered is not None
        kernel, values = work.lowered.kernel, self._values[work]
        if isinstance(kernel, Rows):
            again, cpu = self._read_again(work), host()
            chosen: Kernel = streaming(kernel, values, again, cpu.last_bytes, cpu.vector_bytes)
        elif isinstance(kernel, Gemm) and product_of(work.region).ndim <= 2:
            chosen = selected(kernel, values)
            if kernel.joined_a:
                chosen = for_joined_rows(kernel, host(), values["column1"])
        else:
            return work.lowered
        return work.lowered if chosen is kernel else replace(work.lowered, kernel=chosen)

    def _cut_rows(self, rooms: Mapping[Node, Array]) -> dict[Work, RowBlocks]:
        """The reductions that are made in blocks; the step's own kernel is the first of two."""
        found = {}
        for work, lowered in self._lowered.items():
            if isinstance(lowered.kernel, Columns | Rows) and work.needed[0] in rooms:
                room = rooms[work.needed[0]].ctypes.data
                blocks = in_blocks(lowered.kernel, self._values[work], room)
                assert blocks is not None
                found[work] = blocks
                self._lowered[work] = _with_kernel(lowered, blocks.first)
        return found

    @property
    def can_be_copied(self) -> bool:
        """Whether models that are built alike have equal tasks, over no memory but that of values.

        Copies of factors lie in memory of the tasks, and calls of Python belong to a model.
        """
        return not self._shared and self.calls is None

    def _sharing(self) -> dict[Work, SharedFactor]:
        """The products whose parts, more than one for each thread, share a copy of a factor."""
        found = {}
        for work, parts in self._products.items():
            if product_of(work.region).ndim > 2 or len(parts) <= self.threads:
                continue
            values = self._values[work]
            by_row = _cut_along(work, values) == "row"
            shared = shared_factor(self._lowered[work], values, by_row)
            if shared is not None:
                found[work], self._lowered[work] = shared, shared.product
        return found

    def _read_again(self, work: Work) -> set[str]:
        """The slots of what a step stores and something else in the same run reads."""
        assert work.lowered is not None
        alone = self.plan.in_place  # all else goes to later steps, or is copied
        writes = work.lowered.writes
        return {slot for slot, node, _ in writes if node not in alone or node in self._read}

    @cached_property
    def _read(self) -> set[Node]:
        """What some step reads, or is an output."""
        nodes = list(self.plan.program.outputs)
        for work in self.plan.work:
            if work.lowered is None:
                nodes += work.region.nodes[0].inputs
            else:
                nodes += [node for _, node, _ in work.lowered.reads]
        return {self.plan.layouts.bases[node] for node in nodes}

    def went_well(self) -> bool:
        """Whether no row was asked for that is not there since this was asked last.

        Raises:
            what a function of NumPy raised.
        """
        if not self.faults[0]:
            return True
        self.faults[0] = 0
        if self.calls is not None:
            self.calls.raise_failure()
        return False

    def phase(self, number: int) -> list[list[Task]]:
        """The tasks of a phase, which do not depend on each other; large ones first: small ones fill up.

        Before them come copies of factors that parts of products share; behind them what combines results of
        blocks of rows.
        """
        self._copies, self._joins = [], []
        self._taken = 0
        works = [work for work in self.plan.work if work.phase == number]
        made = [pair for work in works for pair in self._of(work)]
        tasks = [task for _, task in sorted(made, key=lambda pair: -pair[0])]
        return [some for some in (self._copies, tasks, self._joins) if some]

    def _call(self, work: Work) -> Task:
        """A step that NumPy computes, as one task."""
        among_ranks = work.region.kind in (RegionKind.COLLECTIVE, RegionKind.LOOP)
        self.calls = self.calls or HostCalls(self.faults)
        call = self.calls.made(self._function(work), among_ranks)
        task = Task(call, np.zeros(0, np.int64), (call, self.faults))
        self.work_of[id(task)] = work
        return task

    def _of(self, work: Work) -> list[tuple[float, Task]]:
        """The tasks of one step, and what they cost."""
        if work not in self._values:
            first = not work.region.arrives  # as nothing is known of how long it takes
            return [(math.inf if first else -1.0, self._call(work))]
        lowered = self._lowered[work]
        (loaded,) = load([lowered.kernel])
        self.scratch_bytes = max(self.scratch_bytes, scratch_bytes(lowered.kernel, host()))
        values = self._values[work]
        values[FAULTS] = self._faults_at
        if isinstance(lowered.kernel, Library):
            return self._calls_of(work, lowered.kernel, loaded)
        holds: tuple[Array, ...] = (self.faults,)
        if work.region.kind is RegionKind.MOVE:
            holds = self._boxes(work.region.nodes[0], values)
            if not values["boxes"]:
                return []  # all of it lies there already
        parts = self._products.get(work) or self._parts(work)
        if shared := self._shared.get(work):
            begin = len(self._copies)
            holds += (self._copied(shared, values),)
            self.work_of |= {id(task): work for task in self._copies[begin:]}
        made = [
            (cost, self._task(loaded, lowered, {**values, **part}, holds)) for cost, part in parts
        ]
        if blocks := self._blocks.get(work):
            self._join(work, blocks)
        self.work_of |= {id(task): work for _, task in made}
        return made

    def _calls_of(self, work: Work, kernel: Library, loaded: Loaded) -> list[tuple[float, Task]]:
        """The tasks of a step that calls a library, each with a workspace where the function wants one."""
        values = {**self._values[work], FUNCTION: function_of(kernel) or 0}
        values[SMALL] = int(is_small(kernel, values))
        nbytes, made = workspace_bytes(kernel, values), []
        for cost, part in self._parts(work):
            room = scratch(nbytes) if nbytes else self.faults
            values[WORKSPACE] = room.ctypes.data
            holds = (self.faults, room)
            task = self._task(loaded, self._lowered[work], {**values, **part}, holds)
            self.work_of[id(task)] = work
            made.append((cost, task))
        return made

    def _join(self, work: Work, blocks: RowBlocks) -> None:
        """A task that combines the results of blocks of rows; there are few."""
        assert work.lowered is not None
        (loaded,) = load([blocks.last])
        lowered = _with_kernel(work.lowered, blocks.last)
        task = self._task(loaded, lowered, blocks.last_values, ())
        self.scratch_bytes = max(self.scratch_bytes, scratch_bytes(blocks.last, host()))
        self.work_of[id(task)] = work
        self._joins.append(task)

    def _copied(self, shared: SharedFactor, values: dict[str, int]) -> Array:
        """Room for the copy of a factor, which tasks before the product make; puts it into the slots."""
        if self._taken == len(self._rooms):
            self._rooms.append(scratch(max(x.layout.nbytes for x in self._shared.values())))
        room = self._rooms[self._taken]
        self._taken += 1
        (loaded,) = load([shared.copying.kernel])
        parts = shared.parts(values, room, self.threads)
        self._copies += [self._task(loaded, shared.copying, part, (room,)) for part in parts]
        values |= shared.slots(room)
        return room

    def _boxes(self, node: Node, values: dict[str, int]) -> tuple[Array, ...]:
        """The table of a movement and its constants; puts their addresses into the slots."""
        operands = [self.arrays[i] for i in node.inputs]
        with naming_scope(node):
            table, constants = boxes_of(node, self.arrays[node], operands, self.sizes)
        values["table"], values[f"x{len(operands)}"] = table.ctypes.data, constants.ctypes.data
        values["boxes"], values["row1"] = len(table), rows_of(table)
        values["column1"] = self.arrays[node].size // max(values["row1"], 1)
        return (table, constants)

    def _task(
        self,
        loaded: Loaded,
        lowered: Lowered,
        values: Mapping[str, int],
        holds: tuple[Array, ...],
    ) -> Task:
        slots = lowered.kernel.slots
        block = np.array([values[slot] for slot in slots], np.int64)
        for slot, node, _ in (*lowered.reads, *lowered.writes):
            base = self.plan.layouts.bases[node]
            if base.op is PLACEHOLDER or base in self._moving:
                number = slots.index(slot)
                offset = int(block[number]) - self.arrays[base].ctypes.data
                self.patches.append(Patch(block, number, base, offset))
        return Task(loaded, block, holds)

    def _parts(self, work: Work) -> list[Part]:
        """The parts of the matrix that threads take one by one, and what they cost."""
        assert work.lowered is not None
        values = self._values[work]
        rows, columns = values["row1"], values["column1"]
        kernel = self._lowered[work].kernel
        least = _LEAST_PRODUCTS if "k" in values else LEAST_ELEMENTS
        least = _LEAST_READ if isinstance(kernel, Gemv) else least
        cost = rows * columns * values.get("k", 1) * values.get("outer1", 1) / least
        cost *= values["picks"] if work.region.kind is RegionKind.SCATTER else 1
        if work.region.kind is RegionKind.OWN:
            cost *= walk_length(work.region, values)
        if isinstance(kernel, Library):
            parts = parts_of_stack(values, self.threads)
            self.useful_threads = self.threads if len(parts) > 1 else self.useful_threads
            return parts
        if self.threads > 1 and cost >= 2:
            self.useful_threads = self.threads
        if blocks := self._blocks.get(work):
            return parts_of_blocks(blocks, self.threads)
        if work.region.kind is RegionKind.GEMM and (node := product_of(work.region)).ndim > 2:
            return self._stacked(work, node, cost)
        if self.threads == 1 or cost < 2:
            return [(cost, {})]
        name = _cut_along(work, values)
        length, by_row = values[f"{name}1"], name == "row"
        step = worth = _COLUMN_STEP if name == "column" else 1
        across = 0
        if isinstance(kernel, Gemm):
            tile = tile_for(kernel, host())
            step, across = tile.rows, tile.columns
            if not by_row:
                step, across = across, step
            worth = _LEAST_TILES * step if by_row else step
        if isinstance(kernel, Gemm) and is_deep(values, by_row):
            across = 0  # each part reads a factor from memory
            ends = even_ends(length, step, min(self.threads, -(-length // step)))
        elif isinstance(kernel, Gemv | Columns):  # long parts, that the CPU sees coming
            ends = even_ends(length, step, min(self.threads, int(cost)))
        else:
            ends = shrinking_ends(length, step, self.threads, max(worth, length / cost))
        parts = [
            (cost * (end - start) / length, {f"{name}0": start, f"{name}1": end})
            for start, end in pairwise((0, *ends))
        ]
        if across and not work.region.numbers:
            other = "column" if by_row else "row"
            parts[-1:] = halves(parts[-1], other, values[f"{other}1"], across)
        return parts

    def _stacked(self, work: Work, node: Node, cost: float) -> list[Part]:
        """Each product of a stack of matrices: its rows among those of all results, where its factors lie.

        Few large ones are cut into parts.
        """
        assert work.lowered is not None
        kernel, lda = work.lowered.kernel, self._values[work]["lda"]
        assert isinstance(kernel, Gemm)
        shape = bind_shape(node.shape, self.sizes)
        leading, rows = shape[:-2], shape[-2]
        count = math.prod(leading)
        slices = self._slices_of_each(work, kernel, rows, count, cost / max(count, 1))
        factors = {
            slot: np.broadcast_to(array, (*leading, *array.shape[-2:]))
            for slot, i in zip("ab", node.inputs, strict=True)
            for array in (self.arrays[i],)
        }
        # Rows are counted over all results, and those of A begin with its own first.
        step = factors["a"].itemsize * (1 if kernel.transpose_a else lda)
        parts = []
        for number, index in enumerate(np.ndindex(leading)):
            places = {slot: f[index].ctypes.data for slot, f in factors.items()}
            places["a"] -= number * rows * step
            for share, part in slices:
                begin, end = (number * rows + part[slot] for slot in ("row0", "row1"))
                parts.append((share, {**part, "row0": begin, "row1": end, **places}))
        return parts or [(cost, {})]  # of no rows, where the stack is empty

    def _slices_of_each(
        self, work: Work, kernel: Gemm, rows: int, count: int, cost: float
    ) -> list[Part]:
        """The parts of one product of a stack, if it were alone; `cost` is that of one."""
        values = self._values[work] | {"row1": rows}
        whole = {"row0": 0, "row1": rows}
        if self.threads == 1 or cost < 2 or count >= self.threads * _STACKED_PARTS:
            return [(cost, whole)]
        name, tile = _cut_along(work, values), tile_for(kernel, host())
        step = tile.rows if name == "row" else tile.columns
        length = values[f"{name}1"]
        threads = -(-self.threads // count)
        ends = shrinking_ends(length, step, threads, max(_LEAST_TILES * step, length / cost))
        return [
            (cost * (end - start) / length, {**whole, f"{name}0": start, f"{name}1": end})
            for start, end in pairwise((0, *ends))
        ]


def task_of(kernel: Kernel, **values: int | Array) -> Task:
    """A kernel as one task, with what is in its slots."""
    (loaded,) = load([kernel], cache=kernel_cache())
    return Task(loaded, block(kernel, **values))


def _with_kernel(lowered: Lowered, kernel: Kernel) -> Lowered:
    """A step with another kernel, and those of its reads and writes that this one has slots for."""
    reads, writes = (
        tuple(part for part in parts if part[0] in kernel.slots)
        for parts in (lowered.reads, lowered.writes)
    )
    return Lowered(kernel, reads, writes)


def _cut_along(work: Work, values: Mapping[str, int]) -> str:
    """Which slots cut a step into parts: rows, columns, or the matrices of a stack (outer)."""
    if work.region.kind in (RegionKind.MOVE, RegionKind.LIBRARY):
        return "row"
    if work.region.kind is RegionKind.COLUMNS:
        many = work.region.rows and values["outer1"] * _COLUMN_STEP >= values["column1"]
        return "outer" if many else "column"
    # Parts of rows read all of B; where that is stored transposed, each would turn it for itself.
    turned = work.lowered is not None and getattr(work.lowered.kernel, "transpose_b", False)
    long = values["row1"] >= values["column1"] * (_TURNED if turned else 1)
    return "row" if long or work.region.numbers else "column"
