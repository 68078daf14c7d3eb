"""Pipeline parallel training: ranks have different layers, and work on different parts of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from magmadnn.calls import FixedList
from magmadnn.comm import Communicator
from magmadnn.errors import ArgumentError
from magmadnn.parallel.way import TrainingWay, is_whole

if TYPE_CHECKING:
    from .step import PipelineStep


class Pipeline(TrainingWay):
    """Layers are split into stages, one for each rank; micro-batches of a batch follow each other through
    them.

    A batch is cut into pieces of ceil(batch_size / micro_batches) rows; the last one may be smaller. A
    stage computes a piece forward and
    sends what crosses to later stages; gradients come back the same way. The schedule is 1F1B (Narayanan and
    others: "PipeDream", SOSP 2019): a stage that is d stages before the last begins with d pieces forward,
    and then does one forward, one backward, so that at most d + 1 pieces wait in its memory. With S stages
    and M pieces of equal cost, ranks wait for (S - 1) / (M + S - 1) of the time.

    An update is that of one rank with `fit(accumulate=micro_batches)` over the same pieces, but for rounding:
    BatchNorm normalises each piece by its own statistics, and Dropout draws for each piece. Parameters,
    moments and gradients of a stage are on its rank alone while an epoch runs.

    Args:
        communicator: the ranks that train; None for all of `magmadnn launch`, this process alone without it.
        micro_batches: pieces of a batch; more of them make ranks wait less, and each piece smaller.
        stages: names of the layers that stages 1, 2, ... begin with; None: so that the dearest stage is as
            cheap as can be.
        computed: called with the communicator after each piece, forward and backward; for simulations, in
            which arithmetic takes no time.

    Raises:
        ArgumentError: if micro_batches is not at least 1, or stages are no names.
    """

    travelling: ClassVar[tuple[str, ...] | None] = ("micro_batches", "stages")

    def __init__(
        self,
        communicator: Communicator | None = None,
        *,
        micro_batches: int = 4,
        stages: Sequence[str] | None = None,
        computed: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__(communicator, computed=computed)
        if not is_whole(micro_batches, 1):
            raise ArgumentError(
                f"Pipeline: micro_batches must be a whole number of at least 1, got {micro_batches!r}"
            )
        are_names = stages is None or (
            isinstance(stages, (list, tuple)) and all(isinstance(name, str) for name in stages)
        )
        if not are_names:
            raise ArgumentError(
                f"Pipeline: stages must be a list of names of layers, got {stages!r}; None chooses"
            )
        self.micro_batches = micro_batches
        self.stages = None if stages is None else FixedList(stages, self, "stages")

    def __repr__(self) -> str:
        stages = "" if self.stages is None else f", stages={self.stages}"
        return f"Pipeline(micro_batches={self.micro_batches}{stages})"

    @property
    def settings(self) -> dict[str, Any]:
        """What results depend on."""
        return {"micro_batches": self.micro_batches}

    def step_class(self) -> type[PipelineStep]:
        """What computes and shares gradients."""
        from .step import PipelineStep

        return PipelineStep
