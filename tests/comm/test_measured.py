"""The measured choice of an algorithm, and where ranks are."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magmadnn.comm import Choice, Network, measure_all_reduce, read_topology, simulate
from magmadnn.errors import ArgumentError


def test_the_quickest_is_used_and_is_the_same_on_all_ranks() -> None:
    network = Network(latency=1e-5, bandwidth=1e9)

    def body(comm: Any) -> Any:
        choice = measure_all_reduce(comm, sizes=(64, 1 << 20), repeats=2)
        before = comm.clock
        x = comm.all_reduce(np.full(8, comm.rank + 1.0))
        return choice, comm.clock - before, x

    found = simulate(8, body, network=network)
    assert len({choice for choice, _, _ in found}) == 1
    choice = found[0][0]
    # By the costs of rounds.py: one latency for few bytes; 2 a + 2 b n (P - 1) / P for many.
    assert choice(8) == choice(64) == "everyone"
    assert choice(65) == choice(1 << 30) == "direct"
    assert found[0][1] == pytest.approx(1e-5 + 7 * 64e-9)
    assert found[3][2].tolist() == [36.0] * 8
    text = str(choice).splitlines()
    assert "torus" in text[0] and text[1].count("*") == 1 and len(text) == 4


def test_a_slow_port_prefers_few_messages() -> None:
    # One element cannot be shared out: log2(16) messages in a row beat 15.
    def body(comm: Any) -> str:
        return measure_all_reduce(comm, sizes=(8,), repeats=1)(8)

    assert simulate(16, body, network=Network(latency=0.0, bandwidth=1e3))[0] == "tree"


def test_wrong_choices_are_refused() -> None:
    with pytest.raises(ArgumentError, match="bytes must rise"):
        Choice(((8, "ring"), (8, "tree")))
    with pytest.raises(ArgumentError, match="'star' is not known"):
        Choice(((8, "star"),))
    with pytest.raises(ArgumentError, match="sizes from 8"):
        simulate(1, lambda comm: measure_all_reduce(comm, sizes=(4,)))


def test_topology_of_simulated_ranks() -> None:
    found = simulate(3, lambda comm: read_topology(comm, repeats=2))
    assert found[0].hosts == [socket.gethostname()] * 3
    assert found[1] == found[0]
    assert len(str(found[2]).splitlines()) == 4


def test_launch_prints_the_topology() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "magmadnn", "launch", "-n", "2", "--topology"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(root)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "GB/s" in lines[2] and lines[1].split()[0] == "0"
    assert "library" in done.stdout and "* is the quickest" in lines[-1]
