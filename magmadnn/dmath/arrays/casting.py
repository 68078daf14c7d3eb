"""Casts of parts of matrices on a GPU: rows that follow each other at a distance, four elements at a time.

The library's own kernels find each element of such a part by divisions and reach about half of the memory's
speed, which was more time than the link takes for the result.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from magmadnn.dmath.arrays.team import Array

_THREADS: Final = 256
_TYPES: Final = {
    "float64": "double",
    "float32": "float",
    "float16": "unsigned short",
    "bfloat16": "unsigned short",
}
# To the nearest, ties to even; no header of the toolkit is needed.
_ROUNDED: Final = {
    "float32": "return (float)x;",
    "float16": 'unsigned short made; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(made) : "f"(x)); return made;',
    "bfloat16": """unsigned bits = __float_as_uint(x);
    if (x != x) return (unsigned short)((bits >> 16) | 0x40);
    return (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);""",
}
_CODE: Final = """
__device__ inline TARGET rounded(SOURCE x) { ROUNDED }
struct __align__(4 * sizeof(SOURCE)) Four { SOURCE v[4]; };
struct __align__(4 * sizeof(TARGET)) Made { TARGET v[4]; };
extern "C" __global__ void cast_rows(
    const char* source, char* target, long long source_step, long long target_step, int rows, int fours)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= fours) return;
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        Four given = reinterpret_cast<const Four*>(source + row * source_step)[column];
        Made made;
        #pragma unroll
        for (int i = 0; i < 4; ++i) made.v[i] = rounded(given.v[i]);
        reinterpret_cast<Made*>(target + row * target_step)[column] = made;
    }
}
"""


def cast(xp: Any, into: Array, piece: Array) -> None:
    """`into[...] = piece`, rounded to the nearest; both of one shape."""
    if xp is np or not into.size or not _fits(into, piece):
        into[...] = piece
        return
    rows, fours = int(into.shape[0]), int(into.shape[1]) // 4
    kernel = _kernel(xp, piece.dtype.name, into.dtype.name)
    grid = (-(-fours // _THREADS), min(rows, 65535), 1)
    steps = np.int64(piece.strides[0]), np.int64(into.strides[0])
    kernel(grid, (_THREADS, 1, 1), (piece.data, into.data, *steps, np.int32(rows), np.int32(fours)))


def _fits(into: Array, piece: Array) -> bool:
    """Whether both are rows of fours of float32, float64 or halves that lie on whole vectors."""
    names = piece.dtype.name, into.dtype.name
    if into.ndim != 2 or names not in {
        ("float32", "bfloat16"), ("float32", "float16"), ("float64", "float32"),
    }:  # fmt: skip
        return False
    return into.shape[1] % 4 == 0 and all(
        x.strides[1] == x.itemsize
        and x.strides[0] > 0
        and x.strides[0] % (4 * x.itemsize) == 0
        and int(x.data.ptr) % (4 * x.itemsize) == 0
        for x in (into, piece)
    )


@lru_cache(maxsize=16)
def _kernel(xp: Any, source: str, target: str) -> Any:
    code = _CODE.replace("SOURCE", _TYPES[source]).replace("TARGET", _TYPES[target])
    return xp.RawKernel(code.replace("ROUNDED", _ROUNDED[target]), "cast_rows")
