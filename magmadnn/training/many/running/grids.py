"""Models on a GPU: rounds in which all that are ready train, a block each, or as one program."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from magmadnn.compiler.llvm.driver.rounds import Nested
from magmadnn.training.many.course import FitCourse, tick_rate

from .members import Member
from .room import Room
from .signals import Signals

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.many.course import GridCourse

_SECONDS = 0.25  # that a round takes
_MOST = 4096  # trainings at the same time


def run_on_devices(
    members: Sequence[Member],
    signals: Signals,
    look: Callable[[], None],
    rooms: Mapping[int | None, Room],
) -> None:
    """Run trainings on GPUs to their ends.

    Small ones are a block each; larger ones that are alike are one program; others take turns, an epoch at a
    time.

    Args:
        members: the trainings.
        signals: stop all of them.
        look: called now and then.
        rooms: in the memory of each.
    """
    try:
        _run_all(deque(members), signals, look, rooms)
    finally:
        _let_go()


def _run_all(
    new: deque[Member],
    signals: Signals,
    look: Callable[[], None],
    rooms: Mapping[int | None, Room],
) -> None:
    """Rounds until all are done."""
    active = list[Member]()
    while new or active:
        beside: dict[int | None, list[Member]] = defaultdict(list)
        for member in active:
            beside[member.device].append(member)
        while new and len(active) < _MOST:
            own = beside[new[0].device]
            if not rooms[new[0].device].admits(own, new[0]):
                break
            own.append(new[0])
            active.append(new.popleft())
        ready = _ready(active, signals, look, rooms)
        if ready:
            _make_even([course for member, _ in ready if (course := member.stacked) is not None])
            for device in dict.fromkeys(member.device for member, _ in ready):
                there = [one for one in ready if one[0].device == device]
                _run(there, rooms[device].left([one for one in active if one.device == device]))
        new.extendleft(reversed([member for member in active if member.waits]))
        active = [member for member in active if not member.is_done and not member.waits]


def _ready(
    active: Sequence[Member],
    signals: Signals,
    look: Callable[[], None],
    rooms: Mapping[int | None, Room],
) -> list[tuple[Member, GridCourse]]:
    """The next piece of each that has one."""
    ready: list[tuple[Member, GridCourse]] = []
    for member in active:
        signals.look()
        if member.is_done:
            continue
        others = partial(_others, active, member)
        program = member.prepare(_SECONDS / len(active), others)
        look()
        if member.waits:
            rooms[member.device].narrow(others())
        if program is not None:
            assert not isinstance(program, Nested)
            ready.append((member, program))
    return ready


def _others(active: Sequence[Member], member: Member) -> int:
    """How many are under way beside one."""
    return sum(one is not member and not one.waits and not one.is_done for one in active)


def _make_even(courses: Sequence[FitCourse]) -> None:
    """Let models that become one program do as many epochs and batches as the one that does least."""
    if len({course.most for course in courses}) > 1:
        batches, epochs = map(min, zip(*(course.most for course in courses), strict=True))
        for course in courses:
            course.point(batches, epochs)


def _let_go() -> None:
    """Give back what stacks of models take."""
    from magmadnn.runtime.cuda.many.course import let_go

    let_go()


def _run(ready: Sequence[tuple[Member, GridCourse]], room: int | None) -> None:
    """A piece of each, on one device; what it leaves waits for Python."""
    from magmadnn.runtime.cuda.many.course import run_together

    found = run_together([course for _, course in ready], room)
    for (member, _), seconds in zip(ready, found, strict=True):
        member.ticks = round(seconds * tick_rate())
