"""The preparation of a model as a part of its graph, so that it is exported too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from magmadnn import ops
from magmadnn.data.preparation.preparation import Preparation
from magmadnn.layers import Input
from magmadnn.tensor import Operation

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model


def with_scaling(model: Model, preparation: Preparation, network: Callable[..., Model]) -> Model:
    """The network from inputs in their own units to probabilities, or targets in theirs."""
    raw = Input(preparation.input_shape, "float64")
    scaled = (raw - np.array(preparation.mean)) / np.array(preparation.std)
    if preparation.missing == "mean":
        scaled = ops.where(ops.isnan(scaled), 0.0, scaled)
    if preparation.components is not None:
        made = preparation.components
        flat = scaled.reshape((-1, len(made.mean)))
        scaled = ops.matmul(flat - np.array(made.mean), made.matrix())
    found: Operation = model(ops.cast(scaled, model.inputs[0].dtype))
    if preparation.task == "classification":
        found = ops.sigmoid(found) if found.shape[-1] == 1 else ops.softmax(found)
    else:
        values = ops.cast(found, "float64").reshape((-1, *preparation.target_shape))
        found = values * np.array(preparation.target_std) + np.array(preparation.target_mean)
        found = found.reshape((-1, *preparation.target_shape))
    return network(inputs=[raw], outputs=[found], precision=model.precision)


_UNITS: dict[str, str] = {
    "duration": " in seconds",
    "date": " in days since 1970-01-01",
    "instant": " in days since 1970-01-01, UTC",
}


def scaling_note(preparation: Preparation) -> str:
    """What the numbers mean, for the header."""
    lines = ["Inputs are in their own units; they are scaled inside."]
    schema = preparation.schema
    if schema is not None:
        lines[0] += " An input column=category is 1 in that category, otherwise 0."
        lines += ["", "Inputs of a sample:"]
        units = {column.name: _UNITS.get(column.kind, "") for column in schema.columns}
        lines += [f"{k}: {name}{units.get(name, '')}" for k, name in enumerate(schema.inputs)]
    if preparation.missing == "mean":
        lines += ["", "NaN is a missing value, and is replaced by the mean of the training data."]
    if preparation.task == "classification":
        lines += ["", "Outputs of a sample: the probabilities of"]
        lines += [f"{k}: {name}" for k, name in enumerate(preparation.classes)]
    elif names := preparation.target_names:
        lines += ["", f"Output: {', '.join(names)}."]
    return "\n".join(lines)
