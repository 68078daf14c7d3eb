"""What a call of the device's library needs around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.variant import Launch, Variant, arguments_of

THREADS = 256
INFO = "info"  # the slot of words in which a function says what it found, one for each matrix


@dataclass(frozen=True)
class Around:
    """Kernels around a function.

    Attributes:
        before: fills with what the function works on.
        operands: slots of what the function reads, a matrix each, and last of what it works on; with how many
            elements are skipped in front of each matrix.
        after: finishes the result, and looks at what the function says of each matrix; None where it has
            nothing to do.
        calls: whether the function is called: not for matrices without elements.
    """

    before: Launch
    operands: tuple[tuple[str, int], ...] = (("result", 0),)
    after: Launch | None = None
    calls: bool = True


def piece(number: int) -> str:
    """The slot of memory that a function has besides, see `MatrixNode.pieces`."""
    return f"piece{number}"


def launch_of(variant: Variant, threads: int, values: Mapping[str, int]) -> Launch:
    """A launch of so many threads, or some more."""
    blocks = max(-(-threads // THREADS), 1)
    return Launch(variant, (blocks, 1, 1), (THREADS, 1, 1), arguments_of(variant, values))
