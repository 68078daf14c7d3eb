"""Products of factors that lie in memory as more than two axes: windows, slices, reordered axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.layout import Layouts
from magmadnn.compiler.llvm.gemm.blocking import for_joined_rows
from magmadnn.compiler.llvm.gemm.gemm import tile_for
from magmadnn.compiler.llvm.ir.target import Target
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.ops.images.windows import windows
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.native import Instance
from magmadnn.tensor import Operation
from tests.compiler.sample_programs import BATCH

RNG = np.random.default_rng(16)
Shape = tuple[Any, ...]


def factor(shape: Shape, dtype: str = "float32") -> tuple[Operation, Any]:
    """A placeholder with numbers whose products and sums are exact."""
    sizes = tuple(5 if n is BATCH else n for n in shape)
    node = placeholder(f"x{len(shape)}", Spec(shape, np.dtype(dtype)))
    return Operation(node), RNG.integers(-8, 9, sizes).astype(dtype)


def plan_of(*made: Operation) -> NativePlan:
    return native_plan(Program.of([m.node for m in made]), check=True)


def kinds(*made: Operation) -> list[RegionKind]:
    return [work.region.kind for work in plan_of(*made).work]


def joined(plan: NativePlan) -> list[int]:
    kernels = [work.lowered.kernel for work in plan.work if work.lowered is not None]
    return [kernel.joined_a + kernel.joined_b for kernel in kernels if isinstance(kernel, Gemm)]


def matrix(x: Any, size: Any, strides: Any, dilation: Any) -> Any:
    """The windows over x as a matrix."""
    seen = windows(x, size=size, strides=strides, dilation=dilation)
    axes = len(size)
    leading, trailing = seen.shape[: axes + 1], seen.shape[axes + 1 :]
    return ops.reshape(seen, (product(leading), product(trailing)))


def product(sizes: Any) -> Any:
    total: Any = 1
    for size in sizes:
        total = size * total
    return total


WINDOWS: dict[str, tuple[Shape, Any, Any, Any]] = {
    "a sequence": ((BATCH, 23, 3), (5,), (2,), (1,)),
    "an image": ((BATCH, 11, 13, 3), (3, 5), (1, 1), (1, 1)),
    "dilated, with strides": ((BATCH, 17, 19, 2), (3, 2), (2, 3), (2, 3)),
    "one channel": ((BATCH, 28, 28, 1), (5, 5), (1, 1), (1, 1)),
    "a volume": ((BATCH, 7, 6, 5, 2), (2, 3, 2), (1, 2, 1), (1, 1, 2)),
    "one place": ((BATCH, 9, 9, 7), (1, 1), (2, 2), (1, 1)),
    "one image": ((1, 40, 33, 17), (3, 3), (1, 1), (1, 1)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("columns", [1, 6, 37, 150])
def test_windows_are_multiplied_where_they_lie(name: str, dtype: str, columns: int) -> None:
    """As they are, and transposed: exact sums, with no copy of them."""
    shape, *geometry = WINDOWS[name]
    x, image = factor(shape, dtype)
    rows = matrix(x, *geometry)
    w, filters = factor((rows.shape[1], columns), dtype)
    made = rows @ w
    g = made * 0.5
    turned = ops.transpose(rows) @ g
    plan = plan_of(made, turned)
    assert len(joined(plan)) == 2 and all(joined(plan))
    assert RegionKind.MOVE not in kinds(made, turned)
    feeds = {x.node: image, w.node: filters}
    nodes = [made.node, turned.node]
    found = Executable(nodes, executor="native", check=True).run(feeds)
    wanted = Executable(nodes, executor="reference").run(feeds)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


APART = (
    "dilated, with strides",
    "one place",
)  # windows that hold no element more often than it is there

VIEWS: dict[str, Callable[[Any], Any]] = {
    "a slice": lambda x: ops.reshape(x[:, 1:4], (x.shape[0] * 3, 42)),
    "every second, backwards": lambda x: ops.reshape(x[:, ::-2], (x.shape[0] * 3, 42)),
    "axes reordered": lambda x: ops.reshape(ops.transpose(x, (1, 0, 3, 2)), (x.shape[0] * 5, 42)),
    "rows of one axis": lambda x: ops.reshape(x[:, :, ::2], (x.shape[0], 5 * 3 * 7)),
    "repeated": lambda x: ops.reshape(
        ops.broadcast_to(x[:, :1], (x.shape[0], 5, 6, 7)), (x.shape[0] * 5, 42)
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_any_strides(name: str) -> None:
    x, numbers = factor((BATCH, 5, 6, 7))
    rows = VIEWS[name](x)
    w, other = factor((rows.shape[1], 19))
    made = ops.tanh(rows @ w * 2.0**-8)
    plan = plan_of(made)
    assert all(joined(plan)) and [work.region.kind for work in plan.work] == [RegionKind.GEMM]
    feeds = {x.node: numbers, w.node: other}
    (found,) = Executable([made.node], executor="native", check=True).run(feeds)
    (wanted,) = Executable([made.node], executor="reference").run(feeds)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2.0**-22)


@pytest.mark.parametrize("seed", range(40))
def test_random_views(seed: int) -> None:
    """Slices with any steps of reordered axes, joined to a matrix anywhere."""
    rng = np.random.default_rng(seed)
    axes = int(rng.integers(3, 7))
    shape = tuple(int(n) for n in rng.integers(1, 8, axes))
    x, numbers = factor(shape)
    order = tuple(int(a) for a in rng.permutation(axes))
    steps = rng.choice([-2, -1, 1, 2, 3], axes)
    seen = ops.transpose(x, order)[tuple(slice(None, None, int(s)) for s in steps)]
    split = int(rng.integers(1, axes))
    rows = ops.reshape(seen, (product(seen.shape[:split]), product(seen.shape[split:])))
    turned = bool(rng.integers(2))
    a = ops.transpose(rows) if turned else rows
    w, other = factor((a.shape[1], int(rng.integers(1, 70))))
    made = a @ w
    run = Executable([made.node], executor="native", check=True)
    (found,) = run.run({x.node: numbers, w.node: other})
    lying = numbers.transpose(order)[tuple(slice(None, None, int(s)) for s in steps)]
    lying = lying.reshape(rows.shape).astype(float)
    np.testing.assert_array_equal(found, (lying.T if turned else lying) @ other.astype(float))


UNEVEN: dict[str, Callable[[Any], Any]] = {
    "rows backwards": lambda x: x[::-1],
    "columns backwards": lambda x: x[:, ::-1],
    "every third column": lambda x: x[:, 1::3],
    "both backwards, transposed": lambda x: ops.transpose(x[::-2, ::-1]),
    "a repeated row": lambda x: ops.broadcast_to(x[:1], (23, 37)),
    "a repeated column": lambda x: ops.broadcast_to(x[:, 5:6], (x.shape[0], 11)),
    "one number": lambda x: ops.broadcast_to(x[2:3, 5:6], (6, 8)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [1, 19, 70])
@pytest.mark.parametrize("name", UNEVEN)
def test_first_factors_whose_rows_and_columns_lie_apart(
    name: str, columns: int, dtype: str
) -> None:
    """Views of which neither rows nor columns are contiguous: no copy, exact sums."""
    x, numbers = factor((13, 37), dtype)
    seen = UNEVEN[name](x)
    w, other = factor((seen.shape[1], columns), dtype)
    made = seen @ w
    turned = ops.transpose(seen) @ made
    plan = plan_of(made, turned)
    single = columns == 1  # which kernels that read packed matrices do in less time
    assert joined(plan) == [1 - single] * 2 and (copies(made, turned) > 0) is single
    feeds = {x.node: numbers, w.node: other}
    nodes = [made.node, turned.node]
    found = Executable(nodes, executor="native", check=True).run(feeds)
    wanted = Executable(nodes, executor="reference").run(feeds)
    for one, found_one in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(found_one, one)


def test_the_same_plan_serves_other_sizes() -> None:
    """What lies apart for stand-ins does so for every size, for one row too."""
    x, _ = factor((BATCH, 37))
    w, other = factor((19, 6))
    run = Executable([(x[:, ::-2] @ w).node], executor="native", check=True)
    for batch in (7, 1, 0, 50):
        numbers = RNG.integers(-8, 9, (batch, 37)).astype(np.float32)
        (found,) = run.run({x.node: numbers, w.node: other})
        np.testing.assert_array_equal(found, numbers[:, ::-2] @ other)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("count", [1, 5, 300])
def test_second_factors_are_read_where_they_lie(name: str, dtype: str, count: int) -> None:
    """Windows as they are and transposed, behind few rows and many, and with both factors such."""
    shape, *geometry = WINDOWS[name]
    x, image = factor(shape, dtype)
    rows = matrix(x, *geometry)
    count_rows = rows.shape[0]
    places = count_rows if isinstance(count_rows, int) else count_rows.bind({"batch": 5})
    v, left = factor((count, rows.shape[1]), dtype)
    w = Operation(placeholder("w", Spec((count, rows.shape[0]), np.dtype(dtype))))
    weights = RNG.integers(-8, 9, (count, places)).astype(dtype)
    made = [w @ rows, v @ ops.transpose(rows), ops.transpose(rows) @ rows]
    plan, repeats = plan_of(*made[:2]), name not in APART
    assert [bool(axes) for axes in joined(plan)] == [repeats, repeats]
    assert (RegionKind.MOVE in kinds(*made[:2])) is not repeats
    feeds = {x.node: image, v.node: left, w.node: weights}
    for some in (made[:2], made[2:]):
        nodes = [one.node for one in some]
        run = Executable(nodes, executor="native", check=True)
        fed = {n: a for n, a in feeds.items() if n in Program.of(nodes).placeholders}
        wanted = Executable(nodes, executor="reference").run(fed)
        for one, other in zip(run.run(fed), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_random_second_factors() -> None:
    """Slices with any steps of reordered axes, repeated along a new one, behind any number of rows."""
    several = 0
    for seed in range(60):
        rng = np.random.default_rng(1000 + seed)
        axes = int(rng.integers(3, 6))
        x, numbers = factor(tuple(int(n) for n in rng.integers(1, 8, axes)))
        order = tuple(int(a) for a in rng.permutation(axes))
        cut = tuple(slice(None, None, int(s)) for s in rng.choice([-2, -1, 1, 2, 3], axes))
        seen, at = ops.transpose(x, order)[cut], int(rng.integers(axes + 1))
        shape = list(seen.shape)
        single, repeated = [*shape[:at], 1, *shape[at:]], (*shape[:at], 11, *shape[at:])
        seen = ops.broadcast_to(ops.reshape(seen, tuple(single)), repeated)
        split = int(rng.integers(1, axes))
        rows = ops.reshape(seen, (product(repeated[:split]), product(repeated[split:])))
        b = ops.transpose(rows) if rng.integers(2) else rows
        w, other = factor((int(rng.integers(1, 200)), b.shape[0]))
        made = w @ b
        several += all(joined(plan_of(made)))
        (found,) = Executable([made.node], executor="native", check=True).run(
            {x.node: numbers, w.node: other}
        )
        lying = np.broadcast_to(numbers.transpose(order)[cut].reshape(single), repeated)
        lying = lying.reshape(rows.shape).astype(float)
        wanted = other.astype(float) @ (lying.T if b is not rows else lying)
        np.testing.assert_array_equal(found, wanted)
    assert several > 30


def test_bits_do_not_depend_on_threads() -> None:
    """Parts of rows begin amid axes."""
    node = placeholder("x", Spec((BATCH, 31, 29, 16), np.dtype(np.float32)))
    rows = matrix(Operation(node), (3, 3), (1, 1), (1, 1))
    w = placeholder("w", Spec((144, 40), np.dtype(np.float32)))
    plan = plan_of(rows @ Operation(w))
    feeds = {
        n: RNG.standard_normal(s).astype(np.float32)
        for n, s in ((node, (7, 31, 29, 16)), (w, (144, 40)))
    }
    bits = []
    for threads in (1, 2, 3, 16):
        instance = Instance(plan, {"batch": 7}, threads)
        (found,) = instance.run(feeds, guard=False) or [None]
        assert found is not None
        bits.append(found.copy())
        tasks = [
            t
            for n in range(plan.phase_count)
            for group in instance.tasks(threads).phase(n)
            for t in group
        ]
        assert len(tasks) >= threads
    for other in bits[1:]:
        np.testing.assert_array_equal(other, bits[0])


def copies(*made: Operation) -> int:
    return kinds(*made).count(RegionKind.MOVE)


def test_what_others_read_too_is_copied() -> None:
    """Matrices that are outputs, read by kernels that know rows only, or second factors of few elements."""
    x, _ = factor((BATCH, 9, 9, 2))
    rows = matrix(x, (3, 3), (1, 1), (1, 1))
    w, _ = factor((18, 6))
    assert copies(rows @ w) == 0
    assert copies(rows @ w, rows) == 1
    assert copies(rows @ w, ops.tanh(rows)) == 1
    assert copies(ops.transpose(w) @ ops.transpose(rows)) == 0
    assert copies(rows @ ops.transpose(rows)) == 0
    assert copies(ops.transpose(rows) @ rows) == 0
    assert copies(ops.transpose(w)[:2, :4] @ ops.reshape(x[:, :4, :2], (4, x.shape[0] * 4))) == 1
    assert copies(rows[1:] @ w) == 1
    assert copies(rows[:, ::-1] @ w) == 1  # the windows, which are no factor themselves


def test_no_copy_is_planned_for_the_stand_in_of_a_large_matrix(monkeypatch: Any) -> None:
    """Planning takes no memory for windows, which may be larger than all that there is."""
    x, _ = factor((BATCH, 226, 226, 64))
    rows = matrix(x, (3, 3), (1, 1), (1, 1))
    w, _ = factor((576, 64))
    taken = []
    place = Layouts._place

    def placed(self: Layouts, node: Any) -> None:
        place(self, node)
        taken.append(0 if self.is_view(node) else self.arrays[node].nbytes)

    monkeypatch.setattr(Layouts, "_place", placed)
    assert joined(plan_of(rows @ w))
    assert 0 < max(taken) < 2**31


def test_tiles_follow_the_columns() -> None:
    """On x86 a tile has at most eight rows, six where it is wide, and no more vectors than C has."""
    x86 = Target("x86_64-unknown-linux-gnu", "skylake-avx512", "", 64, 32)
    for columns, tile in ((6, (8, 1)), (32, (6, 2)), (33, (6, 3)), (64, (6, 4)), (500, (6, 4))):
        found = tile_for(for_joined_rows(Gemm("float32", joined_a=3), x86, columns), x86)
        assert (found.rows, found.width) == tile
    narrow = Target("x86_64-unknown-linux-gnu", "haswell", "", 32, 16)
    found = tile_for(for_joined_rows(Gemm("float64", joined_a=3), narrow, 500), narrow)
    assert (found.rows, found.width, found.lanes) == (6, 2, 4)
