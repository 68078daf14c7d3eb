"""One training of a trial, in whatever process: from its point to metrics, or why there are none."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import ArgumentError, MagmaDNNError, NumericError
from magmadnn.layers.layer import Layer, Parameter
from magmadnn.ops import philox
from magmadnn.runtime.threads import thread_count
from magmadnn.search.spaces.building import Builder, fit_arguments
from magmadnn.storage.checkpoint import parameters_sha256
from magmadnn.training import History, Model, fit_many
from magmadnn.training.callbacks import Callback, EarlyStopping
from magmadnn.training.loop.fit import Fit
from magmadnn.training.loop.given import gpu_of
from magmadnn.training.many.collecting import collecting_seldom
from magmadnn.training.many.folds import note_what_was_learnt
from magmadnn.training.many.following.followers import Leads, keeping
from magmadnn.training.model.saving import model_record
from magmadnn.training.objective.objective import directions_of

from .records import DONE, FAILED, NO_MEMORY, Job, Outcome

Rows = NDArray[np.int64]
_KEPT_BYTES = 1 << 28  # of parameters; optimisers and compiled steps take some times more
_KEPT = 64  # models of trials that may go on
_OF_MANY = frozenset({"shuffle", "class_weight", "augment"})
_LEFT_OUT = ("epoch", "samples_per_second", "learning_rate", "seconds")


class SharedModelError(ArgumentError):
    """`build` gives what it has given before."""


@dataclass
class _Begun:
    """A trial that has been trained for some rungs."""

    models: list[Model]
    rungs: int = 0
    seconds: float = 0.0
    sharing: int = 1  # trials of the largest call that it was trained in, itself included
    rows: Sequence[Mapping[str, float]] = ()
    rises: Mapping[str, bool | None] = field(default_factory=dict)
    failure: str = ""
    built: str = ""


@dataclass
class Task:
    """Everything that a trial needs beside its point.

    Attributes:
        builder: makes models.
        data: x and y of the rows that are trained on.
        validation: x and y of the rows that metrics are of; with weights of rows these too.
        default: `batch_size` and `epochs` where a point does not have them.
        options: further arguments of `fit`.
        callbacks: makes the callbacks of a training.
        seed: of the search.
        folds: rows that are trained on and rows that metrics are of, for each fold; without them `data` and
            `validation` are these. Metrics are then means over the folds.
        goes_on: whether trials may be trained further, so that their models are kept.
        memory_limit: bytes that the trials of this process may take at the same time; None for what is free.
    """

    builder: Builder
    data: tuple[Any, Any]
    validation: tuple[Any, ...]
    default: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Callable[[], Sequence[Callback]] = tuple
    seed: int = 0
    folds: Sequence[tuple[Rows, Rows]] = ()
    goes_on: bool = False
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        self._begun: OrderedDict[int, _Begun] = OrderedDict()
        self._leads = Leads()
        self._built = WeakSet[Layer]()  # layers that were trained

    def seed_of(self, trial: int) -> int:
        """The seed that `build` gets for a trial, which depends on the search's seed and its number only."""
        return philox.first_word(self.seed, philox.stream_of("search: seed", trial))

    @property
    def can_group(self) -> bool:
        """Whether several trials may be trained in one call."""
        return self.options.keys() <= _OF_MANY

    def outcomes(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Train jobs of one stage in one call, each to the bits that it has by itself.

        Where there is no memory for all of them, halves are trained after each other.
        """
        with collecting_seldom(), keeping(self._leads):
            return self._outcomes(jobs)

    def _outcomes(self, jobs: Sequence[Job]) -> list[Outcome]:
        if len(jobs) > 1:
            try:
                return self._together(jobs)
            except MemoryError:
                half = (len(jobs) + 1) // 2
            except Exception:  # one of them disturbs the others
                half = 0
            self._begun.clear()
            if half:
                found = [*self._outcomes(jobs[:half]), *self._outcomes(jobs[half:])]
                return [replace(one, retried=one.retried + 1) for one in found]
        return [self.outcome(job) for job in jobs]

    def outcome(self, job: Job) -> Outcome:
        """Train; what went wrong is an outcome too.

        A trial goes on where its model is still here. Otherwise it is trained anew, through the same rungs,
        which gives the same bits.
        """
        try:
            begun = self._begin(job)
            self._train([(job, begun)])
            return self._result(job, begun)
        except MemoryError as error:
            self._begun.clear()
            return Outcome(NO_MEMORY, reason=_words(error))
        except SharedModelError as error:
            return Outcome(FAILED, reason=_words(error), ends=True)
        except MagmaDNNError as error:
            return Outcome(FAILED, reason=_words(error))
        except Exception as error:
            return Outcome(FAILED, reason=f"{type(error).__name__}: {_words(error)}")

    def model(self, job: Job) -> Model:
        """The trained model of a job; where there are folds, trained on all rows."""
        return replace(self, folds=())._anew(job).models[0]

    def built(self, job: Job) -> str:
        """A digest of the network that `build` makes for a job; empty where it cannot be written down."""
        return _digest(self.builder.model(job.point, self.seed_of(job.trial)))

    def seconds(self, job: Job) -> float:
        """How long the epochs of a job take, all of them from its beginning."""
        return self._anew(job).seconds

    def _anew(self, job: Job) -> _Begun:
        """A trial that is trained from its beginning.

        Raises:
            NumericError: its loss is not finite.
        """
        self._begun.pop(job.trial, None)
        begun = self._begin(job)
        self._train([(job, begun)])
        return begun

    def _begin(self, job: Job) -> _Begun:
        """A trial as it is at the end of its last rung, or at its beginning."""
        begun = self._begun.pop(job.trial, None)
        if begun is not None and begun.rungs <= job.rung:
            return begun
        seed, count = self.seed_of(job.trial), max(1, len(self.folds))
        models = [self.builder.model(job.point, seed) for _ in range(count)]
        self._check_new(models)
        if not job.trial:
            note_what_was_learnt("search", models[0], held=bool(self.folds))
        return _Begun(models, built="" if job.trial else _digest(models[0]))

    def _check_new(self, models: Sequence[Model]) -> None:
        """Look whether what is trained of these models was not trained for an earlier trial.

        Raises:
            SharedModelError: it was, or may be now.
        """
        found = {  # of layers within layers too
            variable.layer: None
            for model in models
            for variable in model.variables()
            if isinstance(variable, Parameter) and variable.layer.is_trainable
        }
        for layer in found:
            if layer in self._built:
                raise SharedModelError(
                    f"build gives the layer {layer.path} of an earlier call again, which was trained for "
                    "another trial: let it make all layers and the model anew in each call"
                )
        self._built.update(found)

    def _together(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcomes of jobs that are trained in one call; some may not be built."""
        members: dict[int, tuple[Job, _Begun]] = {}
        failed: dict[int, Outcome] = {}
        for job in jobs:
            try:
                members[job.trial] = (job, self._begin(job))
            except (MagmaDNNError, ValueError, TypeError) as error:
                failed[job.trial] = self.outcome(job)  # which words the error
                if failed[job.trial].state == DONE:
                    raise error
        self._train(list(members.values()))
        return [
            failed[job.trial] if job.trial in failed else self._result(*members[job.trial])
            for job in jobs
        ]

    def _result(self, job: Job, begun: _Begun) -> Outcome:
        """The outcome of a job that was trained."""
        if begun.failure:
            return Outcome(FAILED, reason=begun.failure)
        self._keep(job.trial, begun)
        each = [_metrics(row, begun.seconds, begun.sharing) for row in begun.rows]
        mean = each[0]
        if len(each) > 1:
            mean = {name: statistics.fmean([one[name] for one in each]) for name in mean}
        return Outcome(
            DONE,
            mean,
            parameters_sha256=models_sha256(begun.models),
            rises=begun.rises,
            folds=tuple(map(_validated, begun.rows)) if self.folds else (),
            built=begun.built,
        )

    def forget(self) -> None:
        """Let go of the models of trials that might have gone on."""
        self._begun.clear()
        self._leads = Leads()

    def _keep(self, trial: int, begun: _Begun) -> None:
        """Keep the models of a trial that may go on, and of others as many as there is room for."""
        if not self.goes_on:
            return
        self._begun[trial] = begun
        while len(self._begun) > _KEPT or sum(map(_nbytes, self._begun.values())) > _KEPT_BYTES:
            self._begun.popitem(last=False)

    def _train(self, members: Sequence[tuple[Job, _Begun]]) -> None:
        """Train jobs of one stage up to its rung; those that begin anew go through the rungs before."""
        for rung in range(max((job.rung for job, _ in members), default=-1) + 1):
            due = [(job, b) for job, b in members if b.rungs == rung and not b.failure]
            if due:
                self._train_rung(due, rung)

    def _train_rung(self, due: Sequence[tuple[Job, _Begun]], rung: int) -> None:
        observed = [[_Observed(self.callbacks()) for _ in begun.models] for _, begun in due]
        epochs = [job.epochs[rung] - (job.epochs[rung - 1] if rung else 0) for job, _ in due]
        sizes = [fit_arguments(job.point, self.default)["batch_size"] for job, _ in due]
        if len(due) > 1 or self.folds or self._goes_as_many(due[0][1].models[0]):
            histories = self._fit_many([begun for _, begun in due], observed, epochs, sizes)
        else:
            histories = [[self._fit(due[0][1].models[0], observed[0][0], epochs[0], sizes[0])]]
        for (_, begun), own, seen in zip(due, histories, observed, strict=True):
            begun.failure = next((one.failure for one in seen if one.failure), "")
            if begun.failure:
                continue
            begun.rungs, begun.rises = rung + 1, directions_of(begun.models[0])
            begun.sharing = max(begun.sharing, len(due))
            begun.rows = [one.row_of(history) for one, history in zip(seen, own, strict=True)]
            for history in own:
                begun.seconds += len(history) * history.median_seconds

    def _goes_as_many(self, model: Model) -> bool:
        """Whether a trial that is trained by itself is so by `fit_many`, to the same bits.

        That takes less time between its steps, but has one thread only.
        """
        if self.memory_limit is not None:
            return True
        return self.can_group and gpu_of(model) is None and thread_count() == 1

    def _fit(self, model: Model, own: _Observed, epochs: int, size: int) -> History:
        """Train one model by itself."""
        return model.fit(
            *self.data,
            batch_size=size,
            epochs=epochs,
            validation_data=self.validation,
            callbacks=own.all,
            verbose=False,
            **self.options,
        )

    def _fit_many(
        self,
        members: Sequence[_Begun],
        observed: Sequence[Sequence[_Observed]],
        epochs: Sequence[int],
        sizes: Sequence[int],
    ) -> list[list[History]]:
        """Train all models of several trials in one call; the histories of each trial."""
        count = max(1, len(self.folds))
        flat = [one for own in observed for one in own]
        rows: dict[str, Any] = {"validation_data": self.validation}
        if self.folds:
            rows = {
                "rows": [train for train, _ in self.folds] * len(members),
                "validation_rows": [held for _, held in self.folds] * len(members),
            }
        histories = fit_many(
            [model for begun in members for model in begun.models],
            self.data[0],
            self.data[1],
            batch_size=[size for size in sizes for _ in range(count)],
            epochs=[number for number in epochs for _ in range(count)],
            callbacks=lambda number: flat[number].all,
            memory_limit=self.memory_limit,
            parallel=False,
            verbose=False,
            **rows,
            **self.options,
        )
        return [histories[k : k + count] for k in range(0, len(histories), count)]


def models_sha256(models: Sequence[Model]) -> str:
    """Of the parameters of all models."""
    return parameters_sha256(
        (name if len(models) == 1 else f"{k}/{name}", variable.node.value.read())
        for k, model in enumerate(models)
        for name, variable in model.named().items()
    )


def _digest(model: Model) -> str:
    """Of all about a model but its values; empty where a part of it cannot be written down."""
    try:
        record = {**model_record(model), "preparation": type(model.preparation).__name__}
        text = json.dumps(record, sort_keys=True)
    except (MagmaDNNError, TypeError, ValueError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _nbytes(begun: _Begun) -> int:
    """Bytes of the parameters of a trial's models."""
    return sum(value.nbytes for model in begun.models for value in model.values().values())


class _Forgiving(Callback):
    """Keeps why a training has failed, which is an outcome, and disturbs no other trial."""

    stands_aside = True

    def __init__(self) -> None:
        self.failure = ""

    def forgives(self, fit: Fit, error: NumericError) -> bool:
        """A number that is not finite ends this training only."""
        self.failure = _words(error)
        return True


class _Observed:
    """What is known of a training beside its history.

    Args:
        callbacks: the user's.

    Attributes:
        all: callbacks of the training.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._forgiving = _Forgiving()
        self.all = [*callbacks, self._forgiving]

    @property
    def failure(self) -> str:
        """Why it has failed; empty if it has not."""
        return self._forgiving.failure

    def row_of(self, history: History) -> Mapping[str, float]:
        """The row of the epoch whose parameters the model has, and how many epochs there were."""
        last = history.last
        for one in self.all:
            if isinstance(one, EarlyStopping) and one.restore_best and one.best_epoch:
                best = one.best_epoch
                own = next((row for row in history.rows if row["epoch"] == best), last)
                return {**own, "epoch": last["epoch"]}
        return last


def _metrics(row: Mapping[str, float], seconds: float, sharing: int) -> dict[str, float]:
    """Validation metrics by their names, those of training rows as `train_...`; epochs, seconds.

    An epoch counts with the median of its rung, so that compiling and a pause of the machine do not count.
    `sharing_seconds` marks times that are shares of those of a call that trained several trials.
    """
    train = {
        f"train_{k}": float(v)
        for k, v in row.items()
        if not k.startswith("val_") and k not in _LEFT_OUT
    }
    times = {"seconds": seconds, "sharing_seconds": float(sharing)}
    return {**_validated(row), **train, "epochs": float(row["epoch"]), **times}


def _validated(row: Mapping[str, float]) -> dict[str, float]:
    return {k.removeprefix("val_"): float(v) for k, v in row.items() if k.startswith("val_")}


def _words(error: BaseException) -> str:
    """The first line of an error."""
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__
