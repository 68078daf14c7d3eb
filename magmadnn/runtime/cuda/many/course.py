"""One of many models on a device: what it is to do next, and what that gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.compiler.regions.draft import Alike
from magmadnn.graph.node import Node
from magmadnn.graph.op import Array
from magmadnn.memory.foreign import OnDevice
from magmadnn.runtime.cuda.layout import comes_to
from magmadnn.runtime.cuda.running.sliced.sliced_plans import can_slice
from magmadnn.runtime.variables import tensor_of

from .group import Group, Piece
from .leg import Seat, Wanted, is_small
from .orders import Shuffled
from .stacked_group import StackedGroup
from .stacks import can_stack

_AnyGroup = Group | StackedGroup
# with what legs are alike beside the first, whose numbers no others get as long as it is held
_groups: WeakKeyDictionary[Alike, dict[Any, tuple[_AnyGroup | None, list[Alike]]]] = (
    WeakKeyDictionary()
)
_lock = ProcessLock()
_ALIGNMENT = 16
_COPIES = 2  # of variables in a stack: those of the stack, and what these were before a slice


class GridCourse:
    """Legs that follow each other in each epoch of one model.

    Args:
        wanted: those that train come first.
        group: models that are built alike.

    Attributes:
        group: as given.
        nbytes: memory of the device, beside that of all models.
        scratch_bytes: 0: threads of the host need none.
    """

    scratch_bytes = 0

    def __init__(self, wanted: Sequence[Wanted], group: _AnyGroup) -> None:
        self.group, self._wanted = group, wanted
        self._plans = [w.runner.plan for w in wanted]
        targets = (target for plan in self._plans for target, _ in plan.program.updates)
        self._targets = list(dict.fromkeys(targets))
        copies = 1 if isinstance(group, Group) else _COPIES
        self.nbytes = copies * sum(tensor_of(target).nbytes for target in self._targets)
        self._piece: Piece | None = None
        self._found: list[list[Array]] | None = None

    @property
    def is_stacked(self) -> bool:
        """Whether it runs beside others only if they are to do as many epochs and batches."""
        return isinstance(self.group, StackedGroup)

    @property
    def program(self) -> GridCourse:
        """What `point` said."""
        return self

    def point(
        self,
        epochs: int,
        counts: Sequence[int],
        data: Sequence[Sequence[Array | OnDevice]],
        orders: Sequence[Array | Shuffled],
        settings: Sequence[Mapping[Node, Array]],
    ) -> None:
        """Say what is to be done next; as `runtime.cpu.sliced.courses.Course.point`.

        In place of the orders of training legs stands the same `Shuffled` where the device draws them.
        """
        variables = {plan: _addresses(plan.variables) for plan in dict.fromkeys(self._plans)}
        seats = [
            Seat(
                variables[plan],
                [array.address for array in arrays if isinstance(array, OnDevice)],
                None if isinstance(order, Shuffled) else order,
                list(values.values()),
                [array.shape[0] for array in arrays if isinstance(array, OnDevice)],
            )
            for plan, arrays, order, values in zip(self._plans, data, orders, settings, strict=True)
        ]
        drawn = next((order for order in orders if isinstance(order, Shuffled)), None)
        self._piece = Piece(epochs, counts, seats, drawn)

    @property
    def piece(self) -> Piece:
        """What `point` said."""
        assert self._piece is not None
        return self._piece

    def take(self, found: list[list[Array]] | None) -> None:
        """The outputs of its legs; None where it went wrong, and all is as before."""
        self._found = found
        for target in self._targets:
            tensor_of(target).memory.device_pointer(write=True)

    def found(self, counts: Sequence[int]) -> list[list[Array]] | None:
        """The outputs of each leg's first batches; None where one is wrong, and nothing was changed."""
        found, self._found = self._found, None
        if found is None:
            return None
        return [[a[:count] for a in arrays] for arrays, count in zip(found, counts, strict=True)]


def _addresses(variables: Sequence[Node]) -> list[int]:
    """Where variables are on the device, brought up to date."""
    found = []
    for node in variables:
        tensor = tensor_of(node)
        found.append(tensor.memory.device_pointer() + int(tensor.offset) * tensor.dtype.itemsize)
    return found


def grid_course(wanted: Sequence[Wanted], training: int) -> GridCourse | None:
    """The course of these legs, by a block for each model or as one program; None where neither can."""
    kinds = [w.runner.plan.alike for w in wanted]
    alike, others = kinds[0], [kind for kind in kinds if kind is not None and kind is not kinds[0]]
    if alike is None or None in kinds:
        return None
    if not _lies_there(wanted):
        return None
    key = (
        training,
        wanted[0].runner.engine,
        *((id(kind), w.looks) for kind, w in zip(kinds, wanted, strict=True)),
    )
    with _lock:
        held = _groups.setdefault(alike, {})
        if key not in held:
            held[key] = (_group_of(wanted, training), others)
        group, _ = held[key]
    return None if group is None else GridCourse(wanted, group)


def _group_of(wanted: Sequence[Wanted], training: int) -> _AnyGroup | None:
    """Those that are built like this one; None where each takes its turn."""
    if not all(can_slice(w.runner, w.data, w.settings) for w in wanted):
        return None
    if all(map(is_small, wanted)):
        return Group(wanted, training)
    return StackedGroup(wanted) if can_stack(wanted) else None


def _lies_there(wanted: Sequence[Wanted]) -> bool:
    """Whether arrays and variables lie where kernels expect them."""
    device = wanted[0].runner.device
    if not all(isinstance(array, OnDevice) for w in wanted for array in w.data.values()):
        return False
    plans = dict.fromkeys(w.runner.plan for w in wanted)
    tensors = (tensor_of(node) for plan in plans for node in plan.variables)
    return all(
        comes_to(t, device) and not int(t.offset) * t.dtype.itemsize % _ALIGNMENT for t in tensors
    )


def run_together(courses: Sequence[GridCourse], room: int | None = None) -> list[float]:
    """Run what all have been told, group by group.

    Args:
        courses: of one device.
        room: bytes that a program of several models may take; None for a share of the device's memory.

    Returns:
        The seconds of each: its share of its group's time.
    """
    groups: dict[_AnyGroup, list[GridCourse]] = {}
    for course in courses:
        groups.setdefault(course.group, []).append(course)
    seconds: dict[GridCourse, float] = {}
    for group, members in groups.items():
        pieces = [course.piece for course in members]
        if isinstance(group, StackedGroup):
            group.start(pieces, room)
        else:
            group.start(pieces)
        found, spent = group.finish()
        steps = [max(c.piece.epochs * sum(c.piece.counts), 1) for c in members]
        for course, one, own in zip(members, found, steps, strict=True):
            course.take(one)
            seconds[course] = spent * own / sum(steps)
    return [seconds[course] for course in courses]


def let_go() -> None:
    """A call has ended: give back what stacks take of a device's memory; see `StackedGroup.let_go`."""
    with _lock:
        groups = [group for held in _groups.values() for group, _ in held.values()]
    for group in groups:
        if isinstance(group, StackedGroup):
            group.let_go()
