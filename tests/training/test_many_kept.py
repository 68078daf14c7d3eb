"""Sets of trainings that are broken off and go on, memory, and what is printed."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import layers, optim
from magmadnn.errors import ArgumentError
from magmadnn.training.loop.fit import Fit
from magmadnn.training.many import asked, course, fits
from magmadnn.training.many.running import members, room, scheduler
from magmadnn.training.many.told import Told
from tests.interrupts import interrupted_everywhere
from tests.training.many_networks import digests, network

DRAW = np.random.default_rng(6)
X = DRAW.normal(size=(45, 6)).astype(np.float32)
Y = DRAW.integers(0, 3, 45)
GIVEN: dict[str, Any] = {"batch_size": 8, "epochs": 6, "verbose": False}


def uninterrupted(count: int = 4) -> tuple[list[str], list[md.History]]:
    models = [network(k) for k in range(count)]
    histories = md.fit_many(models, X, Y, **GIVEN)
    return digests(models), histories


class Breaking(md.callbacks.Callback):
    """Does something at the end of an epoch of a model."""

    def __init__(self, number: int, at: tuple[int, int], act: Any) -> None:
        self.number, self.at, self.act = number, at, act

    def on_epoch_end(self, fit: Fit) -> None:
        if (self.number, fit.epoch) == self.at:
            self.act()


def saving(folder: Path, more: Any = lambda number: []) -> Any:
    """A checkpoint for each model."""

    def made(number: int) -> list[md.callbacks.Callback]:
        return [*more(number), md.callbacks.Checkpoint(folder / f"{number}")]

    return made


def broken() -> None:
    raise KeyError("power")


@pytest.mark.parametrize("at", [(0, 1), (2, 3), (3, 6)])
def test_a_set_that_was_broken_off_goes_on_bit_for_bit(tmp_path: Path, at: tuple[int, int]) -> None:
    expected, whole = uninterrupted()

    def breaking(number: int) -> list[md.callbacks.Callback]:
        return [Breaking(number, at, broken)]

    with pytest.raises(KeyError):
        md.fit_many(
            [network(k) for k in range(4)], X, Y, callbacks=saving(tmp_path, breaking), **GIVEN
        )
    again = [network(k) for k in range(4)]
    histories = md.fit_many(again, X, Y, callbacks=saving(tmp_path), **GIVEN)
    assert digests(again) == expected
    assert [h["loss"] for h in histories] == [h["loss"] for h in whole]


def test_a_set_that_has_ended_is_not_trained_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = [network(k) for k in range(4)]
    md.fit_many(first, X, Y, callbacks=saving(tmp_path), **GIVEN)
    again = [network(k) for k in range(4)]
    md.fit_many(again, X, Y, callbacks=saving(tmp_path), **GIVEN)
    assert digests(again) == digests(first) == uninterrupted()[0]
    assert capsys.readouterr().err == ""


def test_other_callbacks_are_told_once_for_a_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for patience in (5, 6):
        assert capsys.readouterr().err == ""
        callbacks = saving(
            tmp_path, lambda number, p=patience: [md.callbacks.EarlyStopping(patience=p)]
        )
        md.fit_many(
            [network(k) for k in range(3)],
            X,
            Y,
            callbacks=callbacks,
            **GIVEN | {"epochs": patience},
        )
    assert capsys.readouterr().err.count("EarlyStopping has patience=6, before 5") == 1


def test_a_signal_saves_all_models(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)

    def interrupting(number: int) -> list[md.callbacks.Callback]:
        return [Breaking(number, (1, 2), lambda: os.kill(os.getpid(), signal.SIGINT))]

    callbacks = saving(tmp_path, interrupting)
    with pytest.raises(KeyboardInterrupt):
        md.fit_many([network(k) for k in range(4)], X, Y, callbacks=callbacks, **GIVEN)
    assert signal.getsignal(signal.SIGINT) is before
    again = [network(k) for k in range(4)]
    md.fit_many(again, X, Y, callbacks=saving(tmp_path), **GIVEN)
    assert digests(again) == uninterrupted()[0]


def test_models_train_in_waves_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = uninterrupted()
    found: list[int] = []
    start = scheduler._Rounds._start

    def counted(rounds: Any) -> None:
        found.append(len(rounds._waiting) + len(rounds._ready) + len(rounds._running))
        start(rounds)

    monkeypatch.setattr(scheduler._Rounds, "_start", counted)
    for most in (1, 2, 128):
        found.clear()
        monkeypatch.setattr(room.Room, "most", property(lambda self, most=most: most))
        models = [network(k) for k in range(4)]
        md.fit_many(models, X, Y, **GIVEN)
        assert digests(models) == expected
        assert max(found) <= most


def test_what_was_taken_decides_how_many_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    found = room.Room(0.5 * (1 << 20))
    assert found.most == room.MOST
    found.note(100_000)
    assert found.most == 5
    found.note(1 << 30)
    assert found.most == 1


def test_what_is_compiled_of_very_many_models_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "_KEPT", 3)
    models = [network(k) for k in range(4)]
    for _ in range(2):
        md.fit_many(models, X, Y, **GIVEN | {"epochs": 3})
        assert all(model._step is None for model in models)
    assert digests(models) == uninterrupted()[0]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told_of(monkeypatch: pytest.MonkeyPatch, output: io.StringIO, **given: Any) -> str:
    monkeypatch.setattr(fits, "Told", lambda verbose: Told(verbose, output))
    models = [md.Model([layers.Input((6,)), layers.Dense(1)], loss="mse", optimizer="sgd")]
    target = Y.astype(np.float32)[:, None]
    models += [md.Model([layers.Input((6,)), layers.Dense(2), layers.Dense(1)], loss="mse",
                        optimizer=optim.SGD(rate)) for rate in (0.01, 0.001, 1e20)]  # fmt: skip
    md.fit_many(models, X, target, **{"batch_size": [8, 8, 8, 16], "epochs": 3, **given})
    return output.getvalue()


def test_lines_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told_of(monkeypatch, io.StringIO()).splitlines()
    assert lines[0] == (
        "4 models in 3 groups: 2 of 17 parameters, batch 8; 1 of 7 parameters, batch 8; 1 of 17 "
        "parameters, batch 16"
    )
    assert lines[-1].startswith("4 of 4 models done, 9 epochs, loss ")
    assert ", 1 left out in " in lines[-1]
    assert "\x1b" not in "".join(lines)
    assert all(" models done, " in line for line in lines[1:])  # more of them where it takes long


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from magmadnn.training.many import told

    monkeypatch.setattr(told, "_PAUSE", 0.0)
    text = told_of(monkeypatch, Terminal())
    assert "\r\x1b[K[" in text
    assert "\r\x1b[K4 of 4 models done" in text.split("\n")[-2]


def test_nothing_is_printed_where_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told_of(monkeypatch, io.StringIO(), verbose=False) == ""


def test_another_word(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError) as caught:
        md.fit_many([network(0)], X, Y, verbose="every 10")
    assert str(caught.value) == "fit_many: verbose must be True, False or \"auto\", got 'every 10'"


@pytest.mark.long
def test_an_interrupt_counts_the_epochs_that_parameters_have() -> None:
    """Wherever Ctrl-C comes in what takes epochs that have run, also between two of one piece."""
    epochs, given = 3, {"batch_size": 8, "verbose": False}

    def pair() -> list[md.Model]:  # built otherwise, so that none follows the other
        parts = [layers.Input((6,)), layers.Dense(3)]
        return [network(1), md.Model(parts, loss="cross_entropy", optimizer="adam", seed=2)]

    def trained(epochs: int) -> list[str]:
        models = pair()
        md.fit_many(models, X, Y, epochs=epochs, **given)
        return digests(models)

    expected = [trained(done) for done in range(epochs + 2)]
    models, seen = pair(), set[int]()

    def fit() -> None:
        nonlocal models
        models = pair()
        md.fit_many(models, X, Y, epochs=epochs, **given)

    files = [str(module.__file__) for module in (course, members, scheduler)]
    for _ in interrupted_everywhere(fit, *files):
        done = [model.epochs_done for model in models]
        assert digests(models) == [expected[n][k] for k, n in enumerate(done)]
        seen.update(done)
    assert seen == {0, epochs}
