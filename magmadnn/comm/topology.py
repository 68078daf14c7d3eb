"""Where ranks and their GPUs are, how quickly messages go between them, and the order of a ring of them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from .group import HostCommunicator

# What connects two GPUs, or what they have in common, the nearest first.
LINKS: Final = ("NVLink", "PCIe switch", "PCIe root", "processor", "machine", "network")
_ALL_ORDERS: Final = 8  # ranks up to which every order of a ring is looked at
_DEVICES: Final = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class Place:
    """Where a GPU is.

    Attributes:
        host: the machine.
        bus: its number on the PCIe bus, such as 0000:19:00.0.
        path: bridges from the PCIe root down to the GPU; empty where the system does not tell.
        node: of memory that is near; -1 where the system does not tell.
        linked: buses of GPUs that it reaches by NVLink.
    """

    host: str
    bus: str
    path: tuple[str, ...] = ()
    node: int = -1
    linked: tuple[str, ...] = ()

    def link(self, other: Place) -> int:
        """What connects two GPUs, as a place in `LINKS`; what is not known is taken for the nearest."""
        if self.host != other.host:
            return LINKS.index("network")
        if other.bus in self.linked or self.bus in other.linked or self.bus == other.bus:
            return LINKS.index("NVLink")
        if not (self.path and other.path) or set(self.path[1:]) & set(other.path[1:]):
            return LINKS.index("PCIe switch")
        if self.path[0] == other.path[0]:
            return LINKS.index("PCIe root")
        return LINKS.index("processor" if self.node == other.node else "machine")


def pcie_place(
    bus: str, linked: Sequence[str] = (), devices: Path = _DEVICES, host: str | None = None
) -> Place:
    """The place of a GPU of this machine, as the system tells.

    Args:
        bus: its number, such as 0000:19:00.0.
        linked: buses of GPUs that it reaches by NVLink.
        devices: the system's folder of devices by bus.
        host: the machine's name; None: as it calls itself.
    """
    bus, node = bus.lower(), -1
    path: tuple[str, ...] = ()
    try:
        found = (devices / bus).resolve(strict=True)
        parts = found.parts
        root = next(i for i, part in enumerate(parts) if part.startswith("pci") and ":" in part)
        path, node = parts[root:-1], int((found / "numa_node").read_text())
    except (OSError, StopIteration, ValueError):
        pass
    return Place(
        host or socket.gethostname(), bus, path, node, tuple(one.lower() for one in linked)
    )


def ring_order(links: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The ranks in an order in which a ring of them crosses as few far links as can be.

    The farthest links count first. Of orders that are as good the one is taken whose first ranks are nearest
    each other. Where all pairs are alike ranks stay in the order of their numbers.

    Args:
        links: for each pair of ranks a whole number, larger for farther ones; the larger of both directions
            counts.
    """
    size = len(links)
    if size < 3:
        return tuple(range(size))
    far = [[max(links[a][b], links[b][a]) for b in range(size)] for a in range(size)]

    def cost(order: Sequence[int]) -> tuple[list[int], list[int]]:
        """Links of the ring, the farthest first, and in their order."""
        steps = [far[a][b] for a, b in zip(order, [*order[1:], order[0]], strict=True)]
        return sorted(steps, reverse=True), steps

    start = tuple(range(size))
    if len({far[a][b] for a in range(size) for b in range(a)}) == 1:
        return start
    if size <= _ALL_ORDERS:
        return min(
            ((0, *rest) for rest in permutations(range(1, size))), key=lambda o: (cost(o), o)
        )
    nearest, left = [0], set(range(1, size))
    while left:
        nearest.append(min(left, key=lambda rank: (far[nearest[-1]][rank], rank)))
        left.remove(nearest[-1])
    best = min((start, tuple(nearest)), key=cost)
    while True:  # turn a part round as long as that helps
        turned = (
            (*best[:i], *reversed(best[i:j]), *best[j:])
            for i in range(1, size - 1)
            for j in range(i + 2, size + 1)
        )
        better = min(turned, key=cost)
        if cost(better) >= cost(best):
            return best
        best = better


@dataclass(frozen=True)
class Topology:
    """What is known of a group of ranks.

    Args:
        hosts: the machine of each rank.
        cores: that each rank may use.
        gpus: names, bus numbers and PCIe roots of the GPUs that each rank sees.
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
    names = []
    for folder in sorted(Path("/proc/driver/nvidia/gpus").glob("*")):
        try:
            text = (folder / "information").read_text(errors="replace")
        except OSError:
            continue
        model = next(
            (line for line in text.splitlines() if line.startswith("Model:")), "Model: GPU"
        )
        place = pcie_place(folder.name)
        root = f" on {place.path[0]}" if place.path else ""
        names.append(f"{model.removeprefix('Model:').strip()} {folder.name}{root}")
    return names
