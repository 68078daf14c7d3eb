"""One training of a trial, in whatever process: from its point to metrics, or why there are none."""

from __future__ import annotations

import statistics
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import MagmaDNNError, NumericError
from magmadnn.ops import philox
from magmadnn.search.spaces.building import Builder, fit_arguments
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.training import History, Model, fit_many
from magmadnn.training.callbacks import Callback
from magmadnn.training.loop.fit import Fit

from .records import DONE, FAILED, NO_MEMORY, Job, Outcome

Rows = NDArray[np.int64]
_KEPT = 64  # models of trials that may go on
_LEFT_OUT = ("epoch", "samples_per_second", "learning_rate", "seconds")


@dataclass
class _Begun:
    """A trial that has been trained for some rungs."""

    models: list[Model]
    rungs: int = 0
    seconds: float = 0.0
    rows: Sequence[Mapping[str, float]] = ()
    rises: Mapping[str, bool | None] = field(default_factory=dict)


@dataclass
class Task:
    """Everything that a trial needs beside its point.

    Attributes:
        builder: makes models.
        data: x and y of the rows that are trained on.
        validation: x and y of the rows that metrics are of.
        default: `batch_size` and `epochs` where a point does not have them.
        options: further arguments of `fit`.
        callbacks: makes the callbacks of a training.
        seed: of the search.
        folds: rows that are trained on and rows that metrics are of, for each fold; without them `data` and
            `validation` are these. Metrics are then means over the folds.
    """

    builder: Builder
    data: tuple[Any, Any]
    validation: tuple[Any, Any]
    default: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Callable[[], Sequence[Callback]] = tuple
    seed: int = 0
    folds: Sequence[tuple[Rows, Rows]] = ()

    def __post_init__(self) -> None:
        self._begun: OrderedDict[int, _Begun] = OrderedDict()

    def seed_of(self, trial: int) -> int:
        """The seed that `build` gets for a trial, which depends on the search's seed and its number only."""
        return int(philox.random_bits(self.seed, philox.stream_of("search: seed", trial), 1)[0])

    def outcome(self, job: Job) -> Outcome:
        """Train; what went wrong is an outcome too.

        A trial goes on where its model is still here. Otherwise it is trained anew, through the same rungs,
        which gives the same bits.
        """
        try:
            return self._trained(job)
        except MemoryError as error:
            self._begun.clear()
            return Outcome(NO_MEMORY, reason=_words(error))
        except MagmaDNNError as error:
            return Outcome(FAILED, reason=_words(error))
        except Exception as error:
            return Outcome(FAILED, reason=f"{type(error).__name__}: {_words(error)}")

    def model(self, job: Job) -> Model:
        """The trained model of a job; where there are folds, trained on all rows."""
        return replace(self, folds=())._train(job, None).models[0]

    def seconds(self, job: Job) -> float:
        """How long the epochs of a job take, all of them from its beginning."""
        return self._train(job, None).seconds

    def _trained(self, job: Job) -> Outcome:
        begun = self._begun.pop(job.trial, None)
        if begun is not None and begun.rungs > job.rung:
            begun = None
        begun = self._train(job, begun)
        self._begun[job.trial] = begun
        while len(self._begun) > _KEPT:
            self._begun.popitem(last=False)
        each = [_metrics(row, begun.seconds) for row in begun.rows]
        mean = {name: statistics.fmean(one[name] for one in each) for name in each[0]}
        return Outcome(
            DONE,
            mean,
            parameters_sha256=models_sha256(begun.models),
            rises=begun.rises,
            folds=tuple(map(_validated, begun.rows)) if self.folds else (),
        )

    def _train(self, job: Job, begun: _Begun | None) -> _Begun:
        if begun is None:
            seed, count = self.seed_of(job.trial), max(1, len(self.folds))
            begun = _Begun([self.builder.model(job.point, seed) for _ in range(count)])
        size = fit_arguments(job.point, self.default)["batch_size"]
        for rung in range(begun.rungs, job.rung + 1):
            before = job.epochs[rung - 1] if rung else 0
            looks = [_Directions() for _ in begun.models]
            given = {"batch_size": size, "epochs": job.epochs[rung] - before, **self.options}
            if self.folds:
                histories = self._fit_folds(begun.models, looks, given)
            else:
                callbacks = [*self.callbacks(), *looks]
                history = begun.models[0].fit(
                    *self.data,
                    validation_data=self.validation,
                    callbacks=callbacks,
                    verbose=False,
                    **given,
                )
                histories = [history]
            begun.rungs, begun.rises = rung + 1, looks[0].rises
            begun.rows = [history.rows[-1] for history in histories]
            for history in histories:
                begun.seconds += len(history) * statistics.median_low(history["seconds"])
        return begun

    def _fit_folds(
        self, models: list[Model], looks: Sequence[_Directions], given: Mapping[str, Any]
    ) -> list[History]:
        """Train a model for each fold.

        Raises:
            NumericError: the loss of one is not finite.
        """
        histories = fit_many(
            models,
            *self.data,
            rows=[train for train, _ in self.folds],
            validation_rows=[held for _, held in self.folds],
            callbacks=lambda number: [*self.callbacks(), looks[number]],
            verbose=False,
            **given,
        )
        for number, history in enumerate(histories):
            if history.failed:
                raise NumericError(f"fold {number}: {history.stopped}")
        return histories


def models_sha256(models: Sequence[Model]) -> str:
    """Of the parameters of all models."""
    return parameters_sha256(
        (name if len(models) == 1 else f"{k}/{name}", value)
        for k, model in enumerate(models)
        for name, value in model.values().items()
    )


class _Directions(Callback):
    """Keeps what metrics say of themselves: whether higher is better."""

    stands_aside = True

    def __init__(self) -> None:
        self.rises: dict[str, bool | None] = {}

    def on_train_begin(self, fit: Fit) -> None:
        """Ask them."""
        self.rises = dict(fit.objective.higher_is_better)


def _metrics(row: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Validation metrics by their names, those of training rows as `train_...`; epochs, seconds.

    An epoch counts with the median of its rung, so that compiling and a pause of the machine do not count.
    """
    train = {
        f"train_{k}": float(v)
        for k, v in row.items()
        if not k.startswith("val_") and k not in _LEFT_OUT
    }
    return {**_validated(row), **train, "epochs": float(row["epoch"]), "seconds": seconds}


def _validated(row: Mapping[str, float]) -> dict[str, float]:
    return {k.removeprefix("val_"): float(v) for k, v in row.items() if k.startswith("val_")}


def _words(error: BaseException) -> str:
    """The first line of an error."""
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__
