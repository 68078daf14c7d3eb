"""Slices of plans that are kept, with their graphs, for the next call with data of the same shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from magmadnn.errors import OutOfMemoryError
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime.cuda.running.runner import CudaRunner

from .sliced_plans import can_slice
from .slices import CudaSlices

_kept: WeakKeyDictionary[CudaRunner, dict[object, CudaSlices]] = WeakKeyDictionary()


def slices_of(
    runner: CudaRunner,
    data: Mapping[Node, Array | OnDevice],
    settings: Sequence[Node],
    sizes: Mapping[str, int],
    batch_size: int,
    streams: bool,
    ring_bytes: int | None,
) -> CudaSlices | None:
    """Slices of a plan; None where a part of it is NumPy's, or the data does not fit on the device.

    The last ones are kept with their graphs, and take new data of the same shapes. With `streams`, rows are
    brought by `data.renew` before they are used; with `ring_bytes` they pass through a ring of that size.
    What they are given from then on is named as in `runner.inside`.
    """
    data, settings = runner.inside(data), list(runner.inside(dict.fromkeys(settings)))
    runner = runner.inner
    looks = tuple((node, array.shape, array.dtype) for node, array in data.items())
    key = (looks, tuple(settings), tuple(sorted(sizes.items())), ring_bytes)
    kept = _kept.setdefault(runner, {})
    try:
        if key not in kept or not kept[key].is_there():
            kept.clear()
            if not can_slice(runner, data, settings):
                return None
            kept[key] = CudaSlices(runner, data, settings, sizes, batch_size, ring_bytes)
        kept[key].data.take(data, streams)  # which may have changed
    except OutOfMemoryError:
        kept.clear()
        return None  # batches are then brought to the device one by one
    return kept[key]


def held_bytes(runner: CudaRunner) -> int:
    """Bytes of data that kept slices of a plan have on the device."""
    return sum(slices.data.nbytes for slices in _kept.get(runner.inner, {}).values())


def has_sliced(runner: CudaRunner, sizes: Mapping[str, int]) -> bool:
    """Whether there is memory for slices of these sizes already."""
    return any(kept.sizes == sizes for kept in _kept.get(runner.inner, {}).values())


def slices_that_wait(runner: CudaRunner) -> list[CudaSlices] | None:
    """Slices that are kept of a plan; None where other variables cannot take the place of theirs."""
    slices = list(_kept.get(runner, {}).values())
    return slices if all(one.can_wait for one in slices) else None
