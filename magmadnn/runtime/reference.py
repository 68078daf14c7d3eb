"""Runs a plan with NumPy, step by step: the reference for every faster way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from magmadnn.compiler.program.call_plan import Plan, Step
from magmadnn.errors import GraphError, NumericError
from magmadnn.graph.body import body_of
from magmadnn.graph.dim import bind_shape, bind_value
from magmadnn.graph.node import (
    CONSTANT,
    PLACEHOLDER,
    Node,
    follows_sizes,
    naming_scope,
    value_for,
)
from magmadnn.graph.op import Array, OpKind
from magmadnn.graph.spec import Spec
from magmadnn.memory.dtypes import is_floating

from .binding import bind
from .variables import is_finite
from .watch import FiniteWatch

Watch = Callable[[Node, Array, Sequence[Array]], None]
_FLOAT64 = np.dtype(np.float64)


def run(
    plan: Plan,
    feeds: Mapping[Node, Any],
    *,
    watch: Watch | None = None,
    guard: bool = False,
    float64: bool = False,
    check: bool = False,
) -> list[Array]:
    """Compute the outputs; then give every updated variable its new value.

    Outputs and new values are arrays of their own: they share no memory with variables, feeds, or each
    other.

    Args:
        plan: what to run.
        feeds: arrays for the placeholders. Others may be among them: their sizes are known then.
        watch: called after each step with the node, its value and its operands.
        guard: look whether outputs and new values are finite before any variable is written.
        float64: compute every floating-point value in float64, to check the others.
        check: compare each value's shape and dtype with its Spec, as the tests do.

    Raises:
        GraphError, ShapeError, DTypeError: if the feeds do not fit.
        NumericError: if `guard` finds NaN or infinity, naming the operation that made it first; every
            variable keeps its value.
    """
    values, leaves = _compute(plan, feeds, watch, float64, check)
    own = _Owner(leaves)
    outputs = [own(values[slot]) for slot in plan.outputs]
    fresh = [(node, own(values[slot])) for node, slot in plan.updates]
    if guard and not all(map(is_finite, [*outputs, *(value for _, value in fresh)])):
        _compute(plan, feeds, FiniteWatch(), float64)  # raises at the first bad step
        raise NumericError("NaN or infinity was fed, or stands in a variable or a constant")
    for node, value in fresh:
        node.value.write(value.astype(node.dtype, copy=False))
    return outputs


def compute(plan: Plan, feeds: Mapping[Node, Any], watch: Watch | None = None) -> None:
    """Compute everything and keep nothing: for the errors that it, or `watch`, raises."""
    _compute(plan, feeds, watch, False)


def _compute(
    plan: Plan, feeds: Mapping[Node, Any], watch: Watch | None, float64: bool, check: bool = False
) -> tuple[list[Any], set[int]]:
    """The slots when all steps are done, and the ids of the leaves' arrays; nothing is written."""
    fed, sizes = bind(plan.program, feeds)
    way = _Way(sizes, watch, float64, check)
    if isinstance(watch, FiniteWatch) and any(s.op.kind is OpKind.COLLECTIVE for s in plan.steps):
        from magmadnn.comm.groups import telling

        with telling():  # one rank finds what is wrong, and all are to know
            return way.compute(plan, fed)
    return way.compute(plan, fed)


@dataclass(frozen=True)
class _Way:
    """How plans are run: `run` says what this means."""

    sizes: Mapping[str, int]
    watch: Watch | None
    float64: bool
    check: bool

    def compute(self, plan: Plan, fed: Mapping[Node, Array]) -> tuple[list[Any], set[int]]:
        """The slots when all steps are done, and the ids of the leaves' arrays."""
        values: list[Any] = [None] * plan.slots
        for slot, node in plan.leaves:
            value = _leaf(node, fed, self.sizes)
            wide = self.float64 and is_floating(value.dtype)
            values[slot] = value.astype(_FLOAT64) if wide else value
        leaves = {id(values[slot]) for slot, _ in plan.leaves}
        for step in plan.steps:
            operands = [values[i] for i in step.inputs]
            found: Any  # an array, or the results of a loop
            if step.body is None:
                found = self._call(step, operands)
            else:
                found = self._loop(step.node, step.body, operands)
            for slot in step.frees:
                values[slot] = None
            values[step.output] = found
        return values, leaves

    def _call(self, step: Step, operands: list[Array]) -> Array:
        """What NumPy gives."""
        value = _call(step, operands, self.sizes, self.float64)
        if self.check and not self.float64:
            _check(step.node, value, self.sizes)
        if self.watch is not None:
            self.watch(step.node, value, operands)
        return value

    def _loop(self, node: Node, plan: Plan, operands: list[Array]) -> list[Array]:
        """All results of a loop."""
        body = body_of(node)
        count, taken = len(body.carried), len(body.carried) + len(body.sliced)
        carried, stacked, same = operands[:count], operands[count:taken], operands[taken:]
        steps = bind_value(node.attributes["length"], self.sizes)
        kept: list[list[Array]] = [[] for _ in body.kept]
        for step in reversed(range(steps)) if node.attributes["reverse"] else range(steps):
            slices = [np.asarray(x[step]) for x in stacked]
            fed = dict(zip(body.inputs, [*carried, *slices, *same], strict=True))
            values, _ = self.compute(plan, fed)
            found = [values[slot] for slot in plan.outputs]
            for values_of, value in zip(kept, [*found[count:], *carried], strict=True):
                values_of.append(value)
            carried = found[:count]
        if node.attributes["reverse"]:
            kept = [values_of[::-1] for values_of in kept]
        pairs = zip(kept, body.kept, strict=True)
        return [*carried, *(self._stacked(values_of, one) for values_of, one in pairs)]

    def _stacked(self, values: list[Array], one: Node) -> Array:
        dtype = _FLOAT64 if self.float64 and is_floating(one.dtype) else one.dtype
        shape = (len(values), *bind_shape(one.shape, self.sizes))
        return np.stack(values) if values else np.empty(shape, dtype)


class _Owner:
    """Gives values away once, as arrays of their own.

    An array without a base has memory of its own, unless it is a leaf (that some op passed through) or
    was given away before.
    """

    def __init__(self, taken: set[int]) -> None:
        self._taken = taken

    def __call__(self, value: Array) -> Array:
        if value.base is not None or id(value) in self._taken:
            return value.copy()
        self._taken.add(id(value))
        return value


def _leaf(node: Node, fed: Mapping[Node, Array], sizes: Mapping[str, int]) -> Array:
    if node.op is CONSTANT:
        value: Array = node.value
        return value
    if follows_sizes(node):
        return value_for(node, sizes)
    return fed[node] if node.op is PLACEHOLDER else node.value.read()


def _call(step: Step, operands: list[Array], sizes: Mapping[str, int], float64: bool) -> Array:
    node, attributes, dtype = step.node, step.node.attributes, step.node.dtype
    if step.symbolic:
        attributes = {k: bind_value(v, sizes) for k, v in attributes.items()}
    # random numbers of another dtype would be other numbers
    wide = float64 and is_floating(dtype)
    if wide and step.op.kind is not OpKind.RANDOM:
        dtype = _FLOAT64
        attributes = {k: _FLOAT64 if _is_float(v) else v for k, v in attributes.items()}
    with naming_scope(node):
        value = step.op.forward(operands, attributes, dtype)
    return value.astype(_FLOAT64, copy=False) if wide else value


def _is_float(value: object) -> bool:
    return isinstance(value, np.dtype) and is_floating(value)


def _check(node: Node, value: Array, sizes: Mapping[str, int]) -> None:
    expected = Spec(bind_shape(node.shape, sizes), node.dtype)
    got = Spec(value.shape, value.dtype)
    if got != expected:
        raise GraphError(f"{node.label} gave {got}, but its op said {expected}")
