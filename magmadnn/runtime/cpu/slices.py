"""Many batches in one call: gather, compute and update natively, until somebody has to look.

A slice runs batches that lie in memory, in an order that is given, with settings that are known beforehand.
Nothing of Python takes part, so a step of a small network costs what its kernels cost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np

from magmadnn.compiler.kernels.data_rows import Gather, Keep
from magmadnn.compiler.kernels.formula import DTYPES
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.llvm.driver.driver import Driver, Task
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, Node
from magmadnn.graph.op import Array
from magmadnn.runtime.agreement import agreement
from magmadnn.runtime.threads import thread_count
from magmadnn.runtime.variables import is_finite

from .native import Instance, NativeRunner, is_plain, variable_memory
from .saved import Saved, saving_kernels
from .tasks import even_parts, task_of

_SOURCE, _ORDER = Gather.slots.index("source"), Gather.slots.index("order")
_KEPT_SECONDS = 1.0  # that a copy of variables serves: so long it takes to run slices again
LONGEST = 4096  # batches of one slice, for which there is room to keep outputs and settings


class Slices:
    """A plan that runs slices of batches of one size, over data that may change from slice to slice.

    Args:
        plan: one that can run on its own (see `can_slice`).
        data: for each placeholder of data, rows like those to take batches from.
        settings: scalar placeholders whose value may change from batch to batch.
        sizes: of symbolic dimensions, in a batch.
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
        self.plan, self._size = plan, batch_size
        read = [node for node in plan.program.nodes() if node.op is VARIABLE]
        self._touched = list(dict.fromkeys([*read, *self._variables()]))
        self._instance = Instance(plan, sizes, threads, prepared=False)
        self._settings = {node: np.zeros(LONGEST) for node in settings}
        self._numbers = np.arange(LONGEST)
        self.outputs = [
            np.zeros((LONGEST, *self._instance.arrays[n].shape), n.dtype)
            for n in plan.program.outputs
        ]
        self._changed = [variable_memory(node) for node in self._variables()]
        self._fetching: list[
            tuple[Node, Task]
        ] = []  # gathers of data, whose addresses are set anew
        self._driver = self._made(data, threads)
        self._saved = Saved(self._changed, threads)

    def _made(self, data: Mapping[Node, Array], threads: int) -> Driver:
        tasks = self._tasks = self._instance.tasks(threads, self._carriers(data))
        phases = [p for number in range(self.plan.phase_count) for p in tasks.phase(number)]
        gathers = self._gathers(data, tasks.useful_threads)
        phases = [gathers, *phases, self._keeps()]
        return Driver(phases, tasks.useful_threads, tasks.scratch_bytes, cache=kernel_cache())

    def _carriers(self, data: Mapping[Node, Array]) -> list[Kernel]:
        """The kernels that bring batches and settings in, take outputs away, and save variables."""
        rows = [Gather(rows.dtype.name, node.dtype.name) for node, rows in data.items()]
        numbers = [Gather("float64", node.dtype.name) for node in self._settings]
        keeps = [Keep(kept.dtype.name) for kept in self.outputs]
        return [*rows, *numbers, *keeps, *saving_kernels(self._changed)]

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
        """Parts of a batch of one array; `run` says where the data and the order lie."""
        columns = source[:1].size
        return [
            task_of(
                Gather(source.dtype.name, node.dtype.name), row0=start, row1=end, columns=columns,
                batch_rows=self._size, source=0, source_row=columns, order=0,
                result=self._instance.arrays[node], result_row=columns,
            )
            for start, end in even_parts(self._size, columns, threads)
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

    def restore(self) -> None:
        """Put back what was saved."""
        self._saved.restore()

    def run(
        self,
        data: Mapping[Node, Array],
        order: Array,
        settings: Mapping[Node, Array],
        save: bool = False,
    ) -> list[Array] | None:
        """Outputs of the batches of these rows, [batches, ...] each.

        Args:
            data: what the rows are taken from: arrays of the shapes and dtypes that this was made for.
            order: row numbers, a whole number of batches and at most `LONGEST`.
            settings: values for each batch.
            save: keep the values that variables have before, for `restore`.

        Returns:
            None where an output or a new value is NaN or infinite, or a row was asked for that is not there;
            variables are then to be restored.
        """
        count = len(order) // self._size
        for node in self._touched:
            variable_memory(node)  # what a device has written comes to the host
        if save:
            self._saved.save()
        order = np.ascontiguousarray(order, np.int64)
        for node, task in self._fetching:
            task.arguments[_SOURCE] = data[node].ctypes.data
            task.arguments[_ORDER] = order.ctypes.data
        for node, values in settings.items():
            self._settings[node][:count] = values
        self._driver.run(0, count)
        found = [kept[:count].copy() for kept in self.outputs]
        well = self._went_well() and all(map(is_finite, found)) and self._saved.are_finite()
        if not agreement().all(well, "steps are finite"):
            return None
        self._tasks.tune()
        return found

    def _went_well(self) -> bool:
        """Whether no kernel and no function of NumPy failed; what an interruption raised is raised again."""
        try:
            return self._tasks.went_well()
        except Exception:  # the batches are run one by one then, and the one that fails says why
            return False

    def _variables(self) -> list[Node]:
        return [target for target, _ in self.plan.program.updates]


class BoundSlices:
    """Slices over data: what one training holds, while the rest is kept for the next.

    Variables are saved before a slice, which may have to be taken back. Where slices follow each other, one
    copy serves those of a second: what came after it is run again, to the same bits.
    """

    def __init__(self, slices: Slices, data: Mapping[Node, Array]) -> None:
        self._slices, self._data = slices, dict(data)
        self._saved_at = -math.inf  # in seconds
        self._since: list[tuple[Array, Mapping[Node, Array]]] = []  # order and settings of slices

    def run(
        self, order: Array, settings: Mapping[Node, Array], follows: bool = False
    ) -> list[Array] | None:
        """As `Slices.run`, but for variables, which are as before the slice where this is None.

        Args:
            order: row numbers.
            settings: values for each batch.
            follows: whether nobody else has written variables or data since the slice before.
        """
        now = time.perf_counter()
        save = not follows or now - self._saved_at > _KEPT_SECONDS
        if not agreement().all(not save, "the saved values are recent"):
            save = True
        if save:
            self._saved_at, self._since = now, []
        try:
            found = self._slices.run(self._data, order, settings, save)
        except BaseException:  # such as Ctrl-C while NumPy computes a step
            self._take_back()
            raise
        if found is not None:
            self._since.append((order, settings))
            return found
        self._take_back()
        return None

    def _take_back(self) -> None:
        """Variables as they were before the slice that ran last."""
        self._slices.restore()
        since, self._since, self._saved_at = self._since, [], -math.inf
        for earlier in since:
            self._slices.run(self._data, *earlier)


def slices_of(
    runner: NativeRunner,
    data: Mapping[Node, Array],
    settings: Sequence[Node],
    sizes: Mapping[str, int],
    batch_size: int,
) -> BoundSlices | None:
    """Slices of a plan over data, made once for data that looks alike; None where it cannot run alone."""
    if not can_slice(runner, data, settings):
        return None
    threads = thread_count()
    looks = tuple((node, rows.dtype, rows.shape[1:]) for node, rows in data.items())
    key = ("slices", threads, batch_size, tuple(sorted(sizes.items())), looks, tuple(settings))

    def made() -> Slices:
        return Slices(runner.plan, data, settings, sizes, batch_size, threads)

    return BoundSlices(runner.kept(key, made), data)


def can_slice(runner: NativeRunner, data: Mapping[Node, Array], settings: Sequence[Node]) -> bool:
    """Whether a plan can run on its own: data of known types, new values in memory of their own."""
    fed = {*data, *settings}
    variables = {n for n in runner.leaves if n.op is VARIABLE}
    variables.update(target for target, _ in runner.plan.program.updates)
    return (
        runner.runs_alone
        and all(n in fed for n in runner.leaves if n.op is PLACEHOLDER)
        and all(s.dtype.name in DTYPES and s.flags.c_contiguous and s.size for s in data.values())
        and all(map(is_plain, variables))
    )
