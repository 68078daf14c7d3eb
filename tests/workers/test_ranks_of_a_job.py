"""`md.workers()` under mpiexec: rank 0 is the client, the other ranks work, and a death ends the job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm.launching.wheels import find_starter
from magmadnn.errors import ArgumentError

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
import numpy as np
import magmadnn as md
from tests.workers import handlers_of_tests

with md.workers() as w:
    a = np.arange(35.0).reshape(5, 7)
    A = w.array(a, layout=md.dmath.Blocks((2, 3), owners=md.dmath.cyclic(1, 2)))
    B = w.random((7, 3), seed=1, layout=md.dmath.Rows())
    np.testing.assert_allclose(np.asarray(A @ B), a @ np.asarray(B), rtol=1e-12)
    print(w.count, [one.value["rank"] for one in w.call("tests.total", 0, [np.ones(2)])], flush=True)
print(md.comm.world().size, flush=True)
with md.workers(2) as w:
    print([one.value["calls"] for one in w.call("tests.total", 0, [np.ones(2)])], flush=True)
    w.restart()
    print([one.value["calls"] for one in w.call("tests.total", 0, [np.ones(2)])], flush=True)
    if sys.argv[1:]:
        try:
            w.call("tests.die", 1)
        except md.errors.CommunicationError:
            pass
        print("goes on")
print("rank", md.comm.job.rank_in_job(), "ends", flush=True)
"""


def run(tmp_path: Path, ranks: int, *words: str) -> tuple[int, str, str, float]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    starter = find_starter()
    options = [one for one in starter.command(ranks) if one != "-disable-auto-cleanup"]
    environment = {**os.environ, **starter.environment(), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    start = time.monotonic()
    done = subprocess.run(
        [*options, sys.executable, script, *words],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr, time.monotonic() - start


def test_rank_0_is_the_client_and_the_others_work(tmp_path: Path) -> None:
    code, out, err, _ = run(tmp_path, 3)
    assert code == 0, err
    assert out.splitlines() == ["2 [0, 1]", "1", "[1, 1]", "[1, 1]", "rank 0 ends"]


def test_a_killed_rank_is_named_and_ends_the_job(tmp_path: Path) -> None:
    code, out, err, seconds = run(tmp_path, 3, "die")
    assert code != 0 and "goes on" not in out and seconds < 15
    # MPICH's mpiexec may kill rank 0 before it has said so, and says itself that a process was killed.
    assert "worker 1, rank 2 of the job, has ended; it was asked for tests.die" in err or (
        "Killed" in err + out
    )


def test_the_number_of_workers_is_that_of_the_jobs_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGMADNN_RANKS", "4")
    monkeypatch.setenv("PMI_RANK", "2")
    with pytest.raises(ArgumentError, match=r"job has 4 ranks, .* 3 work, not 2: start 3 ranks"):
        md.workers(2)
    with md.workers(0) as here:
        assert here.size == 1 and float(here.ones(3).sum()) == 3
        np.testing.assert_array_equal(here.eye(2), np.eye(2))
