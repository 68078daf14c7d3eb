"""Ranks of one training read a checkpoint together: each a part of the file, which all get from it.

Rank 0 looks for the checkpoint and checks its record; for the file of values it asks the others. Those who
see the same checkpoint under that name read as many pieces each and check them, and send them to all: the
file is read once in all, however parameters and moments are shared out afterwards. Where nobody but rank 0
sees it, or a rank finds a fault, rank 0 reads and checks the whole file and sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.comm.arrays import cuts
from magmadnn.errors import CheckpointError, MagmaDNNError
from magmadnn.graph.op import Array
from magmadnn.storage.pieces import SharedFile

_SLAB: Final = 64 << 20  # bytes that go to all at a time, at least a piece of each reader


class SharedReading:
    """What one rank reads of checkpoints that a training goes on from.

    Args:
        comm: the ranks of the training.

    Attributes:
        bytes_read: of files of values, on this rank.
        found: the arrays of each file that all have read, in the same order on all ranks.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.bytes_read = 0
        self.found: list[dict[str, Array]] = []

    def lead(self, folder: Path, name: str, pieces: Mapping[str, Any]) -> dict[str, Array] | None:
        """On rank 0: the arrays of a file, of which each rank reads its part; None: read it here.

        Raises:
            CheckpointError: what all have read is not a file of arrays.
        """
        self._comm.exchange([str(folder.absolute()), name, dict(pieces)])
        found = self._read(SharedFile(folder.absolute(), name, pieces))
        if found is None:
            self.bytes_read += int(pieces["size"])
        return found

    def end(self) -> None:
        """On rank 0: there is nothing more to read."""
        self._comm.exchange(None)

    def serve(self) -> None:
        """On the other ranks: read parts until there is nothing more to read."""
        while (asked := self._comm.exchange(None)[0]) is not None:
            folder, name, pieces = asked
            try:
                self._read(SharedFile(Path(folder), name, pieces))
            except CheckpointError:  # rank 0 has the same error, and says what comes of it
                continue

    def _read(self, file: SharedFile) -> dict[str, Array] | None:
        comm = self._comm
        seen: list[Any] = comm.exchange(_digest_of(file))
        readers = [rank for rank, one in enumerate(seen) if one is not None and one == seen[0]]
        if len(readers) < 2:
            return None
        data, problem = self._own_part(file, readers)
        if any(comm.exchange(problem)):
            return None
        assert data is not None
        for begin, bounds in _slabs(file, readers, comm.size):
            counts = [last - first for first, last in pairwise(bounds)]
            whole = data[begin + bounds[0] : begin + bounds[-1]]
            mine = whole[bounds[comm.rank] : bounds[comm.rank + 1]]
            comm.all_gather(mine, whole, counts=counts)
        self.found.append(file.tensors(data))
        return self.found[-1]

    def _own_part(self, file: SharedFile, readers: list[int]) -> tuple[Array | None, bool]:
        """Room for the file, with what this rank reads of it; whether something went wrong."""
        try:
            data = file.room()
            for begin, bounds in _slabs(file, readers, self._comm.size):
                first, last = (
                    -(-(begin + bounds[rank]) // file.each)
                    for rank in (self._comm.rank, self._comm.rank + 1)
                )
                self.bytes_read += file.read(first, last, data)
        except (MagmaDNNError, MemoryError):
            return None, True
        return data, False


def _digest_of(file: SharedFile) -> str | None:
    """What tells this file from others; None where it is not seen."""
    try:
        return file.sha256()
    except MagmaDNNError:
        return None


def _slabs(file: SharedFile, readers: list[int], size: int) -> list[tuple[int, list[int]]]:
    """Where each slab of a file begins, and where in it the part of each rank does; the end of the last."""
    pieces = max(len(readers), _SLAB // file.each)
    slabs = []
    for first in range(0, file.count, pieces):
        count = min(pieces, file.count - first)
        shares = np.zeros(size + 1, np.int64)
        ends = cuts(count, len(readers))
        for k, rank in enumerate(readers):
            shares[rank + 1] = ends[k + 1] - ends[k]
        begin, end = first * file.each, min((first + count) * file.each, file.size)
        bounds = np.minimum(np.cumsum(shares) * file.each, end - begin)
        slabs.append((begin, bounds.tolist()))
    return slabs
