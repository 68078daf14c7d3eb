"""Batches of one size, of models that are built alike: one kernel, with a block for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.backends.cuda import device_memory
from magmadnn.backends.cuda.engine import KernelNode
from magmadnn.compiler.cuda.megakernel.blocks import GridVariant, Kept
from magmadnn.compiler.cuda.megakernel.whole import Copied, WholeVariant
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.graph.program import Program
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime.cuda.code import functions_of
from magmadnn.runtime.cuda.data.block import Block
from magmadnn.runtime.cuda.running.runner import CudaRunner
from magmadnn.runtime.cuda.running.sliced.pattern import Meaning
from magmadnn.runtime.cuda.running.sliced.slices import CudaSlices

Numbers = NDArray[np.int64]
_PROCESSOR_BYTES = (
    228 << 10
)  # shared memory of a multiprocessor; a block takes 1 KB more than it asks for
_MOST_RESIDENT = 3  # blocks of a multiprocessor: with more, registers would lie in memory


@dataclass(frozen=True)
class Wanted:
    """A leg of one model.

    Attributes:
        runner: of the plan.
        data: what batches are taken from, for each placeholder.
        settings: scalar placeholders whose value may change from batch to batch.
        sizes: of symbolic dimensions.
        batch_size: rows of a batch.
        program: what was planned; its leaves stand in one order where plans are alike.
    """

    runner: CudaRunner
    data: Mapping[Node, Array | OnDevice]
    settings: Sequence[Node]
    sizes: Mapping[str, int]
    batch_size: int
    program: Program

    @property
    def looks(self) -> tuple[Any, ...]:
        """Equal where plans that are alike can have one kernel."""
        rows = tuple((a.dtype, a.shape[1:]) for a in self.data.values())
        return (self.batch_size, tuple(sorted(self.sizes.items())), rows, len(self.settings))


@dataclass(frozen=True)
class Seat:
    """What a model brings to a leg.

    Attributes:
        variables: addresses, in the order of `NativePlan.variables`.
        data: addresses of all arrays.
        order: numbers of rows; None where the device draws them.
        settings: values of all settings, for each batch.
        rows: how many each of the arrays has.
    """

    variables: Sequence[int]
    data: Sequence[int]
    order: Numbers | None
    settings: Sequence[Array]
    rows: Sequence[int] = ()


class Buffer:
    """Memory on a device that grows."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._block: Block | None = None

    def of(self, nbytes: int) -> int:
        """The address of at least so many bytes; what was there before is lost."""
        if self._block is None or self._block.nbytes < nbytes:
            self._block = None  # first, since there may be no room for both
            self._block = Block(nbytes, self._device)
        return self._block.address

    @property
    def nbytes(self) -> int:
        """How many there are."""
        return 0 if self._block is None else self._block.nbytes

    @property
    def address(self) -> int:
        """Of what `of` gave last."""
        assert self._block is not None
        return self._block.address

    def holding(self, array: Array) -> int:
        """The address of a copy of an array."""
        address = self.of(array.nbytes)
        flat = np.ascontiguousarray(array).reshape(-1)
        if flat.size:
            device_memory(self._device).copy_to_device(address, flat.view(np.uint8))
        return address


class GridLeg:
    """A leg of all models of a group.

    Args:
        wanted: that of one of them.
        looks: whether outputs and new values must be finite.

    Attributes:
        variant: the kernel.
        orders: where the rows of each model lie, from `take` on.
        changed: number of each variable that the kernel changes, where it is saved, and its bytes.
        saved_bytes: of all of them.
    """

    def __init__(self, wanted: Wanted, looks: bool) -> None:
        runner = wanted.runner
        self._device, self._engine = runner.device, runner.engine
        how = (runner, wanted.data, wanted.settings, wanted.sizes, wanted.batch_size)
        slices = CudaSlices(*how)
        found = slices.pattern()
        assert found is not None
        self._meanings = found.meanings
        self._outputs = found.outputs
        self._data = [list(wanted.data).index(node) for node in found.data]
        self._settings = [list(wanted.settings).index(node) for node in found.settings]
        whole = found.launch.variant
        assert isinstance(whole, WholeVariant)
        self._whole = whole = self._with_copies(whole)
        nodes = runner.plan.variables
        dtypes = tuple(self._dtype(copy, nodes) for copy in whole.copies)
        kept = tuple(
            Kept(dtype.name, int(np.prod(shape)), self._meanings.index(Meaning("output", number)))
            for number, (dtype, shape) in enumerate(self._outputs)
        )
        room = whole.shared_bytes + (1 << 10)
        resident = max(min(_PROCESSOR_BYTES // room, _MOST_RESIDENT), 1)
        self.variant = GridVariant(whole, dtypes, kept if looks else (), resident)
        numbers = [self._meaning(copy).number for copy, _ in self.variant.changed]
        *offsets, self.saved_bytes = self.variant.saved_offsets
        sizes = [copy.nbytes for copy, _ in self.variant.changed]
        self.changed = list(zip(numbers, offsets, sizes, strict=True))
        self._constants = self._taken_over()
        names = ("table", "entries", "arrays", "order", "settings")
        self._buffers = {name: Buffer(self._device) for name in names}
        self._kept = [Buffer(self._device) for _ in self._outputs]
        self._table = 0
        self.orders = np.zeros(0, np.int64)

    # --- the kernel -------------------------------------------------------------------------------

    def _meaning(self, copy: Copied) -> Meaning:
        return self._meanings[copy.outside.number]

    def _with_copies(self, whole: WholeVariant) -> WholeVariant:
        """Variables come and, where they change, go; constants come; nobody wants what else there is."""
        copies = []
        for copy in whole.copies:
            if self._meaning(copy).kind == "variable":
                copies.append(Copied(copy.outside, copy.offset, copy.nbytes, True, copy.goes))
            elif copy.comes:
                copies.append(Copied(copy.outside, copy.offset, copy.nbytes, True, False))
        return WholeVariant(
            whole.levels, tuple(copies), whole.feeds, whole.threads, whole.outside, whole.shared_bytes, True
        )  # fmt: skip

    def _dtype(self, copy: Copied, variables: Sequence[Node]) -> str:
        kind, number = self._meaning(copy)
        return variables[number].dtype.name if kind == "variable" else "uint8"

    def _taken_over(self) -> dict[int, Block]:
        """Copies of constants, by their addresses in the first model's memory, which does not stay."""
        memory, found = device_memory(self._device), dict[int, Block]()
        for copy in self._whole.copies:
            kind, address = self._meaning(copy)
            if kind == "fixed":
                found[address] = Block(copy.nbytes, self._device)
                memory.copy_on_device(found[address].address, address, copy.nbytes)
        memory.wait()
        return found

    # --- running ----------------------------------------------------------------------------------

    def take(self, seats: Sequence[Seat], batches: int, rows: int) -> None:
        """Bring what models need.

        Args:
            seats: of all models of the launch, in the order of blocks.
            batches: that there is room for, of each.
            rows: likewise.
        """
        count = len(seats)
        settings = np.zeros((count, len(self._settings), batches))
        for k, seat in enumerate(seats):
            for number, given in enumerate(self._settings):
                values = seat.settings[given]
                settings[k, number, : len(values)] = values
        numbers = np.arange(count, dtype=np.int64)
        entries = np.empty((count, 1 + len(self._settings)), np.int64)
        entries[:, 0] = self.orders = self._ordered(seats, rows) + numbers * (8 * rows)
        where = self._buffers["settings"].holding(settings)
        for number in range(len(self._settings)):
            entries[:, 1 + number] = where + (numbers * len(self._settings) + number) * 8 * batches
        arrays = np.array([[seat.data[k] for k in self._data] for seat in seats], np.int64)
        places = {
            "entry": self._buffers["entries"].holding(entries) + numbers * entries.strides[0],
            "data": self._buffers["arrays"].holding(arrays) + numbers * (8 * len(self._data)),
        }
        variables = np.array([seat.variables for seat in seats], np.int64)
        table = np.empty((count, len(self._meanings)), np.int64)
        for column, (kind, number) in enumerate(self._meanings):
            if kind in places:
                table[:, column] = places[kind] + 8 * number
            elif kind == "variable":
                table[:, column] = variables[:, number]
            elif kind == "output":
                nbytes = batches * self._nbytes(number)
                table[:, column] = self._kept[number].of(max(nbytes * count, 1)) + numbers * nbytes
            elif number in self._constants:
                table[:, column] = self._constants[number].address
            else:  # of a value of the step, which lies in shared memory only
                table[:, column] = 0
        self._columns = table
        self._batches = batches

    def _ordered(self, seats: Sequence[Seat], rows: int) -> int:
        """Where the rows of all models lie, with those that the host knows."""
        if all(seat.order is None for seat in seats):
            return self._buffers["order"].of(8 * rows * len(seats))
        order = np.zeros((len(seats), rows), np.int64)
        for k, seat in enumerate(seats):
            if seat.order is not None:
                order[k, : len(seat.order)] = seat.order
        return self._buffers["order"].holding(order)

    def _nbytes(self, output: int) -> int:
        dtype, shape = self._outputs[output]
        return dtype.itemsize * int(np.prod(shape))

    def set_faults(self, address: int) -> None:
        """Say where the words of faults are, one for each model; the tables are complete then."""
        for column, (kind, _) in enumerate(self._meanings):
            if kind == "fault":
                self._columns[:, column] = address + 8 * np.arange(len(self._columns))
        self._table = self._buffers["table"].holding(self._columns)

    def launch(self, heads: int, faults: int, saved: int) -> None:
        """Begin to run the batches that `heads` says."""
        function = functions_of(self._engine, [self.variant])[self.variant]
        whole, arguments = self._whole, (self._table, heads, faults, saved, self.saved_bytes)
        grid, block = (len(self._columns), 1, 1), (whole.threads, 1, 1)
        self._engine.launch(KernelNode(function, grid, block, whole.shared_bytes, arguments))

    def found(self) -> list[Array]:
        """The outputs of all models, [models, batches, ...] each; all that was launched is waited for."""
        memory, found = device_memory(self._device), list[Array]()
        for (dtype, shape), buffer in zip(self._outputs, self._kept, strict=True):
            made = np.empty((len(self._columns), self._batches, *shape), dtype)
            if made.size:
                memory.copy_to_host(made.reshape(-1).view(np.uint8), buffer.of(made.nbytes))
            found.append(made)
        return found

    def nothing(self) -> list[Array]:
        """The outputs of no batch."""
        return [np.empty((0, *shape), dtype) for dtype, shape in self._outputs]


def is_small(wanted: Wanted) -> bool:
    """Whether a block can run a model's batches."""
    return wanted.runner.instance(wanted.sizes).items.small
