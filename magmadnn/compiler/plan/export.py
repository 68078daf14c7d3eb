"""What an object file computes: kernels on places in memory, with every size as a polynomial.

A kernel that is called many times, for each sample or for each product of a stack, is one `Call` with loops.

Sizes are known when the code is called. Apart from that this is a plan that is laid out: nothing is decided
later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from magmadnn.compiler.kernels.kernel import Kernel
from magmadnn.graph.dim import Dim, Size


@dataclass(frozen=True)
class Place:
    """Somewhere in memory.

    Attributes:
        kind: `input`, `output`, `constant` or `buffer`,
        number: and which of them.
        offset: bytes from its beginning.
        steps: bytes that each turn of the loops around adds, those of the outermost loop first.
    """

    kind: str
    number: int
    offset: Size = 0
    steps: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Call:
    """One kernel on one argument block, or on one for each index of loops.

    Attributes:
        kernel: what is called.
        numbers: integer slots.
        places: slots that hold addresses.
        extents: how often each loop turns, the outermost first.
        steps: of slots that change from turn to turn, what each loop adds: to addresses, in bytes.
    """

    kernel: Kernel
    numbers: Mapping[str, Size]
    places: Mapping[str, Place]
    extents: tuple[Size, ...] = ()
    steps: Mapping[str, tuple[Size, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Copy:
    """A value of any layout, copied element by element to where it lies packed, or to `goal_strides`."""

    source: Place
    goal: Place
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]  # bytes
    item_bytes: int
    goal_strides: tuple[Size, ...] | None = None  # bytes


@dataclass(frozen=True)
class Loop:
    """Steps that are done again and again.

    Attributes:
        length: how many turns there are.
        steps: what each does, at places that move on.
    """

    length: Size
    steps: tuple[Step, ...]


Step = Call | Copy | Loop


@dataclass(frozen=True)
class Fact:
    """A size that kernels read from memory."""

    goal: Place
    size: Size
    dtype: str


@dataclass(frozen=True)
class Standalone:
    """Everything that one object file computes, for batches of samples.

    Attributes:
        batch: the symbol of the number of samples.
        symbols: other sizes that the caller gives.
        inputs: bytes of a sample of each input.
        outputs: bytes of a sample of each output.
        buffers: bytes of temporary values; each has room for the largest of several.
        constants: what never changes: parameters.
        facts: sizes to be stored before the first call.
        calls: kernels, copies and loops in running order.
        copies: of outputs, made after the last call.
        checked: sizes that must not turn out negative.
        longest: samples that are computed at a time.
        faults: a buffer that is not 0 after a kernel met a wrong number of a row; None without such kernels.
    """

    batch: str
    symbols: tuple[str, ...]
    inputs: tuple[Size, ...]
    outputs: tuple[Size, ...]
    buffers: tuple[tuple[Size, ...], ...]
    constants: tuple[bytes, ...]
    facts: tuple[Fact, ...]
    calls: tuple[Step, ...]
    copies: tuple[Copy, ...]
    checked: tuple[Dim, ...]
    longest: int
    faults: Place | None = None
