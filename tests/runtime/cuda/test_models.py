"""Models on a device: the same curves as on the processor, whatever way a step is run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import (
    DataError,
    DeviceError,
    NumericError,
    OutOfMemoryError,
    UnknownNameError,
)
from magmadnn.runtime.cuda.running import instance
from magmadnn.runtime.cuda.schedule import small
from magmadnn.training.loop import pieces
from tests.graph.by_numpy import doubled
from tests.runtime.cuda.devices import DEVICES, distance, network, on, samples
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

EPS = float(np.finfo(np.float32).eps)
SIZES = (13, 17, 11, 5)


@pytest.fixture(params=["one kernel", "launches"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks as they are run, and as larger ones are."""
    if request.param == "launches":
        monkeypatch.setattr(small, "MOST_OPERATIONS", 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "optimizer",
    [
        md.optim.SGD(0.3),
        pytest.param(md.optim.SGD(0.1, momentum=0.9), marks=pytest.mark.long),
        md.optim.Adam(0.01),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_fit_is_what_it_is_on_the_processor(device: str, optimizer: md.optim.Optimizer) -> None:
    x, y = samples(43, 13, 5)
    with on(device):
        there = network(SIZES, optimizer, device="cuda")
        here = network(SIZES, optimizer)
        curves = [m.fit(x, y, batch_size=8, epochs=3, verbose=0).rows for m in (there, here)]
        for a, b in zip(*curves, strict=True):
            assert a["loss"] == pytest.approx(b["loss"], rel=64 * EPS)
            assert a["accuracy"] == b["accuracy"]
        # 18 updates, each rounded a few times; Adam divides by small numbers
        assert distance(there, here) < 18 * 64 * EPS
        np.testing.assert_allclose(there.predict(x), here.predict(x), rtol=0, atol=18 * 64 * EPS)
        assert there.evaluate(x, y)["loss"] == pytest.approx(here.evaluate(x, y)["loss"], rel=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_replayed_graphs_do_what_single_steps_do(device: str) -> None:
    x, y = samples(8 * 75, 13, 5)  # a graph of 64 steps, one of 8, and 3 of one
    rate = md.optim.cosine(0.3, 90)  # another setting for each step
    with on(device):
        replayed, single = (network(SIZES, md.optim.SGD(rate), device="cuda") for _ in range(2))
        rows = replayed.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).rows
        looks = md.callbacks.LambdaCallback(on_batch_end=lambda fit: None)
        others = single.fit(
            x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[looks]
        ).rows
        assert [r["loss"] for r in rows] == [r["loss"] for r in others]
        assert distance(replayed, single) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_data_that_is_streamed_is_that_of_memory(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "_RING_BYTES", 4000)
    x, y = samples(8 * 20 + 3, 13, 5)
    files = [
        np.lib.format.open_memmap(tmp_path / n, "w+", a.dtype, a.shape)
        for n, a in zip("xy", (x, y), strict=True)
    ]
    for file, array in zip(files, (x, y), strict=True):
        file[:] = array
    with on(device):
        held, read, made = (network(SIZES, md.optim.SGD(0.3), device="cuda") for _ in range(3))
        held.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
        read.fit(*files, batch_size=8, epochs=3, shuffle=False, verbose=0)
        made.fit(lambda: md.data.batches((x, y), 8), epochs=3, verbose=0)
        assert distance(held, read) == distance(held, made) == 0
        held.fit(x, y, batch_size=8, verbose=0)
        read.fit(*files, batch_size=8, verbose=0)
        assert distance(held, read) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_results_do_not_depend_on_the_run(device: str) -> None:
    x, y = samples(40, 13, 5)
    with on(device):
        models = [network(SIZES, md.optim.Adam(), device="cuda") for _ in range(3)]
        for model in models:
            model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        assert distance(models[0], models[1]) == distance(models[0], models[2]) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_parameters_move_when_they_are_asked_for(device: str) -> None:
    x, y = samples(24, 13, 5)
    with on(device):
        a, b = network(SIZES, md.optim.SGD(0.3), device="cuda"), network(SIZES, md.optim.SGD(0.3))
        for model in (a, b):
            model.fit(x, y, batch_size=8, verbose=0)
        held = b.values()
        a.assign(held)  # to the device
        assert distance(a, b) == 0
        for model in (a, b):
            model.fit(x, y, batch_size=8, verbose=0)
        assert 0 < max(np.abs(a.values()[k] - held[k]).max() for k in held)
        assert distance(a, b) < 64 * EPS


@pytest.mark.parametrize("device", DEVICES)
def test_what_has_no_kernel_is_computed_by_numpy(device: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((9, 4, 3)).astype(np.float32)
    fed = md.layers.Input((4, 3))
    by_numpy = doubled(fed)
    layers = md.layers.Dense(2)(md.layers.Flatten()(by_numpy))
    with on(device):
        there = md.Model(inputs=fed, outputs=layers, seed=1, device="cuda")
        here = md.Model(inputs=fed, outputs=layers, seed=1)
        np.testing.assert_allclose(there.predict(x), here.predict(x), rtol=1e-5, atol=1e-6)
        assert "numpy" in there.plan(batch_size=9)


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_drops_what_it_drops_on_the_processor(device: str) -> None:
    x, y = samples(40, 13, 5)

    def built(place: str) -> md.Model:
        layers = [md.layers.Input((13,)), md.layers.Dense(17, activation="relu")]
        layers += [md.layers.Dropout(0.3), md.layers.Dense(5)]
        return md.Model(
            layers, loss="cross_entropy", optimizer=md.optim.SGD(0.3), seed=5, device=place
        )

    with on(device):
        there, here = built("cuda"), built("cpu")
        for model in (there, here):
            model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        assert distance(there, here) < 10 * 64 * EPS


@pytest.mark.parametrize("device", DEVICES)
def test_rows_by_number(device: str) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 11, (40, 6)), rng.integers(0, 3, 40)

    def built(place: str) -> md.Model:
        fed = md.layers.Input((6,), "int64")
        out = md.layers.Dense(3)(md.layers.Flatten()(md.layers.Embedding(11, 4)(fed)))
        return md.Model(
            inputs=fed, outputs=out, loss="cross_entropy", optimizer=md.optim.SGD(0.3), seed=5,
            device=place,
        )  # fmt: skip

    with on(device):
        there, here = built("cuda"), built("cpu")
        for model in (there, here):
            model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        assert distance(there, here) < 10 * 64 * EPS
        with pytest.raises(DataError):
            there.predict(x + 9)


@pytest.mark.parametrize("device", DEVICES)
def test_not_a_number_is_told_and_nothing_is_changed(device: str) -> None:
    x, y = samples(24, 13, 5)
    x[17] = 3e38
    with on(device):
        model = network(SIZES, md.optim.SGD(0.3), activation="relu", device="cuda")
        with pytest.raises(NumericError, match="dense_1"):
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        assert all(np.isfinite(v).all() for v in model.values().values())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sliced", [True, False])
def test_an_update_that_is_not_finite_is_not_made(device: str, sliced: bool) -> None:
    x, y = samples(24, 13, 5)
    fed: tuple[Any, ...] = (x, y) if sliced else ([(x[:8], y[:8])],)
    with on(device):
        model = network(SIZES, md.optim.SGD(3e38), activation="relu", device="cuda")
        before = model.values()
        x *= np.float32(1e6)  # gradients are that large, so updates overflow
        with pytest.raises(NumericError):
            model.fit(*fed, **({"batch_size": 8} if sliced else {}), shuffle=False, verbose=0)
        assert all((model.values()[name] == value).all() for name, value in before.items())


@needs_compiler
def test_memory_that_runs_out_is_told_and_the_process_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, _ = samples(1 << 16, 13, 5)
    monkeypatch.setattr(instance, "PRODUCT_WORKSPACE", 1 << 10)
    with emulated_device(capacity=40 << 20):
        model = network((13, 170, 5), None, device="cuda")
        few = model.predict(x[:8])
        with pytest.raises(OutOfMemoryError) as caught:
            model.predict(x, batch_size=len(x))
        text = str(caught.value)
        assert re.match(
            r"the plan needs \d+(\.\d)? MiB on device 0 for batch 65536; the largest", text
        )
        assert "sigmoid 42.5 MiB in dense_1" in text
        assert "lower the batch size" in text
        assert (model.predict(x[:8]) == few).all()


def test_a_device_that_is_not_there_is_told() -> None:
    from magmadnn.backends.cuda import Provider, install

    before = install(Provider(lambda: (0, "no driver"), lambda n: pytest.fail("not there")))
    try:
        with pytest.raises(DeviceError, match='device "cuda": no driver; use device="cpu"'):
            network(SIZES, md.optim.SGD(0.3), device="cuda")
        assert network(SIZES, md.optim.SGD(0.3), device="auto").device == "cpu"
    finally:
        install(before)
    with pytest.raises(UnknownNameError, match="cuda"):
        network(SIZES, md.optim.SGD(0.3), device="cude")


@needs_compiler
def test_names_of_devices() -> None:
    with emulated_device():
        assert network(SIZES, None, device="auto").device == "cuda:0"
        with pytest.raises(DeviceError, match="this machine has 1, counted from 0"):
            network(SIZES, None, device="cuda:3")
