"""The best value of a column of the history, for callbacks that compare epochs."""

from __future__ import annotations

import math

from magmadnn.errors import UnknownNameError
from magmadnn.training.loop.fit import Fit


class Monitor:
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
