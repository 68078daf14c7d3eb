"""Which layers' parameters are gathered together, and what of a step needs which of them.

A step visits groups of layers forward, and on the way back, from the one before the last, those whose
parameters are needed there: not the first layer's, as nobody asks for gradients of data. A group is gathered
for each visit. The level of a value is the last visit that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from magmadnn.compiler.formulas import is_contraction
from magmadnn.errors import ArgumentError
from magmadnn.graph import Node
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, topological
from magmadnn.graph.op import Op, OpKind
from magmadnn.layers.layer import Layer
from magmadnn.memory.dtypes import is_floating
from magmadnn.parallel.buckets import size_of
from magmadnn.parallel.pipelined.stages import layer_of, layers_in_order

NEVER = -1  # the level of what needs no parameters


def grouped(nodes: Sequence[Node], parameters: Sequence[Node]) -> list[list[Layer]]:
    """Layers in the order of computation, in groups of as many bytes as the largest layer at most.

    Args:
        nodes: of the loss, inputs before users.
        parameters: that are trained.

    Raises:
        ArgumentError: if a parameter belongs to no layer.
    """
    layers = layers_in_order(nodes)
    sizes = dict.fromkeys(layers, 0)
    for node in parameters:
        layer = layer_of(node)
        if layer is None or layer not in sizes:
            raise ArgumentError(
                f"DataParallel: variable {node.name} belongs to no layer with data, so shard='parameters' "
                "cannot gather it with one: make it a layer's parameter, or use shard='optimiser'"
            )
        sizes[layer] += size_of(node.spec) * node.dtype.itemsize
    largest, held = max(sizes.values()), 0
    groups: list[list[Layer]] = [[]]
    for layer in layers:
        if held and sizes[layer] and held + sizes[layer] > largest:
            groups.append([])
            held = 0
        groups[-1].append(layer)
        held += sizes[layer]
    return groups


class Visits:
    """Visits of a shard's graph.

    Args:
        forward: nodes that are computed forward: of losses, metrics and statistics.
        backward: gradients.
        group_of: the group of each parameter.
        count: of groups.

    Attributes:
        groups: the group of each visit.
        back: the visit of each group on the way back; the one forward, where it is the last or not needed.
        forward: values that are kept for the way back: computed forward, from data.
        level: of each node that depends on data.
        needed: what has to be there before each visit: values of the visit before that are used later.
    """

    def __init__(
        self,
        forward: Sequence[Node],
        backward: Sequence[Node],
        group_of: Mapping[Node, int],
        count: int,
    ) -> None:
        ahead = set(topological(forward))
        order = topological([*forward, *backward])
        fed: set[Node] = (
            set()
        )  # what depends on data or state; all else is computed again on the way back
        self._parameters: dict[Node, frozenset[int]] = {}  # groups that others are computed from
        for node in order:
            is_leaf = node.op is PLACEHOLDER or (node.op is VARIABLE and node not in group_of)
            if is_leaf or any(i in fed for i in node.inputs):
                fed.add(node)
            else:
                own = [group_of[node]] if node in group_of else []
                below = chain.from_iterable(self._parameters[i] for i in node.inputs)
                self._parameters[node] = frozenset([*own, *below])
        kept = (node for node in order if node in fed and node in ahead and node.inputs)
        self.forward = dict.fromkeys(kept)  # for their order
        behind = [node for node in order if node in fed and node not in self.forward]
        read = {i for node in behind for i in node.inputs if i in self._parameters}
        again = frozenset(chain.from_iterable(self._parameters[i] for i in read))
        self.groups = list(range(count))
        self.back = {count - 1: count - 1}
        for group in reversed(range(count - 1)):
            self.back[group] = len(self.groups) if group in again else group
            self.groups += [group] if group in again else []
        self.level: dict[Node, int] = {}
        for node in order:
            if node in fed:
                is_ahead = node in self.forward
                needs = [self._level_of(i, is_ahead) for i in node.inputs]
                self.level[node] = max(needs, default=NEVER)
        self.needed = self._needed(order)

    def _level_of(self, node: Node, is_ahead: bool) -> int:
        """The level of what a node forward, or one on the way back, reads."""
        if node in self.level:
            return self.level[node]
        visits = [g if is_ahead else self.back[g] for g in self._parameters[node]]
        return max(visits, default=NEVER)

    def _needed(self, order: Sequence[Node]) -> list[list[Node]]:
        """What products read, as it is stored anyway, which all that is named here has to be; else all."""
        products: list[dict[Node, None]] = [{} for _ in self.groups]
        others: list[dict[Node, None]] = [{} for _ in self.groups]
        for node in order:
            for value in map(_as_stored, node.inputs):
                level = self.level.get(value, NEVER)
                if value.inputs and NEVER < level < self.level.get(node, NEVER):
                    found = products if is_contraction(node) else others
                    found[level + 1][value] = None
        return [list(some or rest) for some, rest in zip(products, others, strict=True)]


def _as_stored(node: Node) -> Node:
    """What lies in memory of a value: of a view what it sees, of one that is rounded the narrow one."""
    while isinstance(node.op, Op) and len(node.inputs) == 1:
        (operand,) = node.inputs
        widens = node.op.name == "cast" and is_floating(operand.dtype)
        if node.op.kind is not OpKind.MOVEMENT and not (
            widens and operand.dtype.itemsize < node.dtype.itemsize
        ):
            break
        node = operand
    return node
