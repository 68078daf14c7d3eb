"""Random numbers as CUDA C++: Philox 4x32, 10 rounds; `kernels/draws.py` says what is drawn.

A thread computes one block of four words: four float32 (24 bits of a word each) or two float64 (53 bits
of two words). The numbers are those of the processor, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.compiler.cuda.text.formulas import MEMORY, TYPES, Cell, Lines, Writer
from magmadnn.compiler.cuda.text.function import Function, OneFunction
from magmadnn.compiler.cuda.text.parts import Part, kept, parameters, seen
from magmadnn.compiler.cuda.text.prelude import BEGIN
from magmadnn.compiler.cuda.text.variant import Chip, Launch, arguments_of
from magmadnn.compiler.kernels.draws import Draw
from magmadnn.compiler.kernels.formula import Formula

_THREADS = 256

PHILOX = r"""
struct Words { u32 at[4]; };
__device__ __forceinline__ Words philox(u64 block, u64 stream, u64 seed) {
  u32 c0 = (u32)block, c1 = (u32)(block >> 32), c2 = (u32)stream, c3 = (u32)(stream >> 32);
  u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
  #pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u64 p0 = (u64)c0 * 0xD2511F53u, p1 = (u64)c2 * 0xCD9E8D57u;
    const u32 c1_was = c1, c3_was = c3;
    c0 = (u32)(p1 >> 32) ^ c1_was ^ k0;
    c1 = (u32)p1;
    c2 = (u32)(p0 >> 32) ^ c3_was ^ k1;
    c3 = (u32)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}
__device__ __forceinline__ float unit(const Words &w, int k, float) {
  return (float)(w.at[k] >> 8) * 0x1p-24f;
}
__device__ __forceinline__ double unit(const Words &w, int k, double) {
  return (double)(((u64)w.at[2 * k] << 32 | w.at[2 * k + 1]) >> 11) * 0x1p-53;
}
"""


@dataclass(frozen=True)
class DrawVariant(OneFunction):
    """Blocks of numbers, a thread each."""

    kernel: Draw

    libraries = (PHILOX,)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self.kernel.slots

    @property
    def addresses(self) -> tuple[str, ...]:
        """Slots that are addresses."""
        parts: list[Part] = [*self.kernel.operands, *self.kernel.results]
        return tuple(part.name for part in parts)

    def function(self, name: str) -> Function:
        """The function."""
        kernel, lines = self.kernel, Lines()
        each = 4 if kernel.dtype == "float32" else 2
        parts: list[Part] = [*kernel.operands, *kernel.results]
        lines.add("const i64 block = (i64)blockIdx.x * blockDim.x + threadIdx.x;")
        lines.add(f"const i64 first = column0 + block * {each};")
        lines.add("if (first >= column1) return;")
        cells = []
        for operand in kernel.operands:
            memory = f"*(const {MEMORY[operand.dtype]} *){operand.name}"
            cell = seen(f"({memory})", operand.dtype)
            cells.append(lines.let(cell.dtype, cell.text))
        stream = f"(u64)(i64){cells[0].text}"
        lines.add(f"const Words words = philox((u64)(first / {each}), {stream}, (u64)seed);")
        lines.add("#pragma unroll")
        lines.add(f"for (int k = 0; k < {each}; ++k) {{")
        lines.add("const i64 column = first + k;")
        drawn = lines.let(kernel.dtype, f"unit(words, k, ({TYPES[kernel.dtype]})0)")

        def leaf(formula: Formula) -> Cell:
            return drawn if formula == ("drawn",) else cells[formula[1]]

        writer = Writer(lines, leaf, kernel.dtype)
        made = [(result, writer.write(result.formula)) for result in kernel.results]
        lines.add("if (column < column1) {")
        for result, cell in made:
            lines.add(f"{result.name}[column] = {kept(cell, result.dtype)};")
        lines.add("}")
        lines.add("}")
        slots = parameters(kernel.slots, parts, {})
        return Function(name, slots, str(lines))


def choose_draw(kernel: Draw, values: Mapping[str, int], chip: Chip) -> Launch | None:
    """The launch for given sizes; None where nothing is to be done."""
    count = values["column1"] - values["column0"]
    if count <= 0:
        return None
    threads = -(-count // (4 if kernel.dtype == "float32" else 2))
    variant = DrawVariant(kernel)
    grid = (-(-threads // _THREADS), 1, 1)
    return Launch(variant, grid, (_THREADS, 1, 1), arguments_of(variant, values))


@dataclass(frozen=True)
class DrawKeys:
    """Random integers of 64 bits, two words each: what a permutation is sorted by (`ops.philox`).

    Slots: `count, keys, stream, seed`.
    """

    slots = ("count", "keys", "stream", "seed")
    libraries = (PHILOX,)

    def text(self, name: str) -> str:
        """The function."""
        lines = """  const i64 block = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (2 * block >= count) return;
  const Words words = philox((u64)block, (u64)stream, (u64)seed);
  keys[2 * block] = (u64)words.at[0] << 32 | words.at[1];
  if (2 * block + 1 < count) keys[2 * block + 1] = (u64)words.at[2] << 32 | words.at[3];"""
        head = f'extern "C" __global__ void {name}(i64 count, u64 *keys, i64 stream, i64 seed)'
        return f"{head} {{\n{BEGIN}{lines}\n}}\n"


def draw_keys(count: int, keys: int, stream: int, seed: int) -> Launch:
    """The launch for `count` keys at an address."""
    threads = -(-count // 2)
    grid = (-(-threads // _THREADS), 1, 1)
    return Launch(DrawKeys(), grid, (_THREADS, 1, 1), (count, keys, stream, seed))
