"""Data parallel training: each rank computes gradients of its shards of a batch, all make the same update."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from magmadnn.comm import Communicator
from magmadnn.errors import ArgumentError, UnknownNameError

from .way import SHARDS, TrainingWay, even_rows, is_whole, shard_rows

if TYPE_CHECKING:
    from .ranks_step import RanksStep


class DataParallel(TrainingWay):
    """Synchronous data parallel training, with the same bits for any number of ranks.

    A batch of n rows is cut into `shards` parts, of which part s has the rows from n * s // shards to
    n * (s + 1) // shards; rank r of P computes those from shards * r // P to shards * (r + 1) // P. Gradients
    are added in the order of a fixed binary tree over the shards. Random numbers belong to shards, and the
    order of the data is that of one rank, so parameters after any step have the same bits on 1, 2, 3, ...
    ranks. They differ from those of `fit` without `parallel=` by rounding, and where layers look at batches
    (BatchNorm) or draw random numbers.

    On GPUs, one for each rank (`Model(device="cuda")` under `magmadnn launch`), a batch has a part for
    each rank, and NCCL adds gradients up: runs with as many ranks have the same bits, other numbers differ
    by rounding.

    Args:
        communicator: the ranks that train; None for all of `magmadnn launch`, this process alone without it.
        shards: parts of a batch; at least the number of ranks. Results depend on it in the last bits. None:
            as many as the training had that a checkpoint of this `fit` goes on from, if there are not more
            ranks; else 8, or one for each of more ranks.
        shard: "optimiser": each rank keeps moments and sums of gradients of its parameters only, whole ones,
            shared out as evenly as can be, and updates these (ZeRO, stage 2); the bits are the same. On GPUs
            each rank has an equal part of each moment, and BatchNorm looks at the whole batch.
            "parameters": each rank keeps an equal piece of parameters, gradients and moments; parameters of
            a layer are gathered before it is computed and again on the way back (ZeRO, stage 3; FSDP). The
            bits are the same, on GPUs up to rounding. Optimisers have to look at elements alone: no norms.
        sync: whether layers that look at batches (BatchNorm) see the whole batch, with sums over ranks in
            the middle of the step. There are no shards then: numbers are those of `fit` without `parallel=`,
            but for the order of sums, which depends on the number of ranks.
        wire: "bfloat16": gradients of float32 are rounded to bfloat16 (by at most 2^-9 of each) before they
            travel among GPUs, which halves the bytes; GPUs of one machine add them up in float32, those of
            several round sums too. None sends them as they are. The last batch of an epoch, where it is
            smaller, and trainings that run a batch at a time send them as they are.
        deterministic: "layout": to be told if bits would depend on the number of ranks. On CPUs they do
            not, with or without; with `sync`, and on GPUs, they do, and this is refused.
        computed: called with the communicator after this rank's gradients of a batch; for simulations, in
            which arithmetic takes no time.

    Raises:
        ArgumentError: if shards is not at least 1, sync is given with shard, or wire with either or for
            models on the CPU; for deterministic="layout" with sync, or models on GPUs.
    """

    layers: ClassVar[dict[str, str]] = {}  # none is split: what `PlacedStep` asks, with sync
    splits_batches: ClassVar[bool] = True
    travelling: ClassVar[tuple[str, ...] | None] = (
        "shards", "shard", "sync", "wire", "deterministic",
    )  # fmt: skip

    def __init__(
        self,
        communicator: Communicator | None = None,
        *,
        shards: int | None = None,
        shard: Literal["optimiser", "parameters"] | None = None,
        sync: bool = False,
        wire: Literal["bfloat16"] | None = None,
        deterministic: Literal["layout"] | None = None,
        computed: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__(communicator, computed=computed)
        if shards is not None and not is_whole(shards, 1):
            raise ArgumentError(
                f"DataParallel: shards must be a whole number of at least 1, got {shards!r}"
            )
        known = shard in ("optimiser", "parameters") and type(self) is DataParallel
        if shard is not None and not known:
            raise ArgumentError(
                f"{type(self).__name__}: shard must be 'optimiser' or 'parameters', of DataParallel alone, "
                f"got {shard!r}; None keeps all on each rank"
            )
        if not isinstance(sync, bool):
            raise ArgumentError(f"DataParallel: sync must be True or False, got {sync!r}")
        if sync and shard is not None:
            raise ArgumentError(
                f"DataParallel: sync=True has no shards whose sums shard={shard!r} could share out: leave "
                "one out"
            )
        if wire not in (None, "bfloat16"):
            raise UnknownNameError.of("DataParallel: wire", wire, ("bfloat16",))
        if wire is not None and (sync or shard is not None):
            other = "sync=True" if sync else f"shard={shard!r}"
            raise ArgumentError(
                f"DataParallel: with {other} what ranks send is not rounded: leave wire={wire!r} out"
            )
        if deterministic not in (None, "layout"):
            raise UnknownNameError.of("DataParallel: deterministic", deterministic, ("layout",))
        if deterministic is not None and sync:
            raise ArgumentError(
                "DataParallel: with sync=True sums over ranks are in the middle of the step, and bits depend "
                "on how many there are: leave sync or deterministic='layout' out"
            )
        self.wire, self._is_for_any_ranks = wire, deterministic is not None
        self._asked, self._taken = shards, shards  # by whoever made it, and in use
        self.shard, self.sync = shard, sync
        self._is_on_gpu = False

    def __repr__(self) -> str:
        if self.sync:
            return "DataParallel(sync=True)"
        shard = "" if self.shard is None else f", shard={self.shard!r}"
        wire = "" if self.wire is None else f", wire={self.wire!r}"
        fixed = ", deterministic='layout'" if self._is_for_any_ranks else ""
        return f"DataParallel({self._shown_shards}{shard}{wire}{fixed})"

    @property
    def deterministic(self) -> None:
        """None: what `PlacedStep` asks; of this way it is only said that bits do not depend on ranks."""

    @property
    def _shown_shards(self) -> str:
        known = self._taken is not None or self.communicator is not None
        return f"shards={self.shards if known else None}"

    @property
    def shards(self) -> int:
        """Parts of a batch, on CPUs."""
        return self._taken or max(SHARDS, self.workers().size)

    @property
    def parts(self) -> int:
        """Parts of a batch, of which each rank computes some."""
        return self.workers().size if self._is_on_gpu else self.shards

    def goes_on_with(self, shards: int | None) -> None:
        """Take the number of shards of a training that goes on, where none was given."""
        if self._taken is None:
            fits = shards is not None and shards >= self.workers().size
            self._taken = shards if fits else self.shards

    def _argument(self, name: str) -> Any:
        if name == "deterministic":
            return "layout" if self._is_for_any_ranks else None
        return self._asked if name == "shards" else super()._argument(name)

    @property
    def settings(self) -> dict[str, Any]:
        """What results depend on."""
        if self.sync:
            return {"sync": True}
        return {"shards": self.shards} | ({} if self.wire is None else {"wire": self.wire})

    def settle(self, device: str) -> None:
        """Be told where the model is: on GPUs a batch has a part for each rank."""
        self._is_on_gpu = device != "cpu"
        if self.wire is not None and not self._is_on_gpu:
            raise ArgumentError(
                f"DataParallel: wire={self.wire!r} is for gradients among GPUs, and the model is on the CPU: "
                'leave it out, or make the model with device="cuda"'
            )
        if self._is_for_any_ranks and self._is_on_gpu:
            raise ArgumentError(
                "DataParallel: on GPUs each rank has a part of the batch, and bits are those of as many "
                "ranks: leave deterministic='layout' out, or take device=\"cpu\""
            )

    def step_class(self) -> Callable[..., RanksStep]:
        """What computes and shares gradients."""
        if self.sync:
            from .placements.step import PlacedStep

            return PlacedStep
        if self.shard == "parameters":
            from .sharding.parameters import PiecesStep

            return PiecesStep
        if self.shard is not None:
            from .sharding.moments import step_of

            return step_of
        from .step import ParallelStep

        return ParallelStep

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write the last sums of this rank as a trace for chrome://tracing or ui.perfetto.dev.

        One row shows when each sum of gradients was under way, the other when the step waited for it; where
        the second is empty, other work hid the first. For steps that run many at a time, on the CPU.

        Raises:
            FileError: if the file cannot be written.
        """
        from .in_graph.beside import beside
        from .in_graph.trace_files import write_trace

        comm = self.workers()
        write_trace(path, comm.rank, beside(comm).spans)

    def own_rows(self, count: int) -> slice:
        """Which of `count` rows of a batch belong to this rank."""
        if self.sync or (self.shard == "optimiser" and self._is_on_gpu):
            return even_rows(self.workers(), count)
        return shard_rows(self.workers(), count, self.parts)
