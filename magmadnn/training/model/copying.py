"""What `copy.deepcopy` and `pickle` take of a model: all but what is compiled, and the optimiser's state.

A copy compiles for itself when it is used. Its first step goes on from the state that it carries, if that
would have gone on in the original too: the same optimiser, losses and metrics, and targets that look alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.graph.op import Array
from magmadnn.training.loop.heads import key_of
from magmadnn.training.loop.pieces import Batch

from .checks import looks

if TYPE_CHECKING:
    from .model import Model

Carried = tuple[Any, dict[str, Array]]  # what a step was made for, and the optimiser's state


def objective_key(model: Model, sample: Batch) -> tuple[Any, ...]:
    """Equal for equal losses and metrics of targets that look alike."""
    return (*looks(sample.targets), sample.weights is not None, key_of(model))


def state_to_copy(model: Model) -> dict[str, Any]:
    """The attributes of a copy."""
    compiled = {"_step": None, "_evaluation": None, "_prediction": None}
    carried = model._carried
    if model._step is not None:
        key, _, step = model._step
        carried = (key, {name: np.asarray(slot) for name, slot in step.state().items()})
    return vars(model) | compiled | {"_carried": carried}
