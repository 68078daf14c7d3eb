"""What a tuple server answers: messages in, messages out."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from . import messages as m
from .segments import Mappings, Segments
from .store import Held, Store, Waiting

_TOLD_AFTER = 0.05  # seconds after which the executive is told who waits


class Server:
    """A tuple server.

    Args:
        number: among the servers.
        memory: most bytes that it holds; None: no bound.
        segments: shared memory; None where there is none.
        send: sends bytes to a rank.
        tell: tells the executive.
        near: ranks of this machine, which can read segments; to others data go by message. None: all ranks.
    """

    def __init__(
        self,
        number: int,
        memory: int | None,
        segments: Segments | None,
        send: Callable[[bytes | bytearray, int], None],
        tell: Callable[[dict[str, Any]], None],
        near: Collection[int] | None = None,
    ) -> None:
        self._near = None if near is None else frozenset(near)
        self._maps = Mappings()
        self.store, self.ended = Store(), False
        self._number, self._memory, self._segments = number, memory, segments
        self._send, self._tell = send, tell
        self._uses: dict[str, int] = {}  # by segment: who has been told of it and not freed it
        self._stored: dict[str, Held] = {}
        self._promised: dict[str, tuple[int, int, int]] = {}  # run, rank and bytes of who writes it
        self._since: dict[tuple[int, int], float] = {}
        self._told: set[tuple[int, int]] = set()
        self._lost: set[int] = set()

    def handle(self, source: int, raw: bytearray) -> None:
        """Answer a message."""
        if self._lost and source in self._lost:
            return  # what a lost rank had sent when it was done again already
        if raw[0] == m.PUT:
            self._put(source, raw)
        elif raw[0] == m.GET:
            self._get(source, raw)
        else:
            self._handle_rarer(source, m.Message(raw))

    def _handle_rarer(self, source: int, message: m.Message) -> None:
        operation = message.operation
        if operation == m.PLACED:
            self._placed(source, message)
        elif operation == m.ALLOCATE:
            self._allocate(source, message)
        elif operation == m.FREE:
            self._promised.pop(message.tag, None)
            self._release(message.tag)
        elif operation == m.WHERE:
            for asker in self.store.waiting:
                if (asker.rank, asker.request) == (source, message.request):
                    asker.where = message.words
        elif operation == m.FAIL:
            for asker in self.store.withdraw(message.run):
                self._answer_error(asker, message.words)
        elif operation == m.ROLLBACK:
            self._roll_back(message)
        elif operation == m.ENDED:
            for held in self.store.ended(
                message.run, message.request - 1 if message.request else None
            ):
                self._gone(held)
        elif operation == m.SYNC:
            self._send(m.packed(m.NOTHING, request=message.request), source)
        elif operation == m.LOOK:
            maker = self._take_for_executive(message.tag)
            self._tell({"op": "looked", "tag": message.tag, "maker": maker})
        elif operation == m.STATISTICS:
            made = self._segments.bytes_made if self._segments else 0
            found = {**self.store.statistics(), "bytes_shared": made}
            self._tell({"op": "statistics", "server": self._number, **found})
        elif operation == m.QUIT:
            self.ended = True

    def _roll_back(self, message: m.Message) -> None:
        rank = message.request - 1 if message.request else None
        if rank is not None:
            self._lost.add(rank)
            for asker in self.store.withdraw(message.run, rank):
                self._forget(asker)
        for name, (run, writer, _) in list(self._promised.items()):
            if run == message.run and rank in (None, writer):
                del self._promised[name]
                self._release(name)
        gone, answered = self.store.roll_back(message.run, rank)
        for held in gone:
            self._gone(held)
        for one in answered:
            self._deliver(*one)

    def _take_for_executive(self, tag: str) -> int | None:
        """Take the first tuple of a tag, whatever it is; which run had put it."""
        found = self.store.get(Waiting(0, 0, 0, m.TAKE, tag, b""))
        if found is None:
            return None
        self._gone(found[0])
        return found[0].maker

    def work(self) -> bool:
        """Do what can be done before it is asked for; whether there was any."""
        return self._segments is not None and self._segments.make_pages()

    def look_round(self) -> None:
        """Tell the executive who has waited for a while."""
        now = time.monotonic()
        for asker in self.store.waiting:
            key = (asker.rank, asker.request)
            if asker.where and key not in self._told and now - self._since[key] > _TOLD_AFTER:
                self._told.add(key)
                self._tell(
                    {
                        "op": "waits",
                        "server": self._number,
                        "rank": asker.rank,
                        "request": asker.request,
                        "run": asker.run,
                        "tag": asker.tag,
                        "where": asker.where.decode(),
                    }
                )

    # --- putting -------------------------------------------------------------------------------------

    def _put(self, source: int, raw: bytearray) -> None:
        _, _, name, _, begin, _, run = m.HEAD.unpack_from(raw)
        tag, size = raw[m.SIZE : m.SIZE + name].decode(), len(raw) - begin
        if self._memory is not None and self._is_full(size):
            self._tell({"op": "full", "run": run, "text": self._full(tag, size)})
            return
        self._add(Held(tag, b"", raw, "", size, run, source))

    def _placed(self, source: int, message: m.Message) -> None:
        segment, _, size = bytes(message.data).decode().partition("|")
        self._written(segment, int(size))
        words, run = message.words, message.run
        self._add(Held(message.tag, words, message.raw, segment, int(size), run, source))

    def _add(self, held: Held) -> None:
        for one in self.store.put(held):
            self._deliver(*one)

    def _allocate(self, source: int, message: m.Message) -> None:
        size = int(message.words)
        if self._is_full(size):
            text = self._full(message.tag, size).encode()
            self._send(m.packed(m.ERROR, request=message.request, words=text), source)
            return
        found = None if self._segments is None else self._segments.take(size, self._memory)
        if found is None:
            self._send(m.packed(m.NOTHING, request=message.request), source)
            return
        name, fresh = found
        self._promised[name] = message.run, source, size
        flags = m.FRESH if fresh else 0
        raw = m.packed(m.SEGMENT, flags=flags, request=message.request, data=name.encode())
        self._send(raw, source)

    def _written(self, name: str, size: int) -> None:
        self._promised.pop(name, None)
        if self._segments is not None:
            self._segments.written(name, size)

    def _taken(self) -> int:
        """Bytes of tuples, and of those that somebody writes just now."""
        return self.store.bytes_held + sum(size for _, _, size in self._promised.values())

    def _is_full(self, size: int) -> bool:
        return self._memory is not None and self._taken() + size > self._memory

    def _full(self, tag: str, size: int) -> str:
        return (
            f"put: tag {tag!r}: tuple server {self._number} is full: it holds {self._taken()} of "
            f"{self._memory} bytes, and this has {size}; get what is there, use dist_put, or give more "
            "servers or memory"
        )

    # --- getting -------------------------------------------------------------------------------------

    def _get(self, source: int, raw: bytearray) -> None:
        _, flags, name, words, _, request, run = m.HEAD.unpack_from(raw)
        end = m.SIZE + name
        tag = raw[m.SIZE : end].decode()
        if flags == m.TAKE | m.WAIT and (held := self.store.take(tag)) is not None:
            self._answer(source, request, held, True)
            return
        asker = Waiting(source, request, run, flags, tag, b"")
        found = self.store.get(asker)
        if found is not None:
            self._deliver(asker, *found)
        elif flags & m.WAIT:
            asker.where = bytes(raw[end : end + words])
            self.store.waiting.append(asker)
            self._since[source, request] = time.monotonic()
        else:
            self._send(m.packed(m.NOTHING, request=request), source)

    def _deliver(self, asker: Waiting, held: Held, gone: bool) -> None:
        if self._since:
            self._forget(asker)
        self._answer(asker.rank, asker.request, held, gone)

    def _answer(self, rank: int, request: int, held: Held, gone: bool) -> None:
        if not held.segment:
            raw = held.raw if gone else bytearray(held.raw)
            self._send(m.make_answer(raw, request), rank)
            return
        if self._near is not None and rank not in self._near:
            self._send_far(rank, request, held, gone)
            return
        name = held.segment
        flags = 0 if gone and not self._uses.get(name) else m.SHARED
        self._uses[name] = self._uses.get(name, 0) + 1
        if not gone:
            self._stored[name] = held
        else:
            self._stored.pop(name, None)
        self._send(
            m.packed(
                m.SEGMENT,
                flags=flags,
                request=request,
                run=held.maker,
                tag=held.tag,
                words=held.words,
                data=f"{name}|{held.size}".encode(),
            ),
            rank,
        )

    def _send_far(self, rank: int, request: int, held: Held, gone: bool) -> None:
        """Answer a rank of another machine, which cannot read a segment, with the data themselves."""
        data = bytes(self._maps.view(held.segment, held.size))
        value = m.packed(
            m.VALUE, request=request, run=held.maker, tag=held.tag, words=held.words, data=data
        )
        self._send(value, rank)
        if gone:
            self._gone(held)

    def _answer_error(self, asker: Waiting, text: bytes) -> None:
        self._forget(asker)
        self._send(m.packed(m.ERROR, request=asker.request, words=text), asker.rank)

    def _forget(self, asker: Waiting) -> None:
        key = (asker.rank, asker.request)
        self._since.pop(key, None)
        if key in self._told:
            self._told.discard(key)
            self._tell({"op": "answered", "rank": asker.rank, "request": asker.request})

    def _release(self, name: str) -> None:
        """Somebody has done with a segment."""
        left = self._uses.get(name, 0) - 1
        if left > 0:
            self._uses[name] = left
            return
        self._uses.pop(name, None)
        if name not in self._stored and self._segments is not None:
            self._segments.free(name)

    def _gone(self, held: Held) -> None:
        if held.segment:
            self._stored.pop(held.segment, None)
            if not self._uses.get(held.segment) and self._segments is not None:
                self._segments.free(held.segment)
