"""Whether a training step has room where it runs, found out before the first one."""

from __future__ import annotations

import gc
from collections.abc import Mapping

from magmadnn.errors import OutOfMemoryError
from magmadnn.memory.usage import in_units
from magmadnn.runtime import Executable
from magmadnn.runtime.agreement import agreement

BATCH = "batch"  # the symbol of the rows of a batch
ALWAYS_THERE = 1 << 20  # bytes: to ask the system what is left takes longer than a small step


def refuse_too_large(
    executable: Executable, what: str, sizes: Mapping[str, int], batch_size: int
) -> None:
    """Look whether a step of `batch_size` rows has room.

    Args:
        executable: the step.
        what: for the message.
        sizes: of symbolic dimensions, of whatever batch.
        batch_size: rows.

    Raises:
        OutOfMemoryError: if it has not, here or where another worker trains the same model.
    """
    needed, free = _needed(executable, sizes, batch_size), 0
    fits = needed <= ALWAYS_THERE or needed <= executable.free_bytes()
    if not fits:
        gc.collect()  # models that nobody uses may hang in reference cycles
        free = executable.free_bytes()
        fits = needed <= free
    if agreement().all(fits, "the step has room"):
        return
    if fits:
        raise OutOfMemoryError(f"{what}: another worker has no room for batches of {batch_size}")
    raise OutOfMemoryError(
        f"{what}: a step with batch_size={batch_size} needs {in_units(needed)}, and {_place(executable)} has "
        f"{in_units(free)} left; {_way_out(executable, sizes, batch_size, free)}"
    )


def _needed(executable: Executable, sizes: Mapping[str, int], batch_size: int) -> int:
    return executable.missing_bytes({**sizes, BATCH: batch_size})


def _place(executable: Executable) -> str:
    return "this machine" if executable.device is None else f"device {executable.device}"


def _way_out(executable: Executable, sizes: Mapping[str, int], batch_size: int, free: int) -> str:
    """The largest batch that has room."""
    below, above = 0, batch_size
    while above - below > 1:
        middle = (below + above) // 2
        if _needed(executable, sizes, middle) <= free:
            below = middle
        else:
            above = middle
    if not below:
        return "not even one row fits: use a smaller network or another device"
    return f"the largest that fits is batch_size={below}"
