"""Small matrices are factorised on one thread of SciPy's BLAS, and NumPy's has no second thread to wait."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cpu import forks
from magmadnn.backends.cpu.blas_threads import BlasThreads, blas_threads
from magmadnn.linalg import _at_once
from magmadnn.runtime.cpu.matrices import lapack, single
from tests.interrupts import interrupted_everywhere

RNG = np.random.default_rng(3)


class Library:
    """A BLAS whose number of threads is looked at."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def on_one(self) -> BlasThreads:
        return BlasThreads([(lambda: self.threads, lambda n: setattr(self, "threads", n))])


def test_a_call_has_one_thread_and_leaves_the_number_that_was() -> None:
    library = Library(6)
    threads = library.on_one()
    assert threads.on_one(lambda a, b: (a + b, library.threads), 2, b=3) == (5, 1)
    assert library.threads == 6
    with pytest.raises(ZeroDivisionError):
        threads.on_one(lambda: 1 // 0)
    assert library.threads == 6


def test_calls_of_several_threads_leave_the_number_that_was() -> None:
    library = Library(6)
    threads, first, second = library.on_one(), threading.Event(), threading.Event()

    def long() -> None:
        first.set()
        assert second.wait(10)

    caller = threading.Thread(target=threads.on_one, args=(long,))
    caller.start()
    assert first.wait(10)
    assert threads.on_one(lambda: library.threads) == 1
    assert library.threads == 1  # the first call is not done
    second.set()
    caller.join(10)
    assert library.threads == 6


def test_an_interrupt_anywhere_leaves_the_number_that_was() -> None:
    """Ctrl-C where the numbers are put to one, or back: BLAS kept one thread, or a lock was held."""
    library = Library(6)
    threads = library.on_one()
    seen = list[int]()

    def call() -> None:
        threads.on_one(lambda: seen.append(library.threads))

    files = (str(sys.modules[BlasThreads.__module__].__file__), str(forks.__file__))
    places = 0
    for _ in interrupted_everywhere(call, *files):
        places += 1
        assert library.threads == 6
        other = threading.Thread(target=call, daemon=True)
        other.start()
        other.join(10)
        assert not other.is_alive()  # no lock is held
        assert library.threads == 6
    assert places > 10
    assert set(seen) == {1}


@pytest.fixture
def two_threads() -> Iterator[tuple[BlasThreads, Callable[[], list[int]]]]:
    """The libraries of this process, with two threads each, and what reads these numbers."""
    threads = blas_threads()
    if threads is None:
        pytest.skip("no OpenBLAS")
    before = [read() for read, _ in threads._libraries]
    for _, write in threads._libraries:
        write(2)
    yield threads, lambda: [read() for read, _ in threads._libraries]
    for (_, write), count in zip(threads._libraries, before, strict=True):
        write(count)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of Python 3.12
def test_a_child_that_is_forked_meanwhile_has_the_number_that_was(two_threads: Any) -> None:
    """The thread that would put it back is not in the child."""
    threads, numbers = two_threads
    all_twos = numbers()
    assert set(all_twos) == {2}
    begun, leave = threading.Event(), threading.Event()
    caller = threading.Thread(
        target=threads.on_one, args=(lambda: (begun.set(), leave.wait(10)),), daemon=True
    )
    try:
        caller.start()
        assert begun.wait(10)
        if not (child := os.fork()):
            os._exit(numbers() != all_twos)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert set(numbers()) == {1}
    finally:
        leave.set()
    caller.join(10)
    assert numbers() == all_twos


def spd(n: int) -> np.ndarray:
    a = RNG.standard_normal((n, n))
    return a @ a.T + n * np.eye(n)


@pytest.mark.parametrize("function", ["cholesky", "qr", "svd", "eigh", "solve", "inv"])
def test_factorisations_of_small_matrices_are_on_one_thread(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy")
    calls: list[Any] = []

    def on_one(call: Any, *words: Any, **named: Any) -> Any:
        calls.append(call)
        return call(*words, **named)

    for module in (_at_once, single):
        monkeypatch.setattr(module, "blas_threads", lambda: SimpleNamespace(on_one=on_one))
    a = spd(_at_once.FEW_ROWS - 1)
    operands = (a, a[:, :1]) if function == "solve" else (a,)
    small = getattr(md.linalg, function)(*operands)
    assert calls
    kept = len(calls)
    for module in (_at_once, single):
        monkeypatch.setattr(module, "FEW_ROWS", 2)
    monkeypatch.setattr(single, "FEW_OF_FACTORS", 2)
    large = getattr(md.linalg, function)(*operands)
    assert len(calls) == kept  # large ones are the library's
    for one, other in zip(
        *(x if isinstance(x, tuple) else (x,) for x in (small, large)), strict=True
    ):
        assert np.allclose(np.abs(one), np.abs(other), atol=1e-8)


def test_the_libraries_of_numpy_and_scipy_are_found_and_keep_their_numbers(
    two_threads: Any,
) -> None:
    threads, numbers = two_threads
    assert set(numbers()) == {2}
    assert set(threads.on_one(numbers)) == {1}
    md.linalg.cholesky(spd(130))
    assert set(numbers()) == {2}


@pytest.mark.parametrize("function", ["cholesky", "qr", "svd"])
@pytest.mark.parametrize("rows", [70, 100])
def test_compiled_programs_of_small_matrices_have_one_thread(
    function: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy")
    calls: list[Any] = []

    def on_one(call: Any, *words: Any) -> Any:
        calls.append(call)
        return call(*words)

    monkeypatch.setattr(lapack, "blas_threads", lambda: SimpleNamespace(on_one=on_one))
    monkeypatch.setattr(lapack, "FEW_ROWS", 100)
    x = md.placeholder("x", (rows, rows), "float64")
    found = getattr(md.linalg, function)(x)
    total = md.ops.sum(md.ops.abs(found[-1] if isinstance(found, tuple) else found))
    a = spd(rows)
    expected = getattr(np.linalg, function)(a)
    expected = expected[-1] if isinstance(expected, tuple) else expected
    assert np.isclose(float(total.eval({x: a})), np.abs(expected).sum())
    assert bool(calls) == (rows < 100)
    calls.clear()
    assert np.isclose(float(md.ops.sum(x * 2).eval({x: a})), 2 * a.sum())
    assert not calls  # a program without matrix functions


def test_numbers_are_looked_at_in_pieces_that_one_thread_of_numpy_adds_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, sizes = np.vdot, list[int]()
    monkeypatch.setattr(np, "vdot", lambda a, b: sizes.append(a.size) or real(a, b))
    x = RNG.standard_normal((300, 200))
    assert _at_once.is_finite(x)
    assert sum(sizes) == x.size
    assert max(sizes) < 10_000  # from where OpenBLAS takes several
    for place in (0, 8191, 8192, 59_999):
        for bad in (np.nan, np.inf):
            y = x.copy()
            y.reshape(-1)[place] = bad
            assert not _at_once.is_finite(y)
            assert not _at_once.is_finite(np.asfortranarray(y))
    assert _at_once.is_finite(np.full((3, 3), 1e200))  # its squares are not
