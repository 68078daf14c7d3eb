"""Which models are built alike and trained as often, so that one of them can lead the others."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from magmadnn.compiler.plan.built_alike.look import NotComparedError
from magmadnn.data import Standardize
from magmadnn.graph.node import VARIABLE, Node
from magmadnn.graph.op import Array
from magmadnn.layers.layer import Parameter
from magmadnn.optim import Optimizer
from magmadnn.optim.building.alike import are_own, rule_of
from magmadnn.optim.inputs import numbers_in
from magmadnn.tensor.lazy import LazyTensor
from magmadnn.training.loop.given import gpu_of
from magmadnn.training.model.model import Model
from magmadnn.training.model.parts import penalties_of, trained_of
from magmadnn.training.objective.heads import heads_of
from magmadnn.training.objective.objective import form_of, measured_of


@dataclass(frozen=True, eq=False)
class Kind:
    """What a model is like.

    Attributes:
        like: equal for models that differ in seeds, in values and in numbers of the optimiser only.
        leaves: variables of what is predicted, and of penalties; those of equal kinds in the same order.
        settings: the optimiser's numbers.
        state: what the optimiser goes on from; None where it begins, or where there is a step.
        has_step: whether a step was made for it, so that it need not follow.
    """

    like: Hashable
    leaves: tuple[Node, ...]
    settings: Mapping[str, float]
    state: Mapping[str, Array] | None
    has_step: bool


def kind_of(model: Model) -> Kind | None:
    """The kind of a model; None where a part cannot be compared, or something else decides on a step."""
    optimizer = model._given
    if optimizer is None or model.loss is None or type(optimizer).step is not Optimizer.step:
        return None
    if model._free or model.executor != "native" or model.precision == "mixed_fp16":
        return None
    if gpu_of(model) is not None:
        return None
    parts, variables = optimizer.parts(), model.variables()
    settings = numbers_in(optimizer, parts) if are_own(parts) else None
    if settings is None or not all(type(v.node.value) is LazyTensor for v in variables):
        return None
    carried, step = model._carried, model._step
    if carried is not None or step is not None:
        trained = tuple([variable.node for variable in trained_of(variables)])
        if step is not None and (step[0][0] != trained or step[2].overrides):
            return None
        if carried is not None and (carried.trained != trained or carried.settings):
            return None
    heads = heads_of(model)
    penalties = [p.node for p in penalties_of(variables)]
    form = form_of(heads, penalties, (), False, measured_of(heads, None), None)
    if form is None:
        return None
    try:
        rules = tuple(map(rule_of, parts))
    except NotComparedError:
        return None
    prepared = model.preparation
    like = (
        form.like, rules, type(optimizer), model.precision,
        prepared if isinstance(prepared, Standardize) else id(prepared),
        tuple([isinstance(v, Parameter) and (v.trained, v.layer.is_trainable) for v in variables]),
        tuple([str(node.name) for node in model._input_nodes]),
        model.epochs_done, carried is not None or step is not None,
    )  # fmt: skip
    leaves = tuple([n for n in form.leaves if n.op is VARIABLE])
    state = None if carried is None else carried.state
    return Kind(like, leaves, settings, state, step is not None)
