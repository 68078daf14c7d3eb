"""Sums over the ranks: in the order of a tree as two ops, and as a call among GPUs.

Of the two, one begins and the other waits. Between them lies whatever does not need the sum: the `order` pass
puts an op that waits (`Op.arrives`) behind all of that. The sum is that of `TreeSum`: its bits depend on the
leaves, not on the ranks. Graphs of GPUs need no second op: a call runs beside all that does not need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np

from magmadnn.comm.gpu.meeting import gpus_of
from magmadnn.comm.gpu.nccl import NcclCommunicator
from magmadnn.comm.groups import group_named, group_of
from magmadnn.graph.dim import Shape
from magmadnn.graph.op import REQUIRED, Array, Draw, NoGradient, Op, OpKind, Sample
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.graph.spec import Spec
from magmadnn.ops._arguments import first_dtype
from magmadnn.parallel.tree import TreeSum

from .beside import beside

GROUP: Final = "data parallel"  # bound by whoever runs the step


def _begin(
    blocks: Array, *before: Array, ranks: int, leaves: int, number: int, there: Sequence[int] | None
) -> Array:
    comm = group_named(GROUP, ranks, "tree_begin")

    def total() -> Array:
        tree, known = TreeSum(comm, leaves), range(leaves) if there is None else there
        own = list(blocks) if tree.blocks(comm.rank, known) else []
        return tree.all_sum(own, np.empty(blocks.shape[1], blocks.dtype), known)

    beside(comm).begin(number, blocks.nbytes, total)
    return np.zeros(1, np.int64)


def _wait(blocks: Array, begun: Array, ranks: int, number: int) -> Array:
    return beside(group_of(GROUP, ranks, "tree_wait")).result(number)


def _sum(blocks: Array, ranks: int, dtype: str | None) -> Array:
    own = blocks[0] if dtype is None else blocks[0].astype(dtype)
    found: Array = group_named(GROUP, ranks, "sum_of_ranks").all_reduce(own)
    return found


def _sum_dtype(words: OpWords, dtypes: Sequence[Any], attributes: Attributes) -> np.dtype[Any]:
    return np.dtype(attributes["dtype"] or dtypes[0])


def _sum_on_gpu(ranks: int, dtype: str | None) -> tuple[NcclCommunicator, Literal["sum"]]:
    """The GPUs of the ranks."""
    return gpus_of(group_named(GROUP, ranks, "sum_of_ranks")), "sum"


def token_shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    """The shape of what stands for a call that was begun."""
    return (1,)


def _row_shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    return specs[0].shape[1:]


def token_dtype(words: OpWords, dtypes: Sequence[Any], attributes: Attributes) -> np.dtype[Any]:
    """The dtype of what stands for a call that was begun."""
    return np.dtype(np.int64)


def _no_samples(draw: Draw) -> list[Sample]:
    return []


_NO_GRADIENT: Final = NoGradient("it is part of an update")

tree_begin: Op = Op(
    name="_tree_begin",
    args=("blocks", "*before"),
    formula="begins the sum of all ranks' blocks [blocks, n] over leaves `there` of a tree, behind `before`",
    kind=OpKind.COLLECTIVE,
    shapes=token_shape,
    dtypes=token_dtype,
    numpy=_begin,
    vjp=_NO_GRADIENT,
    reference=_begin,
    samples=_no_samples,
    attributes={"ranks": REQUIRED, "leaves": REQUIRED, "number": REQUIRED, "there": None},
)

tree_wait: Op = Op(
    name="_tree_wait",
    args=("blocks", "begun"),
    formula="the sum that was begun, [n]",
    kind=OpKind.COLLECTIVE,
    shapes=_row_shape,
    dtypes=first_dtype,
    numpy=_wait,
    vjp=_NO_GRADIENT,
    reference=_wait,
    samples=_no_samples,
    attributes={"ranks": REQUIRED, "number": REQUIRED},
    arrives=True,
)

sum_of_ranks: Op = Op(
    name="_sum_of_ranks",
    args=("blocks",),
    formula="the sum of all ranks' blocks [1, n], stored as dtype: [n]; a rank on a GPU is one leaf",
    kind=OpKind.COLLECTIVE,
    shapes=_row_shape,
    dtypes=_sum_dtype,
    numpy=_sum,
    vjp=_NO_GRADIENT,
    reference=_sum,
    samples=_no_samples,
    attributes={"ranks": REQUIRED, "dtype": None},
    on_device=_sum_on_gpu,
)

# Waits in front of all updates: for steps that also run one at a time, in which ranks ask each other before
# variables are written whether the outputs are finite, when no call may be under way.
tree_wait_first: Op = replace(tree_wait, name="_tree_wait_first", arrives=False)
