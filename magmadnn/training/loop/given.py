"""What a model is given as inputs and targets, made a list of arrays: by order or by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.compiler.kernels.formula import KEPT
from magmadnn.data.tables.libraries import is_table
from magmadnn.data.validation import way_to_shape
from magmadnn.errors import DataError, GraphError, ShapeError
from magmadnn.graph.op import Array
from magmadnn.graph.signature import shape_text
from magmadnn.memory.foreign import as_array, on_device
from magmadnn.memory.on_demand import OnDemand
from magmadnn.tensor import Operation, Placeholder
from magmadnn.training.objective.heads import output_names
from magmadnn.training.objective.weights import weights_for

from .pieces import Batch


def as_batch(
    item: Any,
    device: int | None = None,
    inputs: Sequence[str] = (),
    outputs: Sequence[Operation] = (),
) -> Batch:
    """A batch from what an iterable gives: (x, y) or (x, y, weights), which always come to the host.

    Arrays that lie on the device, if one is given, stay there; copies on the device may read them. In dicts
    x, y and weights go by the names of inputs and outputs.

    Raises:
        DataError: if it is something else.
    """
    if not isinstance(item, (tuple, list)) or len(item) not in (2, 3):
        got = type(item).__name__
        if isinstance(item, (tuple, list)):
            got += f" of {len(item)}"
        raise DataError(
            f"an iterable must give (x, y) or (x, y, weights), got {got}; arrays of all rows are fit(x, y)"
        )
    x, y, *weights = item
    if is_table(x) or is_table(y):
        raise DataError("a batch holds a table, whose columns would go by place: give arrays")
    if isinstance(x, Mapping):
        x = _in_order(x, inputs, "inputs")
    targets = targets_for(outputs, y, "", device, True)
    batch = Batch(as_arrays(x, device, True), targets)
    sizes = [len(a) if a.ndim else 0 for a in [*batch.inputs, *batch.targets]]
    if not all(sizes) or len(set(sizes)) > 1:
        single = (
            ""
            if all(a.ndim for a in [*batch.inputs, *batch.targets])
            else ("; it gives single samples: give arrays of all rows, fit(x, y)")
        )
        raise DataError(
            f"the arrays of a batch need one number of rows above 0, got {sizes}{single}"
        )
    if weights:
        found = weights_for("weights", weights[0], batch.rows, output_names(outputs))
        batch = replace(batch, weights=found)
    return batch


def as_arrays(value: Any, device: int | None = None, in_order: bool = False) -> list[Array]:
    """A list of arrays from one array, a Tensor, or a tuple or list of arrays.

    Those that lie on the device, if one is given, stay there (see `on_device`).
    """
    if isinstance(value, tuple) or (
        isinstance(value, list) and value and len(getattr(value[0], "shape", ()))
    ):
        return [placed(v, device, in_order) for v in value]
    return [placed(value, device, in_order)]


def placed(value: Any, device: int | None, in_order: bool = False) -> Array:
    """An array on the host; or where it lies, if that is this device and kernels know the dtype."""
    if isinstance(value, OnDemand):
        made: Any = value
        return made  # type: ignore[no-any-return]  # rows are made in their time
    found: Any = None if device is None else on_device(value, device, in_order=in_order)
    if found is None or found.dtype.name not in KEPT:
        return as_array(value)
    return found  # type: ignore[no-any-return]  # no ndarray where it lies on the device


def inputs_for(
    inputs: Sequence[Placeholder], value: Any, what: str, device: int | None = None
) -> list[Array]:
    """Arrays for a model's inputs, by order or by name, with their shapes checked.

    Those that lie on the device, if one is given, stay there (`OnDevice`).

    Raises:
        GraphError, ShapeError: if their number, names or shapes do not fit.
    """
    if type(value) is np.ndarray and len(inputs) == 1 and value.ndim:
        if value.shape[1:] == inputs[0].shape[1:]:
            return [value]  # the usual case, as fast as can be: a prediction may take microseconds
    if isinstance(value, Mapping):
        value = _in_order(value, [p.name for p in inputs], "inputs", f"{what}: ")
    if value is None and inputs:
        raise GraphError(f"{what}: x is None, expected an array of samples")
    arrays = [] if value is None else as_arrays(value, device)
    if len(arrays) != len(inputs):
        many = f"{len(inputs)} inputs" if len(inputs) > 1 else "one input"
        samples = len(inputs) == 1 and {a.shape for a in arrays} == {inputs[0].shape[1:]}
        way = "; samples in a list become an array by np.stack(x)" if samples else ""
        raise GraphError(f"{what}: the model has {many}, got {len(arrays)} arrays{way}")
    for fed, array in zip(inputs, arrays, strict=True):
        expected = fed.shape[1:]
        fits = len(expected) == array.ndim - 1 and all(
            not isinstance(e, int) or e == got
            for e, got in zip(expected, array.shape[1:], strict=True)
        )
        if not fits:
            listed = isinstance(value, list | tuple)
            raise ShapeError(
                f"{what}: {_misfit(fed, array, 'np.stack(x)' if listed else 'x[None]')}"
            )
    return arrays


def targets_for(
    outputs: Sequence[Operation],
    value: Any,
    what: str,
    device: int | None = None,
    in_order: bool = False,
) -> list[Array]:
    """Arrays for the targets of these outputs, in their order, or in a dict by name.

    Raises:
        GraphError: if a dict has others.
    """
    if isinstance(value, Mapping):
        value = _in_order(value, output_names(outputs), "outputs", what)
    return as_arrays(value, device, in_order)


def _in_order(
    value: Mapping[str, Any], names: Sequence[str], kind: str, what: str = ""
) -> tuple[Any, ...]:
    """What a dict has for inputs or outputs of these names."""
    if len(set(names)) < len(names):
        raise GraphError(
            f"{what}two of the model's {kind} have one name, {list(names)}: give a list in their order, or "
            "each a name of its own, as in md.layers.Input(shape, name=...)"
        )
    if set(value) != set(names):
        raise GraphError(f"{what}the model's {kind} are {list(names)}, got {list(value)}")
    return tuple(value[name] for name in names)


def _misfit(fed: Placeholder, array: Array, one: str) -> str:
    """Why an array is none of samples for an input, and what to do; `one` makes a batch of one sample."""
    if array.dtype.kind in "US" and not array.ndim:
        return f"expected an array for input {fed.name!r}, got the text {array.item()!r}; md.data reads files"
    if array.dtype == object and not array.ndim:
        return f"expected an array for input {fed.name!r}, got {type(array.item()).__name__}"
    expected, got = fed.shape[1:], shape_text(array.shape)
    if array.shape == expected:
        return f"x of shape {got} is one sample of input {fed.name!r}; a batch of one is {one}"
    way = way_to_shape("x", array.shape, expected)
    return (
        f"input {fed.name!r} expects samples of shape {shape_text(expected)}, got "
        f"{shape_text(array.shape[1:])} (x has shape {got}); "
        + (f"{way}, or change Input" if way else "reshape x, or change Input")
    )
