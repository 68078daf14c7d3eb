"""Which models are built alike, so that what is compiled for one of them can train the others."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from magmadnn.compiler.plan.built_alike.look import NotComparedError
from magmadnn.data import Standardize
from magmadnn.graph.node import VARIABLE, Node
from magmadnn.layers.layer import Parameter
from magmadnn.optim import Optimizer
from magmadnn.optim.building.alike import are_own, rule_of
from magmadnn.optim.inputs import numbers_in
from magmadnn.tensor.lazy import LazyTensor
from magmadnn.training.loop.given import gpu_of
from magmadnn.training.model.model import Model
from magmadnn.training.objective.forms import form_of
from magmadnn.training.objective.heads import heads_of
from magmadnn.training.objective.objective import measured_of


@dataclass(frozen=True, eq=False)
class Kind:
    """What a model is like that has not been trained.

    Attributes:
        like: equal for models that differ in seeds and in numbers of the optimiser only.
        leaves: variables of what is predicted, and of penalties; those of equal kinds in the same order.
        settings: the optimiser's numbers.
    """

    like: Hashable
    leaves: tuple[Node, ...]
    settings: Mapping[str, float]


def kind_of(model: Model) -> Kind | None:
    """The kind of a model; None where it has been trained, or a part of it cannot be compared."""
    optimizer = model._given
    if optimizer is None or model.loss is None or type(optimizer).step is not Optimizer.step:
        return None
    if model._step is not None or model._carried is not None or model.epochs_done or model._free:
        return None
    if model.executor != "native" or model.precision == "mixed_fp16" or gpu_of(model) is not None:
        return None
    parts, variables = optimizer.parts(), model.variables()
    settings = numbers_in(optimizer, parts) if are_own(parts) else None
    if settings is None or not all(map(_is_new, (v.node for v in variables))):
        return None
    heads = heads_of(model)
    penalties = [p.node for p in model.penalties()]
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
    )  # fmt: skip
    return Kind(like, tuple([n for n in form.leaves if n.op is VARIABLE]), settings)


def _is_new(node: Node) -> bool:
    """Whether a variable has not got its initial values yet."""
    return type(node.value) is LazyTensor and not node.value.drawn
