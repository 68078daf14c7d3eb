"""Threads: any number gives equal bits; how it is chosen; more of them than cores."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.cli import main
from magmadnn.errors import ArgumentError
from magmadnn.runtime import threads
from magmadnn.runtime.threads import thread_count

RANDOM = np.random.default_rng(17)
X = RANDOM.normal(size=(211, 97)).astype(np.float32)
Y = RANDOM.integers(0, 7, 211)


def network(optimizer: Any = "adam") -> md.Model:
    layers = [
        md.layers.Input((97,)),
        md.layers.Dense(331, activation="tanh"),
        md.layers.BatchNorm(),
        md.layers.Dropout(0.2),
        md.layers.Dense(263, activation="relu"),
        md.layers.LayerNorm(),
        md.layers.Dense(7),
    ]
    return md.Model(layers, loss="cross_entropy", optimizer=optimizer, metrics=["accuracy"], seed=5)


def trained(count: int, optimizer: Any = "adam") -> list[Any]:
    """All that a training, an evaluation and a prediction give, on so many threads."""
    md.set_threads(count)
    net = network(optimizer)
    history = net.fit(X, Y, batch_size=50, epochs=3, verbose=False)
    losses = [row["loss"] for row in history.rows]
    return [*net.values().values(), net.predict(X), np.array(losses), net.evaluate(X, Y)["loss"]]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_bits_do_not_depend_on_threads(optimizer: str) -> None:
    one, *others = [trained(count, optimizer) for count in (1, 2, 3, 4)]
    for other in others:
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_number_takes_effect_at_the_next_run() -> None:
    net = network()
    md.set_threads(1)
    first = net.predict(X)
    md.set_threads(2)
    np.testing.assert_array_equal(net.predict(X), first)
    executable = net._predictor()
    assert {key[0] for key in executable.native._kept} == {1, 2}


def test_the_environment_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, wanted in (("3", 3), ("", None)):
        threads._chosen.clear()
        monkeypatch.setenv("MAGMADNN_NUM_THREADS", text)
        assert thread_count() == (wanted or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "1025", "9" * 5000])
def test_a_wrong_environment(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads._chosen.clear()
    monkeypatch.setenv("MAGMADNN_NUM_THREADS", text)
    with pytest.raises(ArgumentError) as info:
        thread_count()
    assert (
        str(info.value) == f"MAGMADNN_NUM_THREADS must be an integer from 1 to 1024, got {text!r}"
    )


@pytest.mark.parametrize("count", [0, -2, 1.5, True, "2", None, 1025, 10**6])
def test_wrong_numbers(count: Any) -> None:
    with pytest.raises(ArgumentError, match="set_threads: count must be an integer from 1 to 1024"):
        md.set_threads(count)


def test_the_command_line_says_how_many(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=X, y=Y)
    found = []
    for count in ("1", "3"):
        options = ["--data", "data.npz", "--hidden", "131", "--epochs", "2", "--quiet"]
        assert main(["train", *options, "--out", f"run{count}", "--threads", count]) == 0
        assert thread_count() == int(count)
        found.append(md.load(f"run{count}/model").values())
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value)
    for command in (["evaluate"], ["predict", "--out", "p.csv"]):
        arguments = [command[0], "run1", "--data", "data.npz", *command[1:], "--quiet"]
        assert main([*arguments, "--threads", "2"]) == 0
        assert thread_count() == 2


# --- more threads than cores ----------------------------------------------------------------------


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize("busy", [0, 1])
def test_more_threads_than_cores_finish(busy: int) -> None:
    """Also beside busy processes: waiting threads sleep, so that nobody starves."""
    wanted = trained(1)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=spin, args=(20.0,), daemon=True) for _ in range(busy)]
    for process in others:
        process.start()
    try:
        count = 2 * len(os.sched_getaffinity(0))
        begun, used = time.monotonic(), time.process_time()
        got = trained(count)
        seconds, used = time.monotonic() - begun, time.process_time() - used
    finally:
        for process in others:
            process.kill()
            process.join()
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(a, b)
    assert seconds < 30, f"{seconds:.1f} s, {used:.1f} s of them computing"


def test_threads_that_ask_one_model_at_once_get_their_own_answers() -> None:
    x = np.random.default_rng(3).standard_normal((4, 1000, 200)).astype(np.float32)
    layers = [md.layers.Input((200,)), md.layers.Dense(300, activation="relu"), md.layers.Dense(3)]
    model = md.Model(layers, loss="cross_entropy", optimizer="adam", seed=1)
    wanted = [np.array(model.predict(rows)) for rows in x]
    found: list[list[bool]] = [[] for _ in x]

    def ask(number: int) -> None:
        for _ in range(20):
            same = np.array_equal(model.predict(x[number]), wanted[number])
            found[number].append(same)

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(len(x))]
    for one in asking:
        one.start()
    for one in asking:
        one.join()
    assert found == [[True] * 20] * len(x)
