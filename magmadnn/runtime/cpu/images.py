"""Argument blocks of tasks, copied over other memory: a model that is built like another needs no tasks made.

A block holds integers and addresses. Which of its words are addresses is seen from where they point: into
memory that each copy has its own of, or into what all share, such as constants. Blocks with an address that
points elsewhere are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.backends.cpu.host import ALIGNMENT
from magmadnn.compiler.llvm.driver.driver import Table, Task, table_of
from magmadnn.compiler.llvm.driver.rounds import addresses_of
from magmadnn.compiler.llvm.kernel import Loaded, scratch
from magmadnn.compiler.regions.draft import Alike
from magmadnn.graph.op import Array

Made = TypeVar("Made")

_KEPT = 32  # of plans that are alike: for batch sizes, rows of data, numbers of threads
_images: WeakKeyDictionary[Alike, dict[Any, Any]] = WeakKeyDictionary()
_lock = ProcessLock()

_LEAST_ADDRESS = 1 << 32  # sizes and strides are smaller
_ARGUMENTS = 1  # place in a line of the table
_WORD = 8  # bytes

_SMALL = 1 << 16  # bytes

Words = NDArray[np.int64]
Piece = tuple[Array, int]  # a piece of memory, and its address


def addressed(array: Array) -> Piece:
    """A piece of memory."""
    return array, array.ctypes.data


def pieces_of(sizes: Sequence[int]) -> list[Piece]:
    """Pieces of new memory, of zeros; small ones lie in one block."""
    small = [-(-size // ALIGNMENT) * ALIGNMENT if size <= _SMALL else 0 for size in sizes]
    block, at, found = scratch(sum(small)), 0, list[Piece]()
    start = block.ctypes.data
    for size, taken in zip(sizes, small, strict=True):
        if size > _SMALL:
            found.append(addressed(scratch(size)))
        else:
            found.append((block[at : at + size], start + at))
            at += taken
    return found


class Image:
    """Tasks over memory that is given later.

    Args:
        phases: tasks by phase.
        words: of their argument blocks, one behind the other.
        own: which words are addresses in memory that each copy has its own of,
        regions: in which piece of it,
        offsets: and how far from its beginning.
        shared: what else must stay alive.

    Attributes:
        starts: where the block of each task begins among the words.
    """

    def __init__(
        self, phases: Sequence[Sequence[Task]], words: Words, own: Words, regions: Words,
        offsets: Words, shared: Sequence[object],
    ) -> None:  # fmt: skip
        tasks = [task for phase in phases for task in phase]
        self._lines = table_of(phases).lines
        self._words, self._own, self._regions, self._offsets = words, own, regions, offsets
        self.starts = _starts(tasks)
        self._shared = [*shared, *(task.kernel for task in tasks)]

    def over(self, memory: Sequence[Piece]) -> tuple[Table, Words]:
        """The tasks as a table over such pieces of memory as the first had; and their words."""
        bases = np.array([address for _, address in memory], np.int64)
        words = self._words.copy()
        words[self._own] = bases[self._regions] + self._offsets
        lines = self._lines.copy()
        lines[:, _ARGUMENTS] = words.ctypes.data + _WORD * self.starts
        return Table(lines, (words, self._shared, list(memory))), words

    def go_on(self, table: Table, memory: Sequence[Piece]) -> None:
        """Let a table that `over` gave be one over other memory."""
        words, _, held = table.held
        bases = np.array([address for _, address in memory], np.int64)
        words[self._own] = bases[self._regions] + self._offsets
        held[:] = memory

    @staticmethod
    def forget(table: Table) -> None:
        """Let such a table hold no memory; before it runs again there is `go_on`."""
        table.held[2].clear()

    def over_each(self, bases: Words) -> tuple[Words, Words]:
        """The tasks over the memory of many models: tables [models, tasks, ...], and words [models, words].

        Tables hold addresses of the words, and of what the image shares: all must stay alive.

        Args:
            bases: addresses of the pieces of memory of each, [models, pieces].
        """
        words = np.tile(self._words, (len(bases), 1))
        words[:, self._own] = bases[:, self._regions] + self._offsets
        tables = np.tile(self._lines, (len(bases), 1, 1))
        tables[:, :, _ARGUMENTS] = addresses_of(words)[:, None] + _WORD * self.starts
        return tables, words


def image_of(
    phases: Sequence[Sequence[Task]],
    memory: Sequence[Array],
    shared: Sequence[Array],
    open_words: Words | None = None,
) -> Image | None:
    """The tasks, to be copied; None where one cannot be.

    Args:
        phases: tasks by phase.
        memory: what each copy has its own of, in pieces that do not overlap.
        shared: what all copies read.
        open_words: places of words that are set before each run.
    """
    tasks = [task for phase in phases for task in phase]
    if not tasks or not all(isinstance(task.kernel, Loaded) for task in tasks):
        return None  # a function of Python knows its arrays
    words = np.concatenate([task.arguments for task in tasks])
    if open_words is not None:
        words[open_words] = 0
    piece, offset = _found_in(memory, words)
    elsewhere = (piece < 0) & (_found_in(shared, words)[0] < 0)
    if (elsewhere & (words >= _LEAST_ADDRESS)).any():
        return None
    own = np.flatnonzero(piece >= 0)
    return Image(phases, words, own, piece[own], offset[own], shared)


def _found_in(memory: Sequence[Array], words: Words) -> tuple[Words, Words]:
    """In which piece each word points, -1 for none, and how far from its beginning."""
    pieces = [k for k, array in enumerate(memory) if array.nbytes]
    if not pieces:
        return np.full(len(words), -1), np.zeros(len(words), np.int64)
    starts = np.array([memory[k].ctypes.data for k in pieces], np.int64)
    ends = starts + np.array([memory[k].nbytes for k in pieces], np.int64)
    order = np.argsort(starts)
    place = np.searchsorted(starts[order], words, "right") - 1
    at = order[place]  # of -1 the last: its end is looked at
    inside = (place >= 0) & (words < ends[at])
    return np.where(inside, np.array(pieces)[at], -1), np.where(inside, words - starts[at], 0)


def _starts(tasks: Sequence[Task]) -> Words:
    sizes = [len(task.arguments) for task in tasks]
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)


def kept_image(alike: Alike | None, key: Any) -> Any:
    """What was kept under this key for plans that are alike; None where nothing was."""
    if alike is None:
        return None
    with _lock:
        return _images.get(alike, {}).get(key)


def keep_image(alike: Alike | None, key: Any, make: Callable[[], Made | None]) -> Made | None:
    """Make and keep what plans that are alike can copy; None where there are none, or it cannot be copied.

    The oldest goes where there are many.
    """
    made = make() if alike is not None and alike.has_others else None
    if alike is None or made is None:
        return None
    with _lock:
        held = _images.setdefault(alike, {})
        while len(held) >= _KEPT:
            held.pop(next(iter(held)))
        held[key] = made
    return made
