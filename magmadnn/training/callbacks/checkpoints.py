"""Saving a training while it runs, and going on from what was saved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from magmadnn.errors import ArgumentError
from magmadnn.graph.op import Array
from magmadnn.storage.checkpoint import CheckpointStore, State
from magmadnn.storage.holding import Holding
from magmadnn.storage.input_files import input_path
from magmadnn.training.loop.fit import Fit
from magmadnn.training.loop.signals import StopRequest

from .callback import Callback
from .monitor import Monitor

_REST = 9  # times what a save took, until the next one at the end of an epoch


class Checkpoint(Callback):
    """Saves the training so that it goes on bit for bit, and resumes from what is there.

    Args:
        folder: where `checkpoints/` is kept: the last two and the best.
        every_steps: save after so many steps; None: at the end of each epoch (of short ones not each, so that
            saving takes a tenth of the time at most), and
        every_seconds: as soon as so much time has passed since the last save.
        monitor: column that says which epoch is best; as in EarlyStopping.
        mode: as in EarlyStopping.
        resume: whether to go on from a checkpoint that is there already. It must be of the same training: of
            this model, optimiser and data, these initial values and arguments of `fit`; epochs, callbacks,
            device and executor may differ. False: those that are there are removed when the first is saved.
        signals: whether SIGTERM and Ctrl-C save at the next step, and then end training and the program: as
            KeyboardInterrupt, as SystemExit with the code 143, or as the program's own handler wants it. A
            second Ctrl-C does not wait for the step.

    Attributes:
        is_saved: whether all steps of the last training are.

    Raises:
        ArgumentError: if every_steps or every_seconds is not above 0.
    """

    # What EarlyStopping counts at the end of an epoch belongs to that epoch's checkpoint.
    comes_last = True
    writes_files = True
    _made_with = ("folder", "monitor", "mode", "settings")

    def __init__(
        self,
        folder: str | Path,
        *,
        every_steps: int | None = None,
        every_seconds: float | None = 60.0,
        monitor: str | None = None,
        mode: str = "auto",
        resume: bool = True,
        signals: bool = True,
    ) -> None:
        for name, value in (("every_steps", every_steps), ("every_seconds", every_seconds)):
            if value is not None and not (isinstance(value, Real) and value > 0):
                raise ArgumentError(f"Checkpoint: {name} must be above 0, got {value!r}")
        folder = input_path("Checkpoint: the folder", folder)
        self._folder = str(folder.absolute())
        self.store = CheckpointStore(folder)
        self.every_steps, self.every_seconds, self.resume = every_steps, every_seconds, resume
        self.signals = signals
        self._signals: StopRequest | None = None
        self._holding: Holding | None = None
        self._monitor = Monitor("Checkpoint", monitor, mode)
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
        self._saved_step = -1
        self.is_saved = False
        self._best: tuple[int, State] | None = None  # not written yet
        self._looks: bool | None = None  # what `looks` has said

    @property
    def settings(self) -> dict[str, Any]:
        """What another process makes one with that does the same."""
        return {
            "folder": self._folder, "every_steps": self.every_steps,
            "every_seconds": self.every_seconds, "monitor": self._monitor.given,
            "mode": self._monitor.mode, "resume": self.resume,
        }  # fmt: skip

    def arguments(self) -> dict[str, Any]:
        """What it was made with, but whether it listens to signals."""
        return self.settings

    @property
    def interrupted_by(self) -> int | None:
        """The signal that ended training; None if none did."""
        return None if self._signals is None else self._signals.requested

    @property
    def _ending_signal(self) -> int | None:
        return self.interrupted_by

    def _take_signal(self, number: int) -> None:
        """Save at the next step, and end, as another rank was asked to."""
        if self._signals is not None:
            self._signals.take(number)

    def _on_other_ranks(self) -> Callback | None:
        """On other ranks signals wait until this one has saved."""
        return Waiting() if self.signals else None

    def on_train_begin(self, fit: Fit) -> None:
        """Listen to signals."""
        self._monitor.begin(fit)
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
        self._saved_step, self._best, self.is_saved = -1, None, False
        self.store.begins_anew = not self.resume
        self._signals = None
        self._holding = Holding(self.store.folder.parent, "train")
        self._signals = StopRequest() if self.signals else None
        if self._signals is not None:
            self._signals.__enter__()

    def saved(self, fit: Fit) -> State | None:
        """The newest checkpoint, if training is to go on from it."""
        fit.note_identity()
        state = self.store.latest(read_parts=fit.read_parts) if self.resume else None
        if state is not None:
            self._saved_step = state.record.get("steps", -1)
        return state

    def saved_run(self) -> Mapping[str, Any]:
        """Of the newest checkpoint, if training is to go on from it."""
        run = (self.store.latest_record() if self.resume else {}).get("run", {})
        return run if isinstance(run, Mapping) else {}

    def batches(self, fit: Fit) -> int | None:
        """Up to the next save by number of steps; time and signals can wait for a slice."""
        return None if self.every_steps is None else self.every_steps - fit.steps % self.every_steps

    def on_batch_end(self, fit: Fit) -> None:
        """Save when it is time, or when a signal came."""
        is_due = self._is_due(fit) if self._looks is None else self._looks or fit.is_stopping
        signal, self._looks = self.interrupted_by, None
        if is_due:
            self._save(fit)
            if signal is not None:
                fit.stop(f"signal {signal}", goes_on=True)

    def looks(self, fit: Fit) -> bool:
        """Whether it will save; what was said here holds for the `on_batch_end` that comes next."""
        self._looks = self._is_due(fit)
        return self._looks

    def _is_due(self, fit: Fit) -> bool:
        """Whether it is time to save after a batch."""
        if self.interrupted_by is not None or fit.is_stopping:
            return True
        if self.every_steps is not None:
            return fit.steps % self.every_steps == 0
        seconds = time.monotonic() - self._saved_at
        return self.every_seconds is not None and seconds >= self.every_seconds

    def on_epoch_end(self, fit: Fit) -> None:
        """Save, if it is time; the best epoch is marked, and kept in memory until then."""
        if self.interrupted_by is not None:  # while validation ran
            fit.stop(f"signal {self.interrupted_by}", goes_on=True)
        if self._monitor.improves(fit):
            self._best = fit.steps, fit.state()
        is_last = fit.epoch == fit.epochs or fit.is_stopping
        rested = time.monotonic() - self._saved_at >= _REST * self._save_seconds
        if is_last or (rested and (self._best is not None or self.every_steps is None)):
            self._save(fit)

    def _save(self, fit: Fit) -> None:
        started, best = time.monotonic(), self._best
        self._write_best()
        if fit.steps != self._saved_step and (best is None or best[0] != fit.steps):
            self.store.save(fit.steps, fit.state())
        self._saved_step, self._saved_at = fit.steps, time.monotonic()
        self._save_seconds = self._saved_at - started

    def _write_best(self) -> None:
        if self._best is not None:
            (step, state), self._best = self._best, None
            self.store.save(step, state, best=True)

    def on_train_end(self, fit: Fit) -> None:
        """Write what is kept in memory, and give signals back to the program."""
        holding, self._holding = self._holding, None
        if holding is None:  # it could not begin
            return
        try:
            self._write_best()
            self.is_saved = self._saved_step == fit.steps
        finally:
            holding.release()
            if self._signals is not None:
                self._signals.__exit__(None, None, None)
        if self._signals is not None and fit.completed:
            self._signals.pass_on()

    def state(self) -> dict[str, Any]:
        """The best value so far."""
        return self._monitor.state()

    def restore(self, state: dict[str, Any], tensors: dict[str, Array]) -> None:
        """Go on comparing with it."""
        self._monitor.restore(state)


class Waiting(Callback):
    """On ranks that save nothing: SIGTERM and Ctrl-C end them when rank 0 has saved, which is told."""

    is_everywhere = True
    stands_aside = True

    def __init__(self) -> None:
        self._signals = StopRequest()

    @property
    def _ending_signal(self) -> int | None:
        """The signal that came here, or to another rank."""
        return self._signals.requested

    def _take_signal(self, number: int) -> None:
        """Take a signal of another rank's as one's own."""
        self._signals.take(number)

    def on_train_begin(self, fit: Fit) -> None:
        """Listen."""
        self._signals.__enter__()

    def on_train_end(self, fit: Fit) -> None:
        """Give signals back to the program."""
        self._signals.__exit__(None, None, None)
        if fit.completed:
            self._signals.pass_on()
