"""Which model's turn it is: trainings run natively in rounds, while Python prepares those that come next.

A round has a piece of each training that is ready, and each piece runs on one thread from its begin to its
end. The thread that is in Python takes part as soon as it has nothing else to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from magmadnn.compiler.llvm.driver.rounds import Nested, Round
from magmadnn.compiler.llvm.object.cache import kernel_cache
from magmadnn.runtime.threads import thread_count

from .grids import run_on_devices
from .members import Member
from .room import MOST, Room
from .signals import Signals

_SECONDS = 0.01  # that a piece takes, so that a round has an end soon


def run_all(
    members: Sequence[Member], look: Callable[[], None], rooms: Mapping[int | None, Room]
) -> None:
    """Run all trainings to their ends; on a signal that one of them listens to, save all and pass it on.

    Args:
        members: the trainings.
        look: called now and then.
        rooms: in this machine's memory and in that of each GPU.

    Raises:
        whatever one of them raises but NumericError; all others then have ended too.
    """
    with Signals(members) as signals:
        try:
            here = [m for m in members if m.device is None]
            if here:
                _Rounds(here, signals, look, rooms[None]).run()
            if on_devices := [m for m in members if m.device is not None]:
                run_on_devices(on_devices, signals, look, rooms)
        except BaseException as error:
            for member in members:
                member.end(error)
            raise
    signals.pass_on()


class _Rounds:
    """Trainings that wait for Python, those that are ready, and those of the round that runs."""

    def __init__(
        self, members: Sequence[Member], signals: Signals, look: Callable[[], None], room: Room
    ) -> None:
        self._signals, self._look, self._room = signals, look, room
        self._all, self._new, self._waiting = members, deque(members), deque[Member]()
        self._ready: list[tuple[Member, Nested]] = []
        self._running: list[Member] = []
        self._threads = thread_count()
        self._round = Round(self._threads, MOST, kernel_cache())

    def run(self) -> None:
        """Until nobody waits."""
        try:
            while self._new or self._waiting or self._ready or self._running:
                self._signals.look()
                self._prepare()
                self._look()
                if self._running:
                    self._take()
                if self._ready:
                    self._start()
        except BaseException:
            self._round.end()
            self._take_back()
            raise
        self._round.end()

    def _take_back(self) -> None:
        """What has run and is in no history, as if it had not; wherever Ctrl-C came."""
        ran = self._running if self._round.has_run else []
        for member in self._all:
            if member.ticks is not None or any(member is one for one in ran):
                member.take_back()

    def _prepare(self) -> None:
        """Prepare trainings, as long as other threads are busy."""
        while self._waiting or self._may_begin:
            member = self._waiting.popleft() if self._waiting else self._new.popleft()
            if member.is_done:
                continue
            others = len(self._active)
            program = member.prepare(_SECONDS, partial(int, others))
            self._room.note(member.nbytes)
            if member.waits:
                self._room.narrow(others)
                self._new.appendleft(member)
            elif isinstance(program, Nested):
                self._ready.append((member, program))
            elif not member.is_done:
                self._waiting.append(member)
            idle = self._round.is_done if self._running else bool(self._ready)
            if idle and self._threads > 1:
                return

    @property
    def _may_begin(self) -> bool:
        if not self._new:
            return False
        active = self._active
        return len(active) < self._room.most and self._room.admits(active, self._new[0])

    @property
    def _active(self) -> list[Member]:
        """Those that have begun and have not ended."""
        return [*self._waiting, *(member for member, _ in self._ready), *self._running]

    def _start(self) -> None:
        """Let the other threads begin with all that is ready."""
        members, programs = zip(*self._ready, strict=True)
        scratch = max(member.scratch_bytes for member in members)
        self._round.clear()
        self._ready, self._running = [], list(members)
        self._round.start(list(programs), scratch)

    def _take(self) -> None:
        """Take part in the round until it has ended; what it leaves waits for Python."""
        ticks = self._round.finish()
        for member, own in zip(self._running, ticks.tolist(), strict=True):
            member.ticks = own
        self._waiting.extend(self._running)
        self._running = []
