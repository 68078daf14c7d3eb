"""The best value of a column of the history, for callbacks that compare epochs."""

from __future__ import annotations

import math
from typing import Any

from magmadnn.errors import ArgumentError, CheckpointError, UnknownNameError
from magmadnn.storage.formats.plain_schema import Anything, Fields, Number, Text, check, maybe
from magmadnn.training.loop.fit import Fit

_STATE = Fields({"best": maybe(Number()), "monitor": maybe(Text())}, others=Anything())


class Monitor:
    """The best value of a column of the history so far.

    Args:
        owner: whose it is, for errors.
        given: the column; None for the validation loss where there is one, else the loss.
        mode: "min", "max", or "auto" for what metrics and losses say of themselves.

    Raises:
        UnknownNameError: for another mode.
    """

    def __init__(self, owner: str, given: str | None, mode: str) -> None:
        if mode not in ("auto", "min", "max"):
            raise UnknownNameError.of(f"{owner}: mode", mode, ("auto", "min", "max"))
        self.owner, self.given, self.mode = owner, given, mode
        self.name = given
        self.best: float | None = None

    def begin(self, fit: Fit) -> None:
        """Look, before an epoch is spent, whether it is known which values of a metric are better.

        Raises:
            ArgumentError: if not.
        """
        if self.given is not None and fit.measures(self.given):
            self._rises(fit, self.given)

    def improves(self, fit: Fit, by: float = 0.0) -> bool:
        """Whether the epoch that just ended is better than the best; it is the best from now on if so.

        Raises:
            UnknownNameError: if there is no such column.
            ArgumentError: if nobody has said which values are better.
        """
        self.name = self.name or ("val_loss" if "val_loss" in fit.row else "loss")
        if self.name not in fit.row:
            raise UnknownNameError.of(f"{self.owner}: monitor", self.name, fit.row)
        value, rises = fit.row[self.name], self._rises(fit, self.name)
        gain = 0.0 if self.best is None else (value - self.best if rises else self.best - value)
        if math.isnan(value) or (self.best is not None and gain <= by):
            return False
        self.best = value
        return True

    def _rises(self, fit: Fit, name: str) -> bool:
        """Whether higher values are better."""
        rises = fit.higher_is_better(name) if self.mode == "auto" else self.mode == "max"
        if rises is None:
            raise ArgumentError(
                f"{self.owner}: whether {name!r} is better when it is low or high is not known; give "
                'mode="min" or mode="max"'
            )
        return rises

    def state(self) -> dict[str, Any]:
        """The column and its best value."""
        return {"best": self.best, "monitor": self.name}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state()`.

        Raises:
            CheckpointError: if that is of another column, or nothing that `state` gives.
        """
        check(_STATE, state, f"checkpoint: {self.owner}")
        name = state["monitor"]
        if None not in (name, self.given) and name != self.given:
            raise CheckpointError(
                f"checkpoint: {self.owner} has the best value of {name!r}, this one looks at "
                f"{self.given!r}; give the same monitor, or another folder"
            )
        self.best, self.name = state["best"], self.given or name
