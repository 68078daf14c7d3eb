"""The graph of a step cut into groups of layers whose parameters are gathered together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from magmadnn import ops
from magmadnn.errors import ArgumentError
from magmadnn.graph import Node
from magmadnn.graph.node import constant
from magmadnn.layers.layer import Layer
from magmadnn.parallel.buckets import size_of
from magmadnn.parallel.pipelined.programs import Cut
from magmadnn.parallel.pipelined.stages import layer_of, layers_in_order
from magmadnn.tensor import Operation


class LayerCut(Cut):
    """As `Cut`; gradients are those of the mean over a shard, then times what it was divided by.

    So they are rounded as those of `ParallelStep`.
    """

    def _seed(self, loss: Node, mass: Operation) -> Node:
        return constant(np.ones((), loss.dtype))

    def _masked(self, gradients: Sequence[Node]) -> list[Operation]:
        mass = Operation(self._mass)
        is_heavy, found = ops.greater(mass, 0.0), []
        for node in gradients:
            wide = "float64" if node.dtype == np.float64 else "float32"
            g = ops.cast(Operation(node), wide)
            found.append(ops.where(is_heavy, g * ops.cast(mass, g.dtype), 0))
        return found


def grouped(cut: LayerCut) -> list[list[Layer]]:
    """Layers in the order of computation, in groups of as many bytes as the largest layer at most.

    Raises:
        ArgumentError: if a parameter belongs to no layer.
    """
    layers = layers_in_order(cut.nodes)
    sizes = dict.fromkeys(layers, 0)
    for node in cut.parameters:
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
