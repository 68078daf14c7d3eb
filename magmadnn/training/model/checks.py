"""Checks of what a model is made of: its layers, losses, metrics, precision."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn import ops
from magmadnn.errors import (
    ArgumentError,
    DTypeError,
    GraphError,
)
from magmadnn.graph.op import Op
from magmadnn.layers.layer import Layer, number_layers
from magmadnn.layers.normalization import BatchNorm
from magmadnn.losses.loss import check_width, outputs_of
from magmadnn.memory.dtypes import is_floating
from magmadnn.metrics import as_metric
from magmadnn.runtime import Executable
from magmadnn.tensor import Operation, Placeholder
from magmadnn.training.objective.heads import Head, heads_of, metrics_by_output

if TYPE_CHECKING:
    from .model import Model


def chained(layers: Sequence[Any], precision: str) -> tuple[Placeholder, Operation, list[Layer]]:
    """Input and output of layers in a row, in float64 where that is asked for, and the layers with names."""
    if not isinstance(layers, (list, tuple)):
        raise ArgumentError(f"Model: layers must be a list, got {layers!r}; write Model([...])")
    if not layers or not isinstance(layers[0], Placeholder):
        raise ArgumentError("Model: the first of the layers must be md.layers.Input(shape)")
    following = list(layers[1:])
    for layer in following:
        if not isinstance(layer, Layer):
            raise ArgumentError(f"Model: expected layers, got {_layer_hint(layer)}")
    named = list(dict.fromkeys(following))
    number_layers(named)  # first, so that errors tell which layer it is
    x: Operation = layers[0]
    if precision == "float64" and is_floating(x.dtype) and x.dtype != np.float64:
        x = ops.cast(x, "float64")
    for layer in following:
        x = layer(x)
        if not isinstance(x, Operation):
            got = type(x).__name__
            raise ArgumentError(f"Model: {layer!r} must give an Operation, got {got}; use md.ops")
    return layers[0], x, named


def _layer_hint(value: Any) -> str:
    """What stands in the place of a layer, and what to write."""
    if isinstance(value, type) and issubclass(value, Layer):
        return f"the class {value.__name__}: write {value.__name__}(...)"
    if isinstance(value, Op):
        return (
            f'the op {value.name}: write md.layers.Lambda(md.ops.{value.name}), or activation="..."'
        )
    return f"{value!r}; wrap it in a Layer"


def check_model(model: Model) -> None:
    """Look whether inputs, precision, losses and metrics of a new model can be what they are said to be.

    Raises:
        UnknownNameError, ArgumentError, GraphError, DTypeError: naming what cannot.
    """
    nodes, given = [output.node for output in model.outputs], {p.node for p in model.inputs}
    made = Executable(nodes, executor=model.executor, precision=model.precision)
    for needed in made.program.placeholders:
        if needed not in given:
            raise GraphError(f"Model: an output needs {needed.name}, which is not among inputs")
    for output in model.outputs if model.precision == "float64" else ():
        if output.dtype != np.float64:
            raise DTypeError(
                f'Model: precision="float64", but output {output.name} is {output.dtype.name}; '
                'give Inputs of float64: md.layers.Input(shape, "float64")'
            )
    if model.loss is None:
        for metric in chain(*metrics_by_output(model)):
            as_metric(metric)
        return
    for head in heads_of(model):
        _check_head(head)


def refuse_one_row(model: Model) -> None:
    """Refuse to train on batches of one row where layers normalise by one value for each feature.

    Raises:
        ArgumentError: there is such a layer.
    """
    layers = list(model.layers)
    while layers:
        layer = layers.pop()
        layers += layer.layers
        if isinstance(layer, BatchNorm) and layer.places == 1:
            raise ArgumentError(
                f"fit: {layer} normalises by the statistics of a batch, and one row has one value for each "
                "feature, of which nothing would be left: give batch_size=2 or more"
            )


def _check_head(head: Head) -> None:
    """Refuse outputs that a loss cannot take, or takes for what they are not: training would go badly."""
    loss, made_by = head.loss, getattr(head.output.node.op, "name", "")
    if loss.outputs is None:
        return
    outputs = outputs_of(f"loss {loss.name}", loss.outputs)
    check_width(f"Model: {loss.name}", outputs, tuple(head.output.shape))
    wanted = {"classes": "softmax", "labels": "sigmoid"}.get(loss.outputs)
    if made_by == wanted:
        raise ArgumentError(
            f"Model: {loss.name} takes logits, but an output is a {made_by}: leave that activation "
            "out; predict_probability applies it"
        )
