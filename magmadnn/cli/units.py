"""Errors of a regression in the units of the target, which is standardised for training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from magmadnn.data import Preparation
from magmadnn.training import Model
from magmadnn.training.callbacks import Callback
from magmadnn.training.loop.fit import Fit

Array = np.ndarray[Any, np.dtype[Any]]


class OwnUnits(Callback):
    """Turns the root mean squared errors in the history into the target's own units.

    With several targets, which may have several units, they stay in standard deviations.

    Args:
        preparation: of the data.
    """

    def __init__(self, preparation: Preparation) -> None:
        single = preparation.task == "regression" and len(preparation.target_std) == 1
        self.unit = preparation.target_std[0] if single else 1.0

    def on_epoch_end(self, fit: Fit) -> None:
        """Scale the epoch's figures."""
        for name in ("rmse", "val_rmse"):
            if name in fit.row:
                fit.row[name] *= self.unit


def figures(
    model: Model, preparation: Preparation, x: Array, y: Array, raw: Array
) -> dict[str, float]:
    """Loss and errors on prepared rows: `loss`, and `accuracy`, or `rmse` and `r2`.

    The loss is the one of training: for a regression it is in squared standard deviations of the target.
    The rmse is in the target's own units.

    Args:
        model: the trained model.
        preparation: of its training data.
        x: prepared inputs.
        y: prepared targets.
        raw: targets in their own units.
    """
    found = {name: float(value) for name, value in model.evaluate(x, y).items()}
    if preparation.task == "regression":
        residual = values(model, preparation, x) - raw
        found["rmse"] = math.sqrt(float(np.mean(np.square(residual))))
    return found


def values(model: Model, preparation: Preparation, x: Array) -> Array:
    """Predictions of a regression in the target's own units, in the target's shape; float64."""
    predicted = model.predict(x).reshape(len(x), *preparation.target_shape)
    return preparation.restore_target(predicted)
