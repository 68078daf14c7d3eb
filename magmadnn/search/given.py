"""What `run` is given beside the space: points, rows, further arguments of `fit`; each is checked here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.comm.job import rank_in_job, ranks_of_script
from magmadnn.data.batching import split_rows
from magmadnn.errors import ArgumentError, MagmaDNNError, ShapeError, UnknownNameError, quoted
from magmadnn.training import Model
from magmadnn.training.callbacks import Callback, Checkpoint, CSVLogger

from .spaces.building import as_named
from .spaces.dimensions import is_number
from .spaces.space import Point, Space, key_of
from .spelling import RUN, Spelling
from .study import Study
from .trials.rows import check_same_rows, rows_of

_OF_SEARCH = ("batch_size", "epochs", "callbacks", "verbose", "validation_data", "validation_split")
_SHARE = 0.2  # of the rows validates
_NOT_HERE = ("x", "y", "initial_epoch")


def check_alone(spelled: Spelling = RUN) -> None:
    """Look whether this process is the only one of its job that searches.

    Args:
        spelled: how messages spell arguments.

    Raises:
        ArgumentError: other ranks run the same script, so each would do the same work, or all but one would
            find the folder in use.
    """
    ranks = ranks_of_script()
    if ranks > 1:
        raise ArgumentError(
            f"{spelled.begin}this is rank {rank_in_job()} of a job of {ranks} ranks, each of which would do "
            f"the same search; start it by itself, without mpiexec, srun or magmadnn launch, with "
            f"{spelled.told('workers', ranks)}, or by magmadnn search --mpi {ranks}, or in a module of a "
            "workflow by md.workflow.grid"
        )


def check_ranks(workers: Any, trial_seconds: Any, spelled: Spelling = RUN) -> None:
    """Look whether a search whose trials other ranks train is told what only holds for processes of its own.

    Raises:
        ArgumentError: if it is.
    """
    if workers is not None or trial_seconds is not None:
        raise ArgumentError(
            f"{spelled.begin_of_ranks}trials are trained by other ranks, so leave {spelled.named('workers')} "
            f"and {spelled.named('trial_seconds')} out"
        )


def mapping_of(name: str, value: Any) -> dict[str, Any]:
    """An argument that must be a dict whose keys are names; None is an empty one.

    Raises:
        ArgumentError: if it is not.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ArgumentError(f"search: {name} must be a dict with names, got {quoted(value)}")
    return dict(value)


def fit_options_of(given: Any) -> dict[str, Any]:
    """Further arguments of `fit`.

    Raises:
        ArgumentError: if it is no dict, or has what the search itself says to `fit`.
        UnknownNameError: if `fit` has no such argument.
    """
    found = mapping_of("fit_options", given)
    known = [name for name in signature(Model.fit).parameters if name != "self"]
    for name in found:
        if name in _OF_SEARCH:
            raise ArgumentError(
                f"search: fit_options: {name} is an argument of the search; give it there"
            )
        if name in _NOT_HERE:
            raise ArgumentError(
                f"search: fit_options: {name} is not for trials, which the search itself begins and ends; "
                "leave it out"
            )
        if name not in known:
            raise UnknownNameError.of("search: fit_options: argument of fit", name, known)
    return found


def check_callbacks(given: Any) -> Callable[[], Sequence[Callback]]:
    """Look whether `callbacks` is a function without arguments that makes callbacks, new ones in each call.

    It is called twice for that.

    Raises:
        ArgumentError: if not, or if they would write into one place, or go on from another's checkpoint.
    """
    way_out = "give a function, such as lambda: [md.callbacks.EarlyStopping()]"
    if not callable(given):
        raise ArgumentError(
            f"search: callbacks: each training needs callbacks of its own, got {quoted(given)}; {way_out}"
        )
    try:
        signature(given).bind()
    except TypeError as error:
        raise ArgumentError(f"search: callbacks is called without arguments: {error}") from error
    except ValueError:
        pass  # one of C that does not say what it takes

    made = _Callbacks(given)
    try:
        first, second = made(), made()
    except MagmaDNNError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"search: callbacks: the function raised {type(error).__name__}: {error}"
        ) from error
    for one in first:
        name = type(one).__name__
        if any(one is other for other in second):
            raise ArgumentError(
                f"search: callbacks gives the same {name} for each training; make a new one in each call"
            )
        if isinstance(one, Checkpoint):
            raise ArgumentError(
                "search: callbacks: Checkpoint is not for trials, which would go on from each other's; the "
                "search keeps what has ended, with out=, and study.model() gives a trial's network"
            )
        places = [other.path for other in second if isinstance(other, CSVLogger)]
        if isinstance(one, CSVLogger) and one.path in places:
            raise ArgumentError(
                f"search: callbacks: CSVLogger writes {one.path} for each trial, over those before; give "
                "each training a file of its own, or leave it out: study.table() has the metrics"
            )
    return made


@dataclass(frozen=True)
class _Callbacks:
    """The callbacks of a training, from a user's function.

    Attributes:
        make: that function.
    """

    make: Callable[[], Any]

    def __call__(self) -> Sequence[Callback]:
        """New ones.

        Raises:
            ArgumentError: if the function gives something else.
        """
        found = self.make()
        if not isinstance(found, (list, tuple)) or not all(isinstance(c, Callback) for c in found):
            raise ArgumentError(
                "search: callbacks must be a function that gives a list such as "
                f"[md.callbacks.EarlyStopping()], got {quoted(found)} from it"
            )
        return found


def check_stratified(value: Any, folds: Any) -> None:
    """Look whether `stratified` is True, False or None, and given for folds.

    Raises:
        ArgumentError: if not.
    """
    if value is not None and not isinstance(value, bool):
        raise ArgumentError(f"search: stratified must be True, False or None, got {quoted(value)}")
    if value is not None and folds is None:
        raise ArgumentError("search: stratified is for folds; give folds=5, or leave it out")


def check_validation(share: Any, data: Any, folds: Any) -> None:
    """Look whether the rows that trials are compared on are given in one way only.

    Raises:
        ArgumentError: if not.
    """
    given = {"folds": folds, "validation_data": data, "validation_split": share}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ArgumentError(
            f"search: {' and '.join(names)} each say which rows trials are compared on; give one of them"
        )


def check_seconds(name: str, value: Any) -> None:
    """Look whether an argument is None or a time above 0.

    Raises:
        ArgumentError: if not.
    """
    if value is not None and not (is_number(value) and value > 0):
        raise ArgumentError(
            f"search: {name} must be a number of seconds above 0, got {quoted(value)}"
        )


def split_data(
    x: Any, y: Any, share: float | None, validation: Any, seed: int
) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
    """The rows that are trained on, and those that metrics are of: a fifth where nothing is said.

    Raises:
        ArgumentError: if the share or `validation` cannot be used.
        ShapeError: if x and y have different numbers of rows.
    """
    if validation is not None:
        if not isinstance(validation, (tuple, list)) or len(validation) != 2:
            raise ArgumentError("search: validation_data must be (x, y)")
        check_same_rows(x, y)
        check_same_rows(validation[0], validation[1], "search: validation_data")
        return (x, y), (validation[0], validation[1])
    rows = check_same_rows(x, y)
    share = _SHARE if share is None else share
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise ArgumentError(
            f"search: validation_split must be above 0 and below 1, got {quoted(share)}: trials are "
            "compared on rows that they were not trained on"
        )
    kept, held = split_rows(rows, share, seed)
    return (rows_of(x, kept), rows_of(y, kept)), (rows_of(x, held), rows_of(y, held))


def split_weights(
    weights: Any, x: Any, y: Any, share: float | None, seed: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weights of the rows that are trained on, and of those that metrics are of.

    Raises:
        ShapeError: if there is not one for each row of x.
    """
    found, rows = np.asarray(weights), check_same_rows(x, y)
    if found.shape != (rows,):
        raise ShapeError(
            f"search: fit_options: sample_weight must have a weight for each of the {rows} rows of x, which "
            f"the search shares out as it does the rows, got shape {found.shape}"
        )
    kept, held = split_rows(rows, _SHARE if share is None else share, seed)
    return found[kept], found[held]


def first_points(first: Any, space: Space) -> list[Point]:
    """The user's own points, checked; of an older study the best that this space has too.

    Raises:
        ArgumentError: if it is no list of points, or one of them is not of this space or there twice.
        UnknownNameError: if one has a parameter that the space does not have.
    """
    if isinstance(first, Study):
        valued = [trial for trial in first.trials if trial.values]
        best = sorted(valued, key=lambda t: (*(-s for s in first.scores(t)), t.number))
        found = []
        for trial in best:
            try:
                found.append(space.checked(trial.point, "search: first"))
            except MagmaDNNError:
                continue  # of another space
            if len(found) == 10:
                break
        return found
    if isinstance(first, Mapping) or not isinstance(first, Sequence) or isinstance(first, str):
        way_out = "; put it into a list" if isinstance(first, Mapping) else ""
        raise ArgumentError(
            f"search: first must be a list of points such as [{{'learning_rate': 0.1}}], or a study, got "
            f"{quoted(first)}{way_out}"
        )
    for k, point in enumerate(first):
        mapping_of(f"first[{k}]", point)
    points = [space.checked(as_named(p, space), f"search: first[{k}]") for k, p in enumerate(first)]
    keys = [key_of(point) for point in points]
    for k, key in enumerate(keys):
        if key in keys[:k]:
            raise ArgumentError(f"search: first[{k}]: is there twice")
    return points
