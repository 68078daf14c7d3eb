"""Random orders of rows for many models and epochs: keys are drawn by native threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from magmadnn.compiler.kernels.draws import Draw
from magmadnn.compiler.kernels.operands import ROW, SCALAR, Operand, Result
from magmadnn.compiler.llvm.driver.rounds import Beside, addresses_of, tasks_of
from magmadnn.compiler.llvm.kernel import block, load
from magmadnn.ops import philox

_KERNEL = Draw(
    (Operand("stream", "int64", SCALAR),), (Result("keys", "float64", ("drawn",), ROW),), "float64"
)
_AT_ONCE = 1 << 13  # keys that are sorted at a time, so that they stay in a core's cache
_SLOTS = [_KERNEL.slots.index(name) for name in ("seed", "stream", "keys")]


def permutations(
    count: int, seeds: Sequence[int], streams: Sequence[int], beside: Beside
) -> NDArray[np.int64]:
    """`philox.permutation` for all streams of all seeds, [seeds, streams, count].

    A key of 64 bits is drawn as the number of its first 53 bits. Where that does not tell two of them apart,
    which is rare, all bits are looked at.
    """
    (kernel,) = load([_KERNEL], cache=beside.cache)
    each = np.array([s & 0xFFFF_FFFF_FFFF_FFFF for s in streams], np.uint64).view(np.int64)
    own = np.array([s & 0xFFFF_FFFF_FFFF_FFFF for s in seeds], np.uint64).view(np.int64)
    keys = np.empty((len(seeds) * len(streams), count))
    one = block(_KERNEL, column0=0, column1=count, seed=0, stream=0, keys=0)
    arguments = np.tile(one, (len(keys), 1))
    seed, stream, goal = _SLOTS
    arguments[:, seed] = np.repeat(own, len(streams))
    arguments[:, stream] = np.tile(addresses_of(each), len(seeds))
    arguments[:, goal] = addresses_of(keys)
    beside.run(tasks_of(kernel.address, arguments))
    found = keys.view(np.int64)
    size = max(_AT_ONCE // count, 1)
    for first in range(0, len(keys), size):
        for row in _order(found[first : first + size]):
            model, epoch = divmod(first + row, len(streams))
            found[first + row] = philox.permutation(count, seeds[model], streams[epoch])
    return found.reshape(len(seeds), len(streams), count)


def _order(keys: NDArray[np.int64]) -> list[int]:
    """Put the order that sorts each row of keys in their place; the rows in which it is not clear.

    Keys are the bits of numbers of at least 0, which as integers have the same order. With places in their
    lowest bits they are sorted by value, in a fraction of the time of `argsort`. What is left of two keys may
    be equal then, which is rare.
    """
    bits = (keys.shape[1] - 1).bit_length()
    keys &= -1 << bits
    keys |= np.arange(keys.shape[1])
    keys.sort(axis=1)
    apart = (keys[:, 1:] ^ keys[:, :-1]) >> bits
    keys &= (1 << bits) - 1
    return np.flatnonzero((apart == 0).any(axis=1)).tolist()
