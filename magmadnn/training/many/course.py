"""A training as a program for a thread or a block: pieces of it, and what they leave in the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.compiler.llvm.driver.clock import ticks_per_second
from magmadnn.compiler.llvm.driver.rounds import Nested
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.ops.philox import stream_of
from magmadnn.optim.courses import Looked, StepCourse
from magmadnn.runtime import Executable
from magmadnn.runtime.agreement import agreement
from magmadnn.training.callbacks import Callback
from magmadnn.training.loop.fit import Fit
from magmadnn.training.loop.given import gpu_of
from magmadnn.training.loop.history import Totals, totals_of_epochs
from magmadnn.training.loop.pieces import data_for
from magmadnn.training.loop.sources import ArraySource
from magmadnn.training.model.fitting import Validation, evaluation_of
from magmadnn.training.objective.objective import Objective

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.many.course import GridCourse
    from magmadnn.runtime.cuda.many.orders import Shuffled

_RATE = (
    1e9  # operations in a second, before a batch has been timed: a core does some ten times as many
)


_DEVICE_RATE = 2e13  # likewise of a GPU, which a launch that is too short would leave idle


@cache
def tick_rate() -> float:
    """Ticks of the CPU's counter in a second."""
    return ticks_per_second(0.003)


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated after each epoch.

    Attributes:
        objective: losses and metrics.
        executable: what computes them.
        source: the rows.
        batch_size: rows that are computed at a time.
    """

    objective: Objective
    executable: Executable
    source: ArraySource
    batch_size: int


@dataclass(frozen=True)
class _Next:
    """What runs next.

    Attributes:
        epochs: how many whole ones; 0 for a piece of one.
        counts: batches of each leg in an epoch.
        orders: rows of each leg; `Shuffled` where a device draws them.
        steps: of the optimiser so far.
    """

    epochs: int
    counts: list[int]
    orders: Sequence[Array | Shuffled]
    steps: int


@dataclass(frozen=True)
class Whole:
    """A training from its first epoch to its last.

    Attributes:
        steps: what runs it.
        evaluation: what is evaluated after each epoch; None for nothing.
        epochs: how many.
        first: the number of the first one; those before it were done by another training.
        sizes: rows of a batch of each leg that trains.
        counts: batches of each of these in an epoch.
        evaluated: likewise of the legs that evaluate.
        looked: the rows of these.
    """

    steps: StepCourse
    evaluation: Evaluation | None
    epochs: int
    first: int
    sizes: Sequence[int]
    counts: Sequence[int]
    evaluated: Sequence[int]
    looked: Sequence[Array]


class FitCourse:
    """Runs a training's epochs natively; all is then as `Fit.run_epoch` leaves it.

    Args:
        fit: the training, under way.
        course: its steps.
        evaluation: what is evaluated natively; None where there is nothing, or Python does it.

    Attributes:
        fit: as given.
        most: batches and epochs that `program` planned at most.
    """

    def __init__(self, fit: Fit, course: StepCourse, evaluation: Evaluation | None) -> None:
        assert isinstance(fit.source, ArraySource)
        self.fit, self._course, self._evaluation = fit, course, evaluation
        self._source, self._size = fit.source, fit.current_batch_size
        self._sizes = _leg_sizes(self._source.rows or 0, self._size)
        self.most = (1, 1)
        self._next: _Next | None = None
        self._looked: list[Array] = []  # rows of what is evaluated
        self._is_begun = False  # whether callbacks know of this epoch
        self._chosen: OnDevice | None = None  # rows that are meant
        self._device = gpu_of(fit.model)
        self._device_draws = self._can_shuffle()

    @classmethod
    def made(cls, fit: Fit) -> FitCourse | None:
        """The course of a training; None where Python takes part in its batches."""
        source = fit.source
        if not (
            type(source) is ArraySource
            and source.in_memory
            and isinstance(fit.batch_size, int)
            and fit.model.executor == "native"
            and fit.step.accumulation is None
            and agreement().is_alone
            and all(callback.batches(fit) is None for callback in fit.callbacks)
        ):
            return None
        device = gpu_of(fit.model)
        if device is None:  # on a GPU all models share the memory of steps
            fit.look_at_room()
        seen = _evaluation(fit)
        looked = None
        if seen is not None:
            data = data_for(seen.objective, seen.source.arrays)
            sizes = _leg_sizes(seen.source.rows or 0, seen.batch_size)
            looked = Looked(seen.executable, data, sizes)
        source.look()
        data = data_for(fit.objective, source.arrays)
        if device is not None and fit.objective.weights is not None:
            weights = fit.objective.weights.node
            data[weights] = _sent(data[weights], device)
        sizes = _leg_sizes(source.rows or 0, fit.current_batch_size)
        course = fit.step.course(data, sizes, looked)
        if course is None and device is not None and looked is not None:
            course, seen = fit.step.course(data, sizes), None  # what is evaluated may be too large
        return None if course is None else cls(fit, course, seen)

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory that the thread needs."""
        return self._course.scratch_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the values of a batch, and of a copy of parameters and what optimisers keep of them."""
        return self._course.nbytes

    # --- what comes next --------------------------------------------------------------------------

    @property
    def is_stacked(self) -> bool:
        """Whether it runs beside others only if they are to do as many epochs and batches."""
        return self._course.is_stacked

    def program(self, seconds: float) -> Nested | GridCourse | None:
        """What runs next, for so long; None where callbacks have asked to stop."""
        fit = self.fit
        if not self._is_begun:
            fit.begin_epoch()
            self._is_begun = True
            if not fit.goes_further:
                return None
        each = self.seconds_of_batch
        batches = min(max(int(seconds / each), 1), StepCourse.longest)
        self.most = batches, self._most_epochs
        self.point(*self.most)
        return self._course.program

    def point(self, batches: int, epochs: int) -> None:
        """Plan about so many batches, and at most so many epochs, in place of what `program` gave."""
        self._next = self._planned(batches, epochs)
        evaluated = self._counts_of_evaluation(self._next)
        rows = [np.tile(r, max(self._next.epochs, 1)) for r in self._looked] if evaluated else []
        epochs = max(self._next.epochs, 1)
        self._course.point(epochs, [*self._next.counts, *evaluated], [*self._next.orders, *rows])

    def _can_shuffle(self) -> bool:
        """Whether a device draws the order of rows; the host need not know it but for weights."""
        device, source = self._device, self._source
        if device is None or source.arrays[2]:
            return False
        from magmadnn.runtime.cuda.many.orders import can_shuffle

        if source.chosen is not None:
            self._chosen = _sent(source.chosen, device)
        return can_shuffle(source.rows or 0)

    def _shuffled(self, first: int, last: int) -> list[Shuffled]:
        """The places from `first` on in the orders of epochs, for each leg."""
        from magmadnn.runtime.cuda.many.orders import Shuffled

        rows = self._source.rows or 0
        cut = rows // self._size * self._size
        parts = [(first, min(last, cut)), (min(last, cut), last)]
        parts = [part for part, count in zip(parts, self._batches, strict=True) if count]
        stream = stream_of("shuffle", self.fit.epoch)
        found = Shuffled(rows, self._source.seed, stream, parts, self._chosen)
        return [found] * len(parts)

    def _planned(self, wanted: int, most_epochs: int) -> _Next:
        """Whole epochs, or a piece of one of so many batches."""
        fit, size, (whole, rest) = self.fit, self._size, self._batches
        steps, cut = fit.step.counted, whole * size
        if fit.batch or whole + rest > 4 * wanted:
            count = min(whole - fit.batch, wanted)
            done = fit.batch + count
            counts = [count, rest if done == whole else 0]
            if self._device_draws:
                last = (self._source.rows or 0) if done == whole else done * size
                return _Next(0, self._there(counts), self._shuffled(fit.batch * size, last), steps)
            order = self._source.order(fit.epoch)
            rows = [order[fit.batch * size : done * size], order[cut:]]
            return _Next(0, *self._of_legs(counts, rows), steps)
        epochs = max(min(wanted // (whole + rest), most_epochs), 1)
        if self._device_draws:
            shuffled = self._shuffled(0, self._source.rows or 0)
            return _Next(epochs, self._there([whole, rest]), shuffled, steps)
        orders = self._source.orders(fit.epoch, epochs)
        return _Next(
            epochs, *self._of_legs([whole, rest], [orders[:, :cut], orders[:, cut:]]), steps
        )

    def _of_legs(self, counts: list[int], rows: list[Array]) -> tuple[list[int], list[Array]]:
        """Counts and rows of the legs that there are."""
        there = [k for k, count in enumerate(self._batches) if count]
        return self._there(counts), [rows[k].reshape(-1) for k in there]

    def _there(self, counts: Sequence[int]) -> list[int]:
        """Counts of the legs that there are."""
        return [own for own, count in zip(counts, self._batches, strict=True) if count]

    @property
    def _batches(self) -> tuple[int, int]:
        """Whole batches of an epoch, and smaller ones."""
        rows = self._source.rows or 0
        return rows // self._size, int(rows % self._size > 0)

    @property
    def _guessed(self) -> float:
        """Seconds of a batch that has not been timed."""
        count = sum(p.value.size for p in self.fit.model.parameters())
        if self._device is not None:  # a share of the time of all models
            return max(6.0 * count * self._size / _DEVICE_RATE, 1e-8)
        return max(6.0 * count * self._size / _RATE, 1e-5)

    @property
    def _most_epochs(self) -> int:
        """How many epochs nobody has to look into."""
        fit = self.fit
        aside = all(callback.is_aside for callback in fit.callbacks)
        by_python = fit.validation is not None and self._evaluation is None
        if not aside or by_python or fit.model.precision == "mixed_fp16":  # skipped steps are read
            return 1
        most = max(*self._batches, 1)
        if self._evaluation is not None:
            most = max(most, (self._evaluation.source.rows or 0) // self._evaluation.batch_size)
        return min(fit.epochs - fit.epoch, StepCourse.longest // most)

    def _counts_of_evaluation(self, piece: _Next) -> list[int]:
        """Batches of what is evaluated: nothing within an epoch."""
        if self._evaluation is None:
            return []
        rows, size = self._evaluation.source.rows or 0, self._evaluation.batch_size
        counts = [n for n in (rows // size, int(rows % size > 0)) if n]
        if not self._looked:
            order = self._evaluation.source.order(0)
            parts = [order[: rows // size * size], order[rows // size * size :]]
            self._looked = [part for part in parts if len(part)]
        whole, rest = self._batches
        at_end = bool(piece.epochs) or (self.fit.batch + sum(piece.counts) == whole + rest)
        return counts if at_end else [0] * len(counts)

    @property
    def whole(self) -> Whole | None:
        """All epochs, for models that are built alike; None where somebody looks in between.

        To be asked before the first of them.
        """
        fit, found = self.fit, self._evaluation
        weighted = self._source.arrays[2] or (found is not None and found.source.arrays[2])
        if self._device is not None or weighted or fit.batch:
            return None
        epochs = fit.epochs - fit.epoch
        if self._source.chosen is not None or not 0 < epochs <= self._most_epochs:
            return None
        counts = self._there(self._batches)
        evaluated = self._counts_of_evaluation(_Next(epochs, counts, [], 0))
        own = (self._course, found, epochs, fit.epoch)
        return Whole(*own, self._sizes, counts, evaluated, self._looked)

    @property
    def is_shuffled(self) -> bool:
        """Whether each epoch has an order of its own."""
        return self._source.seed is not None

    @property
    def seconds_of_batch(self) -> float:
        """How long a batch takes, as far as that is known."""
        return self.fit.step.batch_seconds.get(self._size) or self._guessed

    # --- what it has left -------------------------------------------------------------------------

    def take(self, ticks: int) -> None:
        """Take what the program has left into the history, and call callbacks.

        Raises:
            NumericError: if the loss became NaN or infinite, as `Fit.run_epoch`.
        """
        assert self._next is not None
        piece, fit = self._next, self.fit
        evaluated = self._counts_of_evaluation(piece)
        epochs, done = max(piece.epochs, 1), self._last_epoch(piece)
        try:
            found = self._course.found([epochs * n for n in [*piece.counts, *evaluated]])
        except BaseException:  # such as Ctrl-C
            self.take_back()
            raise
        self._next = None
        if found is None:  # one by one they tell what is wrong
            last = fit.epoch + epochs
            while fit.epoch < last and fit.goes_further:
                fit.run_epoch()
            self._is_begun = False
            return
        try:
            self._count(piece, found, evaluated, ticks / tick_rate() / epochs)
        except BaseException:  # parameters are those behind all of them
            self._count_epochs(done)
            raise

    def _last_epoch(self, piece: _Next) -> int:
        """How many epochs are done behind a piece."""
        is_end = self.fit.batch + sum(piece.counts) == sum(self._batches)
        return self.fit.epoch + (piece.epochs or int(is_end))

    def _count_epochs(self, last: int) -> None:
        """Let a model know of epochs that it has done, of which the history does not."""
        self.fit.model.epochs_done = max(self.fit.model.epochs_done, last)

    def _count(
        self,
        piece: _Next,
        found: Sequence[Sequence[Array]],
        evaluated: Sequence[int],
        seconds: float,
    ) -> None:
        """Count what a piece has done, and call callbacks.

        Args:
            piece: which.
            found: losses and sums of its batches.
            evaluated: batches that were evaluated after each epoch.
            seconds: of an epoch, or of a piece of one.
        """
        fit, epochs, steps = self.fit, max(piece.epochs, 1), sum(piece.counts)
        fit.step.batch_seconds[self._size] = max(seconds / max(steps, 1), 1e-7)
        trained, seen = found[: len(self._sizes)], found[len(self._sizes) :]
        ready = self._ready(piece, trained) if piece.epochs > 1 else None
        looked = self._looked_at(seen, evaluated, epochs) if any(evaluated) else None
        for epoch in range(epochs):
            if ready is None:
                self._add(piece, trained, epoch)
            else:
                fit.totals, fit.last_loss = ready[epoch]
                fit.batch += steps
                fit.steps += steps
            fit.seconds += seconds
            fit.call("on_batch_end")
            if fit.stopped is not None or fit.batch < sum(self._batches):
                return
            results = None if looked is None else looked[epoch].results()
            fit.finish_epoch(results, piece.steps + (epoch + 1) * steps if piece.epochs else None)
            self._is_begun = False
            if epoch + 1 < epochs:
                fit.call("on_epoch_begin")  # the step's count is that of the piece's end by now

    def take_back(self) -> None:
        """Variables as they were before the program ran, if nothing was taken of what it has left.

        What ran on a GPU stays, and is counted.
        """
        piece, self._next = self._next, None
        if piece is not None and not self._course.take_back():
            self._count_epochs(self._last_epoch(piece))

    def _add(self, piece: _Next, trained: Sequence[Sequence[Array]], epoch: int) -> None:
        """Add what an epoch's batches gave."""
        fit, weights = self.fit, self._source.arrays[2]
        for size, count, rows, (losses, *sums) in zip(
            self._sizes, piece.counts, piece.orders, trained, strict=True
        ):
            if not count:
                continue
            at = slice(epoch * count, (epoch + 1) * count)
            taken = None
            if weights:
                assert isinstance(rows, np.ndarray)
                taken = weights[0][rows.reshape(-1, size)[at].reshape(-1)]
            fit.totals.add_all(size, losses[at], [s[at] for s in sums], taken)
            fit.last_loss = float(losses[at][-1])
            fit.batch += count
            fit.steps += count

    def _ready(
        self, piece: _Next, trained: Sequence[Sequence[Array]]
    ) -> list[tuple[Totals, float]] | None:
        """The totals of whole epochs, and the last loss of each; None where samples have weights."""
        if self._source.arrays[2]:
            return None
        parts = [
            (size, losses, sums) for size, (losses, *sums) in zip(self._sizes, trained, strict=True)
        ]
        last = parts[-1][1].reshape(piece.epochs, -1)[:, -1].tolist()
        totals = totals_of_epochs(self.fit.objective, piece.epochs, parts)
        return list(zip(totals, last, strict=True))

    def _looked_at(
        self, seen: Sequence[Sequence[Array]], counts: Sequence[int], epochs: int
    ) -> list[Totals]:
        """What was evaluated after each epoch."""
        evaluation = self._evaluation
        assert evaluation is not None
        legs = list(zip(counts, self._looked, seen, strict=True))
        if not evaluation.source.arrays[2]:
            parts = [(len(rows) // count, losses, sums) for count, rows, (losses, *sums) in legs]
            return totals_of_epochs(evaluation.objective, epochs, parts)
        found = [Totals(evaluation.objective) for _ in range(epochs)]
        for epoch, totals in enumerate(found):
            for count, rows, (losses, *sums) in legs:
                at = slice(epoch * count, (epoch + 1) * count)
                taken = evaluation.source.arrays[2][0][rows]
                totals.add_all(len(rows) // count, losses[at], [s[at] for s in sums], taken)
        return found


def _sent(array: Any, device: int) -> Any:
    """An array as a copy on a device."""
    from magmadnn.runtime.cuda.data.arrays import copied

    return array if isinstance(array, OnDevice) else copied(array, device)


def _leg_sizes(rows: int, batch_size: int) -> list[int]:
    """The batch sizes of an epoch: that of whole batches, and that of the last one if it is smaller."""
    return [n for n in (batch_size if rows >= batch_size else 0, rows % batch_size) if n]


def _evaluation(fit: Fit) -> Evaluation | None:
    """What is evaluated natively: the model's own values, on arrays."""
    validation = fit.validation
    own = all(type(c).evaluated is Callback.evaluated for c in fit.callbacks)
    if not isinstance(validation, Validation) or not own:
        return None
    source = validation.source()
    if not source.in_memory:
        return None
    objective, executable = evaluation_of(fit.model, source)
    return Evaluation(objective, executable, source, validation.batch_size)
