"""Very many normal numbers at once: uniform ones by a kernel, in blocks that stay in the cache, by threads.

The numbers are those of `philox.normal`, bit for bit: the kernel does integer arithmetic, and NumPy's
functions do the rest as they do there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from magmadnn.graph.op import Array
from magmadnn.ops import philox

MANY = 1 << 16  # numbers: NumPy takes longer for them than it takes to load the kernel
_PART = 1 << 15  # numbers drawn at a time
_THREADS = 8
_KEY = 1 << 64  # seeds and streams have 64 bits

_Draw = Callable[[int, NDArray[np.float64]], None]


def normals(
    seed: int, stream: int, count: int, dtype: np.dtype[np.floating], mean: float, std: float
) -> Array:
    """`mean + std * philox.normal(seed, stream, count)`, computed in float64.

    It is of `dtype` already where numbers are many and that loses none of them, otherwise of float64.
    """
    if count >= MANY and dtype in (np.float32, np.float64):
        out = np.empty(count, dtype)
        if _fill(out, _uniform(seed, stream), mean, std):
            return out
    return np.asarray(mean + std * philox.normal(seed, stream, count))


def _fill(out: Array, draw: _Draw, mean: float, std: float) -> bool:
    """Give `out` its numbers; False where one is not finite."""
    parts = iter(range(0, out.size, _PART))  # each thread takes the next one

    def work(_: int) -> bool:
        return _fill_parts(out, parts, draw, mean, std)

    from concurrent.futures import ThreadPoolExecutor  # rarely needed

    threads = min(_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        return all(list(pool.map(work, range(threads))))


def _fill_parts(out: Array, parts: Iterator[int], draw: _Draw, mean: float, std: float) -> bool:
    """The same for the parts that `parts` gives, each the place of its first number."""
    room, radii, waves = np.empty((_PART, 2)), np.empty(_PART), np.empty(_PART)
    finite = True
    for first in parts:
        goal = out[first : first + _PART]
        u, radius, wave = room[: goal.size], radii[: goal.size], waves[: goal.size]
        draw(2 * first, u.reshape(-1))
        with np.errstate(all="ignore"):  # whether all are finite is looked at below
            np.sqrt(
                np.multiply(
                    -2.0, np.log1p(np.negative(u[:, 0], out=radius), out=radius), out=radius
                ),
                out=radius,
            )
            np.cos(np.multiply(2.0 * np.pi, u[:, 1], out=wave), out=wave)
            np.multiply(std, np.multiply(radius, wave, out=radius), out=radius)
            goal[...] = np.add(mean, radius, out=radius)
        finite = finite and bool(np.isfinite(goal).all())
    return finite


def _uniform(seed: int, stream: int) -> _Draw:
    """What draws the uniform numbers of a stream from a place on, a multiple of 64, into an array."""
    from magmadnn.compiler.kernels.draws import Draw
    from magmadnn.compiler.kernels.operands import ROW, SCALAR, Operand, Result
    from magmadnn.compiler.llvm.kernel import block, load, scratch
    from magmadnn.compiler.llvm.object.cache import kernel_cache

    result = Result("y", "float64", ("drawn",), ROW)
    kernel = Draw((Operand("stream", "int64", SCALAR),), (result,), "float64")
    run, none = load([kernel], cache=kernel_cache())[0], scratch(0)
    key, held = _signed(seed), np.array([_signed(stream)], np.int64)

    def draw(first: int, goal: NDArray[np.float64]) -> None:
        origin = goal.ctypes.data - goal.itemsize * first  # of number 0 of the stream
        run(
            block(
                kernel, column0=first, column1=first + goal.size, seed=key, stream=held, y=origin
            ),
            none,
        )

    return draw


def _signed(word: int) -> int:
    """The low 64 bits of an integer as a signed one."""
    low = int(word) % _KEY
    return low - _KEY if low >= _KEY // 2 else low
