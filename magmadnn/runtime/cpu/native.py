"""Running a NativePlan: values are laid out once for each set of sizes, then kernels only run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.llvm.driver.driver import Driver, Task
from magmadnn.compiler.llvm.kernel import scratch
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.compiler.plan.arena import Life
from magmadnn.compiler.plan.frames import frames_of, part_of
from magmadnn.compiler.plan.listing import describe
from magmadnn.compiler.plan.memory import arena_of
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.draft import Work
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph.dim import bind_shape, substitute
from magmadnn.graph.node import (
    CONSTANT,
    PLACEHOLDER,
    VARIABLE,
    Node,
    follows_sizes,
    naming_scope,
    value_for,
)
from magmadnn.graph.op import Array, Op
from magmadnn.memory import MemoryManager
from magmadnn.memory.manager import addressed_by
from magmadnn.runtime.agreement import ALONE, Agreement
from magmadnn.runtime.step_memory import StepMemory, step_memory
from magmadnn.runtime.threads import thread_count
from magmadnn.runtime.variables import is_finite, is_plain, tensor_of, variable_memory

from .copied_tasks import CopiedTasks, copied_tasks, keep_tasks
from .lasting_steps import LastingSteps
from .loops import Loop, carried_memory, loop_kernels, moving_outputs
from .matrices.lapack import blas_beside, is_native
from .tasks import Patch, Tasks

# sets of sizes whose memory is kept: whole and partial batch, validation, prediction
_LAYOUTS_KEPT = 8
# bytes of what is fed: to copy them takes less time than to ask for their address
_MOST_COPIED = 32 << 10

Layout = TypeVar("Layout")
Value = TypeVar("Value")


class Instance:
    """A plan laid out in memory for given sizes.

    Attributes:
        arrays: the array of each value that has memory, or is a view of it.
        arena: memory of all results.
        nbytes: of it.
    """

    def __init__(
        self,
        plan: NativePlan,
        sizes: Mapping[str, int],
        threads: int = 1,
        *,
        prepared: bool = True,
        timed: bool = False,
        held: Mapping[Node, Array] = MappingProxyType({}),
    ) -> None:
        """Lay out; `held`: variables and placeholders that lie elsewhere already."""
        self.plan, self.sizes, self._timed = plan, dict(sizes), timed
        self._threads, self._held = threads, held
        self._drivers: list[tuple[Driver, list[Work]]] = []  # of timed runs: whose tasks they do
        self.arrays: dict[Node, Array] = {}
        self._mirrors: dict[Node, Array] = {}  # of variables that kernels cannot work on
        self._patches: dict[Node, list[Patch]] = {}
        self._before: dict[Node, Array] = {}  # old values of variables, in guarded runs
        self._tasks: Tasks | CopiedTasks | None = None
        self._lay_out()
        self._in_place = {
            n for n, a in self.arrays.items() if n.op is PLACEHOLDER and a.nbytes > _MOST_COPIED
        }
        self._fresh = self._written_last()
        self._memories = self._memories_of_variables()
        self._blas = None if plan.is_own else blas_beside(plan, sizes)
        self._lasting: LastingSteps | None = None  # comes first,
        self._early: Driver | None = None  # computes the outputs,
        self._late: Driver | None = None  # and then the updates
        if prepared:
            self._prepare(threads)

    # --- other variables in place of these --------------------------------------------------------

    @property
    def can_wait(self) -> bool:
        """Whether other variables can take the place of these."""
        return isinstance(self._tasks, CopiedTasks) and not self._mirrors

    def forget(self) -> None:
        """Hold no memory of variables; before the next run there is `go_on`."""
        assert isinstance(self._tasks, CopiedTasks)
        self._tasks.forget()
        self.arrays, self._memories = {}, []

    def go_on(self) -> None:
        """Find out where the variables lie that the plan has now."""
        assert isinstance(self._tasks, CopiedTasks)
        self._lay_out()
        self._memories = self._memories_of_variables()
        self._tasks.go_on(self.plan, self.arena, self.arrays)

    # --- memory -----------------------------------------------------------------------------------

    def _memories_of_variables(self) -> list[tuple[MemoryManager, bool]]:
        """The memory of variables, where kernels work on that, and whether they write it."""
        targets, apart = set(self.plan.changed), {*self._held, *self._mirrors}
        plain = [n for n in self.arrays if n.op is VARIABLE and n not in apart]
        return [(tensor_of(n).memory, n in targets) for n in plain]

    def _lay_out(self) -> None:
        """Arrays for all nodes: leaves, results in one arena, views."""
        memory = arena_of(self.plan, self.sizes)
        self.plan.dump.add("plan_memory", memory.__str__)
        places = {life.node: life for life in memory.lives}
        arena, self.nbytes = scratch(memory.nbytes), memory.nbytes
        self.arena = arena
        self._rooms = {r.node: arena[r.start : r.start + r.nbytes] for r in memory.rooms}
        arrays, bases = self.arrays, self.plan.layouts.bases
        in_place, inside = self.plan.in_place, self.plan.inside
        for node in self.plan.program.nodes():
            if bases[node] is not node:
                if node.inputs[0] in arrays:  # else it is a view of a value that is not stored
                    arrays[node] = self._seen(node, arrays[node.inputs[0]])
            elif node in in_place:
                arrays[node] = arrays[t] if (t := in_place[node]) in arrays else self._leaf(t)
            elif node in arrays:
                continue  # since a part of it is computed before
            elif node in places:
                self._take_place(node, places, arena)
            elif node in inside:
                self._take_part(node, places, arena)
            elif not isinstance(node.op, Op):
                arrays[node] = self._leaf(node)

    def _take_place(self, node: Node, places: Mapping[Node, Life], arena: Array) -> None:
        """The memory of a value that has its own."""
        shape, start = bind_shape(node.shape, self.sizes), places[node].start
        end = start + places[node].nbytes
        self.arrays[node] = arena[start:end].view(node.dtype).reshape(shape)

    def _take_part(self, node: Node, places: Mapping[Node, Life], arena: Array) -> None:
        """The part of a movement's result that a value is; the movement comes later."""
        whole = self.plan.inside[node]
        if whole not in self.arrays:
            (self._take_place if whole in places else self._take_part)(whole, places, arena)
        self.arrays[node] = part_of(self.plan, node, self.arrays[whole], self.sizes)

    def _leaf(self, node: Node) -> Array:
        if node in self._held:
            return self._held[node]
        if node.op is VARIABLE:
            return self._variable(node)
        if follows_sizes(node):
            return value_for(node, self.sizes)
        if node.op is CONSTANT:
            return np.asarray(node.value, order="C")
        shape = bind_shape(node.shape, self.sizes)  # slices gather here, runs copy what is small
        nbytes = int(np.prod(shape, dtype=np.int64)) * node.dtype.itemsize
        return scratch(nbytes).view(node.dtype).reshape(shape)

    def _variable(self, node: Node) -> Array:
        """The memory of a variable; where that is not one contiguous block of the host, a mirror of it."""
        if is_plain(node):
            return variable_memory(node)
        if node not in self._mirrors:
            self._mirrors[node] = np.empty(bind_shape(node.shape, {}), node.dtype)
        return self._mirrors[node]

    def _seen(self, node: Node, source: Array) -> Array:
        return self.plan.layouts.seen(node, source, self.sizes)

    # --- steps ------------------------------------------------------------------------------------

    def _prepare(self, threads: int) -> None:
        """Drivers for what comes before outputs are known, and for what follows."""
        key = ("run", threads, *sorted(self.sizes.items()))
        keeps = bool(self.plan.lasting.work) and not (self._timed or self._held)
        is_plain = not (self._timed or self._held or self._mirrors or keeps)
        tasks = copied_tasks(self.plan, key, self.arena, self.arrays) if is_plain else None
        if tasks is None:
            drivers = self._make(threads, key if is_plain else None)
        else:
            needs = tasks.useful_threads, tasks.scratch_bytes, False
            cache = kernel_cache()
            drivers = [None if t is None else Driver(t, *needs, cache=cache) for t in tasks.tables]
            self._tasks = tasks
        self._early, self._late = drivers
        assert self._tasks is not None
        for patch in self._tasks.patches:
            if patch.node in self._in_place:
                self._patches.setdefault(patch.node, []).append(patch)

    def _make(self, threads: int, key: Any) -> list[Driver | None]:
        """Drivers of tasks that are made; plans that are alike copy them under the key, if there is one."""
        tasks = self._tasks = self.tasks(threads)
        checked, end = self.plan.checked, self.plan.phase_count
        groups = [
            [phase for number in numbers for phase in tasks.phase(number)]
            for numbers in (range(checked), range(checked, end))
        ]
        if key is not None:
            keep_tasks(self.plan, key, self.arena, self.arrays, tasks, groups)
        elif self.plan.lasting.work and not (self._timed or self._held):
            groups[0] = self._without_lasting(tasks, groups[0])
        return [self._driver(tasks, phases) for phases in groups]

    def _without_lasting(self, tasks: Tasks, phases: Sequence[list[Task]]) -> list[list[Task]]:
        """Phases without the steps that are done only if a variable has changed."""
        lasting = self.plan.lasting
        first, rest = [
            [[t for t in p if (tasks.work_of.get(id(t)) in lasting.work) is kept] for p in phases]
            for kept in (True, False)
        ]
        driver = self._driver(tasks, [phase for phase in first if phase])
        assert driver is not None
        variables = [self.arrays[node] for node in lasting.variables]
        self._lasting = LastingSteps(driver, variables, self._threads)
        return [phase for phase in rest if phase]

    def tasks(
        self, threads: int, beside: Iterable[Kernel] = (), moving: Collection[Node] = ()
    ) -> Tasks:
        """The tasks of the plan over this memory; see `Tasks`."""
        function, rooms = self._function, self._rooms
        return Tasks(self.plan, self.arrays, self.sizes, threads, function, beside, rooms, moving)

    def _driver(self, tasks: Tasks, phases: Sequence[Sequence[Task]]) -> Driver | None:
        """What runs these phases."""
        if not any(phases):
            return None
        driver = Driver(
            phases, tasks.useful_threads, tasks.scratch_bytes, self._timed, cache=kernel_cache()
        )
        if self._timed:
            self._drivers.append((driver, [tasks.work_of[id(t)] for p in phases for t in p]))
        return driver

    def ticks(self) -> dict[Work, int]:
        """Of a timed instance: ticks of each step so far, on all threads together; see `ticks_per_second`."""
        total = dict.fromkeys(self.plan.work, 0)
        for driver, works in self._drivers:
            for work, (ticks, _) in zip(works, driver.ticks().tolist(), strict=True):
                total[work] += ticks
        return total

    def spans(self) -> list[tuple[Work, int, int, int]]:
        """Of a timed instance, in the last run: (step, ticks when a part of it began and ended, thread)."""
        found = []
        for driver, works in self._drivers:
            for work, (begin, end, thread) in zip(works, driver.spans().tolist(), strict=True):
                found.append((work, begin, end, thread))
        return found

    def _function(self, work: Work) -> Callable[[], None]:
        """The op's NumPy function, or a loop; operands are looked up at each run, since feeds change."""
        if work.region.kind is RegionKind.LOOP:
            return self._loop(work)
        (node,) = work.region.nodes
        op, arrays = node.op, self.arrays
        assert isinstance(op, Op)
        attributes = {k: substitute(v, self.sizes) for k, v in node.attributes.items()}
        out = arrays[node]
        fed = any(self.plan.layouts.bases[i] in self._in_place for i in node.inputs)

        def call() -> None:
            operands = [self._current(i) if fed else arrays[i] for i in node.inputs]
            with naming_scope(node):
                np.copyto(out, op.forward(operands, attributes, node.dtype))

        return call

    def _loop(self, work: Work) -> Loop:
        """A loop: its step laid out over what is carried, and what is the same in all steps."""
        plan = self.plan.loops[work.region.nodes[0]]
        results = {node.attributes["index"]: self.arrays[node] for node in work.needed}
        held = carried_memory(plan, results, self.sizes)
        for node in plan.body.captured:
            operand = plan.operands[node]
            if self.plan.layouts.bases[operand] not in self._in_place:
                held[node] = self.arrays[operand]
        step = Instance(plan.step, self.sizes, self._threads, prepared=False, held=held)
        tasks = step.tasks(self._threads, loop_kernels(), moving_outputs(plan))
        return Loop(plan, step.arrays, held, tasks, results, self._current)

    def _current(self, node: Node) -> Array:
        """The array of a value now, where it may be a view of something that is fed."""
        if self._in_place and self.plan.layouts.is_view(node):
            return self._seen(node, self._current(node.inputs[0]))
        return self.arrays[node]

    # --- running ----------------------------------------------------------------------------------

    def run(
        self, fed: Mapping[Node, Array], guard: bool, workers: Agreement = ALONE
    ) -> list[Array] | None:
        """The outputs, as arrays of their own, after every variable got its new value.

        None where a row was asked for that is not there, and, with `guard`, where an output or a new value
        is NaN or infinite, here or at one of `workers`; no variable is changed then.
        """
        for node, mirror in self._mirrors.items():
            np.copyto(mirror, node.value.read())
        for memory, is_written in self._memories:
            if memory.device_valid:  # what a device has written comes to the host
                memory.update_host(is_written)
        self._take(fed)
        well = self._lasting is None or self._lasting.run(self._drive)
        well = well and self._drive(self._early)
        outputs = [np.array(self._current(node)) for node in self.plan.program.outputs]
        if guard:
            well = well and all(map(is_finite, outputs))
        if not workers.all(well, "outputs are finite"):
            return None
        if guard:
            self._remember()
        self._drive(self._late)
        if guard and not workers.all(
            all(map(is_finite, self._new_values())), "new values are finite"
        ):
            self._restore()
            return None
        if self._fresh:
            self._write()
        return outputs

    def _drive(self, driver: Driver | None) -> bool:
        """Run a driver; False where a row was asked for that is not there.

        Raises:
            what a function of NumPy raised.
        """
        if driver is not None:
            if isinstance(self._tasks, Tasks) and self._tasks.calls is not None:
                self._tasks.calls.begin()
            if self._blas is None:
                driver.run(0, 1)
            else:
                self._blas.on_one(driver.run, 0, 1)
        return self._tasks is None or self._tasks.went_well()

    def _take(self, fed: Mapping[Node, Array]) -> None:
        """Copy what is small to where kernels expect it; tell them where the rest lies."""
        arrays = self.arrays
        for node, array in fed.items():
            if node not in self._in_place:
                if node in arrays:
                    arrays[node][...] = array
            elif array is not arrays.get(node):  # to ask for an address takes a microsecond
                fits = array.flags.c_contiguous and array.flags.aligned  # as kernels read it
                self._point(node, array if fits else np.require(array, requirements=("C", "A")))

    def _point(self, node: Node, array: Array) -> None:
        """Let kernels read what is fed where it lies; it is kept until something else is fed."""
        if patches := self._patches.get(node):
            self.arrays.pop(node, None)  # what was fed last, should this be interrupted half-way
            address = array.ctypes.data
            for patch in patches:
                patch.block[patch.slot] = address + patch.offset
        self.arrays[node] = array

    def _new_values(self) -> list[Array]:
        return [self._current(value) for _, value in self.plan.program.updates]

    def _remember(self) -> None:
        """Copy what is about to be written over, into memory that is kept for it."""
        for value in self.plan.in_place:
            if value not in self._before:
                self._before[value] = np.empty_like(self.arrays[value])
            np.copyto(self._before[value], self.arrays[value])

    def _restore(self) -> None:
        for value, before in self._before.items():
            np.copyto(self.arrays[value], before)

    def _written_last(self) -> list[tuple[Node, Node | None]]:
        """Variables whose new values do not lie in their memory already; None: they lie in the mirror."""
        held = self.plan.in_place
        found: list[tuple[Node, Node | None]] = [
            (target, value) for target, value in self.plan.program.updates if value not in held
        ]
        return found + [(target, None) for target in held.values() if target in self._mirrors]

    def _write(self) -> None:
        """Give variables the new values that do not lie in their memory already."""
        fresh = [
            (target, self._mirrors[target] if value is None else self._value_to_write(value))
            for target, value in self._fresh
        ]
        for target, value in fresh:
            target.value.write(value)

    def _value_to_write(self, value: Node) -> Array:
        """A new value in memory that no variable shares: what is computed lies in the arena."""
        base = self.plan.layouts.bases[value]
        computed = isinstance(base.op, Op) and base not in self.plan.in_place
        return self._current(value) if computed else np.array(self._current(value))


def _no_function(work: Work) -> Callable[[], None]:
    """In place of what computes a step, where none is computed."""
    raise AssertionError(work)


class NativeRunner:
    """A plan and the layouts that it was run with lately."""

    def __init__(self, plan: NativePlan) -> None:
        self.plan = plan
        self._kept: OrderedDict[Any, Any] = OrderedDict()
        self._last: tuple[Mapping[str, int], int, Instance] | None = None

    @property
    def inner(self) -> NativeRunner:
        """What slices run with in its place: itself."""
        return self

    def inside(self, values: Mapping[Node, Value]) -> Mapping[Node, Value]:
        """Values of placeholders by the nodes that these are there: the same."""
        return values

    def memory_moves(self, memory: MemoryManager) -> None:
        """Keep no layout with a variable whose memory is given back."""
        if self._kept and any(tensor_of(n).memory is memory for n in self.plan.variables):
            self._kept.clear()
            self._last = None

    @cached_property
    def runs_alone(self) -> bool:
        """Whether new values and outputs lie in memory of their own, and variables where kernels see them."""
        return self.plan.stores_all and all(map(is_plain, self.plan.variables))

    def kept(self, key: Any, make: Callable[[], Layout]) -> Layout:
        """What `make` gave for this key; the last of them are kept, as each holds memory and threads."""
        self._last = None
        if key not in self._kept:
            addressed_by(self)
            self._kept[key] = make()
            if len(self._kept) > _LAYOUTS_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        found: Layout = self._kept[key]
        return found

    def instance(self, sizes: Mapping[str, int]) -> Instance:
        """The layout for these sizes, on as many threads as are wanted now."""
        threads, last = thread_count(), self._last
        if last and last[0] is sizes and last[1] == threads:
            return last[2]  # the same sizes as at the last run, and nothing in between
        key = (threads, *sorted(sizes.items()))
        found = self.kept(key, lambda: Instance(self.plan, sizes, threads))
        self._last = (sizes, threads, found)
        return found

    def text(self, sizes: Mapping[str, int]) -> str:
        """The plan as text, and what of it NumPy computes, as the library for it is not installed."""
        by_numpy = [w for w in self.plan.work if w.lowered is not None and not is_native(w)]
        lines = [f"# by NumPy, since SciPy is not installed: {w.region}" for w in by_numpy]
        return "\n".join([describe(self.plan, sizes), *lines])

    def memory(self, sizes: Mapping[str, int], workspace: bool = True) -> StepMemory:
        """What a step takes; without `workspace` its kernels need not be looked at."""
        plan, threads = self.plan, thread_count()
        if not workspace:
            return step_memory(plan, sizes)
        frames = frames_of(plan, sizes)
        rooms = {r.node: np.empty(r.nbytes, np.uint8) for r in arena_of(plan, sizes).rooms}
        tasks = Tasks(plan, frames, sizes, threads, _no_function, (), rooms, compiled=False)
        return step_memory(plan, sizes, workspace=tasks.workspace_bytes)

    def has_run(self, sizes: Mapping[str, int]) -> bool:
        """Whether there is memory for a step of these sizes already."""
        wanted = sorted(sizes.items())
        return any(sorted(made.sizes.items()) == wanted for made in self._kept.values())

    def run(
        self,
        fed: Mapping[Node, Array],
        sizes: Mapping[str, int],
        guard: bool = False,
        workers: Agreement = ALONE,
    ) -> list[Array] | None:
        """One run; None, and nothing is updated, where `Instance.run` gives none."""
        return self.instance(sizes).run(fed, guard, workers)
