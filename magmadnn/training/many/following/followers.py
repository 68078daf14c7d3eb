"""Models that are like one that has been trained follow it: by what was compiled for it, all at once.

Nothing is made for such a model but its values: initial ones, settings and orders of rows of many models are
drawn together, and all epochs of each run on one thread. One that was trained before goes on from its own
values, and from what its optimiser has left. Where a number is not finite, a model keeps the values that it
had, and is trained by itself, which says what is wrong.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from magmadnn.compiler.llvm.driver.rounds import Beside
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.errors import MagmaDNNError
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.ops.philox import stream_of
from magmadnn.runtime.cpu.sliced.blocks import CourseBlock
from magmadnn.runtime.threads import thread_count
from magmadnn.tensor.init import is_alike
from magmadnn.tensor.lazy import LazyTensor
from magmadnn.training.arguments import TRAINED_NOW
from magmadnn.training.loop.history import (
    History,
    Row,
    results_of,
    scalars,
    sums_of_epochs,
)
from magmadnn.training.loop.pieces import Batch
from magmadnn.training.many.course import FitCourse, Whole, tick_rate
from magmadnn.training.model.model import Model
from magmadnn.training.model.parts import trained_of
from magmadnn.training.model.training_step import Carried, names_of
from magmadnn.training.objective.objective import Objective

from .kinds import Kind
from .orders import permutations

if TYPE_CHECKING:
    from magmadnn.training.many.running.members import Member

# seconds of a training: longer ones run in pieces, so that an interrupt is seen in between
_LONGEST = 1.0
_AT_ONCE = 0.5  # seconds of all trainings of one native call
_BYTES = 1 << 26  # memory of all trainings of one native call
_WORD = 8  # bytes of the number of a row
_KEPT = 8  # leads that later calls find


class Leads:
    """Trainings that models of later calls can follow, where these have the same data."""

    def __init__(self) -> None:
        self._held: OrderedDict[Hashable, tuple[Lead, object]] = OrderedDict()

    def get(self, key: Hashable) -> Lead | None:
        """The one of this key."""
        return self._held[key][0] if key in self._held else None

    def keep(self, key: Hashable, lead: Lead, data: object) -> None:
        """Keep one, and the data that the key names by its place in memory; the oldest go."""
        self._held[key] = lead, data
        if len(self._held) > _KEPT:
            self._held.popitem(last=False)


_leads: ContextVar[Leads | None] = ContextVar("leads", default=None)


@contextmanager
def keeping(leads: Leads) -> Iterator[None]:
    """Models that are trained inside follow these leads, and others that begin are added to them."""
    token = _leads.set(leads)
    try:
        yield
    finally:
        _leads.reset(token)


def kept_leads() -> Leads:
    """Those of the block that this is in; else none."""
    found = _leads.get()
    return Leads() if found is None else found


def are_kept() -> bool:
    """Whether leads stay for later calls."""
    return _leads.get() is not None


class Lead:
    """The training of a model that others can follow.

    Args:
        course: of the model, before it begins.
        whole: all of it.
        kind: of the model.
    """

    def __init__(self, course: FitCourse, whole: Whole, kind: Kind) -> None:
        self._course, self._whole, self._kind = course, whole, kind
        self._beside: Beside | None = None
        self._nbytes: int | None = None  # of a model in a block; 0 where there is none
        self._step, self._objective = course.fit.step, course.fit.objective
        row = course.fit.source.sample
        self._sample = Batch(
            [a[:1].copy() for a in row.inputs], [a[:1].copy() for a in row.targets]
        )
        self._state = {
            n: np.array(node.value.read()) for n, node in self._step.state_variables.items()
        }

    @classmethod
    def of(cls, course: FitCourse, kind: Kind) -> Lead | None:
        """A training, before it begins; None where others cannot follow it."""
        whole = course.whole
        return None if whole is None else cls(course, whole, kind)

    def train(
        self, members: Sequence[Member], models: Mapping[int, Model], look: Callable[[], None]
    ) -> None:
        """Train models of this kind; those that fail, or have no room, are not done afterwards.

        Args:
            members: the trainings, none of them begun.
            models: theirs, by number.
            look: called now and then.
        """
        threads = thread_count()
        if self._beside is None or self._beside.threads != threads:
            self._beside = Beside(threads, kernel_cache())
        seconds = self._course.seconds_of_batch * sum(self._whole.counts) * self._whole.epochs
        if self._nbytes is None:
            block = self._block(1)
            self._nbytes = 0 if block is None else block.nbytes
        if seconds > _LONGEST or not self._nbytes:
            return
        rows = _WORD * (self._course.fit.source.rows or 0) * self._whole.epochs
        held = _BYTES // (self._nbytes + rows)
        size = max(min(max(int(_AT_ONCE * threads / seconds), threads), held), 1)
        for first in range(0, len(members), size):
            own = members[first : first + size]
            try:
                self._train(own, [models[member.number] for member in own], self._beside)
            except (MagmaDNNError, MemoryError):  # each by itself says what is wrong, or waits
                return
            look()

    def _block(self, models: int) -> CourseBlock | None:
        whole = self._whole
        return whole.steps.block(models, whole.epochs, [*whole.counts, *whole.evaluated])

    def _train(self, members: Sequence[Member], models: Sequence[Model], beside: Beside) -> None:
        whole, kinds = self._whole, [kind for m in members if (kind := m.kind) is not None]
        block = self._block(len(models))
        if block is None:  # the settings of the lead have become schedules
            return
        self._fill(block, kinds)
        orders = self._orders(models, beside)
        TRAINED_NOW.update(models)
        try:
            ticks = block.run(whole.steps.data, orders, beside)
            seconds = ticks / tick_rate() / whole.epochs
            rows = _Rows(whole, self._objective, block.found(), kinds, seconds.tolist())
            for k in np.flatnonzero(block.went_well(len(whole.counts))).tolist():
                self._give(models[k], kinds[k], block.values_of(k))
                models[k]._waited = ((0.0, rows.seconds[k] * whole.epochs),)
                members[k].follow(History.later(whole.epochs, partial(rows.row, k)))
        finally:
            TRAINED_NOW.difference_update(models)

    def _fill(self, block: CourseBlock, kinds: Sequence[Kind]) -> None:
        """Initial values, and settings, of some models."""
        for place, node in enumerate(self._kind.leaves):
            if node in block.values:
                _draw(block.values[node], [kind.leaves[place].value for kind in kinds])
        for name, node in self._step.state_variables.items():
            if node not in block.values:
                continue
            states = [self._state_of(kind)[name] for kind in kinds]
            is_new = kinds[0].state is None  # as all of them are, and begin alike
            block.values[node][:] = states[0] if is_new else states
        inputs = self._step.setting_nodes
        for settings in block.settings[: len(self._whole.counts)]:
            for name, node in inputs.items():
                settings[node][:] = [[kind.settings[name]] for kind in kinds]

    def _state_of(self, kind: Kind) -> Mapping[str, Array]:
        """What the optimiser of a model goes on from."""
        return self._state if kind.state is None else kind.state

    def _orders(self, models: Sequence[Model], beside: Beside) -> list[Array]:
        """The rows of each leg in all epochs."""
        whole, source = self._whole, self._course.fit.source
        rows, first, found = source.rows or 0, 0, list[Array]()
        if self._course.is_shuffled:
            epochs = range(whole.first, whole.first + whole.epochs)
            streams = [stream_of("shuffle", epoch) for epoch in epochs]
            orders = permutations(rows, [model.seed for model in models], streams, beside)
        else:
            orders = np.tile(np.arange(rows), (len(models), whole.epochs, 1))
        for count, size in zip(whole.counts, whole.sizes, strict=True):
            last = first + count * size
            found.append(orders[:, :, first:last].reshape(len(models), -1))
            first = last
        return [*found, *(np.tile(looked, whole.epochs) for looked in whole.looked)]

    def _give(self, model: Model, kind: Kind, values: Mapping[Node, Array]) -> None:
        """All that a training leaves in a model but its history; none of it where Ctrl-C comes meanwhile."""
        before = (model._carried, model.epochs_done, model.preparation, model._origin)
        kept = [own.value.kept() for own in kind.leaves]
        try:
            for own, node in zip(kind.leaves, self._kind.leaves, strict=True):
                if node in values:
                    own.value.hold(values[node])
            trained = tuple([variable.node for variable in trained_of(model.variables())])
            known = self._state_of(kind)
            state = {
                name: values.get(n, known[name]) for name, n in self._step.state_variables.items()
            }
            model._carried = Carried(trained, state, {}, names_of(model), self._sample)
            model.epochs_done = self._whole.first + self._whole.epochs
            model.preparation, model._origin = self._course.fit.model.preparation, None
        except BaseException:
            for own, held in zip(kind.leaves, kept, strict=True):
                own.value.put_back(held)
            model._carried, model.epochs_done, model.preparation, model._origin = before
            raise


def _draw(goal: Array, storages: Sequence[LazyTensor]) -> None:
    """The values of a variable of some models; initial ones of one initialiser are drawn together."""
    first = storages[0]
    stream = stream_of(str(first.name))
    if all(not one.drawn and is_alike(one.init, first.init) for one in storages):
        seeds = [one.seed for one in storages]
        goal[:] = first.init.each(first.shape, first.dtype, seeds, stream)
        return
    for number, one in enumerate(storages):
        drawn = one.read() if one.drawn else one.init(one.shape, one.dtype, one.seed, stream)
        goal[number, ...] = drawn


class _Rows:
    """The rows of the histories of some models.

    Args:
        whole: what was trained.
        objective: of the training.
        found: what each leg gave.
        kinds: of the models.
        seconds: of an epoch of each.
    """

    def __init__(
        self,
        whole: Whole,
        objective: Objective,
        found: Sequence[Sequence[Array]],
        kinds: Sequence[Kind],
        seconds: Sequence[float],
    ) -> None:
        self._epochs, self._first = whole.epochs, whole.first
        self._rates = [float(kind.settings.get("learning_rate", math.nan)) for kind in kinds]
        self.seconds = [max(own, 1e-9) for own in seconds]
        training, held = len(whole.counts), whole.evaluation
        self._trained = _Measured(objective, whole.epochs, whole.sizes, found[:training])
        self._held: _Measured | None = None
        if held is not None:
            sizes = [len(r) // n for r, n in zip(whole.looked, whole.evaluated, strict=True)]
            self._held = _Measured(held.objective, whole.epochs, sizes, found[training:])

    def row(self, model: int, epoch: int) -> Row:
        """That of an epoch of a model, as `Fit.finish_epoch` makes it."""
        number, seconds = model * self._epochs + epoch, self.seconds[model]
        row = {"epoch": float(self._first + epoch + 1), **self._trained.results(number)}
        if self._held is not None:
            row |= {f"val_{k}": v for k, v in self._held.results(number).items()}
        return row | {
            "learning_rate": self._rates[model],
            "seconds": seconds,
            "samples_per_second": self._trained.rows / seconds,
        }


class _Measured:
    """What was measured in each epoch of some models.

    Args:
        objective: losses and metrics.
        epochs: of each.
        sizes: rows of a batch of each leg.
        found: losses and sums of the batches of each leg, [models, batches, ...].
    """

    def __init__(
        self,
        objective: Objective,
        epochs: int,
        sizes: Sequence[int],
        found: Sequence[Sequence[Array]],
    ) -> None:
        self._objective = objective
        parts = []
        for size, arrays in zip(sizes, found, strict=True):
            loss, *sums = [a.reshape(-1, *a.shape[2:]) for a in arrays]
            parts.append((size, loss, sums))
        count = epochs * len(found[0][0])
        self.rows, losses, self._sums = sums_of_epochs(count, parts)
        self._losses = losses.tolist()

    def results(self, number: int) -> dict[str, float]:
        """Mean losses and metrics of an epoch."""
        mean = self._losses[number] / float(self.rows)
        return scalars(results_of(self._objective, mean, [own[number] for own in self._sums]))
