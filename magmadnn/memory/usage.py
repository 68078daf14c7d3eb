"""Records of how much memory is in use, as `magmadnn.memory.report()` gives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .kinds import Kind


@dataclass(frozen=True)
class KindReport:
    """Memory of one kind, on both sides and all devices together.

    Sizes are those of the blocks, which are up to 1/8 larger than what was asked for. Arrays that were
    taken over from NumPy (`MemoryManager.adopt`) belong to NumPy and are not counted.

    Attributes:
        kind: the kind of memory.
        in_use: bytes lent now.
        peak: the most that `in_use` has been.
        pooled: bytes of freed blocks that are kept for later.
        allocations: how many blocks were taken from the system or device.
        reuses: how often a kept block was lent again instead.
    """

    kind: Kind
    in_use: int
    peak: int
    pooled: int
    allocations: int
    reuses: int


@dataclass(frozen=True)
class Report:
    """One `KindReport` for each kind; `report[kind]` finds one, `print(report)` shows all."""

    kinds: tuple[KindReport, ...]

    def __getitem__(self, kind: Kind | str) -> KindReport:
        return next(k for k in self.kinds if k.kind is Kind.of(kind))

    def __iter__(self) -> Iterator[KindReport]:
        return iter(self.kinds)

    def __str__(self) -> str:
        lines = [
            f"{'kind':<14}{'in use':>10}{'peak':>10}{'pooled':>10}{'allocations':>13}{'reuses':>10}"
        ]
        lines += [
            f"{k.kind.name:<14}{in_units(k.in_use):>10}{in_units(k.peak):>10}"
            f"{in_units(k.pooled):>10}{k.allocations:>13}{k.reuses:>10}"
            for k in self.kinds
        ]
        return "\n".join(lines)


def in_units(nbytes: int) -> str:
    """Bytes in a unit that keeps the number short: `640 B`, `1.5 KiB`, `73.3 GiB`."""
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min((nbytes.bit_length() - 1) // 10, 5)
    return f"{nbytes / 1024**power:.1f} {'KMGTP'[power - 1]}iB"
