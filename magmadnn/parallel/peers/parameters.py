"""Parameters and gradients of a server and its workers, from GPU to GPU.

Each worker has two buffers on its GPU: one for parameters, which the server writes, and one for gradients,
which it reads. They are the server's from the worker's message that a gradient is there until the server's
message of what comes next, and the worker's from then on; whoever sends such a message has waited for its GPU
before. So nobody reads what is being written, with one copy of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from magmadnn.backends.cuda import device_memory
from magmadnn.comm import Communicator
from magmadnn.comm.gpu.peer_buffers import PeerBuffers, placed
from magmadnn.compiler.plan.memory import nbytes_of
from magmadnn.graph import Node
from magmadnn.graph.op import Array
from magmadnn.parallel.buckets import size_of
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.data.copies import CopiesAtOnce
from magmadnn.runtime.cuda.layout import comes_to
from magmadnn.runtime.variables import tensor_of

from .vectors import Vectors, vectors_on


class _Place(NamedTuple):
    """A variable, and where its values lie in a buffer.

    Attributes:
        start: bytes from the beginning of the buffer,
        nbytes: and how many.
        offset: bytes from the beginning of the variable's memory.
        is_whole: whether it has all of that memory.
    """

    node: Node
    start: int
    nbytes: int
    offset: int
    is_whole: bool

    @classmethod
    def of(cls, node: Node, start: int, nbytes: int) -> _Place:
        """The place of a variable."""
        tensor = tensor_of(node)
        offset = tensor.offset * tensor.dtype.itemsize
        return cls(node, start, nbytes, offset, tensor.size == tensor.memory.size)

    def address(self, write: bool = False) -> int:
        """Where the variable lies now; with `write` for who writes all of it."""
        memory = tensor_of(self.node).memory
        if write and self.is_whole:
            return int(memory.overwritten_on_device())
        return int(memory.device_pointer(write) + self.offset)


class PeerParameters:
    """What the server, rank 0, and its workers copy.

    Args:
        buffers: of all ranks.
        held: what the server gives to workers, the same variables on all ranks.
        lengths: elements of gradients by dtype.
        small: elements of what a worker tells by a message.
        device: number of this rank's GPU.

    Attributes:
        sums: on the server the gradients that are used next, by dtype.
    """

    def __init__(
        self,
        buffers: PeerBuffers,
        held: Sequence[Node],
        lengths: Mapping[np.dtype[Any], int],
        small: int,
        device: int,
    ) -> None:
        self._buffers, self._device, self._small = buffers, device, small
        sizes = _sizes(held)
        pairs = zip(held, placed(sizes)[0], sizes, strict=True)
        self._held = [_Place.of(node, start, nbytes) for node, start, nbytes in pairs]
        self._arrays = [(node.dtype.name, size_of(node.spec)) for node in held]
        self._nbytes = sum(sizes)
        self._is_at_once = CopiesAtOnce.can(self._arrays)
        self._at_once: dict[int, CopiesAtOnce] = {}  # by worker
        parts = _bytes_of(lengths)
        self._parts = list(zip(placed(parts)[0], parts, strict=True))
        self.sums: Vectors = vectors_on(device, lengths) if buffers.of else {}
        self._added: tuple[Vectors, Executable] | None = None

    @classmethod
    def among(
        cls, comm: Communicator, device: int, held: Sequence[Node],
        lengths: Mapping[np.dtype[Any], int], small: int, is_worker_too: bool = False,
    ) -> PeerParameters | str:  # fmt: skip
        """Buffers of all workers, opened by rank 0; a text on all ranks that says why not where GPUs do not
        reach each other.

        Collective. With `is_worker_too` rank 0 has buffers of its own.
        """
        sizes = list[int]()
        if comm.rank or is_worker_too:
            sizes = [placed(_sizes(held))[1], placed(_bytes_of(lengths))[1], 8 * small]
        buffers = PeerBuffers.among(comm, device, sizes, () if comm.rank else range(1, comm.size))
        return buffers if isinstance(buffers, str) else cls(buffers, held, lengths, small, device)

    @property
    def copied(self) -> int:
        """Bytes that this rank has copied from GPU to GPU."""
        return self._buffers.copied

    @property
    def nbytes(self) -> int:
        """Bytes on this rank's GPU beside those of a step."""
        return self._buffers.nbytes

    # --- the server -------------------------------------------------------------------------------

    def give(self, rank: int) -> None:
        """Begin to write the newest parameters to a worker's buffer, where they are after `done`."""
        buffer = self._buffers.of[rank][0]
        self._copy([o.address() for o in self._held], [buffer + o.start for o in self._held], rank)

    def done(self) -> None:
        """Wait until all copies are done: others may be told."""
        self._buffers.done()

    def fetch(self, rank: int) -> None:
        """Begin to copy a worker's gradients to `sums`; what the GPU is given next finds them there."""
        self._fetch(self._buffers.of[rank][1], self.sums)

    def _fetch(self, buffer: int, vectors: Vectors) -> None:
        for (start, nbytes), vector in zip(self._parts, vectors.values(), strict=True):
            address = tensor_of(vector.node).memory.device_pointer(write=True)
            self._buffers.copy(address, buffer + start, nbytes)

    def add_up(self, ranks: Sequence[int], way: Mapping[str, Any]) -> None:
        """Begin to add up gradients of ranks, the server's own too, one after the other.

        Args:
            ranks: at least one.
            way: executor, precision and device of programs.
        """
        buffers = (
            self._buffers.own[1],
            *(self._buffers.of[rank][1] for rank in sorted(self._buffers.of)),
        )
        first, *others = [buffers[rank] for rank in ranks]
        self._fetch(first, self.sums)
        if others and self._added is None:
            vectors = vectors_on(self._device, {d: v.node.value.size for d, v in self.sums.items()})
            pairs = zip(self.sums.values(), vectors.values(), strict=True)
            updates = [(total.node, (total + more).node) for total, more in pairs]
            self._added = vectors, Executable([], updates, training=True, **way)
        for buffer in others:
            assert self._added is not None
            vectors, program = self._added
            self._fetch(buffer, vectors)
            program.run_into({}, [])

    # --- a worker ---------------------------------------------------------------------------------

    def take(self) -> None:
        """Begin to have the parameters that the server has written."""
        buffer = self._buffers.own[0]
        goals = [one.address(write=True) for one in self._held]
        self._copy([buffer + one.start for one in self._held], goals, 0)

    def computed(self, executable: Executable, feeds: Mapping[Node, Any]) -> Array:
        """Run a program whose outputs are a small vector and gradients; those are in the buffer then.

        Raises:
            what `Executable.run` raises.
        """
        memory, (_, buffer, told) = device_memory(self._device), self._buffers.own
        goals = [told, *(buffer + start for start, _ in self._parts)]
        small = np.empty(self._small)
        if executable.run_into(feeds, goals):
            memory.copy_to_host(small.view(np.uint8), told)
        else:
            small, *vectors = executable.run(feeds)  # says what is wrong
            for goal, vector in zip(goals[1:], vectors, strict=True):
                memory.copy_to_device(goal, np.ascontiguousarray(vector).view(np.uint8))
        self._buffers.done()
        return small

    def _copy(self, sources: Sequence[int], goals: Sequence[int], to: int) -> None:
        """Begin to copy all that is held, by one launch where that can be."""
        if not self._is_at_once:
            for source, goal, one in zip(sources, goals, self._held, strict=True):
                self._buffers.copy(goal, source, one.nbytes)
            return
        if to not in self._at_once:
            self._at_once[to] = CopiesAtOnce(self._arrays, self._device)
        self._buffers.launch(partial(self._at_once[to].begin, sources, goals), self._nbytes)


def can_be_given(held: Sequence[Node], device: int) -> bool:
    """Whether variables lie on a device, or come there, as one block each."""
    return all(comes_to(tensor_of(node), device) for node in held)


def _sizes(nodes: Sequence[Node]) -> list[int]:
    return [nbytes_of(node, {}) for node in nodes]


def _bytes_of(lengths: Mapping[np.dtype[Any], int]) -> list[int]:
    return [n * dtype.itemsize for dtype, n in lengths.items()]
