"""The tuple space as a process sees it: put, get, and both for data that is spread over all servers."""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
import time
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from magmadnn.errors import ArgumentError, DataError, WorkflowError, quoted

from . import messages as m
from .mail import KEEN, LOOKS, Mail, Pause
from .payload import array_of, pack, unpack
from .segments import Mappings, can_share, write_new

_HOME = str(Path(__file__).parents[1])
_LONGEST = 1000  # bytes of a tag
_FRONTS = 1024  # beginnings of messages that a client remembers

_Front = tuple[int, bytes, Any]
"""A tag's server, how messages to it begin, and the dtype of the arrays that they hold."""

_UNKNOWN: _Front = (0, b"", None)


class TupleClient:
    """A process's way to the tuple servers.

    Args:
        mail: to the servers.
        servers: their ranks.
        near: those whose memory this process can share.
        copies: of each part of what is spread.

    Attributes:
        run: number of the module run for which it works.
        keeps: whether what is taken is kept until the run has ended well.
        puts: tuples that the run has put.
        took: how many tuples the run has taken, by the run that had put them.
        moved: bytes that the run has put and got.
    """

    def __init__(
        self, mail: Mail, servers: Sequence[int], near: Sequence[int], copies: int = 1
    ) -> None:
        self.run, self.keeps = 0, False
        self.puts, self.moved, self.waited = 0, 0, 0.0
        self.took: dict[int, int] = {}
        self._mail, self._servers, self._copies = mail, list(servers), copies
        self._near = set(near) if can_share() else set()
        self._requests = itertools.count(1)
        self._answers: dict[int, m.Message] = {}
        self._maps = Mappings()
        self._freed: deque[tuple[int, str]] = deque()
        self._fronts: dict[tuple[Any, ...], _Front] = {}

    def begin(self, run: int, keeps: bool) -> None:
        """Work for another run."""
        self.run, self.keeps = run, keeps
        self.puts, self.moved, self.waited = 0, 0, 0.0
        self.took = {}
        self._fronts.clear()

    # --- one server ----------------------------------------------------------------------------------

    def put(self, tag: str, value: Any) -> None:
        """Put a value; returns once it is copied."""
        if type(value) is not np.ndarray or value.nbytes > m.SMALL:
            self.put_raw(tag, *pack(value))
            return
        if self._freed:
            self.flush()
        server, front, dtype = self._fronts.get((tag, value.shape), _UNKNOWN)
        if dtype is not value.dtype:
            raw = m.packed(m.PUT, run=self.run, tag=tag, words=pack(value)[0])
            server, front, _ = self._known((tag, value.shape), raw, value.dtype)
        self.puts += 1
        self.moved += value.nbytes
        self._mail.send(front + value.tobytes(), server)

    def _known(self, kind: tuple[Any, ...], front: bytes, dtype: Any = None) -> _Front:
        """Remember the server of a tag, which comes first in `kind`, and how messages to it begin."""
        found = self._server(kind[0]), front, dtype
        if len(self._fronts) == _FRONTS:
            self._fronts.clear()
        self._fronts[kind] = found
        return found

    def put_raw(self, tag: str, words: bytes, data: Any) -> None:
        """Put what `pack` has made."""
        self._place(self._server(tag), tag, words, data)

    def _place(self, server: int, tag: str, words: bytes, data: Any) -> None:
        self._place_all([(server, tag, words, data)])

    def _place_all(
        self, given: Sequence[tuple[int, str, bytes, Any]], user_tag: str | None = None
    ) -> None:
        """Place data by server, tag and words: all servers are asked for room before any of it is written."""
        if self._freed:
            self.flush()
        asked = [
            self._ask_room(server, user_tag or tag, len(data)) for server, tag, _, data in given
        ]
        rooms = [None if request is None else self._arrived(request) for request in asked]
        refused = [one.words for one in rooms if one is not None and one.operation == m.ERROR]
        if refused:
            for (server, *_), room in zip(given, rooms, strict=True):
                if room is not None and room.operation == m.SEGMENT:
                    self._freed.append((server, bytes(room.data).decode()))
            self.flush()
            raise WorkflowError(refused[0].decode())
        for (server, tag, words, data), room in zip(given, rooms, strict=True):
            size = len(data)
            self.puts += 1
            self.moved += size
            told: bytes | None = None
            if room is not None and room.operation == m.SEGMENT:
                told = self._filled(server, bytes(room.data).decode(), room.flags, data)
            kind, data = (m.PUT, data) if told is None else (m.PLACED, told)
            raw = m.packed(kind, run=self.run, tag=tag, words=words, data=data)
            self._mail.send(raw, server)

    def _ask_room(self, server: int, tag: str, size: int) -> int | None:
        """Ask for a segment; the number of the request, None for what goes by message."""
        if size <= m.SMALL or server not in self._near:
            return None
        request, about = next(self._requests), str(size).encode()
        raw = m.packed(m.ALLOCATE, request=request, tag=tag, words=about, run=self.run)
        self._mail.send(raw, server)
        return request

    def _filled(self, server: int, name: str, flags: int, data: Any) -> bytes | None:
        """Write a segment; what PLACED says of it, None where there is no memory for it."""
        try:
            if flags & m.FRESH:
                write_new(name, data)
            else:
                view = np.frombuffer(self._maps.view(name, len(data)), np.uint8)
                view[:] = np.frombuffer(data, np.uint8)
        except OSError:
            self._freed.append((server, name))
            self.flush()
            return None
        return f"{name}|{len(data)}".encode()

    def get(
        self,
        tag: str,
        *,
        wait: bool = True,
        take: bool = True,
        dtype: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """The first value of a tag; None where there is none and `wait` is false."""
        request = self.ask(tag, wait=wait, take=take)
        answer = self._wait(request, timeout, tag)
        if answer.operation == m.NOTHING:
            return None
        value = self._value(answer, take)
        return value if dtype is None else array_of(tag, value, dtype)

    def get_any(self, pattern: str, *, wait: bool = True, take: bool = True) -> Any:
        """Tag and value of the first tuple that meets a pattern; None where there is none."""
        if len(self._servers) == 1:
            request = self.ask(pattern, wait=wait, take=take, pattern=True)
            return self._pair(self._wait(request, None, pattern), take)
        pause = Pause()
        while True:
            for server in self._servers:
                request = self.ask(pattern, wait=False, take=take, pattern=True, server=server)
                if (found := self._pair(self._wait(request), take)) is not None:
                    return found
            if not wait:
                return None
            pause()

    def ask(
        self,
        tag: str,
        *,
        wait: bool,
        take: bool,
        pattern: bool = False,
        server: int | None = None,
        where: str = "",
    ) -> int:
        """Ask for a tuple; the number of the request, for `answer`.

        Who waits in another way than `get` says where it is.
        """
        if self._freed:
            self.flush()
        flags = (m.TAKE if take else 0) | (m.WAIT if wait else 0) | (m.PATTERN if pattern else 0)
        flags |= m.KEEP if self.keeps and take else 0
        if (known := self._fronts.get((tag, flags, where))) is None:
            raw = m.packed(m.GET, flags=flags, run=self.run, tag=tag, words=where.encode())
            known = self._known((tag, flags, where), raw)
        request = next(self._requests)
        self._mail.send(m.for_request(known[1], request), known[0] if server is None else server)
        return request

    def answer(self, request: int) -> tuple[bytes, bytes] | None:
        """Words and data that answer a request, once they are there.

        Raises:
            WorkflowError: it will not be answered.
        """
        self._look()
        if request not in self._answers:
            return None
        answer = self._answers.pop(request)
        if answer.operation == m.NOTHING:
            return b"", b""
        return answer.words, bytes(self._data(answer, True))

    def _server(self, tag: str) -> int:
        if not isinstance(tag, str) or not tag or len(tag.encode()) > _LONGEST:
            raise ArgumentError(f"tag must be a text of 1 to {_LONGEST} bytes, got {quoted(tag)}")
        return self._servers[crc32(tag.encode()) % len(self._servers)]

    def _look(self, looks: int = 1) -> bool:
        found = self._mail.receive(looks)
        if found is None:
            return False
        message = m.Message(found[1])
        self._answers[message.request] = message
        return True

    def _wait(self, request: int, timeout: float | None = None, tag: str = "") -> m.Message:
        """The answer to a request, which is no error."""
        answer = self._soon(request) or self._arrived(request, timeout, tag)
        if answer.operation == m.ERROR:
            raise WorkflowError(answer.words.decode())
        return answer

    def _soon(self, request: int) -> m.Message | None:
        """The answer to a request, if it comes before others should run."""
        if request in self._answers or (found := self._mail.receive(LOOKS)) is None:
            return None
        message = m.Message(found[1])
        if message.request == request:
            return message
        self._answers[message.request] = message
        return None

    def _arrived(self, request: int, timeout: float | None = None, tag: str = "") -> m.Message:
        """The answer to a request; where that takes long and is for a tag, the server is told the line."""
        begun, pause, told = time.monotonic(), Pause(spins=KEEN), not tag
        while request not in self._answers:
            if not self._look():
                if pause() and not told:
                    told, line = True, line_of_caller().encode()
                    self._mail.send(
                        m.packed(m.WHERE, request=request, words=line), self._server(tag)
                    )
                if timeout is not None and time.monotonic() - begun > timeout:
                    raise WorkflowError(
                        f"get: tag {tag!r}: nothing was put within {timeout:g} seconds"
                    )
        self.waited += time.monotonic() - begun
        return self._answers.pop(request)

    def _pair(self, answer: m.Message, take: bool) -> tuple[str, Any] | None:
        return None if answer.operation == m.NOTHING else (answer.tag, self._value(answer, take))

    def _value(self, answer: m.Message, take: bool) -> Any:
        if answer.operation != m.VALUE:
            return unpack(answer.words, self._data(answer, take))
        raw, begin = answer.raw, answer.begin
        self._count(answer, take, len(raw) - begin)
        return unpack(answer.words, raw, begin)

    def _count(self, answer: m.Message, take: bool, size: int) -> None:
        self.moved += size
        if take:
            self.took[answer.run] = self.took.get(answer.run, 0) + 1

    def _data(self, answer: m.Message, take: bool) -> Any:
        """The data of an answer: in memory of its own, or in a segment that only this process sees."""
        if answer.operation == m.ERROR:
            raise WorkflowError(answer.words.decode())
        if answer.operation == m.VALUE:
            data = answer.data
            self._count(answer, take, len(data))
            return data
        name, _, size = bytes(answer.data).decode().partition("|")
        self._count(answer, take, int(size))
        view = self._maps.view(name, int(size))
        server = self._owner(name)
        if answer.flags & m.SHARED or not take:
            copy = bytearray(view)
            self._freed.append((server, name))
            self.flush()
            return copy
        block = (ctypes.c_char * int(size)).from_buffer(view)
        weakref.finalize(block, self._freed.append, (server, name))
        return block

    def sync(self) -> None:
        """Wait until all servers have dealt with what this process sent."""
        asked = [next(self._requests) for _ in self._servers]
        for server, request in zip(self._servers, asked, strict=True):
            self._mail.send(m.packed(m.SYNC, request=request), server)
        for request in asked:
            self._wait(request)

    def confirm(self) -> None:
        """See `Context.confirm`."""
        self.sync()
        if self.keeps:
            own = m.packed(m.ENDED, run=self.run, request=self._mail.comm.Get_rank() + 1)
            for server in self._servers:
                self._mail.send(own, server)

    def _owner(self, name: str) -> int:
        """The server that has made a segment: `...-s<number>-<count>`."""
        return self._servers[int(name.rsplit("-", 2)[1][1:])]

    def flush(self) -> None:
        """Give segments back that nothing lies in any more."""
        while self._freed:
            server, name = self._freed.popleft()
            self._mail.send(m.packed(m.FREE, tag=name), server)

    # --- all servers ---------------------------------------------------------------------------------

    def dist_put(self, tag: str, value: Any) -> None:
        """Spread a value over all servers in equal parts, each of which so many copies of it hold."""
        words, data = pack(value)
        self._server(tag)
        servers, size = len(self._servers), len(data)
        share = -(-size // servers)
        share = -(-share // 64) * 64
        key = f"{self._mail.comm.Get_rank()}.{next(self._requests)}"
        parts = [(k * share, min(size, (k + 1) * share)) for k in range(servers)]
        parts = [(begin, end) for begin, end in parts if begin < end]
        self._place_all(
            [
                (self._servers[(k + copy) % servers], _part(key, k, copy), b"", data[begin:end])
                for k, (begin, end) in enumerate(parts)
                for copy in range(self._copies)
            ],
            tag,
        )
        about = {"words": words.decode(), "key": key, "parts": parts, "copies": self._copies}
        self._place(self._servers[0], f"\0{tag}", b"j", json.dumps(about).encode())

    def dist_get(self, tag: str, *, dtype: Any = None) -> Any:
        """What was spread under a tag, put together again; waits for it."""
        self._server(tag)
        request = self.ask(f"\0{tag}", wait=True, take=True, server=self._servers[0])
        about = self._value(self._wait(request, None, f"\0{tag}"), True)
        parts, key, servers = about["parts"], about["key"], len(self._servers)
        whole = np.empty(parts[-1][1] if parts else 0, np.uint8)
        asked = [
            [
                self.ask(
                    _part(key, k, copy),
                    wait=False,
                    take=True,
                    server=self._servers[(k + copy) % servers],
                )
                for copy in range(about["copies"])
            ]
            for k in range(len(parts))
        ]
        for k, (begin, end) in enumerate(parts):
            there = False
            for request in asked[k]:
                answer = self._wait(request)
                if answer.operation == m.NOTHING:
                    continue
                data = np.frombuffer(self._data(answer, True), np.uint8)
                if not there:
                    whole[begin:end] = data
                there = True
            if not there:
                raise DataError(
                    f"dist_get: tag {tag!r}: part {k} of {len(parts)} is lost with all its {about['copies']} "
                    "copies; give tuple_space more copies"
                )
        return array_of(tag, unpack(about["words"].encode(), whole.data), dtype)


def _part(key: str, number: int, copy: int) -> str:
    return f"\0part/{key}/{number}/{copy}"


def line_of_caller() -> str:
    """File and line of the user's code that has called."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HOME):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
