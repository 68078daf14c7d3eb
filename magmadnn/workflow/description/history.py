"""What a log says: which runs are done, which are to be done again, how long everything took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .planning import typical_seconds


@dataclass
class RunRecord:
    """A run as the log has it.

    Attributes:
        key: its name.
        module: of it.
        number: of this attempt.
        begun: seconds since the workflow's beginning.
        ended: likewise; None: it has not.
        good: whether it ended well.
        reason: why not.
        ranks: where it ran.
        cores: that each of its ranks was kept on.
        gpus: that each of its ranks saw.
        waited: seconds in gets, of the rank that waited longest.
        moved: bytes through tuples.
        puts: tuples that it put.
        took: tuples that it took, by the number of the run that had put them.
    """

    key: str
    module: str
    number: int
    begun: float
    ranks: list[int]
    ended: float | None = None
    good: bool = False
    reason: str = ""
    waited: float = 0.0
    moved: int = 0
    puts: int = 0
    took: dict[int, int] = field(default_factory=dict)
    cores: list[list[int]] = field(default_factory=list)
    gpus: list[list[str]] = field(default_factory=list)


@dataclass
class History:
    """The state that a log describes.

    Attributes:
        runs: by number, all attempts.
        goes_on: what was found after iterations of groups with `until`.
        taken: tuples that the executive took, by the number of the run that had put them.
        finish: "done", "failed" or "stopped", where the workflow has ended.
        text: why it failed.
        ranks: of the last job.
        processes: process number of each rank of the last job, by rank.
        host: of each rank.
        seconds: at the last event.
        statistics: of tuple servers, at the end.
        losses: seconds and words for each rank that was killed while the job went on.
    """

    runs: dict[int, RunRecord] = field(default_factory=dict)
    goes_on: dict[str, bool] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    finish: str = ""
    text: str = ""
    ranks: int = 0
    processes: list[int] = field(default_factory=list)
    seconds: float = 0.0
    statistics: list[dict[str, Any]] = field(default_factory=list)
    losses: list[tuple[float, str]] = field(default_factory=list)

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> History:
        """The state after all records; the same for the same records."""
        found, shift = cls(), 0.0
        for record in records:
            kind = record["event"]
            at = shift + record.get("at", 0.0)
            if kind == "job":
                shift = found.seconds
                found.finish, found.text = "", ""
                found.ranks, found.processes = record["ranks"], list(record["processes"])
                for run in found.runs.values():
                    if run.ended is None:
                        run.ended, run.reason = found.seconds, run.reason or "the job ended"
            elif kind == "begun":
                number = record["run"]
                found.runs[number] = RunRecord(
                    record["key"],
                    record["module"],
                    number,
                    at,
                    list(record["ranks"]),
                    cores=record.get("cores", []),
                    gpus=record.get("gpus", []),
                )
            elif kind == "ended":
                run = found.runs[record["run"]]
                run.ended, run.good, run.reason = at, record["good"], record.get("reason", "")
                run.waited, run.moved = record.get("waited", 0.0), record.get("moved", 0)
                run.puts = record.get("puts", 0)
                run.took = {int(k): v for k, v in record.get("took", {}).items()}
            elif kind == "lost":
                found.losses.append((at, record["text"]))
            elif kind == "replaced":
                found.runs[record["run"]].ranks[record["member"]] = record["rank"]
            elif kind == "until":
                found.goes_on[f"{record['step']}.{record['iteration']}"] = record["goes_on"]
                if record.get("maker"):
                    found.taken[record["maker"]] = found.taken.get(record["maker"], 0) + 1
            elif kind == "finish":
                found.finish, found.text = record["state"], record.get("text", "")
                found.statistics = record.get("tuples", [])
            found.seconds = max(found.seconds, at)
        return found

    def done(self) -> set[str]:
        """Keys of runs that need not be done again.

        What a run has put and no run that is done has taken went with the job's memory, so it is done
        again, with all that it took from and all that took from it.
        """
        last = {run.key: run for run in self.runs.values() if run.good}
        good = {run.number: run for run in last.values()}
        while True:
            taken = dict(self.taken)
            for run in good.values():
                for maker, count in run.took.items():
                    taken[maker] = taken.get(maker, 0) + count
            again = {n for n, run in good.items() if taken.get(n, 0) < run.puts}
            for run in good.values():
                if again & run.took.keys() or any(
                    maker and maker not in good for maker in run.took
                ):
                    again.add(run.number)
            if not again:
                return {run.key for run in good.values()}
            for number in again:
                del good[number]

    def typical(self) -> dict[str, float]:
        """The median time of runs of each module that ended well."""
        times: dict[str, list[float]] = {}
        for run in self.runs.values():
            if run.good and run.ended is not None:
                times.setdefault(run.module, []).append(run.ended - run.begun)
        return typical_seconds(times)
