"""Ways to compute a square product on several GPUs, and a change of layout, with and without graphs.

    magmadnn launch -n 2 benchmarks/dmath/gpu_candidates.py [--check | --times] [--sizes 8192 16384]

Each rank is a worker, with no client. First bits with graphs are compared with those without, for every way
and for changes of layout: `--check` does only that, `--times` leaves it out. Then times, the best of several
repetitions of some calls, with graphs and without in turns, since clocks fall while a GPU is busy; the share
of one GPU's time over P times that of P GPUs; and which way the planner takes. All multiply random numbers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn.dmath import Blocks, Columns, Layout, Rows, cyclic
from magmadnn.dmath.arrays.kept import Kept
from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.remapping import remap
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.devices import on_devices
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products import running
from magmadnn.dmath.products.arithmetic import Arithmetic, arithmetic_of, multiply
from magmadnn.dmath.products.choosing import candidates, ranked
from magmadnn.dmath.products.multiplying import matmul
from magmadnn.dmath.products.plans import ProductPlan
from magmadnn.dmath.products.rates import measured
from magmadnn.memory.dtypes import as_dtype

REPEATS = 6
KINDS = {"TF32": ("float32", "tf32"), "bf16": ("bfloat16", None)}
WAYS = ("C stays", "A stays", "B stays", "ring of A", "ring of B", "ring of sums")


def say(team: Team, *words: object) -> None:
    if team.rank == 0:
        print(*words, flush=True)


def drawn(team: Team, shape: tuple[int, ...], storage: str, seed: int) -> Any:
    """Random numbers: a GPU that multiplies ones takes less power, and is up to a fifth faster."""
    team.xp.random.seed(seed)
    made = team.xp.empty(shape, as_dtype(storage))
    made[...] = team.xp.random.standard_normal(shape, dtype=np.float32)
    return made


def parts_of(team: Team, n: int, layout: Layout, storage: str, seed: int) -> Parts:
    """A matrix of random numbers."""
    blocks = {}
    for number in layout.held[team.rank]:
        rows, columns = (high - low for low, high in layout.boxes[number])
        blocks[number] = drawn(team, (rows, columns), storage, 1000 * seed + number)
    return Parts(team, layout, as_dtype(storage), blocks)


def ways(a: Parts, b: Parts, target: Layout) -> dict[str, ProductPlan]:
    found = {plan.name: plan for plan in candidates(a.layout, b.layout, target)}
    return {name: found[name] for name in WAYS if name in found}


def arithmetic(kind: str) -> tuple[np.dtype[Any], Arithmetic]:
    storage, compute = KINDS[kind]
    dtype = as_dtype(storage)
    return dtype, arithmetic_of(dtype, dtype, dtype, compute)


def in_bytes(team: Team, block: Any) -> Any:
    return team.xp.ascontiguousarray(block).view(np.uint8)


def alike(team: Team, name: str, call: Callable[[], Parts]) -> None:
    """Bits with graphs and without, on all ranks; and that the graph was launched."""
    team.replays.enabled = False
    plain = call()
    team.finish()
    kept = [block.copy() for block in plain.blocks.values()]
    del plain
    team.replays.enabled = True
    before = team.total()
    for _ in range(6):
        made = call()
        same = all(
            bool((in_bytes(team, x) == in_bytes(team, y)).all())
            for x, y in zip(made.blocks.values(), kept, strict=True)
        )
        del made
        assert same, (name, team.rank, "bits with graphs are others")
    after = team.total()
    told = (
        after.graphs_made - before.graphs_made, after.graph_launches - before.graph_launches,
        after.graph_failures - before.graph_failures,
    )  # fmt: skip
    everyone = team.comm.exchange(list(told))
    say(team, f"{name:44} same bits; graphs, launches, failures by rank {everyone}")
    assert all(launches > 0 and not failures for _, launches, failures in everyone), name


def check(team: Team, n: int = 2310) -> None:
    rows = resolve(Rows(), (n, n), team.size)
    columns = resolve(Columns(), (n, n), team.size)
    blocks = resolve(Blocks((500, 700)), (n, n), team.size)
    for kind, (storage, _) in KINDS.items():
        dtype, how = arithmetic(kind)
        for title, lies, target in (
            ("rows", rows, rows), ("columns", columns, columns), ("blocks", blocks, columns),
            ("blocks to rows", blocks, rows),
        ):  # fmt: skip
            a, b = (parts_of(team, n, lies, storage, seed) for seed in (1, 2))
            for name, plan in ways(a, b, target).items():
                product = partial(running.run, a, b, plan, dtype, how)
                alike(team, f"{kind} {title}, {name}", product)
    x = parts_of(team, n, rows, "float32", 1)
    for dtype in ("float32", "bfloat16", "float16"):
        for name, to in (("columns", columns), ("blocks", blocks)):
            alike(team, f"rows to {name} as {dtype}", partial(remap, x, to, as_dtype(dtype)))
    team.kept = Kept(1 << 30)
    w = parts_of(team, n, rows, "float32", 2)

    def forward_and_back() -> Parts:
        w.data.version += 1
        matmul(x, w, rows, compute="tf32", keep=True)
        before = team.total().sent_bytes
        made = matmul(x, w.transposed(), rows, compute="tf32", keep=True)
        assert team.total().sent_bytes == before, "blocks that were kept came again"
        return made

    alike(team, "kept blocks of W for a product with W'", forward_and_back)
    team.kept = None


def repetition(team: Team, call: Callable[[], object], count: int) -> float:
    """Seconds of a call, of several that are handed over together; of this rank."""
    team.comm.exchange(0)
    begun = time.perf_counter()
    for _ in range(count):
        call()
    team.finish()
    return (time.perf_counter() - begun) / count


def best(
    team: Team, call: Callable[[], object], expected: float, turns: tuple[bool, ...] = (True,)
) -> list[float]:
    """Seconds of a call with or without graphs, in turns, whose order changes; those of the slowest rank."""
    for on in turns:
        team.replays.enabled = on
        for _ in range(4):
            call()
    team.finish()
    count = max(2, min(40, int(0.03 / expected)))
    times: dict[bool, list[float]] = {on: [] for on in turns}
    for number in range(REPEATS):
        for on in turns if number % 2 else turns[::-1]:
            team.replays.enabled = on
            times[on].append(repetition(team, call, count))
    told = [team.comm.exchange(times[on]) for on in turns]
    return [min(max(one) for one in zip(*ranks, strict=True)) for ranks in told]


def both(team: Team, call: Callable[[], object], expected: float) -> tuple[float, float]:
    """Seconds without graphs and with them."""
    without, graphs = best(team, call, expected, (False, True))
    return without, graphs


def alone(team: Team, n: int, kind: str) -> float:
    """Seconds of the product on one GPU, timed as those on several are, while the others do nothing."""
    dtype, how = arithmetic(kind)
    a, b = (drawn(team, (n, n), KINDS[kind][0], seed) for seed in (1, 2))
    out = team.xp.empty((n, n), dtype)

    def call() -> None:
        if team.rank == 0:
            multiply(team, a, b, how, out)

    return best(team, call, 2 * n**3 / 4e14)[0]


def products(team: Team, sizes: list[int]) -> list[str]:
    lines = [f"{'':26} {'one GPU':>9}  {'way':14} {'no graphs':>9}  {'graphs':>9}  share"]
    grid = (2, team.size // 2) if team.size > 2 else (1, 2)
    for kind in KINDS:
        dtype, how = arithmetic(kind)
        rates = measured(team, how)
        lines.append(f"{kind}: {rates}")
        for n in sizes:
            one = alone(team, n, kind)
            half = Blocks((n // 2, n // 2), owners=cyclic(*grid))
            for title, recipe in (("rows", Rows()), ("blocks", half)):
                lies = resolve(recipe, (n, n), team.size)
                a, b = (parts_of(team, n, lies, KINDS[kind][0], seed) for seed in (1, 2))
                found = {}
                for name, plan in ways(a, b, lies).items():
                    product = partial(running.run, a, b, plan, dtype, how)
                    found[name] = both(team, product, one / team.size)
                taken = ranked(lies, lies, lies, dtype.itemsize, rates)[0].plan.name
                least = min(found, key=lambda name: min(found[name]))
                for name, (plain, graph) in found.items():
                    lines.append(
                        f"{kind:6} {n:6d} {title:12} {one * 1e3:6.3f} ms  {name:14} {plain * 1e3:6.3f} ms  "
                        f"{graph * 1e3:6.3f} ms  {one / min(plain, graph) / team.size:4.0%}"
                        f"{'  <- best' if name == least else ''}{'  planner' if name == taken else ''}"
                    )
                del a, b
            team.narrowed.clear()
            team.buffers.clear()
            team.replays.clear()
            team.xp.get_default_memory_pool().free_all_blocks()
    return lines


def link(team: Team, size: int = 1 << 29) -> float:
    """Bytes a second that come to each GPU, where each copies from the one before it."""
    peers = team.peers
    assert peers is not None
    own, into = (team.xp.zeros(size, np.uint8) for _ in range(2))
    theirs = peers.share([own])[team.rank - 1][0]

    def call() -> None:
        peers.begin()
        peers.copy(into, theirs)
        peers.end()

    return size / best(team, call, size / 3e11)[0]


def remaps(team: Team, sizes: list[int]) -> list[str]:
    rate = link(team)
    lines = [
        f"copies of 512 MB, each GPU from the one before it: {rate / 1e9:.0f} GB/s a direction"
    ]
    for n in sizes:
        rows, columns = (resolve(one, (n, n), team.size) for one in (Rows(), Columns()))
        x = parts_of(team, n, rows, "float32", 1)
        for dtype in ("float32", "bfloat16"):
            before = team.total().sent_bytes
            remap(x, columns, as_dtype(dtype))
            sent = team.total().sent_bytes - before
            change = partial(remap, x, columns, as_dtype(dtype))
            plain, graph = both(team, change, sent / 2e11 + 1e-4)
            lines.append(
                f"rows to columns, {4 * n * n / 1e9:7.3f} GB to {dtype:8}: no graphs {plain * 1e3:7.3f} ms, "
                f"graphs {graph * 1e3:7.3f} ms, {sent / graph / 1e9:4.0f} GB/s on the wire, "
                f"{sent / graph / rate:4.0%}"
            )
        del x
        team.buffers.clear()
        team.replays.clear()
        team.xp.get_default_memory_pool().free_all_blocks()
    return lines


def kept(team: Team, n: int) -> str:
    rows = resolve(Rows(), (n, n), team.size)
    x, w = (parts_of(team, n, rows, "float32", seed) for seed in (1, 2))
    team.kept = Kept(1 << 30)

    def call() -> None:
        w.data.version += 1
        matmul(x, w, rows, compute="tf32", keep=True)
        matmul(x, w.transposed(), rows, compute="tf32", keep=True)

    plain, graph = both(team, call, 1e-3)
    team.kept = None
    return f"X W and X W' with W kept, TF32 {n}: no graphs {plain * 1e3:.3f} ms, graphs {graph * 1e3:.3f} ms"


def main() -> None:
    parser = argparse.ArgumentParser()
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--check", action="store_true", help="compare bits only")
    only.add_argument("--times", action="store_true", help="do not compare bits")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8192, 16384])
    arguments = parser.parse_args()
    team = on_devices(Team(md.comm.world()))
    if team.peers is None:
        say(team, "the GPUs do not read each other's memory")
        return
    if not arguments.times:
        check(team)
    if arguments.check:
        return
    lines = products(team, [2048, *arguments.sizes])
    lines += [kept(team, 2048), *remaps(team, [1024, 32768])]
    say(team, "\n".join(lines))


if __name__ == "__main__":
    main()
