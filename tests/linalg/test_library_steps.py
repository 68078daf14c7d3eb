"""Steps that are calls of LAPACK: native, many in one go, or NumPy's where SciPy is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.kernels.library import Library
from magmadnn.errors import GraphError, NumericError
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder, topological
from magmadnn.graph.op import Op
from magmadnn.linalg.equations import solved
from magmadnn.linalg.factorisations.elimination import lu_factored, lu_solved
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.host_call import HostCall
from magmadnn.runtime.cpu.matrices import lapack
from magmadnn.runtime.cpu.sliced.slices import Slices
from magmadnn.runtime.cpu.tasks import Tasks
from magmadnn.runtime.threads import thread_count
from tests.linalg.whitening import BATCH, X, Y, apart, network, trained

pytest.importorskip("scipy")
RNG = np.random.default_rng(2)


def definite(*shape: int) -> np.ndarray:
    x = RNG.normal(size=(*shape, shape[-1]))
    return x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])


def node(array: np.ndarray) -> Node:
    return placeholder("a", Spec(array.shape, array.dtype))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many executions of one batch or several there were, and calls of Python from native threads."""
    found = {"executions": 0, "batches": 0, "longest": 0, "python": 0}
    run, call = Slices.run, HostCall._run

    def counted(self: Slices, data: Any, order: Any, *rest: Any) -> Any:
        batches = len(order) // BATCH
        found["executions"] += 1
        found["batches"] += batches
        found["longest"] = max(found["longest"], batches)
        return run(self, data, order, *rest)

    def called(self: HostCall, *arguments: Any) -> None:
        found["python"] += 1
        call(self, *arguments)

    monkeypatch.setattr(Slices, "run", counted)
    monkeypatch.setattr(HostCall, "_run", called)
    return found


def test_training_runs_many_steps_in_one_go_without_python(calls: dict[str, int]) -> None:
    model = trained(network())
    assert calls["batches"] == 3 * (len(X) // BATCH) and calls["longest"] > 1
    assert calls["executions"] < calls["batches"]
    assert calls["python"] == 0
    assert apart(model, trained(network(executor="reference"))) < 1e-4
    text = model.plan(X, Y)
    assert "library potrf [36] cholesky  # whiten_1" in text
    assert "5 calls of libraries, 0 calls of NumPy" in text  # two of them forward
    profile = str(model.profile(X[:BATCH], Y[:BATCH]))
    assert "library potrf" in profile and "library trsm" in profile


@pytest.fixture
def without_scipy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lapack, "_MODULES", ("scipy_that_is_not_installed",))
    for cached in (lapack.address_of, lapack._exported):
        cached.cache_clear()
    yield
    for cached in (lapack.address_of, lapack._exported):
        cached.cache_clear()


def test_without_scipy_numpy_computes_them_still_many_steps_in_one_go(
    calls: dict[str, int], without_scipy: None
) -> None:
    model = trained(network())
    assert calls["longest"] > 1 and calls["python"] > 0
    assert apart(model, trained(network(executor="reference"))) < 1e-4
    assert "# by NumPy, since SciPy is not installed: library[36] cholesky" in model.plan(X, Y)


def test_bits_do_not_depend_on_how_a_stack_is_cut_for_threads() -> None:
    """Matrices of a stack are computed one by one, by whichever thread."""
    a = definite(90, 33)
    found, before = set(), thread_count()
    for threads in (1, 2, 5):
        md.set_threads(threads)
        try:
            x = node(a)
            factor = md.linalg.cholesky(x)
            solved = md.linalg.solve_triangular(factor, x, lower=True, trans=1)
            outputs = Executable([factor, solved], executor="native").run({x: a})
        finally:
            md.set_threads(before)
        np.testing.assert_allclose(outputs[0], np.linalg.cholesky(a), rtol=1e-9, atol=1e-12)
        found.add(tuple(out.tobytes() for out in outputs))
    assert len(found) == 1


def test_the_result_of_numpy_counts_where_only_the_library_finds_something_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as a matrix at the edge of being positive definite, which libraries round differently."""
    a, v = definite(5), md.variable("v", np.zeros((5, 5)))
    x = node(a)
    factor = md.linalg.cholesky(x)
    step = Executable([factor], [(v.node, factor)], executor="native")
    monkeypatch.setattr(Tasks, "went_well", lambda self: False)
    for guard in (False, True):
        v.assign(np.zeros((5, 5)))
        (found,) = step.run({x: a}, guard=guard)
        assert np.array_equal(found, np.linalg.cholesky(a))
        assert np.array_equal(v, found)


def test_a_function_that_no_target_knows_is_numpys() -> None:
    assert lapack.function_of(Library("nothing", "float64", 1)) is None
    assert lapack.function_of(Library("potrf", "float64", 1))


def test_training_goes_on_after_a_matrix_that_was_not_definite() -> None:
    """The batch is named, and the variables are those before it."""
    model = network()
    model.fit(X, Y, batch_size=BATCH, verbose=False)
    before = model.values()
    bad = np.array(before["whiten_1/root"]) * np.nan
    model.layers[0].root.assign(bad)
    with pytest.raises(md.errors.NumericError, match="whiten_1"):
        model.fit(X, Y, batch_size=BATCH, verbose=False)
    model.layers[0].root.assign(before["whiten_1/root"])
    assert np.isfinite(model.fit(X, Y, batch_size=BATCH, verbose=False).rows[-1]["loss"])


def test_an_object_file_does_not_hold_libraries(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(
        GraphError, match=r"op cholesky of layer whiten_1 is a call of potrf of LAPACK"
    ):
        model.export(tmp_path / "net.o")


class Whitening(md.layers.Layer):
    """A function of x [rows, 4] and a trained matrix."""

    function: str

    def build(self, x: Any) -> None:
        self.root = self.parameter("root", (4, 4), md.init.normal(), x.dtype)

    def forward(self, x: Any) -> Any:
        a = self.root @ self.root.T + np.eye(4, dtype=x.dtype)
        if self.function == "solve":
            return md.linalg.solve(a, x.T).T
        if self.function == "stack":
            stack = x[:, :, None] * x[:, None, :] + a
            return md.linalg.solve(stack, x[:, :, None])[:, :, 0]
        return x @ getattr(md.linalg, self.function)(a * 0.3)


@pytest.mark.parametrize("function", ["solve", "stack", "inv", "expm"])
def test_steps_of_mixed_fp16_whose_gradients_overflow_are_left_out(function: str) -> None:
    """The gradient's right sides are infinite then: that was an error of `solve`."""
    draw = np.random.default_rng(2)
    x = draw.normal(size=(20, 4)).astype(np.float32)
    y = (300 * draw.normal(size=(20, 2))).astype(np.float32)
    found = []
    for executor in ("native", "reference"):
        layers = [
            md.layers.Input((4,)),
            md.layers.Dense(4),
            Whitening(function),
            md.layers.Dense(2),
        ]
        model = md.Model(
            layers, loss="mse", optimizer=md.optim.SGD(1e-5), seed=3, precision="mixed_fp16"
        )
        model.executor = executor
        before = {name: value.copy() for name, value in model.values().items()}
        first = model.fit(x, y, batch_size=5, epochs=1, verbose=False)["loss"][0]
        left_out = all((value == before[name]).all() for name, value in model.values().items())
        last = model.fit(x, y, batch_size=5, epochs=7, verbose=False)["loss"][-1]
        assert left_out and last < first  # all of the first epoch, and not all of the others
        found.append(last)
    assert found[0] == pytest.approx(found[1], rel=1e-3)


@pytest.mark.parametrize("op", [solved, lu_solved], ids=lambda op: op.name)
@pytest.mark.parametrize("of", ["solve", "gradient of solve"])
def test_right_sides_that_are_not_finite_are_refused_unless_they_may_be(op: Op, of: str) -> None:
    """Whatever the name in the message: gradients say so by an attribute."""
    a = np.stack([definite(3), definite(3)])
    b = np.ones((2, 3, 3))
    b[1, 0, 2] = np.inf
    first = lu_factored.compute([a], {}) if op is lu_solved else a
    given = {"transpose": False, "of": of, "refuses": True}
    with pytest.raises(NumericError, match=f"^{of}: b"):
        op.compute([first, b], given)
    x = op.compute([first, b], given | {"refuses": False})
    assert np.isfinite(x[0]).all() and not np.isfinite(x[1]).all()


def test_gradients_of_any_order_refuse_nothing_and_are_named_once() -> None:
    a = md.variable("a", np.array([[3.0, 1.0], [0.5, 2.0]]))
    b = md.variable("b", np.array([[1.0], [2.0]]))
    x = md.linalg.solve(a, b)
    first = md.grad(md.ops.sum(x**3), a)
    second = md.grad(md.ops.sum(first**2), a)
    order = topological([second.node], lambda n: n.inputs)
    settings = {(n.attributes["of"], n.attributes["refuses"]) for n in order if n.op is solved}
    assert settings == {("solve", True), ("gradient of solve", False)}
