"""Ending training where a figure no longer improves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magmadnn.graph.op import Array
from magmadnn.storage.formats.plain_schema import Anything, Fields, Whole, check, maybe
from magmadnn.training.arguments import at_least
from magmadnn.training.loop.fit import Fit

from .callback import Callback
from .monitor import Monitor

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

_STATE = Fields({"waited": Whole(), "best_epoch": maybe(Whole(1))}, others=Anything())


class EarlyStopping(Callback):
    """Stops when a monitored value has not improved for `patience` epochs.

    Args:
        monitor: column of the history; validation loss if there is one, else the loss.
        patience: epochs without improvement that are put up with.
        min_delta: smallest change that counts as improvement.
        mode: "min" where lower values are better, "max" where higher ones are; "auto" for what losses and
            metrics say of themselves, which a function of your own does not.
        restore_best: whether the model gets back the parameters of its best epoch at the end.

    Attributes:
        best_epoch: the last epoch, from 1, that was better by min_delta than the best before; None before one
            was.

    Raises:
        ArgumentError: if patience is negative; in training if mode is "auto" and nobody knows the mode.
    """

    is_everywhere = True
    _made_with = ("monitor", "mode")

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
        self._monitor = Monitor("EarlyStopping", monitor, mode)
        self.best_epoch: int | None = None
        self._waited = 0
        self._kept: dict[str, Array] = {}
        self._model: Model | None = None  # while it is trained

    def on_train_begin(self, fit: Fit) -> None:
        """Look whether the monitored column says which values are better."""
        self._monitor.begin(fit)
        self._model = fit.model

    def on_epoch_end(self, fit: Fit) -> None:
        """Compare, wait, stop."""
        if self._monitor.improves(fit, self.min_delta):
            self._waited, self.best_epoch = 0, fit.epoch
            if self.restore_best:
                self._kept = fit.values()
            return
        self._waited += 1
        if self._waited > self.patience:
            best, name = self._monitor.best, self._monitor.name
            text = "none" if best is None else f"{best:.6g}"
            fit.stop(f"{name} has not improved for {self._waited} epochs; its best is {text}")

    def on_train_end(self, fit: Fit) -> None:
        """Give the best parameters back."""
        if self._kept:
            fit.model.assign(self._kept)
        self._kept, self._model = {}, None

    def arguments(self) -> dict[str, Any]:
        """What it was made with."""
        return {
            "monitor": self._monitor.given, "patience": self.patience, "min_delta": self.min_delta,
            "mode": self._monitor.mode, "restore_best": self.restore_best,
        }  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Best value, its epoch, and epochs waited."""
        return {
            **self._monitor.state(), "waited": self._waited, "best_epoch": self.best_epoch,
        }  # fmt: skip

    def tensors(self) -> dict[str, Array]:
        """The best parameters."""
        return self._kept

    def restore(self, state: dict[str, Any], tensors: dict[str, Array]) -> None:
        """Go on waiting.

        Raises:
            CheckpointError: if the best parameters are of another model, or a field is damaged.
        """
        check(_STATE, state, "checkpoint: EarlyStopping")
        if tensors and self._model is not None:
            self._model.check(tensors)
        self._monitor.restore(state)
        self._waited, self._kept = state["waited"], dict(tensors)
        self.best_epoch = state["best_epoch"]
