"""Lowering the learning rate where a figure no longer improves."""

from __future__ import annotations

from typing import Any

from magmadnn.errors import ArgumentError
from magmadnn.graph.op import Array
from magmadnn.optim.records import Range
from magmadnn.training.arguments import at_least
from magmadnn.training.loop.fit import Fit

from .callback import Callback
from .functions import Schedule
from .monitor import Monitor

_FACTOR = Range("above 0 and below 1", 0.0, 1.0, above=True)
_RATE = Range("a number of at least 0", 0.0)


class ReduceLROnPlateau(Callback):
    """Multiplies the learning rate by `factor` when a monitored value has not improved for `patience` epochs.

    A `Checkpoint` keeps rate and counts.

    Args:
        monitor: column of the history; validation loss if there is one, else the loss.
        factor: above 0 and below 1.
        patience: epochs without improvement that are put up with.
        min_delta: smallest change that counts as improvement.
        cooldown: epochs after a reduction that do not count.
        min_learning_rate: the rate is not made lower than this.
        mode: as in EarlyStopping.

    Raises:
        ArgumentError: if an argument is out of range; in training if the learning rate is a schedule, or the
            mode is not known.
    """

    is_everywhere = True
    _made_with = ("monitor", "mode")

    def __init__(
        self,
        monitor: str | None = None,
        *,
        factor: float = 0.1,
        patience: int = 10,
        min_delta: float = 0.0,
        cooldown: int = 0,
        min_learning_rate: float = 0.0,
        mode: str = "auto",
    ) -> None:
        at_least("ReduceLROnPlateau: patience", patience, 0)
        at_least("ReduceLROnPlateau: cooldown", cooldown, 0)
        name = "ReduceLROnPlateau"
        self.factor = _FACTOR.check(name, "factor", factor)
        self.min_learning_rate = _RATE.check(name, "min_learning_rate", min_learning_rate)
        self.min_delta = _RATE.check(name, "min_delta", min_delta)
        self.patience, self.cooldown = patience, cooldown
        self._monitor = Monitor(name, monitor, mode)
        self._waited = self._resting = 0

    def on_train_begin(self, fit: Fit) -> None:
        """Look whether there is a number to lower, which nobody else sets."""
        self._monitor.begin(fit)
        rate = fit.step.source("learning_rate")
        if rate is None or callable(rate):
            what = "no setting" if rate is None else "a schedule"
            raise ArgumentError(
                f"ReduceLROnPlateau: the optimiser's learning_rate is {what}; give it a number"
            )
        if any(isinstance(c, Schedule) and c.setting == "learning_rate" for c in fit.callbacks):
            raise ArgumentError(
                "ReduceLROnPlateau: a Schedule sets learning_rate in each epoch; leave one of them out"
            )

    def on_epoch_end(self, fit: Fit) -> None:
        """Compare, wait, lower the rate."""
        improves = self._monitor.improves(fit, self.min_delta)
        if improves or self._resting:
            self._waited, self._resting = 0, max(self._resting - 1, 0)
            return
        self._waited += 1
        rate = fit.step.settings["learning_rate"]
        if self._waited > self.patience and rate > self.min_learning_rate:
            fit.step.set(learning_rate=max(rate * self.factor, self.min_learning_rate))
            self._waited, self._resting = 0, self.cooldown

    def arguments(self) -> dict[str, Any]:
        """What it was made with."""
        return {
            "monitor": self._monitor.given, "factor": self.factor, "patience": self.patience,
            "min_delta": self.min_delta, "cooldown": self.cooldown,
            "min_learning_rate": self.min_learning_rate, "mode": self._monitor.mode,
        }  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Best value and epochs waited; the rate is kept by training itself."""
        return {**self._monitor.state(), "waited": self._waited, "resting": self._resting}

    def restore(self, state: dict[str, Any], tensors: dict[str, Array]) -> None:
        """Go on waiting."""
        self._monitor.restore(state)
        self._waited, self._resting = int(state["waited"]), int(state["resting"])
