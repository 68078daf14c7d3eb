"""Values of many shapes end to end, as they travel and are added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from magmadnn import ops
from magmadnn.graph import Node, Spec
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import placeholder
from magmadnn.graph.op import Array
from magmadnn.tensor import Operation


def size_of(spec: Spec) -> int:
    """The number of elements, of a known shape."""
    return int(np.prod(bind_shape(spec.shape, {}), dtype=np.int64))


SHORT_BYTES: Final = 1 << 18  # of a sum that takes GPUs little more than to meet
# Times as many bytes: what the others of a bucket have at least, to go without the last.
_WORTH: Final = 4


def last_apart(nbytes: Sequence[int]) -> int:
    """How many of the last values of the last bucket, of so many bytes each, travel by themselves.

    Nothing is computed beside the sum of what is ready last: it is short where the others have gone before.
    """
    count = total = 0
    for size in reversed(nbytes):
        if total + size > SHORT_BYTES:
            break
        count, total = count + 1, total + size
    return count if sum(nbytes) - total >= _WORTH * SHORT_BYTES else 0


class Buckets:
    """Values end to end, one vector for each dtype, and placeholders for their sums."""

    def __init__(self) -> None:
        self.lengths: dict[np.dtype[Any], int] = {}
        self.places: list[tuple[Node, int]] = []
        self._values: list[Operation] = []

    def exchanged(self, values: Sequence[Operation], name: str) -> list[Operation]:
        """Placeholders for the sums of values over shards."""
        found = []
        for value in values:
            spec, start = value.node.spec, self.lengths.get(value.dtype, 0)
            node = placeholder(f"{name}_{len(self.places)}", spec)
            self.lengths[value.dtype] = start + size_of(spec)
            self.places.append((node, start))
            self._values.append(value)
            found.append(Operation(node))
        return found

    def vectors(self) -> list[Operation]:
        """The vectors, in the order of `lengths`."""
        by: dict[np.dtype[Any], list[Operation]] = {dtype: [] for dtype in self.lengths}
        for value in self._values:
            by[value.dtype].append(ops.reshape(value, (size_of(value.node.spec),)))
        return [p[0] if len(p) == 1 else ops.concat(p, axis=0) for p in by.values()]

    @property
    def values(self) -> list[Node]:
        """The values, in the order of `places`."""
        return [value.node for value in self._values]

    def feeds(self, vectors: Mapping[np.dtype[Any], Array]) -> dict[Node, Array]:
        """What the placeholders get: parts of the vectors."""
        return {
            node: vectors[node.dtype][start : start + size_of(node.spec)].reshape(node.shape)
            for node, start in self.places
        }
