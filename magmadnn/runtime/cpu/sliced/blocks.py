"""Courses of many models that are built alike, over one block of memory: few array operations make all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cpu.host import ALIGNMENT
from magmadnn.compiler.llvm.driver.rounds import (
    addresses_of,
    nested_tables,
    outer_tables,
    run_beside,
)
from magmadnn.compiler.llvm.kernel import scratch
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array

from .copies import LONGEST, LegTemplate, Wanted
from .courses import Course

Words = NDArray[np.int64]


class Strips:
    """The same pieces of memory for each of many models, of zeros at first.

    Args:
        models: how many.
        sizes: of the pieces of one, in bytes.

    Attributes:
        addresses: of the pieces, [models, pieces].
        nbytes: of one model.
    """

    def __init__(self, models: int, sizes: Sequence[int]) -> None:
        taken = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        self._starts = np.cumsum([0, *taken])[:-1]
        self.nbytes = sum(taken)
        self._block = scratch(models * self.nbytes).reshape(models, self.nbytes)
        self.addresses: Words = addresses_of(self._block)[:, None] + self._starts

    def piece(self, number: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A piece of all models, [models, ...]; a view."""
        found: Array = _laid(self._block, int(self._starts[number]), shape, dtype)
        return found

    def row(
        self, model: int, kinds: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]
    ) -> list[Array]:
        """A copy of the pieces of one model, as arrays of such shapes and dtypes."""
        copy = scratch(self.nbytes, zeros=False)
        copy[:] = self._block[model]
        return [
            _laid(copy, start, *kind)
            for start, kind in zip(self._starts.tolist(), kinds, strict=True)
        ]


def _laid(memory: Array, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Bytes of the last axis from `start` on as values."""
    nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return memory[..., start : start + nbytes].view(dtype).reshape((*memory.shape[:-1], *shape))


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

    longest = LONGEST  # batches of a leg in all epochs, at most

    def __init__(self, course: Course, models: int, epochs: int, counts: Sequence[int]) -> None:
        self._models, self._epochs, self._counts = models, epochs, list(counts)
        self._scratch_bytes = course.scratch_bytes
        variables = dict.fromkeys(v for w in course.wanted for v in w.runner.plan.variables)
        self._kinds = {v: (tuple(map(int, v.shape)), v.dtype) for v in variables}
        self._held = Strips(models, [_nbytes(*kind) for kind in self._kinds.values()])
        self.values: dict[Node, Array] = {
            v: self._held.piece(k, *kind) for k, (v, kind) in enumerate(self._kinds.items())
        }
        legs = zip(course.wanted, course.legs, counts, strict=True)
        self._legs = [_Leg(w, leg.template, models, epochs * n) for w, leg, n in legs]
        self.nbytes = self._held.nbytes + sum(leg.nbytes for leg in self._legs)
        self.settings = [leg.settings for leg in self._legs]

    def run(self, data: Sequence[Sequence[Array]], orders: Sequence[Words], threads: int) -> Words:
        """Run all epochs of all models; the CPU's ticks that each has taken.

        Args:
            data: what the batches of each leg are taken from.
            orders: the rows of each leg in all epochs: [models, rows], or [rows] alike for all.
            threads: how many run them, each one model at a time.
        """
        cache, places = kernel_cache(), dict(zip(self._kinds, self._held.addresses.T, strict=True))
        made = [
            leg.tables(arrays, order, places)
            for leg, arrays, order in zip(self._legs, data, orders, strict=True)
        ]
        inner = [
            nested_tables(tables, n) for (tables, _), n in zip(made, self._counts, strict=True)
        ]
        tables = outer_tables(inner, cache)
        return run_beside(nested_tables(tables, self._epochs), threads, self._scratch_bytes, cache)

    def found(self) -> list[list[Array]]:
        """The outputs of each leg, [models, batches, ...] each; views."""
        return [leg.outputs for leg in self._legs]

    def went_well(self, training: int) -> Array:
        """Of each model, whether no kernel failed, and the new values and what the first legs gave are finite."""
        checked = [
            *self.values.values(),
            *(a for leg in self._legs[:training] for a in leg.outputs),
        ]
        well = np.ones(self._models, bool)
        for array in checked:
            if array.dtype.kind not in "iub":
                each = array.reshape(self._models, -1)
                well &= np.isfinite(
                    each.astype(np.float32, copy=False) if array.dtype.itemsize < 4 else each
                ).all(axis=1)
        for leg in self._legs:
            well &= leg.faults == 0
        return well

    def values_of(self, model: int) -> dict[Node, Array]:
        """The values of a model's variables, in memory of their own."""
        return dict(
            zip(self._kinds, self._held.row(model, list(self._kinds.values())), strict=True)
        )


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
        kinds = [((batches,), np.dtype(np.float64))] * len(wanted.settings)
        kinds += [((batches, *shape[1:]), dtype) for shape, dtype in template.outputs]
        kinds.append(((1,), np.dtype(np.int64)))
        self._strips = Strips(models, [*template.own[0], *(_nbytes(*kind) for kind in kinds)])
        found = [self._strips.piece(self._before + k, *kind) for k, kind in enumerate(kinds)]
        count = len(wanted.settings)
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


def _nbytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return dtype.itemsize * int(np.prod(shape, dtype=np.int64))
