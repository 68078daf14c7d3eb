"""Batches of one size of all models of a stack, where each model has a cluster of blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.backends.cuda import device_memory
from magmadnn.backends.cuda.engine import KernelNode
from magmadnn.compiler.cuda.clusters.dense_chain import BLOCKS
from magmadnn.compiler.cuda.clusters.rounded_rows import rounded_rows
from magmadnn.compiler.cuda.clusters.warpgroup_kernel import WarpgroupKernel, kernel_of
from magmadnn.errors import OutOfMemoryError
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.runtime.cuda.code import functions_of
from magmadnn.runtime.cuda.data.arrays import begin
from magmadnn.runtime.variables import tensor_of

from .chain_matching import Found
from .leg import Buffer, Seat, Wanted

_MOST_STEPS = 4096  # of a launch: what the host waits for
_WORD = 8  # bytes
_ALIGNMENT = 16  # of copies of rows
_MOST_CUTS = 16  # of a model's steps
# Steps that take as long as bringing weights, and as beginning a launch.
_STEPS_OF_ROUND, _STEPS_OF_LAUNCH = 1, 3
_GAIN = 0.99  # of the time, from which on steps are cut
_ROUNDED_SHARE = 1 / 16  # of a device's memory, for a copy of the features


class ClusterLeg:
    """A leg whose steps are one kernel: many of them in a launch, a cluster for each model.

    Args:
        wanted: that of one model.
        found: the kernel, and what its parameters are.
        variables: what stands for the model's variables: stacks.
        count: how many models.
    """

    def __init__(
        self, wanted: Wanted, found: Found, variables: Mapping[Node, Node], count: int
    ) -> None:
        runner = wanted.runner
        self._device, self._engine = runner.device, runner.engine
        self._chain, self._count = found.chain, count
        self._any = kernel_of(found.chain, self._engine.capability, self._engine.shared_bytes)
        self._kernel = self._any
        nodes = runner.plan.variables
        self._weights = [None if n is None else variables[nodes[n]] for n in found.weights]
        self._variables = [variables[nodes[n]] for n in found.variables]
        self._x, self._data, self._numbers = found.x, found.data, found.settings
        names = ("x", "settings", "fault", *(f"found{k}" for k in range(len(found.chain.found))))
        self._buffers = {name: Buffer(self._device) for name in names}
        self._features = 0  # their address
        self._clusters: dict[object, int] = {}  # at the same time, by kernel
        self._seat: Seat | None = None
        self._settings = np.zeros((0, count, 0))

    def can_take(self, seats: Sequence[Seat]) -> bool:
        """Whether rows of features begin where they can be copied from."""
        return seats[0].data[self._x] % _ALIGNMENT == 0

    def take(self, seats: Sequence[Seat]) -> None:
        """Bring what models need: arrays, which all share, and settings."""
        self._seat = seats[0]
        self._features = self._seat.data[self._x]
        self._kernel = self._any
        if isinstance(self._any, WarpgroupKernel):
            self._round(self._any, self._seat.rows[self._x])
        settings = [[seat.settings[number] for seat in seats] for number in self._numbers]
        batches = len(settings[0][0]) if settings else 0
        shape = len(settings), self._count, batches
        self._settings = np.array(settings, np.float64).reshape(shape)

    def _round(self, kernel: WarpgroupKernel, rows: int) -> None:
        """Make a rounded copy of the features where there is room; if not, the kernel rounds batches."""
        count = rows * self._chain.width
        if 4 * count > _ROUNDED_SHARE * device_memory(self._device).total:
            return
        try:
            place = self._buffers["x"].of(4 * count)
        except OutOfMemoryError:
            return
        begin(self._device, rounded_rows(self._features, place, count))
        self._features, self._kernel = place, replace(kernel, is_rounded=True)

    def run(self, orders: int, length: int, done: int, steps: int) -> list[list[Array]] | None:
        """Run so many steps of all models; as `StackedLeg.run`."""
        found = []
        for first in range(done, done + steps, _MOST_STEPS):
            made = self._launch(orders, length, first, min(_MOST_STEPS, done + steps - first))
            if made is None:
                return None
            found.append(made)
        return found

    def _launch(self, orders: int, length: int, first: int, steps: int) -> list[Array] | None:
        assert self._seat is not None
        chain, memory = self._chain, device_memory(self._device)
        settings = np.ascontiguousarray(self._settings[:, :, first : first + steps])
        fault = self._buffers["fault"].holding(np.zeros(1, np.int64))
        made = [
            np.empty((steps, self._count, *((size,) if size > 1 else ())), dtype)
            for _, dtype, size in chain.found
        ]
        places = [self._buffers[f"found{k}"].of(array.nbytes) for k, array in enumerate(made)]
        function = functions_of(self._engine, [self._kernel])[self._kernel]
        each, together = pieces_of(self._count, steps, self._at_once(function))
        arguments = (
            each,
            steps,
            self._count,
            self._buffers["settings"].holding(settings) if settings.size else 0,
            fault,
            *(0 if node is None else _address(node) for node in self._weights),
            *(self._seat.data[number] for number in self._data),
            *map(_address, self._variables),
            *places,
        )
        rows = (self._features, orders + _WORD * first * chain.batch, length)
        pieces = self._count * -(-steps // each)
        for piece in range(0, pieces, together):
            clusters = min(together, pieces - piece)
            self._engine.launch(self._node(function, clusters, (*rows, piece, *arguments)))
        word = np.empty(1, np.int64)
        memory.copy_to_host(word.view(np.uint8), fault)
        if word[0]:
            return None
        for array, place in zip(made, places, strict=True):
            memory.copy_to_host(array.reshape(-1).view(np.uint8), place)
        return made

    def _at_once(self, function: Any) -> int:
        """How many models the device runs at the same time."""
        if self._kernel not in self._clusters:
            node = self._node(function, self._count, ())
            self._clusters[self._kernel] = self._engine.at_once(node, BLOCKS)
        return self._clusters[self._kernel]

    def _node(self, function: Any, clusters: int, arguments: tuple[int, ...]) -> KernelNode:
        grid, block = (BLOCKS * clusters, 1, 1), (self._kernel.threads, 1, 1)
        return KernelNode(function, grid, block, self._kernel.shared_bytes, arguments)

    @property
    def nbytes(self) -> int:
        """Memory of the device for outputs and settings."""
        numbers: int = sum(size for _, _, size in self._chain.found) + len(self._numbers)
        return numbers * self._count * _MOST_STEPS * _WORD + self._buffers["x"].nbytes

    def nothing(self) -> list[Array]:
        """The outputs of no batch."""
        return [
            np.empty((0, self._count, *((size,) if size > 1 else ())), dtype)
            for _, dtype, size in self._chain.found
        ]

    def let_go(self) -> None:
        """Give back the memory of the device; what is compiled stays."""
        self._buffers = {name: Buffer(self._device) for name in self._buffers}


def pieces_of(models: int, steps: int, at_once: int) -> tuple[int, int]:
    """How the steps of some models are cut, so that few clusters have nothing to do while the last ones run.

    Args:
        models: how many.
        steps: of each.
        at_once: models that run at the same time.

    Returns:
        The steps of a piece, and how many pieces are in a launch: of as many models.
    """
    if at_once < 1 or models <= at_once:
        return steps, models
    together = models // at_once * at_once
    costs = []
    for cuts in range(1, min(_MOST_CUTS, steps) + 1):
        each = -(-steps // cuts)
        pieces = models * -(-steps // each)
        launches, left = divmod(pieces, together)
        rounds = launches * (together // at_once) + -(-left // at_once)
        cost = rounds * (each + _STEPS_OF_ROUND) + (launches + (left > 0)) * _STEPS_OF_LAUNCH
        costs.append((cost, each))
    whole, (cost, each) = costs[0][0], min(costs)
    return (each, together) if cost < _GAIN * whole else (steps, models)


def _address(node: Node) -> int:
    address: int = tensor_of(node).memory.device_pointer(write=True)
    return address
