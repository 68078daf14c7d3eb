"""Models on a GPU: rounds in which a launch trains all that are ready, a block each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from magmadnn.compiler.llvm.driver.rounds import Nested

from .course import tick_rate
from .members import Member
from .signals import Signals

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.many.course import GridCourse

_SECONDS = 0.25  # that a round takes
_MOST = 4096  # trainings at the same time


def run_on_devices(members: Sequence[Member], signals: Signals, look: Callable[[], None]) -> None:
    """Run trainings on GPUs to their ends; those that no block can run take turns, an epoch at a time.

    Args:
        members: the trainings.
        signals: stop all of them.
        look: called now and then.
    """
    new, active = deque(members), list[Member]()
    while new or active:
        while new and len(active) < _MOST:
            active.append(new.popleft())
        ready: list[tuple[Member, GridCourse]] = []
        for member in active:
            signals.look()
            if member.is_done:
                continue
            program = member.prepare(_SECONDS / len(active))
            look()
            if program is not None:
                assert not isinstance(program, Nested)
                ready.append((member, program))
        if ready:
            _run(ready)
        active = [member for member in active if not member.is_done]


def _run(ready: Sequence[tuple[Member, GridCourse]]) -> None:
    """A piece of each; what it leaves waits for Python."""
    from magmadnn.runtime.cuda.many.course import run_together

    for (member, _), seconds in zip(ready, run_together([c for _, c in ready]), strict=True):
        member.ticks = round(seconds * tick_rate())
