"""Workers: calls, errors with number and line, death, restart, and no process left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, CommunicationError, DataError, DTypeError
from magmadnn.workers import handler, handlers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True, scope="module")
def tests_can_be_imported() -> Iterator[None]:
    """By the workers, which have the client's environment, and by its name of the tests' folder."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{before}" if before else str(ROOT)
    from tests.workers import handlers_of_tests

    assert handlers_of_tests
    yield
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def three() -> Iterator[md.workers.Workers]:
    with md.workers(3) as workers:
        yield workers


def processes_of(text: str) -> list[str]:
    """Command lines that contain a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


def elapsed(call: Callable[[], Any]) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start


@pytest.mark.parametrize("count", [0, 3])
def test_all_workers_answer_with_values_and_arrays(count: int, three: md.workers.Workers) -> None:
    workers = three if count else md.workers(0)
    x = np.arange(6.0).reshape(2, 3)
    first = workers.call("tests.total", 2, [x])
    second = workers.start("tests.total", 1, [x])
    third = workers.start("tests.total", 0, [x.T])
    size = max(1, count)
    for rank, answer in enumerate(third.wait()):
        assert answer.value["rank"] == rank
        np.testing.assert_array_equal(answer.arrays[0], sum(range(size)) * x.T)
        assert answer.arrays[1].dtype == np.float16 and answer.arrays[1].tolist() == [rank]
    calls = [answer.value["calls"] for answer in second.wait()]
    assert calls == [first[0].value["calls"] + 1] * size
    np.testing.assert_array_equal(first[-1].arrays[0], (2 * size + sum(range(size))) * x)


@pytest.mark.parametrize("dtype", [">f8", ">i2", ">c8"])
def test_arrays_of_the_other_order_of_bytes_arrive_as_the_same_numbers(
    dtype: str, three: md.workers.Workers
) -> None:
    x = np.arange(1, 7).reshape(2, 3).astype(dtype)
    for answer in three.call("tests.total", 2, [x]):
        assert answer.arrays[0].dtype == x.dtype.newbyteorder("=")
        np.testing.assert_array_equal(answer.arrays[0], 9 * x)


def test_each_worker_may_get_its_own(three: md.workers.Workers) -> None:
    arrays = [[np.full((2,), k, ml_dtypes.bfloat16)] for k in (1, 2, 3)]
    answers = three.scatter("tests.total", [5, 5, 5], arrays)
    assert answers[0].arrays[0].astype(float).tolist() == [1 * 5 + 2 * 6 + 3 * 7] * 2
    with pytest.raises(ArgumentError, match="arrays needs 3 entries, got 1"):
        three.scatter("tests.total", [1, 2, 3], [[]])


def test_an_error_names_worker_and_line_and_the_others_go_on(three: md.workers.Workers) -> None:
    with pytest.raises(
        KeyError, match=r"worker 2 of 3, at handlers_of_tests.py:\d+: 'no such thing'"
    ):
        three.call("tests.fail")
    assert len(three.call("tests.total", 1, [np.ones(1)])) == 3
    with md.workers(0) as alone, pytest.raises(KeyError, match=r"worker 0 of 1, at handlers_of"):
        alone.call("tests.fail")


def test_an_error_while_others_wait_ends_all_and_restart_starts_again(
    three: md.workers.Workers,
) -> None:
    def fails() -> None:
        with pytest.raises(KeyError, match="worker 2 of 3"):
            three.call("tests.fail", "others wait")

    assert elapsed(fails) < 1.0 + 0.5  # a second, and the end of three processes
    with pytest.raises(CommunicationError, match=r"others waited: call restart\(\)"):
        three.call("tests.total", 1, [np.ones(1)])
    three.restart()
    assert three.call("tests.total", 1, [np.ones(1)])[0].value["calls"] == 1


def test_calls_that_differ_name_the_clients_line(three: md.workers.Workers) -> None:
    with pytest.raises(
        CommunicationError, match=r"calls differ: .*\(3,\) sum at test_workers.py:\d+"
    ):
        three.call("tests.mismatch")
    three.restart()


def test_a_killed_worker_is_named(three: md.workers.Workers) -> None:
    def dies() -> None:
        with pytest.raises(
            CommunicationError, match=r"worker 1 was killed; .* tests.die at test_w"
        ):
            three.call("tests.die", 1)

    assert elapsed(dies) < 1.0 + 0.5
    three.restart()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_leaves_the_workers_of_its_parent_alone(tmp_path: Path) -> None:
    """Two that read one connection would get each other's answers."""
    script = tmp_path / "forks.py"
    script.write_text(
        "import os, sys, numpy as np, magmadnn as md\n"
        "w = md.workers(2)\n"
        "A = w.array(np.ones((4, 4)), layout=md.dmath.Rows())\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    for use in (lambda: A + 1, lambda: float(A.sum()), w.restart, lambda: w.call('dmath.run')):\n"
        "        try:\n"
        "            print('took', use(), flush=True)\n"
        "        except md.errors.CommunicationError as error:\n"
        "            print(error, flush=True)\n"
        "    del A\n"
        "    w.close()\n"
        "    sys.exit(0)\n"  # with what is registered for the end of a process
        "os.waitpid(child, 0)\n"
        "print('parent', os.getpid(), float(A.sum()))\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
    )
    *refused, last = done.stdout.splitlines()
    parent = last.split()[1]
    assert last == f"parent {parent} 16.0", done.stderr
    words = f"workers: they belong to process {parent}, from which this one was forked: start others here"
    assert len(refused) == 4 and all(line.startswith(words) for line in refused)


def test_no_process_is_left_when_the_client_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "client_killed.py"
    script.write_text(
        "import os, signal, magmadnn as md\n"
        "from tests.workers import handlers_of_tests\n"
        "workers = md.workers(2)\n"
        "print(*[a.value for a in workers.call('tests.sleep', 0)], flush=True)\n"
        "workers.start('tests.sleep', 60)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    numbers = [int(word) for word in done.stdout.split()]
    assert len(numbers) == 2
    until = time.monotonic() + 5
    while any(Path(f"/proc/{n}/cmdline").exists() for n in numbers) and time.monotonic() < until:
        time.sleep(0.02)
    assert not [n for n in numbers if Path(f"/proc/{n}/cmdline").exists()]


def test_an_error_of_ours_names_the_clients_line() -> None:
    """A worker's traceback then has no line of the user's program."""
    x, y = np.zeros((40, 3), np.float32), np.zeros(40, np.int64)
    x[7, 1] = np.nan
    model = md.Model(
        [md.layers.Input(3), md.layers.Dense(2)], loss="cross_entropy", optimizer="sgd"
    )
    with md.workers(2), pytest.raises(DataError, match=r"at test_workers\.py:\d+: x: row 7"):
        model.fit(x, y, verbose=False)


def test_wrong_arguments_are_refused(three: md.workers.Workers) -> None:
    with pytest.raises(ArgumentError, match="from 0 to 256, got -1"):
        md.workers(-1)
    with pytest.raises(
        ArgumentError, match=r"'tests.totl' is not known: did you mean 'tests.total'"
    ):
        three.call("tests.totl")
    with pytest.raises(DataError, match="cannot be written as JSON"):
        three.call("tests.total", {1, 2}, [np.ones(1)])
    with pytest.raises(DTypeError, match="dtype object"):
        three.call("tests.total", 1, [np.array([{}])])
    with pytest.raises(DataError, match="workers: elements are masked"):
        three.call("tests.total", 1, [np.ma.masked_array([1.0, 2.0], [False, True])])
    with pytest.raises(ArgumentError, match=r"'tests.total' is the name of"):
        handler("tests.total")(lambda worker, arguments, arrays: None)
    assert "tests.total" in handlers._handlers
    assert re.fullmatch("<Workers: 3>", repr(three))
