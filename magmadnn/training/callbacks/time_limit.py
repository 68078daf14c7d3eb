"""Ending training after some time."""

from __future__ import annotations

import time
from typing import Any

from magmadnn.optim.records import Range
from magmadnn.training.loop.fit import Fit

from .callback import Callback

_SECONDS = Range("a number above 0", 0.0, above=True)


class TimeLimit(Callback):
    """Ends training at the next step after `seconds`; `history.stopped` says so.

    Beside a `Checkpoint` the state is saved then, and the next `fit` goes on with a limit of its own, as jobs
    of a cluster do. Leave time for that, and for validation, which is not cut short.

    Args:
        seconds: from the beginning of training, without what was done before a resume.

    Raises:
        ArgumentError: if seconds is not above 0.
    """

    is_everywhere = True

    def __init__(self, seconds: float) -> None:
        self.seconds = _SECONDS.check("TimeLimit", "seconds", seconds)
        self._started = time.monotonic()

    def arguments(self) -> dict[str, Any]:
        """What it was made with."""
        return {"seconds": self.seconds}

    def on_train_begin(self, fit: Fit) -> None:
        """Look at the clock."""
        self._started = time.monotonic()

    def batches(self, fit: Fit) -> int | None:
        """Any number: slices are short."""
        return None

    def on_batch_end(self, fit: Fit) -> None:
        """Stop, if it is time."""
        if time.monotonic() - self._started >= self.seconds:
            fit.stop(f"the time limit of {self.seconds:g} seconds is reached", goes_on=True)

    def on_epoch_end(self, fit: Fit) -> None:
        """Stop, if it is time; validation may have taken long."""
        if fit.epoch < fit.epochs:
            self.on_batch_end(fit)
