"""Gradients, Jacobians and Hessian-vector products, as Operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.calls import checked_call
from magmadnn.errors import GraphError, ShapeError
from magmadnn.graph.dim import Dim, product
from magmadnn.graph.node import Node, node_of, resolve_phase
from magmadnn.graph.op import is_number
from magmadnn.graph.signature import shape_text
from magmadnn.graph.transforms.gradient import gradient

from .operation import Operation

Targets = Operation | Sequence[Operation]


@checked_call
def grad(y: Operation, xs: Targets, seed: Any = None, *, training: bool = False) -> Any:
    """dy/dx for one x, or a list of them for several.

    Args:
        y: a scalar; of any shape where `seed` is given.
        xs: variables, placeholders or other Operations; one that y does not depend on gets zeros.
        seed: weights of y's elements, in y's shape: the result is d sum(seed * y) / dx.
        training: differentiate what training computes (dropout, batch statistics).

    Raises:
        GraphError: if y is not a scalar, or an op on the way has no gradient.
    """
    single = isinstance(xs, Operation)
    targets = [xs] if isinstance(xs, Operation) else list(xs)
    weights = None if seed is None else _weights(seed, y)
    found = gradient(
        _node(y, "grad"), [_node(x, "grad") for x in targets], weights, training=training
    )
    results = [Operation(node) for node in found]
    return results[0] if single else results


@checked_call
def jacobian(y: Operation, x: Operation, *, training: bool = False) -> Operation:
    """All dy_i/dx_j: y [p...], x [q...] -> [p..., q...]; one reverse sweep for each element of y.

    Args:
        y: of a shape that is known.
        x: a variable, a placeholder, or a value on the way to y.
        training: whether phases (dropout, batch statistics) are those of training.

    Raises:
        ShapeError: if y has a size that is not known yet.
    """
    count = product(y.shape)
    if isinstance(count, Dim):
        raise ShapeError(f"jacobian: the shape of y must be known, got {shape_text(y.shape)}")
    (node, target), _ = resolve_phase([_node(y, "jacobian"), _node(x, "jacobian")], training)
    if not count:
        raise ShapeError(f"jacobian: y is empty, its shape is {shape_text(y.shape)}")
    flat = ops.reshape(node, (count,))
    rows = [gradient(flat[i], [target])[0] for i in range(count)]
    return Operation(ops.reshape(ops.stack(rows), (*y.shape, *x.shape)))


@checked_call
def hvp(y: Operation, x: Operation, vector: Any, *, training: bool = False) -> Operation:
    """The Hessian of y with respect to x, times a vector of x's shape: the gradient of <dy/dx, vector>.

    Pearlmutter, "Fast exact multiplication by the Hessian", Neural Computation 6 (1994), eq. (5).

    Args:
        y: a scalar.
        x: as for `jacobian`.
        vector: of x's shape.
        training: as for `jacobian`.

    Raises:
        ShapeError: if the vector has another shape than x.
    """
    (node, target), _ = resolve_phase([_node(y, "hvp"), _node(x, "hvp")], training)
    weights = node_of(vector)
    if weights is None or weights.shape != target.shape:
        got = "a number" if weights is None else shape_text(weights.shape)
        raise ShapeError(f"hvp: vector must have the shape {shape_text(x.shape)} of x, got {got}")
    first = gradient(node, [target])[0]
    return Operation(gradient(ops.sum(first * weights), [target])[0])


def _weights(seed: Any, y: Operation) -> Node | None:
    """The seed as a node; a Python number is a scalar in the dtype of y."""
    return node_of(np.asarray(seed, y.dtype) if is_number(seed) else seed)


def _node(value: Any, name: str) -> Node:
    if not isinstance(value, Operation):
        raise GraphError(
            f"{name}: expected an Operation, got {type(value).__name__}; make variables with md.variable"
        )
    return value.node
