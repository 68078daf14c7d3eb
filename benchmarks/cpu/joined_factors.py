"""Products whose second factor is a matrix of several axes of memory: windows, slices, reordered axes.

python -m benchmarks.cpu.joined_factors

Each row: milliseconds of a run, the least of 60, with as many threads as MAGMADNN_NUM_THREADS says. Run it
with both commits in turns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from magmadnn import ops
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.ops.images.windows import windows
from magmadnn.runtime import Executable
from magmadnn.tensor import Operation

RUNS = 60
Shape = tuple[int, ...]


def windows_of(size: int) -> Callable[[Operation], Operation]:
    """The windows over an image as a matrix."""

    def matrix(x: Operation) -> Operation:
        seen = windows(x, size=(size, size), strides=(1, 1), dilation=(1, 1))
        return ops.reshape(seen, (math.prod(seen.shape[:3]), math.prod(seen.shape[3:])))

    return matrix


def rows_of(x: Operation) -> Operation:
    """Some rows of images as a matrix."""
    return ops.reshape(x[:, 4:28], (x.shape[0] * 24, math.prod(x.shape[2:])))


def columns_of(x: Operation) -> Operation:
    """Columns of images as the rows of a matrix."""
    turned = ops.transpose(x, (0, 2, 1, 3))
    return ops.reshape(turned, (math.prod(turned.shape[:2]), math.prod(turned.shape[2:])))


# shape of x, the matrix, whether it is transposed, rows of the first factor
CASES: dict[str, tuple[Shape, Callable[[Operation], Operation], bool, int]] = {
    "windows 3x3 of 64 channels": ((8, 32, 32, 64), windows_of(3), False, 64),
    "the same": ((8, 32, 32, 64), windows_of(3), False, 512),
    "transposed": ((8, 32, 32, 64), windows_of(3), True, 64),
    "the same, transposed": ((8, 32, 32, 64), windows_of(3), True, 512),
    "windows 5x5 of 1 channel, transposed": ((8, 28, 28, 1), windows_of(5), True, 32),
    "windows 3x3 of 4 channels": ((8, 32, 32, 4), windows_of(3), False, 32),
    "a slice": ((64, 32, 32, 16), rows_of, False, 64),
    "the same slice": ((64, 32, 32, 16), rows_of, False, 512),
    "reordered axes": ((64, 32, 32, 16), columns_of, False, 64),
    "reordered axes, transposed": ((64, 32, 32, 16), columns_of, True, 512),
}


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    for name, (shape, matrix, is_turned, rows) in CASES.items():
        x = placeholder("x", Spec(shape, np.dtype(np.float32)))
        second = matrix(Operation(x))
        second = ops.transpose(second) if is_turned else second
        w = placeholder("w", Spec((rows, second.shape[0]), np.dtype(np.float32)))
        run = Executable([(Operation(w) @ second).node], executor="native")
        feeds = {n: rng.standard_normal(n.shape).astype(np.float32) for n in (x, w)}
        times = []
        for _ in range(RUNS + 1):
            start = time.perf_counter()
            run.run(feeds)
            times.append(time.perf_counter() - start)
        print(f"{name:40}{rows:4} rows {1e3 * min(times):8.2f} ms", flush=True)


if __name__ == "__main__":
    main()
