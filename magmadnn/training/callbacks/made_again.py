"""Callbacks as data: what another process makes callbacks from that do the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .averages import ExponentialMovingAverage
from .callback import Callback
from .checkpoints import Checkpoint
from .early_stopping import EarlyStopping
from .logs import CSVLogger
from .plateau import ReduceLROnPlateau
from .time_limit import TimeLimit

_ALL: Final = (
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    ExponentialMovingAverage,
    ReduceLROnPlateau,
    TimeLimit,
)
_KINDS: Final[Mapping[str, type[Callback]]] = {kind.__name__: kind for kind in _ALL}


def told_of(callback: Callback) -> dict[str, Any] | None:
    """A callback as JSON data; None for one of another class, or one that holds a function."""
    if type(callback) not in _ALL:
        return None
    return {"kind": type(callback).__name__, "arguments": callback.arguments()}


def made_from(record: Mapping[str, Any]) -> Callback:
    """A new callback like the one that `told_of` was given."""
    return _KINDS[record["kind"]](**record["arguments"])
