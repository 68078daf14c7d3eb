"""From predictions to probabilities and classes, by what the loss says that they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.errors import ArgumentError, NumericError, UnknownNameError
from magmadnn.graph.op import Array
from magmadnn.losses import Loss
from magmadnn.losses.loss import Outputs, check_width, outputs_of
from magmadnn.training.objective.heads import heads_of

if TYPE_CHECKING:
    from .model import Model

Rule = Callable[[str, Loss, Outputs, Array], Array]


def probabilities(where: str, loss: Loss, outputs: Outputs, predictions: Array) -> Array:
    """Probabilities in the predictions' shape.

    Raises:
        ArgumentError: if there are none.
    """
    if outputs.activation is None:
        raise ArgumentError(
            f"{where}: the loss {loss.name} is for {outputs.words}, of which there are no probabilities; "
            "use predict"
        )
    found: Array = outputs.activation(predictions)
    return found


def class_numbers(where: str, loss: Loss, outputs: Outputs, predictions: Array) -> Array:
    """The number of the most likely class, [...] for [..., k]; 0 and 1 for labels, in their shape.

    One label, [..., 1], gives [...].

    Raises:
        ArgumentError: if there are no classes.
        NumericError: if a prediction is NaN, naming the row.
    """
    if outputs.are is None:
        raise ArgumentError(
            f"{where}: the loss {loss.name} is for {outputs.words}, which have no classes; use predict"
        )
    unknown = np.isnan(predictions)
    if np.count_nonzero(unknown):  # for few rows twice as fast as any()
        row = int(np.argwhere(unknown)[0, 0])
        raise NumericError(
            f"{where}: the prediction of row {row} is NaN, which is no class; look at that row of x, and at "
            "the parameters"
        )
    if outputs.are == "classes":
        check_width(where, outputs, predictions.shape)
        found: Array = predictions.argmax(-1)
        return found
    labels = (predictions > outputs.threshold).astype(np.int64)
    return labels[..., 0] if labels.ndim > 1 and labels.shape[-1] == 1 else labels


def by_loss(model: Model, what: str, predicted: Any, output: str | None, rule: Rule) -> Any:
    """What a rule makes of predictions: one array, or a list for several outputs if none is chosen.

    Args:
        model: whose losses say what predictions are.
        what: the method, for errors.
        predicted: what `predict` gave.
        output: name of the one that is meant.
        rule: `probabilities` or `class_numbers`.

    Raises:
        UnknownNameError: if there is no such output.
        ArgumentError: if no loss says what an output is, or it has none of what is asked for.
    """
    if model.loss is None:
        raise ArgumentError(
            f"{what}: the model has no loss, which would say what its outputs are; give Model one, or use "
            "predict and md.ops.softmax or md.ops.sigmoid"
        )
    heads = heads_of(model)
    if output is not None and output not in (names := [head.name for head in heads]):
        raise UnknownNameError.of(f"{what}: output", output, names)
    arrays: Sequence[Array] = predicted if isinstance(predicted, list) else [predicted]
    found = [
        _of_output(what, head.name if len(heads) > 1 else "", head.loss, array, rule)
        for head, array in zip(heads, arrays, strict=True)
        if output in (None, head.name)
    ]
    return found[0] if len(found) == 1 else found


def _of_output(what: str, name: str, loss: Loss, predictions: Array, rule: Rule) -> Array:
    where = f"{what}: output {name!r}" if name else what
    if loss.outputs is None:
        raise ArgumentError(
            f"{where}: the loss {loss.name} does not say what predictions are; say it by `outputs`: "
            f"md.losses.FunctionLoss({loss.name}, outputs=...), or in the class"
        )
    try:
        return rule(where, loss, outputs_of(f"loss {loss.name}", loss.outputs), predictions)
    except ArgumentError as error:
        if not name:
            raise
        raise type(error)(f"{error}; output=... chooses another one") from error
