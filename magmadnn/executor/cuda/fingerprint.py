"""Whether an array of the host is still what it was: its digest, by a few threads while a device computes."""

from __future__ import annotations

import hashlib
import secrets
from concurrent.futures import Future
from functools import cache

import numpy as np
from numpy.typing import NDArray

from magmadnn.compiler.emit.llvm.digest import BLOCK_WORDS, KEYS, SUMS, Digest
from magmadnn.compiler.emit.llvm.kernel import Loaded, block, load, scratch
from magmadnn.graph.op import Array

from .upload import THREADS, threads

_BLOCK_BYTES = 4 * BLOCK_WORDS
_DIGEST_BYTES = 16


class Fingerprint:
    """The digest of an array's bytes as they are now, of 128 bits with keys of this process.

    It begins at once; the array must not change until `result` is called.

    Args:
        array: contiguous, in any order of its axes.
    """

    def __init__(self, array: Array) -> None:
        self._run, self._keys = _kernel()
        self._bytes = array.ravel(order="K").view(np.uint8)
        blocks = self._bytes.size // _BLOCK_BYTES
        self._sums = np.empty((blocks, SUMS), np.uint64)
        step = max(-(-blocks // THREADS), 1)
        parts = [
            threads().submit(self._look, first, min(first + step, blocks))
            for first in range(0, blocks, step)
        ]
        # after the parts, so it never waits for one that has no thread
        self._whole = threads().submit(self._joined, parts)

    def _look(self, first: int, last: int) -> None:
        data = self._bytes[first * _BLOCK_BYTES : last * _BLOCK_BYTES]
        sums = self._sums[first:last]
        arguments = block(Digest(), blocks=last - first, data=data, keys=self._keys, sums=sums)
        self._run(arguments, scratch(0))

    def result(self) -> bytes:
        """Wait for it."""
        return self._whole.result()

    def _joined(self, parts: list[Future[None]]) -> bytes:
        for part in parts:
            part.result()
        found = hashlib.blake2b(self._sums.data, digest_size=_DIGEST_BYTES)
        found.update(self._bytes[len(self._sums) * _BLOCK_BYTES :].data)
        return found.digest()


@cache
def _kernel() -> tuple[Loaded, NDArray[np.uint32]]:
    """The kernel, and keys that nobody can know."""
    keys = np.frombuffer(secrets.token_bytes(4 * KEYS), np.uint32)
    return load([Digest()])[0], keys
