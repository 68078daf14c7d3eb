"""Calls as they are known at once: by how Tensors in a GPU's memory are laid out, and by plain arguments.

What a call is known by in full takes longer to find than a small matrix to solve. So a call whose operands
lie as those of one before goes straight to the program that computed that one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from numpy.typing import NDArray

from magmadnn.backends.cuda.nodes.stand_ins import ALIGNMENT
from magmadnn.memory import Kind, MemoryManager

_PLAIN = frozenset({bool, int, float, complex, str, type(None)})


class Known(NamedTuple):
    """A call.

    Attributes:
        key: what it is known by.
        places: addresses of its operands.
        device: number of the device that all lie on.
    """

    key: Hashable
    places: list[int]
    device: int


def known_call(
    what: Hashable, values: Sequence[Any], named: Mapping[str, Any], tensor: type
) -> Known | None:
    """A call with such arguments; None where one is nothing of the kind, or lies at an odd address.

    Args:
        what: is called.
        values: Tensors, tuples with some, and plain arguments.
        named: plain arguments, or tuples of them.
        tensor: the class of Tensors.
    """
    operands: list[tuple[Any, int, int]] = []
    parts = _parts(values, tensor, operands)
    settings = _parts(named.values(), None, operands) if named else ()
    if parts is None or settings is None or not operands:
        return None
    device, places = operands[0][2], list[int]()
    for memory, behind, on in operands:
        place = memory.device_pointer() + behind
        if on != device or place % ALIGNMENT:
            return None
        places.append(place)
    return Known((what, device, parts, tuple(named), settings), places, device)


def with_types(argument: Any) -> Any:
    """A plain argument as programs are known by it: 1, 1.0 and True are different."""
    if isinstance(argument, (tuple, list)):
        return type(argument), tuple(map(with_types, argument))
    return type(argument), argument


class Lying(NamedTuple):
    """How the elements of a Tensor lie in DEVICE memory.

    Attributes:
        layout: the same object for equal shapes, strides and dtypes.
        place: its memory, how many bytes behind the beginning of that, and the number of the device.
    """

    layout: object
    place: tuple[Any, int, int]


class Lies:
    """What has elements in a memory, laid out by a frame; how they lie is found out once for a frame."""

    __slots__ = ("_lying",)
    _memory: MemoryManager
    _frame: NDArray[Any]

    @property
    def offset(self) -> int:
        """Elements from the beginning of the memory to the first."""
        raise NotImplementedError

    def lying(self) -> Lying | None:
        """How they lie in DEVICE memory; None for other kinds."""
        frame = self._frame
        try:
            if self._lying[0] is frame:
                return self._lying[1]
        except AttributeError:
            self._lying: tuple[Any, Lying | None]
        memory, found = self._memory, None
        if memory.kind is Kind.DEVICE:
            behind = 0 if frame.size == memory.size else self.offset * memory.dtype.itemsize
            layout = _layout(frame.shape, frame.strides, memory.dtype)
            found = Lying(layout, (memory, behind, memory.device))
        self._lying = frame, found
        return found


@lru_cache(maxsize=4096)
def _layout(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> object:
    """What stands for a layout in what calls are known by: to compare shapes and dtypes takes longer."""
    return object()


def _parts(
    values: Iterable[Any], tensor: type | None, operands: list[tuple[Any, int, int]]
) -> tuple[Any, ...] | None:
    found: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is tensor:
            lying = value.lying()
            if lying is None:
                return None
            found.append(lying.layout)
            operands.append(lying.place)
        elif kind in _PLAIN:
            found.append((kind, value))
        elif issubclass(kind, tuple):
            inner = _parts(value, tensor, operands)
            if inner is None:
                return None
            found.append((kind, inner))
        else:
            return None
    return tuple(found)
