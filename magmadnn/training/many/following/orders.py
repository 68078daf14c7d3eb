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
_SLOTS = [_KERNEL.slots.index(name) for name in ("seed", "stream", "keys")]


def permutations(
    count: int, seeds: Sequence[int], streams: Sequence[int], beside: Beside
) -> NDArray[np.int64]:
    """`philox.permutation` for all streams of all seeds, [seeds, streams, count].

    A key of 64 bits is drawn as the number of its first 53 bits. Where two of these are equal, which is
    rare, all bits are looked at.
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
    found = np.argsort(keys, axis=1)
    keys.sort(axis=1)
    for row in np.flatnonzero((keys[:, 1:] == keys[:, :-1]).any(axis=1)).tolist():
        model, epoch = divmod(row, len(streams))
        found[row] = philox.permutation(count, seeds[model], streams[epoch])
    return found.reshape(len(seeds), len(streams), count)
