"""Copies among the GPUs of one machine by their copy engines, which leave the multiprocessors to kernels.

A process reads arrays of others through CUDA's memory of other processes (IPC). Nothing is waited for on
the host: streams meet before and after (`Flags`; where these are not to be had by a sum of one number by
NCCL), which says when arrays may be read and written again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from magmadnn.comm.gpu.flags import Flags
from magmadnn.comm.gpu.ipc import Mapped, exported, library
from magmadnn.comm.gpu.phases import Captured, Gemm
from magmadnn.errors import DeviceError

Array = Any
Group = Any  # a `NcclCommunicator`, whose sums are made of this
_INT32, _SUM = 2, 0  # of NCCL
_PHASES: Final = (
    16  # that the host is ahead: before CUDA's queues are full, where it would wait without end
)


class PeerCopies:
    """What one rank reads from the others' arrays.

    `begin` ... `copy` ... `end` is a phase, which all ranks of the group begin and end together. What arrays
    held on the current stream at `begin` is what others read. What copies write to is allocated before.

    Args:
        group: of the GPUs' ranks.
    """

    def __init__(self, group: Group) -> None:
        self._group, self._cupy = group, group._cupy
        self._device, self._stream = group._device, group._stream
        self._one = self._cupy.zeros(1, "int32")
        self._mapped, self._driver = Mapped(self._cupy, self._device), library()
        self._flags: Flags | None = None
        self._begun: deque[Any] = deque()  # the ends of phases that the host has not seen
        self._met = 0  # meetings of the present phase
        self._captured: Captured | None = None
        self._capturing = False

    @staticmethod
    def among(group: Group) -> PeerCopies | None:
        """The copies of this group; None where one of its GPUs cannot read another's memory. Collective."""
        peers: PeerCopies | None = None
        handle: list[Any] = []
        problem = ""
        try:
            peers = PeerCopies(group)
            own = peers._cupy.full(4, group.rank, "int32")
            peers._cupy.cuda.get_current_stream().synchronize()
            handle = peers._described(own)
        except (OSError, RuntimeError, DeviceError) as error:
            problem = str(error)
        described = group.exchange([problem, handle])
        if peers is not None and not any(bad for bad, _ in described):
            try:
                for rank, (_, other) in enumerate(described):
                    view = own if rank == group.rank else peers._view(other)
                    if (view.get() != rank).any():
                        problem = f"memory of rank {rank} holds something else"
            except RuntimeError as error:
                problem = str(error)
        if any(bad for bad, _ in group.exchange([problem, ""])) or peers is None:
            return None
        flags = Flags(group, peers._driver, peers._described, peers._view)
        peers._flags = flags if flags.tried() else None
        return peers

    # --- arrays of others ------------------------------------------------------------------------

    def share(self, arrays: Sequence[Array]) -> list[list[Array]]:
        """The arrays that each rank gave, as arrays here. Collective; the host waits for the others.

        They stay valid while the owner keeps them, and hold something only within a phase.
        """
        described = self._group.exchange([self._described(array) for array in arrays])
        return [
            list(arrays) if rank == self._group.rank else [self._view(one) for one in theirs]
            for rank, theirs in enumerate(described)
        ]

    def _described(self, array: Array) -> list[Any]:
        strides = [int(step) for step in array.strides]
        place = exported(self._cupy, self._driver, array)
        return [*place, list(array.shape), strides, array.dtype.name]

    def _view(self, described: Any) -> Array:
        from magmadnn.comm.arrays import dtype_of

        handle, offset, shape, strides, name = described
        address = self._mapped.address(handle, offset)
        dtype = dtype_of(name)
        size = dtype.itemsize + sum(
            (n - 1) * step for n, step in zip(shape, strides, strict=True) if n
        )
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(address, size, self, self._device)
        pointer = cuda.MemoryPointer(memory, 0)
        return self._cupy.ndarray(tuple(shape), dtype, pointer, tuple(strides))

    # --- a phase ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let others read what the current stream has written so far; read what theirs has."""
        self.follow()
        self._meet()

    def follow(self) -> None:
        """Let copies from here on wait for what the current stream has been given."""
        self._stream.wait_event(self._cupy.cuda.get_current_stream().record())

    # Copies, products and meetings of a phase may be captured; see `capture`.

    def copy(self, out: Array, source: Array) -> None:
        """Begin to copy an array, on the stream of copies; both have the same shape and dtype."""
        if out.size:
            copied = _as_rows(out, source)
            if copied is None or out.dtype != source.dtype:
                with self._stream:
                    out[...] = source
            else:
                self._copy_rows(*copied)

    def _copy_rows(self, out: Array, source: Array, count: int, width: int) -> None:
        runtime = self._cupy.cuda.runtime
        to, start = int(out.data.ptr), int(source.data.ptr)
        steps = [width if count == 1 else int(x.strides[0]) for x in (out, source)]
        if steps == [width, width]:
            runtime.memcpyAsync(to, start, count * width, runtime.memcpyDefault, self._stream.ptr)
            return
        runtime.memcpy2DAsync(
            to, steps[0], start, steps[1], width, count, runtime.memcpyDefault, self._stream.ptr
        )

    def mark(self) -> Any:
        """What `wait` takes: all copies so far."""
        return self._stream.record()

    def wait(self, mark: Any) -> None:
        """Let the current stream wait for copies; the host goes on."""
        self._cupy.cuda.get_current_stream().wait_event(mark)

    def end(self) -> None:
        """From here on the current stream may write to what others have read."""
        self._meet()
        self._met = 0
        mark = self.mark()
        self.wait(mark)
        if not self._capturing:
            self._given(mark)

    def _given(self, mark: Any) -> None:
        """A phase has been given to streams, and is done with a mark."""
        self._begun.append(mark)
        if len(self._begun) > _PHASES:
            self._done(self._begun[0])
            self._begun.popleft()

    def finish(self) -> None:
        """Wait on the host until the current stream, and so all phases before, are done.

        Raises:
            CommunicationError: if another rank has not come to a meeting for a minute; says which.
        """
        self._done(self._cupy.cuda.get_current_stream().record())
        self._begun.clear()

    def _done(self, mark: Any) -> None:
        if self._flags is None:
            mark.synchronize()
        else:
            self._flags.wait_for(
                lambda: bool(mark.done), lambda: sum(not one.done for one in self._begun)
            )

    def _meet(self) -> None:
        """Let the stream of copies wait until those of all ranks are here."""
        if self._flags is not None:
            number = 0 if not self._met else 1 + self._met % 2
            self._flags.meet(self._stream.ptr, number)
            self._met += 1
            return
        place = self._one.data.ptr
        self._group._comm.allReduce(place, place, 1, _INT32, _SUM, self._stream.ptr)

    # --- phases as graphs ------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes on this GPU that graphs of phases need beside the arrays."""
        return 0 if self._captured is None else self._captured.nbytes

    def capture(self, phase: Callable[[Gemm], None]) -> Callable[[], None] | None:
        """A phase as a graph of CUDA: what gives it to the current stream in one call, as often as it is
        called. None where GPUs do not meet by flags.

        Each rank decides for itself: others see no difference. A graph reads and writes where the arrays of
        the phase lie: whoever launches it sees to it that the same addresses mean the same again.

        Args:
            phase: one from `begin` to `end`, with local products by cuBLAS's gemmEx as it is given. All its
                arrays are there before. It has been called outside of a graph, so that kernels are loaded.

        Raises:
            RuntimeError, NotImplementedError: something in it cannot be captured; the phase may be called
                outside of a graph.
        """
        if self._flags is None:
            return None
        if self._captured is None:
            self._captured = Captured(self._cupy)
        count = self._flags.count
        self._capturing = True
        try:
            graph = self._captured.graph(phase)
        except Exception:
            self._flags.count = count
            raise
        finally:
            self._capturing, self._met = False, 0
        meetings, self._flags.count = self._flags.count - count, count
        return lambda: self._launch(graph, meetings)

    def _launch(self, graph: Any, meetings: int) -> None:
        assert self._flags is not None
        self._flags.count += meetings
        stream = self._cupy.cuda.get_current_stream()
        graph.launch(stream)
        self._given(stream.record())


def _as_rows(out: Array, source: Array) -> tuple[Array, Array, int, int] | None:
    """Two arrays as rows of bytes: how many, and how long; None where their elements lie otherwise."""
    if out.flags.c_contiguous and source.flags.c_contiguous:
        return out, source, 1, int(out.nbytes)
    if out.ndim == 2:
        for x, y in ((out, source), (out.T, source.T)):
            alike = [one.shape[1] == 1 or one.strides[1] == one.itemsize for one in (x, y)]
            if all(alike) and all(step > 0 for one in (x, y) for step in one.strides):
                return x, y, int(x.shape[0]), int(x.shape[1]) * x.itemsize
    return None
