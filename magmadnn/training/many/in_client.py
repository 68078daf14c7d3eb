"""What callbacks in the client see of a training by workers, and what of it travels to these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.errors import ArgumentError
from magmadnn.memory.dtypes import refuse_masked
from magmadnn.optim import Optimizer, Schedule
from magmadnn.optim.inputs import Settings
from magmadnn.optim.records import Record, Setting
from magmadnn.optim.records import restore as restored
from magmadnn.optim.step import COUNT
from magmadnn.training.arguments import TRAINED_NOW
from magmadnn.training.callbacks import Callback
from magmadnn.training.loop.history import History
from magmadnn.training.loop.together import versions_of, written_since
from magmadnn.training.model.training_step import carried_from
from magmadnn.training.objective.heads import heads_of

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

# What is told to the workers, arrays, settings that callbacks have set: the history of an epoch.
Trained = Callable[[dict[str, Any], Sequence[Any], Mapping[str, Setting]], History]


class Arrays:
    """Arrays in nested lists and dicts, by number in one list.

    Attributes:
        all: the arrays.
    """

    def __init__(self, arrays: Sequence[Any] = ()) -> None:
        self.all = list(arrays)

    def numbered(self, value: Any) -> Any:
        """The value as JSON data, arrays by number.

        Raises:
            ArgumentError: if something in it is no array.
            DataError: if elements are masked.
        """
        if value is None:
            return None
        refuse_masked("fit", value)
        if isinstance(value, Mapping):
            return {"dict": {str(name): self.numbered(one) for name, one in value.items()}}
        if isinstance(value, (list, tuple)) and any(np.ndim(one) for one in value):
            return {"list": [self.numbered(one) for one in value]}
        array = np.asarray(value, order="C")
        if array.dtype.hasobject or array.dtype.kind in "US":
            raise ArgumentError(
                f"fit: workers are sent arrays of numbers, got {type(value).__name__} of {array.dtype}: give "
                "arrays of numbers, or use magmadnn launch"
            )
        self.all.append(array)
        return {"array": len(self.all) - 1, "shape": list(array.shape)}

    def value(self, record: Any) -> Any:
        """What `numbered` was given."""
        if record is None:
            return None
        if "dict" in record:
            return {name: self.value(one) for name, one in record["dict"].items()}
        if "list" in record:
            return [self.value(one) for one in record["list"]]
        return self.all[record["array"]].reshape(record["shape"])


def settings_record(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """What callbacks have set, as JSON: numbers and schedules.

    Raises:
        ArgumentError: for a function of one's own.
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if callable(value) and not isinstance(value, Record):
            raise ArgumentError(
                f"fit: {name} was set to a function, which cannot travel to the workers of md.workers: set a "
                "number in each epoch (md.callbacks.Schedule), a schedule of md.optim, or use magmadnn launch"
            )
        found[name] = value.config() if isinstance(value, Record) else float(value)
    return found


def settings_from(record: Mapping[str, Any]) -> dict[str, Setting]:
    """What `settings_record` was given."""
    return {
        name: restored(Schedule, value) if isinstance(value, dict) else value  # type: ignore[type-abstract]
        for name, value in record.items()
    }


class ClientStep:
    """The optimiser's settings, which callbacks read and set; all else of the step is on the workers.

    Args:
        optimizer: of the model.
        overrides: what is set over its own settings.
    """

    def __init__(self, optimizer: Optimizer, overrides: Mapping[str, Setting]) -> None:
        self._settings = Settings(optimizer, optimizer.parts())
        self._settings.set(overrides)
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ArgumentError(
            f"fit: a callback asks for step.{name}, which workers have and the client has not: use magmadnn "
            "launch"
        )

    @property
    def overrides(self) -> dict[str, Setting]:
        """See `Step.overrides`."""
        return dict(self._settings.overrides)

    @property
    def settings(self) -> dict[str, float]:
        """See `Step.settings`."""
        return self._settings.values(self.count)

    @property
    def settings_before(self) -> dict[str, float]:
        """See `Step.settings_before`."""
        return self.settings_of(max(self.count - 1, 0))

    def settings_of(self, number: int) -> dict[str, float]:
        """See `Step.settings_of`."""
        return self._settings.values(number)

    def source(self, setting: str) -> Setting | None:
        """See `Step.source`."""
        return self._settings.source(setting)

    def set(self, **settings: Setting | None) -> None:
        """See `Step.set`; a function of one's own does not travel.

        Raises:
            UnknownNameError: if there is no such setting.
            ArgumentError: for a function, a number out of range, or a setting without a part in this step.
        """
        settings_record({name: value for name, value in settings.items() if value is not None})
        self._settings.set(settings)


class ClientFit:
    """What callbacks in the client see of a training by workers: the attributes of `Fit` that need no batch.

    Args:
        model: which is what workers have trained, after each epoch.
        first: the first epoch.
        last: where training ends.
        callbacks: that are called here.
    """

    def __init__(self, model: Model, first: int, last: int, callbacks: Sequence[Callback]) -> None:
        self.model, self.begin, self.epoch, self.epochs = model, first, first, last
        self.callbacks = sorted(callbacks, key=lambda callback: callback.comes_last)
        self.history, self.row = History(), dict[str, Any]()
        self.last_loss = float("nan")
        self.stopped: str | None = None
        self.goes_on = self.completed = False
        carried = carried_from(model)
        if model._given is not None:  # else workers say what is missing
            self.step = ClientStep(model._given, {} if carried is None else carried.settings)
            self._note_count()
        self._versions = versions_of(model)
        heads = heads_of(model)
        self._higher: dict[str, bool | None] = {"loss": False}
        self._higher |= {head.column: False for head in heads if head.column is not None}
        self._higher |= {
            c: one.higher_is_better for head in heads for c, one in head.metrics.items()
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ArgumentError(
            f"fit: a callback asks for {name}, which workers have and the client has not: use magmadnn launch"
        )

    def stop(self, reason: str, *, goes_on: bool = False) -> None:
        """End training after this epoch."""
        if self.stopped is None:
            self.stopped, self.goes_on = reason, goes_on

    def measures(self, column: str) -> bool:
        """See `Fit.measures`."""
        return column.removeprefix("val_") in self._higher

    def higher_is_better(self, column: str) -> bool | None:
        """See `Fit.higher_is_better`."""
        return self._higher.get(column.removeprefix("val_"))

    @property
    def is_stopping(self) -> bool:
        """Whether something has asked to stop."""
        return self.stopped is not None

    def values(self) -> dict[str, Any]:
        """Copies of the model's parameters and states."""
        return self.model.values()

    def run(self, options: Mapping[str, Any], held: Arrays, trained: Trained) -> History:
        """Train an epoch after the other; data travels with the first only, values where they were set."""
        this: Any = self
        TRAINED_NOW.add(self.model)
        made_for = self.model.made_for()
        with ExitStack() as ends:
            ends.callback(TRAINED_NOW.discard, self.model)
            ends.callback(self._keep_settings)
            for callback in self.callbacks:
                ends.callback(callback.on_train_end, this)
                callback.begin(this)
            while self.epoch < self.epochs and self.stopped is None:
                for callback in self.callbacks:
                    callback.on_epoch_begin(this)
                self.model.check_still_trained(made_for)
                if self.stopped is not None:
                    break
                self._train(options, held, trained)
                self.epoch += 1  # before it is told of, as in `Fit`
                for callback in self.callbacks:
                    callback.on_epoch_end(this)
                self.model.check_still_trained(made_for)
            self.completed = True
            self.history.stopped = self.stopped
        return self.history

    def _train(self, options: Mapping[str, Any], held: Arrays, trained: Trained) -> None:
        """Let workers train an epoch, from what callbacks have set."""
        settings, again = self._overrides(), self.epoch > self.begin
        changed: dict[str, Any] = {
            "options": {**options, "epochs": self.epoch + 1, "initial_epoch": self.epoch},
            "settings": settings_record(settings),
            "again": again,
        }
        sent = Arrays([] if again else held.all)
        if written_since(self.model, self._versions):
            changed["values"] = sent.numbered(self.model.values())
        elif again:
            changed["values"] = None
        history = trained(changed, sent.all, settings)
        self._versions = versions_of(self.model)
        self._note_count()
        self.row = history.rows[-1]
        self.history.rows += history.rows
        self.last_loss, self.stopped = self.row["loss"], self.stopped or history.stopped

    def _note_count(self) -> None:
        """Schedules count the optimiser's steps."""
        carried = carried_from(self.model)
        if carried is not None and "step" in vars(self):
            self.step.count = int(carried.state.get(COUNT, 0))

    def _overrides(self) -> dict[str, Setting]:
        return self.step.overrides if "step" in vars(self) else {}

    def _keep_settings(self) -> None:
        """What callbacks have set stays, as after a training without workers."""
        if (carried := self.model._carried) is not None:
            self.model._carried = replace(carried, settings=self._overrides())
