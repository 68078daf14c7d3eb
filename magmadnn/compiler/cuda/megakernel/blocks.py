"""Steps of many small networks as one kernel: a block for each, which waits for no other.

A block does what `whole.py` has one block do, with its own addresses, from a table. Where a number that it
leaves is not finite, or a row was asked for that is not there, it writes nothing back and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY
from magmadnn.compiler.cuda.text.parts import seen
from magmadnn.compiler.cuda.text.prelude import BEGIN

from .whole import LANES, Copied, WholeVariant

HEAD = 3  # numbers of a block: of the batches before, of all, and whether values are to be saved
_REAL = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class Kept:
    """What steps leave beside variables: elements of each batch.

    Attributes:
        dtype: of the elements.
        count: elements of a batch.
        number: of the address where those of all batches lie.
    """

    dtype: str
    count: int
    number: int


@dataclass(frozen=True)
class GridVariant:
    """Steps of many networks.

    Slots: `table`, addresses for each block; `heads`, `HEAD` numbers for each; `faults`, a word for each,
    which is set where it went wrong, and with which a block does nothing; `saved`, where values lie that were
    there before, `saved_bytes` for each.

    Attributes:
        whole: what a block does; `copies` are of variables, and constants, which only come.
        dtypes: of the copies.
        kept: outputs that must be finite; none where nothing is looked at.
        resident: blocks that a multiprocessor shall have room for.
    """

    whole: WholeVariant
    dtypes: tuple[str, ...]
    kept: tuple[Kept, ...]
    resident: int

    slots = ("table", "heads", "faults", "saved", "saved_bytes")

    @property
    def libraries(self) -> tuple[str, ...]:
        """What the text needs beside `PRELUDE`."""
        return self.whole.libraries

    @property
    def changed(self) -> list[tuple[Copied, str]]:
        """Copies that go back, and their dtypes."""
        pairs = zip(self.whole.copies, self.dtypes, strict=True)
        return [(copy, dtype) for copy, dtype in pairs if copy.goes]

    @property
    def saved_offsets(self) -> list[int]:
        """Where each value that changes is saved; last, how many bytes all are."""
        offsets = [0]
        for copy, _ in self.changed:
            offsets.append(offsets[-1] + -(-copy.nbytes // 16) * 16)
        return offsets

    def text(self, name: str) -> str:
        """The kernel, and the functions that it is made of."""
        whole = self.whole
        parts, names = whole.functions(name)
        places = "".join(f"  char *const p{k} = (char *)mine[{k}];\n" for k in range(whole.outside))
        head = f"__launch_bounds__({whole.threads}, {self.resident}) {name}"
        return f"""{parts}extern "C" __global__ void {head}(const i64 *table, i64 *heads, i64 *faults,
    char *saved, i64 saved_bytes) {{
  SHARED_MEMORY({whole.shared_bytes})
{BEGIN}{LANES}  const i64 *const mine = table + (i64)blockIdx.x * {whole.outside};
  i64 *const first = heads + (i64)blockIdx.x * {HEAD}, *const fault = faults + blockIdx.x;
  const i64 start = first[0], steps = first[1] - start, saves = first[2];
  if (steps <= 0 || *fault) return;
{places}{self._saves()}{whole.run(names)}  bool bad = false;
{self._looks()}  if (bad) *fault = 1;
  __syncthreads();
  if (*(volatile i64 *)fault) return;
{whole.copied(back=True)}}}
"""

    def _saves(self) -> str:
        """Values as they are before."""
        lines = ["  if (saves) {\n    char *const own = saved + (i64)blockIdx.x * saved_bytes;\n"]
        for (copy, _), offset in zip(self.changed, self.saved_offsets, strict=False):
            unit, kind = (16, "Vec<u32, 4>") if not (copy.nbytes | copy.offset) % 16 else (1, "u8")
            source = f"({kind} *)p{copy.outside.number}"
            loop = (
                f"for (u32 i = threadIdx.x; i < {copy.nbytes // unit}; i += {self.whole.threads})"
            )
            lines.append(
                f"#pragma unroll 1\n    {loop} (({kind} *)(own + {offset}))[i] = ({source})[i];\n"
            )
        return "".join([*lines, "  }\n"])

    def _looks(self) -> str:
        """Whether a new value, or an output, is NaN or infinite."""
        threads, text = self.whole.threads, ""
        for copy, dtype in self.changed if self.kept else ():
            if dtype in _REAL:
                value, size = (
                    f"((const {MEMORY[dtype]} *)(memory + {copy.offset}))[i]",
                    _bytes(dtype),
                )
                loop = f"for (u32 i = threadIdx.x; i < {copy.nbytes // size}; i += {threads})"
                text += (
                    f"#pragma unroll 1\n  {loop} bad |= !({seen(value, dtype).text} * 0 == 0);\n"
                )
        for kept in self.kept:
            if kept.dtype in _REAL:
                value = f"((const {MEMORY[kept.dtype]} *)p{kept.number})[i]"
                loop = (
                    f"for (i64 i = start * {kept.count} + threadIdx.x; "
                    f"i < (start + steps) * {kept.count}; i += {threads})"
                )
                text += f"#pragma unroll 1\n  {loop} bad |= !({seen(value, kept.dtype).text} * 0 == 0);\n"
        return text


def _bytes(dtype: str) -> int:
    return {"float64": 8, "float32": 4}.get(dtype, 2)
