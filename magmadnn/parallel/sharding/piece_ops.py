"""Gathers and scattered sums of pieces as ops of two halves: one begins, the other waits.

Between the two lies what does not need the result. Further operands only say what comes before: calls of all
ranks begin in one order, and a gather does not take memory before what is computed with the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np

from magmadnn.comm import Communicator
from magmadnn.comm.gpu.meeting import gpus_of
from magmadnn.comm.gpu.nccl import NcclCommunicator
from magmadnn.comm.groups import group_named, group_of
from magmadnn.graph.dim import Shape
from magmadnn.graph.op import REQUIRED, Array, NoGradient, Op, OpKind
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.graph.spec import Spec
from magmadnn.ops._arguments import first_dtype
from magmadnn.parallel.in_graph.beside import beside
from magmadnn.parallel.in_graph.tree_ops import GROUP, token_dtype, token_shape
from magmadnn.parallel.tree import TreeSum

_NO_GRADIENT: Final = NoGradient("it is put into programs that have their gradients")


def _gather_begin(vector: Array, *before: Array, ranks: int, number: int) -> Array:
    comm = group_named(GROUP, ranks, "gather_begin")
    beside(comm).begin(number, vector.nbytes * ranks, lambda: _gathered(comm, vector))
    return np.zeros(1, np.int64)


def _gathered(comm: Communicator, vector: Array) -> Array:
    whole: Array = comm.all_gather(vector)
    return whole.reshape(comm.size, -1)


def _share_begin(
    blocks: Array, *before: Array, ranks: int, number: int, leaves: int, there: Sequence[int]
) -> Array:
    comm = group_named(GROUP, ranks, "share_begin")

    def total() -> Array:
        tree, each = TreeSum(comm, leaves), blocks.shape[2]
        own = [one.reshape(-1) for one in blocks] if tree.blocks(comm.rank, there) else []
        bounds = [rank * each for rank in range(ranks + 1)]
        return tree.reduced_share(own, np.empty(ranks * each, blocks.dtype), there, bounds)

    beside(comm).begin(number, blocks.nbytes, total)
    return np.zeros(1, np.int64)


def _wait(value: Array, *begun: Array, ranks: int, number: int) -> Array:
    return beside(group_of(GROUP, ranks, "wait")).result(number)


def _begin_on_gpu(**attributes: Any) -> None:
    """Nothing: a graph begins a call when what it reads is there."""


def _gather_on_gpu(ranks: int, number: int) -> tuple[NcclCommunicator, Literal["gather"]]:
    return gpus_of(group_of(GROUP, ranks, "gather_wait")), "gather"


def _scatter_on_gpu(ranks: int, number: int) -> tuple[NcclCommunicator, Literal["scatter"]]:
    return gpus_of(group_of(GROUP, ranks, "share_wait")), "scatter"


def _gathered_shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    return (attributes["ranks"], *specs[0].shape)


def _share_shape(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    return specs[0].shape[2:]


def _op(
    name: str, args: tuple[str, ...], formula: str, shapes: Any, dtypes: Any, numpy: Callable[..., Array],
    on_device: Callable[..., Any], *more: str,
) -> Op:  # fmt: skip
    return Op(
        name=name,
        args=args,
        formula=formula,
        kind=OpKind.COLLECTIVE,
        shapes=shapes,
        dtypes=dtypes,
        numpy=numpy,
        vjp=_NO_GRADIENT,
        reference=numpy,
        samples=lambda draw: [],
        attributes=dict.fromkeys(("ranks", "number", *more), REQUIRED),
        on_device=on_device,
    )


gather_begin: Op = _op(
    "_gather_begin",
    ("vector", "*before"),
    "begins to gather all ranks' vectors [n], behind what `before` stands for",
    token_shape,
    token_dtype,
    _gather_begin,
    _begin_on_gpu,
)

gather_wait: Op = _op(
    "_gather_wait",
    ("vector", "*begun"),
    "the vectors of all ranks, [ranks, n], once all else that is given is there",
    _gathered_shape,
    first_dtype,
    _wait,
    _gather_on_gpu,
)

share_begin: Op = _op(
    "_share_begin",
    ("blocks", "*before"),
    "begins the sum of all ranks' blocks [blocks, ranks, n] over the leaves `there` of a tree",
    token_shape,
    token_dtype,
    _share_begin,
    _begin_on_gpu,
    "leaves",
    "there",
)

share_wait: Op = _op(
    "_share_wait",
    ("blocks", "*begun"),
    "this rank's row of the sum that was begun, [n]",
    _share_shape,
    first_dtype,
    _wait,
    _scatter_on_gpu,
)
