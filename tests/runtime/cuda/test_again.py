"""Calls of `fit` one after the other on the same arrays, which need not be copied to the device again."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import magmadnn as md
from magmadnn.runtime.cuda.data import checked_cache as watched
from magmadnn.runtime.cuda.schedule import small
from tests.runtime.cuda.devices import DEVICES, distance, network, on, samples
from tests.runtime.cuda.emulator import needs_compiler

SIZES = (13, 7, 5)
ROWS = 96


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """All arrays are worth it."""
    monkeypatch.setattr(watched, "LEAST_BYTES", 1)


def given(kind: str) -> tuple[Any, Any]:
    x, y = samples(ROWS, *SIZES[::2])
    x, y = x.copy(), y.copy()
    if kind == "fixed":
        x.flags.writeable = y.flags.writeable = False
    return x, y


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["fixed", "written"])
def test_calls_give_the_same_bits(device: str, kind: str, way: str) -> None:
    x, y = given(kind)
    settings = {"batch_size": 16, "verbose": 0}
    with on(device):
        one, other = (network(SIZES, md.optim.Adam(0.01), device="cuda") for _ in range(2))
        fresh = [(x.copy(), y.copy()) for _ in range(4)]
        wanted = [other.fit(*fresh[k], **settings, epochs=1 + k % 2).rows for k in range(4)]
        found = [one.fit(x, y, **settings, epochs=1 + k % 2).rows for k in range(4)]
        for a, b in zip(found, wanted, strict=True):
            assert [r["loss"] for r in a] == [r["loss"] for r in b]
        assert distance(one, other) == 0


def other_rate(model: Any, x: Any, y: Any, settings: dict[str, Any]) -> None:
    model._step[2].set(learning_rate=0.5)


def scheduled(model: Any, x: Any, y: Any, settings: dict[str, Any]) -> None:
    model._step[2].set(learning_rate=lambda step: 0.1 / (1 + step))


def other_optimizer(model: Any, x: Any, y: Any, settings: dict[str, Any]) -> None:
    model.optimizer = md.optim.Adam(0.1)


def frozen(model: Any, x: Any, y: Any, settings: dict[str, Any]) -> None:
    model.freeze("dense_1")


def assigned(model: Any, x: Any, y: Any, settings: dict[str, Any]) -> None:
    model.assign({name: value / 2 for name, value in model.values().items()})


def as_they_stand(model: Any, x: Any, y: Any, settings: dict[str, Any]) -> None:
    settings["shuffle"] = False


def other_batches(model: Any, x: Any, y: Any, settings: dict[str, Any]) -> None:
    settings["batch_size"] = 8


def one_by_one(model: Any, x: Any, y: Any, settings: dict[str, Any]) -> None:
    settings["callbacks"] = [md.callbacks.LambdaCallback(on_batch_end=lambda fit: None)]


def no_epoch(model: Any, x: Any, y: Any, settings: dict[str, Any]) -> None:
    settings["epochs"] = 0


def written(model: Any, x: Any, y: Any, settings: dict[str, Any]) -> None:
    x[5] *= -1


CHANGES = [
    other_rate, scheduled, other_optimizer, frozen, assigned, as_they_stand, other_batches,
    one_by_one, no_epoch, written,
]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_meanwhile_counts(
    monkeypatch: pytest.MonkeyPatch, device: str, change: Callable[..., None]
) -> None:
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    with on(device):
        models = [network(SIZES, md.optim.SGD(0.1), device="cuda") for _ in range(2)]
        losses = []
        for model, is_kept in zip(models, (True, False), strict=True):
            x, y = given("written")
            settings: dict[str, Any] = {"batch_size": 16, "verbose": 0}
            for call in range(4):
                if call == 2:
                    change(model, x, y, settings)
                data = (x, y) if is_kept else (x.copy(), y.copy())
                losses.append([r["loss"] for r in model.fit(*data, **settings).rows])
        assert losses[:4] == losses[4:]
        assert distance(*models) == 0


@needs_compiler
def test_nothing_holds_a_training() -> None:
    x, y = given("fixed")
    with on("emulated"):
        model = network(SIZES, md.optim.SGD(0.1), device="cuda")
        model.fit(x, y, batch_size=16, verbose=0)
        gc.collect()
        gc.disable()
        try:
            before = len([o for o in gc.get_objects() if type(o).__name__ == "Fit"])
            for _ in range(3):
                model.fit(x, y, batch_size=16, verbose=0)
            after = len([o for o in gc.get_objects() if type(o).__name__ == "Fit"])
        finally:
            gc.enable()
        assert after == before == 0
