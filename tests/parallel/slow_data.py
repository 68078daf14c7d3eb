"""A handler that makes data slow on workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from magmadnn.training.loop import own_rows
from magmadnn.workers import Answer, Worker, handler


@handler("test.slow_data")
def slow_data(worker: Worker, seconds: list[float], arrays: Any) -> Answer:
    """From here on this worker waits so long for each batch, or chunk of batches."""
    mine = seconds[worker.communicator.rank]
    take, epoch = own_rows._OwnChunks.__call__, own_rows.OwnRows.epoch

    def slow_take(self: Any, most: int) -> Any:
        time.sleep(mine)
        return take(self, most)

    def slow_epoch(self: Any, *which: Any) -> Iterator[Any]:
        for batch in epoch(self, *which):
            time.sleep(mine)
            yield batch

    own_rows._OwnChunks.__call__ = slow_take  # type: ignore[method-assign]
    own_rows.OwnRows.epoch = slow_epoch  # type: ignore[method-assign]
    return Answer()
