"""The executive: starts runs, hears how they end, writes the log, finds what can never go on."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from magmadnn.storage.event_log import EventLog
from magmadnn.workflow.description.cores import Cores
from magmadnn.workflow.description.gpus import Gpus, Placed, gpus_here
from magmadnn.workflow.tuples import messages as m
from magmadnn.workflow.tuples.mail import Mail, Pause

from .deadlock import Blocked, in_words, never_answered
from .losses import Running, ended_with, with_partners
from .plan_folder import RUNS, STOP, Folder
from .schedule import WAITING, Run, Schedule
from .worker import INTERRUPT

_COMMIT = 0.02
_LOOK = 0.1
_GRACE = 2.0
_HARD = 3.0  # seconds beyond a time limit that a module may be deaf


class CannotEnd(Exception):
    """A rank is inside a call that cannot be ended, so that the job has to be."""


class Executive:
    """Runs a workflow on the ranks of a job.

    Args:
        folder: of the run.
        schedule: what is to be done.
        log: for events.
        control: mail from and to all ranks.
        space: mail to the tuple servers.
        servers: their ranks.
        workers: ranks for modules.
        processes: process number of each rank, and its host.
        cores: of each host.
        first: number of the next run.
        ulfm: whether workers may be lost, and the rest goes on.
    """

    def __init__(
        self,
        folder: Folder,
        schedule: Schedule,
        log: EventLog,
        control: Mail,
        space: Mail,
        servers: Sequence[int],
        workers: Sequence[int],
        processes: Sequence[tuple[int, str]],
        cores: Cores,
        first: int,
        ulfm: bool = False,
    ) -> None:
        self.text = ""
        self._ulfm, self._lost = ulfm, set[int]()
        self._folder, self._schedule, self._log = folder, schedule, log
        self._description = folder.description
        self._control, self._space = control, space
        self._servers, self._places = list(servers), Gpus(workers, gpus_here())
        self._processes, self._number = processes, first
        self._running: dict[int, Running] = {}
        self._of_rank: dict[int, int] = {}
        self._blocked: dict[int, Blocked] = {}
        self._seekers: list[tuple[int, str, int]] = []
        self._asked: set[str] = set()
        self._cores = cores
        self._events: list[dict[str, Any]] = []
        self._suspects: list[Blocked] = []
        self._statistics: list[dict[str, Any]] = []
        self._begun, self._committed, self._looked = time.monotonic(), 0.0, 0.0
        self._stopped = False
        self._puts = {
            x.name: [] if x.puts is None and x.gets is not None else x.puts
            for x in self._description.model.modules
        }

    # --- the loop ------------------------------------------------------------------------------------

    def go(self) -> str:
        """Run to the end: "done", "failed" or "stopped".

        Raises:
            CannotEnd: a rank does not let itself be ended.
            FileError: the log cannot be written.
        """
        pause = Pause()
        while True:
            busy = self._receive()
            if self._control.lost != self._lost:
                self._lose()
            busy = self._place() or busy
            self._ask()
            now = time.monotonic()
            if self._events and (not busy or now - self._committed > _COMMIT):
                self._commit()
            if now - self._looked > _LOOK:
                self._looked = now
                self._look_round(now)
            if not self._running and (self._schedule.finished or self._schedule.stopping):
                break
            if busy:
                pause.reset()
            else:
                pause()
        state = "failed" if self._schedule.failures else "stopped" if self._stopped else "done"
        self._tell_servers(m.STATISTICS)
        self._collect(len(self._servers))
        self._event("finish", state=state, text=self.text, tuples=self._statistics)
        self._commit()
        return state

    def _collect(self, count: int) -> None:
        """Wait for the servers' figures."""
        end, pause = time.monotonic() + 2.0, Pause()
        while len(self._statistics) < count and time.monotonic() < end:
            if not self._receive():
                pause()

    def _receive(self) -> bool:
        any_came = False
        while (found := self._control.receive_json()) is not None:
            any_came = True
            source, record = found
            getattr(self, f"_on_{record['op']}")(source, record)
        return any_came

    def _event(self, kind: str, **fields: Any) -> None:
        at = round(time.monotonic() - self._begun, 6)
        self._events.append({"event": kind, "at": at, **fields})

    def _commit(self) -> None:
        self._log.add(self._events)
        self._events = []
        self._committed = time.monotonic()

    # --- beginning -----------------------------------------------------------------------------------

    def _place(self) -> bool:
        """Begin gangs that there are ranks for."""
        any_began = self._replace()
        if self._schedule.stopping:
            return any_began
        for gang in list(self._schedule.gangs):
            modules = [self._description.module(run.module) for run in gang]
            placed = self._places.take(modules)
            if placed is None:
                if text := self._places.why_not(modules, not self._running):
                    self._give_up(gang[0].key, text)
                    break
                continue
            self._schedule.begun(gang)
            for run, place in zip(gang, placed, strict=True):
                self._start(run, place)
            any_began = True
        return any_began

    def _start(self, run: Run, place: Placed) -> None:
        module = self._description.module(run.module)
        ranks, gpus = place
        number, self._number = self._number, self._number + 1
        name = run.key if not run.attempt else f"{run.key}+{run.attempt}"
        order: dict[str, Any] = {
            "op": "start",
            "run": number,
            "key": name,
            "module": run.module,
            "copy": run.copy,
            "iteration": run.iteration,
            "attempt": run.attempt,
            "ranks": ranks,
            "folder": str(self._folder.path / RUNS / name),
            "gpus": gpus,
            "cores": [self._cores.take(self._processes[r][1], module.threads) for r in ranks],
        }
        for rank in ranks:
            self._of_rank[rank] = number
            self._control.send_json(order, rank)
        hosts = [self._processes[rank][1] for rank in ranks]
        made = Running(run, number, ranks, set(ranks), time.monotonic(), hosts, order)
        self._running[number] = made
        placed = {name: order[name] for name in ("cores", "gpus") if any(order[name])}
        self._event("begun", run=number, key=run.key, module=run.module, ranks=ranks, **placed)
        for seeker in [one for one in self._seekers if one[1:] == (run.module, run.copy)]:
            self._seekers.remove(seeker)
            self._blocked.pop(seeker[0], None)
            self._are_partners(seeker[0], made)
            self._control.send_json({"op": "placed", "run": number, "ranks": ranks}, seeker[0])

    def _ask(self) -> None:
        """Ask servers for the tags that end groups."""
        from zlib import crc32

        for _, _, tag in self._schedule.asking:
            if tag not in self._asked:
                self._asked.add(tag)
                server = self._servers[crc32(tag.encode()) % len(self._servers)]
                self._space.send(m.packed(m.LOOK, tag=tag), server)

    def _tell_servers(self, operation: int, run: int = 0, words: str = "", rank: int = -1) -> None:
        message = m.packed(operation, request=rank + 1, run=run, words=words.encode())
        for server in self._servers:
            self._space.send(message, server)

    def _are_partners(self, rank: int, other: Running) -> None:
        """A rank's run sends to another run: neither can go on with what the other does again alone."""
        own = self._running.get(self._of_rank.get(rank, 0))
        if own is not None and own is not other:
            own.partners.add(other.number)
            other.partners.add(own.number)

    # --- ranks that are lost -------------------------------------------------------------------------

    def _lose(self) -> None:
        """Find out what ranks were lost, and do again what they did."""
        self._receive()  # what they had told before
        for rank in sorted(self._control.lost - self._lost):
            self._lost.add(rank)
            self._lose_rank(rank)

    def _lose_rank(self, rank: int) -> None:
        process, host = self._processes[rank]
        if rank in self._servers:
            raise CannotEnd(
                f"rank {rank} (a tuple server), process {process}, was killed; go on with magmadnn "
                f"workflow resume {self._folder.path}"
            )
        where = ended_with(self._folder.path, rank, host == self._processes[0][1])
        text = f"rank {rank}, process {process}, was killed" + (f" at {where}" if where else "")
        self._places.lose(rank)
        self._blocked.pop(rank, None)
        self._seekers = [one for one in self._seekers if one[0] != rank]
        running = self._running.get(self._of_rank.get(rank, 0))
        self._event("lost", rank=rank, run=running.number if running else 0, text=text)
        if running is None or rank not in running.left:
            return
        self._tell_servers(m.ROLLBACK, running.number, rank=rank)
        if running.replaceable and rank != running.ranks[0] and running.failing is None:
            running.left.discard(rank)
            running.missing.append(running.ranks.index(rank))
            return
        for one in with_partners(running, self._running):
            one.lost = one.lost or text
            one.left -= self._lost
            if one.left:
                self._end_run(one, text)
            else:
                self._ended(one)

    def _replace(self) -> bool:
        """Let spare ranks take over from lost ones in runs whose ranks work for themselves."""
        any_began = False
        for running in self._running.values():
            module, gpus = self._description.module(running.run.module), running.order["gpus"]
            while running.missing and running.ranks[0] in running.left:
                member = running.missing[0]
                rank = self._places.take_for(module, gpus[member] if gpus else ())
                if rank is None:
                    break
                running.missing.pop(0)
                running.ranks[member] = rank
                running.left.add(rank)
                self._of_rank[rank] = running.number
                self._control.send_json({**running.order, "member": member}, rank)
                self._event("replaced", run=running.number, member=member, rank=rank)
                any_began = True
        return any_began

    def _give_up(self, key: str, text: str) -> None:
        self.text = (
            self.text or f"{key} {text}; go on with magmadnn workflow resume {self._folder.path}"
        )
        self._schedule.failures.append(key)
        self._schedule.stopping = True

    def _on_replaceable(self, source: int, record: dict[str, Any]) -> None:
        running = self._running.get(self._of_rank.get(source, 0))
        if running is not None:
            running.replaceable = True

    # --- what ranks tell -----------------------------------------------------------------------------

    def _on_ended(self, source: int, record: dict[str, Any]) -> None:
        running = self._running[record["run"]]
        running.left.discard(source)
        self._blocked.pop(source, None)
        running.waited = max(running.waited, record["waited"])
        running.moved += record["moved"]
        running.puts += record["puts"]
        for maker, count in record["took"].items():
            running.took[int(maker)] = running.took.get(int(maker), 0) + count
        if record["reason"] and record.get("loss"):
            running.lost = running.lost or record["reason"]
        elif record["reason"]:
            running.reasons[source] = record["reason"]
            if running.left and running.failing is None:
                self._end_run(
                    running, f"rank {running.ranks.index(source)} failed: {record['reason']}"
                )
        if not running.left:
            self._ended(running)

    def _ended(self, running: Running) -> None:
        del self._running[running.number]
        left = (rank for rank in running.ranks if rank not in self._lost)
        self._places.give_back(left, (gpu for seen in running.order["gpus"] for gpu in seen))
        for host, cores in zip(running.hosts, running.order["cores"], strict=True):
            self._cores.give_back(host, cores)
        good, reason = not running.reasons, ""
        module = self._description.module(running.run.module)
        if not good:
            rank, first = next(iter(running.reasons.items()))
            reason = (
                f"rank {running.ranks.index(rank)}: {first}" if len(running.ranks) > 1 else first
            )
        if running.lost:
            good, reason = False, running.lost
        if running.replaceable and self._lost:  # what lost ranks had taken was not told
            running.puts = min(running.puts, running.took.get(running.number, 0))
        fields: dict[str, Any] = {"run": running.number, "good": good}
        if reason:
            fields["reason"] = reason
        if running.puts or running.took:
            took = {str(k): v for k, v in running.took.items()}
            fields |= {"puts": running.puts, "took": took, "moved": running.moved}
        if running.waited:
            fields["waited"] = running.waited
        self._event("ended", **fields)
        if module.on_failure == "retry" or self._ulfm:
            self._tell_servers(m.ENDED if good else m.ROLLBACK, running.number)
        if running.lost and not self._schedule.stopping:
            self._schedule.again(running.run)
            return
        again = self._schedule.ended(running.run, good)
        if not good and not again and not self.text:
            self.text = f"{running.run.key} failed: {reason}"
        if self._schedule.stopping and not good:
            for other in self._running.values():
                self._end_run(other, f"ended since {self.text}")

    def _end_run(self, running: Running, text: str) -> None:
        """End what still runs of a run."""
        if running.failing is not None:
            return
        running.failing = time.monotonic()
        self._tell_servers(m.FAIL, running.number, text)
        for rank in running.left:
            process, host = self._processes[rank]
            self._control.send_json({"op": "fail", "text": text}, rank)
            if host == self._processes[0][1]:
                os.kill(process, INTERRUPT)

    def _on_waits(self, source: int, record: dict[str, Any]) -> None:
        running = self._running.get(record["run"])
        if running is not None and record["rank"] in running.left:
            key, module = running.run.key, running.run.module
            self._blocked[record["rank"]] = Blocked(key, module, record["tag"], record["where"])

    def _on_answered(self, source: int, record: dict[str, Any]) -> None:
        self._blocked.pop(record["rank"], None)

    def _on_expects(self, source: int, record: dict[str, Any]) -> None:
        running = self._running.get(self._of_rank.get(source, 0))
        if running is not None:
            key, module = running.run.key, running.run.module
            self._blocked[source] = Blocked(key, module, "", record["where"], record["module"])

    def _on_received(self, source: int, record: dict[str, Any]) -> None:
        self._blocked.pop(source, None)

    def _on_where(self, source: int, record: dict[str, Any]) -> None:
        wanted = (record["module"], record["copy"])
        for running in self._running.values():
            if (running.run.module, running.run.copy) == wanted:
                self._are_partners(source, running)
                place = {"op": "placed", "run": running.number, "ranks": running.ranks}
                self._control.send_json(place, source)
                return
        self._seekers.append((source, *wanted))
        self._on_expects(source, {"module": wanted[0], "where": record.get("where", "send")})

    def _on_full(self, source: int, record: dict[str, Any]) -> None:
        running = self._running.get(record["run"])
        if running is not None:
            running.reasons.setdefault(running.ranks[0], record["text"])
            self._end_run(running, record["text"])

    def _on_looked(self, source: int, record: dict[str, Any]) -> None:
        self._asked.discard(record["tag"])
        for step, iteration, tag in self._schedule.asking:
            if tag == record["tag"]:
                there = record["maker"] is not None
                fields = {"step": step, "iteration": iteration, "goes_on": not there}
                self._event("until", **fields, maker=record["maker"])
                self._schedule.told(step, there)
                return

    def _on_statistics(self, source: int, record: dict[str, Any]) -> None:
        self._statistics.append({k: v for k, v in record.items() if k != "op"})

    # --- what is looked at now and then --------------------------------------------------------------

    def _look_round(self, now: float) -> None:
        self._look_for_stop()
        for running in self._running.values():
            limit = self._description.module(running.run.module).time_limit
            if running.failing is not None and now - running.failing > _GRACE:
                raise CannotEnd(self._deaf(running))
            if (
                limit is not None
                and now - running.begun > limit + _HARD
                and running.failing is None
            ):
                text = f"took longer than its time limit of {limit:g} seconds"
                running.reasons.setdefault(running.ranks[0], text)
                self._end_run(running, text)
        self._look_for_deadlock()

    def _deaf(self, running: Running) -> str:
        rank = min(running.left)
        why = next(iter(running.reasons.values()), self.text or "it was to end")
        return (
            f"{running.run.key} failed: {why}; its rank {running.ranks.index(rank)} is inside a call that "
            "cannot be ended, so the job is; go on with magmadnn workflow resume"
        )

    def _look_for_stop(self) -> None:
        path = self._folder.path / STOP
        if self._stopped or not path.exists():
            return
        self._stopped = self._schedule.stopping = True
        if path.read_text().strip() == "now":
            self.text = "it was stopped"
            for running in self._running.values():
                self._end_run(running, "the workflow was stopped")

    def _look_for_deadlock(self) -> None:
        """End runs that wait for what nobody can put any more; found twice, as messages travel."""
        stuck = self._stuck() if self._blocked else []
        if not stuck or stuck != self._suspects:
            self._suspects = stuck
            return
        text = in_words(stuck, self._puts)
        self.text = self.text or text
        keys = {one.run for one in stuck}
        for running in list(self._running.values()):
            if running.run.key in keys and running.failing is None:
                self._tell_servers(m.FAIL, running.number, text)
                for rank in running.left:
                    if rank in self._blocked and self._blocked[rank].source:
                        self._end_run(running, text)
                        running.reasons.setdefault(rank, text)
                        break

    def _stuck(self) -> list[Blocked]:
        going = {
            running.run.module
            for running in self._running.values()
            if any(rank not in self._blocked for rank in running.left)
        }
        blocked = [self._blocked[rank] for rank in sorted(self._blocked)]
        return never_answered(blocked, going, self._coming(going), self._puts)

    def _coming(self, going: set[str]) -> dict[str, list[str]]:
        """Modules that have not begun, and those that end before they do."""
        found: dict[str, list[str]] = {}
        held = [r.run.module for r in self._running.values() if r.run.module not in going]
        for gang in self._schedule.gangs:
            need = sum(self._description.module(run.module).ranks for run in gang)
            room = len(self._places.free_ranks) + sum(
                len(r.ranks) for r in self._running.values() if r.run.module in going
            )
            for run in gang:
                found[run.module] = held if need > room else []
        for step, (state, _) in self._schedule.states().items():
            one = self._schedule.step(step)
            for name in one.modules:
                if state == WAITING:
                    after = [x for p in one.after for x in self._schedule.step(p).modules]
                    ended = [
                        s for s in one.after if self._schedule.state(s) not in (WAITING, "running")
                    ]
                    after = [] if len(ended) == len(one.after) else after
                    found.setdefault(name, [*after, *one.inner.get(name, ())])
                elif state == "running" and name in self._schedule.to_come(step):
                    found.setdefault(name, list(one.inner.get(name, ())))
        return found
