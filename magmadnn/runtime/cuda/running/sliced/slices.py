"""Many batches in one go on a device: data, order and settings lie there, steps are one graph.

A graph holds several steps. What depends on the number of the batch (which rows, which settings, where
outputs are kept) is looked up in memory by a number that the graph itself counts on, so a graph that is
launched again goes on where it ended. Steps use two sets of memory in turn, so that the beginning of a
step runs beside the end of the one before; one set where that is large (`Layout.sets`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from magmadnn.backends.cuda.engine import Graph
from magmadnn.compiler.cuda.fused.step_ends import FetchPart, advance, fetch, keep_all
from magmadnn.compiler.cuda.text.variant import Variant
from magmadnn.errors import DeviceError
from magmadnn.graph.node import VARIABLE, Node
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime.agreement import agreement
from magmadnn.runtime.cuda.code import Specialised, specialised
from magmadnn.runtime.cuda.data.arrays import USUAL, look_at
from magmadnn.runtime.cuda.data.block import Block
from magmadnn.runtime.cuda.data.data import Data
from magmadnn.runtime.cuda.data.overlapped_upload import OverlappedUpload
from magmadnn.runtime.cuda.data.pending import BufferSlot, PendingSlice, slots_for
from magmadnn.runtime.cuda.data.staging import Staging
from magmadnn.runtime.cuda.data.streamed_upload import DeviceRing, StreamedUpload
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.running.graphs import graphs_of, variants_of
from magmadnn.runtime.cuda.running.instance import workspaces_of
from magmadnn.runtime.cuda.running.relocation import Relocation
from magmadnn.runtime.cuda.running.runner import CudaRunner
from magmadnn.runtime.cuda.schedule.copies import copies
from magmadnn.runtime.cuda.schedule.cuts import LONGEST, is_cut, most_steps
from magmadnn.runtime.cuda.schedule.hazards import Span
from magmadnn.runtime.cuda.schedule.launch import Item
from magmadnn.runtime.cuda.schedule.launches import Items, finite_items
from magmadnn.runtime.cuda.schedule.megakernel import whole
from magmadnn.runtime.variables import tensor_of

from .known_variables import KnownVariables
from .pattern import Meaning, Pattern
from .picked_rows import picked_rows
from .sliced_plans import fetched_rounded

_SIDES = 2
# graphs that are no steps: of what variables were before the slice of a side, and of what they are
_REMEMBER, _LOOK = tuple(f"remember {number}" for number in range(_SIDES)), "look"
_HEAD = 16  # bytes, of two integers


class CudaSlices:
    """A plan that runs slices of batches of one size on a device.

    Args:
        runner: the plan and the device.
        data: for each placeholder of data, arrays like those that batches will be taken from.
        settings: placeholders of known size whose values may change from batch to batch.
        sizes: of symbolic dimensions.
        batch_size: rows of a batch.
        ring_bytes: of a ring that rows of all data pass through; None where they lie on the device.
        most_rows: of an order; None for as many as data has.
        long_steps: whether steps are so long that short graphs, which are made sooner, run as fast.

    Attributes:
        sizes: as given.
    """

    def __init__(
        self,
        runner: CudaRunner,
        data: Mapping[Node, Array | OnDevice],
        settings: Sequence[Node],
        sizes: Mapping[str, int],
        batch_size: int,
        ring_bytes: int | None = None,
        most_rows: int | None = None,
        long_steps: bool = False,
    ) -> None:
        self.plan, self._engine, self._size = runner.plan, runner.engine, batch_size
        self.sizes = dict(sizes)
        self._most_steps = most_steps(runner.plan, sizes, long_steps)
        device = runner.device
        first = Layout(runner.plan, sizes, device)
        self._layouts, self._items = [first], [self._items_of(first, runner)]
        self._small = self._items[0].small
        # a small plan's steps as one kernel, and what comes before and after; whether those are there
        self._special: Specialised | None = None
        self._is_specialised = False
        if not self._small and first.sets > 1:
            self._layouts.append(Layout(runner.plan, sizes, device))
            self._items.append(self._items_of(self._layouts[1], runner))
        self._dtypes = {n: array.dtype.name for n, array in data.items() if n in first.frames}
        self._ring: DeviceRing | None = None
        if ring_bytes is not None:
            like: list[Any] = [data[node] for node in self._dtypes]  # all on the host
            self._ring = DeviceRing(like, batch_size, ring_bytes, device, self._most_steps)
        self.data = Data(list(self._dtypes), device, self._ring)
        self._settings = {
            n: Block(8 * LONGEST * first.frames[n].size, device)
            for n in settings
            if n in first.frames
        }
        self._sent: dict[Node, bytes] = {}  # what settings are there
        # batches before, and in all; then the order of rows
        rows = min(most_rows or len(next(iter(data.values()))), LONGEST * batch_size)
        self._first = Block(_HEAD + 8 * rows, device)
        self._order = self._first.address + _HEAD
        if self._ring is not None:
            first.copy_in(self._order, self._ring.goals(rows))
        places = [self._order, *(block.address for block in self._settings.values())]
        self._places = Block(8 * len(places), device)  # of the order and the settings
        first.copy_in(self._places.address, np.array(places, np.int64))
        self._rounded = fetched_rounded(runner.plan, self._dtypes)
        self._outputs = [
            (node, first.frames[node], Block(LONGEST * first.frames[node].nbytes, device))
            for node in runner.plan.program.outputs
        ]
        sources = [n for n in runner.plan.program.nodes() if n.op is VARIABLE]
        self._targets = [target for target, _ in runner.plan.program.updates]
        self._variables = KnownVariables(sources, self._targets)
        self._sides = [BufferSlot(0, self._targets, device)]
        self._most_flights = slots_for(sum(tensor_of(target).nbytes for target in self._targets))
        self._flights: list[PendingSlice] = []  # in order
        self._graphs: dict[int | str, Graph] = {}  # by their steps, or a name
        self._is_aligned = True  # as graphs were made for it

    def _items_of(self, layout: Layout, runner: CudaRunner) -> Items:
        return Items(
            layout, self._engine, partial(workspaces_of, runner.device), runner.tensor_float
        )

    def choose(self) -> None:
        """Choose now which algorithms libraries take, in place of when graphs are made."""
        for step in range(0 if self._small else len(self._layouts)):
            self._step(step)

    # --- graphs -----------------------------------------------------------------------------------

    def _graph(self, *wanted: int | str) -> Graph:
        """The first of some graphs; those that are not there are made, their kernels compiled together."""
        missing = [what for what in wanted if what not in self._graphs]
        if missing:
            launches = [self._launches(what) for what in missing]
            merges = self._is_specialised or not self._small
            made = graphs_of(self._engine, launches, USUAL, merges)
            self._graphs.update(zip(missing, made, strict=True))
        return self._graphs[wanted[0]]

    def _launches(self, what: int | str) -> list[Item]:
        """The launches of a graph; those of a small plan's steps are a kernel that counts itself."""
        if what in _REMEMBER:
            return self._remembered(self._sides[_REMEMBER.index(what)])
        if what == _LOOK:
            return self._looked_at()
        assert isinstance(what, int)
        if self._is_specialised:
            return [Item(whole(self._step(0), self._first.address, what), (), ())]
        items = [item for step in range(what) for item in self._step(step, self._small)]
        return [*items, Item(advance(self._first.address, what), (), (self._first.span,))]

    def _is_one_kernel(self, steps: int) -> bool:
        """Whether so many steps that come next are one kernel: of a small plan, once it is compiled."""
        if self._small and not self._is_specialised:
            if self._special is None:
                variants: list[Variant] = [whole(self._step(0), self._first.address, 1).variant]
                for name in (_REMEMBER[0], _LOOK):
                    variants += variants_of(self._engine, self._launches(name))
                self._special = specialised(self._engine, variants)
            self._is_specialised = self._special.is_there(steps)
            if self._is_specialised:
                self._graphs.clear()
        return self._is_specialised

    def _step(self, step: int, any_size: bool = False) -> list[Item]:
        """The launches of one step: fetch a batch, compute, keep outputs, write variables."""
        turn = step % len(self._layouts)
        layout, items = self._layouts[turn], self._items[turn]
        work = (w for w in self.plan.work if w not in self._rounded.values())
        made = [item for w in work for item in items.of(w, any_size)]
        made += [self._keep(layout, step), *self._copies(layout)]
        sources = {
            node: self.data.entry(node)
            for node, dtype in self._dtypes.items()
            if dtype == node.dtype.name and self.data.is_aligned
        }
        how = sources, self._places.address, self._first.span, step
        made, without = picked_rows(made, layout, *how)
        return [self._fetch(layout, step, without), *made]

    def _fetch(self, layout: Layout, step: int, without: Collection[Node]) -> Item:
        parts, reads, writes = [], [self._first.span], []
        order, *settings = range(self._places.address, self._places.span[1], 8)
        for node, dtype in self._dtypes.items():
            if node in without:
                continue
            rows = self._size
            columns = layout.frames[node].size // rows
            goal = self._rounded[node].needed[0] if node in self._rounded else node
            place = (self.data.entry(node), order, layout.base_address(goal))
            parts.append((FetchPart(dtype, goal.dtype.name), rows, columns, *place))
            writes.append(layout.span(goal))
        for entry, node in zip(settings, self._settings, strict=True):
            part, count = FetchPart("float64", node.dtype.name), layout.frames[node].size
            parts.append((part, count, 1, entry, 0, layout.base_address(node)))
            writes.append(layout.span(node))
        return Item(fetch(self._first.address, step, parts), tuple(reads), tuple(writes))

    def _keep(self, layout: Layout, step: int) -> Item:
        parts, reads, writes = [], [self._first.span], []
        for node, frame, block in self._outputs:
            parts.append((node.dtype.name, frame.size, layout.address(node), block.address))
            reads.append(layout.span(node))
            # Steps keep in different rows: only those of one place in the graph must keep their order.
            start = block.address + step * frame.nbytes
            writes.append((start, start + max(frame.nbytes, 1)))
        return Item(keep_all(self._first.address, step, parts), tuple(reads), tuple(writes))

    def _copies(self, layout: Layout) -> list[Item]:
        """New values that were not written in place, into their variables."""
        return [
            item
            for target, value in self.plan.program.updates
            if value not in self.plan.in_place
            for item in self._copy(layout, value, layout.address(value), layout.variable(target))
        ]

    def _copy(self, layout: Layout, value: Node, source: int, to: int) -> list[Item]:
        """The launch that copies a value, if it has elements."""
        count = layout.frames[value].size
        return copies(value.dtype.name, count, source, to, self._items[0].chip)

    def _remembered(self, side: BufferSlot) -> list[Item]:
        """The launches that copy what variables hold, to go back to it."""
        written = self._variables.written
        places = zip(self.plan.program.updates, written, side.before, strict=True)
        return [
            item
            for (_, value), address, kept in places
            for item in self._copy(self._layouts[0], value, address, kept.address)
        ]

    def _looked_at(self) -> list[Item]:
        """The launches that note a fault where a new value is NaN or infinite."""
        layout = self._layouts[0]
        values = [(v.dtype.name, layout.variable_span(v)) for v in self._targets]
        return finite_items((layout.faults, layout.faults + 8), values)

    def pattern(self) -> Pattern | None:
        """A step as one block does it, for other models of the plan; None where it is several launches."""
        if not self._small:
            return None
        layout, named = self._layouts[0], dict[int, Meaning]()
        for number, address in enumerate(range(self._places.address, self._places.span[1], 8)):
            named[address] = Meaning("entry", number)
        for number, node in enumerate(self._dtypes):
            named[self.data.entry(node)] = Meaning("data", number)
        for number, (_, _, block) in enumerate(self._outputs):
            named[block.address] = Meaning("output", number)
        named[layout.faults] = Meaning("fault", 0)
        for number, node in enumerate(self.plan.variables):
            named[layout.variable(node)] = Meaning("variable", number)
        launch = whole(self._step(0), self._first.address, 1)
        meanings = [named.get(a, Meaning("fixed", a)) for a in launch.arguments[:-2]]
        outputs = [(node.dtype, frame.shape) for node, frame, _ in self._outputs]
        return Pattern(launch, meanings, list(self._dtypes), list(self._settings), outputs)

    def is_there(self) -> bool:
        """Whether kernels can still work on the variables' own memory."""
        return self._variables.come_to(self._layouts[0].device)

    def run(self, order: Array | OnDevice, settings: Mapping[Node, Array]) -> list[Array] | None:
        """Outputs of the batches of these rows, [batches, ...] each.

        Args:
            order: row numbers, a whole number of batches and at most `LONGEST`; those that lie on the device
                are int64.
            settings: values for each batch.

        Returns:
            None where an output or a new value is NaN or infinite, or a row was asked for that is not there;
            all variables are then as before the slice.
        """
        try:
            return self.finish(self.launch(order, settings))
        except BaseException:
            self.abandon()
            raise

    def nothing(self) -> list[Array]:
        """The outputs of no batch."""
        return [np.empty((0, *frame.shape), frame.dtype) for _, frame, _ in self._outputs]

    @property
    def can_launch(self) -> bool:
        """Whether a slice may begin now, while others are on their way."""
        return len(self._flights) < self._most_flights

    def launch(self, order: Array | OnDevice, settings: Mapping[Node, Array]) -> PendingSlice:
        """Begin with a slice; also while the one before is on its way, where it `can_launch`.

        Raises:
            OutOfMemoryError: if there is no room for what two have beside each other; nothing is begun.
        """
        assert self.can_launch
        side, started = self.free_side(), time.perf_counter()
        if not isinstance(order, OnDevice):
            order = order.astype(np.int64, copy=False)
        settings = {node: np.asarray(settings[node], np.float64) for node in self._settings}
        coming = self._launched(side, order, settings)
        count, faults = len(order) // self._size, [layout.faults for layout in self._layouts]
        fetch = side.staging.fetch
        outputs = [
            fetch(block.address, (count, *frame.shape), frame.dtype)
            for _, frame, block in self._outputs
        ]
        words = [fetch(fault, (1,), np.dtype(np.int64)) for fault in faults]
        for target in self._targets:
            tensor_of(target).memory.device_pointer(write=True)
        behind = self._flights[-1].mark if self._flights else None
        marks = self._engine.mark(timed=True), behind
        flight = PendingSlice(order, settings, side, coming, outputs, words, *marks, started)
        self._flights.append(flight)
        return flight

    def finish(self, flight: PendingSlice) -> list[Array] | None:
        """What `run` gives, of the slice that was launched first; where that is None, no other is left."""
        assert flight is self._flights[0]
        found = flight.found()
        workers = agreement()
        is_settled = workers.all(self.data.settle(), "copies of data are as they were")
        if not workers.all(found is not None, "steps are finite"):
            found = None
        if found is None or not is_settled:  # computed with what copies were before
            self._go_back(flight.side)
            return None if is_settled else self.run(flight.order, flight.settings)
        self._flights.pop(0)
        for array in self.data.there:
            array.looks.found()
        return found

    def abandon(self) -> None:
        """Nobody waits for slices any more: the first on its way stays, what is behind it goes back."""
        if len(self._flights) > 1:
            self._go_back(self._flights[1].side)
        self._flights.clear()

    def free_side(self) -> BufferSlot:
        """What the next slice has for itself; raises OutOfMemoryError."""
        number = 1 - self._flights[-1].side.number if self._flights else 0
        if number == len(self._sides):
            self._sides.append(BufferSlot(number, self._targets, self._layouts[0].device))
        return self._sides[number]

    def _launched(
        self, side: BufferSlot, order: Array | OnDevice, settings: Mapping[Node, Array]
    ) -> OverlappedUpload | StreamedUpload:
        """All of a slice, with data as it lies there, but for fetching what it gives."""
        count, staging = len(order) // self._size, side.staging
        coming: OverlappedUpload | StreamedUpload
        if self._ring is None:
            coming = OverlappedUpload(self.data.there, order)
        else:
            assert not isinstance(order, OnDevice)
            coming = StreamedUpload(self._ring, self.data.passing, order)
        self._check_addresses()
        is_one = self._is_one_kernel(count)
        steps = coming.cut(count, is_one, 1 if self._small else self._most_steps)
        staging.begin()
        for node, block in self._settings.items():
            values = settings[node]
            if (text := values.tobytes()) != self._sent.pop(node, None):
                staging.send(block.address, values)
            self._sent[node] = text
        self._graph(_REMEMBER[side.number], steps[0], _LOOK).launch()
        launch_steps = partial(self._launch_behind_rows, coming)
        self._launch_all(
            launch_steps if coming.is_needed else self._launch_steps, steps, order, side
        )
        self._graph(_LOOK).launch()
        for array in self.data.there:
            look_at(array, self._layouts[0].faults)
            if array.copy is not None:
                array.copy.begin()
        return coming

    def _launch_all(
        self,
        launch: Callable[..., None],
        steps: list[int],
        order: Array | OnDevice,
        side: BufferSlot,
    ) -> None:
        """The graphs of a slice. What a call between them raises is a fault: batches run one by one then."""
        try:
            launch(steps, order, side.staging)
        except DeviceError:
            raise
        except Exception:
            if not is_cut(self.plan):
                raise
            self._layouts[0].copy_in(self._layouts[0].faults, np.ones(1, np.int64))
        except BaseException:
            self._restore(side)
            raise

    def _launch_steps(self, steps: list[int], order: Array | OnDevice, staging: Staging) -> None:
        """The graphs of a slice; the first begins at once."""
        if isinstance(order, OnDevice):
            staging.send(self._first.address, np.array([0, len(order) // self._size]))
            self._engine.copy(self._order, order.place, order.nbytes)
            self._graph(*dict.fromkeys(steps))
            for number in steps:
                self._graph(number).launch()
            return
        first, *steps = steps
        rows = (
            first * self._size
        )  # whose numbers are there; others follow while the first steps run
        head = np.array([0, len(order) // self._size])
        staging.send(self._first.address, head, order[:rows])
        self._graph(first).launch()
        staging.send(self._order + 8 * rows, order[rows:])
        for number in steps:
            self._graph(number).launch()

    def _launch_behind_rows(
        self,
        coming: OverlappedUpload | StreamedUpload,
        steps: list[int],
        order: Array,
        staging: Staging,
    ) -> None:
        """The graphs of a slice, each once its rows are there."""
        head = np.array([0, len(order) // self._size])
        staging.send(self._first.address, head, coming.numbers)
        self._graph(*dict.fromkeys(steps))
        ends = [min(end * self._size, len(order)) for end in itertools.accumulate(steps)]
        rows = [last - first for first, last in itertools.pairwise([0, *ends])]
        coming.launch([self._graphs[number] for number in steps], rows)

    def _go_back(self, side: BufferSlot) -> None:
        """Give variables what they held before the slice of a side; it and what is behind it are dropped."""
        sides = [flight.side for flight in self._flights]
        while side in sides:
            sides.pop()
            self._flights.pop().is_dropped = True
        self._restore(side)

    def _restore(self, side: BufferSlot) -> None:
        """Give variables what they held before the slice of a side, once all is done that is on its way."""
        self._engine.wait()
        for layout in self._layouts:
            layout.take_faults()
        for address, kept in zip(self._variables.written, side.before, strict=True):
            self._engine.copy(address, kept.address, kept.nbytes)
        self._engine.wait()

    def _check_addresses(self) -> None:
        """Bring variables to the device; graphs are made anew where one has moved, or data is not aligned."""
        if self.data.is_aligned != self._is_aligned:
            self._is_aligned = self.data.is_aligned
            self._graphs.clear()
        variables = self._variables
        if variables.are_as_known():
            return
        before = variables.spans
        variables.look(self._layouts[0])
        if variables.spans != before and not self._has_moved(before):
            self._graphs.clear()
            self._special, self._is_specialised = None, False  # which depend on alignments

    def _has_moved(self, before: tuple[Span, ...]) -> bool:
        """Whether graphs are as they were but for addresses; those of steps of one kernel can be."""
        can = self._small and before
        moves = Relocation.between(before, self._variables.spans) if can else None
        graphs = None if moves is None else moves.graphs(list(self._graphs.values()))
        if graphs is None:
            return False
        self._graphs = dict(zip(self._graphs, graphs, strict=True))
        return True

    @property
    def can_wait(self) -> bool:
        """Whether variables that are built alike may take the place of these: their graphs are small."""
        return self._small and self._ring is None and not self._flights

    def forget(self) -> None:
        """Hold no variable's memory any more: the next run finds where they lie."""
        self._variables.forget()
        for layout in self._layouts:
            layout.forget()
