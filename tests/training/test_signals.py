from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from magmadnn.storage.checkpoint import CheckpointStore
from magmadnn.training.loop.signals import StopRequest

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


def handlers() -> tuple[Any, Any]:
    return signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_sets_a_flag_and_nothing_else(number: signal.Signals) -> None:
    before = handlers()
    with StopRequest() as stop:
        assert stop.requested is None and stop.exit_code == 0
        assert handlers() != before
        signal.raise_signal(number)
        assert stop.requested == number and type(stop.requested) is int
        assert stop.exit_code == 128 + number
    assert handlers() == before
    assert stop.requested == number  # can be asked afterwards too


def test_second_ctrl_c_interrupts_at_once() -> None:
    before = handlers()
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("was not interrupted")
    assert handlers() == before and stop.requested == signal.SIGINT


def test_first_signal_counts_and_sigterm_may_come_often() -> None:
    with StopRequest() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        assert stop.requested == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_are_put_back_after_an_error() -> None:
    before = handlers()
    with pytest.raises(ZeroDivisionError), StopRequest():
        1 / 0  # noqa: B018 - the error is the point
    assert handlers() == before


def test_a_request_can_be_used_again_and_within_another() -> None:
    before = handlers()
    with StopRequest() as outer:
        with StopRequest() as inner:
            signal.raise_signal(signal.SIGTERM)
        assert (outer.requested, inner.requested) == (None, signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert outer.requested == signal.SIGINT and handlers() == before


def test_other_threads_change_nothing() -> None:
    before, seen = handlers(), []

    def work() -> None:
        with StopRequest() as stop:
            seen.append((handlers() == before, stop.requested))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(True, None)] and handlers() == before


def test_handlers_that_are_not_pythons_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    before = handlers()
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    with StopRequest():
        monkeypatch.undo()
        assert handlers() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_handler_of_the_programs_own_gets_what_was_noted(number: signal.Signals) -> None:
    seen: list[int] = []
    before = signal.signal(number, lambda number, frame: seen.append(number))
    try:
        with StopRequest() as stop:
            signal.raise_signal(number)
        assert not seen
        stop.pass_on()
    finally:
        signal.signal(number, before)
    assert seen == [number]


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_a_handler_the_program_ends_in_order(number: int, handler: Any) -> None:
    before = signal.signal(number, handler)
    try:
        with StopRequest() as stop:
            signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as ended:
            stop.pass_on()
    finally:
        signal.signal(number, before)
    assert number == signal.SIGINT or ended.value.code == 143


def test_what_nobody_asked_for_is_not_passed_on() -> None:
    with StopRequest() as stop:
        pass
    stop.pass_on()


LOOP = """
import sys, time
from magmadnn.storage.checkpoint import CheckpointStore
from magmadnn.training.loop.signals import StopRequest
steps = 0
try:
    with StopRequest() as stop:
        print("ready", flush=True)
        while stop.requested is None or sys.argv[1] == "deaf":
            time.sleep(0.01)  # goes on after the signal: a step is never cut short
            steps += 1
            if stop.requested and steps > 0 and sys.argv[1] == "deaf":
                print("seen", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
print("saved", flush=True)
sys.exit(stop.exit_code)
"""


def start(mode: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@POSIX
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_real_signal_saves_and_exits_with_128_and_its_number(number: int, code: int) -> None:
    process = start("well-behaved")
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("saved\n", "", code)


@POSIX
def test_real_second_ctrl_c_ends_a_loop_that_does_not_look() -> None:
    process = start("deaf")
    assert process.stdout is not None
    os.kill(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "seen\n"
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert out.endswith("interrupted\n") and "saved" not in out
    assert (err, process.returncode) == ("", 130)


@POSIX
def test_ctrl_c_works_where_a_shell_had_it_ignored() -> None:
    """A script's background jobs start with SIGINT ignored; asking them to stop still saves."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = start("well-behaved")
    finally:
        signal.signal(signal.SIGINT, before)
    os.kill(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "saved\n"
    assert process.returncode == 130


FITS = """
import sys
import numpy as np
import magmadnn as md

x, y = np.ones((64, 3), "f4"), np.ones((64, 2), "f4")
for number in range(5):
    model = md.Model([md.layers.Input((3,)), md.layers.Dense(2)], loss="mse", optimizer="sgd")
    ready = md.callbacks.LambdaCallback(
        on_batch_end=lambda fit: fit.steps == 3 and print("training", number, flush=True)
    )
    try:
        epochs = 1 if number == 0 else 10**6
        model.fit(x, y, batch_size=8, epochs=epochs, verbose=0,
                  callbacks=[ready, md.callbacks.Checkpoint(f"run-{number}")])
    except Exception:
        print("went on")
"""


@POSIX
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_program_of_many_trainings_and_what_it_had_is_saved(
    number: int, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FITS], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["training 0\n", "training 1\n"]
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert out == ""
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    # a shell gives 128 + number for both: ended by the signal, or with that code
    assert process.returncode in (-number, 128 + number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-0", "run-1"]
    state = CheckpointStore(tmp_path / "run-1").latest()
    assert state is not None and state.record["steps"] >= 3
