"""Copies between memories of any two kinds: sixteen pairs, four ways.

A copy reads a side of the source that is valid and writes a side of the destination that is valid, or
any side when everything there is overwritten. Among the ways that are left, those that stay on one side
come first, since what does not cross the bus costs least:

    device to device, host to host, device to host, host to device
"""

from __future__ import annotations

import numpy as np

from .kinds import Kind
from .pool import POOLS, DeviceSource
from .sides import Side, Sides

_WAYS: tuple[tuple[Side, Side], ...] = (
    ("device", "device"),
    ("host", "host"),
    ("device", "host"),
    ("host", "device"),
)


def copy(to: Sides, at: int, source: Sides, begin: int, nbytes: int) -> None:
    """Copy `nbytes` from byte `begin` of `source` to byte `at` of `to`; the ranges may overlap."""
    if not nbytes:
        return
    whole = nbytes == to.nbytes
    readable, writable = _readable(source), _writable(to, whole)
    from_side, to_side = next(w for w in _WAYS if w[0] in readable and w[1] in writable)
    if whole:
        to.forget(to_side)
    if to_side == "host":
        target = to.host(write=True)[at : at + nbytes]
        if from_side == "host":
            target[...] = source.host()[begin : begin + nbytes]
        else:
            source.memory.copy_to_host(target, source.address() + begin)
    elif from_side == "host":
        piece = source.host()[begin : begin + nbytes]
        to.memory.copy_to_device(to.address(write=True) + at, piece)
    else:
        _on_device(to, at, source, begin, nbytes)


def _readable(source: Sides) -> set[Side]:
    """The sides that are valid; for CUDA_MANAGED the device's, which copies run on."""
    if source.kind is Kind.CUDA_MANAGED:
        return {"device"}
    sides: set[Side] = {"host"} if source.host_valid else set()
    return sides | {"device"} if source.device_valid else sides


def _writable(to: Sides, whole: bool) -> set[Side]:
    """The sides that may be written without copying anything first."""
    if to.kind is Kind.MANAGED and whole:
        return {"host", "device"}
    return _readable(to)


def _on_device(to: Sides, at: int, source: Sides, begin: int, nbytes: int) -> None:
    memory = to.memory
    from_address, to_address = source.address() + begin, to.address(write=True) + at
    if abs(from_address - to_address) >= nbytes:
        memory.copy_on_device(to_address, from_address, nbytes)
        return
    # a device's copy between overlapping ranges is not defined: go through a block beside them
    staging = POOLS[Kind.DEVICE].lend(DeviceSource(memory, managed=False), nbytes)
    memory.copy_on_device(staging.block, from_address, nbytes)
    memory.copy_on_device(to_address, staging.block, nbytes)


def fill(to: Sides, pattern: bytes) -> None:
    """Write one element's bytes all over."""
    side: Side = "device" if to.device_valid else "host"
    to.forget(side)
    if side == "device":
        to.memory.fill(to.address(write=True), pattern, to.nbytes // len(pattern))
    elif to.nbytes:
        element = np.frombuffer(pattern, np.uint8)
        to.host(write=True).reshape(-1, element.size)[...] = element
