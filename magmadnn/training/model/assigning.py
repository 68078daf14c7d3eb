"""What attributes of a model may be assigned, and what becomes of it then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from magmadnn.calls import Unchanging
from magmadnn.data.tables.schema import Schema
from magmadnn.errors import (
    ArgumentError,
    FrozenError,
    UnknownAttributeError,
    UnknownNameError,
    quoted,
)
from magmadnn.hints import hint
from magmadnn.runtime import placed
from magmadnn.runtime.evaluate import EXECUTORS
from magmadnn.training.arguments import at_least, refuse_while_training
from magmadnn.training.objective.heads import as_metrics

from .raw_data import checked_preparation

if TYPE_CHECKING:
    from .model import Model

_WAY_OUT: Final = (
    "layers and programs would stay those of the graph that it was made with: make another one, "
    "md.Model(inputs=..., outputs=...), which shares the layers with this one and so their values"
)
GRAPH: Final = Unchanging(f"Model: its lists of inputs and outputs cannot be changed, {_WAY_OUT}")
NAMES: Final = Unchanging(
    "Model: output_names cannot be changed, they are those of the layers that made the outputs: write "
    'model.layer("dense_2").name = "energy"'
)
PARTS: Final = Unchanging(
    "Model: its list of layers cannot be changed, its graph is made of them: make another one, "
    "md.Model([...]), which may share layers with this one and so their values; list(model.layers) is a list "
    "of one's own"
)
_MADE_OF: Final = ("inputs", "outputs")  # what the layers of a model and its programs are those of
_CHOSEN: Final = ("precision", "device", "seed")  # when a model is made
_READ: Final = ("layers", "output_names", "units")


def assigned(model: Model, name: str, value: Any) -> Any:
    """What an attribute of a model becomes where a value is assigned.

    Raises:
        FrozenError: what programs are made of and compiled for is chosen when a model is made.
        UnknownAttributeError: for what other libraries have there, and a model does not.
        ArgumentError, UnknownNameError: the value cannot be, or the model is being trained.
    """
    if name in vars(model):
        _refuse_chosen(name)
    elif name in _READ:
        _refuse_read(name)
    elif not hasattr(type(model), name) and name not in _MADE_OF:
        text = hint([base.__name__ for base in type(model).__mro__], name)
        if text is not None:
            raise UnknownAttributeError(f"Model has no attribute {name!r}", lambda: text)
    if name in _BETWEEN:
        refuse_while_training(model, f"Model: {name}")
    check = _CHECKS.get(name)
    return value if check is None else check(model, value)


def _refuse_chosen(name: str) -> None:
    """Raise FrozenError for what is chosen when a model is made."""
    if name in _MADE_OF:
        raise FrozenError(f"Model: {name} cannot be set, {_WAY_OUT}")
    if name in _CHOSEN:
        raise FrozenError(
            f"Model: {name} cannot be set, it is chosen when a model is made: md.Model(..., {name}=...), "
            "which assign(values) gives the parameters of this one"
        )


def _refuse_read(name: str) -> None:
    """Raise FrozenError for what a model tells, and does not keep."""
    if name == "layers":
        raise FrozenError(
            "Model: layers cannot be set, it is chosen when a model is made: md.Model([...]), which may "
            "share layers with this one and so their values"
        )
    if name == "output_names":
        raise FrozenError(NAMES.text)
    raise FrozenError("Model: units cannot be set, they are those of its preparation")


def _executor(model: Model, value: Any) -> Any:
    """Programs that are compiled are for another one; a step is made anew when it is wanted."""
    if value not in EXECUTORS:
        raise UnknownNameError.of("executor", value, EXECUTORS)
    if (device := vars(model).get("device")) is not None:
        placed(device, value)
        model._evaluation = model._prediction = None
    return value


def _preparation(_: Model, value: Any) -> Any:
    return checked_preparation(value)


def _metrics(_: Model, value: Any) -> Any:
    return as_metrics(value)


def _epochs_done(_: Model, value: Any) -> Any:
    at_least("Model: epochs_done", value, 0)
    return int(value)


def _columns(_: Model, value: Any) -> Any:
    """Columns of tables by the name of the input, as `fit` has learnt them."""
    if not isinstance(value, Mapping) or not all(isinstance(v, Schema) for v in value.values()):
        raise ArgumentError(
            f"Model: columns must be a dict of schemas by input, as fit learns them, got {quoted(value)}"
        )
    return dict(value)


_CHECKS: Final[Mapping[str, Callable[[Model, Any], Any]]] = {
    "columns": _columns,
    "epochs_done": _epochs_done,
    "executor": _executor,
    "metrics": _metrics,
    "preparation": _preparation,
}
_BETWEEN: Final = ("loss", "loss_weights", "metrics", "executor")  # a training has taken them
