"""Whether an array of the host is still what it was: its digest, by threads while a device computes."""

from __future__ import annotations

import hashlib
import secrets

import numpy as np

from magmadnn.compiler.llvm.driver.driver import Driver, Task
from magmadnn.compiler.llvm.fused.digest import BLOCK_WORDS, KEYS, SUMS, Digest
from magmadnn.compiler.llvm.kernel import block, load
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.graph.op import Array
from magmadnn.memory.room import Room
from magmadnn.runtime.cpu.row_copies import keep_threads

from .upload import threads

_BLOCK_BYTES = 4 * BLOCK_WORDS
_DIGEST_BYTES = 16
_BLOCKS, _DATA, _SUMS = (Digest.slots.index(name) for name in ("blocks", "data", "sums"))
# That nobody can know; drawn once, before there are threads: digests are equal for equal keys only.
_KEYS = np.frombuffer(secrets.token_bytes(4 * KEYS), np.uint32)
_SHARES = 2  # parts for each thread, so that one that is held up leaves its to others


class Fingerprint:
    """The digest of an array's bytes as they are now, of 128 bits with keys of this process.

    It begins at once; the array must not change until `result` is called.

    Args:
        array: contiguous, in any order of its axes.
    """

    def __init__(self, array: Array) -> None:
        self._bytes = array.ravel(order="K").view(np.uint8)
        self._sums = np.empty((self._bytes.size // _BLOCK_BYTES, SUMS), np.uint64)
        self._whole = threads().submit(self._made)

    def result(self) -> bytes:
        """Wait for it."""
        return self._whole.result()

    def _made(self) -> bytes:
        """Sums of blocks by native threads, then the digest of those and of the bytes behind them."""
        kernel = load([Digest()], cache=kernel_cache())[0]
        blocks, parts = len(self._sums), _SHARES * Room.threads
        ends = np.unique(np.arange(parts + 1) * blocks // parts)
        first = ends[:-1]
        one = block(Digest(), blocks=0, data=self._bytes, keys=_KEYS, sums=self._sums)
        arguments = np.tile(one, (len(first), 1))
        arguments[:, _BLOCKS] = np.diff(ends)
        arguments[:, _DATA] += first * _BLOCK_BYTES
        arguments[:, _SUMS] += first * self._sums.itemsize * SUMS
        if blocks:
            count = keep_threads(Room.threads if len(first) > 1 else 1)
            tasks = [Task(kernel, of_part) for of_part in arguments]
            Driver([tasks], count, cache=kernel_cache()).run(0, 1)
        found = hashlib.blake2b(self._sums.data, digest_size=_DIGEST_BYTES)
        found.update(self._bytes[blocks * _BLOCK_BYTES :].data)
        return found.digest()
