"""Images put together from their phases: every s-th place, from the first, the second, ... on.

The gradient of a convolution with strides is made so: each phase of the inputs is a convolution, without
strides, of the outputs with those taps of the filters that meet its places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from magmadnn.graph.dim import Shape
from magmadnn.graph.op import REQUIRED, Array, Op, OpKind, Sample, promote
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import StackedCall
from magmadnn.ops.movement import reshape
from magmadnn.ops.slicing import slice_

from .windows import Counts

Box = tuple[Array, Any]  # a part of a result, and what it is: see `Op.boxes`
Phases = tuple[Counts, ...]


def _shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    return (specs[0].shape[0], *attributes["places"], specs[0].shape[-1])


def _boxes(
    result: Array, *xs: Array, places: Shape, strides: Counts, phases: Phases
) -> Iterator[Box]:
    for phase in np.ndindex(*strides):
        every = (slice(r, None, s) for r, s in zip(phase, strides, strict=True))
        part = result[(slice(None), *every)]
        number = phases.index(phase) if phase in phases else None
        yield part, 0 if number is None else (number, xs[number])


def _numpy(*xs: Array, places: Counts, strides: Counts, phases: Phases) -> Array:
    result = np.empty((xs[0].shape[0], *places, xs[0].shape[-1]), np.result_type(*xs))
    for part, source in _boxes(result, *xs, places=places, strides=strides, phases=phases):
        part[...] = source[1] if isinstance(source, tuple) else source
    return result


def _vjp(
    g: Any, y: Any, *xs: Any, places: Shape, strides: Counts, phases: Phases
) -> tuple[Any, ...]:
    whole = ("slice", None, None, 1)
    every = (
        tuple(("slice", r, None, s) for r, s in zip(phase, strides, strict=True))
        for phase in phases
    )
    return tuple(slice_(g, index=(whole, *each, whole)) for each in every)


def _reference(*xs: Array, places: Counts, strides: Counts, phases: Phases) -> Array:
    result = np.zeros((xs[0].shape[0], *places, xs[0].shape[-1]))
    for at in np.ndindex(*places):
        phase = tuple(p % s for p, s in zip(at, strides, strict=True))
        if phase in phases:
            inside = tuple(p // s for p, s in zip(at, strides, strict=True))
            result[(slice(None), *at)] = xs[phases.index(phase)][(slice(None), *inside)]
    return result


def _stacked(call: StackedCall) -> Any:
    """The images of all models one after the other."""
    xs = [call.whole(number) for number in range(len(call.operands))]
    found = call.again([reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])) for x in xs])
    return reshape(found, (call.count, xs[0].shape[1], *found.shape[1:]))


interleave = Op(
    name="_interleave",
    args=("*xs",),
    formula="the image [n, *places, c] whose phases, the places r, r + s, r + 2 s, ..., are xs; others are 0",
    kind=OpKind.MOVEMENT,
    shapes=_shapes,
    dtypes=promote,
    numpy=_numpy,
    vjp=_vjp,
    boxes=_boxes,
    reference=_reference,
    samples=lambda draw: [
        Sample(
            (draw(2, 3, 2), draw(2, 2, 2)),
            {"places": (7,), "strides": (3,), "phases": ((0,), (2,))},
        ),
        Sample(
            (draw(2, 2, 3, 3), draw(2, 2, 2, 3)),
            {"places": (4, 5), "strides": (2, 2), "phases": ((1, 0), (0, 1))},
        ),
    ],
    attributes=dict.fromkeys(("places", "strides", "phases"), REQUIRED),
    stacked=_stacked,
)
