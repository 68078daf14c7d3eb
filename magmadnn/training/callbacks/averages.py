"""The average of a model's parameters over the steps of a training."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.graph.op import Array
from magmadnn.optim import Transform
from magmadnn.optim.averages import AVERAGE, AverageWeights
from magmadnn.optim.records import Range
from magmadnn.training.loop.fit import Fit

from .callback import Callback

_DECAY = Range("at least 0 and below 1", 0.0, 1.0)


class ExponentialMovingAverage(Callback):
    """Averages the trained parameters over steps; the model has the average when training ends.

    After step t of the training the average is sum(decay**(t - k) * w_k) / sum(decay**(t - k)) over its steps
    k = 1 to t, where w_k is the parameter after step k. Validation looks at the average, and so do callbacks
    that compare validated epochs; `EarlyStopping(restore_best=True)` keeps it. States such as running
    statistics are not averaged. The step computes the average itself, also many steps in one go.

    A `Checkpoint` holds parameters and average, so that training goes on bit for bit. A `fit` that follows
    begins from the average, and with a new one.

    Args:
        decay: at least 0 and below 1; about 1 / (1 - decay) steps count.

    Raises:
        ArgumentError: if decay is outside.
    """

    # It ends before others, so that the best epoch's average is what is left.
    is_everywhere = True
    comes_last = True
    _made_with = ("decay",)

    def __init__(self, decay: float = 0.999) -> None:
        self._part = AverageWeights(_DECAY.check("ExponentialMovingAverage", "decay", decay))
        self._start = 0

    @property
    def decay(self) -> float:
        """As given: the step is compiled for it."""
        value = self._part.average_decay
        assert isinstance(value, float)
        return value

    def arguments(self) -> dict[str, Any]:
        """What it was made with."""
        return {"decay": self.decay}

    def parts(self) -> tuple[Transform, ...]:
        """The average is a slot of the training step."""
        return (self._part,)

    def on_train_begin(self, fit: Fit) -> None:
        """Begin with no step."""
        slots = {name: np.asarray(slot) for name, slot in fit.step.state().items()}
        for name in slots:
            if name.endswith(f"/{AVERAGE}"):
                slots[name] = np.zeros_like(slots[name])
        fit.step.load_state(slots)
        self._start = fit.step.count - fit.step.skipped

    def evaluated(self, fit: Fit) -> dict[str, Array] | None:
        """The model's values with averages for what is trained."""
        steps = fit.step.count - fit.step.skipped - self._start
        if steps == 0:
            return None
        slots, values = fit.step.state(), fit.model.values()
        share = 1 - self.decay**steps
        for name, value in values.items():
            if f"{name}/{AVERAGE}" in slots:
                total = np.asarray(slots[f"{name}/{AVERAGE}"]).astype(np.float64)
                values[name] = (total / share).astype(value.dtype)
        return values

    def on_train_end(self, fit: Fit) -> None:
        """Give the model the average."""
        values = self.evaluated(fit)
        if values is not None:
            fit.model.assign(values)

    def state(self) -> dict[str, Any]:
        """Where averaging began; the average is in the optimiser's state."""
        return {"start": self._start}

    def restore(self, state: dict[str, Any], tensors: dict[str, Array]) -> None:
        """Go on averaging."""
        self._start = int(state["start"])
