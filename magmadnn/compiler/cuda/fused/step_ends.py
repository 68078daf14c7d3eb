"""Begin and end of a step that runs for many batches: rows of the data are fetched, outputs are kept.

Each is one kernel for all placeholders, or all outputs. The number of the batch is a number in memory that
counts the batches before this graph of steps, plus that of the step within the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.function import Function, OneFunction
from magmadnn.compiler.cuda.text.parts import kept, seen
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Launch

_THREADS = 256
_PIECES = 4  # elements of a thread


@dataclass(frozen=True)
class FetchPart:
    """result[i] = source[order[batch * rows + i]], a row of `columns` elements at a time.

    `source` and `order` are found where their addresses stand, so that others may take their place.
    """

    dtype: str
    result_dtype: str


@dataclass(frozen=True)
class Fetch:
    """The rows of one batch of several data sets.

    Slots: `first, step`, an address and a number; then for each part `rows, columns, blocks`, addresses
    of the address `source`, of the address `order`, and `result`; without `order` (0), rows in their order.
    """

    parts: tuple[FetchPart, ...]

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        own = ("rows", "columns", "blocks", "source", "order", "result")
        return ("first", "step", *(f"{s}{k}" for k in range(len(self.parts)) for s in own))

    def text(self, name: str) -> str:
        """The function."""
        kinds = ["const i64 *first", "i64 step"]
        body = ["  const i64 batch = *first + step;", "  i64 block = blockIdx.x;"]
        for k, part in enumerate(self.parts):
            source, result = MEMORY[part.dtype], MEMORY[part.result_dtype]
            kinds += [f"i64 rows{k}", f"i64 columns{k}", f"i64 blocks{k}"]
            kinds += [f"const {source} *const *source{k}", f"const i64 *const *order{k}"]
            kinds += [f"{result} *result{k}"]
            body += _fetching(k, part)
        lines = "\n".join(body)
        return f'extern "C" __global__ void {name}({", ".join(kinds)}) {{\n{lines}\n}}\n'


def _fetching(k: int, part: FetchPart) -> list[str]:
    """The lines of a part: all of a thread's elements are on their way before the first is stored.

    Nothing of what is read here is written before the end of a graph, so it is read before earlier kernels
    are done.
    """
    value = kept(seen("all[piece]", part.dtype), part.result_dtype)
    place = f"(order{k} ? (*order{k})[number] : number)"
    pieces = [
        "    #pragma unroll",
        f"    for (int piece = 0; piece < {_PIECES}; ++piece) {{",
        f"      const u64 own = (block * {_PIECES} + piece) * {_THREADS} + threadIdx.x;",
    ]
    return [
        f"  if (block >= 0 && block < blocks{k}) {{",
        f"    {MEMORY[part.dtype]} all[{_PIECES}];",
        f"    const u64 columns = columns{k}, count = rows{k} * columns{k};",
        *pieces,
        "      const u64 at = own < count ? own : count - 1;  // no branch, which loads would wait for",
        "      const u64 row = (at | columns) >> 32 ? at / columns : (u32)at / (u32)columns;",
        f"      const i64 number = batch * rows{k} + row;",
        f"      all[piece] = (*source{k})[{place} * columns + at - row * columns];",
        "    }",
        BEGIN,
        *pieces,
        f"      if (own < count) result{k}[own] = {value};",
        "    }",
        "  }",
        f"  block -= blocks{k};",
    ]


def blocks_for(rows: int, columns: int) -> int:
    """Blocks of a part of `Fetch`."""
    return -(-rows * columns // (_THREADS * _PIECES))


def fetch(
    first: int, step: int, parts: Sequence[tuple[FetchPart, int, int, int, int, int]]
) -> Launch:
    """The launch that fetches a batch.

    Args:
        first: address of the number of batches before.
        step: further batches before.
        parts: (part, rows, columns, source, order, result) of each; `source` and `order` are addresses of
            addresses.
    """
    variant = Fetch(tuple(part for part, *_ in parts))
    arguments, total = [first, step], 0
    for _, rows, columns, source, order, result in parts:
        blocks = blocks_for(rows, columns)
        total += blocks
        arguments += [rows, columns, blocks, source, order, result]
    return Launch(variant, (max(total, 1), 1, 1), (_THREADS, 1, 1), tuple(arguments))


@dataclass(frozen=True)
class KeepAll(OneFunction):
    """kept[batch][i] = source[i] for several outputs, by one block.

    Slots: `first, step`; then for each part `count, source, kept`.

    Attributes:
        dtypes: of the outputs.
    """

    dtypes: tuple[str, ...]

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        own = ("count", "source", "kept")
        return ("first", "step", *(f"{s}{k}" for k in range(len(self.dtypes)) for s in own))

    @property
    def addresses(self) -> tuple[str, ...]:
        """Slots that are addresses."""
        return tuple(slot for slot in self.slots if slot.startswith(("source", "kept")))

    def function(self, name: str) -> Function:
        """The function."""
        kinds, body = ["const i64 *first", "i64 step"], ["  const i64 batch = *first + step;"]
        for k, dtype in enumerate(self.dtypes):
            item = MEMORY[dtype]
            kinds += [f"i64 count{k}", f"const {item} *source{k}", f"{item} *kept{k}"]
            body.append(
                f"  for (i64 i = threadIdx.x; i < count{k}; i += {_THREADS}) "
                f"kept{k}[batch * count{k} + i] = source{k}[i];"
            )
        return Function(name, ", ".join(kinds), "\n".join(body))


def keep_all(first: int, step: int, parts: Sequence[tuple[str, int, int, int]]) -> Launch:
    """The launch that keeps outputs: (dtype, count, source, kept) of each."""
    variant = KeepAll(tuple(dtype for dtype, *_ in parts))
    arguments = (first, step, *(number for _, *numbers in parts for number in numbers))
    return Launch(variant, (1, 1, 1), (_THREADS, 1, 1), arguments)


@dataclass(frozen=True)
class Advance:
    """Adds to the number of batches before: the last thing that a graph of steps does."""

    slots = ("first", "count")

    def text(self, name: str) -> str:
        """The function."""
        head = f'extern "C" __global__ void {name}(i64 *first, i64 count)'
        return f"{head} {{\n{BEGIN}  *first += count;\n}}\n"


def advance(first: int, count: int) -> Launch:
    """The launch that adds `count`."""
    return Launch(Advance(), (1, 1, 1), (1, 1, 1), (first, count))
