"""Indices that a run is given, looked at before it: kernels give NaN for one that is out of range.

NumPy raises there. A run without a guard would have to keep the old values of all variables, in case its
kernels meet such an index; where indices are fed, or are views of what is fed, a look at them costs
microseconds instead. So does one at variables that lie on a device, by a kernel there, once until they may
have been written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from magmadnn.graph.body import nodes_inside
from magmadnn.graph.dim import Size, bind_shape, bind_value, substitute
from magmadnn.graph.node import CONSTANT, PLACEHOLDER, VARIABLE, Node
from magmadnn.graph.op import Array, Op, OpKind
from magmadnn.graph.program import Program

from .variables import tensor_of


class Indices:
    """The operands of a program that number places, and how many places each may number.

    Attributes:
        some: whether there are any.
    """

    def __init__(self, program: Program) -> None:
        self._limits = sorted(
            {pair for node in nodes_inside(program) for pair in _limits_of(node)},
            key=lambda pair: (pair[0].name or "", str(pair[1])),
        )
        self.some = bool(self._limits)
        self._sources = [_variable_of(node) for node, _ in self._limits]
        # of variables, constants among whose elements are in range: nothing else has to be looked at
        self._plain: dict[tuple[int, tuple[tuple[str, int], ...]], bool] = {}
        # what was looked at last and found to be in range: variables, their tensors, versions of those
        self._seen: tuple[Mapping[str, int], list[tuple[Node, Any, int]]] | None = None

    def may_be_wrong(
        self, fed: Mapping[Node, Any], sizes: Mapping[str, int], look: Look | None = None
    ) -> bool:
        """Whether one may be out of range: it is, or its values are known to kernels only.

        Args:
            fed: arrays for placeholders.
            sizes: of symbolic dimensions.
            look: looks at what variables hold.
        """
        if look is not None and self._is_as_seen(sizes):
            return False
        unknown = []
        for number, (node, places) in enumerate(self._limits):
            source, limit = self._sources[number], bind_value(places, sizes)
            if look is not None and source is not None and self._is_plain(number, sizes):
                unknown.append((source, limit))
            elif not _all_below(_known(node, fed, sizes), limit):
                return True
        if not unknown or look is None:
            return False
        tensors = [(source, tensor_of(source)) for source, _ in unknown]
        seen = [(n, t, t.memory.version) for n, t in tensors if t.memory.version is not None]
        is_right = look(tuple(unknown), sizes)
        self._seen = (sizes, seen) if is_right and len(seen) == len(self._limits) else None
        return not is_right

    def _is_as_seen(self, sizes: Mapping[str, int]) -> bool:
        """Whether all that is looked at are variables that nobody has written since."""
        if self._seen is None or self._seen[0] != sizes:
            return False
        for node, tensor, version in self._seen[1]:  # in each run: a generator would take longer
            if tensor_of(node) is not tensor or tensor.memory.version != version:
                return False
        return True

    def _is_plain(self, number: int, sizes: Mapping[str, int]) -> bool:
        """Whether an operand is in range if all elements of its variable are."""
        key = number, tuple(sorted(sizes.items()))
        if key not in self._plain:
            (node, places), source = self._limits[number], self._sources[number]
            assert source is not None
            limit = bind_value(places, sizes)
            zeros = np.zeros(bind_shape(source.shape, sizes), np.int64)
            self._plain[key] = _all_below(_known(node, {source: zeros}, sizes), limit)
        return self._plain[key]


# Whether integers in variables are at least 0 and below, for sizes of symbolic dimensions.
Look = Callable[[tuple[tuple[Node, int], ...], Mapping[str, int]], bool]


def _variable_of(node: Node) -> Node | None:
    """The variable whose elements are those of a node, rearranged; None where it is something else."""
    while isinstance(node.op, Op) and node.op.kind is OpKind.MOVEMENT and len(node.inputs) == 1:
        (node,) = node.inputs
    return node if node.op is VARIABLE else None


def _limits_of(node: Node) -> list[tuple[Node, Size]]:
    """The index operands of a node whose kernel would not raise, and the number of places."""
    op = node.op
    if not isinstance(op, Op) or op.decompose is None or not op.integers:
        return []
    places = op.places(*node.inputs, **node.attributes) if op.places else 0  # 0: nobody knows
    pairs = zip(op.args, node.inputs, strict=True)
    return [(operand, places) for name, operand in pairs if name in op.integers]


def _all_below(values: Array | None, limit: int) -> bool:
    if values is None:
        return False
    return not values.size or bool(values.min() >= 0 and values.max() < limit)


def _known(node: Node, fed: Mapping[Node, Any], sizes: Mapping[str, int]) -> Array | None:
    """The value of what is fed or constant, or moved from there; None for all else."""
    if node.op in (PLACEHOLDER, VARIABLE):
        value = fed.get(node)
        return value if isinstance(value, np.ndarray) else None  # or it lies on a GPU
    if node.op is CONSTANT:
        return np.asarray(node.value)
    if not isinstance(node.op, Op) or node.op.kind is not OpKind.MOVEMENT:
        return None
    operands = [_known(i, fed, sizes) for i in node.inputs]
    if any(operand is None for operand in operands):
        return None
    attributes = {k: substitute(v, sizes) for k, v in node.attributes.items()}
    return np.asarray(node.op.numpy(*operands, **attributes))
