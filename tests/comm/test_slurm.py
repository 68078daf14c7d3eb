"""Under Slurm: what its variables say, and what is said where it has started processes that are no job.

There is no Slurm here: a stand-in for `srun` starts the processes on this machine with the variables that
Slurm gives each of them, and no PMI.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from magmadnn.comm import job
from magmadnn.runtime import places
from tests.comm.test_two_hosts import mpiexec

ROOT = Path(__file__).parents[2]
_SRUN = """#!{python}
import os, subprocess, sys
words, given = sys.argv[1:], {{"-n": "1", "-N": "1"}}
while words[0].startswith("-"):
    word, _, value = words.pop(0).partition("=")
    if not value and word in ("-n", "-N", "--nodelist", "--input", "--ntasks", "-w"):
        value = words.pop(0)
    given[word] = value
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
tasks, nodes = int(given["-n"]), int(given["-N"])
each = -(-tasks // nodes)
running = []
for task in range(tasks):
    told = {{"SLURM_PROCID": task, "SLURM_LOCALID": task % each, "SLURM_NODEID": task // each,
             "SLURM_STEP_NUM_TASKS": tasks, "SLURM_STEP_ID": 0}}
    running.append(subprocess.Popen(words, env=os.environ | {{k: str(v) for k, v in told.items()}}))
sys.exit(max(one.wait() for one in running))
"""
FIT = """
import os
import numpy as np
import magmadnn as md
x, y = np.ones((8, 2), np.float32), np.arange(8) % 2
model = md.Model([md.layers.Input((2,)), md.layers.Dense(2)], loss="cross_entropy", optimizer="sgd")
model.fit(x, y, epochs=1, verbose=False{more})
os.write(1, b"trained %d\\n" % md.comm.job.ranks_of_script())  # in one piece
"""
_OTHERS = ("PMI", "OMPI", "MPI", "SLURM", "MAGMADNN_RANKS", "MAGMADNN_LEDGER")


def clean() -> dict[str, str]:
    """The environment without what a launcher has put there."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_OTHERS)}


class Slurm:
    """A job of Slurm's, as far as its variables go.

    Args:
        folder: where `srun` lies, and what it was called with is noted.
        nodes: how many it has.
        tasks: how many it was asked for.
    """

    def __init__(self, folder: Path, nodes: int = 1, tasks: int = 4) -> None:
        self.folder, self.log = folder, folder / "calls.txt"
        srun = folder / "srun"
        srun.write_text(_SRUN.format(python=sys.executable, log=str(self.log)))
        srun.chmod(0o755)
        self.environment = clean() | {
            "PATH": f"{folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT), "MAGMADNN_NUM_THREADS": "1",
            "SLURM_JOB_ID": "71", "SLURM_JOBID": "71", "SLURM_NTASKS": str(tasks),
            "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NNODES": str(nodes),
            "SLURM_JOB_NODELIST": f"node[1-{nodes}]" if nodes > 1 else "localhost",
            "SLURM_NODELIST": f"node[1-{nodes}]" if nodes > 1 else "localhost",
            "SLURM_TASKS_PER_NODE": f"{tasks // nodes}(x{nodes})" if nodes > 1 else str(tasks),
            "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
        }  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What a line of the batch script does."""
        return subprocess.run(
            words, capture_output=True, text=True, timeout=90, env=self.environment,
            cwd=self.folder, check=False,
        )  # fmt: skip

    def calls(self) -> list[str]:
        """What `srun` was called with."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    pytest.importorskip("mpi4py")
    return Slurm(tmp_path)


def test_srun_without_pmi_is_said_and_nothing_trains(slurm: Slurm) -> None:
    """Four worlds of one would be four trainings, each on all data, over the same files."""
    (slurm.folder / "train.py").write_text(FIT.format(more=""))
    done = slurm.run("srun", "-n", "2", sys.executable, "train.py")
    assert done.returncode != 0
    assert "trained" not in done.stdout
    text = "srun started 2 processes, but each is alone in its MPI world: mpi4py's library ("
    assert done.stderr.count(text) == 2, done.stderr
    assert "start with srun --mpi=pmi2 or --mpi=pmix" in done.stderr
    assert "or write mpiexec -n 2 in place of srun" in done.stderr
    assert "fit(parallel=False)" in done.stderr


def test_processes_that_train_alone_may(slurm: Slurm) -> None:
    (slurm.folder / "train.py").write_text(FIT.format(more=", parallel=False"))
    done = slurm.run("srun", "-n", "2", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained") == 2


def test_workers_and_launch_under_srun(slurm: Slurm) -> None:
    """Neither starts processes of its own beside those that srun has started."""
    (slurm.folder / "work.py").write_text(
        "import magmadnn as md\nwith md.workers(): print('works')\n"
    )
    done = slurm.run("srun", "-n", "2", sys.executable, "work.py")
    assert done.returncode != 0 and "works" not in done.stdout
    assert done.stderr.count("srun started 2 processes, but each is alone") == 2, done.stderr
    done = slurm.run(
        "srun", "-n", "2", sys.executable, "-m", "magmadnn", "launch", "-n", "4", "work.py"
    )
    assert done.returncode == 2 and "works" not in done.stdout
    text = "launch: this process is already one of 2 of a job, each of which would start 4: give the program"
    assert done.stderr.count(text) == 2, done.stderr


@pytest.mark.parametrize("nodes", [1, 2])
def test_launch_in_a_batch_script_is_on_this_machine(tmp_path: Path, nodes: int) -> None:
    """Whatever nodes the job has: srun would start ranks where the launcher cannot look."""
    pytest.importorskip("mpi4py")
    slurm = Slurm(tmp_path, nodes)
    (tmp_path / "ranks.py").write_text(
        "import os\nimport magmadnn as md\ncomm = md.comm.world()\n"
        "place = comm.rank, comm.size, md.comm.job.rank_on_machine()\n"
        "os.write(1, b'rank %d of %d %d\\n' % place)\n"
    )
    done = slurm.run(sys.executable, "-m", "magmadnn", "launch", "-n", "2", "ranks.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2 0", "rank 1 of 2 1"]
    assert slurm.calls() == []


def test_mpich_mpiexec_in_a_batch_script_asks_srun(slurm: Slurm) -> None:
    """It has a PMI of its own, so Slurm's is not needed; ranks have the launcher's numbers, not srun's."""
    launcher = mpiexec()
    if launcher is None:
        pytest.skip("needs MPICH's mpiexec")
    (slurm.folder / "train.py").write_text(FIT.format(more=""))
    done = slurm.run(launcher, "-n", "2", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["trained 2"] * 2
    assert len(slurm.calls()) == 1 and "hydra_pmi_proxy" in slurm.calls()[0]


def test_a_machine_s_gpus_go_to_its_own_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """By SLURM_LOCALID: srun may give ranks 0 and 2 to one machine, 1 and 3 to the other."""
    for name in list(os.environ):
        if name.startswith(_OTHERS):
            monkeypatch.delenv(name)
    found = []
    for rank in range(4):
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
        monkeypatch.setenv("SLURM_PROCID", str(rank))
        monkeypatch.setenv("SLURM_LOCALID", str(rank // 2))
        found.append((job.rank_in_job(), job.ranks_of_job(), places.own_gpu(2)))
    assert found == [(0, 4, 0), (1, 4, 0), (2, 4, 1), (3, 4, 1)]
    assert places.own_gpu(1) == 0  # --gpus-per-task=1 shows a task its own GPU only
    monkeypatch.setenv("MPI_LOCALRANKID", "3")  # mpiexec over srun: its proxies are srun's tasks
    assert places.own_gpu(4) == 3
    for name in ("MPI_LOCALRANKID", "SLURM_LOCALID"):
        monkeypatch.delenv(name)
    assert places.own_gpu(4) == 3  # by the number in the job, where nobody says more
