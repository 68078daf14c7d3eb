"""Variables as they were before steps that may have to be taken back, saved and looked at by all threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.llvm.driver.driver import Driver, Table, Task, table_of
from magmadnn.compiler.llvm.fused.saving import FindNotFinite, Save
from magmadnn.compiler.llvm.ir.builder import FLOATS
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.compiler.regions.draft import Alike
from magmadnn.graph.op import Array
from magmadnn.runtime.cpu.images import (
    Image,
    Piece,
    addressed,
    image_of,
    keep_image,
    kept_image,
    pieces_of,
)
from magmadnn.runtime.cpu.tasks import task_of
from magmadnn.runtime.variables import is_finite

_PART_BYTES = 1 << 18
_ALONE_BYTES = 1 << 20  # below, to wake a thread takes as long as it saves


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
        self._room = [*pieces, addressed(self._found)]
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
        return [
            task_of(Save(), start=start, end=end, source=memory, result=copy)
            for memory, copy in zip(self._memories, self._copies, strict=True)
            for start, end in _parts(memory.nbytes, _PART_BYTES)
        ]

    def _looks(self) -> list[Task]:
        """The tasks that look whether values are finite; `were_finite` tells."""
        return [
            task_of(FindNotFinite(m.dtype.name), start=start, end=end, source=m, found=self._found)
            for m in self._memories
            if m.dtype.name in FLOATS
            for start, end in _parts(m.size, _PART_BYTES // m.itemsize)
        ]

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


@cache  # to ask NumPy for a name takes two microseconds
def _is_looked_at(dtype: np.dtype[Any]) -> bool:
    return dtype.name in FLOATS


def _not_looked_at(memories: Sequence[Array]) -> list[Array]:
    """Those that NumPy looks at."""
    return [m for m in memories if not _is_looked_at(m.dtype)]


def _parts(length: int, most: int) -> list[tuple[int, int]]:
    return [(start, min(start + most, length)) for start in range(0, length, most)]


def saving_kernels(memories: Sequence[Array]) -> list[Kernel]:
    """What `Saved` needs: compiled together with other kernels they take less time."""
    names = {m.dtype.name for m in memories}
    return [Save(), *(FindNotFinite(name) for name in FLOATS if name in names)]
