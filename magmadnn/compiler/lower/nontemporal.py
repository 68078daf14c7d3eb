"""Which results of a kernel are stored past the caches, for given sizes: a rule, never measured.

A cache line that is stored is first read from memory, unless it is stored past the caches, in whole vectors.
That saves a third of the traffic of a kernel that reads one matrix and writes another, but whoever reads the
result next finds nothing of it in a cache. It changes no bit.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from magmadnn.compiler.kernels.operands import FULL, Result
from magmadnn.compiler.kernels.rows import Rows

_BYTES = {"float32": 4, "float64": 8}
_SHARE = 0.25  # of the last cache: of larger results that nobody reads in the same plan little would be left
_LARGE = 16 << 20  # bytes, too many for any: a last cache of hundreds of MiB serves many cores


def streaming(
    rows: Rows,
    values: Mapping[str, int],
    read_later: Container[str],
    last_cache_bytes: int,
    vector_bytes: int,
) -> Rows:
    """The kernel with the results that are stored past the caches.

    Args:
        rows: the kernel.
        values: its slots, for the whole matrix.
        read_later: names of results that are read again in the same run: only where they are larger than
            the last cache are they gone from there by then.
        last_cache_bytes: size of the last cache.
        vector_bytes: of a vector register.
    """
    operands = {values[operand.name] for operand in rows.operands}

    def is_streamed(result: Result) -> bool:
        if result.spread != FULL or result.dtype not in _BYTES:
            return False
        if values[result.name] in operands:
            return False  # its lines are in the cache already
        item = _BYTES[result.dtype]
        starts = (values[result.name], item * values[f"{result.name}_row"])
        sizes = (item * values["column1"],)
        few = min(_SHARE * last_cache_bytes, _LARGE)
        least = last_cache_bytes if result.name in read_later else few
        whole = all(number % vector_bytes == 0 for number in (*starts, *sizes))
        return whole and item * values["row1"] * values["column1"] >= least

    stored = (result for stage in rows.stages for result in stage.store)
    streamed = tuple(r.name for r in stored if is_streamed(r))
    return rows if streamed == rows.streamed else replace(rows, streamed=streamed)
