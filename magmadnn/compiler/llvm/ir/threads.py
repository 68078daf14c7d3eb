"""Words that threads share: the part of `Code` that deals with other threads."""

from __future__ import annotations

from llvmlite import ir

from .arithmetic import Arithmetic
from .values import I32, I64, VOID, Array, Number, Value, item_bytes


class Threads(Arithmetic):
    """Atomic loads and additions, waiting, time."""

    def atomic_load(self, array: Array, index: Number = 0) -> Value:
        """What another thread stored, and with it all that it wrote before."""
        load = self.ir.load_atomic(
            array.address(index), "seq_cst", item_bytes(array.item), typ=array.item
        )
        return Value(self, load)

    def atomic_add(self, array: Array, value: Number, index: Number = 0) -> Value:
        """Add to an integer in one step; gives what was there."""
        lifted = self.lift(value, array.item)
        return Value(self, self.ir.atomic_rmw("add", array.address(index), lifted.ir, "seq_cst"))

    def atomic_exchange(self, array: Array, old: Value, new: Value, index: Number = 0) -> Value:
        """Put `new` in the place of `old` in one step; whether `old` was still there."""
        found = self.ir.cmpxchg(array.address(index), old.ir, new.ir, "seq_cst", "seq_cst")
        return Value(self, self.ir.extract_value(found, 1))

    def settle(self) -> None:
        """Wait until everything that was stored past the caches can be seen by other threads."""
        self.ir.fence("seq_cst")

    def pause(self) -> None:
        """A hint that the thread is waiting in a loop."""
        triple = str(self.function.module.triple)
        if triple.startswith("x86_64"):
            self.intrinsic("llvm.x86.sse2.pause", VOID, [])
        elif triple.startswith(("aarch64", "arm64")):
            self.intrinsic("llvm.aarch64.hint", VOID, [ir.Constant(I32, 1)])

    def clock(self) -> Value:
        """A counter of the CPU that rises steadily."""
        return self.intrinsic("llvm.readcyclecounter", I64, [])
