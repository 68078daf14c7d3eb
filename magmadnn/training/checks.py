"""Checks of what a model is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn import ops
from magmadnn.data import check_arrays
from magmadnn.data._structure import is_mapped
from magmadnn.errors import ArgumentError, DTypeError
from magmadnn.executor.places import device_of
from magmadnn.graph.op import Array
from magmadnn.graph.spec import is_floating
from magmadnn.layers.layer import Layer, number_layers
from magmadnn.losses import CrossEntropy, as_loss
from magmadnn.tensor import Operation, Placeholder

from .resident import resident, settle_all
from .sources import as_arrays, inputs_for

if TYPE_CHECKING:
    from .model import Model


def chained(layers: Sequence[Any], precision: str) -> tuple[Placeholder, Operation]:
    """Input and output of layers in a row; in float64 where that is asked for."""
    if not layers or not isinstance(layers[0], Placeholder):
        raise ArgumentError("Model: the first of the layers must be md.layers.Input(shape)")
    following = list(layers[1:])
    for layer in following:
        if not isinstance(layer, Layer):
            raise ArgumentError(f"Model: expected layers, got {layer!r}; wrap it in a Layer")
    number_layers(list(dict.fromkeys(following)))  # first, so that errors tell which layer it is
    x: Operation = layers[0]
    if precision == "float64" and is_floating(x.dtype) and x.dtype != np.float64:
        x = ops.cast(x, "float64")
    for layer in following:
        x = layer(x)
    return layers[0], x


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


def at_least(what: str, value: Any, least: int) -> None:
    """Look whether an argument is an integer of at least `least`.

    Raises:
        ArgumentError: if not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ArgumentError(f"{what} must be an integer of at least {least}, got {value!r}")


def gpu_of(model: Model) -> int | None:
    """The number of the GPU that a model's kernels run on; None for the processor."""
    return device_of(model.device, model.executor)


def checked_arrays(
    model: Model, what: str, x: Any, y: Any, later: bool = False
) -> tuple[list[Array], list[Array]]:
    """Inputs and targets of a model, checked; with `later`, values on a device by whoever uses them.

    Raises:
        ShapeError, DTypeError, DataError: if data does not fit, naming where.
    """
    device = gpu_of(model)
    inputs, targets = inputs_for(model.inputs, x, what, device), as_arrays(y, device)
    if device is not None:
        arrays = resident(model, what, [*inputs, *targets], device)
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


def check_values(
    model: Model, inputs: Sequence[Array], targets: Sequence[Array], later: bool = False
) -> None:
    """Look at the values of inputs and targets; with `later` only at those of the host.

    Raises:
        ShapeError, DTypeError, DataError: naming where.
    """
    # one array is "x" in messages, several are "x[0]", "x[1]" ...
    given, wanted = (a if len(a) > 1 else a[0] for a in (inputs, targets))
    check_arrays(given, wanted, classes=_classes(model, targets), later=later)


def _classes(model: Model, targets: Sequence[Array]) -> int | None:
    """How many classes the targets may have, where the loss takes class numbers."""
    single = len(model.outputs) == 1 and model.loss is not None
    if not single or not isinstance(as_loss(model.loss), CrossEntropy):
        return None
    classes = model.outputs[0].shape[-1]
    return classes if isinstance(classes, int) and not is_floating(targets[0].dtype) else None
