"""Loops on the CPU: the driver runs the plan of a step, once for each step, as it runs batches.

Slices are read and outputs written where they lie among those of all steps: a step begins with a kernel that
moves the addresses in argument blocks on, by the number that the driver counts. Only what NumPy computes with
is copied, to and from one place, as is what is carried where it is kept or was not written in place. Nothing
of Python takes part in a step; a loop as a whole is called from Python once in each run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import numpy as np

from magmadnn.compiler.kernels.data_rows import Advance, Gather, Keep
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.llvm.driver.driver import Driver, Task
from magmadnn.compiler.llvm.kernel import scratch
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.compiler.plan.native_plan import LoopPlan, NativePlan
from magmadnn.graph.dim import bind_shape, bind_value
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array

from .host_call import RowFault
from .matrices.lapack import is_native
from .tasks import Tasks, task_of

_WORDS = ("int64", "int32", "uint8")  # in which bits are copied as they are
_SOURCE = Gather.slots.index("source")


def loop_kernels() -> list[Kernel]:
    """The kernels that bring slices in and take outputs away."""
    return [Advance(), *(k for word in _WORDS for k in (Gather(word, word), Keep(word)))]


def moving_outputs(plan: LoopPlan) -> dict[Node, int]:
    """Outputs that kernels alone touch and write as they are, each with a number of the loop's results."""
    step, fixed = plan.step, _touched_by_calls(plan.step)
    fixed |= {*step.in_place, *(value for _, value in step.program.updates)}
    stored = {node for work in step.work for node in work.needed}
    found: dict[Node, int] = {}
    for node, number in zip(step.program.outputs, plan.kept, strict=True):
        if node in stored and node not in fixed:
            found.setdefault(node, number)
    return found


def _touched_by_calls(step: NativePlan) -> set[Node]:
    """What NumPy, or a loop within, reads or writes: these look for arrays."""
    bases = step.layouts.bases
    calls = [work.region for work in step.work if not is_native(work)]
    return {bases[n] for region in calls for node in region.nodes for n in (node, *node.inputs)}


def carried_memory(
    plan: LoopPlan, results: Mapping[int, Array], sizes: Mapping[str, int]
) -> dict[Node, Array]:
    """Where carried values lie: in the loop's results; in memory of their own where nobody wants these."""
    found = {}
    for number, variable in plan.carried.items():
        array = results.get(number)
        if array is None:
            shape = bind_shape(variable.shape, sizes)
            room = scratch(math.prod(shape) * variable.dtype.itemsize)
            array = room.view(variable.dtype).reshape(shape)
        found[variable] = array
    return found


class Loop:
    """A loop laid out in memory; calling it runs all of its steps.

    Args:
        plan: the loop.
        arrays: where the values of a step lie.
        held: those of them that lie elsewhere: what is carried, and what is the same in all steps.
        tasks: makes the tasks of a step.
        results: by number, as far as they are wanted.
        current: gives the array of an operand now.

    Raises:
        RowFault: on a call, where a step asks for a row that is not there.
    """

    def __init__(
        self,
        plan: LoopPlan,
        arrays: Mapping[Node, Array],
        held: Mapping[Node, Array],
        tasks: Tasks,
        results: Mapping[int, Array],
        current: Callable[[Node], Array],
    ) -> None:
        self._plan, self._tasks, self._current = plan, tasks, current
        self._arrays, self._held, self._results = arrays, held, results
        self._steps: int = bind_value(plan.length, tasks.sizes)
        order = np.arange(self._steps)
        self._order = np.ascontiguousarray(order[::-1] if plan.reverse else order)
        self._begin = [
            (held[variable], plan.operands[plan.body.carried[number]])
            for number, variable in plan.carried.items()
        ]
        self._same = [
            (arrays[node], plan.operands[node])
            for node in plan.body.captured
            if node in arrays and node not in held
        ]
        phases = [p for number in range(plan.step.phase_count) for p in tasks.phase(number)]
        calls = _touched_by_calls(plan.step)
        slices = [node for node in plan.body.sliced if node in arrays]
        self._fetching = [
            (self._fetch(arrays[node]), plan.operands[node]) for node in slices if node in calls
        ]
        self._placed = moving_outputs(plan)
        self._addresses = _Addresses(tasks, {*slices, *self._placed} - calls, arrays)
        first = [*self._addresses.tasks, *(task for task, _ in self._fetching)]
        first += [
            self._keep(held[plan.carried[number]], results[index])
            for index, number in plan.before.items()
        ]
        self._driver = Driver(
            [phase for phase in (first, *phases, self._ends()) if phase],
            tasks.useful_threads,
            tasks.scratch_bytes,
            cache=kernel_cache(),
        )

    def __call__(self) -> None:
        """Run all steps."""
        for array, operand in [*self._begin, *self._same]:
            np.copyto(array, self._current(operand))
        for task, operand in self._fetching:
            task.arguments[_SOURCE] = self._current(operand).ctypes.data
        for node in self._addresses.nodes:
            stacked = (
                self._results[self._placed[node]]
                if node in self._placed
                else self._current(self._plan.operands[node])
            )
            self._addresses.begin(node, stacked, self._plan.reverse)
        if self._tasks.calls is not None:
            self._tasks.calls.begin()
        self._driver.run(0, self._steps)
        if not self._tasks.went_well():
            raise RowFault

    def _fetch(self, goal: Array) -> Task:
        """Copies a slice to where a step reads it; where the slices lie is said before each run."""
        word, count = _words_of(goal)
        return task_of(
            Gather(word, word), row0=0, row1=1, columns=count, batch_rows=1, source=0,
            source_row=count, order=self._order, result=goal, result_row=count,
        )  # fmt: skip

    def _keep(self, source: Array, stacked: Array) -> Task:
        """Copies a value to its place among those of all steps."""
        word, count = _words_of(source)
        result, step = stacked.ctypes.data, count
        if self._plan.reverse:
            result, step = result + (self._steps - 1) * source.nbytes, -count
        return task_of(
            Keep(word), column0=0, column1=count, step=step, source=source, result=result
        )

    def _ends(self) -> list[Task]:
        """Outputs to their places, and new values, where they were not written in place, to variables."""
        step, arrays = self._plan.step, self._arrays
        pairs = zip(step.program.outputs, self._plan.kept, strict=True)
        tasks = [
            self._keep(arrays[node], self._results[index])
            for node, index in pairs
            if self._placed.get(node) != index
        ]
        for target, value in step.program.updates:
            if value not in step.in_place:
                word, count = _words_of(arrays[value])
                source, result = arrays[value], self._held[target]
                tasks.append(
                    task_of(
                        Keep(word), column0=0, column1=count, step=0, source=source, result=result
                    )
                )
        return tasks


class _Addresses:
    """Addresses in argument blocks that move on with the step.

    Args:
        tasks: whose argument blocks they are in, once they were made.
        nodes: what moves.
        arrays: where a step would find it.

    Attributes:
        nodes: what moves and kernels touch.
        tasks: what is to be done before each step.
    """

    def __init__(self, tasks: Tasks, nodes: Collection[Node], arrays: Mapping[Node, Array]) -> None:
        self._patches: dict[Node, list[int]] = {}
        patches = [patch for patch in tasks.patches if patch.node in nodes]
        self._table = np.zeros((len(patches), 3), np.int64)
        self._offsets = np.array([patch.offset for patch in patches], np.int64)
        for number, patch in enumerate(patches):
            self._table[number, 0] = patch.block[patch.slot :].ctypes.data
            self._table[number, 2] = arrays[patch.node].nbytes
            self._patches.setdefault(patch.node, []).append(number)
        self.nodes = tuple(self._patches)
        self.tasks = [task_of(Advance(), count=len(patches), table=self._table)] if patches else []

    def begin(self, node: Node, stacked: Array, reverse: bool) -> None:
        """Say where the values of all steps lie now."""
        rows = self._patches[node]
        nbytes = abs(self._table[rows, 2])
        first = stacked.nbytes - nbytes if reverse else 0
        self._table[rows, 1] = stacked.ctypes.data + first + self._offsets[rows]
        self._table[rows, 2] = -nbytes if reverse else nbytes


def _words_of(array: Array) -> tuple[str, int]:
    """As what an array is copied, and how many of that it has."""
    word = next(w for w in _WORDS if array.itemsize % np.dtype(w).itemsize == 0)
    return word, array.nbytes // np.dtype(word).itemsize
