"""Jobs over two machines, as far as one can be two: other host names, no memory in common, sockets.

MPICH's launcher starts the ranks of each host by a stand-in for ssh, which gives them a host name and a
/dev/shm of their own (namespaces of Linux, for which root is needed).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from magmadnn.comm import simulate
from tests.comm.two_hosts_jobs import sha_of_training

ROOT = Path(__file__).parents[2]
HOSTS = (
    "127.0.0.2",
    "127.0.0.3",
)  # for the launcher they are other machines; what connects is this one
_APART = "mount -t tmpfs none /dev/shm && hostname"
_SSH = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
export HOST="$1"
shift
export WORDS="$*"
exec unshare --uts --mount bash -c 'mount -t tmpfs none /dev/shm; hostname "$HOST"; eval exec "$WORDS"'
"""


def mpiexec() -> str | None:
    """MPICH's launcher in this environment."""
    found = shutil.which(
        "mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if found is None:
        return None
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    return found if "HYDRA" in told else None


def can_be_two() -> bool:
    """Whether this process may make namespaces."""
    words = ["unshare", "--uts", "--mount", "bash", "-c", f"{_APART} apart"]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def job(folder: Path, name: str, ranks: int, *words: str) -> list[str]:
    """Lines that a function of `two_hosts_jobs` prints, on so many ranks, half of them on each host."""
    pytest.importorskip("mpi4py")
    launcher = mpiexec()
    if launcher is None or not can_be_two():
        pytest.skip("needs MPICH's mpiexec, and namespaces of Linux")
    ssh = folder / "ssh"
    ssh.write_text(_SSH)
    ssh.chmod(0o755)
    command = [launcher, "-launcher", "ssh", "-launcher-exec", str(ssh), "-hosts", ",".join(HOSTS)]
    command += ["-ppn", str(-(-ranks // 2)), "-n", str(ranks), sys.executable, "-m"]
    command += ["tests.comm.two_hosts_jobs", name, *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MAGMADNN_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=90, env=environment, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_training_has_the_bits_of_one_machine(tmp_path: Path) -> None:
    (line,) = job(tmp_path, "training", 4)
    sha, *hosts = line.split()
    assert hosts == [HOSTS[0]] * 2 + [HOSTS[1]] * 2
    assert sha == simulate(1, sha_of_training)[0]


def test_launch_over_both_when_its_ledger_is_seen_on_one(tmp_path: Path) -> None:
    """A site's mpiexec, which knows the machines: ranks agree that they have no memory in common."""
    pytest.importorskip("mpi4py")
    launcher = mpiexec()
    if launcher is None or not can_be_two():
        pytest.skip("needs MPICH's mpiexec, and namespaces of Linux")
    folder = tmp_path / "of the launcher"
    folder.mkdir()
    apart = f"""[ "$HOST" != {HOSTS[1]} ] || mount -t tmpfs none "{folder}"; hostname"""
    ssh, site = tmp_path / "ssh", tmp_path / "mpiexec"
    ssh.write_text(_SSH.replace("; hostname", f"; {apart}"))
    hosts = f"-launcher ssh -launcher-exec {ssh} -hosts {','.join(HOSTS)} -ppn 1"
    site.write_text(f'#!/bin/sh\nexec {launcher} {hosts} "$@"\n')
    for script in (ssh, site):
        script.chmod(0o755)
    command = [sys.executable, "-m", "magmadnn", "launch", "-n", "2", "-m"]
    given = {"PYTHONPATH": str(ROOT), "MAGMADNN_NUM_THREADS": "1", "MAGMADNN_MPIEXEC": str(site)}
    done = subprocess.run(
        [*command, "tests.comm.two_hosts_jobs", "training"],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
        env=os.environ | given | {"TMPDIR": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    sha, *hosts_of = done.stdout.split()
    assert hosts_of == list(HOSTS)
    assert sha == simulate(1, sha_of_training)[0]


def test_matrices_and_a_fit_are_spread_over_both(tmp_path: Path) -> None:
    """The client's host holds two workers, the other two more."""
    assert job(tmp_path, "workers", 5) == ["product right", "fit learns"]


def test_large_tuples_pass_between_modules_of_both(tmp_path: Path) -> None:
    """More bytes than go by message on one host: a server's memory cannot be seen from the other."""
    job(tmp_path, "workflow", 6, str(tmp_path / "run"))
    printed = [path.read_text() for path in (tmp_path / "run/modules/take.0").iterdir()]
    assert any(f"taken on {HOSTS[1]} from {HOSTS[0]}" in text for text in printed)
