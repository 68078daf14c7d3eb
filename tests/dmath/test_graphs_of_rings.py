"""Rings, changes of layout and products with kept blocks as graphs, on the stand-ins of `test_graphs.py`."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn.backends.cuda import device_count
from magmadnn.dmath import Blocks, Columns, Layout, Rows
from magmadnn.dmath.arrays import casting
from magmadnn.dmath.arrays.kept import Kept
from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products import cutting, running
from magmadnn.dmath.products.arithmetic import arithmetic_of
from magmadnn.dmath.products.choosing import candidates
from magmadnn.dmath.products.multiplying import matmul
from tests.dmath.placed import placed_parts
from tests.dmath.test_graphs import KINDS, N, check, matrix, on_workers

BF16 = np.dtype(ml_dtypes.bfloat16)
RINGS = {
    "ring of B": (Blocks((6, 10)), Rows()),
    "ring of A": (Rows(), Columns()),
    "ring of sums": (Rows(), Columns()),
    "ring of sums to blocks": (Blocks((7, 9)), Blocks((12, 12))),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "SHORTEST", 4)
    monkeypatch.setattr(cutting, "FIRST", 4)
    monkeypatch.setattr(casting, "_fits", lambda into, piece: False)  # there is no compiler


def ring(
    name: str, a: Parts, b: Parts, target: Layout, kind: str = "float32", keep: bool = False
) -> Parts:
    _, compute, result = KINDS[kind]
    how = arithmetic_of(a.dtype, b.dtype, np.dtype(result), compute)
    plan = next(p for p in candidates(a.layout, b.layout, target) if p.name == name)
    return running.run(a, b, plan, np.dtype(result), how, keep=keep)


def bits(made: Parts) -> bytes:
    return b"".join(np.asarray(block).tobytes() for block in made.blocks.values())


def counts(team: Team) -> tuple[tuple[int, ...], tuple[int, ...]]:
    total = team.total()
    graphs = total.graphs_made, total.graph_launches, total.graph_failures
    return graphs, (total.sent_bytes, total.messages, total.planned_bytes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RINGS)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_ring_is_one_graph_and_bits_are_the_same(name: str, kind: str, workers: int) -> None:
    storage = np.dtype(getattr(ml_dtypes, KINDS[kind][0], KINDS[kind][0]))
    lies, to = (resolve(one, (N, N), workers) for one in RINGS[name])
    name = name.removesuffix(" to blocks")
    x, y = (matrix(seed, storage) for seed in (1, 2))

    def one(team: Team) -> Any:
        team.peers.late = kind in ("float32", "bfloat16")  # type: ignore[union-attr]
        a, b, found = placed_parts(team, x, lies), placed_parts(team, y, lies), []
        for turn in range(5):
            made = ring(name, a, b, to, kind)
            if kind in ("float32", "TF32", "float64"):
                check(made, (x.astype(np.float64) + turn) @ y.astype(np.float64))
            found.append(bits(made))
            del made
            for block in a.blocks.values():
                block[...] = np.asarray(block) + np.asarray(1, storage)
        return found, counts(team)

    with_graphs, without = on_workers(workers, one), on_workers(workers, one, None)
    for (found, (graphs, sent)), (same, (none, plain)) in zip(with_graphs, without, strict=True):
        assert found == same and sent == plain and none == (0, 0, 0)
        made, launches, failures = graphs
        assert failures == 0 and made >= 1 and launches >= 3
        assert sent[0] == sent[2] > 0


def test_a_ring_has_memory_for_two_blocks_that_come() -> None:
    """Of five workers; the last pair of blocks is read while a buffer gets the next one."""
    rows = resolve(Rows(), (N, N), 5)
    x, y = matrix(1), matrix(2)

    def one(team: Team) -> int:
        a, b, sizes = placed_parts(team, x, rows), placed_parts(team, y, rows), list[int]()
        plain = team.xp.empty

        def empty(shape: Any, dtype: Any) -> Any:
            sizes.append(int(np.prod(shape)) * np.dtype(dtype).itemsize)
            return plain(shape, dtype)

        team.xp.empty = empty
        check(ring("ring of B", a, b, rows), x @ y)
        return max(sizes)

    assert max(on_workers(5, one)) <= 2 * 5 * N * 4 + 2 * 256


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BF16])
@pytest.mark.parametrize("share", [True, False])
def test_a_change_of_layout_is_one_graph(dtype: np.dtype[Any], share: bool) -> None:
    rows = resolve(Rows(), (N, N), 4)
    targets = [resolve(one, (N, N), 4) for one in (Columns(), Blocks((7, 9)))]
    x = matrix(1)

    def one(team: Team) -> Any:
        team.peers.late = share  # type: ignore[union-attr]
        parts, found = placed_parts(team, x, rows), []
        for turn in range(6):
            for target in targets:
                for view, whole in ((parts, x + turn), (parts.transposed(), (x + turn).T)):
                    made = remap(view, target, dtype, share=share)
                    check(made, whole)
                    found.append(bits(made))
                    del made
            for block in parts.blocks.values():
                block[...] = np.asarray(block) + np.float32(1)
        return found, counts(team)

    with_graphs, without = on_workers(4, one), on_workers(4, one, None)
    for (found, (graphs, sent)), (same, (_, plain)) in zip(with_graphs, without, strict=True):
        assert found == same and sent == plain
        assert graphs[2] == 0 and graphs[0] >= 3 and graphs[1] >= 12


def test_an_array_made_anew_on_another_worker_is_read_where_it_lies() -> None:
    """Worker 0's block lies where the old one did, worker 1's does not."""
    rows, columns = (resolve(one, (N, N), 2) for one in (Rows(), Columns()))
    x, z = matrix(1), matrix(3)

    def one(team: Team) -> bool:
        parts = placed_parts(team, x, rows)
        for _ in range(3):
            check(remap(parts, columns), x)
        old = parts.blocks[team.rank].data.ptr
        del parts
        gc.collect()
        taken = team.xp.empty((N // 2, N), np.float32) if team.rank else None
        parts = placed_parts(team, z, rows)
        if taken is not None:
            taken[...] = -77
        for _ in range(3):
            check(remap(parts, columns), z)
        return parts.blocks[team.rank].data.ptr == old

    assert on_workers(2, one) == [True, False]


@pytest.mark.parametrize("kind", ["float32", "TF32", "bfloat16", "float32 in bfloat16"])
@pytest.mark.parametrize("way", ["C stays", "ring of B"])
def test_kept_blocks_serve_the_next_products_which_are_graphs(kind: str, way: str) -> None:
    """Forward with W, backward with W transposed: nothing of W comes again until it is written."""
    storage = np.dtype(getattr(ml_dtypes, KINDS[kind][0], KINDS[kind][0]))
    rows = resolve(Rows(), (N, N), 3)
    x, w = (matrix(seed, storage) for seed in (1, 2))

    def one(team: Team) -> Any:
        team.kept = Kept(1 << 20)
        left, weight, found, sent = placed_parts(team, x, rows), placed_parts(team, w, rows), [], []
        for turn in range(5):
            made = ring(way, left, weight, rows, kind, keep=True)
            expected = x.astype(float) @ (w.astype(float) + turn)
            before = team.total().sent_bytes
            _, compute, result = KINDS[kind]
            back = matmul(
                left, weight.transposed(), rows, dtype=np.dtype(result), compute=compute, keep=True
            )
            sent.append(team.total().sent_bytes - before)
            if kind != "bfloat16":
                check(made, expected)
                check(back, x.astype(float) @ (w.astype(float) + turn).T)
            found += [bits(made), bits(back)]
            del made, back
            gc.collect()
            for block in weight.blocks.values():
                block[...] = np.asarray(block) + np.asarray(1, storage)
            weight.data.version += 1
        return found, sent, counts(team)

    with_graphs, without = on_workers(3, one), on_workers(3, one, None)
    for (found, sent, (graphs, _)), (same, plain, _) in zip(with_graphs, without, strict=True):
        assert found == same and sent == plain == [0] * 5
        assert graphs[2] == 0 and graphs[0] >= 2 and graphs[1] >= 4


def test_kept_blocks_that_were_rounded_do_not_serve_exact_products() -> None:
    rows = resolve(Rows(), (N, N), 2)
    x = matrix(1)
    w = matrix(2) + np.float32(2.0**-12)

    def one(team: Team) -> None:
        team.kept = Kept(1 << 20)
        left, weight = placed_parts(team, x, rows), placed_parts(team, w, rows)
        for _ in range(2):
            matmul(left, weight, rows, compute="bfloat16", keep=True)
        before = team.total().sent_bytes
        made = matmul(left, weight, rows, keep=True)
        assert team.total().sent_bytes > before
        check(made, x.astype(float) @ w.astype(float))
        before = team.total().sent_bytes
        for compute in (None, "bfloat16"):
            matmul(left, weight, rows, compute=compute)
        assert team.total().sent_bytes == before

    on_workers(2, one)


@pytest.mark.gpu
@pytest.mark.skipif(device_count() < 2, reason="needs two GPUs")
def test_rings_changes_of_layout_and_kept_blocks_on_two_gpus() -> None:
    """Bits with graphs are those without, for each way to compute a product."""
    root = Path(__file__).parents[2]
    script = root / "benchmarks" / "dmath" / "gpu_candidates.py"
    command = [sys.executable, "-m", "magmadnn", "launch", "-n", "2", str(script), "--check"]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("same bits") > 40
