"""Batches of one size as native tasks: rows come in, a plan runs, outputs go into their places.

Of models that are built alike, tasks are made for the first; others copy its argument blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from magmadnn.compiler.kernels.data_rows import Gather, Keep
from magmadnn.compiler.kernels.formula import DTYPES
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.llvm.driver.driver import Table, Task, table_of
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, Node
from magmadnn.graph.op import Array, Op
from magmadnn.runtime.cpu.cuts import even_parts
from magmadnn.runtime.cpu.images import (
    Image,
    Piece,
    addressed,
    image_of,
    keep_image,
    kept_image,
    pieces_of,
)
from magmadnn.runtime.cpu.native import Instance, NativeRunner
from magmadnn.runtime.cpu.tasks import task_of
from magmadnn.runtime.variables import variable_memory

SOURCE, ORDER = Gather.slots.index("source"), Gather.slots.index("order")


class Leg:
    """A plan laid out for batches of one size.

    Args:
        plan: one that can run on its own (see `can_slice`).
        data: for each placeholder of data, rows like those to take batches from.
        settings: scalar placeholders whose value may change from batch to batch.
        sizes: of symbolic dimensions, in a batch.
        batch_size: rows of a batch.
        threads: how many threads run it.
        longest: batches for which there is room to keep outputs and settings.
        beside: kernels that are needed too; compiled together they take less time.

    Attributes:
        plan: what is computed.
        size: rows of a batch.
        phases: the tasks of a batch.
        tasks: those of the plan.
        nbytes: memory of the values of a batch.
        outputs: of the last batches, [longest, ...] each.
    """

    def __init__(
        self,
        plan: NativePlan,
        data: Mapping[Node, Array],
        settings: Sequence[Node],
        sizes: Mapping[str, int],
        batch_size: int,
        threads: int,
        longest: int,
        beside: Iterable[Kernel] = (),
    ) -> None:
        self.plan, self.size = plan, batch_size
        self._instance = Instance(plan, sizes, threads, prepared=False)
        self.nbytes = self._instance.nbytes
        self._settings = {node: np.zeros(longest) for node in settings}
        self._numbers = np.arange(longest)
        self.outputs = [
            np.zeros((longest, *self._instance.arrays[n].shape), n.dtype)
            for n in plan.program.outputs
        ]
        self._read: tuple[object, ...] = ()  # what the tasks have addresses of
        # gathers of data, whose addresses are set anew
        self._fetching: list[tuple[Node, Task]] = []
        self.tasks = self._instance.tasks(threads, [*self._carriers(data), *beside])
        phases = [p for number in range(plan.phase_count) for p in self.tasks.phase(number)]
        gathers = self._gathers(data, self.tasks.useful_threads)
        self.phases = [phase for phase in (gathers, *phases, self._keeps()) if phase]
        self._calls = self.tasks.calls

    def _carriers(self, data: Mapping[Node, Array]) -> list[Kernel]:
        """The kernels that bring batches and settings in, and take outputs away."""
        rows = [Gather(rows.dtype.name, node.dtype.name) for node, rows in data.items()]
        numbers = [Gather("float64", node.dtype.name) for node in self._settings]
        return [*rows, *numbers, *(Keep(kept.dtype.name) for kept in self.outputs)]

    def _gathers(self, data: Mapping[Node, Array], threads: int) -> list[Task]:
        """Rows of the data in the order of the epoch, and the settings in that of the batches."""
        arrays, settings = self._instance.arrays, list[Task]()
        for node, source in data.items():
            if node in arrays:  # else nothing is computed from it
                self._fetching += [(node, t) for t in self._gather(node, source, threads)]
        for node, values in self._settings.items():
            if node not in arrays:
                continue
            settings.append(
                task_of(
                    Gather("float64", node.dtype.name), row0=0, row1=1, columns=1, batch_rows=1,
                    source=values, source_row=1, order=self._numbers,
                    result=arrays[node], result_row=1,
                )
            )  # fmt: skip
        return [*(task for _, task in self._fetching), *settings]

    def _gather(self, node: Node, source: Array, threads: int) -> list[Task]:
        """Parts of a batch of one array; `point` says where the data and the order lie."""
        columns = source[:1].size
        return [
            task_of(
                Gather(source.dtype.name, node.dtype.name), row0=start, row1=end, columns=columns,
                batch_rows=self.size, source=0, source_row=columns, order=0,
                result=self._instance.arrays[node], result_row=columns,
            )
            for start, end in even_parts(self.size, columns, threads)
        ]  # fmt: skip

    def _keeps(self) -> list[Task]:
        """Outputs into their rows, and new values that were not written in place into variables."""
        pairs = [
            (self._instance.arrays[node], kept, kept[0].size)
            for node, kept in zip(self.plan.program.outputs, self.outputs, strict=True)
        ]
        pairs += [
            (self._instance.arrays[value], variable_memory(target), 0)
            for target, value in self.plan.program.updates
            if value not in self.plan.in_place
        ]
        return [
            task_of(
                Keep(source.dtype.name), column0=0, column1=source.size, step=step, source=source,
                result=result,
            )
            for source, result, step in pairs
        ]  # fmt: skip

    @property
    def memory(self) -> list[Array]:
        """All that tasks write, and what differs from model to model; see `LegTemplate` for the order."""
        arrays, plan = self._instance.arrays, self.plan
        placeholders = [
            arrays[n] for n in plan.program.nodes() if n.op is PLACEHOLDER if n in arrays
        ]
        variables = [variable_memory(node) for node in plan.variables]
        rest = [*self._settings.values(), *self.outputs, self.tasks.faults]
        return [self._instance.arena, *placeholders, *variables, *rest]

    @property
    def shared(self) -> list[Array]:
        """What tasks only read, the same for all models that are built alike."""
        leaves = (VARIABLE, PLACEHOLDER)
        found = [
            array
            for node, array in self._instance.arrays.items()
            if not isinstance(node.op, Op) and node.op not in leaves
        ]
        held = [x for task in self.in_order for x in task.holds if isinstance(x, np.ndarray)]
        return [self._numbers, *found, *(x for x in held if x is not self.tasks.faults)]

    @property
    def in_order(self) -> list[Task]:
        """The tasks of a batch for one thread."""
        return [task for phase in self.phases for task in phase]

    @property
    def fetching(self) -> list[tuple[Node, Task]]:
        """The tasks whose words `SOURCE` and `ORDER` are set before each run, and for which data."""
        return self._fetching

    def point(
        self, data: Mapping[Node, Array], order: Array, settings: Mapping[Node, Array]
    ) -> None:
        """Say what the next batches, from number 0 on, are made of.

        Args:
            data: what rows are taken from: arrays of the shapes and dtypes that this was made for.
            order: row numbers, a whole number of batches and at most `longest`.
            settings: values for each batch.
        """
        order = np.ascontiguousarray(order, np.int64)
        for node, task in self._fetching:
            task.arguments[SOURCE] = data[node].ctypes.data
            task.arguments[ORDER] = order.ctypes.data
        for node, values in settings.items():
            self._settings[node][: len(values)] = values
        self._read = (order, data)
        if self._calls is not None:
            self._calls.begin()

    def release(self) -> None:
        """Let go of the data; before the next batches `point` says what they are made of."""
        self._read = ()

    def found(self, count: int) -> list[Array]:
        """The outputs of the first batches, copied."""
        return [kept[:count].copy() for kept in self.outputs]

    def went_well(self) -> bool:
        """Whether no kernel and no function of NumPy failed; what an interruption raised is raised again."""
        if not self.tasks.faults[0]:
            return True
        try:
            return self.tasks.went_well()
        except Exception:  # the batches are run one by one then, and the one that fails says why
            return False


def can_slice(runner: NativeRunner, data: Mapping[Node, Array], settings: Sequence[Node]) -> bool:
    """Whether a plan can run on its own: data of known types, new values in memory of their own."""
    fed = {*data, *settings}
    return (
        runner.runs_alone
        and all(n in fed for n in runner.plan.placeholders)
        and all(_is_known(s.dtype) and s.flags.c_contiguous and s.size for s in data.values())
    )


@cache  # to ask NumPy for a name takes two microseconds
def _is_known(dtype: np.dtype[Any]) -> bool:
    return dtype.isnative and dtype.name in DTYPES


LONGEST = 4096  # batches of a leg in one go, for which there is room to keep outputs and settings


@dataclass(frozen=True)
class Wanted:
    """A leg that somebody shall have.

    Attributes:
        runner: of the plan.
        data: what batches are taken from, for each placeholder.
        settings: scalar placeholders whose value may change from batch to batch.
        sizes: of symbolic dimensions.
        batch_size: rows of a batch.
        threads: how many run it.
    """

    runner: NativeRunner
    data: Mapping[Node, Array]
    settings: Sequence[Node]
    sizes: Mapping[str, int]
    batch_size: int
    threads: int = 1

    @property
    def looks(self) -> tuple[Any, ...]:
        """Equal where plans that are alike have equal tasks."""
        rows = tuple((a.dtype, a.shape[1:]) for a in self.data.values())
        sizes = tuple(sorted(self.sizes.items()))
        return (self.batch_size, sizes, rows, len(self.settings), self.threads)


@dataclass(frozen=True)
class LegTemplate:
    """What a leg is copied from.

    Attributes:
        image: its tasks.
        own: bytes of each piece of memory that a copy makes itself, before and behind its variables.
        outputs: shapes and dtypes.
        fetching: number of the data, and the places of the words that say where it lies and in which order.
        nbytes: of the values of a batch.
        scratch_bytes: that a thread needs.
        useful_threads: how many have something to gain.
    """

    image: Image
    own: tuple[list[int], list[int]]
    outputs: list[tuple[tuple[int, ...], np.dtype[Any]]]
    fetching: list[tuple[int, int, int]]
    nbytes: int
    scratch_bytes: int
    useful_threads: int


Places = Callable[[Node], Piece]


def known_places() -> Places:
    """Where variables lie, each looked up once; for as long as nobody moves one."""
    return cache(lambda node: addressed(variable_memory(node)))


class CopiedLeg:
    """A leg: made, or copied from that of a model that is built alike.

    Args:
        wanted: what it is to do.
        beside: kernels that are needed too; compiled together they take less time.
        places: where variables lie, of several legs that have some in common.

    Attributes:
        table: the tasks of a batch.
        nbytes: memory of the values of a batch.
        scratch_bytes: scratch memory that each thread needs.
        useful_threads: how many have something to gain.
        size: rows of a batch.
        template: what it, and others, are copied from; None where its tasks cannot be copied.
    """

    def __init__(
        self, wanted: Wanted, beside: Sequence[Kernel] = (), places: Places | None = None
    ) -> None:
        self.table: Table
        self.nbytes: int
        self.scratch_bytes: int
        self.useful_threads: int
        self.size = wanted.batch_size
        self._nodes = list(wanted.data), list(wanted.settings)
        plan = wanted.runner.plan
        self._made: Leg | None = None
        template = kept_image(plan.alike, wanted.looks)
        if template is None:
            template = self._make(wanted, beside)
        self.template: LegTemplate | None = template
        if template is None:
            assert self._made is not None
            leg = self._made
            self.table = table_of(leg.phases)
            self.nbytes, self.scratch_bytes = leg.nbytes, leg.tasks.scratch_bytes
            self.useful_threads = leg.tasks.useful_threads
            return
        self._made = None
        self.nbytes, self.scratch_bytes = template.nbytes, template.scratch_bytes
        self.useful_threads = template.useful_threads
        before = len(template.own[0])
        pieces = pieces_of([size for sizes in template.own for size in sizes])
        first, last = pieces[:before], pieces[before:]
        self._pieces = first, last
        count, kinds = len(wanted.settings), template.outputs
        self._settings = [piece.view(np.float64) for piece, _ in last[:count]]
        self._outputs = [
            piece.view(dtype).reshape(shape)
            for (piece, _), (shape, dtype) in zip(last[count:-1], kinds, strict=True)
        ]
        self._faults = last[-1][0].view(np.int64)
        place = known_places() if places is None else places
        variables = [place(node) for node in plan.variables]
        self.table, self._words = template.image.over([*first, *variables, *last])
        self._read: tuple[object, ...] = ()  # what words are addresses of

    def _make(self, wanted: Wanted, beside: Sequence[Kernel]) -> LegTemplate | None:
        """Make the tasks; what copies are made from, where that can be."""
        plan, how = wanted.runner.plan, (wanted.batch_size, wanted.threads, LONGEST, beside)
        self._made = leg = Leg(plan, wanted.data, wanted.settings, wanted.sizes, *how)
        if not leg.tasks.can_be_copied:
            return None
        return keep_image(plan.alike, wanted.looks, lambda: self._template_of(leg, wanted))

    def _template_of(self, leg: Leg, wanted: Wanted) -> LegTemplate | None:
        """What copies of a leg are made from; None where a task cannot be copied."""
        tasks, memory = leg.in_order, leg.memory
        starts = np.cumsum([0, *(len(task.arguments) for task in tasks)])
        places = {id(task): int(start) for task, start in zip(tasks, starts, strict=False)}
        fetching = [
            (self._nodes[0].index(node), places[id(task)] + SOURCE, places[id(task)] + ORDER)
            for node, task in leg.fetching
        ]
        words = np.array([w for _, *pair in fetching for w in pair], np.int64)
        image = image_of(leg.phases, memory, leg.shared, words)
        if image is None:
            return None
        behind = len(wanted.settings) + len(leg.outputs) + 1
        count = len(leg.plan.variables)
        sizes = [piece.nbytes for piece in memory]
        own = sizes[: len(sizes) - behind - count], sizes[len(sizes) - behind :]
        outputs = [(a.shape, a.dtype) for a in leg.outputs]
        needs = leg.nbytes, leg.tasks.scratch_bytes, leg.tasks.useful_threads
        return LegTemplate(image, own, outputs, fetching, *needs)

    @property
    def is_copied(self) -> bool:
        """Whether its tasks are copied ones."""
        return self._made is None

    def forget(self) -> None:
        """Hold no memory of variables; before the next batches there is `go_on`."""
        Image.forget(self.table)

    def go_on(self, variables: Sequence[Node]) -> None:
        """Be a leg over other variables, in the order of `NativePlan.variables`; it was copied."""
        assert self.template is not None
        first, last = self._pieces
        place = known_places()
        self.template.image.go_on(self.table, [*first, *map(place, variables), *last])

    def point(self, data: Sequence[Array], order: Array, settings: Mapping[Node, Array]) -> None:
        """Say what the next batches, from number 0 on, are made of; see `Leg.point`."""
        nodes, names = self._nodes
        if self._made is not None:
            self._made.point(dict(zip(nodes, data, strict=True)), order, settings)
            return
        order = np.ascontiguousarray(order, np.int64)
        assert self.template is not None
        for number, source, place in self.template.fetching:
            self._words[source] = data[number].ctypes.data
            self._words[place] = order.ctypes.data
        for node, held in zip(names, self._settings, strict=True):
            if node in settings:
                held[: len(settings[node])] = settings[node]
        self._read = (order, data)

    def release(self) -> None:
        """Let go of the data; before the next batches `point` says what they are made of."""
        if self._made is not None:
            self._made.release()
        else:
            self._read = ()

    def found(self, count: int) -> list[Array]:
        """The outputs of the first batches, copied."""
        if self._made is not None:
            return self._made.found(count)
        return [kept[:count].copy() for kept in self._outputs]

    def went_well(self) -> bool:
        """Whether no kernel and no function of NumPy failed."""
        if self._made is not None:
            return self._made.went_well()
        well, self._faults[0] = not self._faults[0], 0
        return well
