"""What a report shows, as numbers: confusions, the worst mistakes, filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data import Preparation
from magmadnn.graph.node import Node, topological
from magmadnn.layers import Dense
from magmadnn.layers.layer import LayerCall
from magmadnn.tensor import Operation
from magmadnn.training import Model
from magmadnn.training.model.plain.architecture import layer_calls

Array = NDArray[Any]

MOST_MISTAKES = 60
MOST_FILTERS = 64
MOST_PAIRS = 10
MOST_MAPS = 16
_MOST_LAYERS = 6


@dataclass(frozen=True)
class Mistake:
    """A row whose class was not predicted.

    Attributes:
        row: its number.
        true: its class.
        predicted: the one that was most probable.
        probability: of that one.
        of_true: of its own.
    """

    row: int
    true: int
    predicted: int
    probability: float
    of_true: float


def confusions(true: Array, predicted: Array, classes: int) -> NDArray[np.int64]:
    """[true class, predicted class]: how many rows."""
    counts = np.bincount(true * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes)


def worst_mistakes(true: Array, probabilities: Array) -> list[Mistake]:
    """The mistakes to whose own class the least probability was given, which cost the loss most."""
    predicted = probabilities.argmax(axis=1)
    wrong = np.flatnonzero(predicted != true)
    of_true = probabilities[wrong, true[wrong]]
    order = np.argsort(of_true, kind="stable")[:MOST_MISTAKES]
    return [
        Mistake(
            row, int(true[row]), int(predicted[row]),
            float(probabilities[row, predicted[row]]), float(probabilities[row, true[row]]),
        )
        for row in wrong[order].tolist()
    ]  # fmt: skip


def confused_pairs(matrix: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """True class, predicted class and number of rows, most of them first."""
    off = matrix.copy()
    np.fill_diagonal(off, 0)
    order = np.argsort(-off, axis=None, kind="stable")[:MOST_PAIRS]
    places = np.unravel_index(order, off.shape)
    return [
        (t, p, int(off[t, p]))
        for t, p in zip(*(a.tolist() for a in places), strict=True)
        if off[t, p]
    ]


def raw_images(preparation: Preparation, x: Array) -> Array:
    """Images as they were before they were standardised."""
    std = np.array(preparation.std)
    std[~np.isfinite(std)] = 0.0
    found: Array = x * std.astype(x.dtype) + np.array(preparation.mean, x.dtype)
    return found


def is_picture(shape: tuple[int, ...]) -> bool:
    """Whether rows of this shape can be shown as pictures."""
    return len(shape) == 3 and shape[-1] in (1, 3)


def first_filters(model: Model, input_shape: tuple[int, ...]) -> tuple[str, list[Array]]:
    """The name of the first layer with weights and its filters, [height, width, 1 or 3] each.

    Of a dense layer on images these are the weights of each unit. No filters where they are no pictures.
    """
    for layer in model.layers:
        kernel = getattr(layer, "kernel", None)
        if kernel is None:
            continue
        values = np.asarray(kernel.value.read())
        if isinstance(layer, Dense) and is_picture(input_shape):
            values = (
                values.reshape(*input_shape, -1) if len(values) == np.prod(input_shape) else values
            )
        if values.ndim != 4 or not is_picture(values.shape[:3]):
            break
        return layer.label, [values[..., k] for k in range(min(values.shape[-1], MOST_FILTERS))]
    return "", []


@dataclass(frozen=True)
class FeatureMaps:
    """What a layer makes of one image.

    Attributes:
        layer: its name.
        maps: the first channels, [height, width] each.
        channels: how many there are.
    """

    layer: str
    maps: list[Array]
    channels: int


def feature_maps(model: Model, row: Array) -> list[FeatureMaps]:
    """The outputs for one image, [1, ...], of the last layer of each size on the way, at most six.

    None for networks without layers over the places of images.
    """
    if len(model.inputs) != 1:
        return []
    last: dict[tuple[int, ...], Node] = {}
    for node in topological([output.node for output in model.outputs], layer_calls):
        size = node.shape[1:3]
        known = all(isinstance(n, int) and n > 1 for n in size)
        if isinstance(node.origin, LayerCall) and node.ndim == 4 and known:
            last[size] = node
    nodes = list(last.values())
    if len(nodes) > _MOST_LAYERS:
        places = np.linspace(0, len(nodes) - 1, _MOST_LAYERS).round().astype(int)
        nodes = [nodes[k] for k in places.tolist()]
    if not nodes:
        return []
    step = model._executable([Operation(node) for node in nodes])
    values = step.run({model.inputs[0].node: row})
    return [
        FeatureMaps(
            node.origin.layer.label,
            [found[0, :, :, k] for k in range(min(found.shape[-1], MOST_MAPS))],
            found.shape[-1],
        )
        for node, found in zip(nodes, values, strict=True)
    ]
