"""Ways to damage a file: bytes of any kind, numbers with extreme values, and JSON by its structure."""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

_EXTREMES = [0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1]
_EXTREMES += [2**62, 2**63 - 1, 2**63, 2**64 - 1]


def damaged(data: bytes, rng: random.Random, pieces: Sequence[bytes] = ()) -> bytes:
    """`data` after one or a few mutations; `pieces` are what a file of this kind is made of."""
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        data = rng.choice(_BYTES)(data, rng, pieces)
    return data


def _flip(data: bytes, rng: random.Random, pieces: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8]) if data else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(data: bytes, rng: random.Random, pieces: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _remove(data: bytes, rng: random.Random, pieces: Sequence[bytes]) -> bytes:
    low = rng.randrange(len(data) + 1)
    return data[:low] + data[low + rng.choice([1, 2, 4, 30, 300]) :]


def _insert(data: bytes, rng: random.Random, pieces: Sequence[bytes]) -> bytes:
    low = rng.randrange(len(data) + 1)
    return data[:low] + _piece(rng, pieces) + data[low:]


def _overwrite(data: bytes, rng: random.Random, pieces: Sequence[bytes]) -> bytes:
    low, piece = rng.randrange(len(data) + 1), _piece(rng, pieces)
    return data[:low] + piece + data[low + len(piece) :]


def _duplicate(data: bytes, rng: random.Random, pieces: Sequence[bytes]) -> bytes:
    low, goal = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    part = data[low : low + rng.choice([1, 4, 16, 100, 1000])]
    return data[:goal] + part * rng.choice([1, 1, 3]) + data[goal:]


def _number(data: bytes, rng: random.Random, pieces: Sequence[bytes]) -> bytes:
    width = rng.choice("BHIQ")
    value = rng.choice(_EXTREMES) & (2 ** (8 * struct.calcsize(width)) - 1)
    number = struct.pack(rng.choice("<>") + width, value)
    low = rng.randrange(max(1, min(len(data), rng.choice([16, 64, 10**6]))))
    return data[:low] + number + data[low + len(number) :]


_BYTES: list[Callable[[bytes, random.Random, Sequence[bytes]], bytes]] = [
    _flip,
    _flip,
    _cut,
    _remove,
    _insert,
    _overwrite,
    _duplicate,
    _number,
    _number,
]


def _piece(rng: random.Random, pieces: Sequence[bytes]) -> bytes:
    if pieces and rng.random() < 0.6:
        return rng.choice(pieces) * rng.choice([1, 1, 1, 2, 50])
    if rng.random() < 0.3:
        return bytes(rng.choice([1, 8, 100, 5000]))
    return rng.randbytes(rng.choice([1, 2, 4, 16, 200]))


# --- JSON ------------------------------------------------------------------------------------

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 255, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 10**30, 0.5,
    -0.0, 1e308, 1e-320, "", "a", "model", "x" * 3000, "\n\x1b[2J", "\ud800", "nan", "__class__", "../../x",
    [], {}, [[]], [{}], [0], [None], {"": {}}, {"$float": "nan"}, {"$float": "inf"}, {"$float": 3},
    [0] * 3000, [{}] * 1000, {str(k): {} for k in range(500)}, 10**12, 10**9, 65,
]  # fmt: skip


def damaged_json(
    document: Any, rng: random.Random, values: Sequence[Any] = (), times: int = 0
) -> Any:
    """A JSON document after one or a few changes to its structure: fields lost, doubled, of other types."""
    document = copy.deepcopy(document)
    for _ in range(times or rng.choice([1, 1, 1, 2, 5])):
        places = list(_places(document))
        if not places:
            return rng.choice([*VALUES, *values])
        holder, key = rng.choice(places)
        _change(holder, key, rng, [*VALUES, *values], places)
    return document


def _places(value: Any, depth: int = 0) -> Any:
    if depth > 70:
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner, depth + 1)


def _change(holder: Any, key: Any, rng: random.Random, values: list[Any], places: Any) -> None:
    kind = rng.randrange(9)
    old = holder[key]
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(old))
    elif kind == 1:
        holder[f"{key}x"] = holder.pop(key)
    elif kind == 2:  # what stands somewhere else
        other, place = rng.choice(places)
        holder[key] = copy.deepcopy(other[place]) if place in _keys(other) else None
    elif kind == 3 and type(old) in (int, float) and abs(old) < 1e300:
        holder[key] = rng.choice([old + 1, old - 1, -old, old * 1000, float(old), str(old)])
    elif kind == 4 and isinstance(old, str) and old:
        at = rng.randrange(len(old))
        holder[key] = old[:at] + rng.choice(["", "x", "\0", "0", "é"]) + old[at + 1 :]
    elif kind == 5 and isinstance(old, dict | list):
        holder[key] = list(old.values()) if isinstance(old, dict) else dict(enumerate_names(old))
    elif kind == 6:
        nested: Any = old
        for _ in range(rng.choice([1, 3, 70])):
            nested = {"a": nested} if rng.random() < 0.5 else [nested]
        holder[key] = nested
    else:
        holder[key] = copy.deepcopy(rng.choice(values))


def _keys(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


def enumerate_names(values: list[Any]) -> Any:
    """Items of a list under their numbers as names."""
    return ((str(k), value) for k, value in enumerate(values))
