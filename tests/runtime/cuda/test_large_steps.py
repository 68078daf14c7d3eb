"""Steps that take much memory of a device: one set of it, one copy of variables, nothing kept for long."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.engine import CONVOLUTIONS, ConvolutionNode, Engine
from magmadnn.compiler.plan.memory import arena_of
from magmadnn.memory import Kind
from magmadnn.memory.pool import POOLS, size_class
from magmadnn.runtime.cuda import algorithms, layout
from magmadnn.runtime.cuda.data import pending
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.running.sliced.slices import CudaSlices
from magmadnn.runtime.cuda.schedule import small
from magmadnn.storage.checkpoint import parameters_sha256
from tests.runtime.cuda.devices import DEVICES, network, on, samples
from tests.runtime.cuda.emulator import emulated_device, needs_compiler
from tests.runtime.cuda.test_memory_needs import assert_foretold

X, Y = samples(96, 23, 10)
SIZES = (23, 61, 67, 10)
IMAGES = np.random.default_rng(0).random((96, 32, 31, 3), np.float32)


@pytest.fixture(autouse=True)
def several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> list[Layout]:
    """All that are made."""
    found: list[Layout] = []
    made = Layout.__init__

    def init(self: Layout, *args: Any, **more: Any) -> None:
        found.append(self)
        made(self, *args, **more)

    monkeypatch.setattr(Layout, "__init__", init)
    return found


def convolutional(precision: str = "float32") -> md.Model:
    """Two convolutions, the first of which gathers places of its images."""
    layers = [
        md.layers.Input((32, 31, 3)),
        md.layers.Conv2D(24, 7, strides=2, padding="same"),
        md.layers.MaxPooling2D(2),
        md.layers.Conv2D(32, 3, padding="same"),
        md.layers.MaxPooling2D(2),
        md.layers.Flatten(),
        md.layers.Dense(10),
    ]
    way: dict[str, Any] = {"device": "cuda", "precision": precision}
    return md.Model(layers, loss="cross_entropy", optimizer="sgd", seed=1, **way)


def trained(epochs: int = 3) -> str:
    """Parameters after several slices."""
    model = network(SIZES, "adam", device="cuda")
    model.fit(X, Y, batch_size=8, verbose=False, epochs=epochs)
    return parameters_sha256(model.values().items())


@pytest.mark.parametrize("device", DEVICES)
def test_large_values_have_one_set_of_memory(
    device: str, layouts: list[Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    with on(device):
        expected, twice = trained(), len(layouts)
        monkeypatch.setattr(layout, "_TWICE_BYTES", 0)
        assert trained() == expected
        assert (twice, len(layouts) - twice) == (2, 1)


@pytest.mark.parametrize("device", DEVICES)
def test_large_variables_are_copied_for_one_slice_at_a_time(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    launch = CudaSlices.launch

    def noted(self: CudaSlices, *args: Any) -> Any:
        begun.append(bool(self._flights))
        return launch(self, *args)

    monkeypatch.setattr(CudaSlices, "launch", noted)
    with on(device):
        expected = trained()
        assert any(begun)
        begun.clear()
        monkeypatch.setattr(pending, "_COPIED_TWICE", 0)
        assert trained() == expected
        assert begun and not any(begun)


@pytest.mark.parametrize("device", DEVICES)
def test_the_prediction_is_what_blocks_take(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_TWICE_BYTES", 0)
    monkeypatch.setattr(pending, "_COPIED_TWICE", 0)
    with on(device):
        assert_foretold(lambda: network(SIZES, "adam", device="cuda"), X, Y, 48, epochs=4)


@needs_compiler
def test_memory_for_other_data_is_free_before_more_is_taken() -> None:
    """Without the collector of cycles, which comes when it wants."""
    with emulated_device(functions=CONVOLUTIONS):
        model = convolutional()
        model.fit(IMAGES[:48], Y[:48], batch_size=24, verbose=False)
        gc.collect()
        gc.disable()
        try:
            before = POOLS[Kind.DEVICE].report().in_use
            model.fit(IMAGES, Y, batch_size=24, verbose=False)
            more = POOLS[Kind.DEVICE].report().in_use - before
        finally:
            gc.enable()
    assert more <= size_class(IMAGES.nbytes) + size_class(Y.nbytes) + size_class(8 * len(Y) + 16)


@needs_compiler
def test_gradients_do_not_wait_for_the_last_convolution(layouts: list[Layout]) -> None:
    """A bias is updated beside the gradients of layers in front of it, so that theirs is free."""
    with emulated_device(functions=CONVOLUTIONS):
        convolutional().fit(IMAGES, Y, batch_size=24, verbose=False)
        plan = layouts[0].plan
        arena = arena_of(plan, layouts[0].sizes)
        calls = [w.phase for w in plan.work if "_convolution_filters" in str(w.region)]
        late = [life for life in arena.lives if life.last >= max(calls) and life.nbytes > 1 << 16]
    assert len(calls) == 2
    # the gradient of the first convolution's result, and the images that it is of
    assert {life.node.shape[1:3] for life in late} == {(16, 16), (19, 19)}


@needs_compiler
def test_gathered_images_are_made_again_for_their_gradient(layouts: list[Layout]) -> None:
    with emulated_device(functions=CONVOLUTIONS):
        convolutional("mixed_bf16").fit(IMAGES, Y, batch_size=24, verbose=False)
        plan = layouts[0].plan
        arena = arena_of(plan, layouts[0].sizes)
        found = [life for life in arena.lives if "_gathered" in str(life.node.op)]
    forward, backward = sorted(found, key=lambda life: life.first)
    assert forward.last < backward.first
    assert backward.last == backward.first + 1


def test_slow_algorithms_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes four times as long is not run again, one that takes twice as long for one round."""
    microseconds, runs = {b"a": 2.0, b"b": 8.0, b"c": 4.0, b"d": 2.1}, dict.fromkeys("abcd", 0)

    class Timed:
        def __init__(self, engine: Engine, node: ConvolutionNode, count: int) -> None:
            self._name, self._count = node.algorithm, count

        def seconds(self) -> float:
            runs[self._name.decode()] += self._count
            return 1e-6 * microseconds[self._name]

    monkeypatch.setattr(algorithms, "_Timed", Timed)
    monkeypatch.setattr(algorithms, "replace", lambda node, algorithm: Named(algorithm))
    times = algorithms._times_of(None, None, list(microseconds))  # type: ignore[arg-type]
    assert runs == {"a": 10, "b": 1, "c": 4, "d": 10}
    assert times == {name: pytest.approx(1e-6 * t) for name, t in microseconds.items()}


class Named:
    """What stands for a call with an algorithm."""

    def __init__(self, algorithm: bytes) -> None:
        self.algorithm = algorithm
