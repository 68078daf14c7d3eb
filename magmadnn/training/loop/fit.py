"""The loop over epochs and batches. It knows the order of things, and no mathematics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.errors import CheckpointError, NumericError
from magmadnn.executor import Executable
from magmadnn.graph.op import Array
from magmadnn.graph.spec import is_floating
from magmadnn.optim import Step, StepSlices
from magmadnn.storage.checkpoint import State
from magmadnn.training.arguments import at_least

from .history import History, Row
from .objective import Objective
from .pending import Flying
from .pieces import Batch, Take, numbered
from .sources import Source

if TYPE_CHECKING:
    from magmadnn.executor.cuda.slices import CudaSlices
    from magmadnn.training.callbacks import Callback
    from magmadnn.training.model.model import Model

    from .speculative import Call

BatchSize = int | Callable[[int], int]
_SLICE_SECONDS = 0.08  # so that slices that take longer than foreseen still end in 0.1 s


class Totals:
    """Sums over the batches of an epoch: what a row of the history is made of."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.rows = 0
        self.weight = 0.0
        self.loss = 0.0
        self.sums: list[Array] = []

    def add(self, batch: Batch, loss: Array, sums: Sequence[Array]) -> None:
        """Add a batch's mean loss and its metrics' sums."""
        weight = float(batch.rows if batch.weights is None else batch.weights.sum())
        self.rows += batch.rows
        self.weight += weight
        self.loss += weight * float(loss)
        old = self.sums or [np.zeros_like(s, np.float64) for s in sums]
        self.sums = [a + b for a, b in zip(old, sums, strict=True)]

    def add_all(
        self, rows: int, losses: Array, sums: Sequence[Array], weights: Array | None = None
    ) -> None:
        """Add batches of so many rows each, in their order: the same bits as one by one.

        Args:
            rows: of a batch.
            losses: of the batches.
            sums: of the metrics, [batches, ...] each.
            weights: of the rows, [batches * rows]; None where all are 1.
        """
        count = len(losses)
        self.rows += rows * count
        terms = losses.astype(np.float64)
        if weights is None:
            self.weight += float(rows) * count  # of integers: exact in any order
            terms *= float(rows)
        else:
            total = weights.reshape(count, rows).sum(axis=1).astype(np.float64)
            self.weight = float(_added(self.weight, total))
            terms *= total
        self.loss = float(_added(self.loss, terms))
        old = self.sums or [np.zeros_like(s[0], np.float64) for s in sums]
        self.sums = [_added(a, s) for a, s in zip(old, sums, strict=True)]

    def results(self) -> dict[str, Any]:
        """Mean loss and metrics."""
        return {"loss": self.loss / (self.weight or 1.0), **self.objective.results(self.sums)}

    def state(self) -> dict[str, Any]:
        """Everything, as JSON data."""
        sums = [s.tolist() for s in self.sums]
        return {"rows": self.rows, "weight": self.weight, "loss": self.loss, "sums": sums}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self.rows, self.weight, self.loss = state["rows"], state["weight"], state["loss"]
        self.sums = [np.asarray(s, np.float64) for s in state["sums"]]


def _added(start: Any, terms: Array) -> Any:
    """start + terms[0] + terms[1] + ..., from the left."""
    return np.add.accumulate(np.concatenate([np.asarray(start, np.float64)[None], terms]))[-1]


class Fit:
    """One training: where it stands, and how it goes on.

    Callbacks get this object; they read it, call `step.set(...)`, or ask to `stop`.

    Attributes:
        model: the model that is trained.
        step: the compiled training step, with its optimiser's state.
        epochs: number of epochs in all.
        epoch: the current one, counted from 0.
        batch: batches done in the current epoch.
        steps: steps done in all.
        history: rows of the epochs done.
        last_loss: loss of the last batch.
        row: the row of the epoch that just ended.
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
        initial_epoch: int = 0,
        validation: Callable[[], dict[str, Any]] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.model, self.objective, self.step, self.source = model, objective, step, source
        self.batch_size, self.epochs = batch_size, epochs
        self.validation = validation
        # Those that save come last, so that they save what the others did at the same event.
        self.callbacks = sorted(callbacks, key=lambda callback: callback.comes_last)
        self.epoch, self.batch, self.steps = initial_epoch, 0, 0
        self.history = History()
        self.last_loss = float("nan")
        self.row: Row = {}
        self.totals = Totals(objective)
        self._seconds = 0.0  # of the current epoch, before a resume
        self._stop: str | None = None
        self._made_slices: dict[int, StepSlices | None] = {}
        self._weights: dict[int, Array] = {}  # of the samples, as slices find them
        self.call: Call | None = None  # whose first steps may be on their way
        self._next: Flying | None = None  # batches behind those that are waited for
        self._next_take: Take | None = None  # of the next epoch, if that was begun
        self._ended = 0.0  # when the last slice did, in seconds

    def stop(self, reason: str) -> None:
        """End training after the current batch; `history.stopped` gets the reason."""
        self._stop = self._stop or reason

    @property
    def is_stopping(self) -> bool:
        """Whether something has asked to stop."""
        return self._stop is not None

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
        begun: list[Callback] = []
        try:
            for callback in self.callbacks:
                begun.append(callback)
                callback.on_train_begin(self)
            while self.epoch < self.epochs and self._stop is None:
                self._run_epoch()
        finally:
            for slices in self._made_slices.values():
                if slices is not None:
                    slices.abandon()
            self.history.stopped = self._stop
            for callback in reversed(begun):
                callback.on_train_end(self)
        return self.history

    def _run_epoch(self) -> None:
        started = time.perf_counter() - self._seconds
        self._call("on_epoch_begin")
        slices, size = self._slices(), self.current_batch_size
        if self.call is not None:
            self.call.keep(slices)
        take, self._next_take = self._next_take, None
        if slices is None:
            self._run_batches(self.source.epoch(self.epoch, size, self.batch), started)
        elif take is not None:
            self._run_slices(slices, take, started)
        else:
            with self.source.pieces(self.epoch, size, self.batch, slices) as take:
                self._run_slices(slices, take, started)
        if self._stop is None:
            self._finish_epoch()

    def _run_batches(self, batches: Iterator[Batch], started: float) -> None:
        """Run batches one by one, until something asks to stop."""
        self.source.look()
        for batch in batches:
            with numbered(self.batch, self.epoch):
                feeds = feeds_for(self.model, self.objective, batch)
                loss, *sums = self.step.run(feeds, guard=True)
            self.totals.add(batch, loss, sums)
            self.last_loss = float(loss)
            self.batch += 1
            self.steps += 1
            self._seconds = time.perf_counter() - started
            self._call("on_batch_end")
            if self._stop is not None:
                return

    def _run_slices(self, slices: StepSlices, take: Take, started: float) -> None:
        """Run whole batches in slices, others one by one, until something asks to stop.

        A slice takes less than a tenth of a second, so that progress, signals and callbacks have their turn;
        a step that takes longer is a slice of its own.
        """
        size, follows = self.current_batch_size, False
        while self._stop is None and self._next_take is None:
            now, self._next = self._next or self._taken(slices, take), None
            if now is None:
                return
            self._next = self._behind(now, slices, take)
            piece, found = now.piece, now.found(follows)
            follows = found is not None and self._is_left_alone
            if found is None:  # where it is NaN or infinity, one by one they tell what is wrong
                self._run_batches(piece.each(), started)
                continue
            begun, self._ended = max(now.started, self._ended), time.perf_counter()
            self.step.batch_seconds[size] = max((self._ended - begun) / piece.count, 1e-7)
            loss, *sums = found
            assert piece.rows is not None
            weights = self._weights.get(size)
            taken = None if weights is None else weights[piece.rows]
            self.totals.add_all(len(piece.rows) // piece.count, loss, sums, taken)
            self.last_loss = float(loss[-1])
            self.batch += piece.count
            self.steps += piece.count
            self._seconds = time.perf_counter() - started
            self._call("on_batch_end")

    def _taken(self, slices: StepSlices, take: Take) -> Flying | None:
        """The next batches; None at the end of the epoch."""
        seconds = self.step.batch_seconds.get(self.current_batch_size, _SLICE_SECONDS / 8)
        limits = [n for c in self.callbacks if (n := c.batches(self)) is not None]
        wanted = max(int(_SLICE_SECONDS / seconds), 1)
        piece = take(min(wanted, slices.longest, *limits))
        return None if piece is None else Flying(slices, piece)

    def _behind(self, now: Flying, slices: StepSlices, take: Take) -> Flying | None:
        """What comes next, on its way already; None where somebody may look at what these batches leave."""
        if not self._is_left_alone or not now.launch():
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
        aside = all(vars(type(c)).get("stands_aside", False) for c in self.callbacks)
        return aside and not self.source.streams

    def _taken_of_next_epoch(self, slices: StepSlices) -> Flying | None:
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
        if any(c.batches(self) == 1 for c in self.callbacks):
            return None
        if size not in self._made_slices:
            found = self.source.data(size, self.step.room)
            self._made_slices[size] = None
            if found is not None:
                (inputs, targets, weights), rows = found
                data = dict(zip(self.model.inputs, inputs, strict=True))
                data |= dict(zip(self.objective.targets, targets, strict=True))
                if self.objective.weights is not None:
                    data[self.objective.weights] = self._weights[size] = weights[0]
                how = (rows, self.source.streams, self.source.ring_bytes)
                self._made_slices[size] = self.step.slices(data, *how)
        return self._made_slices[size]

    def slices_on_device(self) -> CudaSlices | None:
        """What ran on a GPU, if all that ran is one, with settings that stay."""
        made = list(self._made_slices.values())
        if len(made) != 1 or made[0] is None or not made[0].is_fixed:
            return None
        return made[0].on_device

    def check_finite(self) -> None:
        """Look whether parameters and states are finite before they are saved.

        Raises:
            NumericError: naming the first that is not.
        """
        for name, value in self.model.values().items():
            if is_floating(value.dtype) and not np.isfinite(value).all():
                raise NumericError(
                    f"{name} has NaN or infinity after step {self.steps}; lower the learning rate, "
                    "clip gradients, or look for bad data"
                )

    def _finish_epoch(self) -> None:
        self.row = {"epoch": float(self.epoch + 1), **scalars(self.totals.results())}
        seconds = max(self._seconds, 1e-9)
        if self.validation is not None:
            self.row |= {f"val_{k}": v for k, v in scalars(self.validation()).items()}
        self.row |= {
            "learning_rate": float(self.step.settings.get("learning_rate", float("nan"))),
            "seconds": seconds,
            "samples_per_second": self.totals.rows / seconds,
        }
        if self.model.precision == "mixed_fp16":
            self.row["skipped_steps"] = float(self.step.skipped)
        self.history.rows.append(self.row)
        self.epoch, self.batch, self._seconds = self.epoch + 1, 0, 0.0
        self.totals = Totals(self.objective)
        self._call("on_epoch_end")

    def _call(self, event: str) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self)

    # --- going on later ---------------------------------------------------------------------------

    def state(self) -> State:
        """Everything that the next step depends on."""
        self.check_finite()
        tensors = {f"model/{name}": value for name, value in self.model.values().items()}
        for name, slot in self.step.state().items():
            tensors[f"optimizer/{name}"] = np.array(slot.read())
        for key, callback in self._named_callbacks():
            for name, value in callback.tensors().items():
                tensors[f"callbacks/{key}/{name}"] = value
        return State(
            tensors=tensors,
            record={
                "seed": self.model.seed,
                "batch_size": self.current_batch_size,
                "epoch": self.epoch,
                "batch": self.batch,
                "steps": self.steps,
                "seconds": self._seconds,
                # At the end of an epoch training stops for good; within one it is interrupted.
                "stopped": None if self.batch else self._stop,
                "totals": self.totals.state(),
                "history": list(self.history.rows),
                "callbacks": {key: c.state() for key, c in self._named_callbacks()},
                "algorithms": self._algorithms(),
            },
        )

    def restore(self, state: State) -> None:
        """Go on from `state()`; nothing is changed if it does not fit.

        Raises:
            CheckpointError: if it belongs to another model or optimiser, to another order of batches, or to
                no training.
        """
        if missing := _PROGRESS - set(state.record):
            raise CheckpointError(
                f"checkpoint: expected one of a training, but {min(missing)!r} is missing; give another "
                "folder"
            )
        self._check_order(state.record)
        self._take_algorithms(state.record.get("algorithms", {}))
        self.model.check(part_of(state.tensors, "model/"))
        self.step.load_state(part_of(state.tensors, "optimizer/"))
        self.model.assign(part_of(state.tensors, "model/"))
        record = state.record
        self.epoch, self.batch, self.steps = record["epoch"], record["batch"], record["steps"]
        self._seconds, self._stop = record["seconds"], record["stopped"]
        self.history.rows = list(record["history"])
        if self.batch:
            self.totals.restore(record["totals"])
        for key, callback in self._named_callbacks():
            if key in record["callbacks"]:
                kept = part_of(state.tensors, f"callbacks/{key}/")
                callback.restore(record["callbacks"][key], kept)

    def _algorithms(self) -> dict[str, str]:
        """What a GPU's library was made to take for products; their sums depend on it."""
        if self.model.device == "cpu":
            return {}
        from magmadnn.executor.cuda.algorithms import frozen

        return frozen()

    def _take_algorithms(self, chosen: Any) -> None:
        if self.model.device == "cpu":
            return
        from magmadnn.executor.cuda.algorithms import freeze

        try:
            freeze(chosen)
        except (AttributeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"checkpoint: expected algorithms as words and hex, got {chosen!r:.60}; it is damaged"
            ) from error

    def _check_order(self, record: Mapping[str, Any]) -> None:
        """Seed and, within an epoch, batch size say which samples come next."""
        own = {"seed": self.model.seed}
        if record["batch"]:
            size = self.batch_size
            own["batch_size"] = size if isinstance(size, int) else int(size(record["epoch"]))
        for name, value in own.items():
            if record[name] != value:
                raise CheckpointError(
                    f"checkpoint: was saved with {name} {record[name]}, this training has {value}; "
                    "give the same, or another folder"
                )

    def _named_callbacks(self) -> list[tuple[str, Callback]]:
        """Callbacks by class and number among those of the class, which is their name in checkpoints."""
        named: list[tuple[str, Callback]] = []
        seen: Counter[str] = Counter()
        for callback in self.callbacks:
            kind = type(callback).__name__
            named.append((f"{kind}-{seen[kind]}", callback))
            seen[kind] += 1
        return named


_PROGRESS = frozenset(
    "seed batch_size epoch batch steps seconds stopped totals history callbacks".split()
)


def part_of(tensors: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """The tensors whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def feeds_for(model: Model, objective: Objective, batch: Batch) -> dict[Any, Array]:
    """The feeds of one batch."""
    feeds = dict(zip(model.inputs, batch.inputs, strict=True))
    feeds |= dict(zip(objective.targets, batch.targets, strict=True))
    if objective.weights is not None:
        rows = np.ones(batch.rows, np.float32)
        feeds[objective.weights] = rows if batch.weights is None else batch.weights
    return feeds


def scalars(results: dict[str, Any]) -> dict[str, float]:
    """The results that are single numbers; a confusion matrix has no place in a row."""
    return {k: float(v) for k, v in results.items() if np.ndim(v) == 0}


def run_once(
    model: Model, objective: Objective, executable: Executable, batches: Iterator[Batch]
) -> dict[str, Any]:
    """Loss and metrics over batches, without training."""
    totals = Totals(objective)
    for batch in batches:
        feeds = feeds_for(model, objective, batch)
        loss, *sums = executable.run({k.node: v for k, v in feeds.items()})
        totals.add(batch, loss, sums)
    return totals.results()
