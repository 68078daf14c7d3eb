"""A NativePlan laid out on a device for given sizes, and its graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from magmadnn.backends.cuda import device_engine
from magmadnn.backends.cuda.engine import PRODUCT_WORKSPACE, Engine, Graph
from magmadnn.compiler.cuda.text.finite import look_within
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.draft import Work
from magmadnn.graph.node import VARIABLE, Node
from magmadnn.graph.op import Array
from magmadnn.memory import Kind, MemoryManager
from magmadnn.memory.dtypes import is_floating
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime.agreement import ALONE, Agreement
from magmadnn.runtime.cuda.code import Specialised, specialised
from magmadnn.runtime.cuda.data.copies import CopiesAtOnce
from magmadnn.runtime.cuda.layout import Layout, comes_to
from magmadnn.runtime.cuda.schedule.hazards import Span
from magmadnn.runtime.cuda.schedule.launch import Item
from magmadnn.runtime.cuda.schedule.launches import Items, finite_items, may_fault
from magmadnn.runtime.cuda.schedule.listing import listing
from magmadnn.runtime.cuda.schedule.megakernel import whole
from magmadnn.runtime.variables import is_finite, tensor_of

from .graphs import cut_at_calls, graph_of, merged
from .memory_needs import PRODUCTS_AT_ONCE
from .relocation import Relocation

Action = Callable[[], None]
Limits = tuple[tuple[Node, int], ...]  # variables that hold integers, and what they are below


class Instance:
    """A plan laid out on a device for given sizes; `elsewhere` has addresses of values that others hold.

    Attributes:
        fresh: updates whose new values do not lie in their variables.
    """

    def __init__(
        self,
        plan: NativePlan,
        sizes: Mapping[str, int],
        device: int,
        tensor_float: bool,
        elsewhere: Mapping[Node, int] | None = None,
    ) -> None:
        self.plan = plan
        self.layout = Layout(plan, sizes, device, elsewhere)
        self.engine = device_engine(device)
        self.items = Items(self.layout, self.engine, partial(workspaces_of, device), tensor_float)
        self._faulty = may_fault(plan)
        self._coming: list[Specialised] = []  # in whose place several launches run
        self._look: Graph | None = None
        self._before: dict[Node, MemoryManager] = {}
        self._at_once: tuple[CopiesAtOnce, list[int]] | None = None
        self._addresses: tuple[int, ...] | None = None
        self._spans: list[Span] = []  # of variables, as graphs know them
        self._told: dict[Node, bytes] = {}  # scalars, as `update` has written them last
        # graphs and calls: until outputs are known, and from then on
        self._computing: list[Graph] = []
        self._updating: list[Graph] = []
        self._limits: tuple[tuple[int, ...], Limits, Graph] | None = None
        self._variables = plan.variables
        self.fresh = [(t, v) for t, v in plan.program.updates if v not in plan.in_place]
        floats = [v for _, v in plan.program.updates if is_floating(v.dtype)]
        self._halves = [v for v in floats if v.dtype.name not in ("float32", "float64")]

    def prepare(self) -> None:
        """Compile, choose algorithms and make graphs now, in place of at the first run."""
        self._prepare(self.layout.begin())

    def _prepare(self, addresses: tuple[int, ...]) -> None:
        """Graphs and calls in order; anew where a variable has moved, or a kernel was compiled."""
        if addresses == self._addresses and not self.can_specialise():
            return
        if self._has_moved():
            self._addresses = addresses
            return
        self._coming.clear()
        self._addresses, self._computing, self._updating, self._look = None, [], [], None
        for is_update, works in itertools.groupby(
            self.plan.work, lambda work: work.phase >= self.plan.checked
        ):
            graphs = self._updating if is_update else self._computing
            graphs.append(self._graph(self.launches(list(works))))
        self._addresses = addresses

    def _has_moved(self) -> bool:
        """Whether graphs are as they were but for addresses; those of steps of one kernel can be."""
        before, self._spans = self._spans, list(map(self.layout.variable_span, self._variables))
        can = self.can_wait and self._addresses is not None and not self.can_specialise()
        moves = Relocation.between(before, self._spans) if can else None
        if moves is None:
            return False
        look = [] if self._look is None else [self._look]
        found = moves.graphs([*self._computing, *self._updating, *look])
        if found is None:
            return False
        first, last = len(self._computing), len(self._computing) + len(self._updating)
        self._computing, self._updating = found[:first], found[first:last]
        self._look = found[last] if look else None
        return True

    @property
    def can_wait(self) -> bool:
        """Whether variables that are built alike may take the place of these: its graphs are small."""
        return self.items.small

    def forget(self) -> None:
        """Hold no variable's memory any more: the next run finds where they lie."""
        self.layout.forget()
        self._limits = None

    def launches(self, works: Sequence[Work]) -> list[Item]:
        """The launches of some steps; of a small plan one kernel, once that is compiled."""
        items = [item for work in works for item in self.items.of(work)]
        if not self.items.small:
            return items
        one = whole(items)
        kernel = specialised(self.engine, [one.variant])
        if kernel.is_there(1):
            return [Item(one, (), ())]
        self._coming.append(kernel)
        return [item for work in works for item in self.items.of(work, any_size=True)]

    def _graph(self, items: Sequence[Item]) -> Graph:
        """A graph of launches; those of small plans stay as they are, so that a new size compiles nothing."""
        return graph_of(self.engine, items, merges=not self.items.small)

    def all_launches(self) -> list[Item]:
        """Those of a whole run, without graphs around them."""
        self._coming.clear()
        return self.launches(self.plan.work)

    def can_specialise(self) -> bool:
        """Whether a kernel for given sizes can take the place of several launches from now on."""
        return bool(self._coming) and any(kernel.is_there(1) for kernel in self._coming)

    def listing(self) -> str:
        """The launches of a run, graph by graph, with what each waits for."""
        self.layout.begin()
        texts = list[str]()
        waiting = [item for work in self.plan.work for item in self.items.of(work)]
        one = [Item(whole(waiting), (), ())] if self.items.small else waiting
        for part in cut_at_calls(one):
            made = merged(part, self.items.chip)
            texts.append(listing(made.items, made.after))
        return "\n".join(texts)

    def run(
        self, fed: Mapping[Node, Array], guard: bool, workers: Agreement = ALONE
    ) -> list[Array] | None:
        """The outputs, as arrays of their own, after every variable got its new value.

        None where a row was asked for that is not there, and, with `guard`, where an output or a new value is
        NaN or infinite, here or at one of `workers`; no variable is changed then.
        """
        layout = self.layout
        well = self._compute(fed)
        outputs = [layout.read(node) for node in self.plan.program.outputs]
        if guard:
            well = well and all(map(is_finite, outputs))
        if not workers.all(well, "outputs are finite"):
            return None
        if guard:
            self._remember()
        for update in self._updating:
            update.launch()
        if guard and not workers.all(self._is_finite(), "new values are finite"):
            self.restore()
            return None
        self._write()
        return outputs

    def _compute(self, fed: Mapping[Node, Array | OnDevice]) -> bool:
        """Compute outputs, and whatever may raise; whether all went well."""
        layout = self.layout
        self._prepare(layout.begin())
        self._told.clear()
        for node, array in fed.items():
            if node in layout.frames:
                layout.write(node, array)
        for compute in self._computing:
            compute.launch()
        return not (self._faulty and self.plan.checked and layout.take_faults())

    def run_into(self, fed: Mapping[Node, Array | OnDevice], goals: Sequence[int]) -> bool:
        """A run whose outputs are copied to addresses on the device, and then variables are updated.

        Nothing comes to the host. False where something is wrong: nothing is copied or updated then.
        """
        if not self._compute(fed):
            return False
        layout, bases = self.layout, self.plan.layouts.bases
        for node, goal in zip(self.plan.program.outputs, goals, strict=True):
            base = bases[node]
            layout.copy_within(goal, layout.base_address(base), layout.frames[base].nbytes)
        if self.plan.program.updates:
            for update in self._updating:
                update.launch()
            self._write()
        return True

    def update(self, fed: Mapping[Node, Array], then: Action) -> bool:
        """A guarded run whose outputs nobody reads, for plans that `can_update`.

        Args:
            fed: scalars, of which those are copied that are not what they were.
            then: gives the device what comes behind the update, before it is known whether that is finite.

        Returns:
            whether all new values are finite, where all that was given is done; else variables are as before.
        """
        layout = self.layout
        self._prepare(layout.begin())
        for node, array in fed.items():
            if node in layout.frames and self._told.get(node) != (told := array.tobytes()):
                layout.write(node, array)
                self._told[node] = told
        for compute in self._computing:
            compute.launch()
        self._remember_at_once()
        for update in self._updating:
            update.launch()
        self._launch_look()
        layout.written()
        then()
        if layout.take_faults():
            self.restore()
            return False
        return True

    def are_within(self, limits: Limits) -> bool:
        """Whether integers in variables are known to be at least 0 and below a limit."""
        addresses = tuple(self.layout.variable(node) for node, _ in limits)
        if self._limits is None or self._limits[:2] != (addresses, limits):
            if not all(self.layout.is_there(node) for node, _ in limits):
                return False
            word = self.layout.faults
            launches = [
                look_within(word, node.dtype.name, tensor_of(node).size, address, end)
                for (node, end), address in zip(limits, addresses, strict=True)
            ]
            # beside each other: all that any of them writes is the same
            graph = self._graph([Item(launch, (), ()) for launch in launches])
            self._limits = addresses, limits, graph
        self._limits[2].launch()
        return not self.layout.take_faults()

    @property
    def can_update(self) -> bool:
        """Whether all new values lie in their variables, and are looked at there, and scalars are all that is
        fed.
        """
        fed = self.plan.program.placeholders
        return not (self.fresh or self._halves or self._faulty or any(n.shape for n in fed))

    def _remember(self) -> None:
        """Copy what is about to be written over."""
        layout = self.layout
        for value in self.plan.in_place:
            start, end = layout.span(value)
            if value not in self._before:
                self._before[value] = MemoryManager(
                    end - start, np.uint8, Kind.DEVICE, layout.device
                )
            layout.copy_within(self._before[value].device_pointer(write=True), start, end - start)

    def _remember_at_once(self) -> None:
        """The same by one launch, for plans that are run often."""
        layout = self.layout
        if self._at_once is None:
            self._remember()
            bases = [self.plan.layouts.bases[value] for value in self.plan.in_place]
            arrays = [(base.dtype.name, layout.frames[base].size) for base in bases]
            if bases and CopiesAtOnce.can(arrays):
                goals = [one.device_pointer(write=True) for one in self._before.values()]
                self._at_once = CopiesAtOnce(arrays, layout.device), goals
            return
        copies, goals = self._at_once
        copies.begin([layout.span(value)[0] for value in self._before], goals)

    def restore(self) -> None:
        """Take the last update back."""
        layout = self.layout
        for value, before in self._before.items():
            start, end = layout.span(value)
            layout.copy_within(start, before.device_pointer(), end - start)
        layout.written()

    def _launch_look(self) -> None:
        """Begin to look whether a new value is NaN or infinite."""
        layout = self.layout
        if self._look is None:
            word = (layout.faults, layout.faults + 8)
            new = [value for _, value in self.plan.program.updates]
            items = finite_items(word, [(v.dtype.name, layout.span(v)) for v in new])
            self._look = self._graph(items)
        self._look.launch()

    def _is_finite(self) -> bool:
        """Whether no new value is NaN or infinite."""
        layout = self.layout
        self._launch_look()
        return not layout.take_faults() and all(is_finite(layout.read(v)) for v in self._halves)

    def _write(self) -> None:
        """Give variables the new values that do not lie in their memory already."""
        bases = self.plan.layouts.bases
        moved = [(t, self.layout.read(v)) for t, v in self.fresh if not self.can_copy(t, v)]
        for target, value in self.fresh:
            if self.can_copy(target, value):
                nbytes = self.layout.frames[bases[value]].nbytes
                source = self.layout.base_address(bases[value])
                self.layout.copy_within(self.layout.variable(target), source, nbytes)
                tensor_of(target).memory.device_pointer(write=True)
        self.layout.written()
        for target, array in moved:
            target.value.write(array)

    def can_copy(self, target: Node, value: Node) -> bool:
        """Whether a new value is one block, of nobody else's, that can be copied on the device."""
        base = self.plan.layouts.bases[value]
        own = base.op is not VARIABLE and base not in self.plan.in_place
        whole = own and self.plan.layouts.is_whole(value)
        return whole and comes_to(tensor_of(target), self.layout.device)


_workspaces: dict[Engine, list[MemoryManager]] = {}


def workspaces_of(device: int) -> list[Span]:
    """Pieces of scratch memory for products by the device's library, each for one at a time."""
    engine = device_engine(device)
    if engine not in _workspaces:
        _workspaces[engine] = [
            MemoryManager(PRODUCT_WORKSPACE, np.uint8, Kind.DEVICE, device)
            for _ in range(PRODUCTS_AT_ONCE)
        ]
    starts = [memory.device_pointer(write=True) for memory in _workspaces[engine]]
    return [(start, start + PRODUCT_WORKSPACE) for start in starts]
