"""How a kernel of many steps fetches batches: elements are on their way while the step before runs.

Each thread fetches the same elements of every batch, and keeps in registers what arrives early: an element of
the next batch, and the number of the row of the batch after that, since the one tells where the other lies.
"""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.fused.step_ends import FetchPart
from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.parts import kept, seen

from .places import Argument, text_of


@dataclass(frozen=True)
class Feed:
    """Rows of a batch of one data set, or the value of a setting.

    Attributes:
        part: dtypes.
        rows: of a batch.
        columns: elements of a row.
        source: where the address of the data stands.
        order: where that of the numbers of rows stands; None: rows are taken in their order.
        result: where the batch goes.
    """

    part: FetchPart
    rows: int
    columns: int
    source: Argument
    order: Argument | None
    result: Argument

    def each(self, threads: int) -> int:
        """Elements that a thread fetches."""
        return -(-self.rows * self.columns // threads)

    def declared(self, number: int, first: int, threads: int) -> str:
        """Registers, and the loads of the first batch."""
        item = MEMORY[self.part.dtype]
        text = (
            f"  const {item} *data{number} = *(const {item} *const *)({text_of(self.source)}).at;\n"
        )
        if self.order is not None:
            order = f"*(const i64 *const *)({text_of(self.order)}).at"
            text += f"  const i64 *order{number} = {order};\n"
        for e in range(self.each(threads)):
            x = f"{number}_{e}"
            begin = (
                f"(threadIdx.x + {-first % threads}) % {threads}"
                if first % threads
                else "threadIdx.x"
            )
            text += f"  const u32 at{x} = {begin} + {e * threads};\n"
            text += f"  i64 row{x} = 0;\n  {item} raw{x} = {{}};\n"
            text += self._looked(number, e, "0") + self._loaded(number, e, "0")
            text += self._looked(number, e, "1")
        return text

    def stored(self, number: int, first: int, threads: int) -> str:
        """What has arrived goes to its place."""
        text, result = "", MEMORY[self.part.result_dtype]
        for e in range(self.each(threads)):
            x = f"{number}_{e}"
            value = kept(seen(f"raw{x}", self.part.dtype), self.part.result_dtype)
            place = f"({result} *)({text_of(self.result)}).at"
            text += f"    if ({self._there(x)}) ({place})[at{x}] = {value};\n"
        return text

    def begun(self, number: int, first: int, threads: int) -> str:
        """The loads of the next batch."""
        return "".join(
            self._loaded(number, e, "step + 1") + self._looked(number, e, "step + 2")
            for e in range(self.each(threads))
        )

    def _there(self, x: str) -> str:
        return f"at{x} < {self.rows * self.columns}"

    def _looked(self, number: int, e: int, step: str) -> str:
        if self.order is None:
            return ""
        x = f"{number}_{e}"
        row = f"order{number}[(start + {step}) * {self.rows} + at{x} / {self.columns}]"
        return f"    if ({self._there(x)} && {step} < steps) row{x} = {row};\n"

    def _loaded(self, number: int, e: int, step: str) -> str:
        x = f"{number}_{e}"
        row = f"row{x}"
        if self.order is None:
            row = f"((start + {step}) * {self.rows} + at{x} / {self.columns})"
        value = f"data{number}[{row} * {self.columns} + at{x} % {self.columns}]"
        return f"    if ({self._there(x)} && {step} < steps) raw{x} = {value};\n"
