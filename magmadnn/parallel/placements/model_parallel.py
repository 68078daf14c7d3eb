"""Model parallel training: each rank has a part of the weights of a layer, of its gradient and moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from magmadnn.comm import Communicator
from magmadnn.parallel.way import TrainingWay, even_rows

from .splits import checked

if TYPE_CHECKING:
    from .step import PlacedStep


class ModelParallel(TrainingWay):
    """Weights of layers are split among ranks, all of which compute the same batch.

    Each rank has an equal part of the kernels that are split, of their gradients and of the optimiser's
    moments. Dense layers are split by columns and rows in turns, so that two of them need one sum over ranks
    forward and one backward; convolutions by channels. A layer of which ranks cannot have equal parts is
    whole on each of them. Numbers are those of `fit` without `parallel=`, but for the order of sums.
    Checkpoints have whole parameters, and go on with any number of ranks.

    Args:
        communicator: the ranks that train; None for all of `magmadnn launch`, this process alone without it.
        layers: how layers are split, by their paths: "columns", "rows" (Dense), "channels" (convolutions),
            "model" for what fits, "data" for whole ones, as are those that are not named. None: chosen.
        computed: called with the communicator after each batch; for simulations, in which arithmetic takes
            no time.

    Raises:
        ArgumentError, UnknownNameError: if layers is no dict of such words.
    """

    splits_batches = False

    def __init__(
        self,
        communicator: Communicator | None = None,
        *,
        layers: Mapping[str, str] | None = None,
        computed: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__(communicator, computed=computed)
        self.layers = checked(type(self).__name__, layers)

    def __repr__(self) -> str:
        layers = "" if self.layers is None else f"layers={self.layers}"
        return f"{type(self).__name__}({layers})"

    @property
    def settings(self) -> dict[str, Any]:
        """What results depend on: nothing but rounding."""
        return {}

    def step_class(self) -> type[PlacedStep]:
        """What computes and shares gradients."""
        from .step import PlacedStep

        return PlacedStep


class Hybrid(ModelParallel):
    """Convolutions are data parallel, Dense layers model parallel; or as each layer is told.

    Ranks compute different rows of a batch in layers that are whole on each of them, whose gradients are
    added up; where a layer is split, all rows come to all ranks, and each computes its part of them
    (A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv 1404.5997).
    Statistics of BatchNorm are those of the whole batch, as if one rank had computed it. A batch that ranks
    cannot share evenly is computed whole by all of them.

    Args:
        layers: as for `ModelParallel`. None: Dense layers by columns and rows in turns.
        communicator, computed: as for `ModelParallel`.

    Raises:
        ArgumentError, UnknownNameError: if layers is no dict of such words.
    """

    splits_batches = True

    def __init__(
        self,
        layers: Mapping[str, str] | None = None,
        communicator: Communicator | None = None,
        *,
        computed: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__(communicator, layers=layers, computed=computed)

    def own_rows(self, count: int) -> slice:
        """Which of `count` rows of a batch this rank reads: its part, or all if none are equal."""
        return even_rows(self.workers(), count)
