"""Messages among GPUs by NCCL, through CuPy: one process and one rank for each GPU.

Calls are put on a stream and return before they are done, in the order of the stream. What the host needs
(the number that NCCL's group starts with, small values, the check of calls) travels by a communicator of
the host.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from magmadnn.comm.arrays import dtype_of
from magmadnn.comm.communicator import Communicator, Json, Reduction, Request, Wire
from magmadnn.comm.gpu.captured import CapturedCalls
from magmadnn.comm.gpu.elements import name_of, nccl_dtype, nccl_op
from magmadnn.comm.sites import call_site
from magmadnn.errors import (
    ArgumentError,
    CommunicationError,
    DeviceError,
    DTypeError,
    MissingExtraError,
    ShapeError,
    UnknownNameError,
)

Array = Any


def _library() -> tuple[Any, Any]:
    """CuPy and its binding of NCCL.

    Raises:
        MissingExtraError: if one is missing.
    """
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError as error:
        raise MissingExtraError.of("CuPy", "communication among GPUs", "cuda13") from error
    if not getattr(nccl, "available", False):
        raise MissingExtraError.of("NCCL", "communication among GPUs", "cuda13")
    return cupy, nccl


class _EventRequest:
    """A call on the stream of communication."""

    def __init__(self, result: Array, event: Any, cupy: Any, kept: object) -> None:
        self._result, self._event, self._cupy, self._kept = result, event, cupy, kept

    def wait(self) -> Array:
        """Let the current stream wait for the call; the host goes on. The result."""
        self._cupy.cuda.get_current_stream().wait_event(self._event)
        return self._result

    def done(self) -> bool:
        """Whether the call has been carried out."""
        return bool(self._event.done)


class NcclCommunicator(CapturedCalls):
    """A group of ranks whose arrays are CuPy's, each on a GPU of its own; see `Communicator` for its calls.

    Results of blocking calls are there for the current stream, not for the host. The first call of each
    kind and shape is compared with the other ranks', later ones are not. Sums have the order that NCCL
    gives them, the same in each run on the same GPUs. Arrays are on the device that was current when the
    group was made.

    Args:
        control: the same ranks' communicator of the host.

    Raises:
        MissingExtraError: if CuPy or NCCL is missing.
        DeviceError: if two ranks would use the same GPU.
    """

    def __init__(self, control: Communicator) -> None:
        super().__init__()
        self._cupy, self._nccl = _library()
        self._control: Communicator | None = control
        self.rank, self.size = control.rank, control.size
        self._device = int(self._cupy.cuda.runtime.getDevice())
        _check_devices(control, self._cupy, self._device)
        number = self._nccl.get_unique_id() if self.rank == 0 else None
        shared = control.exchange(None if number is None else [int(one) % 256 for one in number])[0]
        self._comm: Any = self._nccl.NcclCommunicator(self.size, bytes(shared), self.rank)
        self._stream = _quick_stream(self._cupy)
        self._known: set[tuple[Any, ...]] = set()

    def __repr__(self) -> str:
        return f"<NcclCommunicator: rank {self.rank} of {self.size} on device {self._device}>"

    # --- collectives -------------------------------------------------------------------------

    def all_reduce(
        self,
        source: Array,
        out: Array | None = None,
        *,
        op: Reduction = "sum",
        wire: Wire | None = None,
    ) -> Array:
        """Reduce over ranks; see `Communicator.all_reduce`."""
        self._check(source, "all_reduce", f"{op}", wire)
        result = self._out(out, source.shape, source, "all_reduce")
        sent = self._narrow(source, wire)
        names = name_of(sent.dtype), name_of(result.dtype)
        own = self._own_sum(op, sent.size, *names, captured=False)
        if own is not None:
            own.add_now(sent, result)
            return result
        into = result if sent.dtype == result.dtype else self._cupy.empty_like(sent)
        self._comm.allReduce(
            *_pointers(sent, into), sent.size, nccl_dtype(sent), nccl_op(op), self._current()
        )
        return self._widen(into, result)

    def reduce_scatter(
        self,
        source: Array,
        out: Array | None = None,
        *,
        counts: Sequence[int] | None = None,
        op: Reduction = "sum",
        wire: Wire | None = None,
    ) -> Array:
        """Reduce over ranks; rank r keeps its rows; see `Communicator.reduce_scatter`."""
        self._check(source, "reduce_scatter", f"{op} {_listed(counts)}", wire)
        rows = self._rows(counts, source, "reduce_scatter")
        result = self._out(out, (rows[self.rank], *source.shape[1:]), source, "reduce_scatter")
        sent = self._narrow(source, wire)
        into = result if sent.dtype == result.dtype else self._cupy.empty(result.shape, sent.dtype)
        kind, stream = nccl_dtype(sent), self._current()
        if len(set(rows)) == 1:
            pair = _pointers(sent, into)
            self._comm.reduceScatter(*pair, into.size, kind, nccl_op(op), stream)
        else:
            self._group(
                [
                    (
                        self._comm.reduce,
                        (*_pointers(part, into), part.size, kind, nccl_op(op), r, stream),
                    )
                    for r, part in enumerate(_parts(sent, rows))
                ]
            )
        return self._widen(into, result)

    def all_gather(
        self,
        source: Array,
        out: Array | None = None,
        *,
        counts: Sequence[int] | None = None,
        wire: Wire | None = None,
    ) -> Array:
        """Rows of all ranks, one after the other; see `Communicator.all_gather`."""
        shape = None if counts is None else source.shape[1:]
        self._check(source, "all_gather", _listed(counts), wire, shape)
        rows = [len(source)] * self.size if counts is None else [int(count) for count in counts]
        if len(rows) != self.size or rows[self.rank] != len(source):
            raise ShapeError(
                f"all_gather: counts {rows} do not fit: {self.size} ranks, and this one has "
                f"{len(source)} rows"
            )
        result = self._out(out, (sum(rows), *source.shape[1:]), source, "all_gather")
        sent = self._narrow(source, wire)
        into = result if sent.dtype == result.dtype else self._cupy.empty(result.shape, sent.dtype)
        kind, stream = nccl_dtype(sent), self._current()
        if len(set(rows)) == 1:
            self._comm.allGather(*_pointers(sent, into), sent.size, kind, stream)
        else:
            self._group(
                [
                    (self._comm.broadcast, (*_pointers(sent, part), part.size, kind, r, stream))
                    for r, part in enumerate(_parts(into, rows))
                ]
            )
        return self._widen(into, result)

    def broadcast(self, array: Array, *, root: int = 0, wire: Wire | None = None) -> Array:
        """Fill `array` of every rank with that of `root`; see `Communicator.broadcast`."""
        self._check(array, "broadcast", f"from rank {root}", wire)
        self._check_rank(root, "broadcast")
        passing = self._narrow(array, wire)
        self._comm.bcast(passing.data.ptr, passing.size, nccl_dtype(passing), root, self._current())
        return self._widen(passing, array)

    def all_to_all(
        self,
        parts: Sequence[Array],
        out: Sequence[Array] | None = None,
        *,
        wire: Wire | None = None,
    ) -> list[Array]:
        """Send `parts[r]` to each rank r; without `out` the host waits for shapes."""
        if len(parts) != self.size or len(parts if out is None else out) != self.size:
            raise ShapeError(f"all_to_all: parts and out need {self.size} arrays, one a rank")
        for part in parts:
            self._check(part, "all_to_all", "", wire, alike=False)
        if out is None:
            heads = self._host().exchange([[part.dtype.name, *part.shape] for part in parts])
            coming = [head[self.rank] for head in heads]
            out = [self._cupy.empty(shape, dtype_of(name)) for name, *shape in coming]
        sent = [self._narrow(part, wire) for part in parts]
        into = [
            r if (d := self._travels(r, wire)) == r.dtype else self._cupy.empty(r.shape, d)
            for r in out
        ]
        stream, calls = self._current(), list[tuple[Callable[..., Any], tuple[Any, ...]]]()
        for r in range(self.size):
            if r == self.rank:
                into[r][...] = sent[r]
                continue
            if sent[r].size:
                words = (sent[r].data.ptr, sent[r].size, nccl_dtype(sent[r]), r, stream)
                calls.append((self._comm.send, words))
            if into[r].size:
                words = (into[r].data.ptr, into[r].size, nccl_dtype(into[r]), r, stream)
                calls.append((self._comm.recv, words))
        self._group(calls)
        return [self._widen(came, result) for came, result in zip(into, out, strict=True)]

    def shift(
        self, array: Array, out: Array | None = None, *, by: int = 1, wire: Wire | None = None
    ) -> Array:
        """Ring shift; see `Communicator.shift`."""
        self._check(array, "shift", f"by {by}", wire, None if out is None else ())
        result = self._out(out, array.shape if out is None else out.shape, array, "shift")
        sent = self._narrow(array, wire)
        into = result if sent.dtype == result.dtype else self._cupy.empty(result.shape, sent.dtype)
        to, source = (self.rank + by) % self.size, (self.rank - by) % self.size
        stream, kind = self._current(), nccl_dtype(sent)
        if to == self.rank:
            into[...] = sent
        else:
            self._group(
                [
                    (self._comm.send, (sent.data.ptr, sent.size, kind, to, stream)),
                    (self._comm.recv, (into.data.ptr, into.size, kind, source, stream)),
                ]
            )
        return self._widen(into, result)

    # --- messages between two ranks ----------------------------------------------------------

    def send(self, array: Array, to: int, *, tag: int = 0) -> None:
        """Send to one rank. NCCL knows no tags: messages of a pair match in the order of calls."""
        self._pair(self._comm.send, array, to, tag, "send")

    def recv(self, out: Array, source: int, *, tag: int = 0) -> Array:
        """Receive from one rank into `out`."""
        self._pair(self._comm.recv, out, source, tag, "recv")
        return out

    def _pair(self, call: Any, array: Array, other: int, tag: int, name: str) -> None:
        self._check(array, name, "", None, alike=False)
        self._check_rank(other, name)
        if tag:
            raise ArgumentError(f"{name}: NCCL has no tags: use 0, got {tag}")
        call(array.data.ptr, array.size, nccl_dtype(array), other, self._current())

    # --- calls that return at once -----------------------------------------------------------

    def start_all_reduce(
        self,
        source: Array,
        out: Array | None = None,
        *,
        op: Reduction = "sum",
        wire: Wire | None = None,
    ) -> Request:
        """`all_reduce` on the stream of communication, beside what the current stream does next."""
        return self._beside(lambda: self.all_reduce(source, out, op=op, wire=wire), source)

    def start_send(self, array: Array, to: int, *, tag: int = 0) -> Request:
        """`send` on the stream of communication."""
        return self._beside(lambda: self.send(array, to, tag=tag), array)

    def start_recv(self, out: Array, source: int, *, tag: int = 0) -> Request:
        """`recv` on the stream of communication."""
        return self._beside(lambda: self.recv(out, source, tag=tag), out)

    def start_shift(
        self, array: Array, out: Array | None = None, *, by: int = 1, wire: Wire | None = None
    ) -> Request:
        """`shift` on the stream of communication."""
        return self._beside(lambda: self.shift(array, out, by=by, wire=wire), array)

    def _beside(self, call: Callable[[], Array], kept: object) -> Request:
        cuda = self._cupy.cuda
        self._stream.wait_event(
            cuda.get_current_stream().record()
        )  # what the call reads is ready then
        with self._stream:
            result = call()
            event = self._stream.record()
        return _EventRequest(result, event, self._cupy, kept)

    # --- the host ----------------------------------------------------------------------------

    def exchange(self, value: Json) -> list[Json]:
        """Small values of all ranks, by rank, by way of the host."""
        return self._host().exchange(value)

    def barrier(self) -> None:
        """Wait until all ranks are here and their streams have come so far.

        Raises:
            CommunicationError: if NCCL reports an error of an earlier call.
        """
        host = self._host()
        self._cupy.cuda.get_current_stream().synchronize()
        self._stream.synchronize()
        code = self._comm.check_async_error()
        if code:
            raise CommunicationError(f"barrier: NCCL reports {code}: an earlier call has failed")
        host.barrier()

    def split(self, color: int | None, key: int = 0) -> NcclCommunicator | None:
        """New groups of the ranks of equal `color`; see `Communicator.split`."""
        part = self._host().split(color, key)
        return None if part is None else NcclCommunicator(part)

    def close(self) -> None:
        """Free what NCCL holds. A closed communicator refuses every call."""
        if self._control is not None:
            self._control = None
            self._stream.synchronize()
            self._comm.destroy()

    # --- how calls are made ------------------------------------------------------------------

    def _host(self) -> Communicator:
        if self._control is None:
            raise ArgumentError("this communicator of GPUs is closed: make a new one")
        return self._control

    def _check(
        self,
        array: Array,
        call: str,
        more: str,
        wire: str | None,
        shape: tuple[int, ...] | str | None = "",
        alike: bool = True,
    ) -> None:
        """Refuse what cannot travel; compare a call that is new on this rank with the other ranks'."""
        host = self._host()
        if not isinstance(array, self._cupy.ndarray):
            kind = type(array).__name__
            raise DTypeError(f"{call}: GPUs exchange arrays of CuPy, got {kind}: use cupy.asarray")
        if not array.flags.c_contiguous:
            raise ArgumentError(
                f"{call}: the array is not C-contiguous: use cupy.ascontiguousarray"
            )
        if array.data.device_id != self._device:
            raise DeviceError(
                f"{call}: the array is on device {array.data.device_id}, this rank works on "
                f"{self._device}"
            )
        shown = array.shape if shape == "" else shape
        key = call, array.dtype, shown, more, wire
        if key in self._known:
            return
        nccl_dtype(array)
        if wire is not None and wire not in ("float16", "bfloat16"):
            raise UnknownNameError.of(f"{call}: wire", wire, ("float16", "bfloat16"))
        if not alike or self.size == 1:
            return
        what = f"{call} {array.dtype.name} {shown} {more} {wire or ''}"
        site = call_site()
        for rank, (other, line) in enumerate(host.exchange([what, site])):
            if other != what:
                raise CommunicationError(
                    f"calls differ: rank {self.rank} makes {what} at {site}, rank {rank} {other} at "
                    f"{line}: all ranks make the same calls in the same order"
                )
        self._known.add(key)

    def _check_rank(self, rank: int, call: str) -> None:
        if not 0 <= rank < self.size:
            raise ArgumentError(f"{call}: must be a rank from 0 to {self.size - 1}, got {rank}")

    def _rows(self, counts: Sequence[int] | None, source: Array, call: str) -> list[int]:
        if counts is None:
            if len(source) % self.size:
                raise ShapeError(
                    f"{call}: axis 0 of {len(source)} rows does not divide among {self.size} ranks: "
                    "give counts"
                )
            return [len(source) // self.size] * self.size
        rows = [int(count) for count in counts]
        if len(rows) != self.size or sum(rows) != len(source):
            raise ShapeError(
                f"{call}: counts {rows} do not fit {self.size} ranks and {len(source)} rows"
            )
        return rows

    def _out(self, out: Array | None, shape: Any, like: Array, call: str) -> Array:
        if out is None:
            return self._cupy.empty(shape, like.dtype)
        if out.shape != tuple(shape) or out.dtype != like.dtype or not out.flags.c_contiguous:
            raise ShapeError(
                f"{call}: out is {out.dtype} {out.shape}, the result {like.dtype} {tuple(shape)}, "
                "C-contiguous"
            )
        return out

    def _travels(self, array: Array, wire: str | None) -> Any:
        wide = array.dtype.name in ("float32", "float64")
        return dtype_of(wire) if wire is not None and wide else array.dtype

    def _narrow(self, array: Array, wire: str | None) -> Array:
        return array if wire is None else array.astype(self._travels(array, wire), copy=False)

    def _widen(self, came: Array, result: Array) -> Array:
        if came is not result:
            result[...] = came.astype(result.dtype, copy=False)
        return result

    def _current(self) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def _group(self, calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
        """Calls that NCCL carries out at the same time."""
        self._nccl.groupStart()
        try:
            for call, words in calls:
                call(*words)
        finally:
            self._nccl.groupEnd()


def _check_devices(control: Communicator, cupy: Any, device: int) -> None:
    place = cupy.cuda.runtime.deviceGetPCIBusId(device)
    mine = [socket.gethostname(), str(place), os.environ.get("CUDA_VISIBLE_DEVICES", "all")]
    seen: dict[tuple[str, str], int] = {}
    for rank, (host, bus, _) in enumerate(control.exchange(mine)):
        other = seen.setdefault((host, bus), rank)
        if other != rank:
            raise DeviceError(
                f"ranks {other} and {rank} both use GPU {bus} of {host}: give each its own, by "
                'Model(device="cuda:1") or cupy.cuda.Device(comm.rank).use()'
            )


def _quick_stream(cupy: Any) -> Any:
    """A stream that goes before others, so that messages do not wait behind kernels; all GPUs know -1."""
    return cupy.cuda.Stream(non_blocking=True, priority=-1)


def _pointers(source: Array, out: Array) -> tuple[int, int]:
    return source.data.ptr, out.data.ptr


def _parts(array: Array, rows: Sequence[int]) -> list[Array]:
    ends = [sum(rows[:k]) for k in range(len(rows) + 1)]
    return [array[ends[k] : ends[k + 1]] for k in range(len(rows))]


def _listed(counts: Sequence[int] | None) -> str:
    return "" if counts is None else f"counts {[int(count) for count in counts]}"
