"""The grid engine: a module whose ranks search hyperparameters, handed out through the tuple space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from magmadnn.errors import ArgumentError, WorkflowError
from magmadnn.search import Study
from magmadnn.search import run as search
from magmadnn.search.trials.records import (
    DONE,
    Job,
    Outcome,
    plain_result,
    result_of_plain,
)
from magmadnn.search.trials.training import Task
from magmadnn.search.workers.places import Place, Served, trained_elsewhere

from .modules.context import Context

_END = "end"


class _TuplePlace:
    """Trials run on the other ranks of a module; jobs and outcomes are tuples."""

    def __init__(self, context: Context, name: str, count: int, batches: bool) -> None:
        self._context, self._name, self._batches = context, name, batches
        self._count = count
        self._given: dict[int, Sequence[Job]] = {}
        self._number, self._filling = 0, True

    @property
    def has_room(self) -> bool:
        """Whether a rank has nothing to do; in batches only until all have a job, and then when all ended."""
        return len(self._given) < self._count and (not self._batches or self._filling)

    @property
    def is_busy(self) -> bool:
        """Whether there are jobs whose outcomes have not come."""
        return bool(self._given)

    def start(self, jobs: Sequence[Job]) -> None:
        """Put jobs, for whichever rank is first."""
        self._number += 1
        self._given[self._number] = jobs
        plain = [plain_result(job, Outcome(DONE)) for job in jobs]
        self._context.put(f"{self._name}/jobs", {"number": self._number, "jobs": plain})

    def wait(self, seconds: float | None = None) -> list[tuple[Job, Outcome]]:
        """Outcomes that have come, at least one unless `seconds` pass; in batches those of all."""
        self._filling = False
        found: list[tuple[Job, Outcome]] = []
        while self._given and (self._batches or not found):
            try:
                record = self._context.get(f"{self._name}/outcomes", timeout=seconds)
            except WorkflowError:
                if seconds is None:
                    raise
                break
            if self._given.pop(record["number"], None) is None:
                continue  # another rank has trained it, since the first was taken for lost
            found += [result_of_plain(one) for one in record["results"]]
        self._filling = not self._given or not self._batches
        return found

    def close(self) -> None:
        """Let the other ranks end."""
        for _ in range(self._count):
            self._context.put(f"{self._name}/jobs", _END)


class _Ranks:
    """The ranks of a module, the first of which leads."""

    def __init__(self, context: Context, batches: bool, together: int | None) -> None:
        if context.size < 2:
            raise ArgumentError(
                f"grid: module {context.module!r} needs at least 2 ranks: the first hands out points, "
                "the others train"
            )
        if together is not None and (isinstance(together, bool) or together < 1):
            raise ArgumentError(
                f"grid: together={together!r}: give a number of points from 1 on, or None"
            )
        self.count = context.size - 1
        self.together = 1 if batches and together is None else together
        self._context, self._batches = context, batches
        own = f"{context.module}.{context.copy}.{context.iteration}.{context.attempt}"
        self._name = f"grid/{own}"

    def known(self, task: Task) -> None:
        """Train what is handed out until there is no more, on all ranks but the first."""
        self._context.allow_replacements()
        if self._context.rank == 0:
            return
        try:
            while (record := self._context.get(f"{self._name}/jobs")) != _END:
                jobs = [result_of_plain(one)[0] for one in record["jobs"]]
                done = zip(jobs, task.outcomes(jobs), strict=True)
                results = [plain_result(job, outcome) for job, outcome in done]
                self._context.put(
                    f"{self._name}/outcomes", {"number": record["number"], "results": results}
                )
                self._context.confirm()
        finally:
            task.forget()
        raise Served

    def place(self, task: Task) -> Place:
        """The tuple space."""
        return _TuplePlace(self._context, self._name, self.count, self._batches)


@contextmanager
def on_ranks_of(
    context: Context, batches: bool = False, together: int | None = None
) -> Iterator[None]:
    """Let a search of this block hand its points to the ranks of a module; all of them enter it.

    On all ranks but the first the block ends where the search would begin, once there are no more points.
    """
    try:
        with trained_elsewhere(_Ranks(context, batches, together)):
            yield
    except Served:
        return


def grid(
    context: Context,
    build: Any,
    space: Mapping[str, Any],
    x: Any,
    y: Any = None,
    *,
    batches: bool = False,
    together: int | None = None,
    **options: Any,
) -> Study | None:
    """Search on all ranks of a module: the first hands out points, the others train.

    Every rank calls it with the same arguments. The table is that of `md.search.run` with the same ones,
    whatever the number of ranks; a result counts once it is in the study's log, so that a search that was
    killed goes on with `resume=True` and trains no point twice.

    Args:
        context: of the module.
        build: as for `md.search.run`.
        space: likewise.
        x: likewise.
        y: likewise.
        batches: whether points are handed out only when all of the batch before have ended, as the papers'
            engine does; otherwise each as soon as a rank is free.
        together: how many points a rank trains in one call at most, 16 or fewer, to the bits of single
            ones. None: one in batches, otherwise so many that each rank gets four calls of what the method
            hands out at a time (64 points of a grid). Where an objective or an end needs the time of a
            point it is always one.
        options: others of `md.search.run` but `workers` and `trial_seconds`.

    Returns:
        The study, on rank 0; None on the others.

    Raises:
        ArgumentError: the module has one rank only, together is below 1, or an option cannot be used.
    """
    with on_ranks_of(context, batches, together):
        return search(build, space, x, y, **options)
    return None
