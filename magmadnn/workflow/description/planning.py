"""When modules are expected to run, from the times that the file or earlier runs give."""

from __future__ import annotations

import heapq
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from magmadnn.errors import DataError

from .cores import Cores, cores_here, in_words
from .dependencies import ranks_needed, steps_of
from .gpus import Gpus
from .reading import Description

_UNTIL = 1  # iterations that are planned of a group whose end is not known


@dataclass(frozen=True)
class Planned:
    """A run that is expected.

    Attributes:
        key: its name.
        module: of it.
        begin: seconds from the workflow's beginning.
        end: likewise.
        ranks: how many it takes.
        cores: that each of its ranks is kept on; empty where there are too few, so that it may use any.
        gpus: that each of its ranks sees.
    """

    key: str
    module: str
    begin: float
    end: float
    ranks: int
    cores: Sequence[Sequence[int]] = ()
    gpus: Sequence[Sequence[str]] = ()

    @property
    def place(self) -> str:
        """Cores of each rank, and GPUs where it has any."""
        text = " ".join(in_words(cores) for cores in self.cores)
        return text + "".join(f" gpu {','.join(gpus)}" for gpus in self.gpus)


@dataclass(frozen=True)
class Plan:
    """What is expected of a workflow.

    Attributes:
        runs: in the order in which they begin.
        ranks: for modules.
        job: ranks of the whole job.
    """

    runs: Sequence[Planned]
    ranks: int
    job: int

    @property
    def seconds(self) -> float:
        """When the last one ends."""
        return max((run.end for run in self.runs), default=0.0)

    @property
    def idle_share(self) -> float:
        """Share of the ranks' time in which they have nothing to do."""
        busy = sum((run.end - run.begin) * run.ranks for run in self.runs)
        whole = self.seconds * self.ranks
        return 1 - busy / whole if whole else 0.0

    def __str__(self) -> str:
        """A table."""
        wide = max([len("module run"), *(len(r.key) for r in self.runs)])
        rows = [
            f"{r.begin:10.2f} {r.end:10.2f} {r.ranks:6}  {r.key:{wide}}  {r.place}"
            for r in self.runs
        ]
        head = (
            f"{'begins':>10} {'ends':>10} {'ranks':>6}  {'module run':{wide}}  cores of each rank"
        )
        end = (
            f"{self.seconds:.2f} s on {self.ranks} ranks for modules (mpiexec -n {self.job}), "
            f"{100 * self.idle_share:.0f} % of their time idle"
        )
        return "\n".join([head, *rows, end])


def plan_of(
    description: Description,
    job: int | None = None,
    earlier: Mapping[str, float] | None = None,
    cores: Iterable[int] | None = None,
    gpus: Sequence[str] = (),
) -> Plan:
    """The expected course of a workflow.

    Args:
        description: the workflow.
        job: ranks of the job; None: as many as it needs.
        earlier: seconds that modules took before, by name; else the file's `seconds`, else 1.
        cores: of the machine; None: those of this one.
        gpus: of the machine; none: as many as modules need, numbered from 0.

    Raises:
        DataError: there are too few ranks or GPUs.
    """
    servers = description.model.tuple_space.servers
    ranks = ranks_needed(description) if job is None else job - 1 - servers
    seconds = {m.name: m.seconds or 1.0 for m in description.model.modules} | dict(earlier or {})
    now, found = 0.0, list[Planned]()
    steps = {s.name: s for s in steps_of(description)}
    iteration = dict.fromkeys(steps, 0)
    here = cores_here() if cores is None else cores
    places = Cores({"": here if description.model.pin else ()})
    free = Gpus(range(ranks), gpus or _enough_gpus(description))
    ends: list[
        tuple[float, int, str, str, Planned, list[int]]
    ] = []  # end, order, step, module, run, ranks
    left: dict[tuple[str, str], int] = {}
    begun: dict[str, set[str]] = defaultdict(set)
    done: set[str] = set()
    order = 0
    while len(done) < len(steps):
        for name, step in steps.items():
            if name in done or any(p not in done for p in step.after):
                continue
            gang = [
                m
                for m in step.modules
                if m not in begun[name]
                and all(left.get((name, p), 1) == 0 for p in step.inner.get(m, ()))
            ]
            runs = [(m, copy) for m in gang for copy in range(description.module(m).copies)]
            placed = free.take([description.module(m) for m, _ in runs]) if runs else None
            if placed is None:
                continue
            for m in gang:
                begun[name].add(m)
                left[name, m] = description.module(m).copies
            for (m, copy), (own_ranks, seen) in zip(runs, placed, strict=True):
                module, own = description.module(m), f"{m}.{copy}"
                key = f"{name}.{iteration[name]}/{own}" if step.is_group else own
                kept = [places.take("", module.threads) for _ in range(module.ranks)]
                run = Planned(key, m, now, now + seconds[m], module.ranks, kept, seen)
                found.append(run)
                heapq.heappush(ends, (run.end, order, name, m, run, own_ranks))
                order += 1
        if not ends:
            raise DataError(
                _no_place(description, next(n for n in steps if n not in done), ranks, gpus)
            )
        now, _, name, m, run, own_ranks = heapq.heappop(ends)
        free.give_back(own_ranks, (one for seen in run.gpus for one in seen))
        for held in run.cores:
            places.give_back("", held)
        left[name, m] -= 1
        step = steps[name]
        if len(begun[name]) == len(step.modules) and all(left[name, x] == 0 for x in step.modules):
            iteration[name] += 1
            begun[name].clear()
            for x in step.modules:
                left.pop((name, x))
            if iteration[name] >= (step.iterations if step.iterations else _UNTIL):
                done.add(name)
    return Plan(found, ranks, ranks + 1 + servers)


def _enough_gpus(description: Description) -> list[str]:
    return [
        str(k) for k in range(sum(m.gpus * m.ranks * m.copies for m in description.model.modules))
    ]


def _no_place(description: Description, step: str, ranks: int, gpus: Sequence[str]) -> str:
    return (
        f"plan: {step} has no place on {ranks} ranks for modules and {len(gpus)} GPUs; the workflow needs "
        f"{ranks_needed(description)} ranks, and GPUs for all ranks that run together"
    )


def typical_seconds(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of the times of each module."""
    return {name: statistics.median(values) for name, values in times.items() if values}
