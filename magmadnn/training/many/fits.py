"""Many models trained in one call; each ends with the parameters of its own `fit`, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError
from magmadnn.training.arguments import checked_limit
from magmadnn.training.loop.fit import Fit
from magmadnn.training.loop.history import History
from magmadnn.training.model.checks import gpu_of
from magmadnn.training.model.model import Model

from .collecting import collecting_seldom
from .given import (
    Callbacks,
    Rows,
    callbacks_for,
    checked_models,
    is_plain,
    numbers,
    rows_for,
    rows_in,
    sent,
    taken,
)
from .members import Member
from .room import rooms_for
from .scheduler import run_all
from .told import Told

_WHAT = "fit_many"
_KEPT = 256  # models at most, of which what is compiled stays for a further call,
_KEPT_ON_DEVICES = 4096  # and of those on a device, which have 0.2 MB each


@checked_call
@collecting_seldom()
def fit_many(
    models: Sequence[Model],
    x: Any,
    y: Any,
    *,
    batch_size: int | Sequence[int] = 32,
    epochs: int | Sequence[int] = 1,
    rows: Sequence[Any] | None = None,
    validation_data: Any = None,
    validation_rows: Sequence[Any] | None = None,
    validation_split: float = 0.0,
    shuffle: bool = True,
    sample_weight: Any = None,
    class_weight: Mapping[int, float] | Literal["balanced"] | None = None,
    callbacks: Callbacks = (),
    augment: Any = None,
    accumulate: int = 1,
    initial_epoch: int | None = None,
    memory_limit: int | None = None,
    verbose: Any = "auto",
) -> list[History]:
    """Train many models on one data set: seeds, learning rates, folds, ensembles.

    Each model ends with the parameters that `model.fit` of its own would give it, bit for bit but where this
    says otherwise: it has its own seed, order of rows, settings of the optimiser and callbacks. Models may
    differ in everything. A model whose loss becomes NaN or infinite is left out, with the parameters before
    that step and the reason in `history.stopped`; the others go on.

    On the CPU each thread trains whole models. On a GPU models whose values fit into the shared memory of a
    multiprocessor are trained in one launch, a block for each, those that are built alike together. Larger
    ones that are built alike become one program, with an axis of models in front of all values; they end with
    the parameters of their own fits up to the rounding of sums that are cut otherwise. Models with
    convolutions there take turns, an epoch at a time, and so do all with callbacks that look at batches,
    augmented images or accumulated gradients.

    Args:
        models: built each by itself.
        x: inputs as `Model.fit` takes them, but no iterable of batches.
        y: targets.
        batch_size: samples of a step; one for all models, or one for each.
        epochs: passes over the data, likewise.
        rows: for each model the numbers of its rows of x and y, in any order and also repeated, or True and
            False for each row; None for all of them. It is then as if fit with `x[rows]` and `y[rows]`.
        validation_data: (x, y) or (x, y, weights), evaluated after each epoch of each model.
        validation_rows: or rows of x and y for that, of each model.
        validation_split: or the part of its rows that each model keeps back for that, by its seed.
        shuffle: as in `Model.fit`.
        sample_weight: a weight for each row of x.
        class_weight: as in `Model.fit`; "balanced" counts the rows of each model.
        callbacks: a list, of which each model gets a copy; or a function of the model's number that gives a
            list, for those that write files.
        augment: as in `Model.fit`.
        accumulate: as in `Model.fit`.
        initial_epoch: as in `Model.fit`.
        memory_limit: bytes that trainings may take where they run, beside the models' parameters and the
            data; None: most of what is free there. What each takes is known from its plan; where not all
            have room at the same time, others begin when some have ended. On a GPU parameters count as well,
            and go to the host when a training has ended, as does what optimisers keep for a further `fit`.
        verbose: whether to print how models are alike and how far they are.

    Returns:
        The history of each model.

    Raises:
        ArgumentError: for what is no model, a model that stands there twice, shares layers with another or is
            being trained, and for lists of another length than `models`.
        OutOfMemoryError: if one training by itself has no room beside what optimisers keep of all models.
        IndexOutOfRangeError: for a row that is not there.
        ShapeError, DTypeError, DataError: if data does not fit, naming where and which model.
    """
    found = checked_models(_WHAT, models)
    count = len(found)
    if y is None:
        raise ArgumentError(f"{_WHAT}: y is missing: it takes x and y as arrays or tables")
    if validation_rows is not None and (validation_data is not None or validation_split):
        raise ArgumentError(
            f"{_WHAT}: give one of validation_data, validation_rows and validation_split"
        )
    available, told = rows_in(_WHAT, x), Told(verbose)
    options = {
        "validation_split": validation_split, "shuffle": shuffle, "class_weight": class_weight,
        "augment": augment, "accumulate": accumulate, "initial_epoch": initial_epoch,
        "loader_workers": 1, "verbose": False, "prepared": False,
    }  # fmt: skip
    data = _Data(x, y, sample_weight, validation_data)
    sizes = numbers(f"{_WHAT}: batch_size", batch_size, count, 1)
    lengths = numbers(f"{_WHAT}: epochs", epochs, count, 0)
    each = zip(
        sizes,
        lengths,
        rows_for(f"{_WHAT}: rows", rows, count, available),
        rows_for(f"{_WHAT}: validation_rows", validation_rows, count, available),
        callbacks_for(_WHAT, callbacks, count),
        strict=True,
    )
    members = []
    for number, (size, own_epochs, own, held, own_callbacks) in enumerate(each):
        own_options = options | {
            "batch_size": size, "epochs": own_epochs, "callbacks": own_callbacks,
        }  # fmt: skip
        make = partial(data.training, found[number], own, held, own_options)
        device = gpu_of(found[number])
        keeps = count <= (_KEPT if device is None else _KEPT_ON_DEVICES)
        members.append(Member(number, make, own_callbacks, keeps, device))
    rooms = rooms_for(_WHAT, members, found, sizes, checked_limit(_WHAT, memory_limit))
    for member in members:
        member.keeps &= not rooms[member.device].in_waves
    told.begin(found, members, sizes, sum(lengths), rooms.values())
    run_all(members, told.look, rooms)
    told.end()
    return [member.history for member in members]


class _Data:
    """The data set of all models, and what each of them takes of it."""

    def __init__(self, x: Any, y: Any, sample_weight: Any, validation_data: Any) -> None:
        self.x, self.y, self.sample_weight = x, y, sample_weight
        self.validation_data = validation_data
        self._there: dict[int | None, tuple[Any, Any, Any]] = {}  # by device

    def training(
        self, model: Model, rows: Rows | None, held: Rows | None, options: dict[str, Any]
    ) -> Fit:
        """The training of a model on its rows."""
        weights, device = self.sample_weight, gpu_of(model)
        x, y, validation = self._on(device) if held is None else (self.x, self.y, None)
        if held is not None:
            validation = tuple(taken(part, held) for part in (x, y, weights) if part is not None)
        shared = rows is not None and self._can_share(model, options)
        if rows is not None and not shared:
            x, y, weights = (taken(part, rows) for part in (self.x, self.y, weights))
        return model._training(
            x, y, sample_weight=weights, validation_data=validation,
            rows=rows if shared else None, **options,
        )  # fmt: skip

    def _on(self, device: int | None) -> tuple[Any, Any, Any]:
        """x, y and what is validated: arrays as copies on a device, which all models there read."""
        if device not in self._there:
            given = (self.x, self.y, self.validation_data)
            self._there[device] = given if device is None else sent(given, device)
        return self._there[device]

    def _can_share(self, model: Model, options: Mapping[str, Any]) -> bool:
        """Whether its rows can be taken out of the arrays of all models: nothing else depends on them."""
        plain = is_plain(self.x, self.y, self.sample_weight)
        alone = options["class_weight"] is None and options["augment"] is None
        return plain and alone and model.preparation is None
