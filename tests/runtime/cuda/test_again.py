"""Calls of `fit` that begin before they have looked at what they were given, with the same bits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import DataError, DTypeError
from magmadnn.runtime.cuda.data import checked_cache as watched
from magmadnn.runtime.cuda.run.slices import CudaSlices
from magmadnn.runtime.cuda.schedule import cuts, small
from magmadnn.training.loop import speculative
from magmadnn.training.model import fitting
from tests.runtime.cuda.devices import DEVICES, distance, network, on, samples
from tests.runtime.cuda.emulator import needs_compiler
from tests.runtime.cuda.test_foreign import Foreign

SIZES = (13, 7, 5)
ROWS = 96


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """All arrays are worth it."""
    monkeypatch.setattr(watched, "LEAST_BYTES", 1)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What slices do."""
    found: list[str] = []
    for name in ("begin", "_go_back", "_goes_on"):
        kept = getattr(CudaSlices, name)

        def told(self: Any, *given: Any, name: str = name, kept: Any = kept) -> Any:
            result = kept(self, *given)
            if name != "_goes_on" or result:
                found.append(name)
            return result

        monkeypatch.setattr(CudaSlices, name, told)
    return found


def given(kind: str) -> tuple[Any, Any]:
    x, y = samples(ROWS, *SIZES[::2])
    if kind == "foreign":
        return Foreign(x), Foreign(y)
    x, y = x.copy(), y.copy()
    if kind == "fixed":
        x.flags.writeable = y.flags.writeable = False
    return x, y


def never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, "known_order", lambda *_: None)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["fixed", "written"])
def test_calls_give_the_same_bits(device: str, kind: str, way: str) -> None:
    x, y = given(kind)
    settings = {"batch_size": 16, "verbose": 0}
    with on(device):
        one, other = (network(SIZES, md.optim.Adam(0.01), device="cuda") for _ in range(2))
        with pytest.MonkeyPatch.context() as patch:
            never(patch)
            wanted = [other.fit(x, y, **settings, epochs=1 + k % 2).rows for k in range(4)]
        found = [one.fit(x, y, **settings, epochs=1 + k % 2).rows for k in range(4)]
        for a, b in zip(found, wanted, strict=True):
            assert [r["loss"] for r in a] == [r["loss"] for r in b]
        assert distance(one, other) == 0


@needs_compiler
@pytest.mark.parametrize("kind", ["fixed", "written", "foreign"])
def test_a_call_like_the_last_begins_at_once(
    kind: str, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    with on("emulated"):
        x, y = given(kind)
        model, other = (network(SIZES, md.optim.SGD(0.1), device="cuda") for _ in range(2))
        before = 1
        for _ in range(before):
            model.fit(x, y, batch_size=16, verbose=0)
        events.clear()
        model.fit(x, y, batch_size=16, verbose=0)
        assert events == ["begin", "_goes_on"]
        never(monkeypatch)
        for _ in range(before + 1):
            other.fit(x, y, batch_size=16, verbose=0)
        assert events == ["begin", "_goes_on"]
        assert distance(model, other) == 0


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
        for model, is_new in zip(models, (True, False), strict=True):
            x, y = given("written")
            with pytest.MonkeyPatch.context() as patch:
                if not is_new:
                    never(patch)
                settings: dict[str, Any] = {"batch_size": 16, "verbose": 0}
                for call in range(4):
                    if call == 2:
                        change(model, x, y, settings)
                    losses.append([r["loss"] for r in model.fit(x, y, **settings).rows])
        assert losses[:4] == losses[4:]
        assert distance(*models) == 0


@needs_compiler
def test_what_is_begun_in_vain_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, events: list[str]
) -> None:
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    x, y = given("fixed")
    with on("emulated"):
        model = network(SIZES, md.optim.SGD(0.1), device="cuda")
        for error in (DataError, DTypeError, KeyboardInterrupt):
            model.fit(x, y, batch_size=16, verbose=0)
            before = model.values()

            def refused(*_: Any, error: Any = error, **__: Any) -> None:
                raise error("no")

            events.clear()
            with monkeypatch.context() as patch, pytest.raises(error):
                patch.setattr(fitting, "training_step", refused)
                model.fit(x, y, batch_size=16, verbose=0)
            assert events == ["begin", "_go_back"]
            for name, value in model.values().items():
                np.testing.assert_array_equal(value, before[name])


def test_steps_that_begin_are_few() -> None:
    assert cuts.ahead([8, 8, 8, 64, 64], 22e-6) == [8, 8, 8]
    assert cuts.ahead([64, 64], 22e-6) == [64]
    assert cuts.ahead([1, 8], 1e-2) == [1]
    assert cuts.ahead([], 1.0) == []


@needs_compiler
def test_nothing_holds_a_training() -> None:
    x, y = given("fixed")
    with on("emulated"):
        model = network(SIZES, md.optim.SGD(0.1), device="cuda")
        model.fit(x, y, batch_size=16, verbose=0)
        gc.collect()
        gc.disable()
        try:
            before = len([o for o in gc.get_objects() if type(o).__name__ in ("Fit", "Call")])
            for _ in range(3):
                model.fit(x, y, batch_size=16, verbose=0)
            after = len([o for o in gc.get_objects() if type(o).__name__ in ("Fit", "Call")])
        finally:
            gc.enable()
        assert after == before == 0
