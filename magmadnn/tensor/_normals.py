"""Normal numbers, very many at once: uniform ones by a kernel, in blocks that stay in the cache, by threads.

The numbers are those of `philox.normal`, bit for bit: the kernel does integer arithmetic, and NumPy's
functions do the rest as they do there. Those of a truncated distribution come from its inverse,
`normal_quantile`.
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


# Coefficients of numerator and denominator, constant term first; for |p - 1/2| <= 0.425, and for
# r = sqrt(-log(min(p, 1 - p))) up to 5.
_CENTRE = (
    (
        3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
        1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
        3.3430575583588128105e4, 2.5090809287301226727e3,
    ),
    (
        1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
        2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
        5.2264952788528545610e3,
    ),
)  # fmt: skip
_TAIL = (
    (
        1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
        3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
        2.27238449892691845833e-2, 7.74545014278341407640e-4,
    ),
    (
        1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
        1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
        1.05075007164441684324e-9,
    ),
)  # fmt: skip


def normal_quantile(p: Array) -> Array:
    """Z with P(Z <= z) = p for a standard normal Z, to about 1e-16 relative.

    p must lie between 1e-10 and 1 - 1e-10, which is where the two rational functions here hold.

    Source: Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied
    Statistics 37 (1988), routine PPND16.
    """
    q = p - 0.5
    centre = q * _ratio(0.180625 - q * q, _CENTRE)
    tail = _ratio(np.sqrt(-np.log(np.minimum(p, 1 - p))) - 1.6, _TAIL)
    return np.where(np.abs(q) <= 0.425, centre, np.copysign(tail, q))


def _ratio(x: Array, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> Array:
    above, below = (np.polynomial.polynomial.polyval(x, c) for c in coefficients)
    result: Array = above / below
    return result
