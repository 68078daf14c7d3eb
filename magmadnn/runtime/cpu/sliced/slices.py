"""Many batches in one call: gather, compute and update natively, until somebody has to look.

A slice runs batches that lie in memory, in an order that is given, with settings that are known beforehand.
Nothing of Python takes part, so a step of a small network costs what its kernels cost. A slice may have to be
taken back, so variables are saved before it, and looked at after it, by all threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.llvm.driver.driver import Driver, Table, Task, table_of
from magmadnn.compiler.llvm.fused.saving import FindNotFinite, Save
from magmadnn.compiler.llvm.ir.builder import FLOATS
from magmadnn.compiler.llvm.kernel import load
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.compiler.regions.draft import Alike
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime.agreement import agreement
from magmadnn.runtime.cpu.images import (
    Image,
    Piece,
    addressed,
    image_of,
    keep_image,
    kept_image,
    pieces_of,
)
from magmadnn.runtime.cpu.matrices.lapack import blas_beside
from magmadnn.runtime.cpu.native import NativeRunner
from magmadnn.runtime.threads import thread_count
from magmadnn.runtime.variables import is_finite, memories_of, variable_memory

from .legs import CopiedLeg, Wanted, can_slice

_PART_BYTES = 1 << 18
_ALONE_BYTES = 1 << 20  # below, to wake a thread takes as long as it saves
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
        self._blas = None if plan.is_own else blas_beside(plan, wanted.sizes)
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
            memory.sides.host(memory.sides.writable)
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
        well = (
            self._leg.went_well()
            and all(np.isfinite(one).all() for one in found)
            and self._saved.are_finite()
        )
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


# --- variables as they were before ----------------------------------------------------------------


class Saved:
    """Room for the values of variables, whose memory stays where it is.

    Args:
        memories: of the variables.
        threads: that save and look.
        alike: of the plan that writes them: its tasks are copied where the plans of others had some.
        addresses: of the memories, where somebody knows them.
    """

    def __init__(
        self,
        memories: Sequence[Array],
        threads: int,
        alike: Alike | None = None,
        addresses: Sequence[int] | None = None,
    ) -> None:
        self._alike, self._memories = alike, memories
        self._found = np.zeros(1, np.int64)
        if addresses is None:
            addresses = [address for _, address in map(addressed, memories)]
        pieces = pieces_of([m.nbytes for m in memories])
        own = zip(memories, addresses, strict=True)
        self._room = [*pieces, addressed(self._found)]  # copies, and whether something was found
        self._pieces: list[Piece] = [*own, *self._room]
        self._copied: list[tuple[Image, Table]] = []  # tasks
        self._copies = [
            piece.view(m.dtype).reshape(m.shape)
            for (piece, _), m in zip(pieces, memories, strict=True)
        ]
        self._others = _not_looked_at(memories)
        self._threads = threads if sum(m.nbytes for m in memories) > _ALONE_BYTES else 1

    @property
    def memory(self) -> list[Array]:
        """All that the tasks touch."""
        return [*self._memories, *self._copies, self._found]

    def _table(self, name: str, tasks: Callable[[], list[Task]]) -> Table:
        """The tasks as a table: copied, or made."""
        image: Image | None = kept_image(self._alike, name)
        if image is not None:
            table, _ = image.over(self._pieces)
            self._copied.append((image, table))
            return table
        made = [tasks()]
        keep_image(self._alike, name, lambda: image_of(made, self.memory, []))
        return table_of(made)

    @property
    def can_wait(self) -> bool:
        """Whether other variables can take the place of these: all tasks are copied ones."""
        return len(self._copied) == len((self.saves, self.looks))

    @property
    def nbytes(self) -> int:
        """Of the copies."""
        return sum(copy.nbytes for copy in self._copies)

    def forget(self) -> None:
        """Hold no memory of variables; before the next use there is `go_on`."""
        self._memories, self._others, self._pieces = [], [], []
        for _, table in self._copied:
            Image.forget(table)

    def go_on(self, memories: Sequence[Array]) -> None:
        """Save and look at other variables, of the same shapes and dtypes."""
        self._memories, self._others = memories, _not_looked_at(memories)
        self._pieces = [*map(addressed, memories), *self._room]
        for image, table in self._copied:
            image.go_on(table, self._pieces)

    @cached_property
    def saves(self) -> Table:
        """What keeps the values."""
        return self._table("saves", self._saves)

    @cached_property
    def looks(self) -> Table:
        """What looks whether values are finite; `were_finite` tells."""
        return self._table("looks", self._looks)

    def _saves(self) -> list[Task]:
        """The tasks that keep the values."""
        count = len(self._memories)
        pairs = zip(self._pieces[:count], self._room[:count], strict=True)
        words = [
            (start, end, source, result)
            for (memory, source), (_, result) in pairs
            for start, end in _parts(memory.nbytes, _PART_BYTES)
        ]
        return _tasks_of(Save(), words)

    def _looks(self) -> list[Task]:
        """The tasks that look whether values are finite; `were_finite` tells."""
        _, found = self._room[-1]
        words: dict[str, list[tuple[int, ...]]] = {}  # of each dtype
        for memory, (_, source) in zip(self._memories, self._pieces, strict=False):
            if (name := memory.dtype.name) in FLOATS:
                parts = _parts(memory.size, _PART_BYTES // memory.itemsize)
                words.setdefault(name, []).extend((*part, source, found) for part in parts)
        kinds = words.items()
        return [task for name, some in kinds for task in _tasks_of(FindNotFinite(name), some)]

    @cached_property
    def _drivers(self) -> tuple[Driver, Driver]:
        cache = kernel_cache()
        save, look = (Driver(x, self._threads, cache=cache) for x in (self.saves, self.looks))
        return save, look

    def prepare(self) -> None:
        """Make the tasks now."""
        _ = self._drivers

    def save(self) -> None:
        """Keep the values of now."""
        self._drivers[0].run(0, 1)

    def are_finite(self) -> bool:
        """Whether the values of now hold no NaN and no infinity."""
        self._found[0] = 0
        self._drivers[1].run(0, 1)
        return self.were_finite()

    def were_finite(self) -> bool:
        """What the tasks `looks` have found since this was asked last."""
        found, self._found[0] = bool(self._found[0]), 0
        return not found and all(map(is_finite, self._others))

    def restore(self) -> None:
        """Put back what was kept."""
        for memory, copy in zip(self._memories, self._copies, strict=True):
            np.copyto(memory, copy)


def _tasks_of(kernel: Kernel, words: Sequence[tuple[int, ...]]) -> list[Task]:
    """Tasks of one kernel, each with what is in its slots, in order."""
    (loaded,) = load([kernel], cache=kernel_cache())
    return [Task(loaded, block) for block in np.array(words, np.int64)]


@cache  # to ask NumPy for a name takes two microseconds
def _is_looked_at(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biu" or dtype.name in FLOATS


def _not_looked_at(memories: Sequence[Array]) -> list[Array]:
    """Those that NumPy looks at: whole numbers are finite, and of usual floats tasks look at each."""
    return [m for m in memories if not _is_looked_at(m.dtype)]


def _parts(length: int, most: int) -> list[tuple[int, int]]:
    return [(start, min(start + most, length)) for start in range(0, length, most)]


def saving_kernels(memories: Sequence[Array]) -> list[Kernel]:
    """What `Saved` needs: compiled together with other kernels they take less time."""
    names = {m.dtype.name for m in memories}
    return [Save(), *(FindNotFinite(name) for name in FLOATS if name in names)]
