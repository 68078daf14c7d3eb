"""Which steps a cluster of blocks can run, and where a plan tells of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.compiler.cuda.clusters.dense_chain import BLOCKS, MOST_BATCH
from magmadnn.compiler.cuda.clusters.warpgroup_kernel import kernel_of
from magmadnn.graph.node import Node
from magmadnn.runtime.cuda.running.runner import CudaRunner

from .chain_matching import Found, Matching, OtherError
from .leg import Wanted

_LEAST_BATCH = 17  # more than columns: what has rows of the batch is told by sizes
_CAPABILITY = 90  # of devices where clusters were measured beside stacks
_BATCH = "batch"


def chain_of(wanted: Wanted) -> Found | None:
    """The chain that a leg's step is; None where it is none, or clusters are not for the device."""
    data = {node: array.dtype for node, array in wanted.data.items()}
    return _chain(wanted.runner, data, wanted.settings, wanted.sizes, wanted.batch_size)


def text_of_many(runner: CudaRunner, sizes: Mapping[str, int]) -> str:
    """A line that tells where each of many models has a cluster; empty where none has."""
    if set(sizes) != {_BATCH} or runner.instance(sizes).items.small:
        return ""
    nodes = runner.plan.placeholders
    data = {node: node.dtype for node in nodes if node.shape and not isinstance(node.shape[0], int)}
    found = _chain(runner, data, [n for n in nodes if n not in data], sizes, sizes[_BATCH])
    if found is None:
        return ""
    kernel = kernel_of(found.chain, runner.engine.capability, runner.engine.shared_bytes)
    shared = f"{kernel.threads} threads, {kernel.shared_bytes} bytes shared"
    return f"# of several models in one call each has a cluster: {BLOCKS} blocks of {shared}"


def _chain(
    runner: CudaRunner, data: Mapping[Node, np.dtype[Any]], settings: Sequence[Node],
    sizes: Mapping[str, int], batch: int,
) -> Found | None:  # fmt: skip
    engine = runner.engine
    if engine.capability != _CAPABILITY or not runner.tensor_float:
        return None
    if not _LEAST_BATCH <= batch <= MOST_BATCH or sizes.get(_BATCH, batch) != batch:
        return None
    try:
        found = Matching(runner.plan, data, settings, sizes, batch).found()
    except OtherError:
        return None
    return found if found.chain.shared_bytes <= engine.shared_bytes else None
