"""`scan`: a function of Operations as the body of a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, DTypeError, GraphError, ShapeError
from magmadnn.graph.body import Body, body_of, is_loop, of_step
from magmadnn.graph.dim import Dim, Size
from magmadnn.graph.node import (
    CONSTANT,
    UPDATE,
    Node,
    follows_sizes,
    node_of,
    scope,
    topological,
)
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.signature import is_integer, shape_text
from magmadnn.graph.spec import Spec
from magmadnn.ops.repeated.loops import check_step, loop, result

from .operation import Operation

Values = Any  # an Operation, or several in a tuple or list


@checked_call
def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    carried: Values,
    inputs: Values = (),
    *,
    length: Any = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """A loop: `carried, outputs[t] = body(carried, inputs[t])` for t = 0, ..., length - 1.

    The body is called once, with Operations that stand for the values of any step; what it computes is
    planned once, whatever the length. Values from outside that it uses, such as weights, are the same in all
    steps; what depends on them alone is computed once, before the loop.

    Args:
        body: takes what is carried into a step, and the slices of that step, each in the form in which they
            are given here; gives a pair: what is carried on, in the same form, shapes and dtypes, and what
            is kept of the step (an Operation, several, or `()`).
        carried: what the first step takes: an Operation or array, or a tuple of them.
        inputs: an Operation or array, or a tuple of them, [length, ...] each: step t takes `inputs[t]`.
        length: how many steps; needed where there are no inputs. An int, or a symbolic dimension.
        reverse: whether the last slice comes first. Outputs stand where their slices do.

    Returns:
        carried: what the last step gave, in the form in which it was given; what was given, for length 0.
        outputs: for each output of a step all of them, [length, ...].

    Raises:
        ArgumentError: if there is neither an input nor a length, or the body gives something else.
        ShapeError, DTypeError: if inputs have different lengths, or a step gives a carried value another
            shape or dtype than it takes.
        GraphError: if the body updates a variable, or draws the same random numbers in each step.
    """
    begin, stacked = _nodes("carried", carried), _nodes("inputs", inputs)
    steps = _length(stacked, length)
    _check_body(body)
    mark = _Mark()
    with scope(mark):
        before = [of_step(f"carried[{k}]", n.spec) for k, n in enumerate(begin)]
        slices = [
            of_step(f"inputs[{k}]", Spec(n.shape[1:], n.dtype)) for k, n in enumerate(stacked)
        ]
        returned = body(_in_form(carried, before), _in_form(inputs, slices))
    new, outputs = _parts(returned, len(begin))
    found, captured = _captured(mark, (*before, *slices), (*new, *outputs))
    made = Body(tuple(before), tuple(slices), tuple(captured), (), ()).over(found)
    check_step(made)
    node = loop(made, (*begin, *stacked, *captured.values()), steps, reverse)
    results = [result(node, k) for k in range(len(begin) + len(outputs))]
    return (
        _in_form(carried, results[: len(begin)]),
        _in_form(returned[1], results[len(begin) :]),
    )


def _check_body(body: Any) -> None:
    """Check that a body can be called with what is carried, and the slices."""
    try:
        signature(body).bind(None, None)
    except (TypeError, ValueError):
        raise ArgumentError(
            "scan: the body must be a function of two arguments, what is carried and the slices of a step "
            f"(() where there are no inputs), got {body!r}"
        ) from None


class _Mark:
    """The scope of one loop: nodes that have it in their path were made by its body."""

    def __str__(self) -> str:
        return "scan"


def _nodes(what: str, values: Values) -> list[Node]:
    """The nodes of Operations, arrays and numbers."""
    listed = values if isinstance(values, (tuple, list)) else [values]
    return [_node(what, value) for value in listed]


def _node(what: str, value: Any) -> Node:
    try:
        node = node_of(value)
    except DTypeError:
        raise DTypeError(
            f"scan: {what}: expected an Operation or an array of numbers, or several in a tuple, got "
            f"{type(value).__name__}; () is none"
        ) from None
    if node is None:
        raise ArgumentError(
            f"scan: {what}: {value!r} has no dtype; give an array, for instance np.float32({value!r})"
        )
    return node


def _in_form(given: Values, nodes: Sequence[Node]) -> Any:
    """Operations, one or several, as in `given`."""
    made = tuple(map(Operation, nodes))
    return made if isinstance(given, (tuple, list)) else made[0]


def _length(stacked: Sequence[Node], length: Any) -> Size:
    if (
        length is not None
        and not isinstance(length, Dim)
        and not (is_integer(length) and length >= 0)
    ):
        raise ArgumentError(f"scan: length must be an integer of at least 0, got {length!r}")
    if length is None and not stacked:
        raise ArgumentError("scan: there are no inputs to count the steps of; give length=")
    found: Size | None = length
    for number, node in enumerate(stacked):
        if not node.shape:
            raise ShapeError(f"scan: inputs[{number}] is a number, expected steps along axis 0")
        if found is not None and node.shape[0] != found:
            other = "length is" if length is not None else "inputs[0] has"
            raise ShapeError(
                f"scan: axis 0 (steps) of inputs[{number}] {shape_text(node.shape)} is {node.shape[0]}, "
                f"but {other} {found}; make them equal"
            )
        found = node.shape[0]
    assert found is not None
    return found if isinstance(found, Dim) else int(found)


def _parts(returned: Any, count: int) -> tuple[list[Node], list[Node]]:
    """What a body gave: carried values, and outputs."""
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise ArgumentError(
            "scan: the body must return a pair: what is carried on, and what is kept of the step "
            f"(() for nothing), got {type(returned).__name__}"
        )
    new, outputs = _nodes("the body carries on", returned[0]), _nodes("the body keeps", returned[1])
    if len(new) != count:
        raise ArgumentError(
            f"scan: the body takes {count} carried values, but carries on {len(new)}; "
            "return them in the same form, then the outputs: (carried, outputs)"
        )
    return new, outputs


def _captured(
    mark: _Mark, inputs: Sequence[Node], roots: Sequence[Node]
) -> tuple[list[Node], dict[Node, Node]]:
    """The roots over placeholders for what comes from outside, and these, by the placeholder."""
    order = topological(roots)
    own = [node for node in order if mark in node.path]
    varying = _varying(order, set(inputs))
    _check_effects(own, varying)
    new: dict[Node, Node] = {}
    outside: dict[Node, Node] = {}
    for node in order:
        if node in varying:
            operands = tuple(_inside(i, new, outside) for i in node.inputs)
            new[node] = replace(node, inputs=operands, origin=None) if node.inputs else node
    return [_inside(root, new, outside) for root in roots], outside


def _inside(node: Node, new: dict[Node, Node], outside: dict[Node, Node]) -> Node:
    """What stands in the body for a node: a placeholder, where it is the same in all steps."""
    if node.op is CONSTANT or follows_sizes(node):
        return node
    if node not in new:
        new[node] = of_step(node.label, node.spec)
        outside[new[node]] = node
    return new[node]


def _varying(order: Iterable[Node], inputs: set[Node]) -> set[Node]:
    """The nodes that depend on `inputs`."""
    found = set(inputs)
    for node in order:
        if any(i in found for i in node.inputs):
            found.add(node)
    return found


def _check_effects(own: Sequence[Node], varying: set[Node]) -> None:
    """Refuse what a body may not do: change a variable, or draw the same numbers again and again."""
    for node in own:
        where = f" (in {node.scope})" if node.scope else ""
        if node.op is UPDATE:
            raise GraphError(
                f"scan: the body gives {node.inputs[1].label} a new value, which a loop cannot{where}; "
                "carry the value instead, and update the variable with what the last step gave"
            )
        if not all(_draws_anew(node, varying)):
            raise GraphError(
                f"scan: {node.label} in the body draws the same numbers in each step{where}; carry a "
                "counter and draw with it, or draw outside of the body for the same numbers in all steps"
            )


def _draws_anew(node: Node, varying: set[Node]) -> Iterable[bool]:
    """Of each draw of a node, and of those in its body, whether its counter is among `varying`."""
    if isinstance(node.op, Op) and node.op.kind is OpKind.RANDOM:
        yield node in varying
    if is_loop(node):
        body = body_of(node)
        changing = {p for p, x in zip(body.inputs, node.inputs, strict=True) if x in varying}
        order = body.program.nodes()
        for _ in body.carried:  # what one step changes, the next one takes
            inside = _varying(order, changing)
            pairs = zip(body.carried, body.new, strict=True)
            changing |= {p for p, after in pairs if after in inside}
        inside = _varying(order, changing)
        for one in order:
            yield from _draws_anew(one, inside)
