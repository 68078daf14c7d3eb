"""Model parallel training: each rank has a part of the weights of a layer, of its gradient and moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from magmadnn.calls import FixedDict
from magmadnn.comm import Communicator
from magmadnn.errors import ArgumentError
from magmadnn.parallel.way import SHARDS, TrainingWay, even_rows, shard_rows

from .layouts import as_record, checked, from_record

if TYPE_CHECKING:
    from magmadnn.parallel.ranks_step import RanksStep


class ModelParallel(TrainingWay):
    """Weights of layers are split among ranks, all of which compute the same batch.

    Each rank has an equal part of the kernels that are split, of their gradients and of the optimiser's
    moments. Dense layers are split by columns and rows in turns, so that two of them need one sum over ranks
    forward and one backward; convolutions by channels. A layer of which ranks cannot have equal parts is
    whole on each of them. Numbers are those of `fit` without `parallel=`, but for the order of sums.
    Checkpoints have whole parameters, and go on with any number of ranks.

    Layouts of `md.dmath` say the same: `Columns()`, `Rows()`, `Replicated()`; with `on=(0, 1)` these ranks
    alone compute the layer, forward and backward, and have its weights and moments: each its part, or with
    `Replicated(on=(0, 1))` its rows of the batch. What it reads comes to them, and what it gives goes to
    those that need it; other ranks have no work then, but to send and get. With any other layout, such as
    `Blocks`, or columns that ranks do not share evenly, and with `deterministic="layout"`, layouts say where
    weights and moments lie between steps and who updates what; a step brings weights together and shares out
    the rows of the batch, in 8 parts whose gradients are added as those of `DataParallel`. So parameters
    have the same bits for any layouts on 1 to 8 ranks, also where training goes on with another number.

    Args:
        communicator: the ranks that train; None for all of `magmadnn launch` and for the workers of
            `with md.workers(4):`, this process alone without them.
        layers: how layers are split, by their paths: a layout of `md.dmath`, which may name ranks by `on=`,
            or "columns", "rows" (Dense), "channels" (convolutions), "model" for what fits, "data" for whole
            ones, as are those that are not named. None or "auto": chosen, on all ranks.
        deterministic: "layout": the same bits for any layouts and numbers of ranks.
        computed: called with the communicator after each batch; for simulations, in which arithmetic takes
            no time.

    Raises:
        ArgumentError, UnknownNameError: if layers is no dict of such words and layouts.
    """

    splits_batches = False
    travelling: ClassVar[tuple[str, ...] | None] = ("layers", "deterministic")

    def __init__(
        self,
        communicator: Communicator | None = None,
        *,
        layers: Mapping[str, Any] | Literal["auto"] | None = None,
        deterministic: Literal["layout"] | None = None,
        computed: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__(communicator, computed=computed)
        if deterministic not in (None, "layout"):
            raise ArgumentError(
                f'{type(self).__name__}: deterministic must be "layout" or None, got {deterministic!r}'
            )
        known = checked(type(self).__name__, layers)
        self.layers = None if known is None else FixedDict(known, self, "layers")
        self.deterministic, self.parts = deterministic, SHARDS
        self.shares_rows = False  # whether a step brings weights together; known once it is made

    def __repr__(self) -> str:
        given = [] if self.layers is None else [f"layers={self.layers}"]
        given += [] if self.deterministic is None else [f"deterministic={self.deterministic!r}"]
        return f"{type(self).__name__}({', '.join(given)})"

    def record(self) -> dict[str, Any]:
        """This way as JSON; see `TrainingWay.record`."""
        found = super().record()
        found["arguments"]["layers"] = as_record(type(self).__name__, self.layers)
        return found

    @classmethod
    def of_record(cls, arguments: dict[str, Any], communicator: Communicator) -> ModelParallel:
        """The way that `record` wrote, for these ranks."""
        given = {**arguments, "layers": from_record(arguments["layers"])}
        return cls(communicator=communicator, **given)

    @property
    def settings(self) -> dict[str, Any]:
        """What results depend on: nothing but rounding, or parts of a batch."""
        return {"shards": self.parts} if self.shares_rows else {}

    def settle(self, device: str) -> None:
        """Be told where the model is, before `parts` is asked for."""
        self.parts = max(SHARDS, self.workers().size)

    def step_class(self) -> Callable[..., RanksStep]:
        """What computes and shares gradients."""
        from .laid_out import step_of

        return step_of

    def own_rows(self, count: int) -> slice:
        """Which of `count` rows of a batch this rank reads: all, or its part."""
        if self.shares_rows:
            return shard_rows(self.workers(), count, self.parts)
        return slice(0, count)


class Hybrid(ModelParallel):
    """Convolutions are data parallel, Dense layers model parallel; or as each layer is told.

    Ranks compute different rows of a batch in layers that are whole on each of them, whose gradients are
    added up; where a layer is split, all rows come to all ranks, and each computes its part of them
    (A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv 1404.5997).
    Statistics of BatchNorm are those of the whole batch, as if one rank had computed it. A batch that ranks
    cannot share evenly is computed whole by all of them. Layouts and `deterministic` are those of
    `ModelParallel`; where weights are brought together, statistics are those of parts of a batch.

    Args:
        layers: as for `ModelParallel`. None or "auto": Dense layers by columns and rows in turns.
        communicator, deterministic, computed: as for `ModelParallel`.

    Raises:
        ArgumentError, UnknownNameError: if layers is no dict of such words and layouts.
    """

    splits_batches = True

    def __init__(
        self,
        layers: Mapping[str, Any] | Literal["auto"] | None = None,
        communicator: Communicator | None = None,
        *,
        deterministic: Literal["layout"] | None = None,
        computed: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__(
            communicator, layers=layers, deterministic=deterministic, computed=computed
        )

    def own_rows(self, count: int) -> slice:
        """Which of `count` rows of a batch this rank reads: its part, or all if none are equal."""
        if self.shares_rows:
            return super().own_rows(count)
        return even_rows(self.workers(), count)
