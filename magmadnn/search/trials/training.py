"""One training of a trial, in whatever process: from its point to metrics, or why there are none."""

from __future__ import annotations

import statistics
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from magmadnn.errors import MagmaDNNError
from magmadnn.ops import philox
from magmadnn.search.spaces.building import Builder, fit_arguments
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.training import Model
from magmadnn.training.callbacks import Callback
from magmadnn.training.loop.fit import Fit

from .records import DONE, FAILED, NO_MEMORY, Job, Outcome

_KEPT = 64  # models of trials that may go on
_LEFT_OUT = ("epoch", "samples_per_second", "learning_rate", "seconds")


@dataclass
class _Begun:
    """A trial that has been trained for some rungs."""

    model: Model
    rungs: int
    seconds: float
    row: Mapping[str, float]
    rises: Mapping[str, bool | None]


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
    """

    builder: Builder
    data: tuple[Any, Any]
    validation: tuple[Any, Any]
    default: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Callable[[], Sequence[Callback]] = tuple
    seed: int = 0

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
        """The trained model of a job."""
        return self._train(job, None).model

    def _trained(self, job: Job) -> Outcome:
        begun = self._begun.pop(job.trial, None)
        if begun is not None and begun.rungs > job.rung:
            begun = None
        begun = self._train(job, begun)
        self._begun[job.trial] = begun
        while len(self._begun) > _KEPT:
            self._begun.popitem(last=False)
        metrics = _metrics(begun)
        return Outcome(
            DONE,
            metrics,
            parameters_sha256=parameters_sha256(begun.model.values().items()),
            rises=begun.rises,
        )

    def _train(self, job: Job, begun: _Begun | None) -> _Begun:
        if begun is None:
            model = self.builder.model(job.point, self.seed_of(job.trial))
            begun = _Begun(model, 0, 0.0, {}, {})
        size = fit_arguments(job.point, self.default)["batch_size"]
        for rung in range(begun.rungs, job.rung + 1):
            before = job.epochs[rung - 1] if rung else 0
            looks = _Directions()
            history = begun.model.fit(
                *self.data,
                batch_size=size,
                epochs=job.epochs[rung] - before,
                validation_data=self.validation,
                callbacks=[*self.callbacks(), looks],
                verbose=False,
                **self.options,
            )
            begun.rungs, begun.row, begun.rises = rung + 1, history.rows[-1], looks.rises
            begun.seconds += len(history) * statistics.median_low(history["seconds"])
        return begun


class _Directions(Callback):
    """Keeps what metrics say of themselves: whether higher is better."""

    stands_aside = True

    def __init__(self) -> None:
        self.rises: dict[str, bool | None] = {}

    def on_train_begin(self, fit: Fit) -> None:
        """Ask them."""
        self.rises = dict(fit.objective.higher_is_better)


def _metrics(begun: _Begun) -> dict[str, float]:
    """Validation metrics by their names, those of training rows as `train_...`; epochs, seconds.

    An epoch counts with the median of its rung, so that compiling and a pause of the machine do not count.
    """
    row = begun.row
    own = {k.removeprefix("val_"): float(v) for k, v in row.items() if k.startswith("val_")}
    train = {
        f"train_{k}": float(v)
        for k, v in row.items()
        if not k.startswith("val_") and k not in _LEFT_OUT
    }
    return {**own, **train, "epochs": float(row["epoch"]), "seconds": begun.seconds}


def _words(error: BaseException) -> str:
    """The first line of an error."""
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__
