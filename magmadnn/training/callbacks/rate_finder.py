"""A sweep over learning rates, to choose one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, NumericError
from magmadnn.graph.op import Array
from magmadnn.optim.records import Range, Setting
from magmadnn.training.arguments import at_least
from magmadnn.training.loop.fit import Fit

from .callback import Callback
from .checkpoints import Checkpoint

_RATE = Range("a number above 0", 0.0, above=True)
_SMOOTHING = 0.9  # of losses, whose mean is taken as Adam takes its own
_WORSE = 4.0  # times the least smoothed loss: training has become unstable


class RateFinder(Callback):
    """Raises the learning rate from step to step, notes the loss, and gives the model back as it was.

    The rate of step k is lowest * (highest / lowest)**(k / (steps - 1)). The sweep ends where the loss is no
    longer finite, or four times the least one. Smith, "Cyclical learning rates for training neural networks",
    WACV 2017 (arXiv:1506.01186), section 3.3; there the rate rises evenly.

        finder = md.callbacks.RateFinder()
        model.fit(x, y, epochs=3, callbacks=[finder])
        model.optimizer = md.optim.Adam(finder.suggestion)

    Args:
        lowest: rate of the first step.
        highest: rate of the last one.
        steps: how many, at least 10; `fit` needs as many batches.

    Attributes:
        rates: of the steps done.
        losses: of the same, smoothed.

    Raises:
        ArgumentError: if an argument is out of range; in training if there are too few steps, or there is a
            Checkpoint.
    """

    is_everywhere = True

    def __init__(self, lowest: float = 1e-6, highest: float = 1.0, *, steps: int = 100) -> None:
        self.lowest = _RATE.check("RateFinder", "lowest", lowest)
        self.highest = _RATE.check("RateFinder", "highest", highest)
        at_least("RateFinder: steps", steps, 10)
        if self.lowest >= self.highest:
            raise ArgumentError(
                f"RateFinder: lowest must be below highest, got {lowest} and {highest}"
            )
        self.steps = steps
        self.rates: list[float] = []
        self.losses: list[float] = []
        self._mean = 0.0
        self._before: tuple[dict[str, Array], dict[str, Any], dict[str, Setting], int] | None = None

    @property
    def suggestion(self) -> float:
        """The rate at which the smoothed loss falls fastest with the rate's logarithm.

        The first tenth of the sweep, where few losses are smoothed, does not count.

        Raises:
            ArgumentError: before a sweep, or after one that found no fall.
        """
        if len(self.losses) < 3:
            raise ArgumentError(
                "RateFinder: there is no sweep yet; give it to fit(callbacks=[finder])"
            )
        falls = np.gradient(np.array(self.losses), np.log(self.rates))
        first = len(falls) // 10
        best = first + int(np.argmin(falls[first:]))
        if falls[best] >= 0:
            raise ArgumentError(
                "RateFinder: the loss fell at no rate of the sweep; give a lower one to begin with, or more "
                "steps"
            )
        return self.rates[best]

    def on_train_begin(self, fit: Fit) -> None:
        """Note what the model is like, and set the rates."""
        if any(isinstance(callback, Checkpoint) for callback in fit.callbacks):
            raise ArgumentError("RateFinder: a sweep is not saved; leave the Checkpoint out")
        there = None if fit.batches is None else fit.batches * (fit.epochs - fit.epoch)
        if there is not None and there < self.steps:
            epochs = math.ceil(self.steps / (fit.batches or 1))
            raise ArgumentError(
                f"RateFinder: the sweep has {self.steps} steps, this fit {there}; give epochs={epochs}"
            )
        state = {name: np.asarray(slot) for name, slot in fit.step.state().items()}
        model = fit.model
        self._before = model.values(), state, fit.step.overrides, model.epochs_done
        self.rates, self.losses, self._mean = [], [], 0.0
        first = fit.step.count
        fit.step.set(learning_rate=lambda step: self._rate(step - first))

    def _rate(self, number: int) -> float:
        """The rate of a step, counted from 0."""
        return float(self.lowest * (self.highest / self.lowest) ** (number / (self.steps - 1)))

    def on_batch_end(self, fit: Fit) -> None:
        """Note the step's loss; end where it is far above the least one."""
        done = len(self.rates)
        self.rates.append(self._rate(done))
        self._mean = _SMOOTHING * self._mean + (1 - _SMOOTHING) * fit.last_loss
        self.losses.append(self._mean / (1 - _SMOOTHING ** (done + 1)))
        if done + 1 >= self.steps or (done > 10 and self.losses[-1] > _WORSE * min(self.losses)):
            fit.stop(f"the sweep has ended at a learning rate of {self.rates[-1]:.3g}")

    def forgives(self, fit: Fit, error: NumericError) -> bool:
        """A loss that is not finite ends the sweep."""
        rate = self._rate(len(self.rates))
        fit.stop(
            f"the sweep has ended at a learning rate of {rate:.3g}, where the loss is not finite"
        )
        return True

    def on_train_end(self, fit: Fit) -> None:
        """Give the model back as it was."""
        if self._before is not None:
            values, state, settings, epochs = self._before
            self._before = None
            fit.model.assign(values)
            fit.step.load_state(state)
            fit.step.set(**(dict.fromkeys(fit.step.overrides) | settings))
            fit.model.epochs_done = epochs
