"""Matrix products of a plan beside their steps: their parts, and runs of them to be timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from numpy.lib.array_utils import byte_bounds

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.llvm.driver.driver import Task
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.llvm.kernel import Loaded, scratch
from magmadnn.compiler.llvm.writers import scratch_bytes
from magmadnn.compiler.regions.draft import Lowered
from magmadnn.compiler.tune.chosen_blocks import Untried
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array

Part = tuple[float, dict[str, int]]  # what it costs, and the slots that differ from the whole


@dataclass
class Product:
    """A product of a plan.

    Attributes:
        gemm: without a choice how it runs.
        largest: the slots of its largest part, where the tile is the rule's.
        parts: what threads take one by one: whole tiles.
    """

    gemm: Gemm
    largest: Mapping[str, int]
    parts: Sequence[Part]


def untried(
    product: Product, lowered: Lowered, arrays: Mapping[Node, Array], tasks: Sequence[Task]
) -> Untried:
    """A product that may be measured: the first of its tasks, which is the largest part, on other memory."""
    slots = lowered.kernel.slots
    number = slots.index("cuts")
    places = {
        slot: (arrays[node].ctypes.data, byte_bounds(arrays[node]))
        for slot, node, _ in (*lowered.reads, *lowered.writes)
    }
    spans = {span for _, span in places.values()}  # what is written in place stays in one place

    def prepare() -> Callable[[int], None]:
        block, kernel = tasks[0].arguments.copy(), tasks[0].kernel
        assert isinstance(kernel, Loaded)
        memory = {(first, end): scratch(max(end - first, 1)) for first, end in spans}
        for slot, (address, span) in places.items():
            block[slots.index(slot)] = memory[span].ctypes.data + address - span[0]
        space = scratch(scratch_bytes(lowered.kernel, host()))

        def run(word: int, held: object = memory) -> None:
            block[number] = word
            kernel(block, space)

        return run

    def choose(word: int) -> None:
        for task in tasks:
            task.arguments[number] = word

    nbytes = sum(end - first for first, end in spans)
    return Untried(product.gemm, product.largest, nbytes, prepare, choose)
