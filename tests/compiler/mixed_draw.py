"""Random cases whose products have operands of half precision, as the steps of mixed precision have."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from magmadnn.compiler.program.precision import half_of, precision
from magmadnn.memory.dtypes import DTYPES

from .native_draw import draw
from .native_graphs import Case, eps_of

MODES = ("mixed_bf16", "mixed_fp16")


def mixed(seed: int, mode: str) -> Case | None:
    """The case `seed` in mixed precision; None where it has no product that this changes."""
    case = draw(seed)
    before = case.program
    after = precision(before, mode)
    if len(after.nodes()) == len(before.nodes()):
        return None
    unit = eps_of(DTYPES[half_of(mode) or "float32"])
    return Case(list(after.outputs), list(after.updates), case.feeds, unit)


@functools.cache
def seeds(first: int, count: int) -> tuple[int, ...]:
    """The next `count` seeds from `first` on whose cases have such products."""
    found = (seed for seed in _from(first) if mixed(seed, MODES[0]) is not None)
    return tuple(next(found) for _ in range(count))


def _from(first: int) -> Iterator[int]:
    while True:
        yield first
        first += 1
