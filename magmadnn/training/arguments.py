"""Checks of the arguments of public calls: numbers, shares, lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from magmadnn.errors import ArgumentError, quoted

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

TRAINED_NOW: WeakSet[Model] = WeakSet()  # models that a fit is under way for


def refuse_while_training(model: Model, what: str) -> None:
    """Look whether a model is being trained, by whose callback or in whichever thread.

    Raises:
        ArgumentError: if so.
    """
    if model in TRAINED_NOW:
        raise ArgumentError(
            f"{what}: this model is being trained; wait until its fit has returned, or use a copy: "
            "copy.deepcopy(model)"
        )


def at_least(what: str, value: Any, least: int) -> None:
    """Look whether an argument is an integer of at least `least`.

    Raises:
        ArgumentError: if not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ArgumentError(f"{what} must be an integer of at least {least}, got {value!r}")


def check_share(what: str, value: Any) -> None:
    """Look whether an argument is a number from 0 up to, not including, 1.

    Raises:
        ArgumentError: if not.
    """
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not 0 <= value < 1:
        raise ArgumentError(f"{what} must be at least 0 and below 1, got {value!r}")


def check_order(shuffle: Any) -> None:
    """Look whether `shuffle` of `fit` says in which order rows come.

    Raises:
        ArgumentError: if it is neither True nor False.
    """
    if not isinstance(shuffle, (bool, np.bool)):
        raise ArgumentError(f"fit: shuffle must be True or False, got {shuffle!r}")


def epochs_of(epochs: Any, initial_epoch: Any, done: int) -> tuple[int, int]:
    """The first epoch, counted from 0, and the one before which training ends.

    Args:
        epochs: how many; the end where the first one is given.
        initial_epoch: the first one; None to go on after those that are done.
        done: how many are.

    Raises:
        ArgumentError: if one is no number of epochs, or the end is before the beginning.
    """
    at_least("fit: epochs", epochs, 0)
    if initial_epoch is None:
        return done, done + int(epochs)
    at_least("fit: initial_epoch", initial_epoch, 0)
    if epochs < initial_epoch:
        raise ArgumentError(
            f"fit: with initial_epoch={initial_epoch} training ends after epoch {epochs}, before it begins: "
            f"epochs counts those before initial_epoch too; give epochs={initial_epoch + epochs} for "
            f"{epochs} epochs, or leave initial_epoch out"
        )
    return int(initial_epoch), int(epochs)


def listed(what: str, values: Any, kind: type, example: str) -> list[Any]:
    """Several things of a kind, as a list.

    Raises:
        ArgumentError: if it is no list of them.
    """
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [None]
    if all(isinstance(value, kind) and value is not None for value in found):
        return found
    for value in found:
        if isinstance(value, type):
            raise ArgumentError(
                f"{what}: got the class {value.__name__}, expected an instance: write {value.__name__}(...)"
            )
    way_out = ""
    if isinstance(values, kind):
        values, way_out = type(values).__name__, "; put it into a list"
    raise ArgumentError(f"{what} must be a list such as {example}, got {quoted(values)}{way_out}")


def checked_limit(what: str, limit: Any) -> int | None:
    """A limit of memory that a caller has given.

    Raises:
        ArgumentError: if it is no number of bytes.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ArgumentError(
            f"{what}: memory_limit must be a number of bytes of at least 1, got {quoted(limit)}"
        )
    return limit
