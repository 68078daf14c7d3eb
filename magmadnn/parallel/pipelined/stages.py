"""Which layers, and so which nodes of a graph, belong to which stage.

The layers of a model in the order of computation are cut into runs, the stages. A node belongs to the stage
of its layer, or to a later one if something that it is computed from does: values only ever flow to the same
or to later stages. What depends on no layer (targets, weights, sizes) belongs to none, and is computed
wherever it is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.graph.dim import Dim, product
from magmadnn.graph.node import PLACEHOLDER, VARIABLE, Node
from magmadnn.graph.op import Op, OpKind
from magmadnn.layers.layer import Layer, ParameterName

NOWHERE = -1
_ROWS = 32  # of a batch, where costs of layers are compared


def layers_in_order(nodes: Sequence[Node]) -> list[Layer]:
    """The outermost layers, in the order in which `nodes`, inputs before users, reach them with data."""
    fed = depends_on(nodes, [node for node in nodes if node.op is PLACEHOLDER])
    found = {n: layer for n in nodes if (layer := layer_of(n)) is not None}
    with_data = dict.fromkeys(layer for node, layer in found.items() if node in fed)
    return list(dict.fromkeys([*(v for v in found.values() if v not in with_data), *with_data]))


def layer_of(node: Node) -> Layer | None:
    """The outermost layer that a node belongs to."""
    if isinstance(node.name, ParameterName):
        layer = node.name.layer
        while layer._parent is not None:
            layer = layer._parent
        return layer
    return next((part for part in node.path if isinstance(part, Layer)), None)


def cost_of(node: Node) -> float:
    """Roughly what a node takes, forward: operations of products and convolutions, elements of all else."""
    op = node.op
    if not isinstance(op, Op):
        return 0.0
    size = _number(product(node.shape))
    if op.kind is OpKind.CONTRACTION:
        return size * 2 * _number(node.inputs[0].shape[-1] if node.inputs[0].ndim else 1)
    if op.library is not None:
        shapes = [tuple(map(_number, i.shape)) for i in node.inputs]
        return _number(op.library.operations(tuple(map(_number, node.shape)), *shapes))
    if op.kind in (OpKind.POINTWISE, OpKind.REDUCTION):
        return 4 * max(size, *(_number(product(i.shape)) for i in node.inputs), 0)
    return 0.0


def _number(size: Dim | int) -> int:
    return size.bind(dict.fromkeys(size.symbols, _ROWS)) if isinstance(size, Dim) else size


def costs_of_layers(nodes: Sequence[Node], layers: Sequence[Layer]) -> list[float]:
    """What each layer takes, roughly."""
    costs = dict.fromkeys(layers, 0.0)
    for node in nodes:
        if (layer := layer_of(node)) is not None:
            costs[layer] += cost_of(node)
    return [costs[layer] for layer in layers]


def evened(costs: Sequence[float], needed: Sequence[bool], count: int) -> list[int]:
    """Where runs begin, so that the dearest of `count` runs is as cheap as can be, and each has a `needed`.

    By dynamic programming over (runs, end of the last one).

    Returns:
        The beginnings of runs 1, 2, ...
    """
    total = len(costs)
    sums, have = [0.0], [0]
    for cost, need in zip(costs, needed, strict=True):
        sums.append(sums[-1] + cost)
        have.append(have[-1] + need)
    table = {(0, 0): (0.0, 0)}  # (runs, end): dearest run, where the last one begins
    for run in range(1, count + 1):
        for end in range(1, total + 1):
            found = [
                (max(table[run - 1, start][0], sums[end] - sums[start]), -start)
                for start in range(end)
                if (run - 1, start) in table and have[end] > have[start]
            ]
            if found:
                dearest, start = min(found)
                table[run, end] = dearest, -start
    if (count, total) not in table:
        return []
    begins, end = [], total
    for run in range(count, 0, -1):
        end = table[run, end][1]
        begins.append(end)
    return begins[-2::-1]


def begins_of(
    layers: Sequence[Layer], costs: Sequence[float], trained: Collection[Layer], count: int,
    named: Sequence[str] | None,
) -> list[int]:  # fmt: skip
    """Where stages 1, 2, ... begin among `layers`.

    Args:
        layers: in order of computation.
        costs: of each.
        trained: those that have parameters to train.
        count: of stages.
        named: layers with which stages begin, as the user has said; None to choose by cost.

    Raises:
        ArgumentError: if there are more stages than layers with parameters, or one has none.
        UnknownNameError: if there is no such layer.
    """
    has = [layer in trained for layer in layers]
    if sum(has) < count:
        names = ", ".join(layer.label for layer in layers if layer in trained)
        raise ArgumentError(
            f"Pipeline: {count} stages need {count} layers with parameters to train, the model has "
            f"{sum(has)} ({names}): use {max(sum(has), 1)} ranks, or DataParallel"
        )
    if named is None:
        return evened(costs, has, count)
    labels = [layer.label for layer in layers]
    if len(named) != count - 1:
        raise ArgumentError(
            f"Pipeline: stages must name the first layer of each stage but the first, so {count - 1} layers "
            f"for {count} ranks, got {list(named)}"
        )
    for name in named:
        if name not in labels:
            raise UnknownNameError.of("Pipeline: stages: layer", name, labels)
    begins = [labels.index(name) for name in named]
    bounds = [0, *begins, len(layers)]
    for number in range(count):
        first, last = bounds[number], bounds[number + 1]
        if first >= last or not any(has[first:last]):
            raise ArgumentError(
                f"Pipeline: stages={list(named)} leave stage {number} without parameters to train (layers "
                f"{', '.join(labels[first:last]) or 'none'}): name layers in their order, "
                f"{', '.join(labels)}"
            )
    return begins


def stages_of(nodes: Sequence[Node], stage: Mapping[Layer, int]) -> dict[Node, int]:
    """The stage of each node, inputs before users; NOWHERE for what depends on no layer."""
    found: dict[Node, int] = {}
    for node in nodes:
        layer = layer_of(node)
        own = NOWHERE if layer is None else stage.get(layer, NOWHERE)
        if layer is not None and not node.inputs and node.op is not VARIABLE:
            own = NOWHERE  # a constant or a size is wherever it is used
        found[node] = max([own, *(found[i] for i in node.inputs)])
    return found


def depends_on(nodes: Iterable[Node], roots: Collection[Node]) -> set[Node]:
    """Those of `nodes`, inputs before users, that are computed from one of `roots`, and the roots."""
    found = set(roots)
    for node in nodes:
        if any(i in found for i in node.inputs):
            found.add(node)
    return found
