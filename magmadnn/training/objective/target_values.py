"""Checks of what targets hold: a value that a loss has no meaning for would be trained on without a word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from magmadnn.data._structure import is_mapped
from magmadnn.data.validation import check_labels, first_not_shares, place, row_blocks
from magmadnn.errors import DataError
from magmadnn.graph.op import Array
from magmadnn.graph.spec import is_floating
from magmadnn.losses import BinaryCrossEntropy, CrossEntropy, Hinge, Loss
from magmadnn.memory.unchanging import Noted

from .heads import Head

_FOUND_GOOD: dict[str, Noted] = {}  # by the name of the loss; arrays that nobody may write


def check_targets(heads: Sequence[Head], targets: Sequence[Array], later: bool = False) -> None:
    """Look at the values of targets, those in files left out; with `later` only at those of the host.

    Raises:
        ShapeError, DTypeError, DataError: naming where.
    """
    for number, (head, target) in enumerate(zip(heads, targets, strict=False)):
        name = f"y[{number}]" if len(heads) > 1 else "y"
        loss, shape = head.loss, head.output.shape
        if isinstance(loss, BinaryCrossEntropy) and not is_floating(target.dtype):
            check_labels(name, target, 2, inner=target.ndim - 1, later=later)
        elif isinstance(loss, CrossEntropy) and isinstance(shape[-1], int):
            check_labels(name, target, shape[-1], inner=len(shape) - 2, later=later)
        if isinstance(target, np.ndarray) and not is_mapped(target):
            _check_numbers(name, loss, shape, target)


def _check_numbers(name: str, loss: Loss, shape: tuple[Any, ...], target: Array) -> None:
    """Look whether numbers are what a loss takes, where it does not take any."""
    if isinstance(loss, CrossEntropy) and target.shape[1:] == shape[1:]:
        look, words = first_not_shares, (
            "probabilities of classes, or one of them 1; for labels, each true or not, use "
            "binary_cross_entropy, and to leave out a row sample_weight"
        )  # fmt: skip
    elif isinstance(loss, BinaryCrossEntropy) and is_floating(target.dtype):
        look, words = _first_outside, "0, 1 or a probability between them"
    elif isinstance(loss, Hinge):
        look, words = _first_no_sign, "0 and 1, or -1 and 1"
    else:
        return
    noted = _FOUND_GOOD.setdefault(loss.name, Noted())
    if target in noted:
        return
    if (where := look(target)) is not None:
        raise DataError(
            f"{name}: {place(where)} is {target[where].tolist()}, for {loss.name} expected {words}"
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
