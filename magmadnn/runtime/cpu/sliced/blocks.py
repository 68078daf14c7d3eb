"""Courses of many models that are built alike, over one block of memory: few array operations make all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from magmadnn.backends.cpu.host import ALIGNMENT
from magmadnn.compiler.llvm.driver.rounds import (
    Beside,
    Words,
    addresses_of,
    nested_tables,
    outer_tables,
)
from magmadnn.compiler.llvm.kernel import scratch
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.memory.dtypes import is_floating

from .courses import Course
from .legs import LegTemplate, Wanted

ShapeAndDtype = tuple[tuple[int, ...], np.dtype[Any]]


class Strips:
    """The same arrays for each of many models, of zeros at first: those of a model follow each other.

    Args:
        models: how many.
        kinds: shape and dtype of each array of one model.

    Attributes:
        arrays: of all models, [models, ...] each.
        addresses: of the arrays, [models, arrays].
        nbytes: of one model.
    """

    def __init__(self, models: int, kinds: Sequence[ShapeAndDtype]) -> None:
        sizes = [dtype.itemsize * math.prod(shape) for shape, dtype in kinds]
        taken = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        starts = list(accumulate(taken, initial=0))
        self.nbytes = starts.pop()
        self._places = [
            (start, dtype, shape) for start, (shape, dtype) in zip(starts, kinds, strict=True)
        ]
        self._block = scratch(models * self.nbytes).reshape(models, self.nbytes)
        self.addresses: Words = addresses_of(self._block)[:, None] + np.array(starts, np.int64)
        self.arrays: list[Array] = [
            self._block[:, start : start + size].view(dtype).reshape(models, *shape)
            for size, (start, dtype, shape) in zip(sizes, self._places, strict=True)
        ]

    def row(self, model: int) -> list[Array]:
        """A copy of the arrays of one model."""
        copy = scratch(self.nbytes, zeros=False)
        copy[:] = self._block[model]
        return [np.ndarray(shape, dtype, copy, start) for start, dtype, shape in self._places]


def can_be_block(course: Course) -> bool:
    """Whether the tasks of a course can be copied."""
    return all(leg.template is not None for leg in course.legs)


class CourseBlock:
    """Epochs of many models, each on one thread from its first batch to its last.

    Args:
        course: of a model that is built like them; see `can_be_block`.
        models: how many.
        epochs: of each.
        counts: batches of each leg in an epoch, none of them 0.

    Attributes:
        nbytes: of a model.
        values: of the variables of the course's plans, [models, ...] each, to be filled before a run.
        settings: likewise of each leg, by placeholder: [models, batches of all epochs].
    """

    def __init__(self, course: Course, models: int, epochs: int, counts: Sequence[int]) -> None:
        self._models, self._epochs, self._counts = models, epochs, list(counts)
        self._scratch_bytes = course.scratch_bytes
        variables = dict.fromkeys(v for w in course.wanted for v in w.runner.plan.variables)
        self._held = Strips(models, [(tuple(map(int, v.shape)), v.dtype) for v in variables])
        self.values: dict[Node, Array] = dict(zip(variables, self._held.arrays, strict=True))
        legs = zip(course.wanted, course.legs, counts, strict=True)
        self._legs = [_Leg(w, leg.template, models, epochs * n) for w, leg, n in legs]
        self.nbytes = self._held.nbytes + sum(leg.nbytes for leg in self._legs)
        self.settings = [leg.settings for leg in self._legs]

    def run(
        self, data: Sequence[Sequence[Array]], orders: Sequence[Words], beside: Beside
    ) -> Words:
        """Run all epochs of all models; the CPU's ticks that each has taken.

        Args:
            data: what the batches of each leg are taken from.
            orders: the rows of each leg in all epochs: [models, rows], or [rows] alike for all.
            beside: runs them, each on one thread.
        """
        places = dict(zip(self.values, self._held.addresses.T, strict=True))
        made = [
            leg.tables(arrays, order, places)
            for leg, arrays, order in zip(self._legs, data, orders, strict=True)
        ]
        inner = [
            nested_tables(tables, n) for (tables, _), n in zip(made, self._counts, strict=True)
        ]
        tables = outer_tables(inner, beside.cache)
        return beside.run_nested(nested_tables(tables, self._epochs), self._scratch_bytes)

    def found(self) -> list[list[Array]]:
        """The outputs of each leg, [models, batches, ...] each; views."""
        return [leg.outputs for leg in self._legs]

    def went_well(self, training: int) -> Array:
        """Of each model, whether no kernel failed, and new values and what the first legs gave are finite."""
        given = [array for leg in self._legs[:training] for array in leg.outputs]
        well = np.ones(self._models, bool)
        for array in (*self.values.values(), *given):
            if is_floating(array.dtype):
                wide = array if array.itemsize > 2 else array.astype(np.float32)
                well &= np.isfinite(wide.reshape(self._models, -1)).all(axis=1)
        for leg in self._legs:
            well &= leg.faults == 0
        return well

    def values_of(self, model: int) -> dict[Node, Array]:
        """The values of a model's variables, in memory of their own."""
        return dict(zip(self.values, self._held.row(model), strict=True))


class _Leg:
    """A leg of all models.

    Args:
        wanted: the leg of the first model.
        template: what it can be copied from.
        models: how many.
        batches: of all epochs.
    """

    def __init__(
        self, wanted: Wanted, template: LegTemplate | None, models: int, batches: int
    ) -> None:
        assert template is not None
        self._template, self._variables = template, wanted.runner.plan.variables
        self._before = len(template.own[0])
        count = len(wanted.settings)
        bytes_of = [((size,), np.dtype(np.uint8)) for size in template.own[0]]
        outputs = [((batches, *shape[1:]), dtype) for shape, dtype in template.outputs]
        settings = [((batches,), np.dtype(np.float64))] * count
        faults = [((1,), np.dtype(np.int64))]
        self._strips = Strips(models, [*bytes_of, *settings, *outputs, *faults])
        found = self._strips.arrays[self._before :]
        self.settings = dict(zip(wanted.settings, found[:count], strict=True))
        self.outputs, self.faults = found[count:-1], found[-1][:, 0]
        self.nbytes = self._strips.nbytes
        self._read: tuple[object, ...] = ()  # what words are addresses of

    def tables(
        self, data: Sequence[Array], order: Words, places: Mapping[Node, Words]
    ) -> tuple[Words, Words]:
        """The tasks of each model, [models, tasks, ...], and words that they have addresses of."""
        own, at = self._strips.addresses, self._before
        variables = [places[node][:, None] for node in self._variables]
        bases = np.concatenate([own[:, :at], *variables, own[:, at:]], axis=1)
        tables, words = self._template.image.over_each(bases)
        order = np.ascontiguousarray(order, np.int64)
        for number, source, place in self._template.fetching:
            words[:, source] = data[number].ctypes.data
            words[:, place] = order.ctypes.data if order.ndim == 1 else addresses_of(order)
        self._read = (order, data)
        return tables, words
