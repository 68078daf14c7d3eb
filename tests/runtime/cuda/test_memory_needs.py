"""What a step takes of a device's memory is known before it runs."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.engine import CONVOLUTIONS
from magmadnn.comm import simulate
from magmadnn.errors import OutOfMemoryError
from magmadnn.memory import Kind
from magmadnn.memory.pool import POOLS, size_class
from magmadnn.optim import memory_check
from magmadnn.runtime.cuda.schedule import small
from magmadnn.runtime.evaluate import Executable
from magmadnn.training.many.running import room
from tests.runtime.cuda.devices import DEVICES, distance, network, on, samples
from tests.runtime.cuda.emulator import emulated_device

X, Y = samples(96, 23, 10)
SIZES = (23, 61, 67, 10)


def assert_foretold(
    make: Callable[[], md.Model], x: Any, y: Any, batch_size: int, epochs: int = 2
) -> md.Model:
    """A model, trained; what `memory` tells of it is what blocks take, beside the data and its order.

    Another one is trained before, so that what is made once is there.
    """
    make().fit(x, y, batch_size=batch_size, verbose=False)
    gc.collect()
    md.memory.trim()  # what waits for a model that is built alike
    pools = [POOLS[kind] for kind in (Kind.DEVICE, Kind.MANAGED)]
    before = [pool.report().in_use for pool in pools]
    model = make()
    model.fit(x, y, batch_size=batch_size, verbose=False, epochs=epochs)
    after = [pool.report().in_use for pool in pools]
    data = size_class(x.nbytes) + size_class(y.nbytes) + size_class(8 * len(y) + 16)
    on_device, on_both_sides = (a - b for a, b in zip(after, before, strict=True))
    found = model.memory(batch_size=batch_size).total
    assert on_device + on_both_sides / 2 - data == pytest.approx(found, rel=0.05)
    return model


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_small", [True, False])
def test_the_prediction_is_what_blocks_take(
    device: str, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the data, the order of its rows, and tables of launches."""
    if not is_small:
        monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    with on(device):
        batch = 8 if is_small else 48
        assert_foretold(lambda: network(SIZES, "adam", device="cuda"), X, Y, batch)


def first_layer(precision: str = "mixed_bf16") -> md.Model:
    """A network that begins as ResNet does."""
    layers = [
        md.layers.Input((32, 31, 3)),
        md.layers.Conv2D(24, 7, strides=2, padding="same"),
        md.layers.GlobalAveragePooling2D(),
        md.layers.Dense(10),
    ]
    way = {"device": "cuda", "precision": precision}
    return md.Model(layers, loss="cross_entropy", optimizer="sgd", seed=1, **way)


@pytest.mark.parametrize("device", DEVICES)
def test_a_gathered_image_is_counted(device: str) -> None:
    """4 x 4 filters on 16 channels as 4 x 1 on 64: 64 halves for each of 19 x 16 places of an image."""
    images = np.random.default_rng(0).random((96, 32, 31, 3), np.float32)
    with on(device, CONVOLUTIONS):
        model = assert_foretold(first_layer, images, Y, 48)
        found = model.memory(batch_size=48).total
        assert first_layer().fit(images, Y, batch_size=48, memory_limit=found, verbose=False).rows
        with pytest.raises(OutOfMemoryError, match="memory_limit is"):
            first_layer().fit(images, Y, batch_size=48, memory_limit=found - 1, verbose=False)
        assert "_gathered_whole bfloat16[48, 19, 16, 64]" in model.plan(batch_size=48)
        # it lies beside the results and their gradients, 24 halves for each of 16 x 16 places
        assert found > 48 * 2 * (19 * 16 * 64 + 2 * 16 * 16 * 24)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("precision", "times"), [("tf32", 1), ("mixed_bf16", 2)])
def test_gathered_images_are_kept_in_float32_and_made_again_in_halves(
    device: str, precision: str, times: int
) -> None:
    images = np.random.default_rng(0).random((48, 32, 31, 3), np.float32)
    with on(device, CONVOLUTIONS):
        plan = first_layer(precision).plan(images, Y[:48], batch_size=48)
        assert len(re.findall(r"^ *\d+ library gathered", plan, re.MULTILINE)) == times


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_without_room_is_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with on(device):
        model = network(SIZES, "adam", device="cuda")
        monkeypatch.setattr(Executable, "free_bytes", lambda self, sharers: 250_000)
        monkeypatch.setattr(memory_check, "ALWAYS_THERE", 0)
        with pytest.raises(
            OutOfMemoryError, match=r"device 0 has 244.1 KiB left; the largest that fits is"
        ):
            model.fit(X, Y, batch_size=96, verbose=False)
        assert model.fit(X, Y, batch_size=16, verbose=False).rows


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_that_are_computed_again(device: str) -> None:
    """On a device as on the processor, but for rounding: one step of SGD, 2 e-6 of parameters of size 1."""
    layers, found = md.layers, []
    with on(device):
        for where in ("cpu", "cuda"):
            block = layers.Checkpointed(
                [layers.Dense(9), layers.BatchNorm(), layers.Dropout(0.2), layers.Dense(8, "tanh")]
            )
            model = md.Model(
                [layers.Input((23,)), block, layers.Dense(10)],
                loss="cross_entropy", optimizer=md.optim.SGD(0.5), seed=3, device=where,
            )  # fmt: skip
            model.fit(X, Y, batch_size=48, verbose=False)
            found.append(model.values())
    for name, value in found[0].items():
        assert np.abs(found[1][name] - value).max() <= 2e-6, name


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_several_batches(device: str) -> None:
    """As on the processor but for rounding: 3 updates of 2 batches, rates of 0.5."""
    found = []
    with on(device):
        for where in ("cpu", "cuda"):
            model = network(SIZES, md.optim.SGD(md.optim.cosine(0.5, 9)), device=where)
            model.fit(X, Y, batch_size=20, accumulate=2, verbose=False)
            assert model._step[2].count == 3
            found.append(model)
    assert distance(*found) <= 2e-6


def test_ranks_that_share_a_device_plan_on_its_memory_divided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one rank of two needs is there, but not what both do; on devices of their own both have it."""

    def fit(comm: Any, devices: int) -> str:
        model = network(SIZES, "adam", device=f"cuda:{comm.rank % devices}")
        try:
            way = md.parallel.ParameterServer(comm)
            model.fit(X, Y, batch_size=96, verbose=False, parallel=way)
        except OutOfMemoryError as error:
            return str(error)
        return ""

    monkeypatch.setattr(Executable, "free_bytes", lambda self, sharers: 250_000 // sharers)
    monkeypatch.setattr(memory_check, "ALWAYS_THERE", 0)
    with emulated_device(devices=2):
        assert simulate(2, partial(fit, devices=2)) == ["", ""]
        for said in simulate(2, partial(fit, devices=1)):
            assert re.search(
                r"device 0 has 122.1 KiB left for each of the 2 ranks that it has;", said
            )


def test_trainings_of_ranks_that_share_a_device_plan_on_its_memory_divided() -> None:
    with emulated_device():
        ranks: Any = SimpleNamespace(rank=0, exchange=lambda own: [own, own, ["", ["other"]]])
        whole = room._free(0)
        with room.sharing_memory(ranks, [0]):
            assert room._free(0) <= whole // 2 + POOLS[Kind.DEVICE].report().pooled
        assert room._free(0) == whole
