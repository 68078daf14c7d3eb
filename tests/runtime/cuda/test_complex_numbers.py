"""Complex numbers and transforms on a device: computed where they lie, in slices of many steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.graph import Node
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.running.sliced import kept_slices
from magmadnn.runtime.cuda.schedule import array_calls, launches, small
from tests.linalg.test_fft import CALLS, COMPLEX, REAL, given, node
from tests.linalg.whitening import X, Y, apart, trained
from tests.runtime.cuda.devices import DEVICES, on


@pytest.fixture(autouse=True)
def nothing_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps stay on the device, and the other library has all functions."""

    def called(layout: Any, work: Any) -> Any:
        raise AssertionError(f"NumPy computes {work.region}")

    computed = array_calls.computed

    def without_host(node: Node, operands: Any, attributes: Any) -> Any:
        on_host: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                type(node.op), "forward", lambda *_: on_host.append(node) or np.zeros(node.shape)
            )
            found = computed(node, operands, attributes)
        assert not on_host, f"{node} is computed on the host"
        return found

    monkeypatch.setattr(launches, "host_call", called)
    monkeypatch.setattr(array_calls, "computed", without_host)
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("single", [False, True])
def test_transforms_are_those_of_numpy(single: bool, device: str) -> None:
    """To some eps log n of the largest, with their gradients: all in one program."""
    outputs: list[Node] = []
    feeds: dict[Node, np.ndarray] = {}
    expected: list[np.ndarray] = []
    for name, options in CALLS:
        x = given(name)
        if single:
            x = x.astype("float32" if name.startswith("rfft") else "complex64")
        symbol = node("x", x)
        feeds[symbol] = x
        outputs.append(getattr(md.fft, name)(symbol, **options))
        expected.append(getattr(np.fft, name)(x, **options))
    with on(device):
        found = Executable(outputs, executor="native", device="cuda").run(feeds)
    for call, one, other in zip(CALLS, found, expected, strict=True):
        assert one.shape == other.shape, call
        bound = 30 * np.finfo(one.dtype).eps * np.abs(other).max()
        assert np.abs(one - other).max() <= bound, call


@pytest.mark.parametrize("device", DEVICES)
def test_arithmetic_and_gradients_are_those_of_the_reference(device: str) -> None:
    z, w = COMPLEX[0], COMPLEX[1].T
    x, y, r = node("x", z), node("y", w), node("r", REAL[2])
    o = md.ops
    product = o.matmul(x * r + 2j, y) * o.exp(o.matmul(x, y) * 0.1) + o.sin(x[:, :5]) / (
        y[:5] + 3.0
    )
    total = o.sum(o.abs(product) * o.real(product)) + o.sum(o.angle(x)) + o.sum(o.imag(x * x) * r)
    total = (
        total + o.sum(o.real(o.conj(x) * o.sqrt(x) * o.log(x))) + o.sum(o.real(o.mean(x, axis=0)))
    )
    total = total + o.sum(o.abs(md.fft.fft(x, 11) * o.pad(x, ((0, 0), (1, 2)))))
    outputs = [total, product, *gradient(total, [x, y, r])]
    feeds = {x: z, y: w, r: REAL[2]}
    expected = Executable(outputs, executor="reference").run(feeds)
    with on(device):
        found = Executable(outputs, executor="native", device="cuda").run(feeds)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11 * np.abs(other).max())


class Filtered(md.layers.Layer):
    """Samples whose transforms are scaled by numbers that are learnt."""

    def build(self, x: Any) -> None:
        """Scales [n // 2 + 1]."""
        self.scale = self.parameter("scale", (x.shape[-1] // 2 + 1,), md.init.normal(), x.dtype)

    def forward(self, x: Any) -> Any:
        """[batch, n] -> [batch, n]"""
        return md.fft.irfft(md.fft.rfft(x) * self.scale, x.shape[-1])


def filtering(**options: Any) -> md.Model:
    layers = [md.layers.Input((6,)), Filtered(), md.layers.Dense(2)]
    return md.Model(layers, loss="mse", optimizer=md.optim.SGD(0.01), seed=3, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_training_runs_many_steps_in_one_go(device: str) -> None:
    with on(device):
        model = trained(filtering(device="cuda"))
        assert any(kept_slices._kept.values())  # not batch by batch
        assert "by NumPy" not in model.plan()
        assert apart(model, trained(filtering(executor="reference"))) < 1e-4
        assert model.profile(X[:16], Y[:16]).steps
