"""Looking at what a model runs: plans as text, and where the time goes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from magmadnn.errors import ArgumentError, GraphError
from magmadnn.graph.dim import dims_of
from magmadnn.graph.drawing.diagram import Diagram
from magmadnn.optim import Step
from magmadnn.runtime import Executable
from magmadnn.runtime.step_memory import StepMemory
from magmadnn.training.arguments import at_least
from magmadnn.training.loop.given import checked_arrays, inputs_for, targets_for
from magmadnn.training.loop.pieces import Batch, feeds_for
from magmadnn.training.loop.sources import ArraySource

from .training_step import training_step

if TYPE_CHECKING:
    from magmadnn.runtime.profile.text import Profile

    from .model import Model


def plan_of(model: Model, x: Any, y: Any, batch_size: int, expected: bool) -> str:
    """See `Model.plan`."""
    at_least("plan: batch_size", batch_size, 1)
    found, sizes = planned(model, "plan", x, y), {"batch": batch_size}
    text = found.expected_text(sizes) if expected else found.text(sizes)
    memory = found.memory(sizes) if _tells_sizes(model) else None
    return text if memory is None else f"{text}\n{memory}"


def memory_of(model: Model, x: Any, y: Any, batch_size: int) -> StepMemory:
    """See `Model.memory`."""
    at_least("memory: batch_size", batch_size, 1)
    if not _tells_sizes(model):
        raise GraphError("memory: a dimension other than that of the batch has no known size")
    found = planned(model, "memory", x, y).memory({"batch": batch_size})
    if found is None:
        raise ArgumentError(
            f'memory: tells of compiled kernels, got executor={model.executor!r}; use "native"'
        )
    return found


def _tells_sizes(model: Model) -> bool:
    """Whether the rows of a batch say all sizes."""
    dims = dims_of(tuple(placeholder.shape for placeholder in model.inputs))
    return {symbol for dim in dims for symbol in dim.symbols} <= {"batch"}


def diagram_of(model: Model, x: Any, y: Any, batch_size: int, optimised: bool) -> Diagram:
    """See `Model.diagram`."""
    at_least("diagram: batch_size", batch_size, 1)
    return planned(model, "diagram", x, y).diagram({"batch": batch_size}, optimised)


def profile_of(model: Model, x: Any, y: Any, batch_size: int) -> Profile:
    """See `Model.profile`."""
    at_least("profile: batch_size", batch_size, 1)
    found = planned(model, "profile", x, y)
    inputs = [a[:batch_size] for a in inputs_for(model.inputs, x, "profile")]
    if isinstance(found, Executable):
        return found.profile({p.node: a for p, a in zip(model.inputs, inputs, strict=True)})
    assert model._step is not None
    targets = [a[:batch_size] for a in targets_for(model.outputs, y, "profile: ")]
    batch = Batch(inputs, targets)
    profile = found.profile(feeds_for(model._step[1], batch))
    waited = model._waited
    by_worker = waited if len(waited) > 1 else ()
    return replace(profile, waited=max(waited, default=None), waited_by_worker=by_worker)


def planned(model: Model, what: str, x: Any, y: Any) -> Step | Executable:
    """The training step for data like this; the prediction of a model without an optimiser."""
    if model.optimizer is None:
        return model._predictor()
    if y is not None:
        inputs, targets, _ = checked_arrays(model, what, x, y)
        training_step(model, ArraySource(inputs, targets, None, seed=None).sample)
    elif what == "profile":
        raise ArgumentError("profile: the targets are missing: profile(x, y)")
    elif model._step is None and model._carried is not None and model._carried.sample is not None:
        training_step(model, model._carried.sample)
    if model._step is None:
        raise ArgumentError(f"{what}: no targets are known before fit; give some: {what}(x, y)")
    return model._step[2]
