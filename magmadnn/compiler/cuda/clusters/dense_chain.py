"""A step of a network of two dense layers for many models, each of which has a cluster of four blocks.

Blocks share the first layer's features: each holds the weights of its part in registers, for all steps of a
launch, and those columns of the batch in shared memory. They add up their parts of the first product; then
each has a fourth of the batch's rows, with copies of the second layer's weights, of biases and of scalars.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.compiler.cuda.text.variant import RESERVED_BYTES
from magmadnn.compiler.kernels.formula import Formula
from magmadnn.compiler.kernels.rows import Rows

BLOCKS, THREADS = 4, 256  # of a cluster, and of a block
MOST_WIDTH = 8 * 25 * BLOCKS  # features: a thread has registers for so many weights
MOST_HIDDEN, MOST_OUTPUTS, MOST_BATCH, MOST_SUMS = 128, 16, 128, 8
COPIED = ("float32", "float64", "int32", "int64")  # dtypes of what is copied number by number
_SLOT = 8  # bytes of a scalar
_PROCESSOR_BYTES = 228 << 10  # shared memory of a multiprocessor
_MOST_HELD = 84  # numbers of a thread, of 128 registers: few of the others lie in memory then
_ITEM = {"float32": 4, "int32": 4, "float64": 8, "int64": 8}
WEIGHTS = ("w1", "b1", "w2", "b2")


@dataclass(frozen=True)
class Ending:
    """A formula over `("product",)`, or `("value", ...)` of a sum, and values.

    Attributes:
        formula: of the element.
        reads: what `("argument", i)` is: a name of `WEIGHTS`; "h", what the first layer gives; "kept", what
            it keeps besides; "product", the same as the leaf; or a scalar.
    """

    formula: Formula
    reads: tuple[str, ...]


@dataclass(frozen=True)
class RowStep:
    """A fused kernel.

    Attributes:
        kernel: what is computed.
        kind: "scalars" of scalars that are known before the step; "rows" of the batch; "batch", which is its
            only row: what is reduced is summed over all of it; "last" of such sums.
        columns: elements of a row of the batch, or of what is "last".
        reads: values of its operands, in order.
        writes: name of a result and of the value.
    """

    kernel: Rows
    kind: str
    columns: int
    reads: tuple[str, ...]
    writes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Scalar:
    """A number that all threads know: a setting, a variable, a constant, which may be several numbers.

    Attributes:
        name: of the value.
        dtype: of it.
        kind: "setting", "variable", or "constant".
        values: of a constant.
        update: the value that a variable has after the step; "" where it stays.
    """

    name: str
    dtype: str
    kind: str
    values: tuple[float, ...] = ()
    update: str = ""


@dataclass(frozen=True)
class Chain:
    """A step, and how a cluster shares it out.

    Attributes:
        width: features.
        hidden: units of the first layer.
        outputs: of the second.
        batch: rows.
        data: name, dtype and columns of arrays that a batch is taken from besides.
        scalars: in order.
        steps: in order; leaf `("product",)` is an element of the second layer's product, "b2" its bias.
        activation: of an element of what the first layer gives.
        kept: of what else of it the gradient needs; None for nothing.
        error: the value that is the loss's gradient by the second layer's product.
        slope: of an element of the gradient by the first layer's product.
        updates: of each of `WEIGHTS`; None where it stays.
        found: values that are outputs, their dtypes, and how many numbers each has.
    """

    width: int
    hidden: int
    outputs: int
    batch: int
    data: tuple[tuple[str, str, int], ...]
    scalars: tuple[Scalar, ...]
    steps: tuple[RowStep, ...]
    activation: Ending
    kept: Ending | None
    error: str
    slope: Ending
    updates: tuple[Ending | None, ...]
    found: tuple[tuple[str, str, int], ...]

    # --- how it is cut ----------------------------------------------------------------------------

    @property
    def row_tiles(self) -> int:
        """Tiles of 8 rows that each block has of the batch."""
        return -(-self.batch // (8 * BLOCKS))

    @property
    def unit_tiles(self) -> int:
        """Tiles of 16 units that each warp has of the first layer."""
        return -(-self.hidden // 64)

    @property
    def feature_tiles(self) -> int:
        """Tiles of 8 features that a block has: odd, so that rows begin in different banks of memory."""
        return max(-(-self.width // (8 * BLOCKS)) | 1, 3)

    @property
    def units(self) -> int:
        """Units with those that fill the last tile up."""
        return 64 * self.unit_tiles

    @property
    def rows(self) -> int:
        """Rows of the batch that a block has."""
        return 8 * self.row_tiles

    @property
    def groups(self) -> int:
        """How many threads share the rows of a unit."""
        return THREADS // self.units

    @property
    def output_tiles(self) -> int:
        """Tiles of 8 outputs."""
        return -(-self.outputs // 8)

    @property
    def resident(self) -> int:
        """Blocks of a multiprocessor: two where their memory and most of their registers have room."""
        tiles = -(-self.feature_tiles // 2)
        held = 4 * tiles * self.unit_tiles  # weights of a thread, and sums of the larger product
        summed = 4 * self.unit_tiles * max(2 * self.row_tiles, -(-tiles // 2))
        fits = 2 * (self.shared_bytes + RESERVED_BYTES) <= _PROCESSOR_BYTES
        return 2 if fits and held + summed <= _MOST_HELD else 1

    @cached_property
    def sums(self) -> int:
        """How many numbers are summed over the batch's rows."""
        return sum(len(s.kernel.stages[0].reduce) for s in self.steps if s.kind == "batch")

    def has(self, weight: str) -> bool:
        """Whether there is one of `WEIGHTS`."""
        readers = (self.activation, self.kept, *self.updates, *self.steps)
        return weight in ("w1", "w2") or any(r is not None and weight in r.reads for r in readers)

    # --- shared memory ----------------------------------------------------------------------------

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each part of a block's shared memory begins, and under "end" how much there is."""
        part = 16 * 128 * self.row_tiles * self.unit_tiles
        sizes = {
            "x": 4 * BLOCKS * self.rows * 8 * self.feature_tiles,  # features of the batch
            "parts": (BLOCKS - 1)
            * part,  # of the first product, of the other blocks; then rows of values
            "slopes": BLOCKS * part,  # gradients by the first product, of all rows
            "w2": 4 * self.outputs * (self.units + 4),
            "b1": 4 * self.units,
            "b2": 4 * MOST_OUTPUTS,
            "sums": 4 * (self.outputs * self.units + THREADS + self.outputs),
            "totals": 8 * self.sums,
            "signals": 8 * BLOCKS,
            "numbers": 2 * _SLOT * len(self.slots_of_scalars),
        }
        return placed(sizes | self.data_bytes(self.rows))

    def data_bytes(self, rows: int) -> dict[str, int]:
        """Bytes of so many rows of each array of data beside the features."""
        return {name: _ITEM[dtype] * rows * columns for name, dtype, columns in self.data}

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        return self.places["end"]

    @cached_property
    def slots_of_scalars(self) -> dict[str, tuple[int, str]]:
        """Number and dtype of each scalar that lies in shared memory."""
        found = {s.name: s.dtype for s in self.scalars if s.kind != "constant"}
        for step in self.steps:
            if step.kind == "scalars":
                results = [
                    r for stage in step.kernel.stages for r in (*stage.store, *stage.store_row)
                ]
                dtypes = {result.name: result.dtype for result in results}
                found |= {value: dtypes[name] for name, value in step.writes}
        return {name: (number, dtype) for number, (name, dtype) in enumerate(found.items())}


def placed(sizes: Mapping[str, int]) -> dict[str, int]:
    """Where parts of so many bytes begin, at multiples of 16, and under "end" how many they are together."""
    found, at = {}, 0
    for name, size in sizes.items():
        found[name] = at
        at += -(-size // 16) * 16
    return found | {"end": at}
