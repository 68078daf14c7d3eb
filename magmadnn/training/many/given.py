"""What `fit_many` is given, for each model: numbers, rows, callbacks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.compiler.kernels.formula import KEPT
from magmadnn.data._structure import is_mapped, leaves, rebuild, row_count, take_rows
from magmadnn.data.tables.plain import is_foreign_data
from magmadnn.errors import (
    ArgumentError,
    DataError,
    IndexOutOfRangeError,
    OutOfMemoryError,
    quoted,
)
from magmadnn.memory.room import Room
from magmadnn.storage.printing import note
from magmadnn.training.arguments import at_least, listed, refuse_while_training
from magmadnn.training.callbacks import Callback
from magmadnn.training.model.model import Model

Rows = NDArray[np.int64]
_FEW = 10  # rows; by chance so many draws from so many rows are all of the first two once in ten million
Callbacks = Sequence[Callback] | Callable[[int], Sequence[Callback]]


def checked_models(what: str, models: Any, apart: bool = True) -> list[Model]:
    """The models, none of them twice; with `apart` those that no two share a layer.

    Raises:
        ArgumentError: if there is none, one is no model, stands there twice, or is being trained.
    """
    if isinstance(models, (Model, str)) or not isinstance(models, Iterable):
        way_out = "; put it into a list" if isinstance(models, Model) else ""
        raise ArgumentError(
            f"{what}: models must be a list of md.Model, got {quoted(models)}{way_out}"
        )
    found = list(models)
    if not found:
        raise ArgumentError(f"{what}: models is empty; give a list of md.Model")
    seen: dict[int, int] = {}
    for number, model in enumerate(found):
        if not isinstance(model, Model):
            way_out = "; call it" if callable(model) and not isinstance(model, type) else ""
            raise ArgumentError(
                f"{what}: models[{number}] must be a md.Model, got {quoted(model)}{way_out}"
            )
        if id(model) in seen:
            raise ArgumentError(
                f"{what}: models[{number}] is models[{seen[id(model)]}] again; build each model anew, or "
                "copy.deepcopy(model)"
            )
        seen[id(model)] = number
        refuse_while_training(model, f"{what}: models[{number}]")
    if apart:
        _check_apart(what, found)
    return found


def _check_apart(what: str, models: Sequence[Model]) -> None:
    """Models that share a layer would train the same parameters at the same time."""
    owners: dict[int, int] = {}
    for number, model in enumerate(models):
        for variable in model.variables():
            owner = owners.setdefault(id(variable.node), number)
            if owner != number:
                raise ArgumentError(
                    f"{what}: models[{number}] shares {variable.name} with models[{owner}]; build the layers "
                    "of each model anew"
                )


def numbers(what: str, value: Any, count: int, least: int) -> list[int]:
    """A number for each model, from one for all or a list.

    Raises:
        ArgumentError: if one is no integer of at least `least`, or there are not as many as models.
    """
    if isinstance(value, (list, tuple, np.ndarray)):
        if len(value) != count:
            raise ArgumentError(
                f"{what} has {len(value)} numbers for {count} models; give one for each, or one for all"
            )
        for number, one in enumerate(value):
            at_least(f"{what}[{number}]", one, least)
        return [int(one) for one in value]
    at_least(what, value, least)
    return [int(value)] * count


def callbacks_for(what: str, given: Callbacks, count: int) -> list[list[Callback]]:
    """The callbacks of each model: copies of those for all, or what a function gives for its number.

    Raises:
        ArgumentError: if one writes files, which models would write over each other, or serves two models.
    """
    label = f"{what}: callbacks"
    if not callable(given):
        first = listed(label, given, Callback, "[md.callbacks.EarlyStopping()]")
        for callback in first:
            if callback.writes_files and count > 1:
                name = type(callback).__name__
                raise ArgumentError(
                    f"{label}: {name} writes files, and all models would write the same; give a function of "
                    f'the model\'s number: callbacks=lambda k: [md.callbacks.{name}(f"run-{{k}}")]'
                )
        return [copy.deepcopy(first) for _ in range(count)] if count > 1 else [first]
    try:
        signature(given).bind(0)
    except TypeError as error:
        raise ArgumentError(
            f"{label}: a function is called with the model's number: {error}; write lambda k: [...]"
        ) from error
    except ValueError:
        pass  # one of C that does not say what it takes
    found, owners = [], dict[int, int]()
    for number in range(count):
        own = listed(
            f"{label}({number})", given(number), Callback, "[md.callbacks.EarlyStopping()]"
        )
        for callback in own:
            owner = owners.setdefault(id(callback), number)
            if owner != number:
                raise ArgumentError(
                    f"{label}({number}) gives the {type(callback).__name__} of model {owner} again; make one "
                    "for each model"
                )
        found.append(own)
    return found


def note_shared(
    what: str, own: Sequence[Rows | None], held: Sequence[Rows | None], available: int
) -> None:
    """Say, once, which model is validated on rows that it is trained on."""
    for number, (rows, others) in enumerate(zip(own, held, strict=True)):
        if others is None:
            continue
        if rows is None:
            words = f"is trained on all rows: give rows=[...] without the {len(others)} of validation_rows"
        else:
            is_own = np.zeros(available, bool)
            is_own[rows] = True
            if not (count := np.count_nonzero(is_own[others])):
                continue
            words = f"is trained on {count} of its {len(others)} validation_rows"
        note(f"{what}: models[{number}] {words}; validation figures are then too good")
        return


def rows_for(what: str, given: Any, count: int, available: int) -> list[Rows | None]:
    """The rows of each model; None for all.

    Raises:
        ArgumentError: if there are not as many lists as models, or one is no list of numbers.
        DataError: if one is empty.
        IndexOutOfRangeError: if a row is not there.
    """
    if given is None:
        return [None] * count
    if not isinstance(given, (list, tuple)) or len(given) != count:
        got = f"{len(given)}" if isinstance(given, (list, tuple)) else quoted(given)
        raise ArgumentError(f"{what} must be a list of {count}, rows for each model, got {got}")
    return [
        None if one is None else _checked_rows(f"{what}[{number}]", one, available)
        for number, one in enumerate(given)
    ]


def _checked_rows(what: str, given: Any, available: int) -> Rows:
    try:
        found = np.asarray(given)
    except ValueError:
        found = np.zeros((), object)
    if found.ndim != 1 or (found.dtype.kind not in "iub" and found.size):
        raise ArgumentError(f"{what} must be row numbers, or True and False, got {quoted(given)}")
    if found.dtype.kind == "b":
        if len(found) != available:
            raise ArgumentError(
                f"{what} has {len(found)} values True or False, but x has {available} rows"
            )
        found = np.flatnonzero(found)
    elif len(found) == available >= _FEW and not found.max() > 1 and not found.min() < 0:
        raise ArgumentError(
            f"{what} has {len(found)} numbers that are 0 and 1, one for each row of x: as row numbers they "
            "mean the first two rows; where they choose rows, give True and False: np.asarray(rows, bool)"
        )
    if not found.size:
        raise DataError(f"{what} is empty: there is nothing to train on")
    wrong = (found < 0) | (found >= available)
    if wrong.any():
        raise IndexOutOfRangeError(
            f"{what} holds row {found[wrong][0]}, but x has {available} rows: they are numbered from 0"
        )
    return np.ascontiguousarray(found, np.int64)


def rows_in(what: str, x: Any) -> int:
    """How many rows arrays or tables have."""
    if is_foreign_data(x):
        return int(x.shape[0]) if hasattr(x, "shape") else len(x)
    if isinstance(x, dict) and x:
        return rows_in(what, next(iter(x.values())))
    if isinstance(x, (list, tuple)) and x and any(map(is_foreign_data, x)):
        return rows_in(what, x[0])
    return row_count(x, f"{what}: x")


def taken(value: Any, rows: Rows) -> Any:
    """These rows of arrays or tables, as a copy."""
    if value is None:
        return None
    if is_foreign_data(value):
        if hasattr(value, "iloc"):
            return value.iloc[rows]
        return value.take(rows) if hasattr(value, "combine_chunks") else value[rows]
    if isinstance(value, dict):
        return {key: taken(one, rows) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and any(map(is_foreign_data, value)):
        return type(value)(taken(one, rows) for one in value)
    return rebuild(value, lambda array: take_rows(array, rows))


def sent(values: tuple[Any, ...], device: int) -> tuple[Any, ...]:
    """The values, arrays as copies on a device; as they are where one is none, or there is no room."""
    from magmadnn.runtime.cuda.data.arrays import copied

    found = [
        a for v in values if v is not None and not is_foreign_data(v) for _, a in leaves(v, "x")
    ]
    can = all(
        isinstance(a, np.ndarray) and a.dtype.isnative and a.dtype.name in KEPT and a.size
        for a in found
    )
    if not can or not is_plain(*values) or sum(a.nbytes for a in found) > Room(device).nbytes:
        return values

    def copy_of(array: Any) -> Any:
        return copied(array, device)

    try:
        return tuple(None if v is None else rebuild(v, copy_of) for v in values)
    except OutOfMemoryError:  # somebody else took what was free
        return values


def is_plain(*values: Any) -> bool:
    """Whether all of these are arrays, so that rows of them can be shared by models."""
    if any(map(is_foreign_data, values)):
        return False
    arrays = [a for v in values if v is not None for _, a in leaves(v, "x")]
    return all(isinstance(a, np.ndarray) and not is_mapped(a) for a in arrays)
