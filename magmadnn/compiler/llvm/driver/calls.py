"""The kernel that calls functions of a library: what a device is told by native code, beside other tasks."""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.llvm.ir.builder import I32, I64, Code
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target

MOST_ARGUMENTS = 11
CALL_WORDS = 1 + MOST_ARGUMENTS  # address of a function, and what it is given


@dataclass(frozen=True)
class Calls:
    """calls[k](...) for k from `firsts[batch]` to `firsts[batch + 1]`, until one gives another number than 0.

    Functions take integers and addresses and give an integer of 32 bits; those that take fewer than
    `MOST_ARGUMENTS` are given more, which C's way of calling allows.

    Slots: `calls`, `CALL_WORDS` each; `firsts`, int64; `failed`, two words that are 0 at first: what the call
    gave that failed, and its number. After that nothing is called any more.
    """

    slots = ("calls", "firsts", "failed")

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        """Write the body of the kernel."""
        calls, failed = frame.array("calls", I64), frame.array("failed", I64)
        firsts = frame.array("firsts", I64).at(frame.batch)
        with code.loop(firsts[0], firsts[1]) as number, code.when(failed[0].equals(0)):
            call = calls.at(number * CALL_WORDS)
            arguments = [call[1 + k] for k in range(MOST_ARGUMENTS)]
            found = code.call_address(call[0], I32, *arguments)
            with code.when(found.differs(0)):
                failed[0], failed[1] = code.convert(found, I64), number
