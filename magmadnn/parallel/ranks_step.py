"""What training asks of every step that several ranks share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.comm.communicator import Json
from magmadnn.comm.gpu.peer_buffers import gpu_of
from magmadnn.compiler.plan.memory import nbytes_of
from magmadnn.errors import ArgumentError, MagmaDNNError, NumericError
from magmadnn.graph import Node
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import VARIABLE
from magmadnn.graph.op import Array
from magmadnn.optim import Step
from magmadnn.optim.memory_check import BATCH, refuse_too_large
from magmadnn.runtime import Executable
from magmadnn.runtime.step_memory import StepMemory


class RanksStep(Step):
    """A step of one rank among several; see `Step`.

    Attributes:
        sharers: ranks of the training whose GPU is the same as this one's, this one included.
        is_scattered: whether ranks have different parts of parameters or of the optimiser's state between
            steps, so that `collect` is needed before anybody looks at them.
        stays_scattered: whether the next epoch can go on from the parts, if nobody looked.
    """

    sharers = 1
    is_scattered = False
    stays_scattered = False
    _comm: Communicator

    def next_batch(self, rows: int, epoch: int, batch: int, batches: int | None, size: int) -> None:
        """Be told of the batch that is run next: samples of all ranks, and its place in training.

        Args:
            rows: of the batch.
            epoch: its number.
            batch: its number in the epoch.
            batches: of the epoch, if known.
            size: rows of those batches that are not the last of an epoch.
        """

    def last_batch(self) -> tuple[int, float] | None:
        """Samples and weight of the batch that was run; None where it is the one that was told of."""
        return None

    def gpu(self) -> str:
        """Where this rank computes, among the GPUs of all machines; empty on a processor."""
        return gpu_of(self._executable.device)

    def offers(self) -> Json:
        """What all ranks are told before a training, for `meet`."""

    def meet(self, offers: Sequence[Json]) -> None:
        """Be told what the steps of all ranks offer; all of them call it."""

    def collect(self) -> None:
        """Give all ranks all parameters, and the optimiser's state; all of them call it."""

    def begin_epoch(self) -> None:
        """Go on from the model's parameters, which callbacks may have set."""

    # --- memory -----------------------------------------------------------------------------------

    def memory_of(self, feeds: Mapping[Node, Array], batch_size: int) -> StepMemory | None:
        """What a step of a batch of all ranks takes on this one; see `Step.memory_of`."""
        if self._executable.executor != "native":
            return None
        return self.memory({**sizes_of(feeds), BATCH: batch_size})

    def check_memory(self, what: str, feeds: Mapping[Node, Array], batch_size: int) -> None:
        """Look whether all that a step takes on this rank has room; see `Step.check_memory`."""
        sizes = sizes_of(feeds)
        refuse_too_large(self._executable, what, sizes, batch_size, self._missing, self.sharers)

    def prepare(self, feeds: Mapping[Node, Array], batch_size: int) -> None:
        """Nothing: on processors the first step of a size plans it."""

    def memory(self, sizes: Mapping[str, int]) -> StepMemory | None:
        """The memory that a step of a batch takes on this rank; None where NumPy runs it."""
        return self._memory_for(sizes, True)

    @abstractmethod
    def _memory_for(self, sizes: Mapping[str, int], workspace: bool) -> StepMemory | None:
        """What `memory` says, with or without what kernels need, which have to be made for that."""

    def _missing(self, sizes: Mapping[str, int]) -> int:
        """Bytes that a step takes beside parameters and moments, which are there."""
        found = self._memory_for(sizes, False)
        return 0 if found is None else found.total - found.parameters - found.optimizer

    def _state_nodes(self) -> list[Node]:
        """What the optimiser keeps on this rank."""
        return [self._count.node, *(slot.node for slot in self._slots.values())]

    def _together(
        self, programs: Sequence[tuple[Executable, Mapping[str, int]]], workspace: bool, values: int,
        vectors: int, batch: int,
    ) -> StepMemory | None:  # fmt: skip
        """What programs take that run one after the other, at most.

        Args:
            programs: with the sizes that they run with.
            workspace: whether kernels' counts.
            values: bytes that lie between them, beside gradients.
            vectors: bytes of gradients that do.
            batch: bytes of this rank's rows.
        """
        found, held = [], dict[Node, None]()
        for program, sizes in programs:
            if (one := program.memory(sizes, workspace)) is None:
                return None
            found.append(one)
            held |= dict.fromkeys(n for n in program.program.leaves if n.op is VARIABLE)
            held |= dict.fromkeys(target for target, _ in program.program.updates)
        state = dict.fromkeys(self._state_nodes())
        return StepMemory(
            parameters=sum(nbytes_of(node, {}) for node in held if node not in state),
            optimizer=sum(nbytes_of(node, {}) for node in state),
            activations=values + max(one.activations for one in found),
            gradients=vectors + max(one.gradients for one in found),
            batch=batch,
            copies=sum(one.copies for one in found),
            workspace=max(one.workspace for one in found),
        )

    # --- errors -----------------------------------------------------------------------------------

    def _told(self, error: Exception | None, otherwise: Exception | None = None) -> Exception:
        """What all ranks raise: their own error, else the first of another rank, else `otherwise`."""
        texts = self._comm.exchange(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            return error
        found = [(rank, text) for rank, text in enumerate(texts) if text is not None]
        if not found:
            return otherwise or NumericError(
                "the sum of the shards' losses has NaN or infinity, though none of them has: lower the "
                "learning rate, or use float64"
            )
        rank, text = found[0]
        kind = NumericError if text.startswith("NumericError") else MagmaDNNError
        return kind(
            f"rank {rank} of {self._comm.size} stopped the step: {text}; nothing was updated on any"
        )


def sizes_of(feeds: Mapping[Node, Any]) -> dict[str, int]:
    """The sizes of symbolic dimensions."""
    return {
        str(dim): size
        for node, value in feeds.items()
        for dim, size in zip(node.shape, np.shape(value), strict=True)
        if isinstance(dim, Dim) and dim.is_symbol
    }


def vectors_bytes(lengths: Mapping[np.dtype[Any], int]) -> int:
    """Bytes of vectors of so many elements of each dtype."""
    return sum(length * dtype.itemsize for dtype, length in lengths.items())


def refuse(way: str, precision: str) -> None:
    """Look whether ranks can train so.

    Raises:
        ArgumentError: if they cannot.
    """
    if precision == "mixed_fp16":
        raise ArgumentError(
            f"{way}: mixed_fp16 leaves out steps by what one rank finds: use precision='mixed_bf16'"
        )
