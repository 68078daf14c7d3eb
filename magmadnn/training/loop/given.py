"""What a model is given as inputs and targets: made arrays, by order or by name, and checked.

A value that a loss has no meaning for would be trained on without a word, so targets are looked at too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.compiler.kernels.formula import KEPT
from magmadnn.data._structure import is_mapped
from magmadnn.data.tables.libraries import is_table
from magmadnn.data.validation import (
    are_class_numbers,
    check_arrays,
    check_values,
    check_within,
    first_not_shares,
    place,
    row_blocks,
    way_to_shape,
)
from magmadnn.errors import (
    ArgumentError,
    DataError,
    DTypeError,
    GraphError,
    MagmaDNNError,
    ShapeError,
    shown,
)
from magmadnn.graph.op import Array
from magmadnn.graph.signature import shape_text
from magmadnn.losses import BinaryCrossEntropy, CrossEntropy, Hinge
from magmadnn.memory.dtypes import in_own_order, is_floating, refuse_masked
from magmadnn.memory.foreign import OnDevice, as_array, on_device
from magmadnn.memory.on_demand import OnDemand
from magmadnn.memory.unchanging import Noted
from magmadnn.runtime.places import device_of
from magmadnn.tensor import Operation, Placeholder
from magmadnn.training.objective.heads import Head, heads_of, output_names
from magmadnn.training.objective.weights import sample_weights, weights_for

from .pieces import Batch
from .resident import resident, settle_all

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

_FOUND_GOOD: dict[str, Noted] = {}  # by the name of the loss; arrays that nobody may write


Check = Callable[[Array], None]
Checks = list[tuple[int, Check]]  # what looks at the values of arrays, each by its number


def checked_arrays(
    model: Model, what: str, x: Any, y: Any, later: bool = False, moves: bool = True
) -> tuple[list[Array], list[Array], Checks]:
    """Inputs and targets of a model, checked; with `later`, values on a device by whoever uses them.

    Returns:
        Them, and what has looked at their values, inputs first.

    Those of the host are copied to a device that has room for them, unless they are to stay: `moves=False`.

    Raises:
        ShapeError, DTypeError, DataError: if data does not fit, naming where.
    """
    device = gpu_of(model)
    inputs = inputs_for(model.inputs, x, what, device)
    before = targets = targets_for(model.outputs, y, f"{what}: ", device)
    if device is not None:
        arrays = [*inputs, *targets]
        if moves:
            arrays = resident(model, what, arrays, device)
        inputs, targets = arrays[: len(inputs)], arrays[len(inputs) :]
        if not later:
            settle_all(arrays)
    checks = check_data(model, inputs, targets, later, before)
    for fed, array in zip(model.inputs, inputs, strict=True):
        if not np.can_cast(array.dtype, fed.dtype, "same_kind"):
            raise DTypeError(
                f"{what}: input {fed.name} is {fed.dtype.name}, got {array.dtype.name}; "
                "cast the data, or give Input another dtype"
            )
    return inputs, targets, checks


def check_data(
    model: Model,
    inputs: Sequence[Array],
    targets: Sequence[Array],
    later: bool = False,
    before: Sequence[Array] | None = None,
) -> Checks:
    """Look at inputs and targets; with `later` whoever uses them looks for what a device can look for.

    Args:
        model: that they are for.
        inputs: where they are used.
        targets: likewise.
        later: see above.
        before: the targets before they were copied to a device; None where they were not.

    Returns:
        What has looked at their values.

    Raises:
        ShapeError, DTypeError, DataError: naming where.
    """
    # one array is "x" in messages, several are "x[0]", "x[1]" ...
    given, wanted = (a if len(a) > 1 else a[0] for a in (inputs, targets))
    check_arrays(given, wanted, scan=False)
    arrays, names = [*inputs, *targets], [*_names("x", inputs), *_names("y", targets)]
    checks: Checks = [
        (number, partial(check_values, name, later=later))
        for number, (name, array) in enumerate(zip(names, arrays, strict=True))
        if not is_mapped(array)
    ]
    _run(checks, arrays)
    if model.loss is not None:
        heads, before = heads_of(model), targets if before is None else before
        more = _checks_of_classes(heads, targets, later), _checks_of_numbers(heads, before)
        for some, of in zip(more, (targets, before), strict=True):
            _run(some, of)
            checks += [(len(inputs) + number, check) for number, check in some]
    return checks


def _names(what: str, arrays: Sequence[object]) -> list[str]:
    """The words that messages call arrays by."""
    return [f"{what}[{k}]" for k in range(len(arrays))] if len(arrays) > 1 else [what]


def _run(checks: Checks, arrays: Sequence[Array]) -> None:
    for number, check in checks:
        check(arrays[number])


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
        check_data(model, inputs, targets, later=True)
        sample_weights("fit", targets, weights, None, output_names(model.outputs))
    except MagmaDNNError as error:
        text = str(error).removeprefix("fit: ")
        raise type(error)(f"fit: validation_data: {text}") from error
    return x, y, weights


def gpu_of(model: Model) -> int | None:
    """The number of the GPU that a model's kernels run on; None for the processor."""
    return None if model.device == "cpu" else device_of(model.device, model.executor)


def as_iterable(x: Any) -> Any:
    """An iterable of batches, or a function that makes one.

    Raises:
        ArgumentError: if it is an array, or nothing to iterate over.
    """
    if isinstance(x, np.ndarray) or is_mapped(x) or not (hasattr(x, "__iter__") or callable(x)):
        raise ArgumentError("y is missing: give x and y, or an iterable of batches (x, y)")
    return x


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
        DataError: if it is something else, or elements are masked.
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
    for array in (*batch.inputs, *batch.targets):
        refuse_masked("a batch", array)
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
    """An array on the host; or where it lies, if that is this device and kernels know the dtype.

    One of the other order of bytes is converted, as kernels go by the name of a dtype; mapped files are when
    rows are read.
    """
    if isinstance(value, np.ndarray) and not is_mapped(value):
        value = in_own_order(value)
    if isinstance(value, OnDemand) or (device is None and isinstance(value, np.ndarray)):
        made: Any = value
        return made  # type: ignore[no-any-return]
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
        if value.shape[1:] == inputs[0].shape[1:] and value.dtype.isnative:
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


def check_targets(heads: Sequence[Head], targets: Sequence[Array], later: bool = False) -> None:
    """Look at the values of targets, those in files left out; with `later` class numbers of the host only.

    Raises:
        ShapeError, DTypeError, DataError: naming where.
    """
    _run(_checks_of_classes(heads, targets, later), targets)
    _run(_checks_of_numbers(heads, targets), targets)


def _checks_of_classes(heads: Sequence[Head], targets: Sequence[Array], later: bool) -> Checks:
    """What looks at the values of class numbers; what shapes and dtypes say is looked at here."""
    found: Checks = []
    names = _names("y", heads)
    for number, (name, head, target) in enumerate(zip(names, heads, targets, strict=False)):
        loss, shape = head.loss, head.output.shape
        classes = None
        if isinstance(loss, BinaryCrossEntropy) and not is_floating(target.dtype):
            classes, inner = 2, target.ndim - 1
        elif isinstance(loss, CrossEntropy) and isinstance(shape[-1], int):
            classes, inner = shape[-1], len(shape) - 2
        if classes is not None and are_class_numbers(name, target, classes, inner):
            if not is_mapped(target):
                check = partial(check_within, name, classes=classes, inner=inner, later=later)
                found.append((number, check))
    return found


def _checks_of_numbers(heads: Sequence[Head], targets: Sequence[Array]) -> Checks:
    """What looks whether numbers are what a loss takes, where it does not take any.

    The host does: those that were given on a device are copied for that.
    """
    names = _names("y", heads)
    return [
        (number, check)
        for number, (name, head, target) in enumerate(zip(names, heads, targets, strict=False))
        if isinstance(target, np.ndarray | OnDevice) and not is_mapped(target)
        for check in _checks_of_one(name, head, target)
    ]


def _checks_of_one(name: str, head: Head, target: Array) -> list[Check]:
    """The same for one target."""
    loss = head.loss
    if isinstance(loss, CrossEntropy) and target.shape[1:] == head.output.shape[1:]:
        words = (
            "probabilities of classes, or one of them 1; for labels, each true or not, use "
            "binary_cross_entropy, and to leave out a row sample_weight"
        )
        return [partial(_check_numbers, name, loss.name, first_not_shares, words)]
    if isinstance(loss, BinaryCrossEntropy) and is_floating(target.dtype):
        words = "0, 1 or a probability between them"
        return [partial(_check_numbers, name, loss.name, _first_outside, words)]
    if isinstance(loss, Hinge):
        return [partial(_check_numbers, name, loss.name, _first_no_sign, "0 and 1, or -1 and 1")]
    return []


def _check_numbers(
    name: str,
    loss: str,
    first_bad: Callable[[Array], tuple[int, ...] | None],
    words: str,
    target: Array,
) -> None:
    """Look at numbers; at those that nobody may write once."""
    noted = _FOUND_GOOD.setdefault(loss, Noted())
    if target in noted:
        return
    target = np.asarray(target)  # a copy of what lies on a device
    if (where := first_bad(target)) is not None:
        raise DataError(
            f"{name}: {place(where)} is {shown(target[where].tolist(), 200)}, for {loss} expected {words}"
        )
    noted.add(target)


def _first(
    array: Array, is_bad: Callable[[Array], np.ndarray[Any, np.dtype[np.bool_]]]
) -> tuple[int, ...] | None:
    """The index of the first element that is bad."""
    for low, block in row_blocks(array):
        bad = is_bad(block)
        if bad.any():
            row, *rest = np.argwhere(bad)[0].tolist()
            return (low + row, *rest)
    return None


def _first_outside(array: Array) -> tuple[int, ...] | None:
    return _first(array, lambda block: (block < 0) | (block > 1))


def _first_no_sign(array: Array) -> tuple[int, ...] | None:
    """The first that is neither 0 nor 1, or if some are negative neither -1 nor 1."""
    if array.dtype.kind == "b":
        return None
    low = -1 if array.size and array.min() < 0 else 0
    return _first(array, lambda block: (block != low) & (block != 1))
