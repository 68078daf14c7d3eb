"""Products that come again are launched as graphs, and none is ever out of date: on stand-ins whose memory
lies at addresses that serve again.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import device_count
from magmadnn.comm import SimulatedCommunicator, simulate
from magmadnn.dmath import Blocks, Columns, Layout, Rows, cyclic
from magmadnn.dmath.arrays import casting, replaying
from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.replaying import Replays
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.arrays.tracing import Trace
from magmadnn.dmath.layouts.moves import within
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products import cutting, pipelining, running
from magmadnn.dmath.products.arithmetic import arithmetic_of
from magmadnn.dmath.products.choosing import candidates
from magmadnn.dmath.worker import Worker
from tests.dmath.placed import placed_parts, team_of

N = 24
LAYOUTS = {
    "rows": (Rows(), Rows(), Rows()),
    "blocks": (Blocks((6, 6), owners=cyclic(2, 2)),) * 3,
    "large blocks": (Blocks((12, 12), owners=cyclic(2, 2)),) * 3,
    "rows by columns": (Rows(), Columns(), Blocks((10, 10))),
    "columns": (Columns(), Rows(), Columns()),
}
# storage, compute, dtype of the result
KINDS = {
    "float32": ("float32", None, "float32"),
    "float64": ("float64", None, "float64"),
    "TF32": ("float32", "tf32", "float32"),
    "bfloat16": ("bfloat16", None, "bfloat16"),
    "float16": ("float16", None, "float16"),
    "float32 in bfloat16": ("float32", "bfloat16", "float32"),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "SHORTEST", 4)
    monkeypatch.setattr(cutting, "FIRST", 4)
    monkeypatch.setattr(casting, "_fits", lambda into, piece: False)  # there is no compiler


def matrix(seed: int, dtype: Any = np.float32) -> np.ndarray:
    """Whole numbers of which products are exact in float32."""
    return np.random.default_rng(seed).integers(-3, 4, (N, N)).astype(dtype)


def product(a: Parts, b: Parts, target: Layout, kind: str = "float32") -> Parts:
    """By copies, whatever the planner would say."""
    _, compute, result = KINDS[kind]
    dtype = np.dtype(result)
    how = arithmetic_of(a.dtype, b.dtype, dtype, compute)
    plan = next(p for p in candidates(a.layout, b.layout, target) if p.name == "C stays")
    return running.run(a, b, plan, dtype, how)


def check(made: Parts, x: np.ndarray) -> None:
    whole = tuple((0, n) for n in x.shape)
    for number, block in made.blocks.items():
        expected = x[within(made.layout.boxes[number], whole)].astype(made.dtype)
        assert np.asarray(block).tobytes() == np.ascontiguousarray(expected).tobytes()


def resolved(name: str, workers: int = 4) -> list[Layout]:
    return [resolve(recipe, (N, N), workers) for recipe in LAYOUTS[name]]


def on_workers(workers: int, one: Callable[[Team], Any], replays: Any = Replays) -> list[Any]:
    board: dict[Any, Any] = {}
    return simulate(
        workers, lambda comm: one(team_of(comm, board, None if replays is None else replays()))
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("shortest", [4, 512])
def test_the_second_product_is_a_graph_and_bits_are_the_same(
    name: str, kind: str, shortest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values change from product to product; by terms, and by columns."""
    monkeypatch.setattr(cutting, "SHORTEST", shortest)
    storage = np.dtype(getattr(ml_dtypes, KINDS[kind][0], KINDS[kind][0]))
    lies = resolved(name)
    x, y = (matrix(seed, storage) for seed in (1, 2))

    def one(team: Team) -> tuple[list[bytes], tuple[int, ...]]:
        a, b = (placed_parts(team, z, lie) for z, lie in zip((x, y), lies[:2], strict=True))
        found = []
        for turn in range(5):
            made = product(a, b, lies[2], kind)
            if kind != "float16" and kind != "bfloat16":
                wide = np.float64
                check(made, (x.astype(wide) + turn) @ y.astype(wide))
            found.append(b"".join(np.asarray(block).tobytes() for block in made.blocks.values()))
            del made
            for block in a.blocks.values():
                block[...] = np.asarray(block) + np.asarray(1, storage)
        total = team.total()
        counts = total.graphs_made, total.graph_launches, total.graph_failures
        return found, (*counts, total.sent_bytes, total.messages, total.planned_bytes)

    with_graphs, without = on_workers(4, one), on_workers(4, one, None)
    for (bits, counts), (same, plain) in zip(with_graphs, without, strict=True):
        assert bits == same
        assert counts[3:] == plain[3:] and plain[:3] == (0, 0, 0)
        made, launches, failures = counts[:3]
        assert failures == 0 and made >= 1 and launches >= 3 and made + launches >= 5


def test_each_worker_decides_for_itself() -> None:
    """Worker 1 holds its results, so that no place comes again; worker 2 has no graphs at all."""
    lies = resolved("rows", 3)
    x, y = matrix(1), matrix(2)

    def one(team: Team) -> int:
        if team.rank == 2:
            team.replays.enabled = False
        a, b, held = placed_parts(team, x, lies[0]), placed_parts(team, y, lies[1]), []
        for _ in range(5):
            made = product(a, b, lies[2])
            check(made, x @ y)
            if team.rank == 1:
                held.append(made)
        for made in held:
            check(made, x @ y)
        return team.total().graph_launches

    assert on_workers(3, one) == [3, 0, 0]


def test_results_that_take_turns_have_a_graph_each() -> None:
    """`C = A @ B` in a loop: the pool gives two places in turn, as the old result lives until then."""
    lies = resolved("rows", 2)
    x, y = matrix(1), matrix(2)

    def one(team: Team) -> tuple[int, int]:
        a, b, made = placed_parts(team, x, lies[0]), placed_parts(team, y, lies[1]), None
        for turn in range(20):
            made = product(a, b, lies[2])
            check(made, x @ y)
            if turn < 6:
                before = team.total().graph_launches
        return team.total().graphs_made, team.total().graph_launches - before

    assert on_workers(2, one) == [(2, 14)] * 2


def test_an_operand_that_was_made_anew_is_read_where_it_lies() -> None:
    """The client deletes A and makes another. Worker 0 has the same place again, worker 1 another one: a
    graph that knew only where its own blocks lie would read worker 1's old memory.
    """
    lies = resolved("rows", 2)
    x, y, z = matrix(1), matrix(2), matrix(3)

    def one(team: Team) -> tuple[bool, int]:
        a, b = placed_parts(team, x, lies[0]), placed_parts(team, y, lies[1])
        for _ in range(3):
            check(product(a, b, lies[2]), x @ y)
        old = b.blocks[team.rank].data.ptr
        del b
        gc.collect()
        taken = team.xp.empty((N // 2, N), np.float32) if team.rank else None
        b = placed_parts(team, z, lies[1])
        if taken is not None:
            taken[...] = -77
        launches = team.total().graph_launches
        for _ in range(3):
            check(product(a, b, lies[2]), x @ z)
        return b.blocks[team.rank].data.ptr == old, team.total().graph_launches - launches

    assert on_workers(2, one) == [(True, 2), (False, 2)]


@pytest.mark.parametrize("also", [None, 0])
def test_an_operand_whose_own_block_moved_is_read_where_it_lies(also: int | None) -> None:
    """As above, with the other operand, whose blocks nobody else reads."""
    lies = resolved("rows", 2)
    x, y, z = matrix(1), matrix(2), matrix(3)

    def one(team: Team) -> None:
        a, b = placed_parts(team, x, lies[0]), placed_parts(team, y, lies[1])
        for _ in range(3):
            check(product(a, b, lies[2]), x @ y)
        del a
        gc.collect()
        taken = team.xp.empty((N // 2, N), np.float32) if team.rank == also else None
        a = placed_parts(team, z, lies[0])
        if taken is not None:
            taken[...] = -77
        for _ in range(3):
            check(product(a, b, lies[2]), z @ y)

    on_workers(2, one)


def test_another_layout_at_the_same_place_has_another_graph() -> None:
    rows, columns = resolved("rows", 2)[0], resolved("columns", 2)[0]
    x, y = matrix(1), matrix(2)

    def one(team: Team) -> bool:
        b = placed_parts(team, y, rows)
        a = placed_parts(team, x, rows)
        for _ in range(3):
            check(product(a, b, rows), x @ y)
        place = a.blocks[team.rank].data.ptr
        del a
        gc.collect()
        a = placed_parts(team, x, columns)
        for _ in range(3):
            check(product(a, b, rows), x @ y)
            check(product(a.transposed(), b, rows), x.T @ y)
        return a.blocks[team.rank].data.ptr == place

    assert on_workers(2, one) == [True, True]


def test_other_owners_at_the_same_places_have_another_graph() -> None:
    """Blocks of the same sizes and orders at the same addresses; the upper half is worker 1's now."""
    rows, columns = resolved("rows", 2)[0], resolved("columns", 2)[0]
    half = N // 2
    turned = resolve(Blocks(cuts=((0, half, N), (0, N)), owners=[[1], [0]]), (N, N), 2)
    x, y = matrix(1), matrix(2)

    def one(team: Team) -> bool:
        a, b = placed_parts(team, x, rows), placed_parts(team, y, columns)
        for _ in range(3):
            check(product(b, a, rows), y @ x)
        place = a.blocks[team.rank].data.ptr
        del a
        gc.collect()
        a = placed_parts(team, x, turned)
        for _ in range(3):
            check(product(b, a, rows), y @ x)
        return next(iter(a.blocks.values())).data.ptr == place

    assert on_workers(2, one) == [True, True]


def test_another_arithmetic_has_another_graph() -> None:
    lies = resolved("rows", 2)
    x, y = matrix(1), matrix(2)

    def one(team: Team) -> list[int]:
        a, b = placed_parts(team, x, lies[0]), placed_parts(team, y, lies[1])
        computed = team.xp.cuda.cublas.computed
        for _ in range(3):
            for kind in ("float32", "TF32"):
                computed.clear()
                check(product(a, b, lies[2], kind), x @ y)
                assert set(computed) == {68 if kind == "float32" else 77}
        return team.total().graphs_made

    assert on_workers(2, one) == [2, 2]


def test_a_layout_changed_by_remap_and_back_is_right() -> None:
    rows, columns = resolved("rows", 3)[0], resolved("columns", 3)[0]
    x, y = matrix(1), matrix(2)

    def one(team: Team) -> None:
        a, b = placed_parts(team, x, rows), placed_parts(team, y, rows)
        for _ in range(3):
            for _ in range(3):
                check(product(a, b, rows), x @ y)
            a = remap(a, columns if a.layout == rows else rows)
            gc.collect()

    on_workers(3, one)


def test_what_the_client_deleted_is_not_written_or_read() -> None:
    """By the client's records: results are freed, arrays made in their places, and products come again."""
    lies = resolved("rows", 2)
    x, y = matrix(1), matrix(2)

    def one(team: Team) -> int:
        worker = Worker(team)
        worker.arrays = {
            1: placed_parts(team, x, lies[0]),
            2: placed_parts(team, y, lies[1]),
        }
        worker.layouts[0] = lies[2]
        settings = {"layout": 0, "dtype": "float32"}
        number, free = 3, list[int]()
        for turn in range(12):
            worker.run(
                {"op": "matmul", "in": [1, 2], "out": number, "set": dict(settings), "free": free}
            )
            check(worker.arrays[number], x @ y)
            free, number = [number], number + 1
            if turn == 6:  # an array takes the place of the last result, and stays
                worker.run({"op": "wait", "free": free})
                free = []
                gc.collect()
                stays = worker.arrays[99] = placed_parts(team, x, lies[2])
        check(stays, x)
        launches = team.total().graph_launches
        worker.run({"op": "graphs", "set": {"on": False}})
        worker.run({"op": "matmul", "in": [1, 2], "out": 98, "set": dict(settings)})
        check(worker.arrays[98], x @ y)
        assert team.total().graph_launches == launches
        worker.run({"op": "forget"})
        assert len(team.replays) == 0
        return launches

    assert all(launches >= 6 for launches in on_workers(2, one))


def test_phases_that_cannot_be_captured_run_call_by_call() -> None:
    lies = resolved("rows", 2)
    x, y = matrix(1), matrix(2)

    def one(team: Team) -> None:
        team.peers.problem = "a call that no graph can hold"  # type: ignore
        operands = [
            (placed_parts(team, x, lies[0]), placed_parts(team, y, lies[1])) for _ in range(12)
        ]
        sent = []
        for _ in range(3):
            for a, b in operands:
                before = team.total().sent_bytes
                check(product(a, b, lies[2]), x @ y)
                sent.append(team.total().sent_bytes - before)
        total = team.total()
        assert set(sent) == {N * N // 2 * 4}
        assert (total.graphs_made, total.graph_launches) == (0, 0)
        assert total.graph_failures == 8  # then no more is tried
        assert team.gemm is None

    on_workers(2, one)


def test_a_failure_within_a_phase_leaves_the_worker_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy of an operand would be needed, in memory that a graph could not rely on."""
    lies = resolved("rows", 2)
    wide = np.random.default_rng(1).integers(-3, 4, (N, 2 * N)).astype(np.float32)
    y = matrix(2)

    def one(team: Team) -> None:
        whole = placed_parts(team, wide, resolve(Rows(), (N, 2 * N), 2))
        blocks = {n: block[:, ::2] for n, block in whole.blocks.items()}
        a = Parts(team, lies[0], whole.dtype, blocks)
        b = placed_parts(team, y, lies[1])
        for _ in range(4):
            check(product(a, b, lies[2]), wide[:, ::2] @ y)
        total = team.total()
        assert (total.graphs_made, total.graph_failures, team.gemm) == (0, 1, None)
        assert total.sent_bytes == 4 * N * N // 2 * 4

    on_workers(2, one)


def test_a_trace_sees_the_parts_of_a_product() -> None:
    lies = resolved("rows", 2)
    x, y = matrix(1), matrix(2)

    def one(team: Team) -> int:
        a, b = placed_parts(team, x, lies[0]), placed_parts(team, y, lies[1])
        for _ in range(3):
            product(a, b, lies[2])
        before = team.total().graph_launches
        team.trace = Trace(Team(team.comm))
        check(product(a, b, lies[2]), x @ y)
        spans, team.trace = team.trace.told(), None
        assert [kind for kind, *_ in spans].count("product") == 2
        assert team.total().graph_launches == before
        return before

    assert on_workers(2, one) == [2, 2]


def test_graphs_are_few_and_the_idle_ones_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of more products than graphs may be kept does not make graphs for ever."""
    monkeypatch.setattr(replaying, "MOST", 2)
    monkeypatch.setattr(replaying, "_IDLE", 12)
    lies = resolved("rows", 2)
    x, y = matrix(1), matrix(2)

    def one(team: Team) -> tuple[int, int]:
        b = placed_parts(team, y, lies[1])
        several = [placed_parts(team, x + turn, lies[0]) for turn in range(4)]
        for _ in range(10):
            for turn, a in enumerate(several):
                check(product(a, b, lies[2]), (x + turn) @ y)
            assert len(team.replays) <= 2
        made = team.total().graphs_made
        for _ in range(20):  # the others are idle by now
            check(product(several[3], b, lies[2]), (x + 3) @ y)
        return made, team.total().graphs_made

    assert on_workers(2, one) == [(2, 3)] * 2


def test_large_products_are_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelining, "MOST_ARENA", 100)
    lies = resolved("rows", 2)
    x, y = matrix(1), matrix(2)

    def one(team: Team) -> int:
        a, b = placed_parts(team, x, lies[0]), placed_parts(team, y, lies[1])
        for _ in range(4):
            check(product(a, b, lies[2]), x @ y)
        return team.total().graphs_made

    assert on_workers(2, one) == [0, 0]


def test_workers_tell_each_other_once_where_rounded_operands_lie() -> None:
    """They told each other with each product, and their hosts waited for it."""
    lies = resolved("rows", 2)
    x, y, z = matrix(1), matrix(2), matrix(3)
    kind = "float32 in bfloat16"

    def one(team: Team) -> tuple[int, ...]:
        a, b, c = (placed_parts(team, one, lies[0]) for one in (x, y, z))
        calls = []
        for _ in range(3):
            check(product(a, b, lies[2], kind), x @ y)
            check(product(c, b, lies[2], kind), z @ y)  # other arrays of the same layout
            calls.append(team.peers._calls)  # type: ignore
        check(product(a, a, lies[2], kind), x @ x)
        check(product(a, a.transposed(), lies[2], kind), x @ x.T)
        assert len(team.narrowed) == 2
        assert team.buffer_bytes == 2 * N * N // 2 * 2
        check(product(a, b, lies[2], kind), x @ y)
        return tuple(calls)

    assert on_workers(2, one) == [(2, 2, 2)] * 2


def test_large_rounded_operands_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelining, "MOST_NARROWED", 8)
    lies = resolved("rows", 2)
    x, y = matrix(1), matrix(2)

    def one(team: Team) -> None:
        a, b = placed_parts(team, x, lies[0]), placed_parts(team, y, lies[1])
        for _ in range(2):
            check(product(a, b, lies[2], "float32 in bfloat16"), x @ y)
        assert not team.narrowed and team.buffer_bytes == 0

    on_workers(2, one)


def test_rates_are_those_of_calls_and_those_of_graphs() -> None:
    from magmadnn.dmath.products import rates
    from tests.dmath.shared_memory import SharedPeers

    board: dict[Any, Any] = {}

    def one(comm: SimulatedCommunicator) -> None:
        replays = Replays()
        team = Team(comm, peers=SharedPeers(comm, board), replays=replays)
        how = arithmetic_of(*[np.dtype(np.float32)] * 3)
        called, launched = rates._call(team, how)
        assert called > 0 and launched > 0
        assert team.replays is replays and replays._phases > rates._HANDED_OVER
        assert team.count.graphs_made == team.count.graph_launches == 0  # of the user's own work
        team.replays = None
        assert rates._call(team, how)[1] == 0

    simulate(2, one)


@pytest.mark.gpu
@pytest.mark.skipif(device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_on_two_gpus(kind: str) -> None:
    """Values that change, an operand that is made anew: the bits of products without graphs."""
    storage, compute, _ = KINDS[kind]
    draw = np.random.default_rng(0)
    x, y, z = (draw.standard_normal((2100, 2100)).astype(np.float32) for _ in range(3))
    with md.workers(2) as workers:
        w = md.dmath.distributed(workers, device="cuda")
        found, launches = [], []
        for on in (False, True):
            w._ask("graphs", on=on)
            bits = []
            A, B = (w.array(one, layout=Rows()).astype(storage) for one in (x, y))
            for turn in range(9):
                C = md.dmath.matmul(A, B, layout=Rows(), compute=compute)
                if turn in (0, 4, 8):
                    bits.append(np.asarray(C).tobytes())
                if turn == 3:
                    A += 1
                if turn == 4:
                    del B
                    B = w.array(z, layout=Rows()).astype(storage)
            found.append(bits)
            launches.append(w.counters()["graph_launches"])
        assert found[0] == found[1]
        assert launches[0] == 0 < launches[1]
        assert w.counters()["graph_failures"] == 0
