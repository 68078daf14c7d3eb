"""Epochs of training steps as a program for one thread, or for a block of a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.compiler.llvm.driver.rounds import Nested
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.sliced.blocks import CourseBlock, can_be_block
from magmadnn.runtime.cpu.sliced.courses import Course, course_of
from magmadnn.runtime.cpu.sliced.legs import LONGEST, Wanted

from .inputs import Settings
from .slices import sizes_in_batches

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.many.course import GridCourse

    from .step import Step

# what computes it, an array of rows for each placeholder, settings, sizes of dimensions, rows of a batch
_Leg = tuple[Executable, Mapping[Node, Array], Sequence[Node], Mapping[str, int], int]


@dataclass(frozen=True)
class Looked:
    """What is evaluated after each epoch.

    Attributes:
        executable: what computes it.
        data: an array of rows for each placeholder.
        batch_sizes: of its legs.
    """

    executable: Executable
    data: Mapping[Node, Array]
    batch_sizes: Sequence[int]


class StepCourse:
    """Legs of steps with batches of different sizes, and of what is evaluated, in each epoch.

    Attributes:
        longest: batches of a leg in one go, at most.
    """

    longest = LONGEST

    def __init__(
        self,
        step: Step,
        settings: Settings,
        course: Course | GridCourse,
        training: int,
        data: Sequence[Sequence[Array]],
    ) -> None:
        self._step, self._settings, self._course = step, settings, course
        self._training, self._data = training, data

    @classmethod
    def made(
        cls,
        step: Step,
        executable: Executable,
        settings: Settings,
        data: Mapping[Node, Array],
        batch_sizes: Sequence[int],
        looked: Looked | None,
    ) -> StepCourse | None:
        """A course over these arrays; None where a part of it has to run in Python."""
        legs: list[_Leg] = [
            (executable, data, settings.nodes, sizes_in_batches(step, executable, data, size), size)
            for size in batch_sizes
        ]
        if looked is not None:
            read = looked.data
            for size in looked.batch_sizes:
                sizes = looked.executable.sizes({node: a[:size] for node, a in read.items()})
                legs.append((looked.executable, read, (), sizes, size))
        course: Course | GridCourse | None
        if executable.device is None:
            course = course_of([Wanted(leg[0].native, *leg[1:]) for leg in legs], len(batch_sizes))
        else:
            from magmadnn.runtime.cuda.many import course as on_device
            from magmadnn.runtime.cuda.many.leg import Wanted as Seated

            course = on_device.grid_course(
                [Seated(leg[0].cuda, *leg[1:], leg[0].program) for leg in legs], len(batch_sizes)
            )
        if course is None:
            return None
        arrays = [list(read.values()) for _, read, *_ in legs]
        return cls(step, settings, course, len(batch_sizes), arrays)

    @property
    def program(self) -> Nested | GridCourse:
        """What `point` said: for one thread, or for a device."""
        return self._course.program

    @property
    def is_stacked(self) -> bool:
        """Whether it runs beside others only if they are to do as many epochs and batches."""
        return not isinstance(self._course, Course) and self._course.is_stacked

    def block(self, models: int, epochs: int, counts: Sequence[int]) -> CourseBlock | None:
        """The same course of many models that are built alike; None where each has to be made by itself.

        Args:
            models: how many.
            epochs: of each.
            counts: batches of each leg in an epoch.
        """
        course = self._course
        if not isinstance(course, Course) or not self._settings.fixed:
            return None
        if not can_be_block(course) or epochs * max(counts) > LONGEST:
            return None
        return CourseBlock(course, models, epochs, counts)

    @property
    def data(self) -> Sequence[Sequence[Array]]:
        """What the batches of each leg are taken from."""
        return self._data

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory that the thread needs."""
        return self._course.scratch_bytes

    @property
    def nbytes(self) -> int:
        """Bytes that are taken while it lasts."""
        return self._course.nbytes

    def point(self, epochs: int, counts: Sequence[int], orders: Sequence[Any]) -> None:
        """Say what comes next: batches of each leg in an epoch, and their rows in all epochs."""
        first, steps, before = self._step.counted, sum(counts[: self._training]), 0
        values: list[dict[Node, Array]] = []
        for leg, count in enumerate(counts):
            if leg >= self._training:
                values.append({})
                continue
            starts = first + before + steps * np.arange(epochs)
            values.append(self._values((starts[:, None] + np.arange(count)).reshape(-1)))
            before += count
        self._course.point(epochs, counts, self._data, list(orders), values)

    def found(self, counts: Sequence[int]) -> list[list[Array]] | None:
        """Loss and outputs of each leg's first batches; None where one is wrong, and nothing was changed."""
        return self._course.found(counts)

    def take_back(self) -> bool:
        """Variables as they were before what has run last; False on a GPU, where they stay."""
        if not isinstance(self._course, Course):
            return False
        self._course.take_back()
        return True

    def _values(self, steps: Array) -> dict[Node, Array]:
        """The settings of steps with these numbers."""
        if self._settings.fixed:
            return {n: np.full(len(steps), v) for n, v in self._settings.feeds(0).items()}
        each = [self._settings.feeds(step) for step in steps.tolist()]
        return {node: np.array([one[node] for one in each]) for node in self._settings.nodes}
