"""Large reductions to few numbers: made in blocks, by sizes only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.plan.memory import arena_of
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.ops.along_axes import stages
from magmadnn.runtime import Executable
from magmadnn.runtime.threads import thread_count
from tests.runtime.cuda.devices import on
from tests.runtime.cuda.emulator import needs_compiler

RNG = np.random.default_rng(7)
# shape, reduced axes (None: all), blocks of the first stage at least
CASES: list[tuple[tuple[int, ...], Any, int]] = [
    ((1031, 1019), None, 1031),
    ((1 << 20,), None, 240),
    ((1048583,), None, 240),  # a prime: what is left over is combined last
    ((349529, 3), None, 240),  # a prime number of rows that are too short for walks of their own
    ((3, 16, 128, 256), None, 48),
    ((1, 1 << 20, 1), None, 240),
    ((5, 3 * 1 << 16, 2), 1, 5 * 48),
    ((3, 211, 1657), -1, 3),
    ((3, 1657 * 211, 1), 1, 3),
    ((2, 64, 96, 128), (1, 2), 128),
    ((2, 64, 3, 4099), (1, 3), 1),  # kept axes between
    ((2, 3, 5, 65536), (1, 3), 1),
    ((3, 1031, 512, 2), (0, 2), 1),
]


def made_of(x: Any, name: str, axis: Any, keepdims: bool = False) -> Any:
    return getattr(ops, name)(x, axis=axis, keepdims=keepdims)


@pytest.mark.parametrize(("shape", "axis", "blocks"), CASES)
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod", "mean"])
def test_results_and_blocks(shape: tuple[int, ...], axis: Any, blocks: int, name: str) -> None:
    values = RNG.uniform(0.5, 1.5, shape)
    if name == "prod":
        values = np.exp2((values - 1) / 512)  # products of a million such numbers are representable
    x = values.astype(np.float32)
    node = made_of(md.variable("x", x), name, axis).node
    run = Executable([node], executor="native")
    (found,) = run.run({})
    exact = getattr(np, name)(x.astype(np.float64), axis=axis)
    count = x.size // max(exact.size, 1)
    bound = {"sum": count, "mean": count, "prod": 2 * count}.get(name, 0) * 2.0**-24
    np.testing.assert_allclose(found, exact, rtol=bound, atol=0)
    assert pieces_of(run.native.plan) >= blocks
    before, bits = thread_count(), []
    try:
        for threads in (1, 2, 3):
            md.set_threads(threads)
            bits.append(Executable([node], executor="native").run({})[0].tobytes())
    finally:
        md.set_threads(before)
    assert len(set(bits)) == 1


def pieces_of(plan: NativePlan) -> int:
    """Walks of a step that do not depend on each other, or partial results of one, at most."""
    partial = [room.nbytes // room.node.dtype.itemsize for room in arena_of(plan, {}).rooms]
    return max([*(md_rows(work.region) for work in plan.work), *partial])


def md_rows(region: Any) -> int:
    """Walks of a step that do not depend on each other."""
    walks = int(np.prod(region.rows, dtype=np.int64))
    return walks * int(region.columns) if region.kind is RegionKind.COLUMNS else walks


@pytest.mark.parametrize("keepdims", [False, True])
def test_axes_of_one_element_stay_or_go(keepdims: bool) -> None:
    x = RNG.normal(size=(1, 1024, 1, 1024, 1)).astype(np.float32)
    for axis in (None, (1, 3), (0, 1, 2, 3), (1, 2, 3, 4)):
        node = made_of(md.variable("x", x), "sum", axis, keepdims).node
        (found,) = Executable([node], executor="native").run({})
        exact = x.astype(np.float64).sum(axis, keepdims=keepdims)
        assert found.shape == exact.shape == node.shape
        np.testing.assert_allclose(found, exact, atol=np.abs(x).sum() * 2.0**-20)


def test_what_it_is_made_of_is_computed_as_it_is_read() -> None:
    x = md.variable("x", RNG.normal(size=(1021, 1031)).astype(np.float32))
    run = Executable([ops.sum(ops.square(x) * 0.5).node], executor="native")
    (found,) = run.run({})
    stored = [node for work in run.native.plan.work for node in work.needed]
    assert max(int(np.prod(n.shape)) for n in stored) <= 1031
    exact = (x.value.numpy().astype(np.float64) ** 2).sum() / 2
    np.testing.assert_allclose(found, exact, rtol=1e-5)


def test_small_ones_and_unknown_sizes_are_as_they_were() -> None:
    small = ops.sum(md.variable("x", np.ones((1023, 1024), np.float32)))
    x = md.placeholder("x", ("batch", 4096))
    for made in (small, ops.sum(x)):
        assert stages.in_two_stages("sum", made.node.inputs[0], (0, 1)) is None
    halves = md.variable("h", np.ones((2048, 1024), np.float32).astype("float16"))
    assert stages.in_two_stages("sum", halves.node, (0, 1)) is None


def test_nan_and_infinity_stay() -> None:
    for bad in (np.nan, np.inf):
        for place in (0, 1048581, 1048582):
            x = np.ones(1048583, np.float32)
            x[place] = bad
            for name in ("sum", "max"):
                node = made_of(md.variable("x", x), name, None).node
                (found,) = Executable([node], executor="native").run({})
                np.testing.assert_equal(found, np.float32(bad))


@needs_compiler
@pytest.mark.parametrize(("shape", "axis", "blocks"), CASES[:3])
def test_on_a_device_many_blocks_take_part(shape: tuple[int, ...], axis: Any, blocks: int) -> None:
    x = RNG.uniform(0.5, 1.5, shape).astype(np.float32)
    node = made_of(md.variable("x", x), "sum", axis).node
    with on("emulated"):
        run = Executable([node], executor="native", device="cuda")
        (found,) = run.run({})
    np.testing.assert_allclose(found, x.astype(np.float64).sum(axis), rtol=1e-4)
    assert pieces_of(run.cuda.plan) >= 128
