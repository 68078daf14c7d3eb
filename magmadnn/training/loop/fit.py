"""The loop over epochs and batches. It knows the order of things, and no mathematics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from magmadnn.errors import NumericError
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.optim import Step, StepSlices
from magmadnn.optim.memory_check import refuse_beyond
from magmadnn.runtime.agreement import agreement
from magmadnn.runtime.step_memory import StepMemory
from magmadnn.storage.checkpoint import State
from magmadnn.storage.pieces import ReadParts
from magmadnn.training.arguments import TRAINED_NOW, at_least
from magmadnn.training.objective.objective import Objective

from .history import History, Row, Totals, scalars
from .one_by_one import run_batches
from .pieces import Batch, ChunkIterator, PendingChunk, data_for, feeds_for
from .rates import say_left, say_used_up
from .resuming import INITIAL, restore, state_of, tell_end
from .sources import Source
from .together import Together

if TYPE_CHECKING:
    from magmadnn.training.callbacks import Callback
    from magmadnn.training.model.model import Model

BatchSize = int | Callable[[int], int]
_SLICE_SECONDS = 0.08  # so that slices that take longer than foreseen still end in 0.1 s


class Fit:
    """One training: where it stands, and how it goes on.

    Callbacks get this object; they read it, call `step.set(...)`, or ask to `stop`.

    Attributes:
        model: the model that is trained.
        step: the compiled training step, with its optimiser's state.
        epochs: number of epochs when training ends, those before it included.
        begin: the first epoch of this training, counted from 0.
        epoch: the current one, likewise.
        batch: batches done in the current epoch.
        steps: steps done in all.
        history: rows of the epochs done.
        last_loss: loss of the last batch.
        row: the row of the epoch that just ended.
        seconds: that the current epoch has taken so far, before a resume too.
        stopped: why training is to end; None if nothing has asked for that.
        goes_on: whether it goes on when it is resumed, though it was stopped.
        tells_end: whether it says that a training that was resumed has nothing left to do.
        completed: whether it has come to its end, where it was to stop or not, without an error.
        together: what ranks that share this training tell each other; None where there are none.
        bytes_read: of checkpoints' values that this rank has read, where ranks go on from them together.
        read_parts: what reads them, while callbacks are asked for them.
    """

    def __init__(
        self,
        model: Model,
        objective: Objective,
        step: Step,
        source: Source,
        *,
        batch_size: BatchSize,
        epochs: int,
        first: int = 0,
        validation: Callable[[], dict[str, Any]] | None = None,
        callbacks: Sequence[Callback] = (),
        identity: Callable[[], dict[str, str]],
        together: Together | None = None,
        memory_limit: int | None = None,
    ) -> None:
        self.model, self.objective, self.step, self.source = model, objective, step, source
        self.batch_size, self.epochs = batch_size, epochs
        self.validation = validation
        self.together = together
        callbacks = callbacks if together is None else together.own(callbacks)
        # Those that save come last, so that they save what the others did at the same event.
        self.callbacks = sorted(callbacks, key=lambda callback: callback.comes_last)
        self.begin = first
        self.epoch, self.batch, self.steps = first, 0, 0
        self._described, self._identity = identity, dict[str, str]()
        self.history = History()
        self.last_loss = float("nan")
        self.row: Row = {}
        self.totals = Totals(objective)
        self.seconds = 0.0
        self.stopped: str | None = None
        self.goes_on = False
        self.completed = False
        self.tells_end = True
        self.told: set[str] = set()  # what was said once, of all models of a set
        self._made_slices: dict[int, StepSlices | None] = {}
        self._weights: dict[int, Array] = {}  # of the samples, as slices find them
        self._next: PendingChunk | None = None  # batches behind those that are waited for
        self._next_take: ChunkIterator | None = None  # of the next epoch, if that was begun
        self._waited = self._trained = 0.0  # seconds: for data, and of epochs in all
        self._ended = 0.0  # when the last slice did, in seconds
        self._left = step.overrides  # settings as earlier trainings left them, until that was said
        step.touched.clear()
        self._is_used_up = False  # the learning rate, and that was said
        self._memory_limit = memory_limit  # bytes that a step may take; None for what is free
        self._fitting: set[int] = set()  # sizes of batches whose steps have room
        self.bytes_read = 0
        self.read_parts: ReadParts | None = None

    def stop(self, reason: str, *, goes_on: bool = False) -> None:
        """End training after the current batch; `history.stopped` gets the reason.

        Args:
            reason: why, for people.
            goes_on: whether training goes on when it is resumed from what was saved at the end of an epoch;
                one that was stopped within an epoch always does.
        """
        if self.stopped is None:
            self.stopped, self.goes_on = reason, goes_on

    def measures(self, column: str) -> bool:
        """Whether a column of the history is the loss or a metric, of training or validation."""
        return column.removeprefix("val_") in self.objective.higher_is_better

    def higher_is_better(self, column: str) -> bool | None:
        """Whether higher values of a column are better than lower ones; None where nobody has said that."""
        return self.objective.higher_is_better.get(column.removeprefix("val_"))

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that prints and writes, of several that share this training."""
        return self.together is None or self.together.is_first

    @property
    def is_stopping(self) -> bool:
        """Whether something has asked to stop."""
        return self.stopped is not None

    @property
    def batches(self) -> int | None:
        """Batches of the current epoch, if known."""
        return self.source.count(self.current_batch_size)

    @property
    def current_batch_size(self) -> int:
        """The batch size of the current epoch."""
        size = self.batch_size
        if callable(size):
            at_least(f"fit: batch_size({self.epoch})", size := size(self.epoch), 1)
        return int(size)

    def run(self) -> History:
        """Train until all epochs are done or something asks to stop."""
        with self.under_way():
            while self.goes_further:
                self.run_epoch()
        return self.history

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """What surrounds the epochs: callbacks begin, saved trainings are resumed, callbacks end."""
        TRAINED_NOW.add(self.model)
        try:
            with ExitStack() as ends:  # in reverse order, each of them, whatever happens in another
                if self.together is not None:
                    ends.enter_context(self.together.deciding())
                    self.together.begin(self)
                    ends.push(self._share_end)
                for callback in self.callbacks:
                    ends.callback(callback.on_train_end, self)
                    callback.begin(self)
                if self.together is not None:
                    self.together.after(self)
                ends.push(self._leave)
                for state in self._saved():
                    self.restore(state)
                    tell_end(self)
                try:
                    yield
                    if self.together is not None:
                        self.together.collect(self)
                except NumericError as error:  # all ranks have it
                    if self.together is not None:
                        self.together.collect(self)
                    if not any(callback.forgives(self, error) for callback in self.callbacks):
                        raise
        finally:
            TRAINED_NOW.discard(self.model)
            if self.steps or self._identity:
                self.model._origin = self._identity.get(INITIAL)

    def _saved(self) -> Iterable[State]:
        """What training is to go on from."""
        if self.together is not None:
            return self.together.saved(self)
        return (s for callback in self.callbacks if (s := callback.saved(self)) is not None)

    @property
    def goes_further(self) -> bool:
        """Whether there is another epoch to be run."""
        return self.epoch < self.epochs and self.stopped is None

    def _leave(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for no more slices; callbacks are told of the end after this."""
        self.completed = kind is None
        for slices in self._made_slices.values():
            if slices is not None:
                slices.abandon()
        self.history.stopped = self.stopped
        if self.together is not None:
            self.together.note_values(self)

    def _share_end(self, kind: type[BaseException] | None, *_: object) -> None:
        """When callbacks were told of the end, without an error."""
        if self.together is not None and kind is None:
            self.together.ends(self)

    def run_epoch(self) -> None:
        """Run the current epoch, or what is left of it."""
        started = time.perf_counter() - self.seconds
        if self._next_take is not None:  # its batches are on their way since those before ended
            started = min(started, self._ended)
        self.call("on_epoch_begin")
        self.look_at_room()
        slices, size = self._slices(), self.current_batch_size
        self._look_at_limit()  # some steps know all only now
        self._look_at_settings()  # it may count steps, of which none is on its way any more
        take, self._next_take = self._next_take, None
        if slices is None:
            run_batches(self, self.source.epoch(self.epoch, size, self.batch), started)
        elif take is not None:
            self._run_slices(slices, take, started)
        else:
            with self.source.pieces(self.epoch, size, self.batch, slices) as take:
                self._run_slices(slices, take, started)
        if self.together is not None:
            self.together.ends_epoch(self)
        if self.stopped is None:
            self.finish_epoch()

    def look_at_room(self) -> None:
        """Refuse batches of a size that is new, if a step with them has no room.

        A last batch that is smaller is planned here too, so that no step of the epoch waits for that.

        Raises:
            OutOfMemoryError: naming the largest size that has.
        """
        size, rows = self._largest(), self.source.rows
        if size not in self._fitting:
            feeds = self._one_row()
            self._look_at_limit()
            self.step.check_memory("fit", feeds, size)
            if rows is not None and rows % size:
                self.step.prepare(feeds, rows % size)
            self._fitting.add(size)

    def _look_at_limit(self) -> None:
        """Refuse batches whose steps take more than they may.

        Raises:
            OutOfMemoryError: naming bytes, and the largest size that may be.
        """
        if self._memory_limit is not None:
            refuse_beyond(self._memory_limit, "fit", self.memory_of, self._largest())

    def memory_of(self, batch_size: int) -> StepMemory | None:
        """What a step of so many rows takes; None where NumPy runs it."""
        return self.step.memory_of(self._one_row(), batch_size)

    def _largest(self) -> int:
        """Rows of the largest batches of this epoch."""
        if self.source.rows is None:
            return self.source.sample.rows
        return min(self.current_batch_size, self.source.rows)

    def _one_row(self) -> dict[Node, Array]:
        """What a step of one row is fed."""
        sample = self.source.sample
        weights = None if sample.weights is None else sample.weights[:1]
        one = Batch([a[:1] for a in sample.inputs], [a[:1] for a in sample.targets], weights)
        return feeds_for(self.objective, one)

    def waits(self, seconds: float) -> None:
        """Count what was waited for data."""
        self._waited += seconds

    def begin_epoch(self) -> None:
        """Let callbacks begin an epoch whose batches run elsewhere."""
        self.call("on_epoch_begin")
        self._look_at_settings()

    def _look_at_settings(self) -> None:
        """Say, when callbacks have had their turn, what is still as others left it, and a rate of 0."""
        left, self._left = self._left, {}
        if left:
            say_left(self, left)
        if not self._is_used_up and callable(rate := self.step.source("learning_rate")):
            self._is_used_up = say_used_up(self, rate)

    def tell_place(self) -> None:
        """Tell a step that averages gradients of several batches which one is next."""
        if (groups := self.step.accumulation) is not None:
            groups.batch, groups.batches = self.batch, self.batches or 0

    def _run_slices(self, slices: StepSlices, take: ChunkIterator, started: float) -> None:
        """Run whole batches in slices, others one by one, until something asks to stop.

        A slice takes less than a tenth of a second, so that progress, signals and callbacks have their turn;
        a step that takes longer is a slice of its own.
        """
        size, follows = self.current_batch_size, False
        while self.stopped is None and self._next_take is None:
            now, self._next = self._next or self._taken(slices, take), None
            if now is None:
                return
            self._next = self._behind(now, slices, take)
            self.tell_place()
            piece, found = now.piece, now.found(follows)
            follows = found is not None and agreement().is_alone and self._is_left_alone
            if found is None:  # where it is NaN or infinity, one by one they tell what is wrong
                run_batches(self, piece.each(), started)
                continue
            begun, self._ended = max(now.started, self._ended), time.perf_counter()
            # a host that came late saw both slices end at once
            begun, started = (min(t, self._ended - now.seconds) for t in (begun, started))
            self.step.batch_seconds[size] = max((self._ended - begun) / piece.count, 1e-7)
            loss, *sums = found
            assert piece.rows is not None
            weights = self._weights.get(size)
            taken = None if weights is None else weights[piece.rows]
            self.totals.add_all(len(piece.rows) // piece.count, loss, sums, taken)
            self.last_loss = float(loss[-1])
            self.batch += piece.count
            self.steps += piece.count
            self.seconds = time.perf_counter() - started
            self.call("on_batch_end")

    def _taken(self, slices: StepSlices, take: ChunkIterator) -> PendingChunk | None:
        """The next batches; None at the end of the epoch."""
        seconds = self.step.batch_seconds.get(self.current_batch_size, _SLICE_SECONDS / 8)
        limits = [n for c in self.callbacks if (n := c.batches(self)) is not None]
        wanted = max(int(_SLICE_SECONDS / seconds), 1)
        count = agreement().least(min(wanted, slices.longest, *limits), "batches of a chunk")
        begun = time.perf_counter()
        piece = take(count)
        self.waits(time.perf_counter() - begun)
        return None if piece is None else PendingChunk(slices, piece)

    def _behind(
        self, now: PendingChunk, slices: StepSlices, take: ChunkIterator
    ) -> PendingChunk | None:
        """What comes next, on its way already; None where somebody may look at what these batches leave."""
        if not slices.launches_ahead or not self._is_left_alone or not now.launch():
            return None
        behind = self._taken(slices, take) or self._taken_of_next_epoch(slices)
        if behind is not None:
            behind.launch()
        return behind

    @property
    def _is_left_alone(self) -> bool:
        """Whether between slices nobody looks at parameters or writes them, or the data.

        A ring fills the places of batches that are done.
        """
        aside = all(callback.is_aside for callback in self.callbacks)
        return agreement().all(aside and not self.source.streams, "nobody looks between chunks")

    def _taken_of_next_epoch(self, slices: StepSlices) -> PendingChunk | None:
        """The first batches of the next epoch, if nothing is read from the device between the two."""
        is_last = self.epoch + 1 >= self.epochs
        reads = self.validation is not None or self.model.precision == "mixed_fp16"  # skipped steps
        if is_last or reads or not isinstance(self.batch_size, int):
            return None
        self._next_take = self.source.taking(self.epoch + 1, self.batch_size)
        return None if self._next_take is None else self._taken(slices, self._next_take)

    def _slices(self) -> StepSlices | None:
        """The step as slices over the source's data; made once for each batch size."""
        size = self.current_batch_size
        alone = any(c.batches(self) == 1 for c in self.callbacks)
        if not agreement().all(not alone, "nobody looks after each batch"):
            return None
        if size not in self._made_slices:
            found = self.source.data(size, self.step.room)
            self._made_slices[size] = None
            # what ranks do to make slices they do together, so all have data for that or none
            if agreement().all(found is not None, "data for several steps") and found is not None:
                arrays, rows = found
                data = data_for(self.objective, arrays)
                if self.objective.weights is not None:
                    self._weights[size] = data[self.objective.weights.node]
                how = (rows, self.source.streams, self.source.ring_bytes)
                made = self.step.slices(data, *how)
                if agreement().all(made is not None, "several steps in one go"):
                    self._made_slices[size] = made
        return self._made_slices[size]

    def finish_epoch(self, results: dict[str, Any] | None = None, steps: int | None = None) -> None:
        """The row of an epoch whose batches are done.

        Args:
            results: of what was validated already.
            steps: of the optimiser at its end; None: as many as there are now.
        """
        self.row = {"epoch": float(self.epoch + 1), **scalars(self.totals.results())}
        seconds = max(self.seconds, 1e-9)
        self._trained += seconds
        self.model._waited = ((self._waited, self._trained),)
        if self.validation is not None:
            if results is None:
                with self._evaluated_values():
                    results = self.validation()
            self.row |= {f"val_{k}": v for k, v in scalars(results).items()}
        before = self.step.settings_before if steps is None else self.step.settings_of(steps - 1)
        self.row |= {
            "learning_rate": float(before.get("learning_rate", float("nan"))),
            "seconds": seconds,
            "samples_per_second": self.totals.rows / seconds,
        }
        if self.model.precision == "mixed_fp16":
            self.row["skipped_steps"] = float(self.step.skipped)
        self.history.rows.append(self.row)
        self.epoch, self.batch, self.seconds = self.epoch + 1, 0, 0.0
        self.model.epochs_done = self.epoch
        self.totals = Totals(self.objective)
        self.call("on_epoch_end")

    def values(self) -> dict[str, Array]:
        """Copies of the model's parameters and states, as validation looks at them."""
        return self._replaced() or self.model.values()

    def _replaced(self) -> dict[str, Array] | None:
        """What a callback has in place of the model's own values."""
        found = (callback.evaluated(self) for callback in self.callbacks)
        return next((values for values in found if values is not None), None)

    @contextmanager
    def _evaluated_values(self) -> Iterator[None]:
        """The model with the values that are to be validated."""
        if (values := self._replaced()) is None:
            yield
            return
        own = self.model.values()
        self.model.assign(values)
        try:
            yield
        finally:
            self.model.assign(own)

    def call(self, event: str) -> None:
        """Call the callbacks."""
        if self.together is not None:
            self.together.before(self, event)
        for callback in self.callbacks:
            getattr(callback, event)(self)
        self.model.check_still_trained()
        if self.together is not None:
            self.together.after(self)
        elif event in ("on_batch_end", "on_epoch_end") and not agreement().all(
            self.stopped is None, "training goes on"
        ):
            self.stop("another worker stopped", goes_on=True)

    @property
    def identity(self) -> dict[str, str]:
        """What training this is: model, optimiser, data, arguments of `fit`; read first before a step."""
        if not self._identity:
            self._identity = self._described()
            if self.steps:
                del self._identity[INITIAL]
        return self._identity

    def note_identity(self) -> None:
        """Find out now what training this is, as long as the model has its initial values."""
        _ = self.identity

    def becomes(self, identity: dict[str, str], begin: int) -> None:
        """Be the training that was saved, which began at epoch `begin`."""
        self._identity = identity
        self.epochs, self.begin = self.epochs + begin - self.begin, begin

    def state(self) -> State:
        """Everything that the next step depends on; see `resuming.py`."""
        return state_of(self)

    def restore(self, state: State) -> None:
        """Go on from `state()`; nothing is changed if it does not fit.

        Raises:
            CheckpointError: if it belongs to another training, or to none.
        """
        restore(self, state)
