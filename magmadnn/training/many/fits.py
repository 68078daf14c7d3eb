"""Many models trained in one call; each ends with the parameters of its own `fit`, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from magmadnn.calls import checked_call
from magmadnn.comm import Communicator
from magmadnn.errors import ArgumentError
from magmadnn.training.arguments import checked_limit
from magmadnn.training.loop.history import History
from magmadnn.training.model.model import Model
from magmadnn.workers import entered

from .asked import Asked
from .collecting import collecting_seldom
from .given import Callbacks, callbacks_for, checked_models, note_shared, numbers, rows_for, rows_in
from .sharing.by_ranks import Ranks, ranks_for
from .sharing.by_workers import fit_by_workers
from .sharing.results import owners_of
from .told import Told

_WHAT = "fit_many"


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
    parallel: Communicator | Literal[False] | None = None,
    verbose: Any = "auto",
) -> list[History]:
    """Train many models on one data set: seeds, learning rates, folds, ensembles.

    Each model ends with the parameters that `model.fit` of its own would give it, bit for bit but where this
    says otherwise: it has its own seed, order of rows, settings of the optimiser and callbacks. Models may
    differ in everything. A model whose loss becomes NaN or infinite is left out, with the parameters before
    that step and the reason in `history.stopped`; the others go on. Ctrl-C ends all of them: each keeps what
    was counted, and `epochs_done` says how many whole epochs its parameters have. Up to 0.01 s of training of
    each is lost on the CPU.

    On the CPU each thread trains whole models. On a GPU models whose values fit into the shared memory of a
    multiprocessor are trained in one launch, a block for each, those that are built alike together. Larger
    ones that are built alike become one program, with an axis of models in front of all values; they end with
    the parameters of their own fits up to the rounding of sums that are cut otherwise. With precision="tf32"
    models of two dense layers (up to 800 features, a multiple of 4; 128 units; 16 outputs; batches of 17 to
    128; SGD without momentum) have a cluster of blocks each on GPUs of compute capability 9.0. Models with
    convolutions are one program where cuDNN is installed, as many as have room in the device's memory. All
    others take turns, an epoch at a time: those with callbacks that look at batches, augmented images or
    accumulated gradients, and those whose steps are so long that they fill the device.

    The ranks of a job (`magmadnn launch`, mpiexec, Slurm) share out the models, and so do the workers of
    `with md.workers(4):`. Each trains whole models; who trains which depends on the models and their epochs
    and rows only, never on who is free. At the end all ranks have all histories and all parameters, with the
    bits that one rank gives them. Callbacks of a model are called where it is trained, and what they keep
    stays there; checkpoints, in a folder that all ranks see, go on with any number of ranks. An error on one
    rank ends the call on all of them.

    Args:
        models: built each by itself.
        x: inputs as `Model.fit` takes them, but no iterable of batches.
        y: targets.
        batch_size: samples of a step; one for all models, or one for each.
        epochs: passes over the data, likewise.
        rows: for each model the numbers of its rows of x and y, in any order and also repeated, or True and
            False for each row; None for all of them. It is then as if fit with `x[rows]` and `y[rows]`.
            Zeros and ones, as many as rows, are refused: they would be the first two rows.
        validation_data: (x, y) or (x, y, weights), evaluated after each epoch of each model.
        validation_rows: or rows of x and y for that, of each model; a note says where one is trained on them.
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
            and go to the host when a training has ended, as does what optimisers keep for a further `fit`;
            as many models become one program as have room with the values of their batches. Of several
            ranks each has this much.
        parallel: the ranks that share out the models. None: all of the job, or the workers that this is in;
            False: this process trains all of them; or a communicator of `md.comm`.
        verbose: whether to print how models are alike and how far they are; of several ranks the first does,
            how far its own are.

    Returns:
        The history of each model.

    Raises:
        ArgumentError: for what is no model, a model that stands there twice, shares layers with another or is
            being trained, and for lists of another length than `models`.
        OutOfMemoryError: if one training by itself has no room beside what optimisers keep of all models.
        IndexOutOfRangeError: for a row that is not there.
        ShapeError, DTypeError, DataError: if data does not fit, naming where and which model; or if ranks
            have been given different models, data or settings.
    """
    found = checked_models(_WHAT, models)
    count = len(found)
    if y is None:
        raise ArgumentError(f"{_WHAT}: y is missing: it takes x and y as arrays or tables")
    if validation_rows is not None and (validation_data is not None or validation_split):
        raise ArgumentError(
            f"{_WHAT}: give one of validation_data, validation_rows and validation_split"
        )
    available = rows_in(_WHAT, x)
    sizes = numbers(f"{_WHAT}: batch_size", batch_size, count, 1)
    lengths = numbers(f"{_WHAT}: epochs", epochs, count, 0)
    own = rows_for(f"{_WHAT}: rows", rows, count, available)
    held = rows_for(f"{_WHAT}: validation_rows", validation_rows, count, available)
    asked = Asked(
        x, y, sample_weight, validation_data,
        dict(enumerate(sizes)), dict(enumerate(lengths)), dict(enumerate(own)),
        dict(enumerate(held)),
        dict(enumerate(callbacks_for(_WHAT, callbacks, count))),
        {
            "validation_split": validation_split, "shuffle": shuffle, "class_weight": class_weight,
            "augment": augment, "accumulate": accumulate, "initial_epoch": initial_epoch,
        },
        checked_limit(_WHAT, memory_limit),
    )  # fmt: skip
    workers = entered() if parallel is None else None
    communicator = None if workers is not None else ranks_for(_WHAT, parallel)
    if communicator is None or communicator.rank == 0:
        note_shared(_WHAT, own, held, available)
    if workers is not None:
        costs = asked.costs(found, available)
        return fit_by_workers(workers, found, asked, costs, Told(verbose))
    members = asked.members(dict(enumerate(found)))
    if communicator is None:
        told = Told(verbose)
        asked.train(members, dict(enumerate(found)), told)
        told.end(members)
    else:
        owners = owners_of(asked.costs(found, available), communicator.size)
        ranks = Ranks(_WHAT, communicator, members, owners)
        ranks.check_same(found, *asked.described())
        told = Told(verbose if ranks.is_first else False)
        with ranks.training():
            shared = f"; {len(ranks.own)} of them here, all on {ranks.size} ranks"
            asked.train(ranks.own, dict(enumerate(found)), told, ranks.look, shared)
        ranks.share(found)
        told.end(members)
    return [member.history for member in members]
