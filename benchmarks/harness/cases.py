"""What is measured: contenders, cases, goals, and what a measurement gave."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

OURS = "magmadnn"
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Settings:
    """How long and on what everything is measured.

    Attributes:
        threads: cores that each contender may use.
        blocks: times that the contenders take turns.
        seconds: how long a block lasts at least.
        quick: small sizes and few cases, to try the programs, not to report.
        device: that of all contenders.
    """

    threads: int
    blocks: int = 7
    seconds: float = 0.3
    quick: bool = False
    device: Device = "cpu"


@dataclass(frozen=True)
class Entry:
    """A contender.

    Attributes:
        name: in tables.
        make: "module:class"; an object with `run()`, and `check()` where results are compared.
        arguments: for the class.
        fresh: a new process for each block, of which the first `run` is timed: "cold" with empty caches,
            "warm" with those that an earlier process left.
        threads: other than those of the run.
    """

    name: str
    make: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fresh: Literal["", "cold", "warm"] = ""
    threads: int | None = None


@dataclass(frozen=True)
class Goal:
    """A figure to reach.

    Kinds:
        "ratio": ours over the best of `peers` is at most `limit`.
        "share": at least `limit` of the measured peak: FMAs of the cores in use, or a large matrix product
            on the GPU.
        "value": at most `limit` seconds.
        "beyond": at most `limit` seconds more than the best of `peers`.
    """

    kind: Literal["ratio", "share", "value", "beyond"]
    limit: float
    peers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """Results that must agree before anything is timed: each contender's `check()` with the first one's.

    The tolerance is relative to the largest magnitude of each array. `changes` are arguments that differ
    from those that are timed (float64, fewer rows); `names` are the entries that take part, and `keys` the
    results that are compared, () for all.
    """

    tolerance: float
    changes: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One row of the results.

    Attributes:
        name: of the row.
        entries: contenders; `ours` is the name of the one that goals are about.
        flops: multiplications and additions of the matrix products of one run; 0 where that says nothing.
        dtype: of the peak to compare with.
        unit: what a block gives: seconds of one run, bytes of memory at the most, or the share of what is
            wrong: what `check` of a contender gives, made anew with the number of the block as `seed`.
        steps: what one run consists of, to show the time of one.
        note: what has to be known to read the row.
    """

    name: str
    entries: tuple[Entry, ...]
    goals: tuple[Goal, ...] = ()
    checks: tuple[Check, ...] = ()
    flops: float = 0.0
    dtype: str = "float32"
    unit: Literal["seconds", "bytes", "errors"] = "seconds"
    steps: int = 1
    ours: str = OURS
    note: str = ""

    def without(self, names: Sequence[str]) -> Case:
        """The case without contenders whose names begin with one of `names`; goals keep other peers."""
        left = tuple(e for e in self.entries if not e.name.startswith(tuple(names)))
        known = {entry.name for entry in left}
        peers = {goal: tuple(p for p in goal.peers if p in known) for goal in self.goals}
        goals = [replace(g, peers=found) for g, found in peers.items() if found or not g.peers]
        return replace(self, entries=left, goals=tuple(goals))


@dataclass(frozen=True)
class Claim:
    """The cases of one file.

    Attributes:
        title: of its tables.
        cases: its rows.
        shared: they use the same processes one after the other.
        summary: lines that say what all rows together show.
    """

    title: str
    cases: Sequence[Case]
    shared: bool = False
    summary: Callable[[Sequence[Result]], list[str]] | None = None


@dataclass
class Figure:
    """What one contender's blocks gave."""

    blocks: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def minimum(self) -> float:
        return min(self.blocks)

    @property
    def median(self) -> float:
        return statistics.median(self.blocks)

    @property
    def spread(self) -> float:
        """(largest - smallest) / smallest."""
        return max(self.blocks) / self.minimum - 1


@dataclass(frozen=True)
class Outcome:
    """A goal, what was measured, and whether that is enough; None where it could not be measured.

    By the minimum and by the median: both must do.
    """

    goal: Goal
    by_minimum: float
    by_median: float
    reached: bool | None


@dataclass
class Result:
    """A case measured."""

    case: Case
    settings: Settings
    figures: dict[str, Figure]
    peak_flops: Figure  # FLOP/s of the whole device, block by block
    failed_checks: list[str]
    remarks: list[str] = field(default_factory=list)

    @property
    def share_of_peak(self) -> tuple[float, float]:
        """By the best block of both, and by the medians."""
        ours, peak = self.figures[self.case.ours], self.peak_flops
        return (
            self.case.flops / ours.minimum / max(peak.blocks),
            self.case.flops / ours.median / peak.median,
        )

    def outcomes(self) -> list[Outcome]:
        return [self._outcome(goal) for goal in self.case.goals]

    def _outcome(self, goal: Goal) -> Outcome:
        needed = [self.figures[name] for name in (self.case.ours, *goal.peers)]
        peak_missing = goal.kind == "share" and not self.peak_flops.blocks
        if peak_missing or not all(figure.blocks for figure in needed):
            return Outcome(goal, float("nan"), float("nan"), None)
        ours, *peers = needed
        if goal.kind == "share":
            low, middle = self.share_of_peak
            return Outcome(goal, low, middle, min(low, middle) >= goal.limit)
        low, middle = ours.minimum, ours.median
        if goal.peers:
            best, typical = min(p.minimum for p in peers), min(p.median for p in peers)
            ratio = goal.kind == "ratio"
            low, middle = (
                (low / best, middle / typical) if ratio else (low - best, middle - typical)
            )
        return Outcome(goal, low, middle, max(low, middle) <= goal.limit)
