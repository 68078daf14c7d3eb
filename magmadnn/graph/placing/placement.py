"""Placements: how the elements of a value are shared out among ranks.

`on` names the ranks that have the value, in order; None for all. The others have nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.dim import Shape, Size
from magmadnn.graph.signature import is_integer, shape_text

On = tuple[int, ...] | None


@dataclass(frozen=True)
class Replicate:
    """Each of the ranks has all elements.

    Attributes:
        on: the ranks; None for all.
    """

    on: On = None


@dataclass(frozen=True)
class Shard:
    """Each rank has an equal run of an axis: rank r of P has places n r / P to n (r + 1) / P of n.

    Attributes:
        axis: counted from the front.
        on: the ranks, in the order of their runs; None for all.

    Raises:
        ArgumentError: if axis is no number from 0.
    """

    axis: int
    on: On = None

    def __post_init__(self) -> None:
        if not is_integer(self.axis) or self.axis < 0:
            raise ArgumentError(f"Shard: axis must be a whole number from 0, got {self.axis!r}")


@dataclass(frozen=True)
class Partial:
    """Each of the ranks has a term of each element; the value is their sum.

    Attributes:
        on: the ranks; None for all.
    """

    on: On = None


Placement = Replicate | Shard | Partial


def ranks_on(on: On, ranks: int) -> tuple[int, ...]:
    """The ranks that `on` means, of so many."""
    return tuple(range(ranks)) if on is None else on


def is_divisible(size: Size, ranks: int) -> bool:
    """Whether so many ranks can have equal parts of an axis, whatever its symbols are."""
    rest = size % ranks
    return isinstance(rest, int) and rest == 0


def local_shape(shape: Shape, placement: Placement, ranks: int) -> Shape:
    """The shape of the part of a rank that has one, of so many ranks.

    Raises:
        ShapeError: if there is no such axis, or ranks have no equal parts of it.
    """
    if not isinstance(placement, Shard):
        return shape
    axis, ranks = placement.axis, len(ranks_on(placement.on, ranks))
    if axis >= len(shape):
        raise ShapeError(f"Shard: there is no axis {axis} in shape {shape_text(shape)}")
    if not is_divisible(shape[axis], ranks):
        raise ShapeError(
            f"Shard: axis {axis} of shape {shape_text(shape)} has {shape[axis]} places, of which {ranks} "
            f"ranks cannot have equal parts: choose another axis, or a number of ranks that divides it"
        )
    return (*shape[:axis], shape[axis] // ranks, *shape[axis + 1 :])
