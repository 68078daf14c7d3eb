"""Where ranks are, and how quickly messages go between them."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from .group import HostCommunicator


@dataclass(frozen=True)
class Topology:
    """What is known of a group of ranks.

    Args:
        hosts: the machine of each rank.
        cores: that each rank may use.
        gpus: names and bus numbers of the GPUs that each rank sees.
        latency: seconds of a message of 8 bytes from rank 0 to each rank, half of there and back.
        bandwidth: bytes per second of 1 MiB from rank 0 to each rank.
    """

    hosts: list[str]
    cores: list[int]
    gpus: list[list[str]]
    latency: list[float]
    bandwidth: list[float]

    def __str__(self) -> str:
        lines = [f"{'rank':>4}  {'host':16} {'cores':>5}  {'from rank 0':>24}  GPUs"]
        for rank, host in enumerate(self.hosts):
            link = f"{self.latency[rank] * 1e6:8.1f} us {self.bandwidth[rank] / 1e9:6.2f} GB/s"
            seen = ", ".join(self.gpus[rank]) or "none"
            shown = link if rank else ""
            lines.append(f"{rank:>4}  {host[:16]:16} {self.cores[rank]:>5}  {shown:>24}  {seen}")
        return "\n".join(lines)


def read_topology(communicator: HostCommunicator, repeats: int = 20) -> Topology:
    """Ask all ranks where they are, and time messages between rank 0 and each other. All ranks call it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = communicator.exchange([socket.gethostname(), cores, _gpus()])
    latency, bandwidth = [0.0], [0.0]
    for other in range(1, communicator.size):
        communicator.barrier()
        latency.append(_there(communicator, other, np.zeros(1), repeats))
        bandwidth.append(2**20 / max(_there(communicator, other, np.zeros(2**17), 5), 1e-12))
    latency, bandwidth = communicator.exchange([latency, bandwidth])[0]
    hosts, counts, gpus = ([one[k] for one in found] for k in range(3))
    return Topology(hosts, counts, gpus, latency, bandwidth)


def _there(communicator: HostCommunicator, other: int, array: Any, repeats: int) -> float:
    """Seconds of a message one way."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        if communicator.rank == 0:
            communicator.send(array, other)
            communicator.recv(array, other)
        elif communicator.rank == other:
            communicator.recv(array, 0)
            communicator.send(array, 0)
        times.append((time.perf_counter() - start) / 2)
    return median(times)


def _gpus() -> list[str]:
    """Names of the GPUs that this process sees, without loading CuPy where there is no driver."""
    from pathlib import Path

    names = []
    for folder in sorted(Path("/proc/driver/nvidia/gpus").glob("*")):
        try:
            text = (folder / "information").read_text(errors="replace")
        except OSError:
            continue
        model = next(
            (line for line in text.splitlines() if line.startswith("Model:")), "Model: GPU"
        )
        names.append(f"{model.removeprefix('Model:').strip()} {folder.name}")
    return names
