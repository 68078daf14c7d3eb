"""`run`: a search from its arguments to the study."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, quoted
from magmadnn.storage.disk import as_path
from magmadnn.training.arguments import at_least, checked_limit
from magmadnn.training.callbacks import Callback

from .given import (
    check_alone,
    check_callbacks,
    check_ranks,
    check_seconds,
    check_stratified,
    check_validation,
    first_points,
    fit_options_of,
    mapping_of,
    split_data,
    split_weights,
)
from .judging import Judge
from .methods.choosing import check_ends, method_of
from .objectives import Reaches, objectives_of, reads_time
from .progress import SearchProgress
from .same_study import check_same, plain_callbacks, plain_options
from .spaces.building import Builder, check_fit_parameters
from .spaces.space import Space
from .study import Study
from .study_folder import Logged, StudyFolder
from .study_plan import Ends, Plan, check_keeps
from .trials.records import FAILED, Job, Outcome, trials_of
from .trials.rows import check_same_rows, data_sha256, folds_of, is_small
from .trials.schedule import Schedule
from .trials.training import Task
from .workers.places import Elsewhere, Here, Place, place_elsewhere
from .workers.pool import Pool

_TOGETHER = 32  # trials that are trained in one call
_CALLS = 4  # of each process elsewhere, at least
_HOPELESS = 10  # first trials that must not all fail; nor fewer with one text


@checked_call
def run(
    build: Callable[..., Any],
    space: Mapping[str, Any],
    x: Any,
    y: Any = None,
    *,
    method: str = "random",
    objective: Any = None,
    trials: int | None = None,
    epochs: int = 10,
    batch_size: int = 32,
    until: Reaches | None = None,
    total_epochs: int | None = None,
    total_seconds: float | None = None,
    validation_split: float | None = None,
    validation_data: Any = None,
    folds: int | None = None,
    stratified: bool | None = None,
    first: Sequence[Mapping[str, Any]] | Study = (),
    out: str | Path | None = None,
    resume: bool = False,
    seed: int = 0,
    workers: int | None = None,
    trial_seconds: float | None = None,
    memory_limit: int | None = None,
    callbacks: Callable[[], Sequence[Callback]] = tuple,
    fit_options: Mapping[str, Any] | None = None,
    method_options: Mapping[str, Any] | None = None,
    verbose: bool = False,
) -> Study:
    """Search the values of parameters with which a network becomes best on rows that are kept back.

    A point of the space is one value for each parameter. `batch_size` and `epochs` of a point go to `fit`,
    the rest to `build`; `lr` means `learning_rate`. `build` also gets `seed`, another for each trial, where
    it has such an argument and the space does not. The table of trials is the same each time, whatever
    kills it in between.

    Args:
        build: a function of the parameters that makes a new Model with loss and optimiser.
        space: dimensions by parameter, such as `{"learning_rate": md.search.log_uniform(1e-4, 1e-1)}`; a
            plain value is the same at all points.
        x: inputs, as for `fit`.
        y: targets.
        method: "grid": all points, of a `log_uniform` range its ends and the powers of ten between;
            "random"; "cem": random with a distribution that learns; "tpe": by Optuna; "halving", "asha" and
            "median", which end poor trials early.
        objective: a metric of the validation rows, `"accuracy"`, which says itself whether high or low is
            better; `"max name"` or `"min name"`; a function of all metrics, which is maximised; or several in
            a list or dict. None: the loss. Metrics of training rows are called `train_...`; `seconds` is the
            time of training.
        trials: most trials; None: all points of a grid.
        epochs: passes of a trial over the data, unless searched.
        batch_size: rows of a step, unless searched.
        until: `md.search.reaches("accuracy", 0.98)`: ends at the first trial, by number, that is as good.
        total_epochs: a budget of epochs of all trials together.
        total_seconds: a budget of time of this call; the table then depends on how fast the machine is.
        validation_split: share of the rows, chosen by seed and the same for all trials, that metrics are of;
            None: 0.2, unless one of the next two is given.
        validation_data: or (x, y) for that.
        folds: or cross validation: each trial is trained once for each fold, and its metrics are the means
            over the rows that are held out.
        stratified: whether each fold has its share of each class; None: where targets are classes.
        first: points that are tried before others; or an older study, whose ten best are.
        out: a new folder that keeps the study; it can be resumed from there.
        resume: go on with the study in `out`: what is done stays done, so that ends by which results would
            count no more are refused.
        seed: of all that is drawn.
        workers: processes that train, each with its share of the cores and, where there are several, a GPU of
            its own; None: this process. The table does not depend on it.
        trial_seconds: after which a training is ended, its process with it; the table then depends on how
            fast the machine is.
        memory_limit: bytes that trials may take at the same time, of all workers together, beside parameters
            and data; None: most of what is free. More trials than that begin as others end; one that has no
            room by itself is "out of memory".
        callbacks: a function that makes the callbacks of one training.
        fit_options: further arguments of `fit`, such as `{"class_weight": "balanced"}`; `sample_weight` has a
            weight for each row of x, and counts in metrics of validation rows too.
        method_options: of the method: see the reference.
        verbose: whether a line is printed for each trial that is better than all before, and on a terminal
            how far the search is.

    Raises:
        ArgumentError: if an argument or the space cannot be used, `build` ignores a parameter or gives layers
            that it gave before, the first ten trials all fail, or all of fewer fail with one text; or if
            several ranks of a job run the same script, as each would do the same search.
        UnknownNameError: if `build` lacks a parameter, or the objective names a metric that there is not.
        CheckpointError: if the study in `out` is damaged.
        FileError: if `out` is in use by another process, holds something else, or cannot be written.
    """
    elsewhere = place_elsewhere()
    if elsewhere is None:
        check_alone()
    _check_numbers(
        {"trials": trials, "total_epochs": total_epochs, "workers": workers},
        {"epochs": epochs, "batch_size": batch_size},
        seed,
    )
    checked_limit("search", memory_limit)
    check_seconds("trial_seconds", trial_seconds)
    check_seconds("total_seconds", total_seconds)
    check_stratified(stratified, folds)
    check_validation(validation_split, validation_data, folds)
    options, made_callbacks = fit_options_of(fit_options), check_callbacks(callbacks)
    builder = Builder.of(build)
    searched = builder.fitting(Space.of(space))
    check_fit_parameters(searched)
    objectives = objectives_of(objective)
    _check_until(until)
    if resume and out is None:
        raise ArgumentError("search: resume: give out, the folder of the study to go on with")
    chosen = method_of(method, searched, seed, trials, mapping_of("method_options", method_options))
    chosen.check()
    other_ends = {"until": until, "total_epochs": total_epochs, "total_seconds": total_seconds}
    check_ends(method, trials, other_ends)
    points = first_points(first, searched)
    if folds is None:
        train, validation = _kept_back(x, y, validation_split, validation_data, options, seed)
        parts: list[Any] = []
    else:
        train = validation = (x, y)
        parts = folds_of(y, check_same_rows(x, y), folds, 0, stratified, seed)
    task = Task(
        builder,
        train,
        validation,
        {"epochs": int(epochs), "batch_size": int(batch_size)},
        options,
        made_callbacks,
        seed,
        parts,
        len(chosen.rungs(epochs)) > 1,
        None if memory_limit is None else max(memory_limit // (workers or 1), 1),
    )
    if memory_limit is not None and not task.can_group:
        raise ArgumentError(
            "search: memory_limit is for trials that fit_many trains: leave it out, or of fit_options all "
            "but class_weight, shuffle and augment"
        )
    if elsewhere is not None:
        check_ranks(workers, trial_seconds)
        elsewhere.known(task)
    plan = Plan(
        searched,
        method,
        chosen.settings(),
        int(seed),
        objectives,
        task.default,
        points,
        data_sha256(*train, *validation, *(held for _, held in parts)),
        len(parts),
    )
    ends = Ends(trials, total_epochs, until)
    judge = Judge(objectives, until)
    alone = trial_seconds is not None or total_seconds is not None or until is not None
    alone = alone or reads_time(objectives) or not task.can_group or not is_small(train)

    def group(stage: int) -> int:
        return 1 if alone else _in_a_call(stage, elsewhere, workers)

    folder = None if out is None else _opened(out, resume, plan, ends, task, judge)
    try:
        schedule = plan.schedule(judge, ends, None if folder is None else folder.logged)
        planned = _planned(method, trials, searched)
        progress = _progress(judge, planned, plan, folder) if verbose else None
        where = elsewhere.place(task) if elsewhere else _place(task, workers, trial_seconds, folder)
        with closing(where) as place:
            try:
                _Search(judge, folder, progress, group).go(schedule, place, total_seconds)
            finally:
                task.forget()
                if progress is not None:
                    progress.ended()
    finally:
        if folder is not None:
            folder.close()
    results = list(schedule.results())
    return Study(
        searched,
        judge.names,
        judge.signs,
        trials_of(results, plan.rungs),
        None if folder is None else folder.path,
        method,
        int(epochs),
        results,
        task,
    )


def _check_numbers(
    optional: Mapping[str, int | None], needed: Mapping[str, int], seed: int
) -> None:
    at_least("search: seed", seed, 0)
    given = {name: value for name, value in optional.items() if value is not None}
    for name, value in (given | dict(needed)).items():
        at_least(f"search: {name}", value, 1)


def _check_until(until: Any) -> None:
    if until is not None and not isinstance(until, Reaches):
        raise ArgumentError(
            f'search: until must be md.search.reaches("accuracy", 0.98) or the like, got {quoted(until)}'
        )


def _kept_back(
    x: Any, y: Any, split: float | None, given: Any, options: dict[str, Any], seed: int
) -> tuple[Any, Any]:
    """Rows to train on and rows to validate on; the weights of `options` become those of the former."""
    train, validation = split_data(x, y, split, given, seed)
    if given is None and options.get("sample_weight") is not None:
        weights = split_weights(options["sample_weight"], x, y, split, seed)
        options["sample_weight"], validation = weights[0], (*validation, weights[1])
    return train, validation


def _opened(
    out: str | Path, resume: bool, plan: Plan, ends: Ends, task: Task, judge: Judge
) -> StudyFolder:
    """The folder that keeps the study, new or the one to go on with, which is refused where it is another."""

    def check_logged(logged: Logged) -> None:
        where = as_path("search: out", out)
        check_keeps(plan, logged, ends, where)
        check_same(task, judge, logged, where)

    identity = plan.plain() | ({"fit_options": plain_options(task.options)} if task.options else {})
    if called := plain_callbacks(task.callbacks()):
        identity["callbacks"] = called
    return StudyFolder(out, identity, ends.plain(), resume, check_logged)


def _progress(
    judge: Judge, planned: int | None, plan: Plan, folder: StudyFolder | None
) -> SearchProgress:
    """What is printed; it knows the results that the folder has already."""
    made = SearchProgress(judge.names, planned, plan.rungs)
    if folder is not None:
        for job, outcome in folder.logged.results.values():
            made.known(job, outcome, judge.scores(outcome))
    return made


@dataclass
class _Search:
    """A search that is running."""

    judge: Judge
    folder: StudyFolder | None
    progress: SearchProgress | None
    group: Callable[[int], int]

    def __post_init__(self) -> None:
        self._failed: set[int] = set()

    def go(self, schedule: Schedule, place: Place, seconds: float | None) -> None:
        """Train until nothing is left to do."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            rest = None if end is None else end - time.monotonic()
            if rest is not None and rest <= 0:
                return
            self._begin(schedule, place)
            if not place.is_busy:
                _check_any(schedule)
                return
            arrived = [(job, self.judge.valued(o)) for job, o in place.wait(rest)]
            for _, outcome in arrived:
                if outcome.ends:
                    raise ArgumentError(f"search: {outcome.reason}")
            if end is None or time.monotonic() < end:
                self._begin(schedule, place)  # who is free trains while results are written
            if self.folder is not None:
                self.folder.add_results(arrived)
            for job, outcome in arrived:
                self._tell(job, outcome)
                schedule.arrive(job, outcome)

    def _begin(self, schedule: Schedule, place: Place) -> None:
        """Give those who are free what can be trained now."""
        while place.has_room and (jobs := schedule.next_group(self.group)):
            self._note_points(schedule)
            place.start(jobs)

    def _note_points(self, schedule: Schedule) -> None:
        """Points that the log has to hold are there before they are trained."""
        if self.folder is not None:
            for asked in schedule.newly_asked:
                self.folder.add_points(*asked)
        schedule.newly_asked.clear()

    def _tell(self, job: Job, outcome: Outcome) -> None:
        if self.progress is not None:
            self.progress.told(job, outcome, self.judge.scores(outcome))
        if outcome.state == FAILED and job.trial < _HOPELESS:
            self._failed.add(job.trial)
            if len(self._failed) == _HOPELESS:
                raise ArgumentError(
                    f"search: the first {_HOPELESS} trials have all failed; the last of them: "
                    f"{outcome.reason}"
                )


def _check_any(schedule: Schedule) -> None:
    """Look whether a search that has ended failed in all of its few trials for one reason.

    Raises:
        ArgumentError: if so.
    """
    outcomes = [outcome for _, outcome in schedule.results()]
    reasons = {o.reason if o.state == FAILED else None for o in outcomes}
    if len(reasons) == 1 and None not in reasons and len(outcomes) < _HOPELESS:
        count = "its only trial has" if len(outcomes) == 1 else f"all {len(outcomes)} trials have"
        raise ArgumentError(f"search: {count} failed: {reasons.pop()}")


def _place(
    task: Task, workers: int | None, limit: float | None, folder: StudyFolder | None
) -> Place:
    """Where trials run; a limit of time needs a process that can be ended."""
    if workers is None and limit is None:
        return Here(task)
    return Pool(task, workers or 1, limit, None if folder is None else folder.path)


def _in_a_call(most: int, elsewhere: Elsewhere | None, workers: int | None) -> int:
    """How many of the `most` trials of a stage are trained in one call.

    Processes elsewhere get several calls each, since trials of different length leave some of them idle
    at the end otherwise.
    """
    if elsewhere is None:
        found = -(-most // (workers or 1))
    else:
        found = elsewhere.together or -(-most // (_CALLS * elsewhere.count))
    return min(_TOGETHER, found)


def _planned(method: str, trials: int | None, space: Space) -> int | None:
    """How many trials there will be, where that is known."""
    conditional = any(one.conditions for one in space.dimensions.values())
    most = None if conditional or method not in ("grid", "random") else space.count
    return most if trials is None else trials if most is None else min(trials, most)
