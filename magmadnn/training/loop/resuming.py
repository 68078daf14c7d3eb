"""What a checkpoint holds of a training, and how a training goes on from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.errors import CheckpointError, NumericError
from magmadnn.graph.op import Array
from magmadnn.graph.spec import is_floating
from magmadnn.storage.checkpoint import State

if TYPE_CHECKING:
    from magmadnn.training.callbacks import Callback

    from .fit import Fit

_PROGRESS = frozenset(
    "seed batch_size epoch batch steps seconds stopped totals history callbacks".split()
)


def part_of(tensors: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """The tensors whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def state_of(fit: Fit) -> State:
    """Everything that the next step depends on.

    Raises:
        NumericError: if a parameter or state is not finite, naming the first.
    """
    values = fit.model.values()
    _check_finite(values, fit.steps)
    tensors = {f"model/{name}": value for name, value in values.items()}
    for name, slot in fit.step.state().items():
        tensors[f"optimizer/{name}"] = np.array(slot.read())
    named = _named(fit)
    for key, callback in named:
        for name, value in callback.tensors().items():
            tensors[f"callbacks/{key}/{name}"] = value
    return State(
        tensors=tensors,
        record={
            "seed": fit.model.seed,
            "batch_size": fit.current_batch_size,
            "epoch": fit.epoch,
            "batch": fit.batch,
            "steps": fit.steps,
            "seconds": fit.seconds,
            # At the end of an epoch training may stop for good; within one it is interrupted.
            "stopped": None if fit.batch or fit.goes_on else fit.stopped,
            "totals": fit.totals.state(),
            "history": list(fit.history.rows),
            "callbacks": {key: c.state() for key, c in named},
            "algorithms": _algorithms(fit),
        },
    )


def restore(fit: Fit, state: State) -> None:
    """Go on from what `state_of` gave; nothing is changed if it does not fit.

    Raises:
        CheckpointError: if it belongs to another model or optimiser, to another order of batches, or to
            no training.
    """
    if missing := _PROGRESS - set(state.record):
        raise CheckpointError(
            f"checkpoint: expected one of a training, but {min(missing)!r} is missing; give another "
            "folder"
        )
    _check_order(fit, state.record)
    _take_algorithms(fit, state.record.get("algorithms", {}))
    fit.model.check(part_of(state.tensors, "model/"))
    fit.step.load_state(part_of(state.tensors, "optimizer/"))
    fit.model.assign(part_of(state.tensors, "model/"))
    record = state.record
    fit.epoch, fit.batch, fit.steps = record["epoch"], record["batch"], record["steps"]
    fit.model.epochs_done = fit.epoch
    fit.seconds, fit.stopped = record["seconds"], record["stopped"]
    fit.history.rows = list(record["history"])
    if fit.batch:
        fit.totals.restore(record["totals"])
    for key, callback in _named(fit):
        if key in record["callbacks"]:
            kept = part_of(state.tensors, f"callbacks/{key}/")
            callback.restore(record["callbacks"][key], kept)


def _check_finite(values: Mapping[str, Array], steps: int) -> None:
    """Look whether parameters and states are finite before they are saved."""
    for name, value in values.items():
        if is_floating(value.dtype) and not np.isfinite(value).all():
            raise NumericError(
                f"{name} has NaN or infinity after step {steps}; lower the learning rate, "
                "clip gradients, or look for bad data"
            )


def _algorithms(fit: Fit) -> dict[str, str]:
    """What a GPU's library was made to take for products; their sums depend on it."""
    if fit.model.device == "cpu":
        return {}
    from magmadnn.runtime.cuda.algorithms import frozen

    return frozen()


def _take_algorithms(fit: Fit, chosen: Any) -> None:
    if fit.model.device == "cpu":
        return
    from magmadnn.runtime.cuda.algorithms import freeze

    try:
        freeze(chosen)
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint: expected algorithms as words and hex, got {chosen!r:.60}; it is damaged"
        ) from error


def _check_order(fit: Fit, record: Mapping[str, Any]) -> None:
    """Seed and, within an epoch, batch size say which samples come next."""
    own = {"seed": fit.model.seed}
    if record["batch"]:
        size = fit.batch_size
        own["batch_size"] = size if isinstance(size, int) else int(size(record["epoch"]))
    for name, value in own.items():
        if record[name] != value:
            raise CheckpointError(
                f"checkpoint: was saved with {name} {record[name]}, this training has {value}; "
                "give the same, or another folder"
            )


def _named(fit: Fit) -> list[tuple[str, Callback]]:
    """Callbacks by class and number among those of the class, which is their name in checkpoints."""
    named: list[tuple[str, Callback]] = []
    seen: Counter[str] = Counter()
    for callback in fit.callbacks:
        kind = type(callback).__name__
        named.append((f"{kind}-{seen[kind]}", callback))
        seen[kind] += 1
    return named
