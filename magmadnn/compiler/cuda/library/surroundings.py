"""What a call of the device's library needs around it."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.text.variant import Launch, Variant, arguments_of

THREADS = 256
INFO = "info"  # the slot of words in which a function says what it found, one for each matrix


@dataclass(frozen=True)
class Around:
    """Kernels around a function that works in place of the result.

    Attributes:
        before: fills the result with what the function works on.
        read: slots of operands that the function reads besides.
        after: finishes the result, and looks at what the function says of each matrix; None where it has
            nothing to do.
    """

    before: Launch
    read: tuple[str, ...] = ()
    after: Launch | None = None


def launch_of(variant: Variant, threads: int, values: dict[str, int]) -> Launch:
    """A launch of so many threads, or some more."""
    blocks = max(-(-threads // THREADS), 1)
    return Launch(variant, (blocks, 1, 1), (THREADS, 1, 1), arguments_of(variant, values))
