"""Many batches in one call: gather, compute and update natively, until somebody has to look.

A slice runs batches that lie in memory, in an order that is given, with settings that are known beforehand.
Nothing of Python takes part, so a step of a small network costs what its kernels cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.compiler.emit.llvm.driver import Driver, Task
from magmadnn.compiler.emit.llvm.kernel import block, load
from magmadnn.compiler.kernels.data_rows import Gather, Keep
from magmadnn.compiler.kernels.formula import DTYPES
from magmadnn.compiler.native import NativePlan
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, Node
from magmadnn.graph.op import Array

from .native import Instance, is_plain, variable_memory
from .run import is_finite
from .tasks import Tasks, kernel_cache

LONGEST = 4096  # batches of one slice, for which there is room to keep outputs and settings


class Slices:
    """A plan that runs slices of batches of one size.

    Args:
        plan: without calls of NumPy (see `can_slice`).
        data: for each placeholder of data, the rows to take batches from.
        settings: scalar placeholders whose value may change from batch to batch.
        batch_size: rows of a batch.
        threads: how many threads run it.
    """

    def __init__(
        self,
        plan: NativePlan,
        data: Mapping[Node, Array],
        settings: Sequence[Node],
        sizes: Mapping[str, int],
        batch_size: int,
        threads: int,
    ) -> None:
        self.plan, self._data, self._size = plan, dict(data), batch_size
        self._instance = Instance(plan, sizes, threads, prepared=False)
        self._settings = {node: np.zeros(LONGEST) for node in settings}
        self._numbers = np.arange(LONGEST)
        rows = len(next(iter(data.values())))
        self._order = np.zeros(min(rows, LONGEST * batch_size), np.int64)
        self.outputs = [
            np.zeros((LONGEST, *self._instance.arrays[n].shape), n.dtype)
            for n in plan.program.outputs
        ]
        self._driver = self._made(sizes, threads)

    def _made(self, sizes: Mapping[str, int], threads: int) -> Driver:
        tasks = Tasks(self.plan, self._instance.arrays, sizes, threads)
        self._faults = tasks.faults
        phases: list[list[Task]] = [self._gathers()]
        for number in range(max((w.phase for w in self.plan.work), default=-1) + 1):
            phases.append(tasks.phase(w for w in self.plan.work if w.phase == number))
        phases.append(self._keeps())
        return Driver(phases, tasks.useful_threads, tasks.scratch_bytes, cache=kernel_cache())

    def _task(self, kernel: Any, **values: Any) -> Task:
        (loaded,) = load([kernel], cache=kernel_cache())
        return Task(loaded, block(kernel, **values))

    def _gathers(self) -> list[Task]:
        """Rows of the data in the order of the epoch, and the settings in that of the batches."""
        tasks = []
        arrays = self._instance.arrays
        for node, source in self._data.items():
            if node not in arrays:
                continue  # nothing is computed from it
            goal = arrays[node]
            columns = source[:1].size
            tasks.append(
                self._task(
                    Gather(source.dtype.name, node.dtype.name), row0=0, row1=self._size,
                    columns=columns, batch_rows=self._size, source=source, source_row=columns,
                    order=self._order, result=goal, result_row=columns,
                )
            )  # fmt: skip
        for node, values in self._settings.items():
            if node not in arrays:
                continue
            tasks.append(
                self._task(
                    Gather("float64", node.dtype.name), row0=0, row1=1, columns=1, batch_rows=1,
                    source=values, source_row=1, order=self._numbers,
                    result=arrays[node], result_row=1,
                )
            )  # fmt: skip
        return tasks

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
            self._task(
                Keep(source.dtype.name), column0=0, column1=source.size, step=step, source=source,
                result=result,
            )
            for source, result, step in pairs
        ]  # fmt: skip

    def run(self, order: Array, settings: Mapping[Node, Array]) -> list[Array] | None:
        """Outputs of the batches of these rows, [batches, ...] each.

        Args:
            order: row numbers, a whole number of batches and at most `LONGEST`.
            settings: values for each batch.

        Returns:
            None where an output or a new value is NaN or infinite, or a row was asked for that is not there;
            all variables are then as before the slice.
        """
        count = len(order) // self._size
        before = [(v, v.copy()) for v in map(variable_memory, self._variables())]
        self._order[: len(order)] = order
        for node, values in settings.items():
            self._settings[node][:count] = values
        self._driver.run(0, count)
        found = [kept[:count].copy() for kept in self.outputs]
        written = [memory for memory, _ in before]
        if not self._faults[0] and all(map(is_finite, [*found, *written])):
            return found
        self._faults[0] = 0
        for memory, values in before:
            np.copyto(memory, values)
        return None

    def _variables(self) -> list[Node]:
        return [target for target, _ in self.plan.program.updates]


def can_slice(plan: NativePlan, data: Mapping[Node, Array], settings: Sequence[Node]) -> bool:
    """Whether a plan can run on its own: no calls, data of known types, new values in memory of their own."""
    fed = {*data, *settings}
    bases = plan.layouts.bases
    stored = {node for work in plan.work for node in work.needed}
    return (
        all(work.lowered is not None for work in plan.work)
        and all(n in fed for n in plan.program.nodes() if n.op is PLACEHOLDER)
        and all(s.dtype.name in DTYPES and s.flags.c_contiguous and s.size for s in data.values())
        and all(bases[n] in stored and plan.layouts.is_whole(n) for n in plan.program.outputs)
        and all(
            v in plan.in_place or (bases[v] in stored and plan.layouts.is_whole(v))
            for _, v in plan.program.updates
        )
        and all(t.op is VARIABLE for t, _ in plan.program.updates)
        and all(is_plain(n) for n in plan.program.nodes() if n.op is VARIABLE)
        and all(is_plain(t) for t, _ in plan.program.updates)
    )
