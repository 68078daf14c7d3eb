"""Thirty-odd ways to call wrongly, each found and named on simulated ranks; no run waits for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from magmadnn.comm import Delay, Drop, Kill, simulate
from magmadnn.errors import CommunicationError, MagmaDNNError

A = np.ones


def one_differs(odd: Callable[[Any], object], rest: Callable[[Any], object]) -> Any:
    """Rank 2 calls `odd`, the others `rest`."""
    return lambda comm: (odd if comm.rank == 2 else rest)(comm)


DIFFER = "calls differ: rank"
STUCK = "no rank can go on: "
LONGEST_SECONDS = 1.0  # until a fault is named
# What ranks do, and what is said. All of them on 4 ranks.
FAULTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "dtype": (
        one_differs(lambda c: c.all_reduce(A(3, "f4")), lambda c: c.all_reduce(A(3))),
        DIFFER,
    ),
    "shape": (one_differs(lambda c: c.all_reduce(A(4)), lambda c: c.all_reduce(A(3))), DIFFER),
    "same bytes": (
        one_differs(lambda c: c.all_reduce(A(4, "i4")), lambda c: c.all_reduce(A(4, "f4"))),
        DIFFER,
    ),
    "axes": (
        one_differs(lambda c: c.all_reduce(A((2, 3))), lambda c: c.all_reduce(A((3, 2)))),
        DIFFER,
    ),
    "op": (
        one_differs(lambda c: c.all_reduce(A(3), op="max"), lambda c: c.all_reduce(A(3))),
        DIFFER,
    ),
    "wire": (
        one_differs(lambda c: c.all_reduce(A(3), wire="bfloat16"), lambda c: c.all_reduce(A(3))),
        DIFFER,
    ),
    "two wires": (
        one_differs(
            lambda c: c.all_reduce(A(3), wire="bfloat16"),
            lambda c: c.all_reduce(A(3), wire="float16"),
        ),
        DIFFER,
    ),
    "algorithm": (
        one_differs(lambda c: c.all_reduce(A(3), algorithm="ring"), lambda c: c.all_reduce(A(3))),
        DIFFER,
    ),
    "root": (
        one_differs(lambda c: c.broadcast(A(3), root=1), lambda c: c.broadcast(A(3), root=2)),
        DIFFER,
    ),
    "broadcast dtype": (
        one_differs(lambda c: c.broadcast(A(2, "f4")), lambda c: c.broadcast(A(1, "f8"))),
        DIFFER,
    ),
    "counts": (
        one_differs(
            lambda c: c.reduce_scatter(A(4), counts=[1, 1, 1, 1]),
            lambda c: c.reduce_scatter(A(4), counts=[2, 0, 1, 1]),
        ),
        DIFFER,
    ),
    "no counts": (
        one_differs(
            lambda c: c.reduce_scatter(A(4)), lambda c: c.reduce_scatter(A(4), counts=[1, 1, 1, 1])
        ),
        DIFFER,
    ),
    "rows of gather": (
        one_differs(lambda c: c.all_gather(A(3)), lambda c: c.all_gather(A(2))),
        DIFFER,
    ),
    "gather counts": (
        one_differs(
            lambda c: c.all_gather(A(2), counts=[1, 1, 2, 1]),
            lambda c: c.all_gather(A(1), counts=[1, 1, 1, 1]),
        ),
        DIFFER,
    ),
    "shift": (one_differs(lambda c: c.shift(A(3), by=2), lambda c: c.shift(A(3))), DIFFER),
    "shift dtype": (one_differs(lambda c: c.shift(A(3, "f4")), lambda c: c.shift(A(3))), DIFFER),
    "barrier for sum": (one_differs(lambda c: c.barrier(), lambda c: c.all_reduce(A(3))), DIFFER),
    "gather for sum": (
        one_differs(lambda c: c.all_gather(A(3)), lambda c: c.all_reduce(A(3))),
        DIFFER,
    ),
    "exchange for barrier": (one_differs(lambda c: c.exchange(1), lambda c: c.barrier()), DIFFER),
    "split for barrier": (one_differs(lambda c: c.split(0), lambda c: c.barrier()), DIFFER),
    "to all for barrier": (
        one_differs(lambda c: c.all_to_all([A(1)] * 4), lambda c: c.barrier()),
        DIFFER,
    ),
    "to all with out": (
        one_differs(
            lambda c: c.all_to_all([A(1)] * 4, [A(1) for _ in range(4)]),
            lambda c: c.all_to_all([A(1)] * 4),
        ),
        DIFFER,
    ),
    "order": (
        one_differs(
            lambda c: (c.barrier(), c.all_reduce(A(1))), lambda c: (c.all_reduce(A(1)), c.barrier())
        ),
        DIFFER,
    ),
    "one call more": (
        one_differs(lambda c: (c.barrier(), c.barrier()), lambda c: c.barrier()),
        STUCK,
    ),
    "one call less": (one_differs(lambda c: None, lambda c: c.barrier()), STUCK),
    "leaves early": (
        one_differs(lambda c: c.barrier(), lambda c: [c.barrier() for _ in range(3)]),
        "rank 2 has ended; its last call was barrier",
    ),
    "started, not made": (
        one_differs(lambda c: None, lambda c: c.start_all_reduce(A(2)).wait()),
        STUCK,
    ),
    "started for another": (
        one_differs(
            lambda c: c.start_all_reduce(A(2)).wait(), lambda c: c.start_all_reduce(A(3)).wait()
        ),
        DIFFER,
    ),
    "recv without send": (
        one_differs(lambda c: c.recv(A(3), 0), lambda c: None),
        "rank 2 waits in recv",
    ),
    "other tag": (
        one_differs(lambda c: c.recv(A(3), 0, tag=2), lambda c: c.send(A(3), 2, tag=1)),
        "with tag 2",
    ),
    "pair's dtype": (
        one_differs(lambda c: c.recv(A(3), 0), lambda c: c.send(A(3, "i8"), 2)),
        "got int64 (3,) from rank 0, expected float64 (3,)",
    ),
    "pair's shape": (
        one_differs(lambda c: c.recv(A(3), 0), lambda c: c.send(A(4), 2)),
        "got float64 (4,) from rank 0, expected float64 (3,)",
    ),
    "pair's shape of as many elements": (
        one_differs(lambda c: c.recv(A(1).reshape(()), 0), lambda c: c.send(A(1), 2)),
        "got float64 (1,) from rank 0, expected float64 ()",
    ),
    "parts of another size": (
        lambda c: c.all_to_all([A(c.rank + 1)] * 4, [A(2) for _ in range(4)]),
        "expected float64 (2,)",
    ),
    "circle of recv": (
        lambda c: c.recv(A(2), (c.rank + 1) % 4),
        "rank 3 waits in recv float64 (2,) from rank 0",
    ),
    "group for world": (
        lambda c: (
            (c.split(c.rank % 2) if c.rank else c.split(0)).barrier()
            if c.rank < 3
            else c.split(1).barrier() or c.barrier()
        ),
        STUCK,
    ),
    "raises": (one_differs(lambda c: 1 // 0, lambda c: c.barrier()), "division"),
    "wrong argument on one": (
        one_differs(lambda c: c.all_reduce(A((2, 3)).T), lambda c: c.all_reduce(A((2, 3)))),
        "rank 2 of 4: all_reduce: source of shape (3, 2) is not C-contiguous",
    ),
    "closed on one": (
        one_differs(lambda c: (c.close(), c.barrier()), lambda c: c.barrier()),
        "rank 2 of 4: barrier: this communicator is closed",
    ),
}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str, seed: int) -> None:
    body, text = FAULTS[name]
    begun = time.perf_counter()
    with pytest.raises((MagmaDNNError, ZeroDivisionError)) as caught:
        simulate(4, body, seed=seed)
    assert time.perf_counter() - begun < LONGEST_SECONDS
    assert text in str(caught.value)
    if text == DIFFER:
        message = str(caught.value)
        assert message.count("at test_faults.py:") == 2  # the lines of both
        assert "rank 2 " in message
    if isinstance(caught.value, ZeroDivisionError):
        assert caught.value.__notes__ == ["on rank 2 of 4"]


def work(comm: Any) -> float:
    x = np.full(500, comm.rank + 1.0)
    for algorithm in ("ring", "tree", "torus", None):
        x = comm.all_reduce(x, algorithm=algorithm)
    return float(comm.shift(x).sum())


@pytest.mark.parametrize("call", [1, 3, 5])
def test_a_rank_that_dies_is_named(call: int) -> None:
    with pytest.raises(
        CommunicationError, match=r"rank 3 was killed; its last call was .* at test_faults"
    ):
        simulate(5, work, faults=[Kill(3, call)])


@pytest.mark.parametrize("message", [1, 2, 5])
def test_a_message_that_is_lost_is_named(message: int) -> None:
    with pytest.raises(CommunicationError, match=f"message {message} of rank 1 to rank 2 was lost"):
        simulate(5, work, faults=[Drop(1, 2, message)])


def test_a_late_message_changes_no_bit() -> None:
    assert simulate(5, work, faults=[Delay(1, 2, 1, 3.0)]) == simulate(5, work)
