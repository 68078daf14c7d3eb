"""Figures of a trained network: errors of a regression are in the units of the target."""

from __future__ import annotations

from typing import Any

import numpy as np

from magmadnn.data import Preparation
from magmadnn.training import Model

Array = np.ndarray[Any, np.dtype[Any]]


def figures(
    model: Model, preparation: Preparation, x: Array, y: Array, raw: Array
) -> dict[str, float]:
    """Loss and errors on prepared rows: `loss`, and `accuracy`, or `rmse` and `r2`.

    The loss is the one of training: for a regression it is in squared standard deviations of the target.
    The rmse is in the target's own units. Of several targets each has its own figures, `<target>_rmse`.

    Args:
        model: the trained model.
        preparation: of its training data.
        x: prepared inputs.
        y: prepared targets.
        raw: targets in their own units.
    """
    found = {name: float(v) for name, v in model.evaluate(x, y, prepared=True).items()}
    if preparation.task == "regression":  # once more, from targets that were not rounded to float32
        residual = model.predict(x, prepared=True) - raw
        errors = np.sqrt(np.mean(np.square(residual), axis=0)).reshape(-1).tolist()
        names = [name for name in found if name == "rmse" or name.endswith("_rmse")]
        found |= zip(names, errors, strict=True)
    return found
