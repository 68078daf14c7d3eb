"""How an operand lies in a larger matrix, where its places are apart."""

from __future__ import annotations

import numpy as np
import pytest

from magmadnn.compiler.padding import Padding, padding_of
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.memory import as_dtype
from magmadnn.ops.slicing import unslice

WHOLE = ("slice", None, None, 1)


def found_of(shape: tuple[int, ...], index: tuple[tuple[object, ...], ...]) -> Padding | None:
    taken = np.empty(shape)[tuple(slice(*entry[1:]) for entry in index)].shape  # type: ignore[misc]
    node = unslice(placeholder("g", Spec(taken, as_dtype("float32"))), index=index, shape=shape)
    return padding_of(node, np.empty(taken, np.float32), shape, {})  # type: ignore[arg-type]


def expanded(padding: Padding, source: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The matrix, element by element."""
    made = np.zeros((int(np.prod(shape[:-1])), shape[-1]))
    for row in range(len(made)):
        rest, begin, inside = row, -padding.origin, True
        for axis in reversed(padding.axes):
            rest, index = divmod(rest, axis.size) if axis is not padding.axes[0] else (0, rest)
            begin += index * axis.step
            inside = inside and axis.first <= index < axis.end
        if inside:
            for column in range(padding.left, padding.right):
                made[row, column] = source.flat[begin + column]
    return made.reshape(shape)


@pytest.mark.parametrize(
    ("shape", "index"),
    [
        ((2, 6, 10, 3), (WHOLE, ("slice", 0, 6, 2), ("slice", 0, 10, 2), WHOLE)),
        ((2, 6, 9, 3), (WHOLE, ("slice", 2, 5, 1), ("slice", 4, 9, 3), WHOLE)),
        ((8, 3), (("slice", 3, 8, 4), ("slice", 1, 2, 1))),
        ((6, 3), (("slice", 5, None, -2), WHOLE)),
    ],
)
def test_places_that_are_apart_are_found_by_their_indices(
    shape: tuple[int, ...], index: tuple[tuple[object, ...], ...]
) -> None:
    padding = found_of(shape, index)
    assert padding is not None
    wanted = np.zeros(shape)
    part = wanted[tuple(slice(*entry[1:]) for entry in index)]  # type: ignore[misc]
    part[...] = np.arange(1, part.size + 1).reshape(part.shape)
    np.testing.assert_array_equal(expanded(padding, part.copy(), shape), wanted)


@pytest.mark.parametrize(
    ("shape", "index"),
    [
        ((2, 7, 3), (WHOLE, ("slice", 0, 7, 2), WHOLE)),  # the last of them is alone
        ((4, 6), (WHOLE, ("slice", 0, 6, 2))),  # neighbouring columns are read at once
    ],
)
def test_others_are_copied(shape: tuple[int, ...], index: tuple[tuple[object, ...], ...]) -> None:
    padding = found_of(shape, index)
    assert padding is None
