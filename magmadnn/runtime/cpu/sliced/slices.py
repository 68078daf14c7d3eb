"""Many batches in one call: gather, compute and update natively, until somebody has to look.

A slice runs batches that lie in memory, in an order that is given, with settings that are known beforehand.
Nothing of Python takes part, so a step of a small network costs what its kernels cost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from magmadnn.compiler.llvm.driver.driver import Driver
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime.agreement import agreement
from magmadnn.runtime.cpu.matrices.lapack import blas_beside
from magmadnn.runtime.cpu.native import NativeRunner
from magmadnn.runtime.threads import thread_count
from magmadnn.runtime.variables import is_finite, memories_of, variable_memory

from .legs import CopiedLeg, Wanted, can_slice
from .saved import Saved, saving_kernels

_KEPT_SECONDS = 1.0  # that a copy of variables serves: so long it takes to run slices again


class Slices:
    """A plan that runs slices of batches of one size, over data that may change from slice to slice.

    Args:
        wanted: a plan that can run on its own (see `can_slice`), and what its batches are.

    Attributes:
        sizes: of symbolic dimensions, in a batch.
    """

    def __init__(self, wanted: Wanted) -> None:
        plan = self._plan = wanted.runner.plan
        self.sizes, self._touched = dict(wanted.sizes), memories_of(plan.variables)
        changed = [variable_memory(target) for target in plan.changed]
        self._leg = leg = CopiedLeg(wanted, saving_kernels(changed))
        self._driver = Driver(
            leg.table, leg.useful_threads, leg.scratch_bytes, cache=kernel_cache()
        )
        self._blas = blas_beside(plan, wanted.sizes)
        self._saved = Saved(changed, wanted.threads, plan.alike)
        self._saved.prepare()

    @property
    def can_wait(self) -> bool:
        """Whether other variables can take the place of these: all tasks are copied ones."""
        return self._leg.is_copied and self._saved.can_wait

    @property
    def nbytes(self) -> int:
        """Memory of the values of a batch, and of saved variables."""
        return self._leg.nbytes + self._saved.nbytes

    def forget(self) -> None:
        """Hold no memory of variables; before the next slice there is `go_on`."""
        self._touched = []
        self._leg.forget()
        self._saved.forget()

    def go_on(self) -> None:
        """Find out where the variables lie that the plan has now."""
        self._touched = memories_of(self._plan.variables)
        self._leg.go_on(self._plan.variables)
        self._saved.go_on([variable_memory(target) for target in self._plan.changed])

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
        count = len(order) // self._leg.size
        for memory in self._touched:  # what a device has written comes to the host
            memory.update_host(memory.writable)
        if save:
            self._saved.save()
        self._leg.point(list(data.values()), order, settings)
        try:
            if self._blas is None:
                self._driver.run(0, count)
            else:
                self._blas.on_one(self._driver.run, 0, count)
        finally:
            self._leg.release()
        found = self._leg.found(count)
        well = self._leg.went_well() and all(map(is_finite, found)) and self._saved.are_finite()
        if not agreement().all(well, "steps are finite"):
            return None
        return found


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
    """Slices of a plan over data, made once for data that looks alike; None where it cannot run alone.

    What they are given is named as in `runner.inside`.
    """
    data, settings = runner.inside(data), list(runner.inside(dict.fromkeys(settings)))
    runner = runner.inner
    if not can_slice(runner, data, settings):
        return None
    threads = thread_count()
    looks = tuple((node, rows.dtype, rows.shape[1:]) for node, rows in data.items())
    key = ("slices", threads, batch_size, tuple(sorted(sizes.items())), looks, tuple(settings))

    wanted = Wanted(runner, data, settings, sizes, batch_size, threads)
    return BoundSlices(runner.kept(key, lambda: Slices(wanted)), data)
