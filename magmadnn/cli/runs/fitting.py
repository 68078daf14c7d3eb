"""The trainings of a run: one that validates, and with `--refit` another on all rows; then the result."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from magmadnn import optim
from magmadnn.cli.arguments import as_typed
from magmadnn.cli.console import Console
from magmadnn.cli.ending import Terminated
from magmadnn.data import Dataset
from magmadnn.errors import OutOfMemoryError
from magmadnn.models import by_name
from magmadnn.models.network import rows_of_batch
from magmadnn.training import History, Model
from magmadnn.training.callbacks import Callback, Checkpoint, EarlyStopping
from magmadnn.training.callbacks.progress import Progress
from magmadnn.training.loop.fit import Fit
from magmadnn.training.model.summary import summary_text

from .outputs import write_history, write_json, write_results
from .results import say_result
from .selection import Selection, read_selection
from .settings import Settings, trained_rows
from .sharing import way_of

REFIT = "refit"  # the folder of the second training, in that of the run


@dataclass(frozen=True)
class Run:
    """A run of `magmadnn train`.

    Attributes:
        folder: where everything goes.
        settings: complete.
        data: training and test rows, with statistics of all training rows.
        say: prints a line, or does not.
        loader_workers: threads that change images at random.
        parallel: how workers share the training; None for data parallel on several.
        memory_limit: bytes that a step may take on each worker; None for what is free.
    """

    folder: Path
    settings: Settings
    data: Dataset
    say: Console
    loader_workers: int = 1
    parallel: str | None = None
    memory_limit: int | None = None


@dataclass(frozen=True)
class Training:
    """One training of a run.

    Attributes:
        settings: its own.
        data: with statistics of the rows that are trained on.
        model: with initial parameters.
    """

    settings: Settings
    data: Dataset
    model: Model

    @classmethod
    def of(cls, settings: Settings, data: Dataset) -> Training:
        """The training that settings ask for, on data that was read."""
        data = data.keeping_back(settings.validation_split, settings.seed)
        return cls(settings, data, build_model(settings, data))

    @classmethod
    def anew(cls, settings: Settings, data: Dataset) -> Training:
        """The training on all training rows.

        An epoch means what it meant in the first training: the rate falls over as many epochs as there, and
        is the same at the end of each, so that training to the best epoch ends before it is 0.
        """
        rows = len(data.x_train)
        size = rows_of_batch(
            settings.batch_size, trained_rows(rows, settings.validation_split), rows
        )
        return cls.of(replace(settings, validation_split=0.0, batch_size=size), data)


def train(run: Run, first: Training) -> int:
    """Train from the last checkpoint, if there is one, and write what comes of it; returns the exit code."""
    settings, say = run.settings, run.say
    preset = by_name(settings.model).preset(settings.preset)
    say(
        f"\n{settings.model}, preset {settings.preset}, seed {settings.seed}, on {first.model.device}\n"
    )
    say(summary_text(first.model) + "\n")
    if preset.note:
        say(f"note: {preset.note}")
    say(f"output in {run.folder}")
    training, selection = first, read_selection(run.folder) if settings.refit else None
    if selection is None:
        history, best = _fit(run, training, run.folder, settings.epochs)
        if settings.validation_split:
            selection = Selection.of(history, best)
    if settings.refit and selection is not None:
        selection.write(run.folder)
        training = Training.anew(settings, run.data)
        say(
            f"\nepoch {selection.best_epoch} of {selection.epochs} is the best on the validation rows: "
            f"training anew up to that epoch, with these, on {len(run.data.x_train):,} rows"
        )
        history, _ = _fit(run, training, run.folder / REFIT, selection.best_epoch)
    result = write_results(run.folder, training.model, training.data, history, settings, selection)
    say_result(result, say)
    if settings.json is not None:
        write_json(settings.json, result)
    return 0


def _fit(run: Run, training: Training, folder: Path, epochs: int) -> tuple[History, int | None]:
    """Train, keeping state and history in a folder; the history, and the best epoch where rows validate.

    The model then has the parameters of the best epoch.
    """
    settings, say = training.settings, run.say
    checkpoint = Checkpoint(folder, every_steps=settings.checkpoint_every)
    best = EarlyStopping("val_loss", patience=epochs, restore_best=True)
    validating: list[Callback] = [best] if settings.validation_split else []
    progress: list[Callback] = [] if say.quiet else [Progress()]
    x, y = training.data.train()
    try:
        way = way_of(run.parallel, training.model, x, y, settings.batch_size, say, run.memory_limit)
        history = training.model.fit(
            x,
            y,
            batch_size=settings.batch_size,
            epochs=epochs,
            validation_split=settings.validation_split,
            callbacks=[*validating, *progress, _HistoryFiles(folder), checkpoint],
            augment=None if settings.augment == "none" else settings.augment,
            loader_workers=run.loader_workers,
            prepared=True,
            parallel=way,
            memory_limit=run.memory_limit,
            verbose=False,
        )
    except OutOfMemoryError as error:
        raise OutOfMemoryError(as_typed(str(error))) from error
    except (KeyboardInterrupt, Terminated):
        if checkpoint.interrupted_by is not None and checkpoint.is_saved:
            name = signal.Signals(checkpoint.interrupted_by).name
            say(f"{name}: the state is saved; go on with: magmadnn train --resume {run.folder}")
        raise
    write_history(history, folder, say)
    return history, best.best_epoch


def _steps(settings: Settings, rows: int) -> int:
    """How many steps the epochs have that the rate is planned for."""
    kept = trained_rows(rows, settings.validation_split)
    return settings.epochs * -(-kept // settings.batch_size)


def build_model(settings: Settings, data: Dataset) -> Model:
    """The model that settings and data ask for."""
    preparation = data.preparation
    classes = len(preparation.classes)
    rate: Any = settings.lr
    if settings.cosine:
        rate = optim.cosine(settings.lr, _steps(settings, len(data.x_train)))
    decay = {} if settings.weight_decay is None else {"weight_decay": settings.weight_decay}
    return by_name(settings.model).model(
        preparation.prepared_shape,
        classes or int(np.prod(preparation.target_shape)),
        settings,
        loss="cross_entropy" if classes else "mse",
        optimizer=optim.by_name(settings.optimizer, learning_rate=rate, **decay),
        metrics=metrics_of(data),
        seed=settings.seed,
        precision=settings.precision,
        device=settings.device,
        preparation=preparation,
    )


def metrics_of(data: Dataset) -> list[str]:
    """What is measured beside the loss: of classes their accuracy, of quantities two figures."""
    return ["accuracy"] if data.preparation.classes else ["rmse", "r2"]


class _HistoryFiles(Callback):
    """Keeps history.csv and history.json up to date, to a second."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._written = folder, -math.inf

    def on_epoch_end(self, fit: Fit) -> None:
        """Write both anew, if it is time."""
        if time.monotonic() - self._written >= 1:
            self.on_train_end(fit)
            self._written = time.monotonic()

    def on_train_end(self, fit: Fit) -> None:
        """Write both anew."""
        if len(fit.history):
            fit.history.to_csv(self.folder / "history.csv")
            fit.history.to_json(self.folder / "history.json")
