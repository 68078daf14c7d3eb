"""Processes that are forked while other threads train and compile: the child trains, predicts and ends."""

from __future__ import annotations

import _imp
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends import cuda
from magmadnn.backends.cpu import forks
from magmadnn.backends.cpu.forks import ProcessLock, cached_property
from magmadnn.compiler.llvm.ir import unlocked
from magmadnn.compiler.llvm.object import parallel as pieces
from tests.interrupts import interrupted_everywhere

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # of Python 3.12
]

_PROGRAM = """
import gc, os, signal, sys, threading, time, warnings
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
import numpy as np
import magmadnn as md
from magmadnn.compiler.llvm import kernel
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import pointwise

md.set_threads(2)
draw = np.random.default_rng(0)
x, y = draw.normal(size=(64, 7)).astype("f4"), draw.integers(0, 3, 64)

def network(seed):
    layers = [md.layers.Input((7,)), md.layers.Dense(16 + seed % 5, activation="relu"),
              md.layers.Dropout(0.2), md.layers.Dense(3)]
    return md.Model(layers, loss="cross_entropy", optimizer="adam", seed=seed)

def train():
    for seed in range(10**6):
        if ended:
            return
        model = network(seed)
        model.fit(x, y, batch_size=8, epochs=3, verbose=0)
        model.predict(x)

def compile_anew():
    made = pointwise((Operand("x", "float32"),), Result("y", "float32", ("exp", ("argument", 0))))
    while not ended:
        kernel._loaded.pop((made, kernel.host()), None)
        kernel.load([made])

ended = []
shared = network(3)
shared.fit(x, y, batch_size=8, epochs=1, verbose=0)
expected = shared.predict(x)
threads = [threading.Thread(target=work) for work in (train, compile_anew)]
for thread in threads:
    thread.start()
statuses = []
for number in range(int(sys.argv[1])):
    time.sleep(0.003 * (number % 7))
    child = os.fork()
    if not child:
        signal.alarm(30)  # one that waits for ever is killed
        assert gc.isenabled() and sys.getswitchinterval() > 1e-3
        assert (shared.predict(x) == expected).all()
        model = network(number % 2)
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        model.predict(x)
        sys.exit(0)  # with all that a program does at its end
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ended.append(True)
for thread in threads:
    thread.join()
print(statuses)
"""


def run(forks: int, folder: Path) -> list[int]:
    """The exit codes of so many children."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(forks)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[int] = eval(done.stdout.splitlines()[-1])
    return found


def test_a_child_forked_while_others_train_does_all_that_a_process_does(tmp_path: Path) -> None:
    assert run(5, tmp_path) == [0] * 5


@pytest.mark.long
def test_many_children_forked_while_others_train(tmp_path: Path) -> None:
    assert run(200, tmp_path) == [0] * 200


def child(work: Any) -> int:
    """The exit code of a forked child that does something."""
    number = os.fork()
    if not number:
        signal.alarm(20)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


class held_elsewhere:
    """Another thread is inside a `with` block meanwhile."""

    def __init__(self, block: Any, seconds: float = 60) -> None:
        self._block, self._leave, self._entered = block, threading.Event(), threading.Event()
        self._seconds = seconds
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with self._block:
            self._entered.set()
            self._leave.wait(self._seconds)

    def __enter__(self) -> None:
        self._thread.start()
        self._entered.wait()

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join()


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_lock_of_another_thread_is_free_in_the_child(reentrant: bool) -> None:
    lock = ProcessLock(reentrant=reentrant)
    with held_elsewhere(lock):
        assert child(lambda: lock.__enter__() and None) == 0
        assert not lock.acquire(blocking=False)


def test_a_fork_waits_until_nobody_is_half_way() -> None:
    lock, steps = ProcessLock(keep=True), list[int]()

    class Half:
        def __enter__(self) -> None:
            lock.acquire()
            steps.append(1)

        def __exit__(self, *_: object) -> None:
            steps.append(2)
            lock.release()

    with held_elsewhere(Half(), 0.3):
        assert child(lambda: None if steps == [1, 2] else os._exit(7)) == 0
    with lock:  # was given back
        pass


@pytest.mark.parametrize("kind", [{}, {"keep": True}, {"reentrant": True}])
def test_an_interrupt_leaves_a_lock_free(kind: dict[str, bool]) -> None:
    lock = ProcessLock(**kind)

    def held() -> None:
        with lock:
            pass

    def elsewhere() -> None:
        if lock.acquire(timeout=1):
            lock.release()
            taken.append(True)

    places, taken = 0, list[bool]()
    for _ in interrupted_everywhere(held, str(forks.__file__)):
        places += 1
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert taken == [True] * places
    assert places


def test_a_thread_that_holds_a_lock_may_fork() -> None:
    lock = ProcessLock(keep=True)
    with lock:
        start = time.monotonic()
        assert child(lock.acquire) == 0
        assert time.monotonic() - start < 3  # without waiting for itself


def test_a_property_that_another_thread_computes_is_computed_by_the_child() -> None:
    """Python 3.11 holds one lock for a property of all objects."""
    begun, leave = threading.Event(), threading.Event()

    class Thing:
        @cached_property
        def value(self) -> int:
            begun.set()
            leave.wait(60 if threading.current_thread() is not threading.main_thread() else 0)
            return 7

    thread = threading.Thread(target=lambda: Thing().value)
    thread.start()
    begun.wait()
    try:
        assert child(lambda: None if Thing().value == 7 else os._exit(7)) == 0
    finally:
        leave.set()
        thread.join()


def test_a_fork_waits_for_those_inside_llvm() -> None:
    inside = list[int]()

    class SharedAddress:
        def __enter__(self) -> None:
            unlocked._calls.__enter__()
            inside.append(1)

        def __exit__(self, *_: object) -> None:
            inside.clear()
            unlocked._calls.__exit__()

    with held_elsewhere(SharedAddress(), 0.3):
        assert child(lambda: os._exit(len(inside))) == 0
    with unlocked._calls:  # others may enter again
        pass


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module whose import waits for a file "go-on"; another file says when it is half-way."""
    name = "imported_slowly"
    (tmp_path / f"{name}.py").write_text(
        f"import pathlib, time\nfolder = pathlib.Path({str(tmp_path)!r})\n"
        "(folder / 'half-way').touch()\n"
        "while not (folder / 'go-on').exists():\n    time.sleep(1e-3)\n"
        "whole = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("package", ["magmadnn", "another"])
def test_a_fork_waits_for_modules_that_this_package_imports(
    slow_module: str, package: str, tmp_path: Path
) -> None:
    """And for no others, which may take as long as they like."""
    importing = compile(f"import {slow_module}", "importing", "exec")
    thread = threading.Thread(target=exec, args=(importing, {"__name__": f"{package}.part"}))
    thread.start()
    while not (tmp_path / "half-way").exists():
        time.sleep(1e-3)
    go_on = tmp_path / "go-on"
    if package == "magmadnn":
        timer = threading.Timer(0.3, go_on.touch)
        timer.start()
        assert child(lambda: __import__(slow_module).whole) == 0
        assert go_on.exists()
    else:
        assert child(lambda: None) == 0  # while the other thread is half-way still
        go_on.touch()
    thread.join()
    assert not _imp.lock_held()


def test_first_uses_while_a_process_forks(tmp_path: Path) -> None:
    """What comes with the first call in a child comes in another thread of the parent."""
    program = """
import os, signal, threading, time, warnings
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
import numpy as np
import magmadnn as md

a = np.eye(400) + np.ones((400, 400)) / 1000
def use():
    return md.linalg.solve(a, a[:, :2])
thread = threading.Thread(target=use)
thread.start()
time.sleep({pause})
if not (child := os.fork()):
    signal.alarm(20)
    use()
    os._exit(0)
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    for pause in (0.001, 0.03):
        done = subprocess.run(
            [sys.executable, "-c", program.replace("{pause}", str(pause))],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", list(forks._GIVEN_BACK))
def test_locks_of_modules_that_come_while_a_fork_waits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their hooks give a lock back after a fork, and have not taken it before."""
    taken = list[str]()
    lock = SimpleNamespace(acquire=lambda: taken.append(name))
    module = SimpleNamespace(**{forks._GIVEN_BACK[name]: lock}, __spec__=None)

    def others() -> bool:
        monkeypatch.setitem(sys.modules, name, module)
        return False

    monkeypatch.setattr(forks, "_others_import", others)
    monkeypatch.delitem(sys.modules, name, raising=False)
    forks._before()
    forks._after_in_parent()
    assert taken == [name]
    forks._before()  # it has been there
    forks._after_in_parent()
    assert taken == [name]


def test_how_the_interpreter_is_set_while_text_is_written_stays_with_the_parent() -> None:
    import gc

    interval = sys.getswitchinterval()

    def as_before() -> None:
        os._exit(0 if gc.isenabled() and sys.getswitchinterval() == interval else 7)

    with held_elsewhere(pieces.quick_turns()):
        assert not gc.isenabled()
        assert child(as_before) == 0
    assert gc.isenabled()


def square(model: md.Model) -> Any:
    return model.predict(np.ones((3, 2), "f4"))


def test_a_pool_of_forked_processes_uses_a_model_of_the_parent() -> None:
    model = md.Model([md.layers.Input((2,)), md.layers.Dense(3)], loss="mse", optimizer="sgd")
    model.fit(np.ones((8, 2), "f4"), np.ones((8, 3), "f4"), verbose=0)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for found in pool.map_async(square, [model] * 4).get(timeout=60):
            assert np.array_equal(found, square(model))


def test_batches_that_a_thread_of_the_parent_prepares_are_refused_in_the_child() -> None:
    batches = md.data.prefetch(iter(range(10**6)))
    assert next(batches) == 0

    def wait() -> None:
        try:
            list(batches)
        except md.errors.DataError as error:
            os._exit(0 if "forked" in str(error) else 7)

    assert child(wait) == 0
    batches.close()


def test_a_gpu_that_was_opened_before_a_fork_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_opened_by", [os.getpid()])
    cuda.check_process()

    def check() -> None:
        try:
            cuda.check_process()
        except md.errors.DeviceError as error:
            os._exit(0 if "spawn" in str(error) else 7)

    assert child(check) == 0
