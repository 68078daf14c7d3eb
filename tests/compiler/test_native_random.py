"""Random graphs: the native executor against the reference, forward, gradients and updates."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.native import Instance

from .native_draw import draw
from .native_graphs import Case, fault, shrunk

BLOCK = 10  # graphs of one test
drawn = functools.lru_cache(maxsize=130)(draw)


def check(seed: int) -> None:
    case = drawn(seed)
    if (why := fault(case)) is not None:
        small = shrunk(case)
        pytest.fail(f"seed {seed}: {why}\nshrunk: {fault(small)}\n{small.text()}")


@pytest.mark.parametrize("block", range(3))
def test_native_computes_what_the_reference_does(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        check(seed)


@pytest.mark.long
@pytest.mark.parametrize("block", range(3, 200))
def test_native_computes_what_the_reference_does_on_many(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        check(seed)


def bits(case: Case, threads: int, runs: int) -> list[list[np.ndarray]]:
    """What each of several runs gives: of outputs and of the new values of variables."""
    program = Executable(case.outputs, case.updates, training=True, executor="native")
    start = {t: np.array(t.value.read()) for t, _ in case.updates}
    made = []
    laid_out = Instance(native_plan(case.program), program.sizes(case.feeds[0]), threads)
    for _ in range(runs):
        for target, value in start.items():
            target.value.write(value)
        found = laid_out.run(case.feeds[0], guard=False)
        made.append([*(found or []), *(np.array(t.value.read()) for t in start)])
    for target, value in start.items():
        target.value.write(value)
    return made


def check_bits(seed: int, runs: int) -> None:
    case = drawn(seed)
    wanted = bits(case, 1, 1)[0]
    for threads, times in ((1, runs), (2, 2), (3, 2)):
        for found in bits(case, threads, times):
            for a, b in zip(wanted, found, strict=True):
                assert a.tobytes() == b.tobytes(), (seed, threads)


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_bits_are_the_same_in_20_runs_and_on_any_number_of_threads(seed: int) -> None:
    check_bits(seed, 20)


@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
def test_bits_are_the_same_on_many(block: int) -> None:
    for seed in range(100 + block * BLOCK, 100 + (block + 1) * BLOCK):
        check_bits(seed, 20)


def test_cases_cover_what_they_should() -> None:
    cases = [drawn(seed) for seed in range(130)]
    nodes = [n for case in cases for n in case.program.nodes()]
    names = {n.op.name for n in nodes}
    wanted = {"matmul", "_einsum", "softmax", "log_softmax", "take_class", "one_hot", "cumsum", "take",
              "scatter_add",
              "reshape", "transpose", "_slice", "concat", "pad", "broadcast_to", "where", "cast",
              "sum", "max", "min", "argmax", "less", "random_uniform", "_scan", "cholesky",
              "_windows"}  # fmt: skip
    assert wanted <= names
    assert {"float32", "float64", "int64", "bool"} <= {n.dtype.name for n in nodes}
    assert sum(len(case.updates) for case in cases) > 40
    assert sum(len(case.feeds) > 1 for case in cases) > 40
    plans = [native_plan(case.program) for case in cases]
    kernels = [w.lowered.kernel for plan in plans for w in plan.work if w.lowered is not None]
    products = [kernel for kernel in kernels if isinstance(kernel, Gemm)]
    assert any(one.joined_a for one in products) and any(one.joined_b for one in products)


def test_a_fault_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong result of one op is reduced to little more than that op."""
    run = Executable.run
    seed, name = 11, "multiply"
    case = draw(seed)

    def wrong(self: Executable, feeds, watch=None, guard=False):  # type: ignore[no-untyped-def]
        results = run(self, feeds, watch, guard)
        found = any(n.op.name == name for n in self.program.nodes())
        return [r + 1 for r in results] if self.executor == "native" and found else results

    monkeypatch.setattr(Executable, "run", wrong)
    while {name, "_scan"} & {n.op.name for n in case.program.nodes()} != {name}:
        seed += 1
        case = draw(seed)
    small = shrunk(case)
    assert fault(small) is not None
    assert sum(bool(n.inputs) for n in small.program.nodes()) <= 3
