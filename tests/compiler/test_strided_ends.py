"""Last steps of products whose operands are read by their strides: no copies, on both back ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.cuda.gemm.sized import sized
from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import STRIDED, STRIDED_COLUMN
from magmadnn.compiler.plan.frames import frames_of
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph import Spec
from magmadnn.graph.node import Node, placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.native import Instance
from magmadnn.runtime.cpu.slot_values import slot_values
from magmadnn.tensor import Operation
from tests.compiler.sample_programs import BATCH
from tests.runtime.cuda.devices import DEVICES, on

Shape = tuple[Any, ...]
T, N = 5, 37  # rows of each of a batch, and columns: no multiple of a vector


@dataclass(frozen=True)
class Case:
    """A product and what is done to its elements.

    Attributes:
        name: what is special.
        a, b: shapes of the factors.
        others: shapes of what is read besides.
        finish: what is done; the same text serves operations and arrays.
        dtype: of all but conditions.
    """

    name: str
    a: Shape
    b: Shape
    others: tuple[Shape, ...]
    finish: Callable[..., Any]
    dtype: str = "float32"


def turned(x: Any) -> Any:
    """[T, batch, N] as [batch, T, N]."""
    return ops.transpose(x, (1, 0, 2)) if isinstance(x, Operation) else np.transpose(x, (1, 0, 2))


def tanh(x: Any) -> Any:
    return ops.tanh(x) if isinstance(x, Operation) else np.tanh(x)


def chosen(c: Any, x: Any) -> Any:
    return ops.where(c > 0, x, 0.5) if isinstance(x, Operation) else np.where(c > 0, x, 0.5)


ROWS: tuple[Shape, Shape] = ((BATCH, T, 11), (11, N))
LIST = [
    Case("a vector for each of a batch", *ROWS, ((BATCH, 1, N),), lambda p, x: p + x),
    Case("a number for each of a batch", *ROWS, ((BATCH, 1, 1),), lambda p, x: p * x),
    Case("the same for all of a batch", *ROWS, ((T, N),), lambda p, x: p - x),
    Case("a number for each time", *ROWS, ((T, 1),), lambda p, x: p * x),
    Case("two that are alike, one that is not", *ROWS, ((BATCH, 1, N), (BATCH, 1, N), (T, N)),
         lambda p, x, y, z: (p + x) * y + z),
    Case("turned", *ROWS, ((T, BATCH, N),), lambda p, x: p + turned(x)),
    Case("a part, backwards", *ROWS, ((BATCH, T + 2, N + 3),), lambda p, x: p * x[:, :0:-1][:, 1:, 2:-1]),
    Case("what is no number of few instructions", *ROWS, ((BATCH, 1, N),), lambda p, x: tanh(p * 0.1 + x)),
    Case("a condition", *ROWS, ((BATCH, 1, N),), lambda p, x: chosen(x, p)),
    Case("in float64", *ROWS, ((BATCH, 1, N), (T, N)), lambda p, x, y: p * x + y, "float64"),
    Case("a stack", (3, BATCH, 11), (3, 11, N), ((3, 1, N),), lambda p, x: p + x),
    Case("a stack of two axes", (2, 3, BATCH, 11), (2, 1, 11, N), ((2, 1, 1, N), (3, BATCH, 1)),
         lambda p, x, y: (p + x) * y),
    Case("whole tiles", (BATCH, T, 64), (64, 96), ((BATCH, 1, 96),), lambda p, x: p + x),
    Case("a column", (BATCH, T, 11), (11, 1), ((BATCH, 1, 1), (T, 1)), lambda p, x, y: p * x + y),
    Case("three axes", (BATCH, 3, 4, 11), (11, N), ((BATCH, 1, 4, N),), lambda p, x: p + x),
]  # fmt: skip
CASES = {case.name: case for case in LIST}


def operands(case: Case) -> list[Operation]:
    kind = np.dtype(case.dtype)
    shapes = (case.a, case.b, *case.others)
    return [Operation(placeholder(f"x{k}", Spec(s, kind))) for k, s in enumerate(shapes)]


def made(case: Case) -> tuple[list[Operation], Operation]:
    a, b, *others = found = operands(case)
    return found, case.finish(a @ b, *others)


def drawn(inputs: list[Operation], batch: int) -> dict[Node, Any]:
    rng = np.random.default_rng(batch)
    return {
        x.node: rng.standard_normal([batch if n is BATCH else n for n in x.shape]).astype(x.dtype)
        for x in inputs
    }


def exact(case: Case, fed: list[Any]) -> Any:
    a, b, *others = (x.astype(np.float64) for x in fed)
    return case.finish(np.einsum("...mk,...kn->...mn", a, b), *others)


def within(case: Case, fed: list[Any]) -> float:
    """As in sums of k products, each rounded: k units in the last place of the largest sum of sizes."""
    largest = max(float(np.abs(x).max(initial=1)) for x in fed)
    k = case.a[-1]
    return float(np.finfo(case.dtype).eps) * (k + 8) * k * largest**4


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_are_read_where_they_lie(case: Case) -> None:
    inputs, result = made(case)
    for rounding in (True, False):  # as for processors, and for devices
        *before, work = native_plan(Program.of([result.node]), check=True, rounding=rounding).work
        # a condition is computed once for all rows that it serves; nothing is moved
        assert [w.region.kind for w in before] == [RegionKind.ROWS] * ("condition" in case.name)
        assert work.region.kind is RegionKind.GEMM
        assert work.lowered is not None and isinstance(work.lowered.kernel, Gemm)
        finish = work.lowered.kernel.epilogue
        assert isinstance(finish, Finish)
        strided = [o for o in finish.operands if o.spread in (STRIDED, STRIDED_COLUMN)]
        assert len(strided) == len(case.others)
    run = Executable([result.node], executor="native", check=True)
    for batch in (7, 1, 2, 0):
        fed = drawn(inputs, batch)
        (found,) = run.run(fed)
        values = list(fed.values())
        np.testing.assert_allclose(found, exact(case, values), rtol=0, atol=within(case, values))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("name", ["three axes", "a stack of two axes", "turned"])
def test_bits_do_not_depend_on_threads(name: str, threads: int) -> None:
    """Parts begin in any row."""
    case = CASES[name]
    inputs, result = made(case)
    plan = native_plan(Program.of([result.node]))
    fed = drawn(inputs, 301)
    one, many = (Instance(plan, {"batch": 301}, n).run(fed, guard=False) for n in (1, threads))
    assert one is not None and many is not None
    np.testing.assert_array_equal(one[0], many[0])
    values = list(fed.values())
    np.testing.assert_allclose(one[0], exact(case, values), rtol=0, atol=within(case, values))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_on_a_device(case: Case, device: str) -> None:
    inputs, result = made(case)
    with on(device):
        run = Executable([result.node], executor="native", device="cuda", check=True)
        for batch in (7, 1):
            fed = drawn(inputs, batch)
            (found,) = run.run(fed)
            values = list(fed.values())
            allowed = within(case, values)
            np.testing.assert_allclose(found, exact(case, values), rtol=0, atol=allowed)


@pytest.mark.parametrize("device", DEVICES)
def test_behind_a_librarys_product(device: str) -> None:
    """Large products are the library's there: what follows is a kernel that reads by strides."""
    others = ((BATCH, 1, 512), (64, 1))
    case = Case("large", (BATCH, 64, 512), (512, 512), others, lambda p, x, y: (p + x) * y)
    inputs, result = made(case)
    fed = drawn(inputs, 8)
    with on(device):
        (found,) = Executable([result.node], executor="native", device="cuda", check=True).run(fed)
    values = list(fed.values())
    np.testing.assert_allclose(found, exact(case, values), rtol=0, atol=within(case, values))


@pytest.mark.parametrize("device", [None, *DEVICES])
def test_gradients(device: str | None) -> None:
    """Of a sum of squares, beside differences of the same in float64."""
    case = CASES["two that are alike, one that is not"]
    inputs, result = made(case)
    nodes = gradient(ops.sum(ops.square(result)).node, [x.node for x in inputs])
    fed = drawn(inputs, 3)
    if device is None:
        found = Executable(nodes, executor="native", check=True).run(fed)
    else:
        with on(device):
            found = Executable(nodes, executor="native", device="cuda", check=True).run(fed)
    wide = [x.astype(np.float64) for x in fed.values()]
    rng = np.random.default_rng(1)
    for number, slope in enumerate(found):
        way, small = rng.standard_normal(wide[number].shape), 1e-6
        sides = [
            np.square(exact(case, [x + side * way if k == number else x for k, x in enumerate(wide)])).sum()
            for side in (small, -small)
        ]  # fmt: skip
        expected = (sides[0] - sides[1]) / (2 * small)
        assert abs((slope * way).sum() - expected) < 1e-4 * np.abs(slope * way).sum()


def test_several_results_read_them_too() -> None:
    """The bare product, what follows, and what follows that are stored by one kernel."""
    (a, b, x), result = made(CASES["a vector for each of a batch"])
    other = result * 2.0
    nodes = [result.node, other.node, (a @ b).node]
    (work,) = native_plan(Program.of(nodes), check=True).work
    assert work.region.kind is RegionKind.GEMM
    fed = drawn([a, b, x], 9)
    first, second, bare = Executable(nodes, executor="native", check=True).run(fed)
    np.testing.assert_array_equal(first, bare + fed[x.node])
    np.testing.assert_array_equal(second, first * np.float32(2))


@pytest.mark.parametrize(("columns", "width"), [(36, 4), (38, 2), (37, 1)])
def test_elements_are_moved_together_only_where_all_rows_begin_so(columns: int, width: int) -> None:
    """A device's loads of several numbers want addresses that are multiples of their size."""
    a, b, x = (
        Operation(placeholder(f"x{k}", Spec(shape, np.dtype(np.float32))))
        for k, shape in enumerate([(3, T, 8), (8, 36), (T, 3, columns)])
    )
    result = a @ b + ops.transpose(x, (1, 0, 2))[..., :36]
    plan = native_plan(Program.of([result.node]), check=True, rounding=False)
    (work,) = plan.work
    assert work.lowered is not None and isinstance(work.lowered.kernel, Gemm)
    values = slot_values(work, frames_of(plan, {}), {})
    values |= {slot: 0 for slot, _, _ in (*work.lowered.reads, *work.lowered.writes)}
    assert dict(sized(work.lowered.kernel, values).widths)["x0"] == width
