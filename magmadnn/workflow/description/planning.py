"""When modules are expected to run, from the times that the file or earlier runs give."""

from __future__ import annotations

import heapq
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from magmadnn.errors import DataError

from .cores import Cores, cores_here, in_words
from .dependencies import Step, ranks_needed, steps_of
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
        assumed: what the times rest on that neither the file nor an earlier run says.
    """

    runs: Sequence[Planned]
    ranks: int
    job: int
    assumed: Sequence[str] = ()

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
        return "\n".join([head, *rows, end, *(f"assumed: {one}" for one in self.assumed)])


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
    here = cores_here() if cores is None else cores
    course = _Course(
        description, seconds, Cores({"": here if description.model.pin else ()}),
        Gpus(range(ranks), gpus or _enough_gpus(description)),
    )  # fmt: skip
    while waiting := course.waiting:
        for step in waiting:
            course.begin(step)
        if not course.goes_on:
            raise DataError(_no_place(description, waiting[0].name, ranks, gpus))
        course.end_next()
    return Plan(course.runs, ranks, ranks + 1 + servers, _assumed(description, earlier or {}))


def _assumed(description: Description, earlier: Mapping[str, float]) -> list[str]:
    """What a plan rests on that nobody has said."""
    model = description.model
    unknown = [m.name for m in model.modules if not m.seconds and m.name not in earlier]
    found = (
        [f"1 s a run of {', '.join(unknown)}; give seconds, or an earlier run"] if unknown else []
    )
    for group in model.groups:
        if group.until is not None and group.iterations is None:
            found.append(f"one iteration of {group.name}, whose end is not known")
        elif group.until is not None:
            found.append(
                f"all {group.iterations} iterations of {group.name}, which may end earlier"
            )
    return found


class _Course:
    """A workflow whose modules take the seconds that are expected.

    Args:
        description: the workflow.
        seconds: of a run of each module.
        cores: of the machine, handed out.
        places: ranks and GPUs, handed out.

    Attributes:
        runs: begun so far, in this order.
    """

    def __init__(
        self, description: Description, seconds: Mapping[str, float], cores: Cores, places: Gpus
    ) -> None:
        self._description, self._seconds = description, seconds
        self._cores, self._places = cores, places
        self.runs: list[Planned] = []
        self._steps = {s.name: s for s in steps_of(description)}
        self._now = 0.0  # seconds
        self._ends: list[tuple[float, int, Step, Planned, list[int]]] = []  # a heap; with ranks
        self._iteration = dict.fromkeys(self._steps, 0)
        self._left: dict[tuple[str, str], int] = {}  # copies of a step's module that have not ended
        self._begun = defaultdict[str, set[str]](set)  # modules of this iteration of a step
        self._done: set[str] = set()

    @property
    def waiting(self) -> list[Step]:
        """The steps that have not ended."""
        return [step for name, step in self._steps.items() if name not in self._done]

    @property
    def goes_on(self) -> bool:
        """Whether anything runs."""
        return bool(self._ends)

    def begin(self, step: Step) -> None:
        """Begin what of a step can: modules for which nothing has to end, if there are places for all."""
        if not self._done.issuperset(step.after):
            return
        begun = self._begun[step.name]
        gang = [
            m
            for m in step.modules
            if m not in begun
            and all(self._left.get((step.name, p), 1) == 0 for p in step.inner.get(m, ()))
        ]
        runs = [(m, copy) for m in gang for copy in range(self._description.module(m).copies)]
        modules = [self._description.module(m) for m, _ in runs]
        placed = self._places.take(modules) if runs else None
        if placed is None:
            return
        for m in gang:
            begun.add(m)
            self._left[step.name, m] = self._description.module(m).copies
        for (m, copy), module, (ranks, seen) in zip(runs, modules, placed, strict=True):
            own = f"{m}.{copy}"
            key = f"{step.name}.{self._iteration[step.name]}/{own}" if step.is_group else own
            kept = [self._cores.take("", module.threads) for _ in range(module.ranks)]
            end = self._now + self._seconds[m]
            run = Planned(key, m, self._now, end, module.ranks, kept, seen)
            heapq.heappush(self._ends, (run.end, len(self.runs), step, run, ranks))
            self.runs.append(run)

    def end_next(self) -> None:
        """Go on to the end of the run that ends first, and give back what it had."""
        self._now, _, step, run, ranks = heapq.heappop(self._ends)
        self._places.give_back(ranks, (one for seen in run.gpus for one in seen))
        for held in run.cores:
            self._cores.give_back("", held)
        name = step.name
        self._left[name, run.module] -= 1
        if len(self._begun[name]) < len(step.modules) or any(
            self._left[name, m] for m in step.modules
        ):
            return
        self._iteration[name] += 1
        self._begun[name].clear()
        for m in step.modules:
            del self._left[name, m]
        if self._iteration[name] >= (step.iterations or _UNTIL):
            self._done.add(name)


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
