"""How often garbage is looked for while many models are trained, and that this is put back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.training.many.collecting import collecting_seldom

USUAL, FEW = (500, 7, 9), (90_000, 7, 9)


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)


def looks(models: int) -> tuple[int, list[tuple[int, int, int]]]:
    """How often garbage was looked for in a fit of so many models, and the thresholds within."""
    found: list[str] = []
    seen: list[tuple[int, int, int]] = []

    class Sees(md.callbacks.Callback):
        def on_train_begin(self, fit: Any) -> None:
            seen.append(gc.get_threshold())

    built = [
        md.Model([md.layers.Input(3), md.layers.Dense(2)], loss="mse", optimizer="sgd", seed=k)
        for k in range(models)
    ]
    x, y = np.ones((5, 3), np.float32), np.ones((5, 2), np.float32)

    def look(phase: str, info: Any) -> None:
        found.append(phase)

    gc.callbacks.append(look)
    try:
        md.fit_many(built, x, y, callbacks=lambda k: [Sees()], verbose=False)
    finally:
        gc.callbacks.remove(look)
    return found.count("start"), seen


def test_many_models_begin_with_few_looks() -> None:
    looks(1)
    count, seen = looks(6)
    assert seen == [(20_000, 7, 9)] * 6
    assert count < 6  # by the usual threshold several for each
    assert gc.get_threshold() == USUAL


def test_it_is_put_back_after_an_error() -> None:
    with pytest.raises(md.errors.MagmaDNNError):
        md.fit_many([], None, None)
    assert gc.get_threshold() == USUAL


@pytest.mark.parametrize("own", [FEW, (0, 7, 9)])
def test_who_looks_less_often_goes_on(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with collecting_seldom():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_the_last_of_several_threads_puts_it_back() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collecting_seldom():
            inside.set()
            leave.wait(10)

    with collecting_seldom():
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10)
        with collecting_seldom():
            pass
        assert gc.get_threshold()[0] == 20_000
    assert gc.get_threshold()[0] == 20_000  # the other thread is inside
    leave.set()
    thread.join()
    assert gc.get_threshold() == USUAL
