"""Loops: a body that runs once for each step, with values that are carried from step to step.

The gradient of a loop is a loop through the same steps the other way round. It reads what was carried into
each step, and long products in it, which the loop keeps if it is asked for, computes the rest anew, and
carries the gradients of what was carried and sums of those of what is the same in all steps. So it is a graph
of the same ops, and the gradient of a gradient needs no further rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.errors import DTypeError, GraphError, ShapeError
from magmadnn.graph.body import Body, of_step
from magmadnn.graph.dim import Shape, Size
from magmadnn.graph.node import Node, rebuild, record, topological
from magmadnn.graph.op import Array, NoGradient, Op, OpKind
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.gradient import adjoints, stabilised, zeros
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops.arithmetic import add

from ._saved import worth_saving


def _no_arrays(*operands: Any, **attributes: Any) -> Array:
    raise GraphError("scan: a loop is run by an executor, not by a function on arrays")


def _shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    """A loop has no value of its own, only results; its operands must be what its body takes."""
    expected = attributes["body"].operand_specs(attributes["length"])
    for number, (spec, wanted) in enumerate(zip(specs, expected, strict=True)):
        if spec != wanted:
            raise ShapeError(f"scan: operand {number} must be {wanted}, got {spec}")
    return ()


def _truth(words: OpWords, dtypes: Sequence[Any], attributes: Attributes) -> np.dtype[Any]:
    return np.dtype(np.bool_)


def _vjp(
    g: Mapping[int, Node], node: Node, *operands: Node, body: Body, length: Size, reverse: bool
) -> tuple[Node | None, ...]:
    """Gradients of the operands, by a loop the other way round.

    Args:
        g: the gradient of each result that has one, by its number.
        node: the loop.
        operands: its operands.
        body: what it does in a step.
        length: how many steps.
        reverse: whether the last step comes first.
    """
    count = len(body.carried)
    moving = [n for n in body.carried if is_floating(n.dtype)]
    summed = [n for n in body.captured if is_floating(n.dtype)]
    sent = {n: of_step(f"gradient of {n.label}", n.spec) for n in moving}
    sums = {n: of_step(f"sum for {n.label}", n.spec) for n in summed}
    kept = {k: body.kept[k - count] for k in g if k >= count}
    slices = {k: of_step(f"gradient of {n.label}", n.spec) for k, n in kept.items()}
    numbers = [body.carried.index(n) for n in moving]
    seeds = _seeds(
        [(body.new[k], sent[n]) for k, n in zip(numbers, moving, strict=True)]
        + [(n, slices[k]) for k, n in kept.items()]
    )
    own = [n for n in body.sliced if is_floating(n.dtype)]
    targets = [*moving, *summed, *own]
    parts = dict(zip(targets, adjoints(seeds, targets), strict=True))
    found = {n: zeros(n.spec) if part is None else part for n, part in parts.items()}
    new = [found[n] for n in moving]
    new += [sums[n] if parts[n] is None else add(sums[n], found[n]) for n in summed]
    saved = {n: of_step(f"saved {n.label}", n.spec) for n in body.saved}
    backward = Body(
        (*sent.values(), *sums.values()),
        (*saved.values(), *body.carried, *body.sliced, *slices.values()),
        body.captured,
        (),
        (),
    ).over(rebuild([*new, *(found[n] for n in own)], saved))
    stored = [result(node, count + len(body.outputs) + k) for k in range(len(saved) + count)]
    begin = [g[k] if k in g else zeros(body.carried[k].spec) for k in numbers]
    stacked = [*stored, *operands[count : count + len(body.sliced)], *(g[k] for k in kept)]
    same = operands[count + len(body.sliced) :]
    begin += [zeros(n.spec) for n in summed]
    back = loop(backward, (*begin, *stacked, *same), length, not reverse)
    places = {n: k for k, n in enumerate((*moving, *summed, *own))}
    return tuple(result(back, places[n]) if n in places else None for n in body.inputs)


def _seeds(pairs: Sequence[tuple[Node, Node]]) -> dict[Node, Node]:
    """Values of a step, in forms that keep their digits, with the sums of what weighs them."""
    stable = stabilised([value for value, _ in pairs])
    found: dict[Node, Node] = {}
    for value, weight in pairs:
        y = stable[value]
        found[y] = add(found[y], weight) if y in found else weight
    return found


SCAN = Op(
    name="_scan",
    args=("*operands",),
    formula="carried, output = body(carried, slice), once for each step",
    kind=OpKind.LOOP,
    shapes=_shapes,
    dtypes=_truth,
    numpy=_no_arrays,
    vjp=_vjp,
    reference=_no_arrays,
    samples=lambda draw: [],
    attributes={"body": None, "length": 0, "reverse": False},
)

RESULT = Op(
    name="_scan_result",
    args=("loop",),
    formula="a result of a loop",
    kind=OpKind.RESULT,
    shapes=lambda words, specs, attributes: attributes["shape"],
    dtypes=lambda words, dtypes, attributes: attributes["dtype"],
    numpy=lambda results, index, shape, dtype: results[index],
    vjp=NoGradient("the sweep hands it on to the loop"),
    reference=_no_arrays,
    samples=lambda draw: [],
    attributes={"index": 0, "shape": (), "dtype": None},
)


def loop(body: Body, operands: Sequence[Node], length: Size, reverse: bool) -> Node:
    """The node of a loop, without operands that its body does not look at; `result` gives its values."""
    used = set(topological(body.program.outputs))
    count = len(body.carried)
    pairs = list(zip(body.inputs, operands, strict=True))
    taken = [(p, x) for k, (p, x) in enumerate(pairs) if k < count or p in used]
    sliced = tuple(p for p in body.sliced if p in used)
    captured = tuple(p for p in body.captured if p in used)
    saved = worth_saving((*body.new, *body.outputs))
    slim = Body(body.carried, sliced, captured, body.new, body.outputs, saved)
    attributes = {"body": slim, "length": length, "reverse": reverse}
    return record(SCAN, [x for _, x in taken], attributes)


def result(node: Node, index: int) -> Node:
    """A result of a loop, by its number: carried values, outputs of all steps, carried values before all."""
    spec = node.attributes["body"].spec(index, node.attributes["length"])
    return record(RESULT, [node], {"index": index, "shape": spec.shape, "dtype": spec.dtype})


def check_step(body: Body) -> None:
    """Check that what is carried out of a step is what is carried into it.

    Raises:
        ShapeError, DTypeError: naming the value.
    """
    for before, after in zip(body.carried, body.new, strict=True):
        where = f"scan: {before.label} begins as {before.spec}, but the body gives {after.spec}"
        if before.shape != after.shape:
            raise ShapeError(f"{where}; every step must give the shape that it takes: reshape it")
        if before.dtype != after.dtype:
            raise DTypeError(f"{where}; cast it, or begin with {after.dtype.name}")
