"""Calls as they are known at once: by how Tensors in a GPU's memory are laid out, and by plain arguments.

What a call is known by in full takes longer to find than a small matrix to solve. So a call whose operands
lie as those of one before goes straight to the program that computed that one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

_PLAIN = frozenset({bool, int, float, complex, str, type(None)})


class Known(NamedTuple):
    """A call.

    Attributes:
        key: what it is known by.
        places: addresses of its operands.
    """

    key: Hashable
    places: list[int]


def known_call(
    what: Hashable, values: Sequence[Any], named: Mapping[str, Any], tensor: type
) -> Known | None:
    """A call with such arguments; None where an argument is of another kind, or has no `DeviceLayout`.

    Args:
        what: is called.
        values: Tensors, tuples with some, and plain arguments.
        named: plain arguments, or tuples of them.
        tensor: the class of Tensors.
    """
    places: list[int] = []
    parts = _parts(values, tensor, places)
    if parts is None or not places:
        return None
    if not named:
        return Known((what, parts), places)
    settings = _parts(named.values(), None, places)
    return None if settings is None else Known((what, parts, tuple(named), settings), places)


def with_types(argument: Any) -> Any:
    """A plain argument as programs are known by it: 1, 1.0 and True are different."""
    if isinstance(argument, (tuple, list)):
        return type(argument), tuple(map(with_types, argument))
    return type(argument), argument


def _parts(values: Iterable[Any], tensor: type | None, places: list[int]) -> tuple[Any, ...] | None:
    found: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is tensor:
            known = value._device_layout()
            if known is None:
                return None
            found.append(known[0])
            places.append(known[1])
        elif kind in _PLAIN:
            found.append((kind, value))
        elif issubclass(kind, tuple):
            inner = _parts(value, tensor, places)
            if inner is None:
                return None
            found.append((kind, inner))
        else:
            return None
    return tuple(found)
