"""Kernels that look at values: whether they are finite, whether integers are in a range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .formulas import MEMORY
from .parts import seen
from .prelude import BEGIN
from .variant import Launch

_THREADS = 256
_BLOCKS = 2048
_AT_ONCE = 8  # loads of a thread that wait together
MOST_PARTS = 100  # arrays of one launch: what fits into its parameters


@dataclass(frozen=True)
class LookFinite:
    """Sets a word where an element of an array is NaN or infinite.

    Slots: `fault`, the word's address; then for each array `count, source`.

    Attributes:
        dtypes: of the arrays: real numbers.
    """

    dtypes: tuple[str, ...]

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        own = ("count", "source")
        return ("fault", *(f"{s}{k}" for k in range(len(self.dtypes)) for s in own))

    def text(self, name: str) -> str:
        """The function."""
        kinds, body = ["i64 *fault"], ["  bool bad = false;"]
        body.append(f"  const i64 first = (i64)blockIdx.x * {_THREADS} + threadIdx.x;")
        for k, dtype in enumerate(self.dtypes):
            kinds += [f"i64 count{k}", f"const {MEMORY[dtype]} *source{k}"]
            step = f"i += (i64)gridDim.x * {_THREADS}"
            value = seen(f"source{k}[i]", dtype).text
            # 0 times what is not finite is NaN
            body.append(f"  #pragma unroll {_AT_ONCE}")
            body.append(f"  for (i64 i = first; i < count{k}; {step}) bad |= !({value} * 0 == 0);")
        body.append("  if (bad) *fault = 1;")
        lines = "\n".join(body)
        head = f'extern "C" __global__ void {name}({", ".join(kinds)})'
        return f"{head} {{\n{BEGIN}{lines}\n}}\n"


def look_finite(fault: int, parts: Sequence[tuple[str, int, int]]) -> Launch:
    """The launch for arrays: (dtype, count, address) of each, at most `MOST_PARTS`."""
    variant = LookFinite(tuple(dtype for dtype, *_ in parts))
    arguments = (fault, *(number for _, *numbers in parts for number in numbers))
    blocks = min(max(-(-max((n for _, n, _ in parts), default=1) // _THREADS), 1), _BLOCKS)
    return Launch(variant, (blocks, 1, 1), (_THREADS, 1, 1), arguments)


@dataclass(frozen=True)
class LookWithin:
    """Sets a word where an integer is below 0 or not below `end`.

    Slots: `fault, count, source, end`.

    Attributes:
        dtype: of the integers.
    """

    dtype: str

    slots = ("fault", "count", "source", "end")

    def text(self, name: str) -> str:
        """The function."""
        kinds = f"i64 *fault, i64 count, const {MEMORY[self.dtype]} *source, i64 end"
        body = [
            f"  const i64 first = (i64)blockIdx.x * {_THREADS} + threadIdx.x;",
            "  bool bad = false;",
            f"  #pragma unroll {_AT_ONCE}",
            f"  for (i64 i = first; i < count; i += (i64)gridDim.x * {_THREADS})",
            "    bad |= (i64)source[i] < 0 || (i64)source[i] >= end;",
            "  if (bad) *fault = 1;",
        ]
        lines = "\n".join(body)
        return f'extern "C" __global__ void {name}({kinds}) {{\n{BEGIN}{lines}\n}}\n'


def look_within(fault: int, dtype: str, count: int, address: int, end: int) -> Launch:
    """The launch for one array of integers."""
    blocks = min(max(-(-count // _THREADS), 1), _BLOCKS)
    arguments = (fault, count, address, end)
    return Launch(LookWithin(dtype), (blocks, 1, 1), (_THREADS, 1, 1), arguments)
