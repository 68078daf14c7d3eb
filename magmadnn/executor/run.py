"""Runs a plan with NumPy, step by step: the reference for every faster way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn.compiler.plan import Plan, Step
from magmadnn.errors import DTypeError, GraphError, MagmaDNNError, NumericError, ShapeError
from magmadnn.graph.dim import Dim, substitute
from magmadnn.graph.node import CONSTANT, PLACEHOLDER, SIZE, Node
from magmadnn.graph.op import Array
from magmadnn.graph.signature import shape_text
from magmadnn.graph.spec import is_floating

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
) -> list[Array]:
    """Compute the outputs; then give every updated variable its new value.

    Args:
        plan: what to run.
        feeds: arrays for the placeholders.
        watch: called after each step with the node, its value and its operands.
        guard: look whether all outputs and new values are finite before anything is written.
        float64: compute every floating-point value in float64, to check the others.

    Raises:
        GraphError, ShapeError, DTypeError: if the feeds do not fit.
        NumericError: if `guard` finds NaN or infinity, naming the step that made it first; every
            variable keeps its value.
    """
    fed, sizes = bind(plan.placeholders, feeds)
    values = _compute(plan, fed, sizes, watch, float64)
    outputs = [_own(values[slot], slot, plan) for slot in plan.outputs]
    fresh = [(node, _own(values[slot], slot, plan)) for node, slot in plan.updates]
    if guard and not all(map(_finite, [*outputs, *(value for _, value in fresh)])):
        _compute(plan, fed, sizes, FiniteWatch(), float64)
        raise NumericError(
            "an output or a new value of a variable is NaN or infinite, and so was what it came from"
        )
    for node, value in fresh:
        node.value.write(value.astype(node.dtype, copy=False))
    return outputs


def _compute(
    plan: Plan,
    fed: Mapping[Node, Array],
    sizes: Mapping[str, int],
    watch: Watch | None,
    float64: bool,
) -> list[Any]:
    """The values in all slots at the end."""
    values: list[Any] = [None] * plan.slots
    for slot, node in plan.leaves:
        value = _leaf(node, fed, sizes)
        values[slot] = value.astype(_FLOAT64) if float64 and is_floating(value.dtype) else value
    for step in plan.steps:
        operands = [values[i] for i in step.inputs]
        value = _call(step, operands, sizes, float64)
        for slot in step.frees:
            values[slot] = None
        values[step.output] = value
        if watch is not None:
            watch(step.node, value, operands)
    return values


def _finite(value: Array) -> bool:
    return not is_floating(value.dtype) or bool(np.isfinite(value).all())


def _own(value: Array, slot: int, plan: Plan) -> Array:
    """The value, copied where it might lie in the memory of a variable or of a feed."""
    return value if value.base is None and slot >= len(plan.leaves) else value.copy()


def _leaf(node: Node, fed: Mapping[Node, Array], sizes: Mapping[str, int]) -> Array:
    if node.op is CONSTANT:
        value: Array = node.value
        return value
    if node.op is SIZE:
        return np.asarray(node.attributes["dim"].bind(sizes), node.dtype)
    return fed[node] if node.op is PLACEHOLDER else node.value.read()


def _call(step: Step, operands: list[Array], sizes: Mapping[str, int], float64: bool) -> Array:
    node, attributes = step.node, step.node.attributes
    dtype = node.dtype
    if step.symbolic:
        attributes = {k: substitute(v, sizes) for k, v in attributes.items()}
    if float64 and is_floating(dtype):
        dtype = _FLOAT64
        attributes = {k: _FLOAT64 if _is_float(v) else v for k, v in attributes.items()}
    try:
        return step.op.forward(operands, attributes, dtype)
    except MagmaDNNError as error:
        if not node.scope:
            raise
        raise type(error)(f"{error} (in {node.scope})") from error


def _is_float(value: object) -> bool:
    return isinstance(value, np.dtype) and is_floating(value)


def bind(
    placeholders: Sequence[Node], feeds: Mapping[Node, Any]
) -> tuple[dict[Node, Array], dict[str, int]]:
    """The fed arrays in their placeholders' dtypes, and the sizes of symbolic dimensions.

    Raises:
        GraphError: if a placeholder is not fed.
        ShapeError: if an axis has another size than declared, or than another feed gave it.
        DTypeError: if the dtype cannot be converted without changing its kind.
    """
    fed: dict[Node, Array] = {}
    sizes: dict[str, int] = {}
    givers: dict[str, str] = {}
    for node in placeholders:
        if node not in feeds:
            raise GraphError(f"placeholder {node.name} is not fed: give {{{node.name}: array}}")
        array = np.asarray(feeds[node])
        if not np.can_cast(array.dtype, node.dtype, "same_kind"):
            raise DTypeError(
                f"placeholder {node.name}: expected {node.dtype.name}, got {array.dtype.name}; cast it"
            )
        _check_shape(node, array, sizes, givers)
        fed[node] = array.astype(node.dtype, copy=False)
    return fed, sizes


def _check_shape(node: Node, array: Array, sizes: dict[str, int], givers: dict[str, str]) -> None:
    if array.ndim != node.ndim:
        raise ShapeError(
            f"placeholder {node.name}: expected {node.ndim} axes {shape_text(node.shape)}, "
            f"got {array.ndim} {shape_text(array.shape)}"
        )
    for axis, (expected, got) in enumerate(zip(node.shape, array.shape, strict=True)):
        if not isinstance(expected, Dim):
            if expected != got:
                raise ShapeError(
                    f"placeholder {node.name}: axis {axis} must be {expected}, got {got}: "
                    f"expected {shape_text(node.shape)}, got {shape_text(array.shape)}"
                )
            continue
        symbol = str(expected)
        if sizes.setdefault(symbol, got) != got:
            raise ShapeError(
                f"placeholder {node.name}: axis {axis} ({symbol}) is {got}, "
                f"but {sizes[symbol]} in {givers[symbol]}; make them equal"
            )
        givers.setdefault(symbol, node.label)
