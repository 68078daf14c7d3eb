"""Fewer and shorter calls among ranks, of the same values.

`parts_first`: where ranks need parts of what they all have, they get parts: a sum of which each rank takes
its part is a call by which each gets its part of the sum, and what lies between is computed of parts.
`narrower`: what was rounded to halves travels so. `in_buckets`: sums that nothing waits for but updates
travel together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from magmadnn import ops
from magmadnn.graph.node import Node, naming_scope, record, scoped, topological
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.placing import Shard, axes_of, local_shape
from magmadnn.graph.placing.placement import is_divisible
from magmadnn.graph.program import Program
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops.ranks.leading_axis import among_ranks
from magmadnn.parallel.buckets import last_apart, size_of

BUCKET_BYTES: Final = 4 << 20  # of small sums, as of `DataParallel`; larger ones travel alone
_PASSED = (OpKind.POINTWISE, OpKind.MOVEMENT)
_SHORTENED = (OpKind.CONTRACTION, OpKind.REDUCTION)  # of parts they take a part of the time


def narrower(node: Node) -> Node | None:
    """The value of fewer bytes that a value was cast from, moved alike; None where there is none."""
    if not isinstance(node.op, Op) or not node.inputs:
        return None
    x = node.inputs[0]
    if node.op is ops.cast:
        widens = is_floating(x.dtype) and is_floating(node.dtype)
        return x if widens and x.dtype.itemsize < node.dtype.itemsize else None
    if node.op.kind is not OpKind.MOVEMENT or len(node.inputs) != 1:
        return None
    narrow = narrower(x)
    if narrow is None:
        return None
    with naming_scope(node), scoped(node.path):
        return record(node.op, [narrow], node.attributes)


def parts_first(program: Program) -> Program:
    """The same program, in which ranks take parts of values before they compute and add up."""
    users = Counter(i for node in program.nodes() for i in node.inputs)
    users.update(program.roots)
    new: dict[Node, Node] = {}
    for node in program.nodes():
        if node.op is ops.own_part:
            found = _own(node.inputs[0], node.attributes, users)
            if found is not None:
                new[node] = found
    return program.with_roots(rebuilt(program.roots, new)) if new else program


def _own(node: Node, given: Mapping[str, Any], users: Counter[Node]) -> Node | None:
    """A rank's part of a value that nobody needs whole, with less work; None where that is none."""
    op, axis = node.op, given["axis"]
    if users[node] != 1 or not isinstance(op, Op):
        return None
    if op is ops.all_reduce:
        if node.attributes["op"] != "sum" or node.attributes["group"] != given["group"]:
            return None
        both = {k: given[k] for k in ("group", "ranks", "axis")}
        with naming_scope(node), scoped(node.path):
            wire = node.attributes["wire"]
            return record(ops.reduce_scatter, [node.inputs[0]], {**both, "wire": wire})
    axes = axes_of(op, [i.spec for i in node.inputs], node.attributes)
    if (
        op.kind not in (*_PASSED, *_SHORTENED)
        or axes is None
        or (name := axes.result[axis]) is None
    ):
        return None
    parts, less = [], op.kind in _SHORTENED
    for operand, names in zip(node.inputs, axes.operands, strict=True):
        if name not in names:
            parts.append(operand)
            continue
        at = {**given, "axis": names.index(name)}
        if not is_divisible(operand.shape[at["axis"]], given["ranks"]):
            return None
        found = _own(operand, at, users)
        less = less or found is not None
        parts.append(_part(operand, at) if found is None else found)
    if not less:
        return None
    shape = local_shape(node.shape, Shard(axis), given["ranks"])
    kept = axes.attributes(node.attributes, name, shape)
    spec = op.infer([i.spec for i in parts], kept)
    return replace(node, inputs=tuple(parts), spec=spec, attributes=kept, origin=None)


def _part(node: Node, given: Mapping[str, Any]) -> Node:
    narrow = narrower(node)
    part = record(ops.own_part, [node if narrow is None else narrow], given)
    return part if narrow is None else record(ops.cast, [part], {"dtype": node.dtype})


def rebuilt(roots: Sequence[Node], instead: Mapping[Node, Node]) -> list[Node]:
    """Roots in which nodes are replaced by others, that may use further nodes to be replaced."""
    new: dict[Node, Node] = {}

    def made(root: Node) -> Node:
        for node in topological([root]):
            if node in new:
                continue
            other = instead.get(node)
            if other is not None:
                new[node] = made(other)
                continue
            inputs = tuple(new[i] for i in node.inputs)
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            new[node] = node if same else replace(node, inputs=inputs, origin=None)
        return new[root]

    return [made(root) for root in roots]


def in_buckets(program: Program, limit: int = BUCKET_BYTES) -> Program:
    """The same program, in which sums among GPUs that no other call waits for travel in buckets.

    Args:
        program: of a rank, with collectives as GPUs have them (`with_leading_axis`).
        limit: bytes; a bucket is full that has as many, and a longer sum travels alone. What is ready last
            may travel without the others of its bucket: see `last_apart`.
    """
    calls = [node for node in program.nodes() if node.op is among_ranks]
    before = set(topological([i for call in calls for i in call.inputs]))
    late = [
        node
        for _, value in reversed(program.updates)
        for node in reversed(topological([value]))
        if node in calls and node not in before and node.attributes["kind"] == "sum"
    ]
    buckets: list[list[Node]] = []
    for node in dict.fromkeys(late):
        last = buckets[-1] if buckets else []
        if last and _alike(last[0], node) and _bytes(last) < limit and _bytes([node]) < limit:
            last.append(node)
        else:
            buckets.append([node])
    last = buckets[-1] if buckets and len(buckets[-1]) > 1 else []
    if count := last_apart([_bytes([node]) for node in last]):
        buckets[-1:] = [last[:-count], last[-count:]]
    new: dict[Node, Node] = {}
    for bucket in buckets:
        if len(bucket) > 1:
            new |= _together(bucket)
    return program.with_roots(rebuilt(program.roots, new)) if new else program


def _alike(one: Node, other: Node) -> bool:
    return one.attributes == other.attributes and one.inputs[0].dtype == other.inputs[0].dtype


def _bytes(bucket: Sequence[Node]) -> int:
    return sum(size_of(node.inputs[0].spec) * node.inputs[0].dtype.itemsize for node in bucket)


def _together(bucket: Sequence[Node]) -> dict[Node, Node]:
    """One call for the sums of a bucket."""
    flat = [ops.reshape(node.inputs[0], (size_of(node.spec),)) for node in bucket]
    total: Any = record(among_ranks, [ops.concat(flat, axis=0)], bucket[0].attributes)
    found, at = {}, 0
    for node in bucket:
        size = size_of(node.spec)
        one: Any = ops.reshape(ops.getitem(total, (slice(at, at + size),)), node.shape)
        found[node] = getattr(one, "node", one)
        at += size
    return found
