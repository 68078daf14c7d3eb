"""Cross validation: every row is held out once, and all models train in one call."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Literal

import numpy as np

from magmadnn.calls import ExplainsAttributes, checked_call
from magmadnn.comm import Communicator
from magmadnn.data.preparation.preparation import Preparation
from magmadnn.data.preparation.targets import target_kind
from magmadnn.data.tables.plain import is_foreign_data, plain_target
from magmadnn.errors import ArgumentError, DataError, UnknownNameError, quoted
from magmadnn.graph.op import Array
from magmadnn.ops import philox
from magmadnn.storage.durable import write_file
from magmadnn.storage.printing import note
from magmadnn.training.arguments import at_least
from magmadnn.training.loop.history import History, scalars
from magmadnn.training.model.model import Model

from .collecting import collecting_seldom
from .fits import fit_many
from .given import Callbacks, Rows, rows_in, taken

_WHAT = "cross_validate"
_PLACES = ("repeat", "fold", "rows")


class CrossValidation(ExplainsAttributes):
    """What cross validation found: a row for each fold of each repeat.

    Attributes:
        rows: dicts with `repeat` and `fold` (from 1), `rows` that were held out, `loss` and the metrics on
            these; NaN for a model that was left out.
        models: trained, in the order of the rows.
        histories: of their trainings.
        held: numbers of the rows that were held out.
    """

    def __init__(
        self,
        rows: list[dict[str, float]],
        models: list[Model],
        histories: list[History],
        held: list[Rows],
    ) -> None:
        self.rows, self.models, self.histories, self.held = rows, models, histories, held

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __getitem__(self, name: str) -> list[float]:
        """The values of a column."""
        if name not in self.columns:
            raise UnknownNameError.of("cross validation: column", name, self.columns)
        return [row.get(name, math.nan) for row in self.rows]

    @property
    def mean(self) -> dict[str, float]:
        """The mean of each figure over all folds; NaN if a model was left out."""
        return {name: float(np.mean(self[name])) for name in self._figures}

    @property
    def std(self) -> dict[str, float]:
        """The standard deviation of each figure from fold to fold, with divisor n - 1.

        It tells how much single folds differ. Training parts overlap, so it is no error of the mean: Bengio,
        Grandvalet, "No unbiased estimator of the variance of k-fold cross-validation", JMLR 5 (2004).
        """
        return {name: float(np.std(self[name], ddof=1)) for name in self._figures}

    @property
    def _figures(self) -> list[str]:
        return [name for name in self.columns if name not in _PLACES]

    def table(self) -> str:
        """The rows, their mean and their standard deviation, as text."""
        names, mean, std = self.columns, self.mean, self.std
        lines = [[_cell(name, row.get(name, math.nan)) for name in names] for row in self.rows]
        for label, found in (("mean", mean), ("std", std)):
            ends = [f"{found[name]:.4f}" if name in found else "" for name in names]
            lines.append([label, *ends[1:]])
        widths = [max(len(name), *(len(x[k]) for x in lines)) for k, name in enumerate(names)]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in [names, *lines]
        )

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as CSV, with all digits."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_file(path, text.getvalue().encode())

    def __repr__(self) -> str:
        std = self.std
        figures = ", ".join(f"{k}={v:.4g} +- {std[k]:.2g}" for k, v in self.mean.items())
        return f"CrossValidation({len(self.rows)} models: {figures})"


@checked_call
@collecting_seldom()
def cross_validate(
    build: Callable[..., Model],
    x: Any,
    y: Any,
    *,
    folds: int = 10,
    repeats: int = 1,
    stratified: bool | None = None,
    seed: int = 0,
    batch_size: int = 32,
    epochs: int = 1,
    validation_split: float = 0.0,
    sample_weight: Any = None,
    class_weight: Mapping[int, float] | Literal["balanced"] | None = None,
    callbacks: Callbacks = (),
    memory_limit: int | None = None,
    parallel: Communicator | Literal[False] | None = None,
    verbose: Any = "auto",
) -> CrossValidation:
    """Train a model for each fold on the other folds, and evaluate it on its own: all of them in one call.

    What is learnt from data before training belongs into the model: with
    `Model(..., preparation=md.data.Standardize())` it is fitted in each training part. Rows that are held out
    are looked at once, when training has ended; early stopping needs `validation_split`, which is taken of
    the training part. Models that have been trained before, and preparations that have been fitted, are told
    of in a note.

    Args:
        build: gives a new model; where it takes `seed`, each has one of its own, from `seed` on.
        x: inputs, arrays or tables.
        y: targets.
        folds: how many parts the rows are cut into.
        repeats: how often, each time another way.
        stratified: whether each fold has its share of each class; None: where targets are classes.
        seed: of the folds: each repeat depends on it and on its number only.
        batch_size: as in `Model.fit`.
        epochs: as in `Model.fit`.
        validation_split: as in `Model.fit`.
        sample_weight: a weight for each row of x.
        class_weight: as in `Model.fit`.
        callbacks: as in `fit_many`; models are numbered fold by fold, repeat by repeat.
        memory_limit: as in `fit_many`.
        parallel: as in `fit_many`.
        verbose: as in `fit_many`.

    Raises:
        ArgumentError: for fewer than 2 folds, more folds than rows, or than a class has rows; if `build`
            gives no model, or the same one twice; if a fold has all rows of a class.
        MagmaDNNError: as `fit_many`.
    """
    if not callable(build) or isinstance(build, Model):
        way_out = "; give a function that builds it" if isinstance(build, Model) else ""
        raise ArgumentError(f"{_WHAT}: build must be a function, got {quoted(build)}{way_out}")
    _check_signature(build)
    at_least(f"{_WHAT}: folds", folds, 2)
    at_least(f"{_WHAT}: repeats", repeats, 1)
    at_least(f"{_WHAT}: seed", seed, 0)
    count = rows_in(_WHAT, x)
    classes = _classes(y, count, stratified)
    held = [
        rows for repeat in range(repeats) for rows in fold_rows(count, folds, seed, repeat, classes)
    ]
    if y is None:
        raise ArgumentError(f"{_WHAT}: y is missing: it takes x and y as arrays or tables")
    models = [_built(build, seed + number) for number in range(len(held))]
    if len(set(map(id, models))) < len(models):
        raise ArgumentError(
            f"{_WHAT}: build gives one model twice; let it build a new one in each call"
        )
    note_what_was_learnt(_WHAT, models[0])
    every = np.arange(count)
    if models[0].preparation is not None:
        _check_classes(y, every, held, folds)
    histories = fit_many(
        models, x, y, batch_size=batch_size, epochs=epochs, validation_split=validation_split,
        rows=[np.setdiff1d(every, rows) for rows in held], sample_weight=sample_weight,
        class_weight=class_weight, callbacks=callbacks, memory_limit=memory_limit,
        parallel=parallel, verbose=verbose,
    )  # fmt: skip
    found = []
    for number, (model, history, rows) in enumerate(zip(models, histories, held, strict=True)):
        row = {"repeat": number // folds + 1, "fold": number % folds + 1, "rows": len(rows)}
        part = [taken(value, rows) for value in (x, y, sample_weight)]
        figures = scalars(model.evaluate(part[0], part[1], sample_weight=part[2]))
        found.append({**row, **(dict.fromkeys(figures, math.nan) if history.failed else figures)})
    return CrossValidation(found, models, histories, held)


def _check_signature(build: Callable[..., Model]) -> None:
    """Look whether `build` can be called with nothing but a seed.

    Raises:
        ArgumentError: if it needs more.
    """
    try:
        parameters = signature(build).parameters.values()
    except ValueError:
        return  # one of C that does not say what it takes
    of_lists = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    for one in parameters:
        by_name = one.kind is not Parameter.POSITIONAL_ONLY and one.name == "seed"
        if one.default is Parameter.empty and one.kind not in of_lists and not by_name:
            raise ArgumentError(
                f"{_WHAT}: build needs {one.name}, but is given a seed only; give it a default value, or a "
                "function that fills it in: lambda: build(...)"
            )


def _cell(name: str, value: float) -> str:
    return str(int(value)) if name in _PLACES else f"{value:.4f}"


def fold_rows(
    count: int,
    folds: int,
    seed: int,
    repeat: int,
    classes: Array | None = None,
    what: str = _WHAT,
) -> list[Rows]:
    """The rows of each fold, ascending; sizes differ by one at most.

    Args:
        count: rows in all.
        folds: how many.
        seed: of the order in which rows are dealt,
        repeat: and its number.
        classes: of each row; each fold gets its share of each, to one row.
        what: asks for them, for messages.

    Raises:
        ArgumentError: if there are more folds than rows, or than a class has rows.
    """
    if folds > count:
        raise ArgumentError(
            f"{what}: folds must be at most the number of rows, {count}, got {folds}"
        )
    order = philox.permutation(count, seed, philox.stream_of("folds", repeat))
    if classes is not None:
        names, sizes = np.unique(classes, return_counts=True)
        if sizes.min() < folds:
            few = int(sizes.argmin())
            raise ArgumentError(
                f"{what}: class {quoted(names[few].item())} has {sizes[few]} rows, fewer than the {folds} "
                f"folds; give folds={max(int(sizes.min()), 2)} or fewer, or stratified=False"
            )
        order = order[np.argsort(classes[order], kind="stable")]
    return [np.sort(order[fold::folds]) for fold in range(folds)]


def _classes(y: Any, count: int, stratified: bool | None) -> Array | None:
    """The classes that folds are stratified by; None where they are not."""
    if stratified is not None and not isinstance(stratified, (bool, np.bool)):
        raise ArgumentError(f"{_WHAT}: stratified must be True, False or None, got {stratified!r}")
    if stratified is not None and not stratified:
        return None
    values = plain_target(y, "y").values if is_foreign_data(y) else np.asarray(y)
    named = values.ndim == 1 and values.dtype.kind in "iubUSO"
    if named and (stratified or target_kind(values) == "classification"):
        if len(values) != count:
            raise DataError(f"{_WHAT}: x has {count} rows but y has {len(values)}")
        return values
    if stratified:
        raise ArgumentError(
            f"{_WHAT}: stratified=True needs a class for each row, got targets of shape {values.shape} and "
            f"type {values.dtype}; leave it out"
        )
    return None


def note_what_was_learnt(what: str, model: Any, held: bool = True) -> None:
    """Say so where a model that was just built has learnt from rows before: figures of rows that are held out
    now are too good then.

    Args:
        what: asks for models, for messages.
        model: that was built.
        held: whether other rows are held out each time, so that its preparation can know none of them.
    """
    if not isinstance(model, Model):
        return
    if model.epochs_done:
        note(
            f"{what}: build gives models that have been trained before, for {model.epochs_done} epochs: "
            "figures are too good if that was on rows which are held out here; let build make new ones"
        )
    elif held and isinstance(model.preparation, Preparation):
        note(
            f"{what}: build gives models whose preparation has been fitted before: figures are too good if "
            "that was on rows held out here; give what is to be fitted: md.data.Standardize()"
        )


def _check_classes(y: Any, every: Rows, held: list[Rows], folds: int) -> None:
    """Look whether each training part has all classes, which a preparation numbers by what it sees there.

    Raises:
        ArgumentError: if one lacks a class that is held out.
    """
    values = plain_target(y, "y").values if is_foreign_data(y) else np.asarray(y)
    if values.ndim != 1 or target_kind(values) != "classification":
        return
    for number, rows in enumerate(held):
        missing = np.setdiff1d(values[rows], values[np.setdiff1d(every, rows)])
        if len(missing):
            raise ArgumentError(
                f"{_WHAT}: all rows of class {quoted(missing[0].item())} are in fold {number % folds + 1} of "
                f"repeat {number // folds + 1}, so that no model could learn it there; leave stratified "
                "out, or the class"
            )


def _built(build: Callable[..., Model], seed: int) -> Model:
    """A new model.

    Raises:
        ArgumentError: if it is none.
    """
    try:
        takes_seed = "seed" in signature(build).parameters
    except ValueError:  # of a function that is not Python's
        takes_seed = False
    model = build(seed=seed) if takes_seed else build()
    if not isinstance(model, Model):
        missing = "; is its return missing?" if model is None else ""
        raise ArgumentError(f"{_WHAT}: build must return a Model, got {quoted(model)}{missing}")
    return model
