"""Orders of rows that a device draws itself, for all models of a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from magmadnn.backends.cuda import device_engine
from magmadnn.backends.cuda.engine import KernelNode
from magmadnn.compiler.cuda.many.permutations import (
    COLUMNS,
    MOST,
    THREADS,
    permutations_for,
)
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime.cuda.code import functions_of


@dataclass(frozen=True)
class Shuffled:
    """The rows of a model's training legs in some epochs: those that `data.batching.order` gives.

    Attributes:
        rows: how many there are.
        seed: of the order; None: as they stand.
        stream: of the first epoch; the next one's is one more.
        parts: first and last place in the order, for each leg.
        chosen: the rows that are meant; None for all.
    """

    rows: int
    seed: int | None
    stream: int
    parts: Sequence[tuple[int, int]]
    chosen: OnDevice | None


def can_shuffle(rows: int) -> bool:
    """Whether blocks of any device draw so many."""
    return 0 < rows <= MOST


def shuffle(
    device: int,
    wanted: Sequence[tuple[int, Shuffled, Sequence[int]]],
    table: int,
) -> None:
    """Begin to draw the orders of some models.

    Args:
        device: number of the device.
        wanted: of each model how many epochs, what of, and where the rows of each leg go.
        table: address of what `table_of` gives.
    """
    engine = device_engine(device)
    variant = permutations_for(max(of.rows for _, of, _ in wanted), engine.shared_bytes)
    function = functions_of(engine, [variant])[variant]
    grid = (len(wanted), max(max(epochs for epochs, _, _ in wanted), 1), variant.shares)
    engine.launch(KernelNode(function, grid, (THREADS, 1, 1), variant.shared_bytes, (table,)))


def table_of(wanted: Sequence[tuple[int, Shuffled, Sequence[int]]]) -> np.ndarray:
    """The kernel's table for what `shuffle` is given."""
    found = np.zeros((len(wanted), len(COLUMNS)), np.uint64)
    for row, (epochs, of, places) in zip(found, wanted, strict=True):
        (first, cut), *rest = of.parts
        last = rest[0][1] if rest else cut
        chosen = 0 if of.chosen is None else of.chosen.address
        seed = 0 if of.seed is None else of.seed & 0xFFFFFFFFFFFFFFFF
        numbers = (epochs, of.rows, int(of.seed is not None), seed, of.stream, first, cut, last)
        row[:] = (*numbers, places[0], places[1] if rest else 0, chosen)
    return found
