"""The tuple space without MPI: payloads, order, waiting, memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn.errors import DataError, DTypeError, WorkflowError
from magmadnn.workflow.tuples import messages as m
from magmadnn.workflow.tuples.client import TupleClient
from magmadnn.workflow.tuples.payload import array_of, pack, unpack
from magmadnn.workflow.tuples.segments import FOLDER, Mappings, Segments, can_share, write_new
from magmadnn.workflow.tuples.server import Server

NAME = f"magmadnn-test-{token_hex(4)}"  # of shared memory: what a killed run has left is no other's

VALUES = [
    np.arange(7, dtype=np.int16),
    np.array(3.5),
    np.zeros((0, 3), np.float32),
    np.arange(35.0).reshape(5, 7).T,
    np.arange(5).astype(ml_dtypes.bfloat16),
    np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    np.array(["ab", "c"]),
    np.array([True, False]),
    np.array([1 + 2j], np.complex64),
    np.arange(7).astype(">f4"),
    np.arange(7).astype(">i2"),
    np.arange(3).astype(ml_dtypes.float8_e4m3fn),
    np.array([(1, 2.5)], np.dtype([("a", "i1"), ("b", ">f8")], align=True)),
    np.array([((1, [2, 3]),)], [("a", [("b", "i4"), ("c", "f4", (2,))])]),
    np.ma.masked_array([1.0, 2.0], [False, False]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda one: f"{one.dtype}")
def test_arrays_keep_bits_dtype_and_shape(value: Any) -> None:
    words, data = pack(value)
    found = unpack(words, bytearray(data))
    assert found.dtype == value.dtype and found.shape == value.shape
    assert found.tobytes() == value.tobytes() and found.flags.writeable


@pytest.mark.parametrize(
    "value", [b"", b"a\0b", {"a": [1, None, "x"]}, "text", 3, None, [float("inf")]]
)
def test_bytes_and_json(value: Any) -> None:
    words, data = pack(value)
    assert unpack(words, bytes(data)) == value


def test_bytes_with_gaps() -> None:
    words, data = pack(memoryview(b"abcdef")[::2])
    assert unpack(words, bytes(data)) == b"ace"


@pytest.mark.parametrize("value", [{1: 2}, [{"a": ({None: 1},)}], {"a": {True: 0}}])
def test_keys_that_json_would_change_are_refused(value: Any) -> None:
    with pytest.raises(
        DTypeError, match=r"put: the key (1|None|True) of a dict would become a text"
    ):
        pack(value)


def test_masked_elements_are_refused() -> None:
    with pytest.raises(DataError, match="put: elements are masked"):
        pack(np.ma.masked_array([1.0, 2.0], [False, True]))


def test_what_cannot_be_put_is_refused() -> None:
    for value in (object(), np.array([object()]), {1, 2}):
        with pytest.raises(DTypeError, match="put: "):
            pack(value)
    for words in (b"p", b"a3|O", b"a3|f8", b"", b"a2|nothing"):
        with pytest.raises((DataError, AttributeError)):
            unpack(words, b"xx")
    with pytest.raises(DTypeError, match=r"tag 'x': expected an array of float64, got int64"):
        array_of("x", np.arange(3), np.float64)


class Net:
    """Servers' messages, kept."""

    def __init__(
        self, memory: int | None = None, shared: bool = False, near: list[int] | None = None
    ) -> None:
        self.sent: list[tuple[int, m.Message]] = []
        self.told: list[dict[str, Any]] = []
        segments = Segments(f"{NAME}-s0") if shared else None
        self.segments = segments
        send = lambda data, to: self.sent.append((to, m.Message(bytearray(data))))  # noqa: E731  # short
        self.server = Server(0, memory, segments, send, self.told.append, near)

    def hand(self, rank: int, raw: bytes) -> None:
        self.server.handle(rank, bytearray(raw))

    def put(self, tag: str, data: bytes, run: int = 1) -> None:
        self.hand(5, m.packed(m.PUT, run=run, tag=tag, words=b"b", data=data))

    def get(
        self, rank: int, tag: str, flags: int = m.TAKE | m.WAIT, run: int = 1, request: int = 1
    ) -> None:
        raw = m.packed(m.GET, flags=flags, request=request, run=run, tag=tag, words=b"f.py:3")
        self.hand(rank, raw)

    def answers(self) -> list[tuple[int, int, bytes]]:
        found = [(to, one.operation, bytes(one.data)) for to, one in self.sent]
        self.sent.clear()
        return found


def test_tuples_of_a_tag_leave_in_order_and_who_waits_longest_is_first() -> None:
    net = Net()
    net.put("a", b"1")
    net.put("b", b"x")
    net.put("a", b"2")
    net.get(7, "a")
    net.get(8, "a")
    net.get(9, "a")
    net.get(10, "a")
    assert net.answers() == [(7, m.VALUE, b"1"), (8, m.VALUE, b"2")]
    net.put("a", b"3")
    net.put("a", b"4")
    assert net.answers() == [(9, m.VALUE, b"3"), (10, m.VALUE, b"4")]


@pytest.mark.skipif(not can_share(), reason="there is no memory to share")
def test_ranks_of_other_machines_get_data_in_place_of_the_name_of_a_segment() -> None:
    """Read, then taken: the segment serves again once nobody of this machine uses it either."""
    net = Net(shared=True, near=[5, 6])
    data = np.random.default_rng(3).bytes(m.SMALL + 5)
    net.hand(5, m.packed(m.ALLOCATE, request=1, tag="a", words=str(len(data)).encode(), run=1))
    name = net.answers()[0][2].decode()
    write_new(name, data)
    place = f"{name}|{len(data)}".encode()
    net.hand(5, m.packed(m.PLACED, run=1, tag="a", words=b"b", data=place))
    net.get(7, "a", m.WAIT)
    assert net.answers() == [(7, m.VALUE, data)]
    net.get(6, "a", m.WAIT)
    assert net.answers() == [(6, m.SEGMENT, place)]
    net.get(8, "a", m.TAKE | m.WAIT)
    assert net.answers() == [(8, m.VALUE, data)]
    net.hand(5, m.packed(m.ALLOCATE, request=2, tag="b", words=str(len(data)).encode(), run=1))
    assert net.answers()[0][2].decode() != name  # rank 6 still reads it
    net.hand(6, m.packed(m.FREE, tag=name))
    net.hand(5, m.packed(m.ALLOCATE, request=3, tag="c", words=str(len(data)).encode(), run=1))
    assert net.answers()[0][2].decode() == name
    assert net.segments is not None
    net.segments.close()


def test_reads_leave_it_and_patterns_take_the_oldest() -> None:
    net = Net()
    net.get(3, "r/*", m.WAIT | m.PATTERN)  # a read that waits
    net.put("r/2", b"2")
    net.put("r/1", b"1")
    net.get(4, "r/*", m.TAKE | m.PATTERN)
    net.get(4, "r/*", m.TAKE | m.PATTERN)
    net.get(4, "r/*", m.TAKE | m.PATTERN)
    assert [a[1:] for a in net.answers()] == [
        (m.VALUE, b"2"),
        (m.VALUE, b"2"),
        (m.VALUE, b"1"),
        (m.NOTHING, b""),
    ]


def test_a_run_that_is_tried_again_finds_what_it_took() -> None:
    net = Net()
    for data in (b"1", b"2", b"3"):
        net.put("in", data, run=1)
    net.get(4, "in", m.TAKE | m.KEEP, run=2)
    net.get(4, "in", m.TAKE | m.KEEP, run=2)
    net.put("out", b"half", run=2)
    net.hand(0, m.packed(m.ROLLBACK, run=2))
    net.answers()
    for _ in range(3):
        net.get(4, "in", m.TAKE, run=3)
    net.get(4, "out", m.TAKE, run=3)
    assert [data for _, _, data in net.answers()] == [b"1", b"2", b"3", b""]
    assert net.server.store.bytes_held == 0


def test_gets_of_a_run_can_be_failed() -> None:
    net = Net()
    net.get(4, "never", run=2)
    net.get(5, "never", run=3)
    net.hand(0, m.packed(m.FAIL, run=2, words=b"deadlock"))
    assert net.answers() == [(4, m.ERROR, b"")]
    net.put("never", b"x")
    assert net.answers() == [(5, m.VALUE, b"x")]


def test_a_full_server_refuses() -> None:
    net = Net(memory=100)
    net.put("a", bytes(90))
    net.put("a", bytes(20), run=4)
    assert net.told[0]["op"] == "full" and net.told[0]["run"] == 4
    assert "it holds 90 of 100 bytes, and this has 20" in net.told[0]["text"]
    net.hand(4, m.packed(m.ALLOCATE, request=3, words=b"11", tag="a"))
    assert net.answers()[0][1] == m.ERROR
    net.get(4, "a")
    net.put("a", bytes(20))
    assert len(net.told) == 1


@pytest.mark.skipif(not can_share(), reason="no /dev/shm")
def test_shared_memory_is_handed_over_and_serves_again() -> None:
    net = Net(shared=True)
    assert net.segments is not None
    try:
        maps, size = Mappings(), 200_000
        names = []
        for round_ in range(3):
            net.hand(4, m.packed(m.ALLOCATE, request=1, words=str(size).encode(), tag="a"))
            answer = net.sent.pop()[1]
            name = bytes(answer.data).decode()
            names.append(name)
            assert answer.flags == (0 if round_ else m.FRESH)
            if round_:
                assert maps.view(name, size)[:] == bytes([round_ - 1]) * size
                maps.view(name, size)[:] = bytes([round_]) * size
            else:
                write_new(name, bytes([round_]) * size)
            net.hand(4, m.packed(m.PLACED, tag="a", words=b"b", data=f"{name}|{size}".encode()))
            net.get(5, "a", 0)  # a reader, who copies
            net.get(6, "a", m.TAKE)
            flags = [one.flags for _, one in net.sent]
            net.sent.clear()
            assert flags == [1, 1]  # the taker has to copy as well: the reader may still look
            for _ in range(2):
                net.hand(5, m.packed(m.FREE, tag=name))
        assert len(set(names)) == 1 and net.server.store.bytes_held == 0
    finally:
        net.segments.close()


def test_patterns_leave_parts_alone() -> None:
    net = Net()
    net.put("\0part/1/0/0", b"1")
    net.get(3, "*", m.TAKE | m.PATTERN)
    assert [a[1] for a in net.answers()] == [m.NOTHING]


class Wire:
    """Mail to servers in this process; ranks 1 to 3 are theirs."""

    def __init__(self, memory: int | None = None, shared: bool = False) -> None:
        self.comm, self.memory, self.shared = self, memory, shared
        self.arrived: list[bytearray] = []
        self.servers = {1 + k: self.server(k) for k in range(3)}

    def server(self, number: int) -> Server:
        segments = Segments(f"{NAME}-s{number}") if self.shared else None
        send = lambda data, to: self.arrived.append(bytearray(data))  # noqa: E731  # short
        return Server(number, self.memory, segments, send, print)

    def Get_rank(self) -> int:
        return 4

    def send(self, data: bytes, to: int) -> None:
        self.servers[to].handle(4, bytearray(data))

    def receive(self, looks: int = 1) -> tuple[int, bytearray] | None:
        return (1, self.arrived.pop(0)) if self.arrived else None


@pytest.mark.parametrize("lost", [2, 3])
@pytest.mark.parametrize("size", [100, 99_991])
def test_what_a_lost_server_held_is_read_from_the_copy(lost: int, size: int) -> None:
    wire, value = Wire(), np.arange(size)
    client = TupleClient(wire, [1, 2, 3], [], copies=2)  # type: ignore[arg-type]  # stands in for mail
    client.dist_put("x", value)
    held = [server.store.bytes_held for server in wire.servers.values()]
    assert sum(held) >= 2 * value.nbytes  # two of everything
    wire.servers[lost] = wire.server(lost - 1)  # an empty one in its place
    assert np.array_equal(client.dist_get("x"), value)
    assert all(server.store.statistics()["held"] == 0 for server in wire.servers.values())


@pytest.fixture
def sharing() -> Iterator[Wire]:
    """Servers with shared memory, of 1 MB each."""
    if not can_share():
        pytest.skip("no /dev/shm")
    wire = Wire(1_000_000, shared=True)
    yield wire
    for server in wire.servers.values():
        assert server._segments is not None
        server._segments.close()
    assert not list(FOLDER.glob(f"{NAME}-*"))


def test_all_servers_are_asked_before_anything_is_written(
    sharing: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, value = TupleClient(sharing, [1, 2, 3], [1, 2, 3], copies=2), np.arange(99_991)  # type: ignore[arg-type]  # stands in for mail
    order: list[str] = []
    written, handle = os.pwrite, Server.handle

    def write(file: int, data: Any, at: int) -> int:
        order.append("write")
        return written(file, data, at)

    def handled(self: Server, source: int, raw: bytearray) -> None:
        order.extend(["ask"] * (raw[0] == m.ALLOCATE))
        handle(self, source, raw)
        assert self._segments is not None
        self._segments.make_pages()

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(Server, "handle", handled)
    client.dist_put("x", value)
    assert order == ["ask"] * 6 + ["write"] * 6
    assert np.array_equal(client.dist_get("x"), value)
    client.flush()
    client.dist_put("x", value[::-1])  # into what serves again
    assert order.count("write") == 6
    assert np.array_equal(client.dist_get("x"), value[::-1])


def test_one_full_server_refuses_all_parts(sharing: Wire) -> None:
    client = TupleClient(sharing, [1, 2, 3], [1, 2, 3], copies=2)  # type: ignore[arg-type]  # stands in for mail
    other = TupleClient(sharing, [2], [])  # type: ignore[arg-type]  # likewise
    other.put("y", bytes(400_001))
    with pytest.raises(WorkflowError, match=r"tag 'x': tuple server 1 is full: it holds 700033 of"):
        client.dist_put("x", bytes(900_000))  # two parts of 300,032 on it
    for number, server in enumerate(sharing.servers.values()):
        assert server._taken() == (400_001 if number == 1 else 0)
        assert server.store.statistics()["held"] == (number == 1)
    assert not list(FOLDER.glob(f"{NAME}-*"))
    other.get("y")
    client.dist_put("x", bytes(900_000))
    assert client.dist_get("x") == bytes(900_000)


def test_where_there_are_no_pages_left_data_travels_by_message(
    sharing: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    client = TupleClient(sharing, [1, 2, 3], [1, 2, 3])  # type: ignore[arg-type]  # stands in for mail
    monkeypatch.setattr(os, "pwrite", full)
    value = np.arange(50_021)
    client.put("x", value)
    assert not list(FOLDER.glob(f"{NAME}-*"))
    assert np.array_equal(client.get("x"), value)


def test_pages_are_made_ahead_and_those_of_an_odd_end_are_there(sharing: Wire) -> None:
    segments, size = sharing.servers[1]._segments, (9 << 20) + 1
    assert segments is not None
    found = segments.take(size, None)
    assert found is not None and found[1]
    name = found[0]
    assert (FOLDER / name).stat().st_size == 0
    assert segments.make_pages()  # after the first 4 MB
    assert (FOLDER / name).stat().st_blocks * 512 == 4 << 20
    write_new(name, bytes(range(256)) * (9 << 12) + b"x")
    while segments.make_pages():
        pass
    segments.written(name, size)
    about, whole = (FOLDER / name).stat(), (9 << 20) + (64 << 10)
    assert about.st_size == whole and about.st_blocks * 512 == whole  # no hole that kills later
    assert Mappings().view(name, size)[:] == bytes(range(256)) * (9 << 12) + b"x"
    segments.free(name)
    assert segments.take(whole, None) == (name, False)
    assert segments.take(whole, None) != (name, False)


@pytest.mark.skipif(not can_share(), reason="no /dev/shm")
@pytest.mark.parametrize(("lost", "answer"), [(5, m.SEGMENT), (None, m.SEGMENT), (6, m.ERROR)])
def test_room_of_a_rank_that_is_lost_while_it_writes_is_free(lost: int | None, answer: int) -> None:
    net = Net(memory=300_000, shared=True)
    net.hand(5, m.packed(m.ALLOCATE, request=1, words=b"200000", tag="a", run=7))
    net.hand(0, m.packed(m.ROLLBACK, run=7, request=0 if lost is None else lost + 1))
    net.hand(4, m.packed(m.ALLOCATE, request=2, words=b"200000", tag="a", run=8))
    assert [one.operation for _, one in net.sent] == [m.SEGMENT, answer]
    assert net.segments is not None
    net.segments.close()


def test_without_copies_what_is_lost_is_named() -> None:
    wire = Wire()
    client = TupleClient(wire, [1, 2, 3], [])  # type: ignore[arg-type]  # stands in for mail
    client.dist_put("x", np.arange(999))
    wire.servers[2] = wire.server(1)
    with pytest.raises(DataError, match=r"part 1 of 3 is lost with all its 1 copies; give tuple"):
        client.dist_get("x")


def test_the_message_of_a_put_is_the_answer_and_reads_are_copies() -> None:
    sent: list[Any] = []
    server = Server(0, None, None, lambda data, to: sent.append(data), print)
    words, data = pack(np.arange(5.0))
    raw = bytearray(m.packed(m.PUT, run=7, tag="abc", words=words, data=data))
    server.handle(5, raw)
    server.handle(4, bytearray(m.packed(m.GET, flags=0, request=8, tag="abc")))
    server.handle(4, bytearray(m.packed(m.GET, flags=m.TAKE, request=1 << 40, tag="abc")))
    assert sent[1] is raw and sent[0] is not raw
    for one, request in zip(sent, (8, 1 << 40), strict=True):
        answer = m.Message(one)
        assert (answer.operation, answer.request, answer.run) == (m.VALUE, request, 7)
        found = unpack(answer.words, answer.raw, answer.begin)
        assert found.tolist() == [0, 1, 2, 3, 4] and found.flags.aligned and found.flags.writeable


def test_who_waits_is_told_of_once_it_has_said_where() -> None:
    net = Net()
    net.hand(4, m.packed(m.GET, flags=m.WAIT | m.TAKE, request=3, run=2, tag="x"))
    net.server._since[4, 3] -= 1  # a second ago
    net.server.look_round()
    assert not net.told
    net.hand(5, m.packed(m.WHERE, request=3, words=b"other.py:1"))  # of another rank
    net.hand(4, m.packed(m.WHERE, request=3, words=b"a.py:7"))
    net.server.look_round()
    assert [one["where"] for one in net.told] == ["a.py:7"]
