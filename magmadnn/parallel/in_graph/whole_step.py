"""The graph of a step: shards of this rank's rows, sums in buckets, the update.

The graph of one shard is there once for each shard of this rank, over its rows of a batch. Their gradients
are added in the order of the tree as far as this rank can; what is left is summed over the ranks in
buckets. Parameters are taken from the last to the first, the order in which gradients become ready, so the
sum of a bucket begins while those of earlier layers are still computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from magmadnn import ops
from magmadnn.comm.communicator import Wire
from magmadnn.graph import Node, Spec
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import (
    PLACEHOLDER,
    VARIABLE,
    Updated,
    constant,
    placeholder,
    rebuild,
    resolve_phase,
    topological,
)
from magmadnn.parallel.buckets import last_apart, size_of
from magmadnn.parallel.tree import TreeSum
from magmadnn.tensor import Operation

from .tree_ops import sum_of_ranks, tree_begin, tree_wait, tree_wait_first

BUCKET_BYTES: Final = 1 << 18
GPU_BUCKET_BYTES: Final = 4 << 20  # of small values; larger ones travel alone, not copied
_WIDEST: Final = 16  # bytes of a store
MOST_NODES: Final = 12_000  # of all shards together; a larger graph would take long to plan


class OnWire(NamedTuple):
    """How values of float32 travel among GPUs.

    Attributes:
        dtype: what they are rounded to before.
        widens: whether GPUs add up values of `dtype` in float32 and keep sums so; else they round each sum.
    """

    dtype: Wire
    widens: bool


@dataclass(frozen=True)
class ShardGraph:
    """What a step computes, in two parts.

    Attributes:
        small: of a shard: what losses and metrics are made of, [n] of float64; elements 1 and 2 are its
            weight and its rows.
        values: of a shard: what is summed.
        plain: the first of these before they were multiplied by the shard's weight,
        mass: which this is.
        sums: a placeholder for each of them in the update.
        total, rows: placeholders in the update: the weight and the rows of the batch.
        counters: variables that a shard counts on, and by how much.
        updates: of variables.
    """

    small: Node
    values: Sequence[Node]
    plain: Sequence[Node]
    mass: Node
    sums: Sequence[Node]
    total: Node
    rows: Node
    counters: Sequence[tuple[Node, int]]
    updates: Sequence[Updated]


@dataclass(frozen=True)
class WholeStep:
    """A step over this rank's rows of a batch.

    Attributes:
        data: the placeholder of all rows for that of a shard.
        outputs: `small` of each block that this rank adds, [blocks, n].
        updates: of variables.
        buckets: bytes of each sum over ranks.
    """

    data: Mapping[Node, Node]
    outputs: Sequence[Node]
    updates: Sequence[Updated]
    buckets: Sequence[int]


def whole_step(
    graph: ShardGraph,
    data: Sequence[Node],
    tree: TreeSum,
    ranks: int,
    bounds: Sequence[int],
    is_on_gpu: bool = False,
    wire: OnWire | None = None,
) -> WholeStep | None:
    """The step of one rank.

    Args:
        graph: of a shard, and the update.
        data: placeholders that have a row for each sample.
        tree: over all shards.
        ranks: how many there are.
        bounds: where the shards of a batch begin; none of them is empty.
        is_on_gpu: whether it runs on a GPU, where sums are of more bytes.
        wire: how float32 travels among GPUs; None for as it is.

    Returns:
        None where rows cannot be cut, or the graph would become too large.
    """
    first, leaves = bounds[tree.first], len(bounds) - 1
    whole = rows_of_rank(data, bounds[tree.last] - first)
    mass = _mass_of_all(graph, whole, ranks, bounds) if is_on_gpu else None
    values = [*graph.values] if mass is None else [*graph.plain, *graph.values[len(graph.plain) :]]
    roots, updates = resolve_phase([graph.small, *values], training=True)
    nodes = topological(roots)
    held = {node for node in nodes if node.op is PLACEHOLDER}
    symbols = {str(node.shape[0]) for node in data if node.ndim and _is_symbol(node.shape[0])}
    others = [size for node in data for size in node.shape[1:] if isinstance(size, Dim)]
    shards = range(tree.first, tree.last)
    if updates or others or len(symbols) != 1 or held - set(data):
        return None
    if len(nodes) * len(shards) > MOST_NODES:
        return None

    def leaf(shard: int) -> list[Operation]:
        rows = slice(bounds[shard] - first, bounds[shard + 1] - first)
        return [Operation(node) for node in rebuild(roots, of_shard(graph, whole, shard, rows))]

    found = tree.own(leaf, range(leaves), added)
    small = ops.stack([one[0] for one in found])
    sums = Sums(ranks, leaves, is_on_gpu, wire=wire)
    if mass is None:
        head = sums.of([[one[0][1:3]] for one in found])[0]
    else:  # so these are known too
        head = Operation(constant(np.array([ranks * mass, bounds[-1]], np.float64)))
    order = range(len(values), 0, -1)
    totals = dict(zip(order, sums.of([[one[k] for k in order] for one in found]), strict=True))
    if mass is not None:
        totals |= {k: totals[k] * mass for k in range(1, len(graph.plain) + 1)}
    instead = {graph.total: head[0].node, graph.rows: head[1].node}
    instead |= {node: totals[k].node for k, node in enumerate(graph.sums, 1)}
    return WholeStep(whole, [small.node], updated(graph, instead, leaves), sums.nbytes)


def _mass_of_all(
    graph: ShardGraph, whole: Mapping[Node, Node], ranks: int, bounds: Sequence[int]
) -> float | None:
    """What each rank's gradients are multiplied by, if it is the same number on all; None else.

    Then sums are multiplied by it, within the update, in place of what is added.
    """
    if ranks == 1 or len(bounds) != ranks + 1 or len({b - a for a, b in pairwise(bounds)}) > 1:
        return None
    (mass,) = rebuild([graph.mass], whole)
    if any(node.op in (PLACEHOLDER, VARIABLE) for node in topological([mass])):
        return None
    found = float(np.asarray(Operation(mass).eval()))
    return found if found > 0 else None


def rows_of_rank(data: Sequence[Node], count: int) -> dict[Node, Node]:
    """Placeholders of so many rows, for those of a shard."""
    return {
        node: placeholder(
            node.attributes.get("name", node.label), Spec((count, *node.shape[1:]), node.dtype)
        )
        for node in data
    }


def of_shard(
    graph: ShardGraph, whole: Mapping[Node, Node], shard: int, rows: slice
) -> dict[Node, Node]:
    """What stands for placeholders and counters in the graph of a shard, which has these rows of a rank's."""
    instead = {node: Operation(one)[rows].node for node, one in whole.items()}
    for node, step in graph.counters:
        more = constant(np.asarray(shard * step, node.dtype))
        instead[node] = (Operation(node) + Operation(more)).node
    return instead


def updated(graph: ShardGraph, instead: Mapping[Node, Node], leaves: int) -> list[Updated]:
    """What a step updates, with sums in place of their placeholders; counters go on by all shards."""
    fresh = rebuild([new for _, new in graph.updates], instead)
    changed = [(target, new) for (target, _), new in zip(graph.updates, fresh, strict=True)]
    counted = [
        (node, (Operation(node) + Operation(constant(np.asarray(leaves * n, node.dtype)))).node)
        for node, n in graph.counters
    ]
    return [*changed, *counted]


def _is_symbol(size: object) -> bool:
    return isinstance(size, Dim) and size.is_symbol


def added(left: list[Operation], right: list[Operation]) -> list[Operation]:
    """The sums of two blocks' values."""
    return [one + other for one, other in zip(left, right, strict=True)]


class Sums:
    """Sums of the blocks of all ranks, some values at a time.

    Args:
        ranks: how many there are.
        leaves: of the tree.
        is_on_gpu: whether they are calls among GPUs, of more bytes.
        there: the leaves that there are; None for all.
        first: the number of the first sum.
        behind: whether sums are waited for behind all that does not need them.
        wire: how float32 travels among GPUs; None for as it is.

    Attributes:
        nbytes: of each sum.
        begun: what begins each.
    """

    def __init__(
        self, ranks: int, leaves: int, is_on_gpu: bool, there: Sequence[int] | None = None, first: int = 0,
        behind: bool = True, wire: OnWire | None = None,
    ) -> None:  # fmt: skip
        self._wire = wire
        self._wait = tree_wait if behind else tree_wait_first
        self._ranks, self._leaves, self._is_on_gpu = ranks, leaves, is_on_gpu
        self._limit = GPU_BUCKET_BYTES if is_on_gpu else BUCKET_BYTES
        self._there, self._first = None if there is None else tuple(there), first
        self.begun: list[Operation] = []
        self._before = Operation(constant(np.zeros(1, np.int64)))
        self.nbytes: list[int] = []

    def of(self, blocks: Sequence[Sequence[Operation]]) -> list[Operation]:
        """The sums of values, from those of each block of this rank; begun bucket after bucket."""
        if self._ranks == 1:
            return list(blocks[0])
        nodes = [value.node for value in blocks[0]]
        if not self._is_on_gpu:
            buckets = _buckets(nodes, self._limit)
        else:
            if self._wire is not None:
                blocks = [[_narrow(value, self._wire.dtype) for value in one] for one in blocks]
            sent = [value.node for value in blocks[0]]
            buckets = _gpu_buckets(sent, [node.dtype for node in nodes], self._limit)
        found: dict[int, Operation] = {}
        for bucket in buckets:
            wide = nodes[bucket[0]].dtype
            sums = self._summed([[one[k] for k in bucket] for one in blocks], wide)
            found |= dict(zip(bucket, sums, strict=True))
        return [found[k] for k in range(len(nodes))]

    def _summed(
        self, blocks: Sequence[Sequence[Operation]], dtype: np.dtype[Any]
    ) -> list[Operation]:
        rows = [_flat(values) for values in blocks]
        stacked = ops.stack(rows) if len(rows) > 1 else ops.reshape(rows[0], (1, rows[0].shape[0]))
        total, at, found = self._total(stacked, dtype), 0, []
        for value in blocks[0]:
            size = size_of(value.node.spec)
            found.append(ops.reshape(total[at : at + size], value.shape))
            at += size
        self.nbytes.append(at * stacked.dtype.itemsize)
        return found

    def _total(self, blocks: Operation, dtype: np.dtype[Any]) -> Operation:
        """The sum of all ranks' blocks."""
        if self._is_on_gpu:
            widens = self._wire is not None and self._wire.widens and dtype != blocks.dtype
            stored = dtype.name if widens else None
            total: Operation = sum_of_ranks(blocks, ranks=self._ranks, dtype=stored)
            self.begun.append(total)
            total = total if total.dtype == dtype else ops.cast(total, dtype)
        else:
            how = {"ranks": self._ranks, "number": self._first + len(self.nbytes)}
            of_tree = {"leaves": self._leaves, "there": self._there}
            self._before = tree_begin(blocks, [self._before], **of_tree, **how)
            self.begun.append(self._before)
            total = self._wait(blocks, self._before, **how)
        return total


def _flat(values: Sequence[Operation]) -> Operation:
    flat = [ops.reshape(value, (size_of(value.node.spec),)) for value in values]
    found: Operation = flat[0] if len(flat) == 1 else ops.concat(flat, axis=0)
    return found


def _narrow(value: Operation, wire: Wire) -> Operation:
    """A value as it travels."""
    found: Operation = ops.cast(value, wire) if value.dtype == np.float32 else value
    return found


def _gpu_buckets(
    values: Sequence[Node], stored: Sequence[np.dtype[Any]], limit: int
) -> list[list[int]]:
    """Numbers of values that travel together: large ones alone, small ones of the same dtypes in buckets."""
    found: list[list[int]] = []
    started: dict[tuple[Any, Any], tuple[list[int], int]] = {}
    for number, node in enumerate(values):
        key = node.dtype, stored[number]
        size = size_of(node.spec) * node.dtype.itemsize
        if size >= limit:
            found.append([number])
            continue
        bucket, before = started.pop(key, ([], 0))
        bucket.append(number)
        if before + size >= limit:
            found.append(bucket)
        else:
            started[key] = bucket, before + size
    for bucket, _ in started.values():
        count = last_apart([size_of(values[k].spec) * values[k].dtype.itemsize for k in bucket])
        found += [bucket[:-count], bucket[-count:]] if count else [bucket]
    for bucket in found:  # others stay where the widest stores may begin
        bucket.sort(key=lambda k: size_of(values[k].spec) * values[k].dtype.itemsize % _WIDEST > 0)
    return found


def _buckets(values: Sequence[Node], limit: int) -> list[list[int]]:
    """Numbers of values that travel together: of one dtype, that follow each other, of some bytes."""
    found: list[list[int]] = []
    size, dtype = 0, None
    for number, node in enumerate(values):
        if not found or node.dtype != dtype or size >= limit:
            found.append([])
            size, dtype = 0, node.dtype
        found[-1].append(number)
        size += size_of(node.spec) * node.dtype.itemsize
    return found
