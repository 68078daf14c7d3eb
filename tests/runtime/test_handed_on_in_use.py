"""What a model leaves, while others live, are used, interrupted or taken apart: bits, and nobody's memory."""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import callbacks, layers, optim
from magmadnn.backends.cuda import device_memory
from magmadnn.errors import NumericError
from magmadnn.runtime import handed_on
from magmadnn.runtime.cpu import alike as on_cpu
from magmadnn.runtime.cuda.running import alike as on_device
from tests.runtime.cuda.devices import DEVICES, samples
from tests.runtime.handing import (
    PLACES,
    ROWS,
    SIZES,
    alone,
    fit,
    model,
    nothing_waits,
    numbers,
    same,
    trained,
)


@pytest.fixture(params=PLACES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where models are trained; something waits for models like these."""
    with nothing_waits(request.param) as found:
        yield found


def leave(device: str) -> None:
    """Let something wait, and nothing else."""
    handed_on._waiting.clear()
    for seed in range(90, 93):
        trained(device, seed)
    gc.collect()
    assert len(handed_on._waiting) == 1


# --- who has what ---------------------------------------------------------------------------------


def test_models_of_several_threads(device: str) -> None:
    wanted = [alone(device, seed) for seed in range(6)]
    leave(device)
    wrong: list[object] = []

    def work(number: int) -> None:
        draw = np.random.default_rng(number)
        try:
            for seed in draw.permutation(6):
                if not same(numbers(trained(device, int(seed))), wanted[seed]):
                    wrong.append((number, seed))
                if draw.random() < 0.3:
                    gc.collect()
                if draw.random() < 0.2:
                    md.memory.trim()
        except BaseException:
            wrong.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_variables_that_outlive_their_model_are_nobody_elses(device: str) -> None:
    leave(device)
    one = trained(device, 1)
    kept, before = list(one.variables()), list(numbers(one).values())
    del one
    gc.collect()
    assert len(handed_on._waiting) == 1
    trained(device, 2)
    assert all(
        np.array_equal(node.value.read(), value) for node, value in zip(kept, before, strict=True)
    )


def test_a_method_keeps_its_model(device: str) -> None:
    x, _ = samples(ROWS, SIZES[0], SIZES[2])
    leave(device)
    one = trained(device, 1)
    wanted, predict = one.predict(x), one.predict
    del one
    gc.collect()
    trained(device, 2).predict(x)
    assert np.array_equal(predict(x), wanted)


def test_a_callback_trains_models_and_drops_them(device: str) -> None:
    wanted = [alone(device, seed) for seed in range(3)]
    leave(device)
    inside = [trained(device, 7)]

    def ended(_: Any) -> None:
        inside.pop()  # what it leaves is for the next one
        inside.append(trained(device, 1))
        assert same(numbers(inside[0]), wanted[1])

    outer = fit(model(device, 2), callbacks=[callbacks.LambdaCallback(on_epoch_end=ended)])
    assert same(numbers(outer), wanted[2])


def test_copies_have_their_own(device: str) -> None:
    wanted = numbers(fit(trained(device, 1), 1))
    leave(device)
    one = trained(device, 1)
    before, other = numbers(one), copy.deepcopy(one)
    assert same(numbers(fit(other, 1)), wanted)
    assert same(numbers(one), before)
    del other
    gc.collect()
    trained(device, 2)
    assert same(numbers(fit(one, 1)), wanted)


def test_models_of_fit_many(device: str) -> None:
    x, y = samples(ROWS, SIZES[0], SIZES[2])
    wanted = [alone(device, seed) for seed in range(4)]
    further = numbers(fit(trained(device, 3), 1))
    leave(device)
    several = [model(device, seed) for seed in range(4)]
    md.fit_many(several, x, y, batch_size=8, epochs=2, verbose=0)
    assert all(same(numbers(one), wanted[seed]) for seed, one in enumerate(several))
    assert same(numbers(fit(several[3], 1)), further)
    del several
    gc.collect()
    assert same(numbers(trained(device, 2)), wanted[2])


def test_a_model_that_is_loaded(device: str, tmp_path: Path) -> None:
    trained(device, 1).save(tmp_path / "kept")
    handed_on._waiting.clear()
    wanted = numbers(fit(md.load(tmp_path / "kept", device=device), 1))
    leave(device)
    assert same(numbers(fit(md.load(tmp_path / "kept", device=device), 1)), wanted)


# --- what differs from model to model ---------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "dropout": {"inside": [layers.Dropout(0.3)]},
    "statistics": {"inside": [layers.BatchNorm()]},
    "rates by steps": {"optimizer": optim.Adam(optim.cosine(0.02, 100), clip_norm=1.0)},
    "momentum": {"optimizer": optim.SGD(0.1, momentum=0.9)},
}


@pytest.mark.parametrize("case", SETTINGS)
def test_seeds_phases_and_rates(device: str, case: str) -> None:
    x, _ = samples(ROWS, SIZES[0], SIZES[2])

    def found(seed: int) -> dict[str, np.ndarray]:
        settings = copy.deepcopy(SETTINGS[case])
        one = fit(model(device, seed, settings.pop("inside", None), **settings))
        there = one.predict(x)
        return numbers(fit(one, 1)) | {"predicted": there}

    wanted = []
    for seed in range(3):
        handed_on._waiting.clear()
        wanted.append(found(seed))
    assert not same(wanted[0], wanted[1])
    handed_on._waiting.clear()
    assert [same(found(seed), wanted[seed]) for seed in range(3)] == [True] * 3
    assert handed_on._waiting


# --- what goes wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["on_epoch_end", "on_batch_end"])
def test_an_interrupt_leaves_what_is_right_for_the_next(device: str, when: str) -> None:
    wanted = alone(device, 5)
    leave(device)

    def interrupt(_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    one = model(device, 6)
    with pytest.raises(KeyboardInterrupt):
        fit(one, 3, callbacks=[callbacks.LambdaCallback(**{when: interrupt})])
    del one
    gc.collect()
    assert same(numbers(trained(device, 5)), wanted)


def test_faults_are_not_handed_on(device: str) -> None:
    x, y = samples(ROWS, SIZES[0], SIZES[2])
    wanted = alone(device, 5)
    x[20] = 3e38  # sums of products are infinite
    one_by_one = [callbacks.LambdaCallback(on_batch_end=lambda _: None)]
    for options in ({}, {"callbacks": one_by_one}):
        leave(device)
        one = model(device, 6)
        with pytest.raises(NumericError):
            one.fit(x, y, batch_size=8, epochs=1, verbose=0, **options)
        del one
        gc.collect()
        assert same(numbers(trained(device, 5)), wanted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_goes_on_with_what_waits() -> None:
    with nothing_waits("cpu") as device:
        wanted = alone(device, 5)
        leave(device)
        child = os.fork()
        if not child:
            try:
                well = bool(handed_on._waiting) and same(numbers(trained(device, 5)), wanted)
            except BaseException:
                well = False
            os._exit(0 if well else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert same(numbers(trained(device, 5)), wanted)


# --- memory -----------------------------------------------------------------------------------------


def in_use() -> int:
    return sum(kind.in_use for kind in md.memory.report().kinds)


def test_as_much_is_in_use_after_many_models(device: str) -> None:
    leave(device)
    before = in_use()
    for seed in range(5):
        trained(device, seed)
    gc.collect()
    assert in_use() == before


def test_at_most_eight_wait(device: str) -> None:
    several = [trained(device, seed) for seed in range(11)]
    assert several
    several.clear()
    gc.collect()
    assert len(handed_on._waiting) == 8


def test_large_plans_do_not_wait(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(device)
    handed_on._waiting.clear()
    monkeypatch.setattr(on_cpu if device == "cpu" else on_device, "_MOST_BYTES", 100)
    trained(device, 1)
    gc.collect()
    assert not handed_on._waiting


@pytest.mark.parametrize("place", DEVICES)
def test_nobody_asks_what_is_free(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with nothing_waits(place) as device:
        leave(device)
        kind, asked = type(device_memory(0)), list[object]()
        known = kind.free_and_total
        monkeypatch.setattr(
            kind, "free_and_total", lambda self: (asked.append(self), known(self))[1]
        )
        trained(device, 1)
        assert not asked  # it takes milliseconds on some drivers
