"""Rows on a GPU, each result against NumPy or the processor: run under compute-sanitizer.

Rows put where they belong; sums over many rows of many columns, by pairs of columns; a training on arrays
that come while its first steps run, and on data that is streamed through a ring.
"""

from __future__ import annotations

from unittest.mock import patch

import numpy as np

import magmadnn as md
from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.compiler.cuda.fused.put_rows import put_rows, record_of
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.data import (
    checked_cache as watched,
)
from magmadnn.runtime.cuda.data import (
    gathering_upload as relay,
)
from magmadnn.runtime.cuda.data import (
    overlapped_upload as coming,
)
from magmadnn.runtime.cuda.data.arrays import begin
from magmadnn.runtime.cuda.data.block import Block
from magmadnn.runtime.cuda.schedule import small
from magmadnn.training.loop import fit
from tests.runtime.cuda.devices import distance, network, samples

ROWS, ROOM = 501, 701
SIZES = (61, 37, 5)
ALLOWED = 1e-4  # some roundings; a row of another sample moves parameters by a hundred times that


def put(nbytes: tuple[int, ...]) -> None:
    """Some rows of arrays, in any order, into places of others."""
    rng = np.random.default_rng(nbytes)
    stride, starts = record_of(nbytes)
    records, order = np.zeros((ROWS, stride), np.uint8), rng.permutation(ROOM)[:ROWS]
    records[:, :8] = order[:, None].view(np.uint8)
    rows = [rng.integers(0, 256, (ROWS, size), np.uint8) for size in nbytes]
    for row, start in zip(rows, starts, strict=True):
        records[:, start : start + row.shape[1]] = row
    results = [np.full((ROOM, size), 7, np.uint8) for size in nbytes]
    memory, arrays = device_memory(0), [records, *results]
    blocks = [Block(array.nbytes, 0) for array in arrays]
    for block, values in zip(blocks, arrays, strict=True):
        memory.copy_to_device(block.address, values.reshape(-1))
    fields = [(size, block.address) for size, block in zip(nbytes, blocks[1:], strict=True)]
    begin(0, put_rows(ROWS, blocks[0].address, fields))
    device_engine(0).wait()
    for result, row, block in zip(results, rows, blocks[1:], strict=True):
        found = np.empty_like(result)
        memory.copy_to_host(found.reshape(-1), block.address)
        result[order] = row
        np.testing.assert_array_equal(found, result)


def summed(columns: int) -> None:
    """Sums over rows: each column, or groups of them where there are many."""
    x = np.random.default_rng(columns).standard_normal((1031, columns)).astype(np.float32)
    given = md.placeholder("x", x.shape)
    total = Executable([md.ops.sum(given, axis=0).node], executor="native", device="cuda")
    (found,) = total.run({given.node: x})
    assert np.abs(found - x.sum(0, dtype=np.float64)).max() < 1e-3


def trained(what: str, limit: int | None) -> None:
    """Epochs on arrays that were never seen."""
    given = [samples(471, SIZES[0], SIZES[-1]) for _ in range(2)]
    md.memory.limit_data(limit)
    models = [network(SIZES, md.optim.SGD(0.1), device=device) for device in ("cuda", "cpu")]
    for model in models:
        for x, y in given:
            model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    md.memory.limit_data(None)
    off = distance(*models)
    assert off <= ALLOWED, (what, off)


def main() -> None:
    """Run all; raises AssertionError where one is wrong."""
    for nbytes in ((1,), (2, 12), (6, 24, 1), (244, 8), (3136, 8)):
        put(nbytes)
    for columns in (37, 4400, 8500, 17001):
        summed(columns)
    small.MOST_OPERATIONS = 0  # as larger networks are run
    fit._SLICE_SECONDS = 1e6  # slices are epochs, however slow
    watched.LEAST_BYTES = coming.LEAST_BYTES = 1
    relay._PART_BYTES = 5000
    with patch.object(
        relay.GatheringUploader, "run", autospec=True, side_effect=relay.GatheringUploader.run
    ) as run:
        trained("coming", None)
    assert run.called
    trained("streamed", 40000)
    print("rows are right")


if __name__ == "__main__":
    main()
