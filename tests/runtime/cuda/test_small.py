"""Small networks: all steps as one kernel of one block."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.cuda.megakernel.whole import WholeVariant
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda import code
from magmadnn.runtime.cuda.schedule import megakernel as whole
from magmadnn.runtime.cuda.schedule import small
from magmadnn.runtime.cuda.schedule.launch import Item
from magmadnn.tensor import Operation
from tests.runtime.cuda.devices import DEVICES, distance, network, on, samples
from tests.runtime.cuda.emulator import Emulator, emulated_device, needs_compiler

EPS = float(np.finfo(np.float32).eps)
SIZES = (13, 17, 11, 5)


def kernels_of(engine: Emulator) -> list[int]:
    """How many nodes each graph has."""
    return [len(graph.nodes) for graph in engine.graphs]


@needs_compiler
def test_a_step_of_a_small_network_is_one_kernel() -> None:
    x, y = samples(43, 13, 5)
    with emulated_device() as engine:
        network(SIZES, md.optim.SGD(0.3), device="cuda").fit(x, y, batch_size=8, verbose=0)
        assert kernels_of(engine)
        assert set(kernels_of(engine)) == {1}
        engine.graphs.clear()
        network(SIZES, None, device="cuda").predict(x)
        assert kernels_of(engine) == [1]


class _AtOnce:
    """In place of the thread that compiles: done when it is asked."""

    def submit(self, function: Callable[..., bytes], *args: Any) -> Future[bytes]:
        made: Future[bytes] = Future()
        made.set_result(function(*args))
        return made


def fitted(width: int, rows: int = 43) -> Any:
    """A network of a width that was trained, evaluated and asked."""
    x, y = samples(rows, 13, 5)
    model = network((13, width, 5), md.optim.Adam(0.03), device="cuda")
    model.fit(x, y, batch_size=8, epochs=4, validation_data=(x[:9], y[:9]), verbose=0)
    return model


@needs_compiler
def test_bits_do_not_depend_on_when_the_one_kernel_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once, after ten steps (two of epoch two), and never; with nothing compiled before."""
    x, _ = samples(43, 13, 5)
    monkeypatch.setattr(code, "_compiler", _AtOnce)
    monkeypatch.setattr(code, "kernel_cache", lambda: None)
    found, sizes, wholes = [], [], []
    for steps in (0, 10, 10**9):
        monkeypatch.setattr(code, "_loaded", {})
        monkeypatch.setattr(code, "_specialised", {})
        with emulated_device(any_size_steps=steps) as engine:
            model = fitted(18)
            found.append((model.values(), model.predict(x)))
            sizes.append({len(graph.nodes) for graph in engine.graphs})
            wholes.append(sum(isinstance(variant, WholeVariant) for _, variant in code._loaded))
    for values, predicted in found[1:]:
        np.testing.assert_array_equal(predicted, found[0][1])
        for key, array in found[0][0].items():
            np.testing.assert_array_equal(values[key], array)
    assert max(sizes[0]) <= 2  # the one kernel, and what is looked at
    assert min(max(some) for some in sizes[1:]) > 10  # the launches of a step
    assert wholes[0] >= wholes[1] > wholes[2] == 0


@needs_compiler
def test_a_new_width_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "kernel_cache", lambda: None)
    monkeypatch.setattr(code, "_loaded", {})
    monkeypatch.setattr(code, "_specialised", {})
    with emulated_device(any_size_steps=10**9) as engine:
        fitted(20), fitted(21), fitted(22)
        compiled, compile_them = [], engine.compile
        monkeypatch.setattr(
            engine, "compile", lambda *given: compiled.append(given) or compile_them(*given)
        )
        for width in (23, 24, 26, 28):
            fitted(width)
        assert not compiled
        fitted(20, rows=41)  # the last batch has one row
        assert compiled


@needs_compiler
@pytest.mark.parametrize(
    ("limit", "value"), [("MOST_OPERATIONS", 600), ("MOST_FED", 100), ("shared", 3000)]
)
def test_larger_networks_are_launches(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = samples(8, 13, 5)
    with emulated_device() as engine:
        if limit == "shared":
            monkeypatch.setattr(engine, "shared_bytes", value)
        else:
            monkeypatch.setattr(small, limit, value)
        network(SIZES, None, device="cuda").predict(x)
        assert kernels_of(engine) == [3]


@needs_compiler
def test_shared_memory_ends_where_a_wide_load_does() -> None:
    """Compilers load 16 bytes where some are wanted: at the end of the last value there must be as many."""
    x, _ = samples(3, 13, 5)
    with emulated_device() as engine:
        network((13, 17, 11, 3), None, device="cuda").predict(x)
        (graph,) = engine.graphs
        assert [node.shared_bytes % 16 for node in graph.nodes] == [0]


@pytest.mark.parametrize("device", DEVICES)
def test_layers_losses_and_settings_of_many_kinds(device: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((45, 6)).astype(np.float32)
    y = rng.standard_normal((45, 3)).astype(np.float32)

    def built(place: str) -> Any:
        layers = [md.layers.Input((6,)), md.layers.Dense(19, activation="tanh")]
        layers += [md.layers.LayerNorm(), md.layers.Dropout(0.2), md.layers.Dense(3)]
        rate = md.optim.cosine(0.03, 20)
        return md.Model(
            layers, loss="mse", optimizer=md.optim.Adam(rate), seed=5, device=place
        )  # fmt: skip

    with on(device):
        there, here = built("cuda"), built("cpu")
        curves = [m.fit(x, y, batch_size=8, epochs=3, verbose=0).rows for m in (there, here)]
        for a, b in zip(*curves, strict=True):
            assert a["loss"] == pytest.approx(b["loss"], rel=64 * EPS)
        assert distance(there, here) < 18 * 64 * EPS


@needs_compiler
def test_a_missing_barrier_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps of the emulated device run on until they wait: in one level they read what is not there yet."""
    x, _ = samples(8, 13, 5)
    with emulated_device():
        right = network(SIZES, None, device="cuda").predict(x)
        monkeypatch.setattr(whole, "levels_of", lambda items: [list(items)])
        assert not np.allclose(network(SIZES, None, device="cuda").predict(x), right)


def test_levels_come_after_what_they_depend_on() -> None:
    a, b, c = (0, 10), (10, 20), (20, 30)
    touched = [((), (a,)), ((a,), (b,)), ((), (c,)), ((b, c), ()), ((c,), (a,))]
    items = [Item(None, reads, writes) for reads, writes in touched]  # type: ignore[arg-type]
    levels = [[items.index(item) for item in level] for level in whole.levels_of(items)]
    assert levels == [[0, 2], [1], [3, 4]]


@pytest.mark.parametrize("device", DEVICES)
def test_a_variable_that_nobody_reads_is_written(device: str) -> None:
    rng = np.random.default_rng(2)
    x = placeholder("x", Spec((5, 7), np.dtype(np.float32)))
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((7, 6), (6, 3)))
    goal = md.variable("goal", np.zeros((5, 3), np.float32))
    y = ops.softmax(ops.matmul(Operation(x), a))
    fed = rng.standard_normal((5, 7)).astype(np.float32)
    with on(device):
        step = Executable(
            [], [(goal.node, ops.matmul(y, b).node)], executor="native", device="cuda"
        )
        step.run({x: fed})
        found = goal.node.value.read()
    logits = fed.astype(np.float64) @ a
    shares = np.exp(logits - logits.max(1, keepdims=True))
    expected = shares / shares.sum(1, keepdims=True) @ b
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
