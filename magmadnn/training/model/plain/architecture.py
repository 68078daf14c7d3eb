"""A model's graph as plain data, and back.

The data is a list of entries in order of computation: inputs, calls of layers with the layers' settings,
and ops between layers. Classes are looked up among magmadnn's own and those that the caller hands over;
nothing is imported by name, so loading a description runs no code of a stranger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from magmadnn.errors import CheckpointError, GraphError, quoted
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import (
    CONSTANT,
    PLACEHOLDER,
    SIZE,
    VARIABLE,
    Node,
    constant,
    record,
    size,
    topological,
)
from magmadnn.graph.op import REGISTRY, Op
from magmadnn.layers.layer import Layer, LayerCall, ParameterName
from magmadnn.memory.dtypes import as_dtype
from magmadnn.tensor import Operation, Placeholder, Tensor, Variable, placeholder

from .codec import Custom, decode, encode, note_item

Made = TypeVar("Made")
_LARGEST_CONSTANT = 4096  # elements; more belong into a layer's state


def layer_calls(node: Node) -> tuple[Node, ...]:
    """The inputs of a node, those of the whole layer where a layer made it."""
    return node.origin.inputs if isinstance(node.origin, LayerCall) else node.inputs


def calls_of(outputs: Iterable[Operation]) -> list[Node]:
    """What outputs are made of, in order of computation: results of layers, and of ops between these."""
    return topological([o.node for o in outputs], layer_calls)


def layers_of(nodes: Iterable[Node]) -> list[Layer]:
    """The layers that outputs are made with, in order of computation, each once."""
    calls = [n.origin for n in nodes if isinstance(n.origin, LayerCall)]
    return list(dict.fromkeys(call.layer for call in calls))


def check_parameters(nodes: Iterable[Node], layers: Iterable[Layer]) -> None:
    """Check that parameters belong to the model's layers, or they would not be trained.

    Raises:
        GraphError: naming one that does not.
    """
    known = {parameter.node for layer in layers for parameter in layer.parameters()}
    for node in nodes:
        if isinstance(node.name, ParameterName) and node not in known:
            raise GraphError(
                f"Model: parameter {node.label} is used, but its layer is none of the model's, so it would "
                "not be trained; a layer that is called in a loop (md.scan) belongs into a layer of your "
                "own, which calls md.scan"
            )


def free_variables(nodes: Iterable[Node]) -> list[Variable]:
    """Variables that belong to no layer, in order of computation."""
    found = []
    for node in nodes:
        if node.op is VARIABLE and not isinstance(node.name, ParameterName):
            found.append(_handle(node))
    return found


def _handle(node: Node) -> Variable:
    """The Variable of a node."""
    handle = Variable(node.name, node.value)
    handle.node = node
    return handle


def describe(inputs: Sequence[Placeholder], outputs: Sequence[Operation]) -> dict[str, Any]:
    """The graph from inputs to outputs as JSON data; values of parameters are not in it.

    Raises:
        GraphError: if there is something that has no description.
    """
    nodes = topological([o.node for o in outputs], layer_calls)
    numbers: dict[Node, int] = {}
    layers: dict[Layer, int] = {}
    for node in [p.node for p in inputs] + nodes:
        numbers.setdefault(node, len(numbers))
    ordered = sorted(numbers, key=lambda n: numbers[n])
    # inputs come first whether outputs need them or not
    entries = [_entry(node, numbers, layers) for node in ordered]
    return {
        "entries": entries,
        "inputs": [numbers[p.node] for p in inputs],
        "outputs": [numbers[o.node] for o in outputs],
    }


def _entry(node: Node, numbers: dict[Node, int], layers: dict[Layer, int]) -> dict[str, Any]:
    sources = [numbers[i] for i in layer_calls(node)]
    if isinstance(node.origin, LayerCall):
        layer = node.origin.layer
        if layer in layers:
            return {"layer": layers[layer], "inputs": sources}
        layers[layer] = len(layers)
        return {"layer": encode(layer), "name": layer.label, "inputs": sources}
    if node.op is PLACEHOLDER or node.op is VARIABLE:
        shape = [encode(s) if isinstance(s, Dim) else s for s in node.shape]
        spec = {"name": str(node.name), "shape": shape, "dtype": node.dtype.name}
        return {"input" if node.op is PLACEHOLDER else "variable": spec}
    if node.op is CONSTANT:
        if node.value.size > _LARGEST_CONSTANT:
            raise GraphError(
                f"save: a constant of {node.value.size} elements stands in the graph; "
                "make it a state of a layer, or a md.variable"
            )
        values = node.value.astype(np.float64) if node.dtype.kind not in "iub" else node.value
        flat = [repr(v) for v in values.reshape(-1).tolist()]  # text keeps NaN and infinities
        return {"constant": flat, "shape": list(node.shape), "dtype": node.dtype.name}
    if node.op is SIZE:
        return {"size": encode(node.attributes["dim"]), "dtype": node.dtype.name}
    if isinstance(node.op, Op):
        note_item(node.op)
        attributes = {k: encode(v) for k, v in node.attributes.items()}
        return {"op": node.op.name, "attributes": attributes, "inputs": sources}
    raise GraphError(
        f"save: {node.op.name} stands outside of a layer; put it into a layer's forward"
    )


def build(description: dict[str, Any], custom: Custom) -> tuple[list[Placeholder], list[Operation]]:
    """Inputs and outputs from a description.

    Raises:
        CheckpointError: if it is damaged, or names a layer or op that is neither magmadnn's nor in
            `custom`.
    """
    made: list[Operation] = []
    layers: list[Layer] = []
    try:
        for entry in description["entries"]:
            made.append(_made(entry, made, layers, custom))
        inputs = [_numbered(made, i) for i in description["inputs"]]
        outputs = [_numbered(made, i) for i in description["outputs"]]
    except (KeyError, IndexError, TypeError) as error:
        raise CheckpointError(f"the model's description is damaged: {error!r}") from error
    if not all(isinstance(x, Placeholder) for x in inputs):
        raise CheckpointError("the model's description is damaged: an input is no placeholder")
    return [x for x in inputs if isinstance(x, Placeholder)], outputs


def _made(
    entry: dict[str, Any], made: list[Operation], layers: list[Layer], custom: Custom
) -> Operation:
    sources = [_numbered(made, i) for i in entry.get("inputs", [])]
    if "layer" in entry:
        if isinstance(entry["layer"], int):
            return _numbered(layers, entry["layer"])(*sources)
        layer = decode(entry["layer"], custom)
        if not isinstance(layer, Layer):
            raise CheckpointError("the model's description is damaged: a layer is no layer")
        layer._given = str(entry["name"])
        layers.append(layer)
        return layer(*sources)
    if "input" in entry or "variable" in entry:
        return _leaf(entry)
    if "constant" in entry:
        dtype = as_dtype(entry["dtype"])
        to_number = float if dtype.kind not in "iub" else int
        values = [v == "True" if dtype.kind == "b" else to_number(v) for v in entry["constant"]]
        return Operation(constant(np.array(values, dtype).reshape(entry["shape"])))
    if "size" in entry:
        return Operation(size(decode(entry["size"], custom), entry["dtype"]))
    op = custom.op(entry["op"]) or REGISTRY.get(entry["op"])
    if op is None:
        raise CheckpointError(
            f"the model needs the op {entry['op']!r}; hand it over: load(folder, custom=[{entry['op']}])"
        )
    given: list[Any] = list(sources)
    if op.args[-1].startswith("*"):
        first = len(op.args) - 1
        given = [*sources[:first], sources[first:]]
    operands, attributes = op.bind(
        given, {k: decode(v, custom) for k, v in entry["attributes"].items()}
    )
    return Operation(record(op, [s.node for s in operands], MappingProxyType(attributes)))


def _numbered(values: Sequence[Made], number: Any) -> Made:
    """What was made as this number; Python would count negative ones from the end."""
    if type(number) is not int or not 0 <= number < len(values):
        raise CheckpointError(
            f"the model's description is damaged: {quoted(number)} numbers none of {len(values)}"
        )
    return values[number]


def _leaf(entry: dict[str, Any]) -> Operation:
    spec = entry.get("input") or entry["variable"]
    shape = tuple(decode(s, Custom()) if isinstance(s, dict) else int(s) for s in spec["shape"])
    if "input" in entry:
        return placeholder(spec["name"], shape, spec["dtype"])
    return Variable(spec["name"], Tensor(shape, dtype=spec["dtype"]))
