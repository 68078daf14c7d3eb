"""Precisions of storage, products and messages; blocks that come by copies from the other workers' memory."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn.comm import SimulatedCommunicator, simulate
from magmadnn.dmath.arrays import pulling
from magmadnn.dmath.arrays import team as team_module
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.layouts.recipes import Blocks, Columns, Rows, cyclic, resolve
from magmadnn.dmath.products import cutting, running
from magmadnn.dmath.products.arithmetic import (
    COMPUTE,
    Arithmetic,
    arithmetic_of,
    multiply,
    travelling_size,
    wire_of,
)
from magmadnn.dmath.products.choosing import candidates, predict, ranked
from magmadnn.dmath.products.multiplying import matmul
from magmadnn.dmath.products.rates import Rates
from magmadnn.errors import DTypeError, UnknownNameError
from magmadnn.memory.dtypes import as_dtype
from tests.dmath.drawn import SIZES, check_parts, drawn_layout, parts_of
from tests.dmath.shared_memory import Ndarray, SharedPeers, device

BF16, HALF = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
UNIT = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tf32": 2.0**-12,
    "bfloat16": 2.0**-9,
    "float16": 2.0**-12,
}


# --- the arithmetic ----------------------------------------------------------------------------------


def test_what_products_are_computed_in() -> None:
    assert arithmetic_of(SINGLE, SINGLE, SINGLE) == Arithmetic(SINGLE, SINGLE)
    assert arithmetic_of(BF16, BF16, BF16) == Arithmetic(BF16, SINGLE)
    assert arithmetic_of(BF16, BF16, SINGLE) == Arithmetic(BF16, SINGLE)
    assert arithmetic_of(BF16, SINGLE, SINGLE) == Arithmetic(SINGLE, SINGLE)
    assert arithmetic_of(HALF, HALF, DOUBLE) == Arithmetic(DOUBLE, DOUBLE)
    assert arithmetic_of(SINGLE, SINGLE, SINGLE, "bfloat16") == Arithmetic(BF16, SINGLE)
    assert arithmetic_of(SINGLE, SINGLE, SINGLE, "tf32") == Arithmetic(SINGLE, SINGLE, True)
    assert arithmetic_of(SINGLE, SINGLE, SINGLE, "float64") == Arithmetic(DOUBLE, DOUBLE)


def test_what_operands_travel_in() -> None:
    how = arithmetic_of(SINGLE, SINGLE, SINGLE, "bfloat16")
    assert wire_of(SINGLE, how, None) == BF16
    assert wire_of(BF16, how, None) is None
    assert wire_of(SINGLE, how, HALF) == HALF
    assert wire_of(SINGLE, arithmetic_of(SINGLE, SINGLE, SINGLE), None) is None
    assert travelling_size([SINGLE, SINGLE], how, None) == 2
    assert travelling_size([SINGLE, BF16], arithmetic_of(SINGLE, BF16, SINGLE), None) == 4


def test_an_arithmetic_that_there_is_not_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"matmul: compute.*'tf23'.*tf32"):
        arithmetic_of(SINGLE, SINGLE, SINGLE, "tf23")
    with pytest.raises(
        DTypeError, match="compute='tf32' is for real floating-point numbers, got int64"
    ):
        arithmetic_of(np.dtype(np.int64), SINGLE, SINGLE, "tf32")
    with pytest.raises(DTypeError, match="got complex128"):
        arithmetic_of(np.dtype(complex), DOUBLE, np.dtype(complex), "float64")


@pytest.mark.parametrize("compute", COMPUTE)
def test_products_are_as_exact_as_said(compute: str) -> None:
    draw = np.random.default_rng(1)
    a, b = draw.standard_normal((37, 211)), draw.standard_normal((211, 23))
    single = a.astype(np.float32), b.astype(np.float32)
    exact = single[0].astype(float) @ single[1].astype(float)
    size = np.abs(single[0]).astype(float) @ np.abs(single[1])

    def one(comm: SimulatedCommunicator) -> None:
        team = Team(comm)
        parts = [parts_of(team, x, resolve(Rows(), x.shape, 3)) for x in single]
        made = matmul(*parts, compute=compute)
        u = 2.0**-24  # sums of 211 terms and the result are rounded to float32
        sums = 0.0 if compute == "float64" else 211 * u
        check_parts(made, exact, (2.1 * UNIT[compute] + sums + u) * size)
        if compute in ("bfloat16", "float16"):  # operands were sent in two bytes
            assert (
                sum(comm.exchange(team.total().sent_bytes))
                < 2 * (single[0].size + single[1].size) * 3
            )
            dtype = BF16 if compute == "bfloat16" else HALF
            rounded = [x.astype(dtype).astype(float) for x in single]
            check_parts(made, rounded[0] @ rounded[1], (211 + 1) * u * size)

    simulate(3, one)


# --- the library's product on a device ---------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_operands_are_given_to_the_library_as_they_lie(seed: int) -> None:
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    m, k, n = (rng.choice((1, 2, 5, 7, 16)) for _ in range(3))
    dtype = rng.choice([SINGLE, DOUBLE, HALF, BF16])
    how = arithmetic_of(dtype, dtype, dtype, "tf32" if dtype == SINGLE and seed % 2 else None)

    def operand(rows: int, columns: int) -> Any:
        """A matrix with rows, columns or steps of its own."""
        whole = draw.integers(-4, 5, (rows + 2, 2 * columns + 3)).astype(dtype).view(Ndarray)
        kind = rng.randrange(4)
        if kind == 0:
            return np.asarray(whole[1 : rows + 1, 2 : columns + 2]).view(Ndarray)
        if kind == 1:
            tall = draw.integers(-4, 5, (columns + 1, rows + 2)).astype(dtype).view(Ndarray)
            return tall[1:, 1 : rows + 1].T
        if kind == 2:
            return whole[:rows, ::2][:, :columns]
        return whole[:rows, :columns].copy()

    a, b = operand(m, k), operand(k, n)
    around = draw.integers(-4, 5, (n + 2, m + 3) if seed % 3 == 0 else (m + 2, n + 3))
    around = around.astype(rng.choice([how.sums, dtype])).view(Ndarray)
    into = around[1:-1, 1:-2].T if seed % 3 == 0 else around[1:-1, 1:-2]
    before, add = np.array(around), bool(seed % 2)
    expected = np.asarray(a, float) @ np.asarray(b, float) + add * np.asarray(into, float)
    team = Team(None, device())  # type: ignore[arg-type]  # no workers
    multiply(team, a, b, how, into, add)
    assert (np.asarray(into, float) == expected).all()  # whole numbers this small are exact
    into[...] = before[1:-1, 1:-2].T if seed % 3 == 0 else before[1:-1, 1:-2]
    assert (np.asarray(around) == before).all()  # nothing around was touched
    kinds = {"float64": 70, "tf32": 77}
    assert team.xp.cuda.cublas.computed == [kinds.get(how.name, 68)]
    assert (
        np.asarray(multiply(team, a, b, how), float) + add * np.asarray(into, float) == expected
    ).all()


@pytest.mark.parametrize("dtype", [BF16, HALF])
def test_a_half_result_on_a_device_is_rounded_once(dtype: Any) -> None:
    """The library may add parts of a sum as halves if it is not told otherwise."""
    draw, how = np.random.default_rng(3), arithmetic_of(dtype, dtype, dtype)
    a, b = (draw.standard_normal((48, 48)).astype(dtype).view(Ndarray) for _ in range(2))
    team = Team(None, device())  # type: ignore[arg-type]  # no workers
    out = np.zeros((48, 48), dtype).view(Ndarray)
    multiply(team, a, b, how, out)
    exact = np.asarray(a, float) @ np.asarray(b, float)
    half_step = 2.0 ** (np.floor(np.log2(np.abs(exact))) - (8 if dtype == BF16 else 11))
    assert (np.abs(np.asarray(out, float) - exact) <= half_step + 1e-5).all()
    assert team.xp.cuda.cublas.mode == 0  # others' calls are as before


def test_a_product_over_nothing_is_zero_on_a_device() -> None:
    team = Team(None, device())  # type: ignore[arg-type]
    how = arithmetic_of(SINGLE, SINGLE, SINGLE)
    a, b = (np.ones(shape, np.float32).view(Ndarray) for shape in ((3, 0), (0, 2)))
    assert np.asarray(multiply(team, a, b, how)).tolist() == [[0, 0]] * 3


def test_a_flag_that_a_library_raises_is_no_warning() -> None:
    """OpenBLAS 0.3.31 with AVX-512: [1, 5] x [5, n] of float32 reads elements that it throws away."""

    def flagged(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        np.subtract(SINGLE.type(np.inf), SINGLE.type(np.inf))
        return np.asarray(a @ b)

    how = arithmetic_of(SINGLE, SINGLE, SINGLE)
    a, b = np.ones((1, 5), np.float32), np.ones((2, 5), np.float32).T
    with pytest.warns(RuntimeWarning):
        flagged(a, b)
    assert multiply(Team(None, multiply=flagged), a, b, how).tolist() == [[5, 5]]


# --- blocks from the other workers' memory -----------------------------------------------------------


@pytest.mark.parametrize("seed", range(36))
def test_products_of_copied_blocks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "FIRST", 2)
    monkeypatch.setattr(cutting, "SHORTEST", 1 if seed % 2 else 512)
    monkeypatch.setattr(cutting, "MOST_TERMS", 1000)
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    workers = rng.randint(2, 5)
    m, k, n = (rng.choice(SIZES) for _ in range(3))
    dtype = rng.choice([SINGLE, DOUBLE, HALF, np.dtype(np.int64)])
    compute = rng.choice([None, "bfloat16"]) if dtype == SINGLE else None
    turn_a, turn_b = rng.random() < 0.3, rng.random() < 0.3
    a = draw.integers(-4, 5, (m, k)).astype(dtype)
    b = draw.integers(-4, 5, (k, n)).astype(dtype)
    lies_a = drawn_layout(rng, (k, m) if turn_a else (m, k), workers)
    lies_b = drawn_layout(rng, (n, k) if turn_b else (k, n), workers)
    target = drawn_layout(rng, (m, n), workers) if rng.random() < 0.7 else None
    how, board = arithmetic_of(dtype, dtype, dtype, compute), dict[tuple[int, int], Any]()

    def one(comm: SimulatedCommunicator) -> None:
        team = Team(comm, peers=SharedPeers(comm, board))
        left = parts_of(team, a.T if turn_a else a, lies_a)
        right = parts_of(team, b.T if turn_b else b, lies_b)
        left = left.transposed() if turn_a else left
        right = right.transposed() if turn_b else right
        for plan in candidates(left.layout, right.layout, target):
            check_parts(running.run(left, right, plan, dtype, how), a @ b)
            if plan.way == "fetch" and plan.whole:  # by columns of whole sums
                check_parts(running.run(left, right, replace(plan, pace=1.3), dtype, how), a @ b)
        total = team.total()
        sums = np.sum(comm.exchange([total.sent_bytes, total.planned_bytes]), axis=0)
        assert sums[0] <= sums[1]  # what nobody multiplies is not copied

    simulate(workers, one)


def test_a_product_begins_with_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows by rows: nothing of a worker's own is copied, and its own terms wait for nothing."""
    monkeypatch.setattr(cutting, "SHORTEST", 1)
    n, workers, board = 12, 3, dict[tuple[int, int], Any]()
    rows = resolve(Rows(), (n, n), workers)
    x = np.random.default_rng(0).integers(-4, 5, (n, n)).astype(float)
    plan = next(p for p in candidates(rows, rows, rows) if p.name == "C stays")

    def one(comm: SimulatedCommunicator) -> None:
        peers, done = SharedPeers(comm, board), list[int]()

        def multiplied(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            done.append(peers._done)
            made: np.ndarray = a @ b
            return made

        team = Team(comm, peers=peers, multiply=multiplied)
        parts = parts_of(team, x, rows)
        how = arithmetic_of(DOUBLE, DOUBLE, DOUBLE)
        check_parts(running.run(parts, parts, plan, DOUBLE, how), x @ x)
        assert done == [0, 1, 2]
        assert team.count.sent_bytes == team.count.planned_bytes == n * n * 8 * 2 // 3

    simulate(workers, one)


def test_sums_of_halves_are_not_cut_where_blocks_are() -> None:
    """Where pieces are too small, each product is over the whole axis, and the library rounds once."""
    n, workers, board = 12, 2, dict[tuple[int, int], Any]()
    lies = resolve(Blocks((6, 6), owners=cyclic(1, 2)), (n, n), workers)
    x = np.random.default_rng(0).integers(-4, 5, (n, n)).astype(BF16)
    plan = next(p for p in candidates(lies, lies, lies) if p.name == "B stays")
    assert not plan.whole
    depths = []

    def one(comm: SimulatedCommunicator) -> None:
        def multiplied(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            depths.append(a.shape[1])
            made: np.ndarray = a @ b
            return made

        team = Team(comm, peers=SharedPeers(comm, board), multiply=multiplied)
        parts = parts_of(team, x, lies)
        how = arithmetic_of(BF16, BF16, BF16)
        exact = x.astype(np.float32) @ x.astype(np.float32)
        check_parts(running.run(parts, parts, plan, BF16, how), exact.astype(BF16))
        assert team.count.sent_bytes == team.count.planned_bytes == n * n * 2 // 2

    simulate(workers, one)
    assert set(depths) == {n}


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_terms_of_halves_are_added_in_single_precision(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut as the blocks lie, own terms first; rounded once: 2048 + 1 of each worker is no float16."""
    monkeypatch.setattr(cutting, "SHORTEST", 1)
    n, workers, board = 12, 3, dict[tuple[int, int], Any]()
    half = as_dtype(name)
    rows = resolve(Rows(), (n, n), workers)
    a, b = np.ones((n, n)), np.zeros((n, n))
    b[:4] = 2048 / 4
    b[4:] = 1 / 8  # each worker's term but the first is 1/2, less than half a unit of 2048
    plan = next(p for p in candidates(rows, rows, rows) if p.name == "C stays")

    def one(comm: SimulatedCommunicator) -> None:
        peers, begun = SharedPeers(comm, board), list[int]()

        def multiplied(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            begun.append(peers._done)
            made: np.ndarray = x @ y
            return made

        team = Team(comm, peers=peers, multiply=multiplied)
        left, right = (parts_of(team, x.astype(half), rows) for x in (a, b))
        how = arithmetic_of(half, half, half)
        made = running.run(left, right, plan, half, how)
        assert made.dtype == half
        check_parts(made, (a @ b).astype(half))
        assert begun == [0, 1, 2]  # own terms wait for nothing

    simulate(workers, one)


def test_parts_of_blocks_are_not_copied_where_they_may_be_shared() -> None:
    """Columns that become two blocks of the same worker."""

    def one(comm: SimulatedCommunicator) -> bool:
        columns = resolve(Columns(), (12, 12), 2)
        parts = parts_of(Team(comm), np.arange(144.0).reshape(12, 12), columns)
        blocks = resolve(Blocks((6, 6), owners=cyclic(1, 2)), (12, 12), 2)
        made = remap(parts, blocks, share=True)
        check_parts(made, np.arange(144.0).reshape(12, 12))
        own = next(iter(parts.blocks.values()))
        return all(np.shares_memory(block, own) for block in made.blocks.values())

    assert simulate(2, one) == [True, True]


def test_chunks_are_begun_small_and_cover() -> None:
    assert cutting.chunks_of(0, 8192) == [(0, 1024), (1024, 3072), (3072, 8192)]
    assert cutting.chunks_of(5, 105) == [(5, 105)]
    assert cutting.chunks_of(0, 0) == [(0, 0)]
    # TF32 on four H200s: a chunk of twice the columns would come too late
    widths = [high - low for low, high in cutting.chunks_of(0, 8192, 1.29)]
    assert widths == [1024, 1024, 2048, 2048, 2048]


@pytest.mark.parametrize("pace", [0.3, 0.9, 1.0, 1.3, 2.0, 2.6, 5.0])
def test_chunks_come_before_the_products_of_those_before_have_ended(pace: float) -> None:
    for high in (1025, 3000, 8192, 16384, 40000):
        chunks = cutting.chunks_of(7, high, pace)
        assert [low for low, _ in chunks] == [7, *(last for _, last in chunks[:-1])]
        assert chunks[-1][1] == high
        came = done = 0.0
        for number, (low, last) in enumerate(chunks):
            came += last - low
            if number and pace > 1:  # else copies are what is waited for
                short = last - low <= 1.5 * cutting.FIRST
                assert short or came <= cutting._LATE * done + cutting.FIRST / 2, (high, chunks)
            done = max(came, done) + pace * (last - low)


@pytest.mark.parametrize("seed", range(25))
def test_layouts_change_by_copies(seed: int) -> None:
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    workers = rng.randint(2, 5)
    shape = rng.choice(SIZES), rng.choice(SIZES)
    x = draw.integers(-9, 10, shape).astype(rng.choice([np.float32, np.float64]))
    lies, turned = drawn_layout(rng, shape, workers), rng.random() < 0.3
    target = drawn_layout(rng, shape[::-1] if turned else shape, workers)
    board = dict[tuple[int, int], Any]()

    def one(comm: SimulatedCommunicator) -> None:
        team = Team(comm, peers=SharedPeers(comm, board))
        parts = parts_of(team, x, lies)
        parts = parts.transposed() if turned else parts
        expected = x.T if turned else x
        for dtype in (x.dtype, HALF, BF16, SINGLE, DOUBLE):
            for share in (False, True):
                made = remap(parts, target, np.dtype(dtype), share=share)
                check_parts(made, expected)
        again = remap(made, parts.layout, x.dtype)
        check_parts(again, expected)
        total = team.total()
        sums = np.sum(comm.exchange([total.sent_bytes, total.planned_bytes]), axis=0)
        assert sums[0] == sums[1]

    simulate(workers, one)


def test_where_blocks_lie_is_told_once_and_new_values_are_read() -> None:
    n, workers, board = 12, 3, dict[tuple[int, int], Any]()
    rows, columns = resolve(Rows(), (n, n), workers), resolve(Columns(), (n, n), workers)
    x = np.arange(n * n, dtype=float).reshape(n, n)

    def one(comm: SimulatedCommunicator) -> None:
        peers = SharedPeers(comm, board)
        team = Team(comm, peers=peers)
        parts = parts_of(team, x, rows)
        for turn in range(3):
            check_parts(remap(parts, columns), x + turn)
            for block in parts.blocks.values():
                block += 1
        assert peers._calls == 1

    simulate(workers, one)


def test_buffers_of_casts_are_kept_for_the_next_change_of_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n, workers, board = 12, 3, dict[tuple[int, int], Any]()
    rows, columns = resolve(Rows(), (n, n), workers), resolve(Columns(), (n, n), workers)
    x = np.arange(n * n, dtype=np.float32).reshape(n, n)

    def one(comm: SimulatedCommunicator) -> None:
        peers = SharedPeers(comm, board)
        team = Team(comm, peers=peers)
        parts = parts_of(team, x, rows)
        for turn in range(3):
            check_parts(remap(parts, columns, BF16), x + turn)
            for block in parts.blocks.values():
                block += 1
        assert peers._calls == 1
        check_parts(remap(parts, columns, HALF), x + 3)
        assert peers._calls == 2
        check_parts(remap(parts, columns, BF16), x + 3)
        assert peers._calls == 2 and len(team.buffers) == 2
        nbytes = 2 * (n // workers) * (n - n // workers)
        monkeypatch.setattr(team_module, "MOST_BUFFER_BYTES", nbytes)
        check_parts(remap(parts, rows, HALF), x + 3)
        check_parts(remap(parts.transposed(), rows, HALF), (x + 3).T)
        assert peers._calls == 3 and len(team.buffers) == 1

    simulate(workers, one)


@pytest.mark.parametrize("dtype", [SINGLE, BF16])
def test_workers_copy_from_different_ones_at_a_time(
    dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several that read from one share its link, while those of others idle."""
    n, workers, board = 12, 4, dict[tuple[int, int], Any]()
    rows, columns = resolve(Rows(), (n, n), workers), resolve(Columns(), (n, n), workers)
    x = np.arange(n * n, dtype=np.float32).reshape(n, n)
    monkeypatch.setattr(pulling, "_STRIPS", 1)

    def one(comm: SimulatedCommunicator) -> list[int]:
        peers, order = SharedPeers(comm, board), list[int]()
        copy = peers.copy

        def noted(out: np.ndarray, source: np.ndarray) -> None:
            owners = [r for r in range(workers) for a in board[1, r] if np.shares_memory(a, source)]
            order.extend(owners)
            copy(out, source)

        monkeypatch.setattr(peers, "copy", noted)
        check_parts(remap(parts_of(Team(comm, peers=peers), x, rows), columns, dtype), x)
        return order

    found = simulate(workers, one)
    assert [len(order) for order in found] == [workers - 1] * workers
    for at_once in zip(*found, strict=True):
        assert len(set(at_once)) == workers


def test_the_planner_knows_that_copies_hide() -> None:
    n, workers = 4096, 2
    rows = resolve(Rows(), (n, n), workers)
    plans = candidates(rows, rows, rows)
    stays = next(plan for plan in plans if plan.name == "C stays")
    rates = Rates(1e13, 1e13, 3e11, 0.0)
    apart = predict(stays, rows, rows, 4, rates)
    hidden = predict(stays, rows, rows, 4, Rates(1e13, 1e13, 3e11, 1e-5, overlapped=True))
    fetching = apart.seconds - apart.compute_seconds
    again = 2 * 4 * n * n / 2 / 4e12  # the second term's pass over the sums of the first
    assert hidden.seconds == pytest.approx(apart.compute_seconds + fetching / 8 + again)
    gpus = Rates(3.8e14, 3.8e14, 3e11, 2e-4, overlapped=True)  # TF32 on two H100s
    assert ranked(rows, rows, rows, 4, gpus)[0].plan.way == "fetch"


def test_whole_sums_are_made_where_copies_take_much_of_the_time() -> None:
    """Figures of H200s, of TF32: on two columns of whole sums at 8192, terms of own blocks first at 32768; on
    four copies take too much of the time.
    """
    rates = Rates(3.8e14, 3.8e14, 3.6e11, 2e-5, overlapped=True)
    paces = {}
    for n in (1024, 8192, 32768):
        blocks = Blocks((n // 2, n // 2), owners=cyclic(2, 2))
        for workers, recipe in (
            (2, Rows()),
            (2, Columns()),
            (4, Rows()),
            (4, Columns()),
            (4, blocks),
        ):
            lies = resolve(recipe, (n, n), workers)
            best = ranked(lies, lies, lies, 4, rates)[0].plan
            assert best.name == "C stays"
            paces[n, workers, type(recipe).__name__] = best.pace
            assert not best.pace or cutting.cut_as_they_lie(lies, lies, best) is None
    assert [paces.pop((8192, 2, name)) for name in ("Rows", "Columns")] == [3.88, 3.88]
    assert not any(paces.values())


@pytest.mark.parametrize(
    ("n", "workers", "flops", "itemsize", "taken"),
    [
        (8192, 2, 3.8e14, 4, True),  # TF32: 1.69 ms in place of 1.89 on two H200s
        (8192, 2, 7.4e14, 2, True),  # bfloat16: 0.83 in place of 0.88
        (16384, 2, 3.7e14, 4, False),
        (
            8192,
            4,
            5.6e13,
            8,
            False,
        ),  # float64 loses nothing by short sums, and would wait for a chunk
        (8192, 4, 5.1e13, 4, False),
        (2048, 4, 3.8e14, 4, False),
    ],
)
def test_whole_sums_have_to_save_a_twentieth(
    n: int, workers: int, flops: float, itemsize: int, taken: bool
) -> None:
    rates = Rates(flops, flops, 3.6e11, 2e-5, overlapped=True)
    lies = resolve(Rows(), (n, n), workers)
    for one in ranked(lies, lies, lies, itemsize, rates):
        if one.plan.name == "C stays":
            assert bool(one.plan.pace) is taken


def test_whoever_has_nothing_waits_for_all() -> None:
    """The other workers of a matrix on one of them; a product of it is not predicted to be faster on two."""
    rates = Rates(3.9e14, 3.9e14, 3.6e11, 2e-5, 5e-6, 1e-5, True)
    first = resolve(Rows(on=(0,)), (4096, 4096), 4)
    best = ranked(first, first, None, 4, rates)
    assert best[0].active == 1
    shared = next(one for one in best if one.active == 2)
    assert shared.seconds > shared.compute_seconds + 100e6 / 3.6e11  # A, and half of B


def test_blocks_come_in_the_order_in_which_they_lie() -> None:
    """Copy engines do not transpose."""
    n, workers, board = 8, 2, dict[tuple[int, int], Any]()
    rows = resolve(Rows(), (n, n), workers)
    x = np.arange(n * n, dtype=float).reshape(n, n)

    def one(comm: SimulatedCommunicator) -> None:
        team = Team(comm, peers=SharedPeers(comm, board))
        turned = parts_of(team, x, rows).transposed()
        fetch = pulling.Fetch(turned, resolve(Rows(), (n, n), workers))
        assert all(block.flags.f_contiguous for block in fetch.blocks.values())

    simulate(workers, one)


def test_blocks_of_blocks_are_shared() -> None:
    """Owners that take turns, so that a worker gives several blocks."""
    n, workers, board = 16, 4, dict[tuple[int, int], Any]()
    lies = resolve(Blocks((3, 5)), (n, n), workers)
    x = np.random.default_rng(0).integers(-4, 5, (n, n)).astype(np.float32)

    def one(comm: SimulatedCommunicator) -> None:
        team = Team(comm, peers=SharedPeers(comm, board))
        parts = parts_of(team, x, lies)
        check_parts(matmul(parts, parts.transposed(), lies, Rates(overlapped=True)), x @ x.T)

    simulate(workers, one)
