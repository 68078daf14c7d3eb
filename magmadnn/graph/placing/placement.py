"""Placements: how the elements of a value are shared out among ranks."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.dim import Shape, Size
from magmadnn.graph.signature import is_integer, shape_text


@dataclass(frozen=True)
class Replicate:
    """Every rank has all elements."""


@dataclass(frozen=True)
class Shard:
    """Each rank has an equal run of an axis: rank r of P has places n r / P to n (r + 1) / P of n.

    Attributes:
        axis: counted from the front.

    Raises:
        ArgumentError: if axis is no number from 0.
    """

    axis: int

    def __post_init__(self) -> None:
        if not is_integer(self.axis) or self.axis < 0:
            raise ArgumentError(f"Shard: axis must be a whole number from 0, got {self.axis!r}")


@dataclass(frozen=True)
class Partial:
    """Every rank has a term of each element; the value is their sum."""


Placement = Replicate | Shard | Partial


def is_divisible(size: Size, ranks: int) -> bool:
    """Whether so many ranks can have equal parts of an axis, whatever its symbols are."""
    rest = size % ranks
    return isinstance(rest, int) and rest == 0


def local_shape(shape: Shape, placement: Placement, ranks: int) -> Shape:
    """The shape of a rank's part.

    Raises:
        ShapeError: if there is no such axis, or ranks have no equal parts of it.
    """
    if not isinstance(placement, Shard):
        return shape
    axis = placement.axis
    if axis >= len(shape):
        raise ShapeError(f"Shard: there is no axis {axis} in shape {shape_text(shape)}")
    if not is_divisible(shape[axis], ranks):
        raise ShapeError(
            f"Shard: axis {axis} of shape {shape_text(shape)} has {shape[axis]} places, of which {ranks} "
            f"ranks cannot have equal parts: choose another axis, or a number of ranks that divides it"
        )
    return (*shape[:axis], shape[axis] // ranks, *shape[axis + 1 :])
