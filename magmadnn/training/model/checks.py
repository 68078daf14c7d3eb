"""Checks of what a model is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn import ops
from magmadnn.data import check_arrays
from magmadnn.data._structure import is_mapped
from magmadnn.errors import ArgumentError, DTypeError, GraphError, MagmaDNNError
from magmadnn.graph.op import Array, Op
from magmadnn.graph.spec import is_floating
from magmadnn.layers.layer import Layer, number_layers
from magmadnn.layers.normalization import BatchNorm
from magmadnn.losses.outputs import check_width, outputs_of
from magmadnn.metrics import as_metric
from magmadnn.runtime import Executable
from magmadnn.runtime.places import device_of
from magmadnn.tensor import Operation, Placeholder
from magmadnn.training.loop.given import inputs_for, targets_for
from magmadnn.training.loop.resident import resident, settle_all
from magmadnn.training.objective.heads import Head, heads_of, metrics_by_output, output_names
from magmadnn.training.objective.target_values import check_targets
from magmadnn.training.objective.weights import sample_weights

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


def looks(targets: Iterable[Array]) -> tuple[Any, ...]:
    """Equal for targets that one compiled step can take."""
    return tuple((t.shape[1:], t.dtype) for t in targets)


def as_iterable(x: Any) -> Any:
    """An iterable of batches, or a function that makes one.

    Raises:
        ArgumentError: if it is an array, or nothing to iterate over.
    """
    if isinstance(x, np.ndarray) or is_mapped(x) or not (hasattr(x, "__iter__") or callable(x)):
        raise ArgumentError("y is missing: give x and y, or an iterable of batches (x, y)")
    return x


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


def check_batch_statistics(model: Model, batch_size: object) -> None:
    """Refuse batches of one row where they normalise by one value for each feature.

    Raises:
        ArgumentError: there is such a layer.
    """
    if batch_size != 1:
        return
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


def gpu_of(model: Model) -> int | None:
    """The number of the GPU that a model's kernels run on; None for the processor."""
    return device_of(model.device, model.executor)


def checked_arrays(
    model: Model, what: str, x: Any, y: Any, later: bool = False, moves: bool = True
) -> tuple[list[Array], list[Array]]:
    """Inputs and targets of a model, checked; with `later`, values on a device by whoever uses them.

    Those of the host are copied to a device that has room for them, unless they are to stay: `moves=False`.

    Raises:
        ShapeError, DTypeError, DataError: if data does not fit, naming where.
    """
    device = gpu_of(model)
    inputs = inputs_for(model.inputs, x, what, device)
    targets = targets_for(model.outputs, y, f"{what}: ", device)
    if device is not None:
        arrays = [*inputs, *targets]
        if moves:
            arrays = resident(model, what, arrays, device)
        inputs, targets = arrays[: len(inputs)], arrays[len(inputs) :]
        if not later:
            settle_all(arrays)
    check_values(model, inputs, targets, later)
    for fed, array in zip(model.inputs, inputs, strict=True):
        if not np.can_cast(array.dtype, fed.dtype, "same_kind"):
            raise DTypeError(
                f"{what}: input {fed.name} is {fed.dtype.name}, got {array.dtype.name}; "
                "cast the data, or give Input another dtype"
            )
    return inputs, targets


def check_validation(model: Model, data: Any) -> tuple[Any, Any, Any]:
    """What `fit` is to evaluate, (x, y, weights); looked at before an epoch is spent, and copied nowhere.

    Raises:
        ArgumentError: if it is neither (x, y) nor (x, y, weights).
        ShapeError, DTypeError, DataError: if data does not fit, naming where.
    """
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise ArgumentError("fit: validation_data must be (x, y) or (x, y, weights)")
    x, y, weights = (*data, None)[:3]
    device = gpu_of(model)
    inputs = inputs_for(model.inputs, x, "fit: validation_data", device)
    try:
        targets = targets_for(model.outputs, y, "", device)
        check_values(model, inputs, targets, later=True)
        sample_weights("fit", targets, weights, None, output_names(model.outputs))
    except MagmaDNNError as error:
        text = str(error).removeprefix("fit: ")
        raise type(error)(f"fit: validation_data: {text}") from error
    return x, y, weights


def check_values(
    model: Model, inputs: Sequence[Array], targets: Sequence[Array], later: bool = False
) -> None:
    """Look at the values of inputs and targets; with `later` only at those of the host.

    Raises:
        ShapeError, DTypeError, DataError: naming where.
    """
    # one array is "x" in messages, several are "x[0]", "x[1]" ...
    given, wanted = (a if len(a) > 1 else a[0] for a in (inputs, targets))
    check_arrays(given, wanted, later=later)
    if model.loss is not None:
        check_targets(heads_of(model), targets, later)
