"""Nested cross validation: the whole search within each part of an outer cross validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, UnknownArgumentError, quoted
from magmadnn.models.baselines import classification_baselines
from magmadnn.ops import philox
from magmadnn.search.objectives import objectives_of
from magmadnn.search.searching import run
from magmadnn.search.spaces.space import Space
from magmadnn.search.study import Study
from magmadnn.search.trials.rows import check_same_rows, classes_of, folds_of, rows_of
from magmadnn.storage.disk import as_path, is_there
from magmadnn.training.arguments import at_least

from .outer_rows import Nested, Row, described, matthews

_OF_TRIALS = ("train_", "seconds", "sharing_seconds", "epochs")
_OWN = ("validation_split", "validation_data", "resume", "folds", "until")


@checked_call
def nested(
    build: Callable[..., Any],
    space: Mapping[str, Any],
    x: Any,
    y: Any,
    *,
    outer: int = 10,
    inner: int = 5,
    repeats: int = 1,
    stratified: bool | None = None,
    objective: Any = None,
    out: str | Path | None = None,
    seed: int = 0,
    **options: Any,
) -> Nested:
    """Search within each part of an outer cross validation, and measure on what the search has not seen.

    For each outer fold: the search runs on the other folds, each trial cross validated on `inner` parts of
    these; the best point is trained on all of them; the network is measured on the outer fold. What is
    learnt from data before training belongs into the model: with `Model(...,
    preparation=md.data.Standardize())` it is fitted in each training part, and nowhere else. Beside it
    stand simple methods, fitted on the same rows.

    Source: Varma and Simon, "Bias in error estimation when using cross-validation for model selection", BMC
    Bioinformatics 7:91 (2006).

    Args:
        build: as for `run`.
        space: as for `run`.
        x: inputs.
        y: targets.
        outer: folds that figures are measured on.
        inner: folds that trials are compared on.
        repeats: how often, each time with other folds.
        stratified: whether each fold has its share of each class; None: where targets are classes.
        objective: one, as for `run`; a metric.
        out: a new folder that keeps the study of each outer fold; a nested search in it goes on where it was.
        seed: of folds and searches.
        options: further arguments of `run`: method, trials, epochs, batch_size, workers, ...

    Raises:
        ArgumentError: as `run`; for an argument of `run` that is given otherwise here; if a class has fewer
            rows than there are folds.
        UnknownArgumentError: for one that neither has.
    """
    for name, value, least in (
        ("outer", outer, 2), ("inner", inner, 2), ("repeats", repeats, 1), ("seed", seed, 0),
    ):  # fmt: skip
        at_least(f"search: nested: {name}", value, least)
    objectives = objectives_of(objective)
    if len(objectives) > 1:
        raise ArgumentError(
            "search: nested: objective must be one metric, which chooses the point of each outer fold, got "
            f"{quoted(objective)}"
        )
    chosen_by = objectives[0]
    if chosen_by.function is not None or chosen_by.name.startswith(_OF_TRIALS):
        raise ArgumentError(
            f"search: nested: objective {chosen_by.name} is not measured on the outer folds; give a metric "
            'of the model, such as "accuracy", or "loss"'
        )
    for name in _OWN:
        if name in options:
            raise ArgumentError(
                f"search: nested: {name} is not an argument here: inner folds compare"
            )
    known = sorted({*signature(run).parameters, "outer", "inner", "repeats"}.difference(_OWN))
    for name in options:
        if name not in known:
            raise UnknownArgumentError.of("search: nested: argument", name, known)
    count, place = check_same_rows(x, y), None if out is None else as_path("search: out", out)
    classes = classes_of(y)
    rows: list[Row] = []
    predictions: list[NDArray[Any]] = []
    for repeat in range(repeats):
        predicted = None if classes is None else np.empty(count, classes.dtype)
        for fold, (train, held) in enumerate(folds_of(y, count, outer, repeat, stratified, seed)):
            part = None if place is None else place / f"repeat-{repeat + 1}-fold-{fold + 1}"
            study = run(
                build,
                space,
                rows_of(x, train),
                rows_of(y, train),
                folds=inner,
                stratified=stratified,
                objective=objective,
                out=part,
                resume=part is not None and is_there(part / "study.json"),
                seed=_seed(seed, repeat, fold),
                **options,
            )
            model = study.model()
            found = {
                k: float(v) for k, v in model.evaluate(rows_of(x, held), rows_of(y, held)).items()
            }
            if predicted is not None and classes is not None:
                predicted[held] = model.predict_class(rows_of(x, held)).reshape(len(held))
                found["mcc"] = matthews(classes[held], predicted[held])
                found |= _simple_methods(x, classes, train, held)
            place_of = {"repeat": repeat + 1, "fold": fold + 1, "rows": len(held)}
            rows.append(_row(place_of, found, study))
        if predicted is not None:
            predictions.append(predicted)
    names = list(Space.of(study.space).dimensions)
    held_rows = count / outer
    return Nested(
        [described(row, names) for row in rows],
        study.objectives[0],
        study.signs[0],
        held_rows,
        count - held_rows,
        predictions or None,
    )


def _row(place: Mapping[str, int], found: Mapping[str, float], study: Study) -> Row:
    """A row of the table.

    Raises:
        ArgumentError: the objective is no metric that can be measured on other rows.
    """
    best = study.best
    if study.objectives[0] not in found:
        raise ArgumentError(
            f"search: nested: objective {study.objectives[0]} is not measured on the outer folds; give a "
            f"metric: {', '.join(found)}"
        )
    point = {f"best_{name}": value for name, value in best.point.items()}
    return {**place, **found, "chosen_by": best.value, "trials": len(study.trials), **point}


def _simple_methods(
    x: Any, classes: NDArray[Any], train: NDArray[np.int64], held: NDArray[np.int64]
) -> dict[str, float]:
    """What simple methods reach, on columns scaled and filled by the training rows."""
    if not isinstance(x, np.ndarray) or x.ndim != 2 or x.dtype.kind not in "fiub":
        return {}
    names, numbers = np.unique(classes, return_inverse=True)
    values = x.astype(np.float64)
    mean, std = np.nanmean(values[train], axis=0), np.nanstd(values[train], axis=0)
    scaled = np.nan_to_num((values - mean) / np.where(std > 0, std, np.inf), nan=0.0)
    return classification_baselines(
        scaled[train], numbers[train], scaled[held], numbers[held], len(names)
    )


def _seed(seed: int, repeat: int, fold: int) -> int:
    """The seed of a fold's search."""
    stream = philox.stream_of("search: nested", 1000 * repeat + fold)
    return int(philox.random_bits(seed, stream, 1)[0])
