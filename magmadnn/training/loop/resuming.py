"""What a checkpoint holds of a training, and how a training goes on from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.errors import CheckpointError, MagmaDNNError, NumericError, quoted
from magmadnn.graph.op import Array
from magmadnn.graph.spec import is_floating
from magmadnn.storage.checkpoint import State
from magmadnn.storage.plain_schema import (
    LARGEST,
    Anything,
    Either,
    Fields,
    Flag,
    Many,
    Number,
    Numbers,
    Table,
    Text,
    Whole,
    check,
    maybe,
)

if TYPE_CHECKING:
    from magmadnn.training.callbacks import Callback

    from .fit import Fit

_ROW = Fields(
    {
        "epoch": Number(1, LARGEST),
        "loss": Number(),
        "seconds": Number(1e-9, finite=True),
        "samples_per_second": Number(0),
    },
    others=Either((Number(), Flag())),
)
_PROGRESS = Fields(
    {
        "seed": Whole(0, 2**64 - 1),
        "batch_size": Whole(1),
        "epoch": Whole(),
        "batch": Whole(),
        "steps": Whole(),
        "seconds": Number(0, finite=True),
        "stopped": maybe(Text()),
        "totals": Fields(
            {"rows": Whole(), "weight": Number(0), "loss": Number(), "sums": Many(Numbers())}
        ),
        "history": Many(_ROW),
        "callbacks": Table(Anything()),
    },
    {"algorithms": Table(Text())},
    others=Anything(),
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
            no training, or if a field is not what training writes.
    """
    record = state.record
    _check_record(fit, record)
    _check_order(fit, record)
    values, slots = part_of(state.tensors, "model/"), part_of(state.tensors, "optimizer/")
    fit.model.check(values)
    for name, value in values.items():
        if is_floating(value.dtype) and not np.isfinite(value).all():
            raise CheckpointError(f"checkpoint: {name} has NaN or infinity; the file is damaged")
    fit.step.check_state(slots)
    _restore_callbacks(fit, state)
    fit.step.load_state(slots)
    fit.model.assign(values)
    fit.epoch, fit.batch, fit.steps = record["epoch"], record["batch"], record["steps"]
    fit.model.epochs_done = fit.epoch
    fit.seconds, fit.stopped = record["seconds"], record["stopped"]
    fit.history.rows = list(record["history"])
    if fit.batch:
        fit.totals.restore(record["totals"])


def _check_record(fit: Fit, record: Mapping[str, Any]) -> None:
    """Every field is what `state_of` writes, and they go together."""
    if missing := _PROGRESS.required.keys() - record.keys():
        raise CheckpointError(
            f"checkpoint: expected one of a training, but {min(missing)!r} is missing; give another "
            "folder"
        )
    check(_PROGRESS, record, "checkpoint")
    epoch, batch, rows = record["epoch"], record["batch"], len(record["history"])
    if rows > epoch or batch > record["steps"]:
        raise CheckpointError(
            f"checkpoint: {rows} rows of history and {record['steps']} steps do not go with epoch {epoch}, "
            f"batch {batch}; the file is damaged"
        )
    given = record["totals"]["sums"] if batch else []
    shapes = [tuple(one.shape) for one in fit.objective.sums] if batch else []
    if len(given) != len(shapes) or not all(map(_is_shaped, given, shapes)):
        raise CheckpointError(
            f"checkpoint: totals.sums: expected arrays of shapes {shapes}, got {quoted(given)}; it is of a "
            "training with other metrics, or damaged"
        )


def _is_shaped(values: Any, shape: Sequence[Any]) -> bool:
    """Whether nested lists have this shape."""
    if not shape:
        return not isinstance(values, list)
    same = isinstance(values, list) and len(values) == shape[0]
    return same and all(_is_shaped(one, shape[1:]) for one in values)


def _restore_callbacks(fit: Fit, state: State) -> None:
    """All callbacks go on, or none: what one of them refuses leaves the others as they were."""
    done: list[tuple[Callback, dict[str, Any], dict[str, Array]]] = []
    name = ""
    try:
        for name, callback in _named(fit):
            if name in state.record["callbacks"]:
                done.append((callback, callback.state(), dict(callback.tensors())))
                kept = part_of(state.tensors, f"callbacks/{name}/")
                callback.restore(state.record["callbacks"][name], kept)
        _take_algorithms(fit, state.record.get("algorithms", {}))
    except Exception as error:
        for callback, own, tensors in reversed(done):
            callback.restore(own, tensors)
        if isinstance(error, MagmaDNNError):
            raise
        raise CheckpointError(
            f"checkpoint: {name} does not take the state that is saved there: {quoted(error, 200)}; give "
            "the same callbacks, or another folder"
        ) from error


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
