"""Whether a training step has room where it runs, found out before the first one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping

from magmadnn.errors import ArgumentError, OutOfMemoryError
from magmadnn.memory.room import ALWAYS_THERE
from magmadnn.memory.usage import in_units
from magmadnn.runtime import Executable
from magmadnn.runtime.agreement import agreement
from magmadnn.runtime.step_memory import StepMemory

BATCH = "batch"  # the symbol of the rows of a batch


def refuse_too_large(
    executable: Executable,
    what: str,
    sizes: Mapping[str, int],
    batch_size: int,
    missing: Callable[[Mapping[str, int]], int] | None = None,
    sharers: int = 1,
) -> None:
    """Look whether a step of `batch_size` rows has room.

    Args:
        executable: the step.
        what: for the message.
        sizes: of symbolic dimensions, of whatever batch.
        batch_size: rows.
        missing: bytes that a step of such sizes takes beside what is there; None for those of the executable.
        sharers: ranks that plan on the memory of the same device, with equal parts of what is free.

    Raises:
        OutOfMemoryError: if it has not, here or where another worker trains the same model.
    """
    ask = executable.missing_bytes if missing is None else missing

    def needs(rows: int) -> int:
        return ask({**sizes, BATCH: rows})

    needed, free = needs(batch_size), 0
    fits = needed <= ALWAYS_THERE or needed <= executable.free_bytes(sharers)
    if not fits:
        gc.collect()  # models that nobody uses may hang in reference cycles
        free = executable.free_bytes(sharers)
        fits = needed <= free
    if agreement().all(fits, "the step has room"):
        return
    if fits:
        raise OutOfMemoryError(f"{what}: another worker has no room for batches of {batch_size}")
    raise OutOfMemoryError(
        f"{what}: a step with batch_size={batch_size} needs {in_units(needed)}, and {_place(executable)} has "
        f"{in_units(free)} left{_each(sharers)}; {_way_out(needs, batch_size, free)}"
    )


def refuse_beyond(
    limit: int, what: str, memory: Callable[[int], StepMemory | None], batch_size: int
) -> None:
    """Look whether a step of `batch_size` rows takes no more than a user allows.

    Args:
        limit: bytes.
        what: for the message.
        memory: of a step of so many rows.
        batch_size: rows.

    Raises:
        ArgumentError: if nobody knows what a step takes.
        OutOfMemoryError: if it takes more, here or where another worker trains the same model.
    """

    def needs(rows: int) -> int:
        found = memory(rows)
        if found is None:
            raise ArgumentError(
                f'{what}: memory_limit needs executor="native", whose plans say what a step takes: leave it '
                "out, or give the model executor='native'"
            )
        return found.total

    needed = needs(batch_size)
    fits = needed <= limit
    if agreement().all(fits, "a step is within memory_limit"):
        return
    if fits:
        raise OutOfMemoryError(
            f"{what}: a step with batch_size={batch_size} takes more than memory_limit={limit:,} bytes on "
            "another worker"
        )
    raise OutOfMemoryError(
        f"{what}: a step with batch_size={batch_size} takes {needed:,} bytes, memory_limit is {limit:,}; "
        f"{_way_out(needs, batch_size, limit)}, or share the network out over more workers: parallel="
        "md.parallel.DataParallel(shard='parameters'), ModelParallel() or Pipeline()"
    )


def _each(sharers: int) -> str:
    return "" if sharers == 1 else f" for each of the {sharers} ranks that it has"


def _place(executable: Executable) -> str:
    return "this machine" if executable.device is None else f"device {executable.device}"


def _way_out(needs: Callable[[int], int], batch_size: int, free: int) -> str:
    """The largest batch that has room."""
    below, above = 0, batch_size
    while above - below > 1:
        middle = (below + above) // 2
        if needs(middle) <= free:
            below = middle
        else:
            above = middle
    if not below:
        return "not even one row fits: use a smaller network or another device"
    return f"the largest that fits is batch_size={below}"
