"""Rows that GPUs send each other within graphs: which messages a rank has, and calls that differ."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from magmadnn.backends.cuda.nodes.among_gpus import KINDS, Kind
from magmadnn.comm.gpu.captured import CapturedCalls
from magmadnn.comm.gpu.elements import DTYPES
from magmadnn.comm.gpu.peer_sum import MOST_BYTES, PeerSum
from magmadnn.errors import CommunicationError
from magmadnn.graph.placing import Placement, Replicate, Shard, routed

RANKS, ROW = 3, 5


class Calls(CapturedCalls):
    """A rank that notes its messages; the others say of themselves what `others` has."""

    def __init__(self, rank: int, others: Any = ()) -> None:
        super().__init__()
        self.rank, self.size, self.noted = rank, RANKS, list[tuple[Any, ...]]()
        self._others = others
        self._comm = SimpleNamespace(send="send", recv="recv")
        stream = SimpleNamespace(ptr=7, synchronize=lambda: None)
        self._cupy = SimpleNamespace(
            zeros=lambda *_: SimpleNamespace(data=SimpleNamespace(ptr=64)),
            cuda=SimpleNamespace(get_current_stream=lambda: stream),
        )

    def _host(self) -> Any:
        return SimpleNamespace(exchange=lambda own: [own, *self._others])

    def _group(self, calls: Any) -> None:
        self.noted += [(what, *given) for what, given in calls]

    def call_on(self, *_: Any) -> None:
        """Nothing."""


def bytes_at(address: int, nbytes: int) -> Any:
    return (ctypes.c_char * nbytes).from_address(address)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Shard(0), Replicate((2, 0))),
        (Shard(0, (0, 1)), Shard(0, (2, 1, 0))),
        (Replicate((1,)), Shard(0, (0, 2))),
    ],
)
def test_messages_of_all_ranks_are_those_of_the_table(
    before: Placement, after: Replicate | Shard
) -> None:
    """Sent and received by address, they fit each other, and give the rows that the table names."""
    way = routed(before, after, RANKS)
    sources = np.arange(RANKS * way.pieces * ROW, dtype="f").reshape(RANKS, way.pieces, ROW)
    found, wanted = np.zeros((2, RANKS, way.rows, ROW), "f")
    sent: dict[tuple[int, int], tuple[int, int]] = {}
    got: dict[tuple[int, int], tuple[int, int]] = {}
    for rank in range(RANKS):
        one = Calls(rank)
        given = sources[rank].ctypes.data, found[rank].ctypes.data
        one.move_on(7, way.moves, *given, ROW, "float32")
        for what, address, count, element, other, stream in one.noted:
            assert (element, stream) == (DTYPES["float32"], 7)
            pair = (rank, other) if what == "send" else (other, rank)
            (sent if what == "send" else got)[pair] = address, count
    assert sent.keys() == got.keys() and sent
    for pair, (address, count) in sent.items():
        assert count == got[pair][1]
        bytes_at(got[pair][0], count * 4)[:] = bytes_at(address, count * 4)[:]
    for source, first, end, target, at in way.moves:
        wanted[target, at : at + end - first] = sources[source, first:end]
    np.testing.assert_array_equal(found, wanted)


def test_rows_without_elements_are_no_messages() -> None:
    one = Calls(0)
    one.move_on(7, ((0, 0, 1, 1, 0),), 64, 64, 0, "float32")
    assert not one.noted


def test_a_first_call_is_made_once_for_equal_rows() -> None:
    moves = ((0, 0, 1, 1, 0),)
    one = Calls(0)
    for _ in range(2):
        one.prepare_moves(moves, ROW, "float32")
    assert len(one.noted) == 1
    one.prepare_moves(moves, ROW + 1, "float32")
    assert len(one.noted) == 2


def test_different_calls_are_named() -> None:
    moves = ((0, 0, 1, 1, 0),)
    with pytest.raises(
        CommunicationError,
        match="move: ranks are about to capture different calls: rank 0 rows of 5 ",
    ):
        Calls(0, [[moves, ROW + 1, "float32"]]).prepare_moves(moves, ROW, "float32")
    with pytest.raises(
        CommunicationError, match=r"sum: .*: rank 0 5 float32 by sum; rank 1 6 float32 by sum"
    ):
        Calls(0, [["sum", 6, "float32", "float32"]]).prepare("sum", 5, "float32", "float32")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "move"])
def test_a_graph_has_the_kernel_that_a_stream_would_get(kind: Kind) -> None:
    """Of few elements by a kernel of this package, of many by none."""
    made: list[Any] = []
    sums = SimpleNamespace(
        kernel_of=lambda *given: made.append(given) or "kernel",
        begin=lambda stream, *given: made.append(given),
    )
    calls = Calls(1)
    calls._sums = {True: cast("PeerSum", sums)}
    library = SimpleNamespace(
        allReduce=lambda *_: made.append("library"),
        allGather=lambda *_: made.append("library"),
        reduceScatter=lambda *_: made.append("library"),
    )
    calls._comm = SimpleNamespace(send="send", recv="recv", **vars(library))
    for count, dtype, stored in ((6, "bfloat16", "float32"), (MOST_BYTES, "float32", "float32")):
        asked = kind, 64, 128, count, dtype, stored
        kernel = calls.own_kernel(*asked)
        by_kernel, made[:] = made[:], []
        CapturedCalls.call_on(calls, 7, *asked)
        assert (kernel is None) == (by_kernel == [])
        if kernel is None:
            assert made == ["library"] or calls.noted
        else:
            assert made == by_kernel
        made.clear()
    assert calls.own_kernel(kind, 64, 128, 6, "float32", "float32") == "kernel"
