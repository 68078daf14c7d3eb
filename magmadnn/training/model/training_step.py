"""The compiled training step of a model, and what the optimiser in it goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.calls import FixedList
from magmadnn.errors import ArgumentError
from magmadnn.graph.node import Node, SharedGraph
from magmadnn.graph.op import Array
from magmadnn.layers.settings import Changes
from magmadnn.optim import Optimizer, Step, Transform
from magmadnn.optim.building.accumulation import Accumulation
from magmadnn.optim.records import Setting
from magmadnn.tensor import Operation
from magmadnn.training.loop.pieces import Batch
from magmadnn.training.objective.heads import key_of
from magmadnn.training.objective.objective import Objective

from .assigning import GRAPH
from .augmented_step import StepAugmentation
from .parts import kept_states, trained_of

if TYPE_CHECKING:
    from magmadnn.parallel.way import TrainingWay

    from .model import Model

Made = tuple[Any, Objective, Step]  # what a step was made for, and the step


@dataclass(frozen=True, eq=False)
class Carried:
    """What the optimiser of one compiled step leaves to that of the next.

    Attributes:
        trained: the parameters that it is about.
        state: moments and counts.
        settings: what was set over the optimiser's own.
        names: of the model's variables when the state got its names, which begin with them.
        sample: a row of what the model was trained on, where no step was made for it.
    """

    trained: tuple[Node, ...]
    state: dict[str, Array]
    settings: dict[str, Setting]
    names: tuple[str, ...]
    sample: Batch | None = None

    def renamed(self, names: tuple[str, ...]) -> Carried:
        """The same for variables that have these names now: layers may have been given others."""
        if names == self.names:
            return self
        now, state = dict(zip(self.names, names, strict=True)), {}
        for key, value in self.state.items():
            of, slash, slot = key.rpartition("/")
            state[f"{now.get(of, of)}{slash}{slot}"] = value
        return replace(self, state=state, names=names)


def objective_key(model: Model, sample: Batch) -> tuple[Any, ...]:
    """Equal for equal losses and metrics of targets that look alike."""
    weights = None if sample.weights is None else sample.weights.ndim
    targets = [(t.shape[1:], t.dtype) for t in sample.targets]
    units = None if model.preparation is None else model.units
    return (*targets, weights, units, key_of(model))


def carried_from(model: Model) -> Carried | None:
    """What the next step goes on from."""
    carried, names = model._carried, names_of(model)
    if model._step is not None:
        key, _, step = model._step
        state = {name: np.asarray(slot) for name, slot in step.state().items()}
        carried = Carried(key[0], state, step.overrides, key[-1])
    return None if carried is None else carried.renamed(names)


def names_of(model: Model) -> tuple[str, ...]:
    """The names of a model's variables, as they are now: looked at where some layer was renamed since."""
    if model._names is None or model._names[0] != Changes.names:
        variables = model.variables()  # which looks at layers that were renamed
        model._names = Changes.names, tuple([str(variable.name) for variable in variables])
    return model._names[1]


def let_go(model: Model) -> None:
    """Keep nothing that is compiled; the next step goes on from what the last one has left."""
    model._carried = carried_from(model)
    model._step = model._evaluation = model._prediction = None


def optimizer_in_force(model: Model) -> Optimizer | None:
    """The optimiser with what callbacks have set over its settings."""
    if model._given is None:
        return None
    held = model._carried if model._step is None else None
    settings = held.settings if held else {} if model._step is None else model._step[2].overrides
    return model._given.with_settings(settings)


def training_step(
    model: Model, sample: Batch, more: tuple[Transform, ...] = (), accumulate: int = 1,
    parallel: TrainingWay | None = None, augmentation: StepAugmentation | None = None,
) -> tuple[Objective, Step]:  # fmt: skip
    """The step for targets like these; where it has to be made, it goes on from that before.

    The state stays as long as the optimiser and what it trains are the same, the settings always. `more` are
    parts that come after the optimiser's own, `accumulate` batches of which gradients are averaged,
    `parallel` how ranks share a batch, `augmentation` how images are changed first.
    """
    variables = model.variables()
    model._trained_at = Changes.names, Changes.trainable
    trained = tuple(p.node for p in trained_of(variables))
    way = {"executor": model.executor, "precision": model.precision, "device": model.device}
    kept = kept_states(variables)
    key = (
        trained,
        tuple(s.node for s in kept),
        (*objective_key(model, sample), *(augmentation.key if augmentation else ())),
        *way.values(),
        more,
        accumulate,
        parallel,
        names_of(model),
    )
    if model._step is None or model._step[0] != key:
        if model._given is None:
            raise ArgumentError(
                "fit: the model has no optimizer; give one: Model(..., optimizer=md.optim.Adam())"
            )
        objective = Objective(model, sample.targets, sample.weights, augmentation)
        if parallel is not None:
            step = _parallel_step(
                model, objective, parallel, accumulate, kept=kept, more=more, **way
            )
        else:
            is_own = type(model._given).step is not Optimizer.step  # which wants operations
            loss = objective.loss if is_own else objective.roots
            step = model._given.step(
                loss, model.parameters(), outputs=objective.sums if is_own else (), kept=kept,
                more=more, accumulation=_accumulation(model, objective, accumulate), **way,
            )  # fmt: skip
        if (carried := carried_from(model)) is not None:
            known = step.settings.keys()
            step.set(**{k: v for k, v in carried.settings.items() if k in known})
            if carried.trained == trained:
                _take_over(step, carried.state)
        model._step, model._carried = (key, objective, step), None
    return model._step[1:]


def _parallel_step(
    model: Model, objective: Objective, parallel: TrainingWay, every: int, **how: Any
) -> Step:
    """The step of one rank.

    Raises:
        ArgumentError: if shards cannot be weighed against each other.
    """
    mass = objective.mass
    if mass is None:
        raise ArgumentError(
            "fit: parallel= with several outputs whose losses divide by weights of their own: give one "
            "weight "
            "for each sample, or train without parallel="
        )
    return parallel.step_class()(
        parallel, model._given, objective.loss, model.parameters(), objective.sums, mass,
        objective.rows, every=every, **how,
    )  # fmt: skip


def _accumulation(model: Model, objective: Objective, every: int) -> Accumulation | None:
    """How gradients of several batches are averaged; None where each batch has an update.

    Raises:
        ArgumentError: if batches cannot be weighed against each other, or the loss is scaled.
    """
    if every == 1:
        return None
    if model.precision == "mixed_fp16":
        raise ArgumentError(
            f"fit: accumulate={every} with mixed_fp16, whose scaled gradients may be left out: use "
            "mixed_bf16, or accumulate=1"
        )
    mass = objective.mass
    if mass is None:
        raise ArgumentError(
            f"fit: accumulate={every} with several outputs whose losses divide by weights of their own: "
            "give one weight for each sample, or accumulate=1"
        )
    return Accumulation(every, mass)


def _take_over(step: Step, state: dict[str, Array]) -> None:
    """Go on from the state of another step of the same optimiser, which may scale its loss or not."""
    own = {name: np.asarray(slot) for name, slot in step.state().items()}
    step.load_state(own | {name: value for name, value in state.items() if name in own})


def state_to_copy(model: Model) -> dict[str, Any]:
    """What `copy.deepcopy` and `pickle` take of a model: all but what is compiled.

    A copy compiles for itself when it is used. Its first step goes on from the state that it carries, if
    that would have gone on in the original too.
    """
    compiled = {"_step": None, "_evaluation": None, "_prediction": None, "_heads": None}
    outputs = {"outputs": SharedGraph([output.node for output in model.outputs])}
    return vars(model) | compiled | outputs | {"_carried": carried_from(model)}


def take_copied(model: Model, state: Mapping[str, Any]) -> None:
    """Make a model of what `state_to_copy` took."""
    vars(model).update(state)
    outputs = [Operation(node) for node in state["outputs"].nodes]
    vars(model)["outputs"] = FixedList(outputs, GRAPH, "outputs")
