"""What a checkpoint holds of a training, and how a training goes on from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.errors import ArgumentError, CheckpointError, MagmaDNNError, NumericError, quoted
from magmadnn.graph.op import Array
from magmadnn.memory.dtypes import is_floating
from magmadnn.optim import Schedule
from magmadnn.optim.records import Record, Setting
from magmadnn.optim.records import restore as restored
from magmadnn.storage.checkpoint import State
from magmadnn.storage.formats.plain_schema import (
    LARGEST,
    Anything,
    Either,
    Fields,
    Flag,
    Many,
    Nothing,
    Number,
    Numbers,
    Table,
    Text,
    Whole,
    check,
    maybe,
)
from magmadnn.storage.printing import note

from .between_ways import in_own_way, say, tell_other_way, without_way

if TYPE_CHECKING:
    from magmadnn.training.callbacks import Callback

    from .fit import Fit

_SHOWN = 220  # characters of what differs
INITIAL = "initial values"  # of an identity: a digest of parameters and states
_SHARDS = "shards"  # of an identity: parts of a batch that ranks share
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
        "run": Table(Text(), named=lambda name: True),
        "settings": Table(Either((Number(), Table(Anything()), Nothing()))),
        "begin": Whole(),
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
    {"algorithms": Table(Text()), "arguments": Table(Table(Anything()))},
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
            "run": fit.identity,
            "settings": settings_of(fit),
            "begin": fit.begin,
            "epoch": fit.epoch,
            "batch": fit.batch,
            "steps": fit.steps,
            "seconds": fit.seconds,
            # At the end of an epoch training may stop for good; within one it is interrupted.
            "stopped": None if fit.batch or fit.goes_on else fit.stopped,
            "totals": fit.totals.state(),
            "history": list(fit.history.rows),
            "callbacks": {key: c.state() for key, c in named},
            "arguments": _arguments(fit),
            "algorithms": _algorithms(fit),
        },
    )


def restore(fit: Fit, state: State) -> None:
    """Go on from what `state_of` gave; nothing is changed if it does not fit.

    Raises:
        CheckpointError: if it belongs to another training or none, or if a field is not what training writes.
    """
    record = state.record
    _check_record(fit, record)
    told = _check_identity(fit, record["run"])
    settings = saved_settings(fit, record["settings"])
    values, slots = part_of(state.tensors, "model/"), part_of(state.tensors, "optimizer/")
    fit.model.check(values)
    for name, value in values.items():
        if is_floating(value.dtype) and not np.isfinite(value).all():
            raise CheckpointError(f"checkpoint: {name} has NaN or infinity; the file is damaged")
    fit.step.check_state(slots)
    before = fit.step.overrides
    set_only(fit, settings)
    try:
        _restore_callbacks(fit, state)
    except CheckpointError:
        set_only(fit, before)
        raise
    fit.step.load_state(slots)
    fit.model.assign(values)
    fit.becomes(in_own_way(fit.identity, record["run"]), record["begin"])
    fit.epoch, fit.batch, fit.steps = record["epoch"], record["batch"], record["steps"]
    fit.model.epochs_done = fit.epoch
    fit.seconds, fit.stopped = record["seconds"], record["stopped"]
    fit.history.rows = list(record["history"])
    if fit.batch:
        fit.totals.restore(record["totals"])
    _tell_other_callbacks(fit, record.get("arguments"))
    if fit.is_first:
        say(told, fit.told)


def tell_end(fit: Fit) -> None:
    """Say that a training that was resumed has nothing left to do, if that is so."""
    if fit.tells_end and not fit.goes_further:
        why = fit.stopped or f"its {fit.epoch - fit.begin} epochs are done"
        note(
            f"fit: the training of the checkpoint has ended, {why}: nothing is trained; ask for more "
            "epochs, give another folder, or resume=False"
        )


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


def _arguments(fit: Fit) -> dict[str, dict[str, Any]]:
    """What callbacks were made with that decide, by what they count, how training goes on."""
    found = {}
    for key, callback in _named(fit):
        given = None if callback.writes_files or not callback.state() else callback.arguments()
        if given is not None:
            found[key] = given
    return found


def _tell_other_callbacks(fit: Fit, saved: Mapping[str, Mapping[str, Any]] | None) -> None:
    """Say that a training goes on with callbacks that were made with something else than those before."""
    if saved is None or not fit.is_first:  # a checkpoint of an older version does not tell
        return
    own, words = _arguments(fit), []
    for key in [*own, *(key for key in saved if key not in own)]:
        name = key.rpartition("-")[0]
        if key not in own or key not in saved:
            words.append(f"{name} is {'gone' if key in saved else 'new'}")
            continue
        words += [
            f"{name} has {k}={_shown(str(value))}, before {_shown(str(saved[key].get(k)))}"
            for k, value in own[key].items()
            if value != saved[key].get(k)
        ]
    text = (
        "fit: goes on with callbacks that are not those of the checkpoint: "
        f"{'; '.join(words)}; the epochs before were decided by the old ones"
    )
    if words and text not in fit.told:
        fit.told.add(text)
        note(text)


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


def _check_identity(fit: Fit, saved: Mapping[str, str]) -> str | None:
    """Look whether a checkpoint is of this training; what is to be said where ranks share it in another way.

    A model that goes on from what that training has left need not have its initial values.
    """
    own = dict(fit.identity)
    if fit.model._origin is not None and fit.model._origin == saved.get(INITIAL):
        own[INITIAL] = fit.model._origin
    told = tell_other_way(fit.model, own, saved)
    own, saved = without_way(own, saved)
    names = [*own, *(name for name in saved if name not in own)]
    found = [
        f"{_shown(name)} is {_shown(own.get(name, 'not there'))}, in the checkpoint "
        f"{_shown(saved.get(name, 'not there'))}"
        for name in names
        if own.get(name) != saved.get(name)
    ]
    if found:
        more = f", and {len(found) - 3} more" if len(found) > 3 else ""
        shards = saved.get(_SHARDS, "")
        if _SHARDS in own and own[_SHARDS] != shards and shards.isdecimal():
            more += (
                f"; up to {shards} ranks go on with parallel=md.parallel.DataParallel(shards={shards}), or "
                "DataParallel(), which takes as many as the checkpoint has"
            )
        raise CheckpointError(
            f"checkpoint: is of another training: {'; '.join(found[:3])}{more}; give what it was saved with "
            "(epochs and callbacks may differ), another folder, or resume=False to start over"
        )
    return told


def shards_of(run: Mapping[str, Any]) -> int | None:
    """Of how many shards a training is, by what it is known by; None if it has none."""
    text = str(run.get(_SHARDS, ""))
    return int(text) if text.isdecimal() and 0 < len(text) < 10 else None


def _shown(text: str) -> str:
    """A text of a file, in one line."""
    return text if text.isprintable() and len(text) <= _SHOWN else quoted(text, 60)


def settings_of(fit: Fit) -> dict[str, Any]:
    """What callbacks have set, as JSON data: numbers, schedules; None for functions."""
    found: dict[str, Any] = {}
    for name, value in fit.step.overrides.items():
        found[name] = None if callable(value) else value
        if isinstance(value, Record):
            with suppress(ArgumentError):  # one that has a function itself
                found[name] = value.config()
    return found


def saved_settings(fit: Fit, saved: Mapping[str, Any]) -> dict[str, Setting]:
    """What was set; functions have to be there already.

    Raises:
        CheckpointError: if one is not.
    """
    found: dict[str, Setting] = {}
    for name, value in saved.items():
        kept = fit.step.overrides.get(name) if value is None else value
        if kept is None:
            raise CheckpointError(
                f"checkpoint: {name} was set to a function, which is not saved; set it in on_train_begin, or "
                "use a schedule of md.optim"
            )
        try:
            found[name] = restored(Schedule, kept) if isinstance(kept, dict) else kept  # type: ignore[type-abstract]  # only subclasses are made
        except ArgumentError as error:
            raise CheckpointError(f"checkpoint: settings.{name}: {error}") from error
    return found


def set_only(fit: Fit, settings: Mapping[str, Setting]) -> None:
    """Set these and no others.

    Raises:
        CheckpointError: if one cannot be set; nothing is then changed.
    """
    try:
        fit.step.set(**(dict.fromkeys(fit.step.overrides) | dict(settings)))
    except ArgumentError as error:
        raise CheckpointError(f"checkpoint: settings: {error}") from error


def _named(fit: Fit) -> list[tuple[str, Callback]]:
    """Callbacks by class and number among those of the class, which is their name in checkpoints."""
    named: list[tuple[str, Callback]] = []
    seen: Counter[str] = Counter()
    for callback in fit.callbacks:
        kind = type(callback).__name__
        named.append((f"{kind}-{seen[kind]}", callback))
        seen[kind] += 1
    return named
