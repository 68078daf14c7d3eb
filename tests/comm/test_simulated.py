"""Collectives against plain NumPy on simulated ranks; clocks, order and failures."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn import comm as c
from magmadnn.comm import Delay, Drop, Kill, Network, SerialCommunicator, simulate
from magmadnn.errors import ArgumentError, CommunicationError, DTypeError, ShapeError

SIZES = [1, 2, 3, 4, 8, 13]
ALGORITHMS = ["everyone", "direct", "tree", "ring", "torus"]


def given(rank: int, shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    draw = np.random.default_rng(100 + rank).normal(size=shape)
    return (draw * 100).astype(dtype)


def all_given(size: int, shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    return np.stack([given(rank, shape, dtype) for rank in range(size)])


@pytest.mark.parametrize("size", [*SIZES, 64])
@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_all_reduce_is_the_sum_and_equal_everywhere(size: int, algorithm: str | None) -> None:
    shape = (7, 11)
    got = simulate(size, lambda comm: comm.all_reduce(given(comm.rank, shape), algorithm=algorithm))
    want = all_given(size, shape).sum(axis=0)
    # Two orders of a sum of `size` terms differ by at most 2 (size - 1) roundings of the sum of sizes.
    bound = 2 * size * np.finfo(np.float64).eps * np.abs(all_given(size, shape)).sum(axis=0)
    assert np.all(np.abs(got[0] - want) <= bound)
    assert {one.tobytes() for one in got} == {got[0].tobytes()}


@pytest.mark.parametrize("op", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_reductions_of_integers(op: str, algorithm: str) -> None:
    got = simulate(
        5,
        lambda comm: comm.all_reduce(given(comm.rank, (13,), np.int64), op=op, algorithm=algorithm),
    )
    reduce: Any = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}[op]
    for one in got:
        np.testing.assert_array_equal(one, reduce(all_given(5, (13,), np.int64), axis=0))


def test_sums_are_in_rank_order_for_any_length() -> None:
    # 4,999 elements go by another algorithm than 5 do; joined arrays give the bits of single ones.
    def body(comm: Any) -> tuple[Any, Any]:
        x = given(comm.rank, (4999,), np.float32)
        return comm.all_reduce(x), np.concatenate(
            [comm.all_reduce(x[:5].copy()), comm.all_reduce(x[5:].copy())]
        )

    want = all_given(7, (4999,), np.float32)
    total = want[0]
    for piece in want[1:]:
        total = total + piece
    for whole, parts in simulate(7, body):
        assert whole.tobytes() == parts.tobytes() == total.tobytes()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_sums_on_a_narrow_wire(name: Any, algorithm: str | None) -> None:
    size, shape = 6, (41,)
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else np.float16)
    u = float(ml_dtypes.finfo(dtype).eps) / 2
    got = simulate(
        size,
        lambda comm: comm.all_reduce(
            given(comm.rank, shape, np.float32), wire=name, algorithm=algorithm
        ),
    )
    exact = all_given(size, shape, np.float32).astype(np.float64)
    # One rounding on the way and one of the result; a sum that is rounded at each hop has one more a hop.
    hops = 1 if algorithm in (None, "everyone", "direct") else size
    bound = (hops + 1.01) * u * np.abs(exact).sum(axis=0)
    assert got[0].dtype == np.float32
    assert np.all(np.abs(got[0] - exact.sum(axis=0)) <= bound)
    assert {one.tobytes() for one in got} == {got[0].tobytes()}


def test_half_elements_are_summed_in_float32() -> None:
    # In float16, 2048 + 1 is 2048: rank by rank the ones would be lost.
    def body(comm: Any) -> float:
        x = np.array([2048.0 if comm.rank == 0 else 1.0], np.float16)
        return float(comm.all_reduce(x)[0])

    assert simulate(5, body) == [2052.0] * 5


def test_bytes_on_a_narrow_wire_are_half() -> None:
    def body(comm: Any, wire: Any) -> int:
        comm.all_reduce(np.ones(6000, np.float32), wire=wire)
        comm.barrier()
        return int(comm.bytes_sent)

    assert simulate(3, body, None)[0] == 2 * 2 * 24000 + 6
    assert simulate(3, body, "bfloat16")[0] == 2 * 2 * 12000 + 6


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("wire", [None, "bfloat16"])
def test_reduce_scatter_and_all_gather(size: int, wire: Any) -> None:
    counts = [(3 * rank) % 5 for rank in range(size)]
    ends = np.cumsum([0, *counts])

    def body(comm: Any) -> tuple[Any, Any, Any]:
        x = given(comm.rank, (int(ends[-1]), 3), np.float32).round()
        x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
        share = comm.reduce_scatter(x, counts=counts, wire=wire)
        equal = comm.reduce_scatter(given(comm.rank, (2 * size, 3)), op="max")
        rows = x[: counts[comm.rank]]
        return share, equal, comm.all_gather(rows, counts=counts, wire=wire)

    x = all_given(size, (int(ends[-1]), 3), np.float32).round()
    x = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    total = x[0].copy()
    for piece in x[1:]:
        total += piece
    rows = np.concatenate([x[rank][: counts[rank]] for rank in range(size)])
    for rank, (share, equal, gathered) in enumerate(simulate(size, body)):
        assert share.tobytes() == total[ends[rank] : ends[rank + 1]].tobytes()
        np.testing.assert_array_equal(
            equal, all_given(size, (2 * size, 3)).max(axis=0)[2 * rank : 2 * rank + 2]
        )
        np.testing.assert_array_equal(gathered, rows)


@pytest.mark.parametrize("size", SIZES)
def test_broadcast_shift_and_all_to_all(size: int) -> None:
    def body(comm: Any) -> Any:
        rank = comm.rank
        x = given(rank, (5, 2))
        comm.broadcast(x, root=size - 1)
        moved = comm.shift(given(rank, (3,)), by=2)
        parts = [np.full((r, rank + 1), 10 * rank + r, np.int32) for r in range(size)]
        came = comm.all_to_all(parts)
        into = [np.empty((rank, r + 1), np.int32) for r in range(size)]
        comm.all_to_all(parts, into)
        return x, moved, came, into, comm.exchange({"rank": rank, "π": [1.5, None]})

    for rank, (x, moved, came, into, values) in enumerate(simulate(size, body)):
        np.testing.assert_array_equal(x, given(size - 1, (5, 2)))
        np.testing.assert_array_equal(moved, given((rank - 2) % size, (3,)))
        for r, (one, other) in enumerate(zip(came, into, strict=True)):
            np.testing.assert_array_equal(one, np.full((rank, r + 1), 10 * r + rank, np.int32))
            np.testing.assert_array_equal(other, one)
        assert values == [{"rank": r, "π": [1.5, None]} for r in range(size)]


def test_split_numbers_by_key_and_groups_work_alone() -> None:
    def body(comm: Any) -> Any:
        group = comm.split(None if comm.rank == 3 else comm.rank % 2, key=-comm.rank)
        if group is None:
            return None
        inner = group.split(0)
        total = group.all_reduce(np.array([comm.rank]))
        return group.rank, group.size, int(total[0]), inner.size, group.exchange(comm.rank)

    got = simulate(6, body)
    assert got[3] is None
    assert got[4] == (0, 3, 6, 3, [4, 2, 0])
    assert got[1] == (1, 2, 6, 2, [5, 1])


def test_a_group_of_all_ranks_in_another_order() -> None:
    def one(comm: Any) -> tuple[int, float]:
        group = comm.split(0, (2, 0, 1).index(comm.rank))
        assert group is not None
        came = group.shift(np.array([float(comm.rank)]), np.empty(1))
        return group.rank, float(came[0])

    assert simulate(3, one) == [(1, 2.0), (2, 0.0), (0, 1.0)]


def test_messages_of_pairs_match_by_tag_and_in_order() -> None:
    def body(comm: Any) -> list[float]:
        if comm.rank == 0:
            for value, tag in ((1.0, 5), (2.0, 4), (3.0, 5)):
                x = np.array([value])
                comm.send(x, 1, tag=tag)
                x[0] = -1  # free to be changed
            return []
        out = np.empty(1)
        return [float(comm.recv(out, 0, tag=tag)[0]) for tag in (4, 5, 5)]

    assert simulate(2, body)[1] == [2.0, 1.0, 3.0]


def test_calls_that_return_at_once_go_on_beside_others() -> None:
    def body(comm: Any) -> Any:
        x = given(comm.rank, (9,))
        first = comm.start_all_reduce(x)
        second = comm.start_shift(np.array([comm.rank]))
        third = comm.start_all_gather(np.array([comm.rank]))
        third.wait()
        return first.wait(), int(second.wait()[0]), third.wait().tolist(), first.done()

    for rank, (total, moved, rows, done) in enumerate(simulate(4, body)):
        np.testing.assert_allclose(total, all_given(4, (9,)).sum(axis=0), rtol=1e-12)
        assert (moved, rows, done) == ((rank - 1) % 4, [0, 1, 2, 3], True)


def test_polling_lets_others_run() -> None:
    def body(comm: Any) -> int:
        if comm.rank == 0:
            comm.advance(2.0)
            comm.send(np.ones(3), 1)
            return 0
        request, polls = comm.start_recv(np.empty(3), 0), 0
        while not request.done():
            polls += 1
        return polls

    assert 1 <= simulate(2, body)[1] <= 5


# --- time ---------------------------------------------------------------------------------------


def test_clocks_follow_latency_and_bandwidth() -> None:
    network = Network(latency=2e-6, bandwidth=1e9)

    def body(comm: Any, algorithm: str) -> float:
        comm.all_reduce(np.ones(8_000), algorithm=algorithm)
        return float(comm.clock)

    # 64,000 bytes on 4 ranks, by the costs of rounds.py.
    n, a, b, size = 64_000, 2e-6, 1e-9, 4
    want = {
        "ring": 2 * a * (size - 1) + 2 * b * n * (size - 1) / size,
        "torus": 2 * a * (2 + 2 - 2) + 2 * b * n * (size - 1) / size,
        "tree": a * 2 + b * n * 2,
        "everyone": a + b * n * 3,
        "direct": 2 * a + 2 * b * n * (size - 1) / size,
    }
    for algorithm, seconds in want.items():
        got = simulate(4, body, algorithm, network=network)
        assert max(got) == pytest.approx(seconds, rel=1e-9), algorithm


def test_arithmetic_hides_messages() -> None:
    def body(comm: Any) -> float:
        request = comm.start_all_reduce(np.ones(1000))  # 8,000 bytes, in 16 ms and more
        comm.advance(0.1)
        request.wait()
        return float(comm.clock)

    assert max(simulate(3, body, network=Network(1e-3, 1e6))) == 0.1


def test_the_same_seed_repeats_the_order_and_another_does_not() -> None:
    def order(seed: int) -> list[int]:
        ran: list[int] = []

        def body(comm: Any) -> None:
            for _ in range(3):
                ran.append(comm.rank)
                comm.barrier()

        simulate(6, body, seed=seed)
        return ran

    assert order(3) == order(3)
    assert order(3) != order(4)


# --- failures -----------------------------------------------------------------------------------


def test_the_first_error_names_its_rank() -> None:
    def body(comm: Any) -> None:
        if comm.rank == 2:
            raise ShapeError("axis 1: 3 and 4")
        comm.barrier()

    with pytest.raises(ShapeError, match="rank 2 of 4: axis 1: 3 and 4"):
        simulate(4, body)

    def other(comm: Any) -> None:
        if comm.rank == 1:
            raise KeyError("a")
        comm.barrier()

    with pytest.raises(KeyError) as caught:
        simulate(4, other)
    assert caught.value.__notes__ == ["on rank 1 of 4"]


def test_no_thread_is_left_behind() -> None:
    before = threading.active_count()
    with pytest.raises(CommunicationError):
        simulate(5, lambda comm: comm.barrier() if comm.rank else None)
    assert threading.active_count() == before


def test_a_slow_message_arrives_late() -> None:
    def body(comm: Any) -> float:
        comm.shift(np.ones(1))
        return float(comm.clock)

    got = simulate(3, body, faults=[Delay(0, 1, 1, 0.25)])
    assert got == [0.0, 0.25, 0.0]


def test_survivors_may_go_on() -> None:
    def body(comm: Any) -> str:
        try:
            comm.barrier()
        except CommunicationError as error:
            return str(error)
        return "went through"

    got = simulate(3, body, faults=[Kill(1)])
    assert got[1] is None
    assert "rank 1 was killed; its last call was barrier at test_simulated.py:" in str(got[0])


def test_a_lost_message_is_named() -> None:
    with pytest.raises(CommunicationError, match="message 1 of rank 2 to rank 0 was lost"):
        simulate(3, lambda comm: comm.shift(np.ones(2)), faults=[Drop(2, 0)])


# --- alone, and wrong arguments -----------------------------------------------------------------


def test_serial_copies() -> None:
    comm = SerialCommunicator()
    x = given(0, (4, 3))
    for got in (comm.all_reduce(x), comm.reduce_scatter(x), comm.all_gather(x), comm.shift(x)):
        assert got is not x
        np.testing.assert_array_equal(got, x)
    assert comm.all_reduce(x, x) is x
    assert comm.exchange([1]) == [[1]]
    request = comm.start_send(x, 0, tag=3)
    np.testing.assert_array_equal(comm.recv(np.empty((4, 3)), 0, tag=3), x)
    request.wait()
    group = comm.split(1)
    assert group is not None and group.size == 1
    comm.barrier()
    with pytest.raises(
        CommunicationError, match=r"rank 0 waits in recv float64 \(2,\) from rank 0"
    ):
        comm.recv(np.empty(2), 0)
    comm.close()
    with pytest.raises(ArgumentError, match="barrier: this communicator is closed"):
        comm.barrier()


def test_every_communicator_follows_the_protocol() -> None:
    assert isinstance(SerialCommunicator(), c.Communicator)
    assert simulate(2, lambda comm: isinstance(comm, c.Communicator)) == [True, True]


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "a list": (lambda s: s.all_reduce([1.0]), DTypeError, "must be a NumPy array, got list"),
    "objects": (lambda s: s.all_reduce(np.array([{}])), DTypeError, "dtype object"),
    "columns": (lambda s: s.all_reduce(np.ones((3, 4)).T), ArgumentError, "ascontiguousarray"),
    "op": (lambda s: s.all_reduce(np.ones(1), op="mean"), ArgumentError, "'mean' is not known"),
    "wire": (lambda s: s.all_reduce(np.ones(1), wire="int8"), ArgumentError, "wire 'int8'"),
    "algorithm": (lambda s: s.all_reduce(np.ones(1), algorithm="x"), ArgumentError, "known are"),
    "sum of bool": (lambda s: s.all_reduce(np.array([True])), DTypeError, "'max' for any"),
    "out shape": (lambda s: s.all_reduce(np.ones(2), np.ones(3)), ShapeError, r"\(3,\)"),
    "out dtype": (lambda s: s.all_reduce(np.ones(2), np.ones(2, "f4")), DTypeError, "float32"),
    "counts": (lambda s: s.reduce_scatter(np.ones(3), counts=[1, 2]), ShapeError, "1 numbers"),
    "counts sum": (lambda s: s.reduce_scatter(np.ones(3), counts=[2]), ShapeError, "add up to 2"),
    "gather counts": (lambda s: s.all_gather(np.ones(3), counts=[2]), ShapeError, "has 3"),
    "scalar": (lambda s: s.all_gather(np.array(1.0)), ShapeError, "scalar"),
    "root": (lambda s: s.broadcast(np.ones(1), root=1), ArgumentError, "0 to 0, got 1"),
    "parts": (lambda s: s.all_to_all([]), ShapeError, "needs 1 arrays"),
    "tag": (lambda s: s.send(np.ones(1), 0, tag=-1), ArgumentError, "tag must be"),
    "to": (lambda s: s.send(np.ones(1), 3), ArgumentError, "to must be a rank"),
    "value": (lambda s: s.exchange({1, 2}), ValueError, "JSON"),
    "shift onto itself": (lambda s: s.shift(x := np.ones(2), x), ArgumentError, "shares memory"),
    "size": (lambda s: simulate(65, print), ArgumentError, "from 1 to 64, got 65"),
    "network": (lambda s: Network(latency=-1.0), ArgumentError, "latency"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name: str) -> None:
    call, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        call(SerialCommunicator())


def test_rows_that_do_not_divide() -> None:
    with pytest.raises(ShapeError, match="7 rows does not divide among 2 ranks: give counts"):
        simulate(2, lambda comm: comm.reduce_scatter(np.ones((7, 2))))
