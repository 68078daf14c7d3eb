"""Checks of layers' settings that are numbers, and of the axes of what they are called on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.signature import axes_text, shape_text
from magmadnn.tensor import Operation

from .layer import Layer


def is_finite(value: Any) -> bool:
    """Whether it is a number, and neither infinite nor NaN."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def positive(layer: Layer, argument: str, value: Any) -> int:
    """`value` as an integer of at least 1.

    Raises:
        ArgumentError: otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ArgumentError(f"{layer}: {argument} must be an integer of at least 1, got {value!r}")
    return int(value)


def fraction(layer: Layer, argument: str, value: Any) -> None:
    """Nothing, for a number in [0, 1).

    Raises:
        ArgumentError: otherwise.
    """
    if not is_finite(value) or not 0 <= value < 1:
        raise ArgumentError(
            f"{layer}: {argument} must be a number of at least 0 and below 1, got {value!r}"
        )


def above_zero(layer: Layer, argument: str, value: Any) -> None:
    """Nothing, for a finite number above 0.

    Raises:
        ArgumentError: otherwise.
    """
    if not is_finite(value) or value <= 0:
        raise ArgumentError(f"{layer}: {argument} must be a finite number above 0, got {value!r}")


def zero_or_above(layer: Layer, argument: str, value: Any) -> None:
    """Nothing, for a finite number of at least 0.

    Raises:
        ArgumentError: otherwise.
    """
    if not is_finite(value) or value < 0:
        raise ArgumentError(
            f"{layer}: {argument} must be a finite number of at least 0, got {value!r}"
        )


def check_places(layer: Layer, x: Operation, places: Sequence[str]) -> None:
    """Nothing, for x with a batch, these axes and channels.

    Raises:
        ShapeError: otherwise.
    """
    if x.ndim == len(places) + 2:
        return
    way_out = ""
    if x.ndim == len(places) + 1:
        way_out = "; images without an axis of channels get one by md.layers.Reshape((..., 1))"
    raise ShapeError(
        f"{layer}: x must be [{', '.join(('n', *places, 'channels'))}], got {shape_text(x.shape)} with "
        f"{axes_text(x.ndim)}{way_out}"
    )
