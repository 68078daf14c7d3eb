"""Which links there are between the GPUs of a group."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from magmadnn.comm.topology import Place, pcie_place

_NATIVE_ATOMICS: Final = 3  # CU_DEVICE_P2P_ATTRIBUTE: NVLink has them between GPUs, PCIe has not


def read_links(group: Any, driver: Any = None) -> list[list[int]]:
    """What connects each pair of a group's GPUs, as places in `magmadnn.comm.topology.LINKS`. Collective.

    A pair is linked by NVLink if the driver of one of them says so; else it is as near as their places on the
    PCIe bus.

    Args:
        group: of the GPUs' ranks.
        driver: libcuda; None: it is loaded, and where it cannot be nothing is linked by NVLink.
    """
    runtime = group._cupy.cuda.runtime
    mine = str(runtime.deviceGetPCIBusId(group._device))
    buses = group.exchange(mine)
    if driver is None:
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            driver = None
    linked = [bus for bus in buses if bus != mine and _linked(runtime, driver, group._device, bus)]
    place = pcie_place(mine, linked)
    words = [place.host, place.bus, list(place.path), place.node, list(place.linked)]
    places = [
        Place(host, bus, tuple(path), node, tuple(others))
        for host, bus, path, node, others in group.exchange(words)
    ]
    return [[one.link(other) for other in places] for one in places]


def _linked(runtime: Any, driver: Any, device: int, bus: str) -> bool:
    """Whether a device of this process reaches the one at a bus by NVLink."""
    found = ctypes.c_int()
    try:
        other = int(runtime.deviceGetByPCIBusId(bus))
        status = driver.cuDeviceGetP2PAttribute(ctypes.byref(found), _NATIVE_ATOMICS, device, other)
    except (RuntimeError, AttributeError):  # not one of this machine or process, or no driver
        return False
    return not status and bool(found.value)
