"""Models too large for a block: their steps as one program, whose values have an axis of models in front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.backends.cuda.engine import CONVOLUTIONS
from magmadnn.compiler.cuda.many.copies import copies
from magmadnn.compiler.cuda.many.permutations import interleaved
from magmadnn.compiler.kernels.library import WholeLibrary
from magmadnn.compiler.plan.listing import costs_of
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, Node, placeholder, variable
from magmadnn.graph.op import Array, Op, OpKind
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import stacked_program
from magmadnn.memory import Kind, MemoryManager
from magmadnn.memory.foreign import OnDevice, packed_strides
from magmadnn.runtime.cuda.data.arrays import begin
from magmadnn.runtime.cuda.data.block import Block
from magmadnn.runtime.cuda.running.planned import runner_of
from magmadnn.runtime.cuda.running.sliced.slices import CudaSlices
from magmadnn.runtime.cuda.schedule.cuts import LONGEST
from magmadnn.runtime.variables import tensor_of

from .chains import chain_of
from .cluster_leg import ClusterLeg
from .leg import Buffer, Seat, Wanted

_MOST_ROWS = 1 << 23  # numbers of rows of a slice, 8 bytes each
_MOST_OPERATIONS = 2e10  # of a model's step: more keep a device busy by themselves;
_MOST_CONVOLVED = 1e11  # of convolutions, which take longer for as many
_COPIES = 2  # of variables: those of the stack, and what these were before a slice
_MOST_BESIDE = 32  # models that draw random numbers, or call a library, each by itself in a step


def can_stack(wanted: Sequence[Wanted]) -> bool:
    """Whether models like this one gain by steps in one program, and all their ops take the axis."""
    ops = {node.op for w in wanted for node in w.program.nodes() if isinstance(node.op, Op)}
    if any(op.stacked is None and not _draws(op) for op in ops):
        return False
    functions = wanted[0].runner.engine.functions
    if any(not CONVOLUTIONS & op.by_library.keys() <= functions for op in ops):
        return False  # products of all models would be made one by one
    nodes = [node for w in wanted for node in w.program.nodes()]
    parameters: dict[Node, int] = {n: tensor_of(n).size for n in nodes if n.op is VARIABLE}
    rows = max(w.batch_size for w in wanted)
    fits = 6.0 * sum(parameters.values()) * rows <= _MOST_OPERATIONS
    return fits and max(map(_convolved, wanted)) <= _MOST_CONVOLVED


def _convolved(wanted: Wanted) -> float:
    """Operations of the convolutions of a step."""
    plan = wanted.runner.plan
    calls = (w for w in plan.work if w.lowered is not None)
    own = [w for w in calls if w.lowered and isinstance(w.lowered.kernel, WholeLibrary)]
    return float(sum(costs_of(plan, work, wanted.sizes)[0] for work in own))


def bytes_of_one(wanted: Sequence[Wanted]) -> int:
    """About what each model takes of the device's memory in a stack, beside its own variables."""
    nodes = dict.fromkeys(node for w in wanted for node in w.runner.plan.variables)
    variables: int = sum(tensor_of(node).nbytes for node in nodes)
    steps = [w.runner.memory(w.sizes) for w in wanted]
    values = sum(m.activations + m.gradients + m.batch for m in steps)
    return _COPIES * variables + values


def most_models(wanted: Sequence[Wanted]) -> int:
    """How many models one program may have."""
    ops = {node.op for w in wanted for node in w.program.nodes() if isinstance(node.op, Op)}
    beside = any(_draws(op) or CONVOLUTIONS & op.by_library.keys() for op in ops)
    return _MOST_BESIDE if beside else LONGEST


def _draws(op: Op) -> bool:
    return op.kind is OpKind.RANDOM


class Stack:
    """Some models of one structure as one.

    Args:
        wanted: legs of one of them.
        count: how many models.
    """

    def __init__(self, wanted: Sequence[Wanted], count: int) -> None:
        self.count, self._device = count, wanted[0].runner.device
        nodes = dict.fromkeys(node for w in wanted for node in w.runner.plan.variables)
        # an index of the leg and one of the variable in it, by the first model's node
        self._places = {
            node: (leg, number)
            for leg, w in enumerate(wanted)
            for number, node in enumerate(w.runner.plan.variables)
        }
        targets = {target for w in wanted for target, _ in w.runner.plan.program.updates}
        self._changed = [node for node in nodes if node in targets]
        # those that change come first
        ordered = dict.fromkeys([*self._changed, *nodes])
        self._variables = {node: _variable_of(node, count, self._device) for node in ordered}
        self._table = Buffer(self._device)
        self._wanted = list(wanted)
        self._legs = [self._leg_of(w) for w in wanted]

    def _leg_of(self, wanted: Wanted) -> StackedLeg | ClusterLeg:
        """A cluster for each model where the step is one that a cluster can run."""
        found = chain_of(wanted)
        if found is None:
            return StackedLeg(wanted, self._variables, self.count)
        return ClusterLeg(wanted, found, self._variables, self.count)

    def run(
        self, seats: Sequence[Sequence[Seat]], orders: Sequence[tuple[int, int]], epochs: int,
        counts: Sequence[int],
    ) -> list[list[Array]] | None:  # fmt: skip
        """Run epochs of all models, and give their variables the new values.

        Args:
            seats: of each model, for each leg.
            orders: for each leg, where the rows of the first model lie, and how many each has.
            epochs: how many.
            counts: batches of each leg in an epoch.

        Returns:
            The outputs of each leg, [batches, models, ...] each. None where one of them, or a new value of a
            model, is NaN or infinite: all models' own variables are as before.
        """
        engine = device_engine(self._device)
        self._copy(self._table.holding(self._places_of(seats)), len(self._variables))
        together = sum(map(bool, counts)) == 1
        found: list[list[list[Array]]] = [[] for _ in self._legs]
        for number, own in enumerate(zip(*seats, strict=True)):
            leg = self._legs[number]
            if isinstance(leg, ClusterLeg) and not leg.can_take(own):
                leg = StackedLeg(self._wanted[number], self._variables, self.count)
                self._legs[number] = leg
            leg.take(own)
        for epoch in range(1 if together else epochs):
            for number, count in enumerate(counts):
                steps = count * epochs if together else count
                if not steps:
                    continue
                made = self._legs[number].run(*orders[number], epoch * count, steps)
                if made is None:
                    return None
                found[number] += made
        self._copy(self._table.address, len(self._changed), back=True)
        engine.wait()
        return [
            [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
            if parts
            else leg.nothing()
            for leg, parts in zip(self._legs, found, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        """About what it takes of the device's memory."""
        variables: int = sum(tensor_of(node).nbytes for node in self._variables.values())
        return _COPIES * variables + sum(leg.nbytes for leg in self._legs)

    def let_go(self) -> None:
        """Give back the memory of the device; what is compiled stays."""
        for leg in self._legs:
            leg.let_go()
        for node in self._variables.values():
            node.value.let_go()
        self._table = Buffer(self._device)

    def _copy(self, table: int, variables: int, back: bool = False) -> None:
        """Begin to copy the first variables of all models into the stack, or back."""
        most = max((tensor_of(n).nbytes for n in self._variables.values()), default=0) // self.count
        for launch in copies(table, variables * self.count, most, back):
            begin(self._device, launch)

    def _places_of(self, seats: Sequence[Sequence[Seat]]) -> Array:
        """Where each model has a variable, where that lies in the stack, and bytes; variable by variable."""
        models = np.arange(self.count, dtype=np.int64)
        found = np.empty((len(self._variables), self.count, 3), np.int64)
        for rows, (node, stacked) in zip(found, self._variables.items(), strict=True):
            tensor, (leg, number) = tensor_of(stacked), self._places[node]
            nbytes = tensor.nbytes // self.count
            rows[:, 0] = [own[leg].variables[number] for own in seats]
            rows[:, 1] = tensor.memory.device_pointer(write=True) + nbytes * models
            rows[:, 2] = nbytes
        return found


class _OnDevice:
    """What a variable of a stack holds: memory of the device from the first use to `let_go`.

    It stands for a Tensor in all that kernels need to know.
    """

    kind, offset = Kind.DEVICE, 0

    def __init__(self, spec: Spec, device: int) -> None:
        self.shape, self.dtype, self.device = (
            tuple(int(n) for n in spec.shape if isinstance(n, int)),
            spec.dtype,
            device,
        )
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        self.strides = packed_strides(self.shape, self.dtype.itemsize)
        self._memory: MemoryManager | None = None

    @property
    def memory(self) -> MemoryManager:
        """The memory."""
        if self._memory is None:
            self._memory = MemoryManager(self.size, self.dtype, Kind.DEVICE, self.device)
        return self._memory

    def read(self) -> Array:
        """A copy on the host."""
        found = np.empty(self.shape, self.dtype)
        memory = device_memory(self.device)
        memory.copy_to_host(found.reshape(-1).view(np.uint8), self.memory.device_pointer())
        return found

    def write(self, value: Array) -> None:
        """Set the values."""
        flat = np.ascontiguousarray(value, self.dtype).reshape(-1)
        memory = device_memory(self.device)
        memory.copy_to_device(self.memory.device_pointer(write=True), flat.view(np.uint8))

    def let_go(self) -> None:
        """Give the memory back."""
        self._memory = None


def _variable_of(node: Node, count: int, device: int) -> Node:
    """A variable on the device that holds those of all models."""
    spec = Spec((count, *node.shape), node.dtype)
    return variable(node.name, spec, _OnDevice(spec, device))


class StackedLeg:
    """Batches of one size of all models of a stack.

    Args:
        wanted: that of one of them.
        variables: what stands for its variables.
        count: how many models.
    """

    def __init__(self, wanted: Wanted, variables: Mapping[Node, Node], count: int) -> None:
        runner = wanted.runner
        self._device = runner.device
        self._count, self._batch = count, wanted.batch_size
        fed: dict[Node, Node] = {}

        def leaf(nodes: tuple[Node, ...]) -> Node:
            node = nodes[0]
            if node.op is VARIABLE:  # what is in no plan has no influence
                return variables.get(node) or _variable_of(node, count, runner.device)
            assert node.op is PLACEHOLDER
            fed[node] = placeholder(node.name, Spec((count, *node.shape), node.dtype))
            return fed[node]

        program = stacked_program([wanted.program] * count, leaf)
        self._runner = runner_of(program, runner.device, runner.tensor_float)
        self._data = [
            (number, fed[node], array)
            for number, (node, array) in enumerate(wanted.data.items())
            if node in fed
        ]
        self._settings = [
            (number, fed[node]) for number, node in enumerate(wanted.settings) if node in fed
        ]
        self._sizes, self._values = wanted.sizes, dict[Node, Array]()
        self._most = max(min(LONGEST, _MOST_ROWS // (count * self._batch)), 1)
        self._order: Block | None = None
        self._slices: CudaSlices | None = None

    def take(self, seats: Sequence[Seat]) -> None:
        """Bring what models need: arrays, which all share, and settings.

        Raises:
            OutOfMemoryError: if there is no room.
        """
        arrays: dict[Node, Any] = {
            node: OnDevice(like.shape, like.dtype, seats[0].data[number], self._device, None)
            for number, node, like in self._data
        }
        if self._slices is None:
            nodes = [node for _, node in self._settings]
            rows = self._most * self._count * self._batch
            how = (self._sizes, self._count * self._batch, None, rows, True)
            self._order = Block(8 * rows, self._device)
            self._slices = CudaSlices(self._runner, arrays, nodes, *how)
        self._arrays = arrays  # which slices hold weakly
        self._slices.data.take(arrays)
        self._values = {
            node: np.stack([seat.settings[number] for seat in seats], axis=1)
            for number, node in self._settings
        }

    def run(self, orders: int, length: int, done: int, steps: int) -> list[list[Array]] | None:
        """Run so many steps of all models behind those that are done.

        Args:
            orders: where the rows of the first model lie,
            length: and how many each has.
            done: steps of this leg before.
            steps: how many.

        Returns:
            The outputs of pieces, [steps, models, ...] each; None where one is NaN or infinite.
        """
        assert self._slices is not None and self._order is not None
        found = []
        for first in range(done, done + steps, self._most):
            count = min(self._most, done + steps - first)
            size = (self._count, length, first * self._batch, self._batch, count)
            begin(self._device, interleaved(orders, self._order.address, *size))
            rows = count * self._count * self._batch
            order = OnDevice((rows,), np.dtype(np.int64), self._order.address, self._device, None)
            values = {node: v[first : first + count] for node, v in self._values.items()}
            made = self._slices.run(order, values)
            if made is None:
                return None
            found.append(made)
        return found

    @property
    def nbytes(self) -> int:
        """Memory of the device for the values of a step, and outputs."""
        found = self._runner.memory(self._sizes)
        return found.activations + found.gradients + found.batch + found.workspace

    def nothing(self) -> list[Array]:
        """The outputs of no batch."""
        assert self._slices is not None
        return self._slices.nothing()

    def let_go(self) -> None:
        """Give back the memory of the device; what is compiled stays."""
        self._slices = self._order = None
