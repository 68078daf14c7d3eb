"""Callbacks: what happens beside training. Each is a few lines over the hooks of `Callback`."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from magmadnn.errors import ArgumentError, MissingExtraError, UnknownNameError
from magmadnn.graph.op import Array

from .checkpoint import CheckpointStore, State
from .checks import at_least
from .fit import Fit
from .signals import StopRequest

_REST = 9  # times what a save took, until the next one at the end of an epoch


class Callback:
    """Base of callbacks; override the hooks that you need. Each gets the running `Fit`.

    Attributes:
        comes_last: whether it is called after the others, wherever it stands among them.
        stands_aside: whether it neither looks at parameters and optimiser nor changes or stops anything, so
            that the next steps may have begun when it is called. What a class says is not true of classes
            that are made from it.
    """

    comes_last: ClassVar[bool] = False
    stands_aside: ClassVar[bool] = False

    def on_train_begin(self, fit: Fit) -> None:
        """Before the first step."""

    def on_epoch_begin(self, fit: Fit) -> None:
        """Before the first batch of an epoch, and after resuming within one."""

    def on_batch_end(self, fit: Fit) -> None:
        """After each step; `fit.last_loss` is its loss."""

    def batches(self, fit: Fit) -> int | None:
        """How many batches may run before `on_batch_end` must be called; None for any number.

        Here: each single one, for callbacks that look at batches at all.
        """
        looks = type(self).on_batch_end is not Callback.on_batch_end or "on_batch_end" in vars(self)
        return 1 if looks else None

    def on_epoch_end(self, fit: Fit) -> None:
        """After validation; `fit.row` holds the epoch's figures."""

    def on_train_end(self, fit: Fit) -> None:
        """At the end, also after an error."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep of this callback, as JSON data."""
        return {}

    def tensors(self) -> dict[str, Array]:
        """Arrays that a checkpoint must keep beside `state`."""
        return {}

    def restore(self, state: dict[str, Any], tensors: dict[str, Array]) -> None:
        """Go on from `state()` and `tensors()`."""


class _Monitor:
    """The best value of a column of the history so far."""

    def __init__(self, owner: str, monitor: str | None, mode: str) -> None:
        if mode not in ("auto", "min", "max"):
            raise UnknownNameError.of(f"{owner}: mode", mode, ("auto", "min", "max"))
        self.owner, self.monitor, self.mode = owner, monitor, mode
        self.best: float | None = None

    def value(self, fit: Fit) -> float:
        """The monitored value of the epoch that just ended."""
        if self.monitor is None:
            self.monitor = "val_loss" if "val_loss" in fit.row else "loss"
        if self.monitor not in fit.row:
            raise UnknownNameError.of(f"{self.owner}: monitor", self.monitor, fit.row)
        return fit.row[self.monitor]

    def improves(self, value: float, by: float = 0.0) -> bool:
        """Whether `value` is better than the best; it is the best from now on if so."""
        falling = ("loss", "error", "rmse", "mae", "mse")
        rising = self.mode == "max" or (
            self.mode == "auto" and not any(word in (self.monitor or "") for word in falling)
        )
        gain = 0.0 if self.best is None else (value - self.best if rising else self.best - value)
        if math.isnan(value) or (self.best is not None and gain <= by):
            return False
        self.best = value
        return True


class EarlyStopping(Callback):
    """Stops when a monitored value has not improved for `patience` epochs.

    Args:
        monitor: column of the history; validation loss if there is one, else the loss.
        patience: epochs without improvement that are put up with.
        min_delta: smallest change that counts as improvement.
        mode: "min", "max", or "auto": smaller is better for losses and errors.
        restore_best: whether the model gets back the parameters of its best epoch at the end.

    Raises:
        ArgumentError: if patience is negative.
    """

    def __init__(
        self,
        monitor: str | None = None,
        *,
        patience: int = 0,
        min_delta: float = 0.0,
        mode: str = "auto",
        restore_best: bool = False,
    ) -> None:
        at_least("EarlyStopping: patience", patience, 0)
        self.patience, self.min_delta, self.restore_best = patience, min_delta, restore_best
        self._monitor = _Monitor("EarlyStopping", monitor, mode)
        self._waited = 0
        self._kept: dict[str, Array] = {}

    def on_epoch_end(self, fit: Fit) -> None:
        """Compare, wait, stop."""
        value = self._monitor.value(fit)
        if self._monitor.improves(value, self.min_delta):
            self._waited = 0
            if self.restore_best:
                self._kept = fit.model.values()
            return
        self._waited += 1
        if self._waited > self.patience:
            best, name = self._monitor.best, self._monitor.monitor
            text = "none" if best is None else f"{best:.6g}"
            fit.stop(f"{name} has not improved for {self._waited} epochs; its best is {text}")

    def on_train_end(self, fit: Fit) -> None:
        """Give the best parameters back."""
        if self._kept:
            fit.model.assign(self._kept)

    def state(self) -> dict[str, Any]:
        """Best value and epochs waited."""
        return {
            "best": self._monitor.best,
            "monitor": self._monitor.monitor,
            "waited": self._waited,
        }

    def tensors(self) -> dict[str, Array]:
        """The best parameters."""
        return self._kept

    def restore(self, state: dict[str, Any], tensors: dict[str, Array]) -> None:
        """Go on waiting."""
        self._monitor.best, self._monitor.monitor = state["best"], state["monitor"]
        self._waited, self._kept = state["waited"], dict(tensors)


class Checkpoint(Callback):
    """Saves the training so that it goes on bit for bit, and resumes from what is there.

    Args:
        folder: where `checkpoints/` is kept: the last two and the best.
        every_steps: save after so many steps; None: at the end of each epoch (of short ones not each, so that
            saving takes a tenth of the time at most), and
        every_seconds: as soon as so much time has passed since the last save.
        monitor: column that says which epoch is best; as in EarlyStopping.
        mode: as in EarlyStopping.
        resume: whether to go on from a checkpoint that is there already.
        signals: whether SIGTERM and Ctrl-C save and end training at the next step.

    Raises:
        ArgumentError: if every_steps or every_seconds is not above 0.
    """

    # What EarlyStopping counts at the end of an epoch belongs to that epoch's checkpoint.
    comes_last = True

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
            if value is not None and value <= 0:
                raise ArgumentError(f"Checkpoint: {name} must be above 0, got {value}")
        self.store = CheckpointStore(folder)
        self.every_steps, self.every_seconds, self.resume = every_steps, every_seconds, resume
        self._signals = StopRequest() if signals else None
        self._monitor = _Monitor("Checkpoint", monitor, mode)
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
        self._saved_step = -1
        self._best: tuple[int, State] | None = None  # not written yet

    @property
    def interrupted_by(self) -> int | None:
        """The signal that ended training; None if none did."""
        return None if self._signals is None else self._signals.requested

    def on_train_begin(self, fit: Fit) -> None:
        """Resume, and listen to signals."""
        if self.resume and (state := self.store.latest()) is not None:
            fit.restore(state)
            self._saved_step = fit.steps
        if self._signals is not None:
            self._signals.__enter__()
        self._saved_at = time.monotonic()

    def batches(self, fit: Fit) -> int | None:
        """Up to the next save by number of steps; time and signals can wait for a slice."""
        return None if self.every_steps is None else self.every_steps - fit.steps % self.every_steps

    def on_batch_end(self, fit: Fit) -> None:
        """Save when it is time, or when a signal came."""
        if self.interrupted_by is not None:
            self._save(fit)
            fit.stop(f"signal {self.interrupted_by}")
        elif self.every_steps is not None:
            if fit.steps % self.every_steps == 0:
                self._save(fit)
        elif self.every_seconds is not None:
            if time.monotonic() - self._saved_at >= self.every_seconds:
                self._save(fit)

    def on_epoch_end(self, fit: Fit) -> None:
        """Save, if it is time; the best epoch is marked, and kept in memory until then."""
        if self._monitor.improves(self._monitor.value(fit)):
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
        self._write_best()
        if self._signals is not None:
            self._signals.__exit__(None, None, None)

    def state(self) -> dict[str, Any]:
        """The best value so far."""
        return {"best": self._monitor.best, "monitor": self._monitor.monitor}

    def restore(self, state: dict[str, Any], tensors: dict[str, Array]) -> None:
        """Go on comparing with it."""
        self._monitor.best, self._monitor.monitor = state["best"], state["monitor"]


class CSVLogger(Callback):
    """Writes a row for each epoch to a CSV file while training runs."""

    stands_aside = True

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_epoch_end(self, fit: Fit) -> None:
        """Add the epoch's row; the header stands in the first line."""
        fresh = len(fit.history) == 1
        with self.path.open("w" if fresh else "a", newline="") as file:
            writer = csv.DictWriter(file, list(fit.row), lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow(fit.row)


class Schedule(Callback):
    """Sets a setting of the optimiser at the start of each epoch.

    `Schedule(lambda epoch: 0.1 / (epoch + 1))` sets the learning rate.

    Args:
        schedule: function of the epoch, counted from 0.
        setting: which setting.

    Raises:
        ArgumentError: if schedule is no function.
    """

    def __init__(self, schedule: Callable[[int], float], setting: str = "learning_rate") -> None:
        if not callable(schedule):
            raise ArgumentError(
                f"Schedule: schedule must be a function of the epoch, got {schedule!r}"
            )
        self.schedule, self.setting = schedule, setting

    def on_epoch_begin(self, fit: Fit) -> None:
        """Set the value."""
        fit.step.set(**{self.setting: float(self.schedule(fit.epoch))})


class LambdaCallback(Callback):
    """Calls functions at the hooks: `LambdaCallback(on_epoch_end=lambda fit: print(fit.row))`."""

    def __init__(self, **hooks: Callable[[Fit], None]) -> None:
        known = [name for name in vars(Callback) if name.startswith("on_")]
        for name, function in hooks.items():
            if name not in known:
                raise UnknownNameError.of("LambdaCallback: hook", name, known)
            setattr(self, name, function)


class TensorBoard(Callback):
    """Writes each epoch's figures for TensorBoard.

    Args:
        folder: where event files go; each training writes one of its own.

    Raises:
        MissingExtraError: without tensorboardX.
    """

    stands_aside = True

    def __init__(self, folder: str | Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise MissingExtraError.of("tensorboardX", "TensorBoard", "tensorboard") from error
        self._open, self._folder = SummaryWriter, str(folder)
        self._writer: Any = None

    def on_train_begin(self, fit: Fit) -> None:
        """Open a file."""
        self._writer = self._open(self._folder)

    def on_epoch_end(self, fit: Fit) -> None:
        """One scalar for each column."""
        for name, value in fit.row.items():
            self._writer.add_scalar(name, value, fit.epoch)

    def on_train_end(self, fit: Fit) -> None:
        """Write what is left."""
        self._writer.close()
