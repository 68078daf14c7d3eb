"""Worker processes: the same table for any number of them and under kills, limits, deaths, orphans."""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magmadnn.backends.cpu.blas_threads import blas_threads
from magmadnn.search.study_folder import StudyFolder, read_study
from magmadnn.search.workers import pool as pools
from magmadnn.search.workers.places import Here
from magmadnn.search.workers.worker import shares
from tests.search.killed_search import search
from tests.search.problems import SPACE, S, build, table, untimed

ROOT = Path(__file__).resolve().parent.parent.parent
X, Y = table()
ALL = ["random", "cem", "halving", "asha", "median", "tpe"]


@pytest.fixture(scope="module")
def unbroken() -> Callable[[str], str]:
    """The table of a method's search that nobody disturbs, in this process."""
    known: dict[str, str] = {}

    def of(method: str) -> str:
        if method not in known:
            known[method] = untimed(search(None, method, None))
        return known[method]

    return of


def run(build: Any, space: Any, **options: Any) -> Any:
    return S.run(build, space, X, Y, method="grid", epochs=2, seed=1, **options)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"


@pytest.mark.parametrize(
    ("method", "workers"),
    [
        *(("asha", 4), ("tpe", 3)),
        *(pytest.param(m, w, marks=pytest.mark.long) for m in ALL for w in (1, 2, 4, 8)),
    ],
)
def test_the_table_does_not_depend_on_the_workers(
    method: str, workers: int, unbroken: Any, tmp_path: Path
) -> None:
    study = search(str(tmp_path / "study"), method, workers)
    assert untimed(study) == unbroken(method)


@pytest.mark.parametrize("number", [3, pytest.param(8, marks=pytest.mark.long)])
def test_until_ends_at_the_same_trial_for_any_number_of_workers(number: int) -> None:
    options: Any = {"trials": 40, "until": S.reaches("accuracy", 0.6)}
    tables = {untimed(search(None, "random", workers, **options)) for workers in (None, number)}
    assert len(tables) == 1
    assert 3 < tables.pop().count("\n") < 40


def test_jobs_run_in_other_processes_at_the_same_time(tmp_path: Path) -> None:
    """Each waits until three are at work, which one after the other they never would be."""

    def waiting(units: int) -> Any:
        (tmp_path / str(os.getpid())).touch()
        end = time.monotonic() + 30
        while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        assert time.monotonic() < end
        return build(units=units)

    study = run(waiting, {"units": S.integer(1, 6)}, workers=6)
    assert [trial.state for trial in study.trials] == ["done"] * 6
    assert str(os.getpid()) not in {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("given", "workers", "expected"),
    [
        ("2,5,GPU-7", 3, {"2", "5", "GPU-7"}),
        ("4,1", 3, {"4", "1"}),  # the third shares the first's
        pytest.param("6", 2, {"6"}, marks=pytest.mark.long),
        ("", 2, {""}),
    ],
)
def test_workers_see_gpus_of_their_own(
    given: str, workers: int, expected: set[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)

    def seeing(units: int) -> Any:
        (tmp_path / f"{os.getpid()}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        end = time.monotonic() + 30
        while len(list(tmp_path.iterdir())) < workers and time.monotonic() < end:
            time.sleep(0.01)
        return build(units=units)

    study = run(seeing, {"units": S.integer(1, workers)}, workers=workers)
    assert [trial.state for trial in study.trials] == ["done"] * workers
    seen = [path.read_text() for path in tmp_path.iterdir()]
    assert len(seen) == workers
    assert set(seen) == expected
    assert os.environ["CUDA_VISIBLE_DEVICES"] == given


def test_times_that_are_shares_of_a_call_are_marked() -> None:
    space = {"units": S.integer(1, 4)}
    together = run(build, space)
    alone = run(build, space, until=S.reaches("accuracy", 2.0))
    assert [t.metrics["sharing_seconds"] for t in together.trials] == [4.0] * 4
    assert [t.metrics["sharing_seconds"] for t in alone.trials] == [1.0] * 4
    assert "seconds" not in untimed(together)


def children() -> list[int]:
    """The processes that this one began."""
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return [int(number) for number in path.read_text().split()]


def kill_workers(
    stop: threading.Event, killed: list[int], seed: int, pause: float, spared: set[int]
) -> None:
    """Kill a random child of this process now and then, eight times; `spared` are others' children."""
    drawn = random.Random(seed)
    while len(killed) < 8 and not stop.wait(pause * drawn.random()):
        workers = [number for number in children() if number not in spared]
        if workers:
            victim = drawn.choice(workers)
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)


def killing(seed: int, call: Callable[[], Any], pause: float = 0.6) -> tuple[Any, int]:
    """What a call gives while its workers are killed, and how many were."""
    stop, killed = threading.Event(), list[int]()
    spared = set(children())  # such as what multiprocessing began in another test
    thread = threading.Thread(target=kill_workers, args=(stop, killed, seed, pause, spared))
    thread.start()
    try:
        return call(), len(killed)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("method", ["asha"])
def test_killed_workers_change_nothing(
    method: str, unbroken: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(pools, "_KILLS", 10**6)  # on a busy machine one trial may meet many
    study, kills = killing(5, lambda: search(str(tmp_path / "study"), method, 3), pause=0.3)
    assert kills >= 2
    assert untimed(study) == unbroken(method)


def kill_the_search(folder: Path, method: str, seed: int, workers: int, kills: int) -> int:
    """Begin the search again and again and kill it, at random moments; how many kills met it at work."""
    drawn, met = random.Random(seed), 0
    command = [
        sys.executable,
        "-m",
        "tests.search.killed_search",
        str(folder),
        method,
        str(workers),
    ]
    made = folder.with_suffix(".made")
    environment = {**os.environ, "MADE": str(made), "PYTHONPATH": str(ROOT)}
    for _ in range(kills):
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
        begun, before = time.monotonic(), _lines(made)
        while process.poll() is None and _lines(made) == before and time.monotonic() < begun + 60:
            time.sleep(0.005)
        time.sleep(drawn.random() * 0.25)
        if process.poll() is None:
            process.kill()
            met += 1
        _, errors = process.communicate()
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, errors.decode()
            break
    return met


def _lines(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def logged_twice(folder: Path) -> list[Any]:
    """Trainings that the log tells of twice; `read_study` refuses them too."""
    logged = read_study(folder)[1]
    return [
        key
        for key in logged.results
        if key not in {(j.trial, j.rung) for j, _ in logged.results.values()}
    ]


@pytest.mark.parametrize(("method", "workers"), [("asha", 2), ("random", 0)])
def test_a_killed_search_goes_on(method: str, workers: int, unbroken: Any, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    assert kill_the_search(folder, method, 3, workers, 2) >= 1
    before = read_study(folder)[1].results
    study = search(str(folder), method, 3)
    after = read_study(folder)[1].results
    assert all(after[key] == before[key] for key in before)  # times too: nothing is done again
    assert not logged_twice(folder)
    assert untimed(study) == unbroken(method)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(50))
def test_random_kills_of_search_and_workers(
    seed: int, unbroken: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(pools, "_KILLS", 10**6)
    method = ALL[seed % len(ALL)]
    folder, workers = tmp_path / "study", 1 + seed % 4
    kill_the_search(folder, method, seed, workers, 1 + seed % 3)
    study, _ = killing(seed, lambda: search(str(folder), method, workers))
    assert untimed(study) == unbroken(method)
    assert not logged_twice(folder)


def test_workers_die_with_the_search(tmp_path: Path) -> None:
    made = tmp_path / "made"
    command = [
        sys.executable,
        "-m",
        "tests.search.killed_search",
        str(tmp_path / "s"),
        "random",
        "2",
    ]
    environment = {**os.environ, "MADE": str(made), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    begun = time.monotonic()
    while _lines(made) < 2 and time.monotonic() < begun + 60:
        time.sleep(0.005)
    workers = {int(line) for line in made.read_text().split()}
    assert process.pid not in workers
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(alive, workers))


@pytest.mark.parametrize("workers", [None, 2])
def test_a_training_that_takes_too_long_is_ended(workers: int | None) -> None:
    def endless(units: int) -> Any:
        while units == 2:  # no signal and no callback would get through to native code
            pass
        raise RuntimeError("at once")  # training takes its time on a busy machine

    begun = time.monotonic()
    study = run(endless, {"units": S.integer(1, 3)}, workers=workers, trial_seconds=2.0)
    assert [t.state for t in study.trials] == ["failed", "time limit", "failed"]
    assert study.trials[1].reason == "took longer than 2 seconds"
    assert time.monotonic() - begun < 15


def test_a_trial_that_kills_its_process_has_failed() -> None:
    def crashing(units: int) -> Any:
        if units == 2:
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGSEGV)
        if units == 3:
            os._exit(7)
        return build(units=units)

    study = run(crashing, {"units": S.integer(1, 4)}, workers=2)
    assert [t.state for t in study.trials] == ["done", "failed", "failed", "done"]
    assert "by signal 11" in study.trials[1].reason
    assert study.trials[2].reason == "its process ended with exit code 7"


def test_a_trial_whose_process_is_always_killed_is_out_of_memory(monkeypatch: Any) -> None:
    monkeypatch.setattr(pools, "_KILLS", 2)

    def hungry(units: int) -> Any:
        if units == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return build(units=units)

    study = run(hungry, {"units": S.integer(1, 3)}, workers=2)
    assert [t.state for t in study.trials] == ["done", "out of memory", "done"]
    assert study.trials[1].reason == "its process was killed 3 times"


def test_no_process_is_left_behind() -> None:
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = set(path.read_text().split())
    run(lambda units: build(units=units), {"units": S.integer(1, 3)}, workers=3)
    with pytest.raises(KeyboardInterrupt):
        run(_interrupting, {"units": S.integer(1, 3)}, workers=3, objective=_interrupted)
    assert set(path.read_text().split()) == before


def _interrupting(units: int) -> Any:
    return build(units=units)


def _interrupted(metrics: Any) -> float:
    raise KeyboardInterrupt


def test_what_few_trials_go_on_to_is_shared_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage is cut by how many it has, not by how many began."""
    groups: list[tuple[int, int]] = []
    start = pools.Pool.start

    def counted(pool: pools.Pool, jobs: Any) -> None:
        groups.append((jobs[0].rung, len(jobs)))
        start(pool, jobs)

    monkeypatch.setattr(pools.Pool, "start", counted)
    given: dict[str, Any] = {"method": "halving", "trials": 18, "epochs": 9, "seed": 1}
    found = S.run(build, SPACE, X, Y, workers=2, **given)
    assert sorted(groups) == [(0, 9), (0, 9), (1, 3), (1, 3), (2, 1), (2, 1)]
    assert untimed(found) == untimed(S.run(build, SPACE, X, Y, **given))


@pytest.mark.parametrize("limit", ["total_seconds", "trial_seconds"])
def test_a_limit_of_years_is_none(limit: str) -> None:
    given: dict[str, Any] = {"method": "random", "trials": 2, "epochs": 1, limit: 1e9}
    assert len(S.run(build, SPACE, X, Y, workers=2, **given).trials) == 2


def test_a_worker_leaves_cores_to_others_in_numpy_too(tmp_path: Path) -> None:
    """NumPy's BLAS has as many threads as a worker has cores, whatever it has in the search's process."""
    blas = blas_threads()
    if blas is None:
        pytest.skip("NumPy has another BLAS than OpenBLAS")
    told = tmp_path / "told"

    def telling(units: int, seed: int) -> Any:
        found = [read() for read, _ in blas._libraries]
        told.write_text(f"{os.environ['OPENBLAS_NUM_THREADS']} {max(found)}")
        return build(units=units, seed=seed)

    before = [read() for read, _ in blas._libraries]
    try:
        for _, write in blas._libraries:
            write(4)
        run(telling, {"units": S.choice([3, 5])}, workers=2)
        assert [read() for read, _ in blas._libraries] == [4] * len(before)
    finally:
        for (_, write), count in zip(blas._libraries, before, strict=True):
            write(count)
    share = min(shares(2)[0].threads, 4)
    assert told.read_text() == f"{share} {share}"


def test_who_is_free_trains_while_results_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    for cls, name in ((Here, "start"), (Here, "wait"), (StudyFolder, "add_results")):
        own = getattr(cls, name)

        def noted(self: Any, *given: Any, own: Any = own, name: str = name) -> Any:
            events.append(name)
            return own(self, *given)

        monkeypatch.setattr(cls, name, noted)
    S.run(build, {"lr": S.choice([0.1, 0.2])}, X, Y, method="grid", epochs=1, out=tmp_path / "a")
    assert events == ["start", "wait", "add_results"]  # one group
    events.clear()
    ends: Any = {"method": "grid", "epochs": 1, "total_seconds": 1e6}  # each by itself
    S.run(build, {"lr": S.choice([0.1, 0.2])}, X, Y, out=tmp_path / "b", **ends)
    assert events == ["start", "wait", "start", "add_results", "wait", "add_results"]


def test_workers_leave_the_garbage_of_their_parent_alone(tmp_path: Path) -> None:
    held: list[list[int]] = [[] for _ in range(10_000)]

    def made(learning_rate: float) -> Any:
        (tmp_path / str(os.getpid())).write_text(str(gc.get_freeze_count()))
        return build(learning_rate)

    S.run(made, {"lr": S.choice([0.1, 0.2])}, X, Y, method="grid", epochs=1, workers=2)
    counts = {int(path.name): int(path.read_text()) for path in tmp_path.iterdir()}
    assert counts
    assert os.getpid() not in counts
    assert min(counts.values()) >= gc.get_freeze_count() + len(held)
