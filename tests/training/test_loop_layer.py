"""A layer that loops over time, in a model that is trained, saved, loaded and profiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import GraphError
from magmadnn.runtime.cpu.sliced.slices import Slices


class Recurrent(md.layers.Layer):
    """The last state of `h = tanh(x[t] w + h u + b)`: [batch, time, features] -> [batch, units]."""

    units: int = 8
    unrolled: bool = False

    def build(self, x: md.Operation) -> None:
        self.w = self.parameter("w", (x.shape[-1], self.units), "glorot_uniform", x.dtype)
        self.u = self.parameter("u", (self.units, self.units), "glorot_uniform", x.dtype)
        self.b = self.parameter("b", (self.units,), "zeros", x.dtype)

    def forward(self, x: md.Operation) -> md.Operation:
        by_time = md.ops.transpose(x, (1, 0, 2))
        begin = md.ops.broadcast_to(np.zeros(1, x.dtype), (x.shape[0], self.units))

        def step(h: Any, x: Any) -> tuple[Any, Any]:
            return md.ops.tanh(x @ self.w + h @ self.u + self.b), ()

        if not self.unrolled:
            return md.scan(step, begin, by_time)[0]
        for t in range(x.shape[1]):
            begin, _ = step(begin, by_time[t])
        return begin


def model(unrolled: bool = False, **options: Any) -> md.Model:
    layers = [md.layers.Input((5, 3)), Recurrent(unrolled=unrolled, name="r"), md.layers.Dense(1)]
    return md.Model(layers, loss="mse", optimizer=md.optim.Adam(0.02), seed=3, **options)


def data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = np.random.default_rng(0).normal(size=(70, 5, 3)).astype(np.float32)
    return x, np.tanh(x.sum(axis=(1, 2)))[:, None]


def test_training_with_a_loop_is_training_of_the_unrolled_network() -> None:
    x, y = data()
    looped, flat = model(), model(unrolled=True, executor="reference")
    for net in (looped, flat):
        net.fit(x, y, epochs=4, batch_size=16, verbose=False)
    for name, value in flat.values().items():
        # some 20 steps of Adam, each of which may turn a rounding of a gradient near 0 into its step
        assert np.allclose(looped.values()[name], value, atol=2e-4), name
    assert looped.evaluate(x, y)["loss"] < 0.2


def test_a_model_with_a_loop_is_saved_loaded_profiled_and_shown(tmp_path: Path) -> None:
    x, y = data()
    net = model()
    net.fit(x, y, epochs=1, verbose=False)
    net.save(tmp_path / "net")
    again = md.load(tmp_path / "net", custom=[Recurrent])
    assert np.array_equal(again.predict(x), net.predict(x))
    assert "loop [5]" in net.plan(batch_size=8)
    assert "loop [5]" in str(net.profile(x[:8], y[:8]))
    assert "<svg" in md.graph.to_svg(net.diagram(x[:8], y[:8]))


def test_loops_of_known_and_of_unknown_length_are_exported(tmp_path: Path) -> None:
    assert model().export(tmp_path / "net.o")
    layers = [md.layers.Input(("time", 3)), Recurrent(name="r"), md.layers.Dense(1)]
    assert md.Model(layers).export(tmp_path / "any.o")


def test_a_layer_that_is_called_in_a_loop_belongs_to_a_layer() -> None:
    x, dense = md.layers.Input((5, 3)), md.layers.Dense(3)
    begin = md.ops.broadcast_to(np.zeros(1, np.float32), (x.shape[0], 3))
    last, _ = md.scan(lambda h, x: (dense(h + x), ()), begin, md.ops.transpose(x, (1, 0, 2)))
    with pytest.raises(GraphError, match="its layer is none of the model's"):
        md.Model(inputs=x, outputs=last)


def test_many_batches_with_loops_run_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data()
    batches = []
    run = Slices.run

    def counted(self: Slices, data: Any, order: Any, *options: Any) -> Any:
        batches.append(len(order) // 7)
        return run(self, data, order, *options)

    monkeypatch.setattr(Slices, "run", counted)
    model().fit(x, y, epochs=2, batch_size=7, verbose=False)
    assert sum(batches) == 20
    assert max(batches) > 1


def test_a_training_with_a_loop_goes_on_where_it_was(tmp_path: Path) -> None:
    x, y = data()
    whole = model()
    whole.fit(x, y, epochs=4, batch_size=16, verbose=False)
    for epochs in (2, 4):
        again = model()
        saving = md.callbacks.Checkpoint(tmp_path)
        again.fit(x, y, epochs=epochs, batch_size=16, verbose=False, callbacks=[saving])
    assert again.epochs_done == 4
    for name, value in whole.values().items():
        assert np.array_equal(value, again.values()[name]), name
