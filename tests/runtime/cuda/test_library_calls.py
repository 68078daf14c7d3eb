"""Steps that are calls of cuSOLVER and cuBLAS: nodes of graphs, many steps in one go, what is merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.engine import KernelNode, LibraryNode, MatrixNode
from magmadnn.compiler.cuda.library import getrf
from magmadnn.compiler.cuda.library.small import group
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.errors import NumericError
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.linalg.equations import solved
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.running.sliced import kept_slices
from magmadnn.runtime.cuda.schedule import launches, small
from tests.linalg.whitening import BATCH, X, Y, apart, network, trained
from tests.runtime.cuda.devices import DEVICES, on
from tests.runtime.cuda.emulator import Emulator, emulated_device, needs_compiler

RNG = np.random.default_rng(8)


@pytest.fixture(autouse=True)
def no_calls_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps stay on the device."""

    def called(layout: Any, work: Any) -> Any:
        raise AssertionError(f"NumPy computes {work.region}")

    monkeypatch.setattr(group, "LARGEST", 0)  # no kernels of our own
    monkeypatch.setattr(launches, "host_call", called)
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)


def definite(*shape: int, dtype: str = "float64") -> np.ndarray:
    x = RNG.normal(size=(*shape, shape[-1]))
    return (x @ np.swapaxes(x, -1, -2) / max(shape[-1], 1) + 0.2 * np.eye(shape[-1])).astype(dtype)


def node(name: str, array: np.ndarray) -> Node:
    return placeholder(name, Spec(array.shape, array.dtype))


@pytest.mark.parametrize("device", DEVICES)
def test_factors_solutions_and_gradients_are_those_of_the_reference(device: str) -> None:
    """Of matrices and of stacks, read as views, with one triangle for a whole stack."""
    outputs: list[Node] = []
    feeds: dict[Node, np.ndarray] = {}
    shapes: list[tuple[str, tuple[int, ...]]] = [("float64", (7,)), ("float32", (3, 2, 4))]
    if device == "gpu":  # where the library has other ways for large matrices
        shapes += [
            ("float64", (300,)),
            ("float32", (1,)),
            ("float64", (2, 300)),
            ("float32", (200, 40)),
        ]
    for number, (dtype, shape) in enumerate(shapes):
        a = definite(*shape, dtype=dtype)
        b = RNG.normal(size=(2, shape[-1], 3) if len(shape) == 1 else (*shape, 3)).astype(dtype)
        x, y = node(f"a{number}", a), node(f"b{number}", b)
        feeds |= {x: a, y: b}
        factor = md.linalg.cholesky(md.ops.swapaxes(x, -1, -2))
        for transpose in (False, True):
            solved = md.linalg.solve_triangular(factor, y, lower=True, trans=int(transpose))
            outputs += [solved, *gradient((solved * solved).sum(), [x, y])]
        upper = md.ops.swapaxes(factor, -1, -2)
        one = md.ops.reshape(y, (-1, *y.shape[-2:]))[0]  # right sides that serve a whole stack
        outputs += [factor, *(md.linalg.solve_triangular(upper, z, lower=False) for z in (y, one))]
    expected = Executable(outputs, executor="reference").run(feeds)
    with on(device):
        found = Executable(outputs, executor="native", device="cuda", check=True).run(feeds)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        tolerance = 2e-3 if one.dtype == np.float32 else 1e-8
        scale = np.abs(other).max(initial=1)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("device", DEVICES)
def test_training_runs_several_steps_in_one_graph(device: str) -> None:
    with on(device):
        model = trained(network(device="cuda"))
        assert any(kept_slices._kept.values())  # not batch by batch
        assert "library potrf 6 x 6 in float32" in model.plan()
        assert "by NumPy" not in model.plan()
        assert apart(model, trained(network(executor="reference"))) < 1e-3
        profile = str(model.profile(X[:BATCH], Y[:BATCH]))
        assert "library potrf" in profile and "library trsm" in profile


@needs_compiler
def test_a_graph_of_steps_holds_the_calls_of_all_of_them() -> None:
    with emulated_device() as engine:
        trained(network(device="cuda"))
        calls = [sum(isinstance(n, MatrixNode) for n in g.nodes) for g in engine.graphs]
    assert max(calls) >= 10 and max(calls) % 5 == 0  # several steps of five calls


@pytest.mark.parametrize("device", DEVICES)
def test_errors_name_the_matrix_and_change_no_variable(device: str) -> None:
    a = definite(2, 3, 6)
    a[1, 2, 4, 4] = -3
    x, v = node("a", a), md.variable("v", np.ones(3))
    singular = np.triu(definite(2, 4))
    singular[1, 2, 2] = 0
    y = node("y", singular)
    with on(device):
        for value, words, feeds in [
            (md.linalg.cholesky(x), r"a\[1, 2\] is not .* minor of order 5 of 6", {x: a}),
            (
                md.linalg.solve_triangular(y, y, lower=False),
                r"a\[1\] is singular: element 2 of its diagonal is 0",
                {y: singular},
            ),
        ]:
            step = Executable(
                [value.sum()], [(v.node, v.node + 1.0)], executor="native", device="cuda"
            )
            for guard in (False, True):
                with pytest.raises(NumericError, match=words):
                    step.run(feeds, guard=guard)
                assert np.array_equal(v, np.ones(3))


@needs_compiler
def test_a_call_that_wants_a_larger_workspace_gets_memory_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Emulator, "workspace", lambda self, node: (32 << 20) + 8)
    a = definite(5)
    x = node("a", a)
    with emulated_device() as engine:
        run = Executable([md.linalg.cholesky(x)], executor="native", device="cuda")
        (found,) = run.run({x: a})
        (call,) = [n for g in engine.graphs for n in g.nodes if isinstance(n, MatrixNode)]
        assert engine.memory is not None
        (span,) = [s for s in engine.memory.spans() if s[0] <= call.workspace < s[1]]
        assert span[1] - call.workspace >= (32 << 20) + 8
    np.testing.assert_allclose(found, np.linalg.cholesky(a), rtol=1e-12)


# --- merging ----------------------------------------------------------------------------------------


@needs_compiler
def test_kernels_around_products_of_the_library_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come after the same calls; what is computed stays the same, bit for bit."""
    monkeypatch.setattr(launches, "choose_gemm", lambda *_: None)
    a = RNG.normal(size=(6, 5)).astype(np.float32)
    x, y = node("x", a), node("y", a)
    product = md.ops.matmul(x, md.ops.swapaxes(x, 0, 1))
    # two kernels before any product, two after the first alone, one after both
    outputs = [
        md.ops.exp(x), md.ops.sum(y, axis=0), md.ops.sum(product, axis=0), md.ops.sum(product, axis=1),
        md.ops.softmax(md.ops.matmul(product, y)),
    ]  # fmt: skip
    feeds = {x: a, y: a}
    with emulated_device() as engine:
        run = Executable(outputs, executor="native", device="cuda")
        found = run.run(feeds)
        nodes = engine.graphs[-1].nodes
        text = run.text({})
    kernels = [n for n in nodes if isinstance(n, KernelNode)]
    assert sum(isinstance(n, LibraryNode) for n in nodes) == 2
    assert len(kernels) == 3, text
    assert text.count("2 kernels merged") == 2
    for one, other in zip(found, Executable(outputs, executor="reference").run(feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("n", "sides"), [(5, 70), (70, 64), (300, 70)])
def test_many_right_sides_are_put_in_the_order_of_the_factors(
    n: int, sides: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of exchanges of rows one after the other, which the library makes for few right sides."""
    monkeypatch.setattr(getrf, "_BLOCKS", 7)  # which share right sides unevenly
    monkeypatch.setattr(getrf, "_TILE", 64)
    a, b = RNG.normal(size=(n, n)), RNG.normal(size=(n, sides))
    x, y = node("a", a), node("b", b)
    outputs = [md.linalg.solve(x, y), md.linalg.inv(x)]
    with on(device):
        run = Executable(outputs, executor="native", device="cuda")
        found = run.run({x: a, y: b})
        for value, place in ((np.nan, (n - 1, sides - 1)), (np.inf, (0, 0))):
            bad = b.copy()
            bad[place] = value
            with pytest.raises(
                NumericError, match=rf"b holds {value} at \[{place[0]}, {place[1]}\]"
            ):
                run.run({x: a, y: bad})
        low = np.floor(a * 4)
        low[:, -1] = 0
        with pytest.raises(NumericError, match=f"a is singular: pivot {n} of {n}"):
            run.run({x: low, y: b})
    for one, other in zip(found, (np.linalg.solve(a, b), np.linalg.inv(a)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9 * np.abs(other).max())


@needs_compiler
def test_rows_are_put_in_order_for_many_right_sides_of_one_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for the transpose, which would put them in order behind the triangles, and not for stacks."""
    made: list[str] = []
    original = getrf._in_order

    def noted(dtype: str, values: dict[str, int]) -> Launch:
        made.append(dtype)
        return original(dtype, values)

    monkeypatch.setattr(getrf, "_in_order", noted)
    a, few, many = RNG.normal(size=(2, 5, 5)), RNG.normal(size=(5, 3)), RNG.normal(size=(5, 64))
    x = node("a", a)
    one, every = 0, slice(None)
    for b, index, transpose, ordered in [
        (many, one, False, True), (few, one, False, False), (many, one, True, False),
        (many, every, False, False),
    ]:  # fmt: skip
        y = node("b", b)
        made.clear()
        with emulated_device():
            out = solved(x[index], y, transpose=transpose, of="solve")
            (found,) = Executable([out], executor="native", device="cuda").run({x: a, y: b})
        matrix = np.swapaxes(a[index], -1, -2) if transpose else a[index]
        np.testing.assert_allclose(matrix @ found, np.broadcast_to(b, found.shape), atol=1e-11)
        assert bool(made) == ordered
