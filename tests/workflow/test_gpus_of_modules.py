"""Each copy of a module sees just the GPUs that it asked for, also where CUDA had begun in its rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py")
pytestmark = pytest.mark.timeout(120)
PAIR, AGAIN = ("pair.0", "pair.1"), ("again.0", "again.1", "again.2")
ROOT = Path(__file__).resolve().parents[2]
FLOW = """
[[modules]]
name = "pair"
function = "mods:begun"
gpus = 1
copies = 2
[[modules]]
name = "all"
command = ["sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES; sleep 0.3"]
gpus = 2
after = ["pair"]
[[modules]]
name = "none"
function = "mods:shown"
after = ["all"]
copies = 2
[[modules]]
name = "command"
command = ["sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES; sleep 0.3"]
after = ["all"]
[[modules]]
name = "both"
function = "mods:begun"
gpus = 2
after = ["pair"]
[[modules]]
name = "again"
function = "mods:begun"
gpus = 1
copies = 3
after = ["both", "all"]
"""
MODULES = """
import os, time
def shown(ctx):
    print("sees", os.environ["CUDA_VISIBLE_DEVICES"])
    time.sleep(0.3)
seen = []
def begun(ctx):  # as CUDA: what a process saw first is what it goes on seeing
    seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    print("sees", seen[0])
    time.sleep(0.3)
"""


def test_modules_see_their_gpus_only(tmp_path: Path) -> None:
    (tmp_path / "flow.toml").write_text(FLOW)
    (tmp_path / "mods.py").write_text(MODULES)
    done = subprocess.run(
        [sys.executable, "-m", "magmadnn", "workflow", "run", "flow.toml", "--out", "out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "3,5,6"},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = {
        run: (tmp_path / "out" / "modules" / run / "rank-0.log").read_text().split()[1:]
        for run in (*PAIR, "all.0", "none.0", "none.1", "command.0", "both.0", *AGAIN)
    }
    pair = [said["pair.0"], said["pair.1"]]
    assert all(len(own) == 1 and own[0] in "356" for own in pair) and pair[0] != pair[1]
    two = said["all.0"][0].split(",")
    assert len(two) == 2 and set(two) < {"3", "5", "6"}
    # Ranks have run others with GPUs before; nothing is left of that, and `gpus = 0` shows none.
    assert said["none.0"] == said["none.1"] == said["command.0"] == []
    # A rank that has run with one GPU goes on with that one; three at a time have three.
    assert len(set(said["both.0"][0].split(","))) == 2
    assert sorted(said[run][0] for run in AGAIN) == ["3", "5", "6"]
