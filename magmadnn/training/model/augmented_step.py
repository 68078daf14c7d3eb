"""Images changed at random within the training step, on a device.

What is drawn for each row of an epoch is a table of the host's (`Pipeline.numbers`), from which rows of a
batch are taken like rows of x and y. So an image is what the threads of `fit` on the processor make of it:
by seed, epoch and its number, whichever batch it is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn import ops
from magmadnn.data.augment.augmentation import Augmentation
from magmadnn.data.augment.colour import RandomBrightness, RandomContrast, RandomSaturation
from magmadnn.data.augment.geometry import Cutout, RandomCrop, RandomFlip, RandomRotation
from magmadnn.data.augment.pipeline import Pipeline
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import rebuild
from magmadnn.memory.dtypes import is_floating
from magmadnn.tensor import Operation, Placeholder, placeholder

_LUMA = (0.299, 0.587, 0.114)  # of R, G and B: ITU-R BT.601, section 2.5.1
_MOVES = (RandomCrop, RandomFlip)
_KNOWN = (*_MOVES, RandomRotation, Cutout, RandomBrightness, RandomContrast, RandomSaturation)


def can_be_in_step(transforms: Sequence[Augmentation], x: Placeholder) -> bool:
    """Whether a step has formulas for all of these transforms of such images."""
    known = all(type(one) in _KNOWN for one in transforms)
    return known and is_floating(x.dtype) and not any(isinstance(s, Dim) for s in x.shape[1:])


class StepAugmentation:
    """Formulas of transforms, over what was drawn for each image.

    Args:
        x: images of a batch, [batch, height, width, channels].
        pipeline: the transforms.

    Attributes:
        drawn: what was drawn for each of them, [batch, count].
        sides: height and width.
        key: equal for equal formulas.
    """

    def __init__(self, x: Placeholder, pipeline: Pipeline) -> None:
        self._x, self.sides = x, (int(str(x.shape[1])), int(str(x.shape[2])))
        counts = pipeline.numbers(np.zeros(1, np.int64), 0, self.sides).shape[1]
        self.drawn = placeholder("augment", (None, counts), "float32")
        self.key = (pipeline.transforms, pipeline.mean, pipeline.std)
        self._changed = self._of(x, pipeline)

    def within(self, outputs: Sequence[Operation]) -> list[Operation]:
        """What is computed from x, computed from the changed images in its place."""
        nodes = rebuild([o.node for o in outputs], {self._x.node: self._changed.node})
        return [Operation(node) for node in nodes]

    def _of(self, x: Operation, pipeline: Pipeline) -> Operation:
        transforms, first, y = pipeline.transforms, 0, x
        is_raw = pipeline.mean is not None and any(t.needs_raw for t in transforms)
        mean, std = np.asarray(pipeline.mean or 0.0), np.asarray(pipeline.std or 1.0)
        if is_raw:  # a constant channel is 0, its std infinite
            y = y * _as(np.where(np.isfinite(std), std, 0), x) + _as(mean, x)
        number = 0
        while number < len(transforms):
            end = number + 1
            while isinstance(transforms[number], _MOVES) and _is_move(transforms[end : end + 1]):
                end += 1
            group = transforms[number:end]
            y, first = self._changed_by(group, y, first)
            number = end
        if not is_raw:
            return y
        found: Operation = (y - _as(mean, x)) * _as(1 / std, x)
        return found

    def _changed_by(
        self, group: Sequence[Augmentation], x: Operation, first: int
    ) -> tuple[Operation, int]:
        """Images after transforms, of which several are moves; and the column of `drawn` behind theirs."""
        one = group[0]
        count = 1 if isinstance(one, RandomBrightness | RandomContrast | RandomSaturation) else 2
        end = first + count * len(group)
        drawn = [
            ops.reshape(self.drawn[:, k], (self.drawn.shape[0], 1, 1)) for k in range(first, end)
        ]
        if isinstance(one, _MOVES):
            return self._moved(x, group, drawn), end
        if isinstance(one, RandomRotation):
            return self._turned(x, *drawn), end
        if isinstance(one, Cutout):
            return self._cut_out(x, one.size, *drawn), end
        factor = ops.cast(ops.reshape(drawn[0], (*drawn[0].shape, 1)), x.dtype)
        if isinstance(one, RandomBrightness):
            y: Operation = factor * x
            return y, end
        ground = _brightness(x) if x.shape[3] == 3 else ops.mean(x, 3, keepdims=True)
        if isinstance(one, RandomContrast):
            ground = ops.mean(ground, (1, 2), keepdims=True)
        return ground + factor * (x - ground), end

    @property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and columns of pixels, each to be spread over the other."""
        height, width = self.sides
        return np.arange(height).reshape(1, height, 1), np.arange(width).reshape(1, 1, width)

    def _moved(
        self, x: Operation, moves: Sequence[Augmentation], drawn: Sequence[Operation]
    ) -> Operation:
        """Each pixel from its place in x; the last move is asked for it first."""
        height, width = self.sides
        row: Any
        column: Any
        row, column = self._places
        for number in reversed(range(len(moves))):
            one, (first, second) = moves[number], drawn[2 * number : 2 * number + 2]
            if isinstance(one, RandomCrop):
                row = _inside(row + ops.cast(first, "int64"), height, one.fill)
                column = _inside(column + ops.cast(second, "int64"), width, one.fill)
            else:
                column = ops.where(ops.greater(first, 0.5), width - 1 - column, column)
                row = ops.where(ops.greater(second, 0.5), height - 1 - row, row)
        return self._picked(x, row, column)

    def _picked(self, x: Operation, row: Any, column: Any) -> Operation:
        """Pixels of these rows and columns, [batch, height, width, channels]."""
        height, width = self.sides
        n, channels = x.shape[0], x.shape[3]
        image = ops.reshape(ops.arange(n), (n, 1, 1))
        places = ops.broadcast_to(
            image * (height * width) + row * width + column, (n, height, width)
        )
        found: Operation = ops.take(ops.reshape(x, (n * height * width, channels)), places, axis=0)
        return found

    def _turned(self, x: Operation, cosine: Operation, sine: Operation) -> Operation:
        """Values between pixels, bilinearly; beyond the edge those of the nearest pixel."""
        height, width = self.sides
        row, column = (place.astype(np.float32) for place in self._places)
        y, across = row - np.float32((height - 1) / 2), column - np.float32((width - 1) / 2)
        rows = _between(cosine * y - sine * across + np.float32((height - 1) / 2), height)
        columns = _between(sine * y + cosine * across + np.float32((width - 1) / 2), width)
        (top, down), (left, right) = (
            _parts(rows, height, x.dtype),
            _parts(columns, width, x.dtype),
        )
        below, beside = min(1, height - 1), min(1, width - 1)
        upper = (
            self._picked(x, top, left) * (1 - right) + self._picked(x, top, left + beside) * right
        )
        lower = (
            self._picked(x, top + below, left) * (1 - right)
            + self._picked(x, top + below, left + beside) * right
        )
        found: Operation = upper * (1 - down) + lower * down
        return found

    def _cut_out(self, x: Operation, size: int, top: Operation, left: Operation) -> Operation:
        """The square from these rows and columns on set to the image's mean."""
        row, column = self._places
        inside = ops.logical_and(
            ops.logical_and(row >= top, row < top + size),
            ops.logical_and(column >= left, column < left + size),
        )
        inside = ops.reshape(inside, (*inside.shape, 1))
        found: Operation = ops.where(inside, ops.mean(x, (1, 2), keepdims=True), x)
        return found


def _is_move(transforms: Sequence[Augmentation]) -> bool:
    return bool(transforms) and isinstance(transforms[0], _MOVES)


def _as(values: NDArray[Any], x: Operation) -> NDArray[Any]:
    return values.astype(x.dtype)


def _inside(place: Any, count: int, fill: str) -> Any:
    """Places of an image of `count` for places that may lie beyond its edges, by less than `count`."""
    if fill == "edge":
        return ops.minimum(ops.maximum(place, 0), count - 1)
    return count - 1 - ops.abs(count - 1 - ops.abs(place))


def _between(place: Operation, count: int) -> Operation:
    found: Operation = ops.minimum(ops.maximum(place, np.float32(0)), np.float32(count - 1))
    return found


def _parts(place: Operation, count: int, dtype: Any) -> tuple[Operation, Operation]:
    """The pixel before a place, and how far behind it that is."""
    before = ops.minimum(ops.floor(place), np.float32(max(count - 2, 0)))
    beyond = place - before
    return ops.cast(before, "int64"), ops.cast(ops.reshape(beyond, (*beyond.shape, 1)), dtype)


def _brightness(x: Operation) -> Operation:
    """Of pixels [..., 3]: [..., 1]."""
    red, green, blue = (x[..., k : k + 1] * _LUMA[k] for k in range(3))
    found: Operation = red + green + blue
    return found
