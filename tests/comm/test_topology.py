"""Where GPUs are, what links them, and rings that cross few far links, on systems made up for it."""

from __future__ import annotations

import random
from itertools import permutations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from magmadnn.comm import Communicator, Network, simulate
from magmadnn.comm.gpu import links, read_links
from magmadnn.comm.topology import LINKS, Place, pcie_place, ring_order
from magmadnn.errors import ArgumentError

BUSES = ("0000:0a:00.0", "0000:8a:00.0", "0000:0b:00.0", "0000:8b:00.0", "0000:1a:00.0")
BRIDGES = (
    *("pci0000:00/0000:00:01.0", "pci0000:80/0000:80:01.0", "pci0000:00/0000:00:01.0"),
    *("pci0000:80/0000:80:02.0", "pci0000:10/0000:10:01.0"),
)
NODES = (0, 1, 0, 1, 0)


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """Five GPUs below three PCIe roots; the first and the third below one switch."""
    folder = tmp_path / "bus"
    folder.mkdir()
    for bus, bridge, node in zip(BUSES, BRIDGES, NODES, strict=True):
        real = tmp_path / "devices" / bridge / bus
        real.mkdir(parents=True)
        (real / "numa_node").write_text(f"{node}\n")
        (folder / bus).symlink_to(real)
    return folder


def test_places_are_read_from_the_system(devices: Path) -> None:
    places = [pcie_place(bus.upper(), devices=devices, host="a") for bus in BUSES]
    assert places[0] == Place("a", "0000:0a:00.0", ("pci0000:00", "0000:00:01.0"), 0)

    def link(a: int, b: int) -> str:
        assert places[a].link(places[b]) == places[b].link(places[a])
        return LINKS[places[a].link(places[b])]

    assert link(0, 2) == "PCIe switch"
    assert link(1, 3) == "PCIe root"
    assert link(0, 4) == "processor"
    assert link(0, 1) == "machine"
    assert LINKS[places[0].link(pcie_place(BUSES[0], devices=devices, host="b"))] == "network"
    linked = pcie_place(BUSES[0], [BUSES[1].upper()], devices, "a")
    assert LINKS[places[1].link(linked)] == LINKS[linked.link(places[1])] == "NVLink"


def test_where_the_system_does_not_tell_all_are_alike(tmp_path: Path) -> None:
    places = [pcie_place(bus, devices=tmp_path) for bus in BUSES]
    assert all(place.path == () and place.node == -1 for place in places)
    assert {a.link(b) for a, b in permutations(places, 2)} == {LINKS.index("PCIe switch")}


def crossed(order: tuple[int, ...], far: list[list[int]]) -> list[int]:
    steps = zip(order, (*order[1:], order[0]), strict=True)
    return sorted((max(far[a][b], far[b][a]) for a, b in steps), reverse=True)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 16])
def test_where_all_pairs_are_alike_the_order_stays(size: int) -> None:
    assert ring_order([[4] * size for _ in range(size)]) == tuple(range(size))


def test_two_roots_are_crossed_twice_and_the_first_two_are_near() -> None:
    """Ranks take turns between the roots, so that a ring by numbers crosses four times."""
    far = [[4 if (a - b) % 2 else 0 for b in range(4)] for a in range(4)]
    assert crossed((0, 1, 2, 3), far) == [4, 4, 4, 4]
    assert ring_order(far) == (0, 2, 1, 3)
    assert crossed(ring_order(far), far) == [4, 4, 0, 0]


@pytest.mark.parametrize("seed", range(12))
def test_no_other_ring_crosses_fewer_far_links(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(3, 6)
    far = [[rng.randint(0, 3) for _ in range(size)] for _ in range(size)]
    found = ring_order(far)
    assert sorted(found) == list(range(size)) and found[0] == 0
    assert crossed(found, far) == min(crossed(order, far) for order in permutations(range(size)))


@pytest.mark.parametrize("seed", range(8))
def test_rings_of_many_ranks_leave_each_switch_once(seed: int) -> None:
    """Twelve ranks dealt to three switches in any way."""
    switch = [rank % 3 for rank in range(12)]
    random.Random(seed).shuffle(switch)
    far = [[0 if a == b else 3 for b in switch] for a in switch]
    found = ring_order(far)
    assert sorted(found) == list(range(12))
    assert crossed(found, far) == [3, 3, 3] + [0] * 9


class Driver:
    """libcuda, of devices that are linked in pairs: 0 with 1, 2 with 3."""

    def cuDeviceGetP2PAttribute(self, value: Any, attribute: int, one: int, other: int) -> int:
        assert attribute == 3
        if one == other:
            return 1
        value._obj.value = one // 2 == other // 2
        return 0


def group_of(comm: Communicator, hidden: bool = False) -> Any:
    """A group on four of the GPUs; with `hidden` each process sees its own only."""

    def by_bus(bus: str) -> int:
        if hidden and BUSES.index(bus) != comm.rank:
            raise RuntimeError("cudaErrorInvalidDevice")
        return BUSES.index(bus)

    runtime = SimpleNamespace(
        deviceGetPCIBusId=lambda device: BUSES[device].upper(), deviceGetByPCIBusId=by_bus
    )
    runtime.deviceGetByPCIBusId = lambda bus: by_bus(bus.lower())
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    return SimpleNamespace(_cupy=cupy, _device=comm.rank, exchange=comm.exchange)


@pytest.mark.parametrize("hidden", [False, True])
def test_links_of_a_group_are_the_same_on_all_ranks(
    devices: Path, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    monkeypatch.setattr(
        links, "pcie_place", lambda bus, linked: pcie_place(bus, linked, devices, "a")
    )
    found = simulate(4, lambda comm: read_links(group_of(comm, hidden), Driver()))
    assert all(one == found[0] for one in found)
    names = {(a, b): LINKS[found[0][a][b]] for a, b in product(range(4), repeat=2) if a < b}
    assert names[0, 3] == names[1, 2] == "machine"
    if hidden:  # what another process's device is linked with is not known
        assert names[0, 2] == "PCIe switch" and names[1, 3] == "PCIe root"
        assert names[0, 1] == "machine" and ring_order(found[0]) == (0, 2, 1, 3)
    else:
        assert names[0, 1] == names[2, 3] == "NVLink"
        assert ring_order(found[0])[:2] == (0, 1)


def test_messages_between_groups_share_a_link() -> None:
    def one(comm: Any) -> float:
        out = np.empty(100, np.uint8)
        comm.shift(np.zeros(100, np.uint8), out)
        return float(comm.clock)

    plain = simulate(4, one, network=Network(bandwidth=100.0))
    shared = simulate(4, one, network=Network(bandwidth=100.0, groups=(0, 1, 0, 1), between=50.0))
    apart = simulate(4, one, network=Network(bandwidth=100.0, groups=(0, 0, 1, 1), between=50.0))
    assert plain == [1.0] * 4  # each way from one group to the other is taken twice, or once
    assert max(shared) == 4.0 and max(apart) == 2.0
    with pytest.raises(ArgumentError, match="groups of 3 ranks, and there are 2"):
        simulate(2, one, network=Network(groups=(0, 1, 1)))
    with pytest.raises(ArgumentError, match="between above 0"):
        Network(between=0.0)
