"""Legs of models that are built alike: tasks are made for the first, others copy its argument blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.compiler.llvm.driver.driver import Table, table_of
from magmadnn.graph.node import Node
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
from magmadnn.runtime.cpu.native import NativeRunner, variable_memory

from .legs import ORDER, SOURCE, Leg

LONGEST = 4096  # batches of a leg in one go, for which there is room to keep outputs and settings


@dataclass(frozen=True)
class Wanted:
    """A leg that somebody shall have.

    Attributes:
        runner: of the plan.
        data: what batches are taken from, for each placeholder.
        settings: scalar placeholders whose value may change from batch to batch.
        sizes: of symbolic dimensions.
        batch_size: rows of a batch.
        threads: how many run it.
    """

    runner: NativeRunner
    data: Mapping[Node, Array]
    settings: Sequence[Node]
    sizes: Mapping[str, int]
    batch_size: int
    threads: int = 1

    @property
    def looks(self) -> tuple[Any, ...]:
        """Equal where plans that are alike have equal tasks."""
        rows = tuple((a.dtype, a.shape[1:]) for a in self.data.values())
        sizes = tuple(sorted(self.sizes.items()))
        return (self.batch_size, sizes, rows, len(self.settings), self.threads)


@dataclass(frozen=True)
class LegTemplate:
    """What a leg is copied from.

    Attributes:
        image: its tasks.
        own: bytes of each piece of memory that a copy makes itself, before and behind its variables.
        outputs: shapes and dtypes.
        fetching: number of the data, and the places of the words that say where it lies and in which order.
        nbytes: of the values of a batch.
        scratch_bytes: that a thread needs.
        useful_threads: how many have something to gain.
    """

    image: Image
    own: tuple[list[int], list[int]]
    outputs: list[tuple[tuple[int, ...], np.dtype[Any]]]
    fetching: list[tuple[int, int, int]]
    nbytes: int
    scratch_bytes: int
    useful_threads: int


Places = Callable[[Node], Piece]


def known_places() -> Places:
    """Where variables lie, each looked up once; for as long as nobody moves one."""
    return cache(lambda node: addressed(variable_memory(node)))


class CopiedLeg:
    """A leg: made, or copied from that of a model that is built alike.

    Args:
        wanted: what it is to do.
        beside: kernels that are needed too; compiled together they take less time.
        places: where variables lie, of several legs that have some in common.

    Attributes:
        table: the tasks of a batch.
        nbytes: memory of the values of a batch.
        scratch_bytes: scratch memory that each thread needs.
        useful_threads: how many have something to gain.
        size: rows of a batch.
        template: what it, and others, are copied from; None where its tasks cannot be copied.
    """

    def __init__(
        self, wanted: Wanted, beside: Sequence[Kernel] = (), places: Places | None = None
    ) -> None:
        self.table: Table
        self.nbytes: int
        self.scratch_bytes: int
        self.useful_threads: int
        self.size = wanted.batch_size
        self._nodes = list(wanted.data), list(wanted.settings)
        plan = wanted.runner.plan
        self._made: Leg | None = None
        template = kept_image(plan.alike, wanted.looks)
        if template is None:
            template = self._make(wanted, beside)
        self.template: LegTemplate | None = template
        if template is None:
            assert self._made is not None
            leg = self._made
            self.table = table_of(leg.phases)
            self.nbytes, self.scratch_bytes = leg.nbytes, leg.tasks.scratch_bytes
            self.useful_threads = leg.tasks.useful_threads
            return
        self._made = None
        self.nbytes, self.scratch_bytes = template.nbytes, template.scratch_bytes
        self.useful_threads = template.useful_threads
        before = len(template.own[0])
        pieces = pieces_of([size for sizes in template.own for size in sizes])
        first, last = pieces[:before], pieces[before:]
        count, kinds = len(wanted.settings), template.outputs
        self._settings = [piece.view(np.float64) for piece, _ in last[:count]]
        self._outputs = [
            piece.view(dtype).reshape(shape)
            for (piece, _), (shape, dtype) in zip(last[count:-1], kinds, strict=True)
        ]
        self._faults = last[-1][0].view(np.int64)
        place = known_places() if places is None else places
        variables = [place(node) for node in plan.variables]
        self.table, self._words = template.image.over([*first, *variables, *last])
        self._read: tuple[object, ...] = ()  # what words are addresses of

    def _make(self, wanted: Wanted, beside: Sequence[Kernel]) -> LegTemplate | None:
        """Make the tasks; what copies are made from, where that can be."""
        plan, how = wanted.runner.plan, (wanted.batch_size, wanted.threads, LONGEST, beside)
        self._made = leg = Leg(plan, wanted.data, wanted.settings, wanted.sizes, *how)
        if not leg.tasks.can_be_copied:
            return None
        return keep_image(plan.alike, wanted.looks, lambda: self._template_of(leg, wanted))

    def _template_of(self, leg: Leg, wanted: Wanted) -> LegTemplate | None:
        """What copies of a leg are made from; None where a task cannot be copied."""
        tasks, memory = leg.in_order, leg.memory
        starts = np.cumsum([0, *(len(task.arguments) for task in tasks)])
        places = {id(task): int(start) for task, start in zip(tasks, starts, strict=False)}
        fetching = [
            (self._nodes[0].index(node), places[id(task)] + SOURCE, places[id(task)] + ORDER)
            for node, task in leg.fetching
        ]
        words = np.array([w for _, *pair in fetching for w in pair], np.int64)
        image = image_of(leg.phases, memory, leg.shared, words)
        if image is None:
            return None
        behind = len(wanted.settings) + len(leg.outputs) + 1
        count = len(leg.plan.variables)
        sizes = [piece.nbytes for piece in memory]
        own = sizes[: len(sizes) - behind - count], sizes[len(sizes) - behind :]
        outputs = [(a.shape, a.dtype) for a in leg.outputs]
        needs = leg.nbytes, leg.tasks.scratch_bytes, leg.tasks.useful_threads
        return LegTemplate(image, own, outputs, fetching, *needs)

    def point(self, data: Sequence[Array], order: Array, settings: Mapping[Node, Array]) -> None:
        """Say what the next batches, from number 0 on, are made of; see `Leg.point`."""
        nodes, names = self._nodes
        if self._made is not None:
            self._made.point(dict(zip(nodes, data, strict=True)), order, settings)
            return
        order = np.ascontiguousarray(order, np.int64)
        assert self.template is not None
        for number, source, place in self.template.fetching:
            self._words[source] = data[number].ctypes.data
            self._words[place] = order.ctypes.data
        for node, held in zip(names, self._settings, strict=True):
            if node in settings:
                held[: len(settings[node])] = settings[node]
        self._read = (order, data)

    def release(self) -> None:
        """Let go of the data; before the next batches `point` says what they are made of."""
        if self._made is not None:
            self._made.release()
        else:
            self._read = ()

    def found(self, count: int) -> list[Array]:
        """The outputs of the first batches, copied."""
        if self._made is not None:
            return self._made.found(count)
        return [kept[:count].copy() for kept in self._outputs]

    def went_well(self) -> bool:
        """Whether no kernel and no function of NumPy failed."""
        if self._made is not None:
            return self._made.went_well()
        well, self._faults[0] = not self._faults[0], 0
        return well
