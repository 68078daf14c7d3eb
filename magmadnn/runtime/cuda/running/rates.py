"""Measures what a device can do at most, in some hundredths of a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.backends.cuda.engine import EventNode, ProductNode
from magmadnn.compiler.kernels.formula import HALVES
from magmadnn.compiler.rates import Rates
from magmadnn.errors import OutOfMemoryError
from magmadnn.memory import Kind, MemoryManager, as_dtype

from .instance import workspaces_of

_ENOUGH = 1e-3  # seconds of a run that is long beside its launch
_RUNS = 5
_PRODUCTS = (256, 8192)  # rows of matrices, first and last that are tried
_COPIES = (1 << 24, 1 << 29)  # bytes, likewise: the last are far more than caches hold


def rates_of(device: int, dtypes: dict[str, tuple[str, bool]]) -> Rates:
    """The rates of large products and of a copy on a device; sizes are doubled until a run is long enough.

    Args:
        device: its number.
        dtypes: for each name in the result: the operands' dtype, and whether TF32 is allowed.
    """
    flops = {
        name: _largest(_PRODUCTS, partial(_product, device, dtype, rounded))
        for name, (dtype, rounded) in dtypes.items()
    }
    return Rates(flops, _largest(_COPIES, partial(_copy, device)))


def _largest(sizes: tuple[int, int], measure: Callable[[int], tuple[float, float]]) -> float:
    """The best rate of sizes up to the first that runs long enough; `measure` gives work and seconds."""
    size, last = sizes
    best = 0.0
    while size <= last:
        try:
            work, seconds = measure(size)
        except OutOfMemoryError:
            break
        best = max(best, work / max(seconds, 1e-9))
        if seconds > _ENOUGH:
            break
        size *= 2
    return best or 1e-9  # nothing could be measured


def _product(device: int, dtype: str, tensor_float: bool, size: int) -> tuple[float, float]:
    engine, memory = device_engine(device), device_memory(device)
    noise = np.random.default_rng(0).standard_normal(1 << 14).astype(as_dtype(dtype))
    count, half = size * size, dtype if dtype in HALVES else None
    wide = "float32" if half else dtype
    held = [MemoryManager(count, d, Kind.DEVICE, device) for d in (dtype, dtype, wide)]
    a, b, c = (block.device_pointer(write=True) for block in held)
    for address in (a, b):  # zeros would be multiplied with less power, and so faster
        memory.fill(address, noise.tobytes(), count // len(noise))
    node = ProductNode(
        wide, tensor_float, (size, size, size), (False, False), a, b, c, (size, size, size),
        workspaces_of(device)[0][0], halves=half,
    )  # fmt: skip
    begin, end = engine.event(), engine.event()
    graph = engine.graph([EventNode(begin), replace(node, after=(0,)), EventNode(end, (1,))])
    best = float("inf")
    for _ in range(_RUNS):
        graph.launch()
        engine.wait()
        best = min(best, engine.seconds(begin, end))
    return 2.0 * size**3, best


def _copy(device: int, nbytes: int) -> tuple[float, float]:
    memory = device_memory(device)
    held = [MemoryManager(nbytes, np.uint8, Kind.DEVICE, device) for _ in range(2)]
    source, goal = (block.device_pointer(write=True) for block in held)
    best = float("inf")
    for _ in range(2):
        memory.wait()
        begun = time.perf_counter()
        for _ in range(_RUNS):
            memory.copy_on_device(goal, source, nbytes)
        memory.wait()
        best = min(best, (time.perf_counter() - begun) / _RUNS)
    return 2.0 * nbytes, best  # each byte is read and written
