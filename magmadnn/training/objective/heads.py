"""The outputs of a model by name, each with its loss, the weight of that, and its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.layers.layer import LayerCall
from magmadnn.losses import Loss, as_loss
from magmadnn.metrics import Metric, as_metric
from magmadnn.tensor import Operation

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

NO_CURVES = frozenset(
    "epoch seconds samples_per_second learning_rate batch_size skipped_steps".split()
)
_FIGURES = NO_CURVES | {"loss"}  # columns that are no metric's


@dataclass(frozen=True, eq=False)
class Head:
    """One output of a model.

    Attributes:
        name: of the layer that made it.
        output: what it is.
        loss: that it is trained on.
        weight: of that loss in the sum over outputs.
        column: of the history with its loss; None where it is the only output.
        metrics: by column.
    """

    name: str
    output: Operation
    loss: Loss
    weight: float
    column: str | None
    metrics: dict[str, Metric]


def output_names(outputs: Sequence[Operation]) -> list[str]:
    """A name for each output: that of the layer that made it, `output_0` without one.

    Where a layer made several, a number tells them apart: `energy`, `energy_2`.
    """
    names: list[str] = []
    for number, output in enumerate(outputs):
        made_by = output.node.origin
        own = made_by.layer.label if isinstance(made_by, LayerCall) else f"output_{number}"
        names.append(_distinct(own, names))
    return names


def _distinct(name: str, taken: Sequence[str]) -> str:
    """The name, with a number from 2 behind it where it is taken."""
    found, number = name, 2
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


Key = tuple[list[str], Any, Any, Any]  # names of outputs, and losses, weights and metrics as given


def heads_of(model: Model) -> list[Head]:
    """The outputs of a model that has a loss, in order.

    Raises:
        UnknownNameError: for the name of an output, loss or metric that is not known.
        ArgumentError: if there is no loss, or losses, weights or metrics do not fit the outputs.
    """
    return _kept(model)[1]


def key_of(model: Model) -> Key:
    """Equal as long as outputs have the same names, losses, weights and metrics. Raises as `heads_of`."""
    return _kept(model)[0]


def _kept(model: Model) -> tuple[Key, list[Head]]:
    """Key and heads, made anew where what was given has changed."""
    key = (output_names(model.outputs), model.loss, model.loss_weights, model.metrics)
    if model._heads is None or model._heads[0] != key:
        names, loss, weights, metrics = key
        model._heads = (names, _copied(loss), _copied(weights), _copied(metrics)), _made(model)
    return model._heads


def _copied(given: Any) -> Any:
    """A copy of lists and dicts, which somebody may change; what is in them is itself."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        return {name: _copied(value) for name, value in given.items()}
    return list(map(_copied, given)) if isinstance(given, list) else given


def _made(model: Model) -> list[Head]:
    names = output_names(model.outputs)
    if model.loss is None:
        raise ArgumentError("the model has no loss; give one: Model(..., loss='cross_entropy')")
    losses = [as_loss(given) for given in _losses(model, names)]
    weights = _weights(model, names)
    several = len(names) > 1
    heads = []
    for name, output, loss, weight, given in zip(
        names, model.outputs, losses, weights, metrics_by_output(model), strict=True
    ):
        prefix = f"{name}_" if several else ""
        column = f"{name}_loss" if several else None
        metrics = _metrics(loss, given, prefix)
        heads.append(Head(name, output, loss, weight, column, metrics))
    check_columns([c for h in heads for c in (h.column, *h.metrics) if c is not None])
    return heads


def _losses(model: Model, names: list[str]) -> list[Any]:
    """What was given as the loss of each output."""
    given = model.loss
    if isinstance(given, Mapping):
        found = _by_name("loss", given, names)
        if missing := [name for name in names if name not in found]:
            raise ArgumentError(
                f"Model: loss has none for the output {missing[0]!r}; give one for each of {_listed(names)}"
            )
        return [found[name] for name in names]
    if isinstance(given, (list, tuple)):
        return _in_order("loss", given, names)
    return [given] * len(names)


def _weights(model: Model, names: list[str]) -> list[float]:
    """The weight of each output's loss; 1 where none is given."""
    given = model.loss_weights
    if given is None:
        return [1.0] * len(names)
    if isinstance(given, Mapping):
        found = _by_name("loss_weights", given, names)
        values = [found.get(name, 1.0) for name in names]
    elif isinstance(given, (list, tuple)):
        values = _in_order("loss_weights", given, names)
    else:
        raise ArgumentError(
            f"Model: loss_weights must be a dict by output, or a list, got {given!r}"
        )
    for name, value in zip(names, values, strict=True):
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not number or not 0 <= value < np.inf:
            raise ArgumentError(
                f"Model: the loss weight of {name!r} must be finite and not negative, got {value!r}"
            )
    if not any(values):
        raise ArgumentError("Model: loss_weights are all 0, so there is nothing to train on")
    return [float(value) for value in values]


def metrics_by_output(model: Model) -> list[list[Any]]:
    """What was given as the metrics of each output.

    Raises:
        ArgumentError, UnknownNameError: if they do not fit the outputs.
    """
    names, given = output_names(model.outputs), model.metrics
    if isinstance(given, Mapping):
        found = _by_name("metrics", given, names)
        return [_as_list(found.get(name, [])) for name in names]
    if given and all(isinstance(item, (list, tuple)) for item in given):
        return [list(items) for items in _in_order("metrics", given, names)]
    return [list(given)] * len(names)


def as_metrics(given: Any) -> Any:
    """The metrics of a model as it keeps them: a list, or a dict by output.

    Raises:
        ArgumentError: if they are something else.
    """
    if isinstance(given, Mapping):
        return dict(given)
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [None]
    nested = [isinstance(item, (list, tuple)) for item in found]
    if all(item is not None for item in found) and (all(nested) or not any(nested)):
        return found
    raise ArgumentError(
        f'Model: metrics must be a list such as ["accuracy"], or a dict by output, got {given!r}'
    )


def _as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _by_name(what: str, given: Mapping[str, Any], names: list[str]) -> Mapping[str, Any]:
    for name in given:
        if name not in names:
            raise UnknownNameError.of(f"Model: {what}: output", name, names)
    return given


def _in_order(what: str, given: Sequence[Any], names: list[str]) -> list[Any]:
    if len(given) != len(names):
        raise ArgumentError(
            f"Model: {what} has {len(given)} entries for {len(names)} outputs; give one for each of "
            f"{_listed(names)}"
        )
    return list(given)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _metrics(loss: Loss, given: Sequence[Any], prefix: str) -> dict[str, Metric]:
    """The metrics of an output by column; those of one name get numbers."""
    found: dict[str, Metric] = {}
    for item in given:
        try:
            metric = as_metric(item).of_loss(loss)
        except ArgumentError as error:
            if not prefix:
                raise
            raise type(error)(
                f"output {prefix[:-1]!r}: {error}; metrics={{output: [...]}} gives each output its own"
            ) from error
        if metric in found.values():
            raise ArgumentError(f"Model: the metric {metric.name} is given twice")
        found[_distinct(prefix + metric.name, list(found))] = metric
    return found


def check_columns(columns: Sequence[str]) -> None:
    """Look whether every figure has a column of its own, none that reads as one of validation.

    Raises:
        ArgumentError: naming the column.
    """
    counts = Counter([*columns, *_FIGURES])
    for column in columns:
        if counts[column] > 1 or column.startswith("val_"):
            raise ArgumentError(
                f"Model: a metric would stand in the column {column!r} of the history, which means "
                "something else; rename the metric's function, the layer, or the column of the target"
            )
