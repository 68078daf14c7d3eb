"""What ranks of one training tell each other beside gradients: decisions, settings, checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from magmadnn.errors import ArgumentError, DataError
from magmadnn.parallel.agreement import SameDecisions, told_in
from magmadnn.parallel.asynchronous import AsyncStep
from magmadnn.parallel.named_arrays import given_to_all
from magmadnn.parallel.ranks_step import RanksStep
from magmadnn.parallel.way import TrainingWay
from magmadnn.runtime.agreement import agreeing
from magmadnn.runtime.variables import tensor_of
from magmadnn.storage.checkpoint import State

from .own_rows import OwnRows
from .pieces import feeds_for
from .resuming import saved_settings, set_only, settings_of, shards_of
from .shared_reading import SharedReading

if TYPE_CHECKING:
    from magmadnn.optim.records import Setting
    from magmadnn.training.callbacks import Callback
    from magmadnn.training.model.model import Model

    from .fit import Fit


class Together:
    """The ranks of one training.

    Callbacks that are not `everywhere` are called on rank 0; when they stop training, or set something of
    the optimiser's or the model's values, all ranks do.

    Args:
        way: how they train.
    """

    def __init__(self, way: TrainingWay) -> None:
        self.way, self._comm = way, way.workers()
        self._agreement = SameDecisions(self._comm)
        self._known: dict[str, Setting] = {}
        self._signal: int | None = None  # a signal that all ranks know of
        # of the model's values, before callbacks of rank 0
        self._versions: dict[str, int | None] = {}

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self._comm.rank == 0

    def own(self, callbacks: Sequence[Callback]) -> list[Callback]:
        """The callbacks that are called on this rank."""
        if self.is_first:
            return list(callbacks)
        others = [
            found for callback in callbacks if (found := callback._on_other_ranks()) is not None
        ]
        return [callback for callback in callbacks if callback.is_everywhere] + others[:1]

    def look_for_shards(self, callbacks: Sequence[Callback]) -> None:
        """Let the way know, on all ranks, of how many shards the training is that rank 0 goes on from.

        Raises:
            CommunicationError: if another rank is not in `fit`.
        """
        own = self.own(callbacks) if self.is_first else []
        runs = [run for callback in own if (run := callback.saved_run())]
        told = shards_of(runs[0]) if runs else None
        found = told_in(self._comm, "fit", told)[0]
        self.way.goes_on_with(found)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Decisions of this training are those of all ranks."""
        with agreeing(self._agreement):
            yield

    def begin(self, fit: Fit) -> None:
        """Look whether all ranks are about to run the same training.

        Raises:
            DataError: naming what differs.
        """
        version = str(getattr(sys.modules["magmadnn"], "__version__", ""))
        also = {"version of magmadnn": version, "executor": fit.model.executor}
        also |= fit.model._code()
        aspects = fit.identity | also | {"epochs": f"{fit.begin} to {fit.epochs}"}
        step = fit.step if isinstance(fit.step, RanksStep) else None
        own = [None, ""] if step is None else [step.offers(), step.gpu()]
        told: list[Any] = self.way.check_same(aspects, own)
        if step is not None:
            step.sharers = [gpu for _, gpu in told].count(own[1]) if own[1] else 1
            step.meet([offer for offer, _ in told])
        self._known = fit.step.overrides
        self.note_values(fit)

    def saved(self, fit: Fit) -> list[State]:
        """The checkpoints that rank 0's callbacks go on from, on all ranks, each of which reads a part."""
        reading, states = SharedReading(self._comm), list[State]()
        if self.is_first:
            fit.read_parts = reading.lead
            states = [s for callback in fit.callbacks if (s := callback.saved(fit)) is not None]
            fit.read_parts = None
            reading.end()
        else:
            reading.serve()
        fit.bytes_read = reading.bytes_read
        told: Any = [[s.record, _number(s.tensors, reading.found)] for s in states]
        return [
            State(self._tensors(k, number, reading, states), record)
            for k, (record, number) in enumerate(self._comm.exchange(told)[0])
        ]

    def _tensors(
        self, k: int, number: int | None, reading: SharedReading, states: Sequence[State]
    ) -> dict[str, Any]:
        """The tensors of a checkpoint that rank 0 has, from what all have read or from rank 0."""
        if number is None:
            return given_to_all(self._comm, states[k].tensors if self.is_first else {})
        return reading.found[number]

    def serves(self, fit: Fit) -> bool:
        """On a worker of an asynchronous training: compute gradients to the end of the epoch."""
        step = fit.step
        if not isinstance(step, AsyncStep) or self.is_first:
            return False
        source = fit.source
        assert isinstance(source, OwnRows)

        def batch_of(epoch: int, number: int) -> Any:
            begun = perf_counter()
            batch = source.one(epoch, fit.current_batch_size, number)
            fit.waits(perf_counter() - begun)
            return feeds_for(fit.objective, batch), batch.weight

        step.serve(batch_of)
        return True

    def ends_epoch(self, fit: Fit) -> None:
        """At the end of an epoch's batches, all done or not: all ranks know what rank 0 knows."""
        step = fit.step
        if self._is_looked_at(fit):
            self.collect(fit)
        if not isinstance(step, AsyncStep):
            self._check_batches(fit)
            return
        step.pause()
        step.end_epoch()
        step.share_state()
        mine = [
            fit.totals.state(),
            fit.batch,
            fit.steps,
            fit.last_loss,
            fit.stopped,
            fit.goes_on,
            fit.seconds,
        ]
        told: Any = self._comm.exchange(mine if self.is_first else None)[0]
        if not self.is_first:
            fit.totals.restore(told[0])
            fit.batch, fit.steps, fit.last_loss, fit.stopped, fit.goes_on, fit.seconds = told[1:]

    def _is_looked_at(self, fit: Fit) -> bool:
        """Whether somebody looks at parameters, or sets them, before the first batch of the next epoch."""
        step = fit.step
        if not isinstance(step, RanksStep) or not step.stays_scattered:
            return True
        looks = fit.validation is not None or any(c.looks_between_epochs for c in fit.callbacks)
        return not self._agreement.all(not looks, "nobody looks at parameters between epochs")

    def _check_batches(self, fit: Fit) -> None:
        """Look whether all ranks have made the same batches, where each made whole ones.

        Raises:
            DataError: if they have not.
        """
        digest = fit.source.digest if isinstance(fit.source, OwnRows) else 0
        found = self._comm.exchange(digest)
        for rank, other in enumerate(found):
            if other != found[0]:
                raise DataError(
                    f"{type(self.way).__name__}: ranks 0 and {rank} have seen different batches in epoch "
                    f"{fit.epoch + 1}: give all ranks the same files, and the same seed for what is drawn"
                )

    def collect(self, fit: Fit) -> None:
        """All ranks know all parameters, and the optimiser's state."""
        if isinstance(fit.step, RanksStep):
            fit.step.collect()

    def before(self, fit: Fit, event: str) -> None:
        """Before an event: parameters and moments that ranks share out are collected, if somebody looks."""
        self._collect_for(fit, event)
        if not self._is_paused_later(fit):
            self.note_values(fit)

    @staticmethod
    def _is_paused_later(fit: Fit) -> bool:
        """Whether workers of an asynchronous training are at work, who hear of all when they are paused."""
        return fit.batch > 0 and isinstance(fit.step, AsyncStep)

    def note_values(self, fit: Fit) -> None:
        """Remember which values the model has, so that `after` knows which ones callbacks have set."""
        if self.is_first and self._comm.size > 1:
            self._versions = versions_of(fit.model)

    def _collect_for(self, fit: Fit, event: str) -> None:
        step = fit.step
        if not isinstance(step, RanksStep) or not step.is_scattered:
            return
        if event == "on_epoch_begin":
            step.begin_epoch()
        elif event == "on_batch_end":
            looks = [callback.looks(fit) for callback in fit.callbacks]  # each is asked
            if not self._agreement.all(not any(looks), "nobody looks at parameters"):
                step.collect()

    def after(self, fit: Fit) -> None:
        """After an event: all ranks stop if one does, and have rank 0's settings and the values set there.

        Raises:
            ArgumentError: if a callback of rank 0 alone has set a function.
        """
        if self._comm.size == 1 or self._is_paused_later(fit):
            return
        settings, written = fit.step.overrides, self._written(fit)
        signal = next((n for c in fit.callbacks if (n := c._ending_signal) is not None), None)
        news = fit.stopped is not None or (self.is_first and settings != self._known)
        news = news or signal != self._signal
        if self._agreement.all(not (news or written), "nothing has changed"):
            return
        self._share(fit, written)
        told = settings_of(fit)
        found: list[Any] = self._comm.exchange([fit.stopped, fit.goes_on, told, signal])
        self._take_signals(fit, [number for *_, number in found if number is not None])
        first = found[0][2]
        if lost := [
            name for name, value in first.items() if value is None and name not in settings
        ]:
            raise ArgumentError(
                f"fit: a callback on rank 0 has set {lost[0]} to a function, which other ranks cannot "
                f"get: use a "
                "schedule of md.optim, or a callback with is_everywhere = True"
            )
        if not self.is_first and first != told:
            set_only(fit, saved_settings(fit, first))
        self._known = fit.step.overrides
        for reason, goes_on, *_ in found:
            if reason is not None:
                fit.stopped, fit.goes_on = reason, goes_on
                return

    def _take_signals(self, fit: Fit, numbers: Sequence[int]) -> None:
        """Whichever rank a signal came to, all end by it, once rank 0 has saved."""
        if numbers:
            self._signal = numbers[0]
            for callback in fit.callbacks:
                callback._take_signal(numbers[0])

    def ends(self, fit: Fit) -> None:
        """After `on_train_end`: all ranks have the values that a callback on rank 0 has set there."""
        if self._comm.size > 1 and fit.completed:
            self._share(fit, self._written(fit))

    def _written(self, fit: Fit) -> list[str]:
        """Names of the model's values that callbacks on this rank, the first, have set."""
        if not self.is_first or all(callback.is_aside for callback in fit.callbacks):
            return []
        return written_since(fit.model, self._versions)

    def _share(self, fit: Fit, names: Sequence[str]) -> None:
        """Give all ranks these values of rank 0."""
        named = fit.model.named()
        own = {name: named[name].node.value.read() for name in names}
        values = given_to_all(self._comm, own)
        if not self.is_first:
            for name, value in values.items():
                named[name].assign(value)


def _number(tensors: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> int | None:
    """Which of the files that all have read holds just these tensors; None if none does."""
    for number, one in enumerate(found):
        if one.keys() == tensors.keys() and all(one[name] is tensors[name] for name in one):
            return number
    return None


def versions_of(model: Model) -> dict[str, int | None]:
    """What changes with each value of a model when it is written; None where nobody can tell."""
    return {name: tensor_of(p.node).memory.version for name, p in model.named().items()}


def written_since(model: Model, versions: Mapping[str, int | None]) -> list[str]:
    """Names of the values that may have been written since `versions_of` gave this."""
    now = versions_of(model)
    return [name for name, v in now.items() if v is None or v != versions.get(name)]
