"""From a loss to the graph of one step: gradients, the parts in turn, and the new values.

float16 and bfloat16 parameters are updated in float32: their gradients and values are cast up, the slots
are float32, and only the result is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.backends.cpu.forks import cached_property
from magmadnn.errors import ArgumentError, DTypeError, GraphError, ShapeError
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import (
    VARIABLE,
    Updated,
    resolve_phase,
    scope,
    scoped,
    scopes,
    topological,
)
from magmadnn.graph.op import Array
from magmadnn.graph.signature import shape_text
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory.dtypes import is_floating
from magmadnn.optim.inputs import Scalar, distinct
from magmadnn.optim.parts import Transform
from magmadnn.tensor import Operation, Tensor, Variable

from .accumulation import Accumulation
from .alike import Known
from .loss_scaling import LossScale

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def node_of_loss(where: str, loss: Any) -> Node:
    """The node of a loss that can be minimised.

    Raises:
        GraphError, ShapeError, DTypeError: if it is no Operation, no scalar, or no floating-point value.
    """
    if not isinstance(loss, Operation):
        raise GraphError(f"{where}: the loss must be an Operation, got {type(loss).__name__}")
    if loss.shape != ():
        raise ShapeError(
            f"{where}: the loss must be a scalar, got {loss.name} of shape {shape_text(loss.shape)}; "
            "take its mean"
        )
    if not is_floating(loss.dtype):
        raise DTypeError(
            f"{where}: the loss must be a floating-point value, got {loss.name} of {loss.dtype.name}"
        )
    return loss.node


def nodes_of_parameters(where: str, parameters: Any) -> list[Node]:
    """The nodes of parameters that can be trained.

    Raises:
        ArgumentError, GraphError, DTypeError: if there is none, one is no variable, comes twice, or is no
            floating-point one.
    """
    if isinstance(parameters, Operation) or not isinstance(parameters, Sequence):
        raise ArgumentError(
            f"{where}: parameters must be a list of variables, got {type(parameters).__name__}"
        )
    if not parameters:
        raise ArgumentError(
            f"{where}: the list of parameters is empty; give the variables to train"
        )
    nodes: list[Node] = []
    for index, parameter in enumerate(parameters):
        node = getattr(parameter, "node", None)
        if not isinstance(node, Node) or node.op is not VARIABLE:
            raise GraphError(f"{where}: parameter {index} must be a variable, got {parameter!r}")
        if not is_floating(node.dtype):
            raise DTypeError(
                f"{where}: parameter {node.name} is {node.dtype.name}; only floating-point variables "
                "can be trained"
            )
        if node in nodes:
            raise ArgumentError(f"{where}: parameter {node.name} comes twice")
        nodes.append(node)
    return nodes


def nodes_of_outputs(where: str, outputs: Sequence[Any]) -> list[Node]:
    """The nodes of further outputs.

    Raises:
        GraphError: if one is no Operation.
    """
    for output in outputs:
        if not isinstance(output, Operation):
            raise GraphError(f"{where}: outputs must be Operations, got {type(output).__name__}")
    return [output.node for output in outputs]


Gradients = Callable[[Sequence[Operation], Sequence[str]], Sequence[Operation]]


class Update:
    """The graph of one step; `name` is the optimiser's, for errors and as the scope of its nodes.

    Outputs and updates are made when they are asked for; `known` is what is known of a step like this one.
    `keys` stand before the slash in the names of slots, where the parameters are some of those of a model;
    `gradients` gives gradients that are computed elsewhere, from the parameters and their keys.

    Attributes:
        outputs: the loss and further outputs, in the training phase.
        updates: new values of parameters, slots and the count, and what the graph itself updates.
        parameters: those that the loss depends on; the others are left as they are.
        slots: variables, by the names that they have in the state.
        count: how many steps were done.
        scaling: of the loss; None where it is not scaled.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Transform],
        scalars: Sequence[Mapping[str, Scalar]],
        roots: Sequence[Node],
        parameters: Sequence[Node],
        scaling: LossScale | None = None,
        kept: Collection[Node] = (),
        accumulation: Accumulation | None = None,
        known: Known | None = None,
        keys: Sequence[str] | None = None,
        gradients: Gradients | None = None,
    ) -> None:
        self._name, self._outer = name, scopes()
        self.scaling, self._accumulation, self._kept = scaling, accumulation, kept
        self._parts, self._scalars, self._roots = parts, scalars, roots
        self._gradients = gradients
        of_each = dict(zip(parameters, keys_of(parameters) if keys is None else keys, strict=True))
        if gradients is not None:
            self.parameters = list(parameters)
        elif known is None:
            self.parameters = self._reached(of_each)
        else:
            self.parameters = [parameters[k] for k in known.reached]
        self.slots: dict[str, Variable] = {}
        self.count = Variable("count", Tensor.wrap(np.zeros((), np.int64)))
        self._prefixes = [of_each[p] for p in self.parameters]
        specs = [Spec(p.shape, _compute_dtype(p.dtype)) for p in self.parameters]
        each = list(zip(self._prefixes, specs, strict=True))
        with scope(name):
            self._slots = [[self._new_slots(part, k, spec) for k, spec in each] for part in parts]

    def _reached(self, keys: Mapping[Node, str]) -> list[Node]:
        """The parameters that the loss depends on.

        Raises:
            GraphError: if it depends on none, or a layer updates one itself.
        """
        where, (outputs, own) = f"{self._name}.step", self._resolved
        reached = {n for n in topological(outputs[:1]) if n.op is VARIABLE}
        found = [p for p in keys if p in reached]
        if not found:
            names = ", ".join(list(keys.values())[:5])
            raise GraphError(
                f"{where}: the loss does not depend on any of the {len(keys)} parameters "
                f"({names}); give the variables that it is computed from"
            )
        if both := [p.name for p, _ in own if p in keys]:
            raise GraphError(
                f"{where}: parameter {both[0]} is also updated by a layer; leave it out of the list"
            )
        return found

    @cached_property
    def _resolved(self) -> tuple[list[Node], list[Updated]]:
        """The loss and further outputs in the training phase, and the updates of layers."""
        return resolve_phase(self._roots, training=True)

    @property
    def outputs(self) -> list[Node]:
        """The loss and further outputs, in the training phase."""
        return self._resolved[0]

    @cached_property
    def updates(self) -> list[Updated]:
        """New values of parameters, slots and the count, and what the graph itself updates."""
        with scoped(self._outer):
            found = self._found()
            with scope(self._name):
                made = self._build(found)
        kept = self._kept
        return [
            *made,
            *((target, value) for target, value in self._resolved[1] if target not in kept),
        ]

    def make(self) -> Update:
        """Make the graph now."""
        _ = self.updates
        return self

    def _found(self) -> list[Operation]:
        """The gradients."""
        if self._gradients is not None:
            return list(self._gradients([Operation(p) for p in self.parameters], self._prefixes))
        # the loss is multiplied by the scale before its gradient is taken
        seed = None if self.scaling is None else self.scaling.scale.node
        found = gradient(self.outputs[0], self.parameters, seed, training=True)
        return [Operation(node) for node in found]

    @property
    def keys(self) -> list[str]:
        """What stands before the slash in the names of the parameters' slots."""
        return list(self._prefixes)

    @property
    def names(self) -> dict[Node, str]:
        """The slots and the count, each by a name of its own."""
        return {self.count.node: "count", **{s.node: name for name, s in self.slots.items()}}

    def _build(self, found: Sequence[Operation]) -> list[Updated]:
        """The new values; `found` are the gradients."""
        wide = [_compute_dtype(p.dtype) for p in self.parameters]
        weights = [_cast(Operation(p), d) for p, d in zip(self.parameters, wide, strict=True)]
        steps = [_cast(g, d) for g, d in zip(found, wide, strict=True)]
        count = Scalar(ops.cast(self._counted(), _FLOAT64).node)
        if self.scaling is not None:
            steps = self.scaling.unscaled(steps)
        if self._accumulation is not None:
            steps = self._accumulation.averaged(steps, self._prefixes)
        updates: list[Updated] = []
        for part, settings, slots in zip(self._parts, self._scalars, self._slots, strict=True):
            before = [dict(s) for s in slots]
            steps, after = part.transform(steps, weights, before, settings, count)
            where = f"{self._name}.step: {type(part).__name__}"
            updates += self._checked(where, weights, steps, slots, after)
        for parameter, weight, step in zip(self.parameters, weights, steps, strict=True):
            new = _cast(weight - step, parameter.dtype)
            updates.append((parameter, new.node))
        if self.scaling is not None:
            updates = [*self.scaling.kept(updates), *self.scaling.updates()]
        counted = [(self.count.node, (self.count + 1).node)]
        if self._accumulation is None:
            return [*counted, *updates]
        updates = self._accumulation.kept([*counted, *updates])
        return [*updates, *self._accumulation.updates()]

    def _counted(self) -> Operation:
        """The number of this step among those that changed parameters, from 1."""
        done: Operation = self.count + 1
        return done if self.scaling is None else done - self.scaling.skipped

    def _new_slots(self, part: Transform, prefix: str, spec: Spec) -> dict[str, Variable]:
        """New slots of one parameter, by the names that the part knows."""
        slots = {}
        for name, initial in part.slots(spec).items():
            key = distinct(f"{prefix}/{name}", self.slots)
            slots[name] = self.slots[key] = _slot(key, initial)
        return slots

    def _checked(
        self,
        where: str,
        weights: Sequence[Operation],
        steps: Sequence[Any],
        slots: Sequence[Mapping[str, Variable]],
        after: Sequence[Mapping[str, Any]],
    ) -> list[Updated]:
        """The slots' new values; a part's mistake is told here, by its name."""
        if not len(steps) == len(after) == len(weights):
            raise GraphError(
                f"{where}: expected {len(weights)} gradients and slots, "
                f"got {len(steps)} and {len(after)}"
            )
        updates = []
        for key, w, g, old, new in zip(self._prefixes, weights, steps, slots, after, strict=True):
            _same(f"{where}: the new gradient of {key}", w, g)
            if set(new) != set(old):
                raise GraphError(
                    f"{where}: expected new values for the slots {sorted(old)} of {key}, "
                    f"got {sorted(new)}"
                )
            for name, slot in old.items():
                node = _same(f"{where}: the new value of slot {name} of {key}", slot, new[name])
                updates.append((slot.node, node))
        return updates


def _same(what: str, expected: Operation, got: Any) -> Node:
    """The node of a part's result, if it is like what it takes the place of."""
    node = got.node if isinstance(got, (Operation, Scalar)) else None
    if node is None:
        raise GraphError(f"{what} must be an Operation, got {type(got).__name__}")
    if node.spec != expected.node.spec:
        raise ShapeError(f"{what} must be {expected.node.spec}, got {node.spec}")
    return node


def _slot(name: str, initial: Array) -> Variable:
    return Variable(name, Tensor.holding(initial))


def keys_of(parameters: Sequence[Node]) -> list[str]:
    """What stands before the slash in the names of slots: the parameter's name, or its index.

    Indices for all of them where two have one name, or one has none.
    """
    names = [str(p.name) for p in parameters]
    unique = len(set(names)) == len(names) and all(names)
    return names if unique else [str(i) for i in range(len(names))]


def _compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return _FLOAT64 if dtype == _FLOAT64 else _FLOAT32


def _cast(x: Operation, dtype: np.dtype[Any]) -> Operation:
    result: Operation = x if x.dtype == dtype else ops.cast(x, dtype)
    return result
