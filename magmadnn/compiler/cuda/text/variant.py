"""What a kernel for the GPU is: text, parameters, and how it is launched.

A description (`compiler.kernels`) says what is computed. For given sizes an emitter chooses a `Variant`: how
the work is cut into threads, how wide loads are. A variant is a frozen dataclass whose `repr` says
everything about its text, so equal variants are compiled once. `Launch` adds what changes without
compiling: the grid and the values of the parameters.

Every kernel is one function ::

    extern "C" __global__ void NAME(PARAMETERS)

with one parameter of 8 bytes for each slot of the description, in the order of its slots: `long long`
for integers, a pointer for addresses. Numbers that change between runs (a learning rate) lie in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

Grid = tuple[int, int, int]
WARP = 32
REGISTERS = 65536  # of a multiprocessor
RESERVED_BYTES = 1024  # of its shared memory, which each block has beside its own


class Variant(Protocol):
    """A kernel as it is compiled: a frozen dataclass whose `repr` says everything about its text."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters, in order."""
        ...

    def text(self, name: str) -> str:
        """The function, and what it needs beside `PRELUDE`, under that name."""
        ...


@dataclass(frozen=True)
class Launch:
    """A variant and how it is launched on given memory.

    Attributes:
        variant: what is compiled.
        grid: blocks.
        block: threads of a block.
        arguments: a value for each of the variant's slots.
        shared_bytes: dynamic shared memory.
    """

    variant: Variant
    grid: Grid
    block: Grid
    arguments: tuple[int, ...]
    shared_bytes: int = 0


@dataclass(frozen=True)
class Chip:
    """What emitters know of a GPU.

    Attributes:
        capability: compute capability, 90 for 9.0.
        processors: number of multiprocessors.
        shared_bytes: most shared memory of a block.
        together: threads that may wait for each other: 32 in parts of a larger kernel.
    """

    capability: int = 90
    processors: int = 132
    shared_bytes: int = 227 << 10
    together: int = 1024


def arguments_of(variant: Variant, values: Mapping[str, int]) -> tuple[int, ...]:
    """The values of a variant's slots, in order."""
    return tuple(values[slot] for slot in variant.slots)
