"""Legs of models that are built alike: tasks are made for the first, others copy its argument blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.llvm.driver.rounds import Nested
from magmadnn.compiler.llvm.kernel import scratch
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.draft import Alike
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime.cpu.native import NativeRunner, variable_memory

from .images import Image, image_of
from .legs import ORDER, SOURCE, Leg
from .saved import Saved

LONGEST = 4096  # batches of a leg in one go
_KEPT = 16  # images of plans that are alike: of batch sizes, and of rows of data

_images: WeakKeyDictionary[Alike, dict[Any, Any]] = WeakKeyDictionary()
_lock = ProcessLock()


@dataclass(frozen=True)
class Wanted:
    """A leg that a course shall have.

    Attributes:
        runner: of the plan.
        data: what batches are taken from, for each placeholder.
        settings: scalar placeholders whose value may change from batch to batch.
        sizes: of symbolic dimensions.
        batch_size: rows of a batch.
    """

    runner: NativeRunner
    data: Mapping[Node, Array]
    settings: Sequence[Node]
    sizes: Mapping[str, int]
    batch_size: int

    @property
    def looks(self) -> tuple[Any, ...]:
        """Equal where plans that are alike have equal tasks."""
        rows = tuple((a.dtype, a.shape[1:]) for a in self.data.values())
        return (self.batch_size, tuple(sorted(self.sizes.items())), rows, len(self.settings))


@dataclass(frozen=True)
class _Template:
    """What a leg is copied from.

    Attributes:
        image: its tasks.
        own: bytes of each piece of memory that a copy makes itself, before and behind its variables.
        outputs: shapes and dtypes.
        fetching: number of the data, and the places of the words that say where it lies and in which order.
        nbytes: of the values of a batch.
        scratch_bytes: that a thread needs.
    """

    image: Image
    own: tuple[list[int], list[int]]
    outputs: list[tuple[tuple[int, ...], np.dtype[Any]]]
    fetching: list[tuple[int, int, int]]
    nbytes: int
    scratch_bytes: int


class CourseLeg:
    """A leg for one thread: made, or copied from that of a model that is built alike.

    Args:
        wanted: what it is to do.

    Attributes:
        program: a batch of it.
        nbytes: memory of the values of a batch.
        scratch_bytes: scratch memory that the thread needs.
        is_copied: whether no tasks were made for it.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.program: Nested
        self.nbytes: int
        self.scratch_bytes: int
        self._nodes = list(wanted.data), list(wanted.settings)
        plan = wanted.runner.plan
        self._made: Leg | None = None
        template = _kept(plan, wanted.looks)
        self.is_copied = template is not None
        if template is None:
            template = self._make(wanted)
        if template is None:
            assert self._made is not None
            leg = self._made
            self.program = Nested(leg.in_order, kernel_cache())
            self.nbytes, self.scratch_bytes = leg.nbytes, leg.tasks.scratch_bytes
            return
        self._made = None
        self._template = template
        self.nbytes, self.scratch_bytes = template.nbytes, template.scratch_bytes
        first, last = ([scratch(size) for size in sizes] for sizes in template.own)
        count, kinds = len(wanted.settings), template.outputs
        self._settings = [piece.view(np.float64) for piece in last[:count]]
        self._outputs = [
            piece.view(dtype).reshape(shape)
            for piece, (shape, dtype) in zip(last[count:-1], kinds, strict=True)
        ]
        self._faults = last[-1].view(np.int64)
        variables = [variable_memory(node) for node in plan.variables]
        self.program, self._words = template.image.over([*first, *variables, *last])
        self._read: tuple[object, ...] = ()  # what words are addresses of

    def _make(self, wanted: Wanted) -> _Template | None:
        """Make the tasks; what copies are made from, where that can be."""
        plan = wanted.runner.plan
        self._made = leg = Leg(
            plan, wanted.data, wanted.settings, wanted.sizes, wanted.batch_size, 1, LONGEST
        )
        if plan.alike is None or leg.tasks.has_untried:
            return None
        tasks, memory = leg.in_order, leg.memory
        starts = np.cumsum([0, *(len(task.arguments) for task in tasks)])
        places = {id(task): int(start) for task, start in zip(tasks, starts, strict=False)}
        fetching = [
            (self._nodes[0].index(node), places[id(task)] + SOURCE, places[id(task)] + ORDER)
            for node, task in leg.fetching
        ]
        words = np.array([w for _, *pair in fetching for w in pair], np.int64)
        image = image_of(tasks, memory, leg.shared, words)
        if image is None:
            return None
        behind = len(wanted.settings) + len(leg.outputs) + 1
        count = len(plan.variables)
        sizes = [piece.nbytes for piece in memory]
        own = sizes[: len(sizes) - behind - count], sizes[len(sizes) - behind :]
        outputs = [(a.shape, a.dtype) for a in leg.outputs]
        scratch_bytes = leg.tasks.scratch_bytes
        made = _Template(image, own, outputs, fetching, leg.nbytes, scratch_bytes)
        _keep(plan.alike, wanted.looks, made)
        return made

    def point(self, data: Sequence[Array], order: Array, settings: Mapping[Node, Array]) -> None:
        """Say what the next batches, from number 0 on, are made of; see `Leg.point`."""
        nodes, names = self._nodes
        if self._made is not None:
            self._made.point(dict(zip(nodes, data, strict=True)), order, settings)
            return
        order = np.ascontiguousarray(order, np.int64)
        for number, source, place in self._template.fetching:
            self._words[source] = data[number].ctypes.data
            self._words[place] = order.ctypes.data
        for node, held in zip(names, self._settings, strict=True):
            if node in settings:
                held[: len(settings[node])] = settings[node]
        self._read = (order, data)

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

    def tune(self) -> None:
        """Between two runs: time a run of a product that nobody has measured, if it is time for it."""
        if self._made is not None:
            self._made.tasks.tune()


def saving_programs(plan: NativePlan, saved: Saved) -> tuple[Nested, Nested]:
    """What keeps variables, and what looks whether they are finite: made, or copied likewise."""
    return _program_over(plan, saved, "saves"), _program_over(plan, saved, "looks")


def _program_over(plan: NativePlan, saved: Saved, name: Literal["saves", "looks"]) -> Nested:
    image: Image | None = _kept(plan, name)
    if image is not None:
        return image.over(saved.memory)[0]
    tasks = saved.saves if name == "saves" else saved.looks
    image = image_of(tasks, saved.memory, [], np.zeros(0, np.int64))
    if image is not None and plan.alike is not None:
        _keep(plan.alike, name, image)
    return Nested(tasks, kernel_cache())


def _kept(plan: NativePlan, key: Any) -> Any:
    with _lock:
        return None if plan.alike is None else _images.get(plan.alike, {}).get(key)


def _keep(alike: Alike, key: Any, made: object) -> None:
    with _lock:
        held = _images.setdefault(alike, {})
        while len(held) >= _KEPT:
            held.pop(next(iter(held)))
        held[key] = made
