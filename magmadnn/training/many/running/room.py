"""Memory for many models: what each takes, planned before the start, and how many are under way at once."""

from __future__ import annotations

import gc
import math
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magmadnn.comm import Communicator
from magmadnn.comm.gpu.peer_buffers import gpu_of
from magmadnn.compiler.plan.memory import nbytes_of
from magmadnn.errors import OutOfMemoryError
from magmadnn.graph.node import Node, topological
from magmadnn.memory.usage import in_units
from magmadnn.optim.memory_check import BATCH
from magmadnn.storage.machine_memory import available_bytes
from magmadnn.training.loop.fit import Fit
from magmadnn.training.loop.pieces import data_for
from magmadnn.training.model.fitting import Validation, evaluation_of
from magmadnn.training.model.model import Model
from magmadnn.training.model.plain.architecture import layer_calls

if TYPE_CHECKING:
    from .members import Member

_SHARE = 0.5  # of what is free, for trainings that are under way
_PARAMETERS = 8  # times their bytes, more than optimisers keep, gradients and copies to go back to
_VALUES = 6  # likewise of the values of a batch, with what is evaluated
_EVALUATED = 1024  # rows at a time at least
_sharers = {"host": 1, "device": 1}  # processes that plan on the same memory
MOST = 128  # trainings at the same time on the CPU: more gain nothing


@dataclass(frozen=True)
class Need:
    """Bytes that the training of a model takes beside the model.

    Attributes:
        kept: of the optimiser, which stay for a further fit.
        taken: while it is under way: copies to go back to, and on the CPU values of a batch.
        common: that all have in turns: workspace of kernels, and on a device values of a batch.
    """

    kept: int
    taken: int
    common: int = 0


class Room:
    """How many trainings may be under way in one memory.

    Args:
        budget: bytes for those that are under way.
        needs: of each, by its number; None where they are so small that nobody has planned.
        limit: bytes that the user allows for all; None for what is free.
    """

    def __init__(
        self, budget: float, needs: Mapping[int, Need] | None = None, limit: int | None = None
    ) -> None:
        self._budget, self._needs, self._limit = budget, needs, limit
        self._largest = 1
        self._cap: int | None = None
        self._there: set[int] = set()  # those that have begun, and whose memory may not be free yet

    @property
    def in_waves(self) -> bool:
        """Whether not all of them have room at the same time."""
        needs = () if self._needs is None else self._needs.values()
        return self._cap is not None or sum(n.taken for n in needs) > self._budget

    def note(self, nbytes: int) -> None:
        """A training has taken so much."""
        self._largest = max(self._largest, nbytes)

    def narrow(self, count: int) -> None:
        """From now on at most so many: there was no memory for one more."""
        self._cap = max(count, 1)

    @property
    def most(self) -> int:
        """How many trainings may be under way, by what those that were not planned have taken."""
        if self._needs is not None:
            return MOST
        return max(min(MOST, int(self._budget / self._largest)), 1)

    def admits(self, active: Sequence[Member], member: Member) -> bool:
        """Whether a training may begin beside those that are under way; one always may.

        What those had that have ended may hang in reference cycles, which are looked for where room is short.
        """
        if self._cap is not None and active and len(active) >= self._cap:
            return False
        if self._needs is None:
            return True
        numbers = {one.number for one in active}
        if self._taken(numbers | {member.number}) > self._budget and active:
            return False
        if self._taken(self._there | numbers | {member.number}) > self._budget:
            gc.collect()
            self._there = numbers
        self._there.add(member.number)
        return True

    def left(self, active: Sequence[Member]) -> int | None:
        """Bytes of the user's limit beside what those under way take by themselves; None without one."""
        if self._limit is None or self._needs is None:
            return None
        return max(self._limit - self._taken([one.number for one in active]), 0)

    def _taken(self, numbers: Collection[int]) -> int:
        assert self._needs is not None
        return sum(self._needs[number].taken for number in numbers)

    @property
    def at_once(self) -> int:
        """How many are under way at the same time at least, as planned."""
        assert self._needs is not None
        sizes = sorted((n.taken for n in self._needs.values()), reverse=True)
        total, count = 0, 0
        for size in sizes:
            total += size
            if total > self._budget:
                break
            count += 1
        return max(count, 1)


def rooms_for(
    what: str,
    members: Sequence[Member],
    models: Mapping[int, Model],
    batch_sizes: Mapping[int, int],
    limit: int | None,
) -> dict[int | None, Room]:
    """The room in this machine's memory, and in that of each GPU that models are trained on.

    Args:
        what: for messages.
        members: the trainings.
        models: theirs, by number.
        batch_sizes: theirs, likewise.
        limit: bytes that all may take beside the models' own parameters; None for what is free now.

    Raises:
        OutOfMemoryError: if one by itself has no room beside what optimisers keep of all models.
    """
    found = {}
    for device in dict.fromkeys(member.device for member in members):
        own = [m for m in members if m.device == device]
        kinds: dict[Any, list[Member]] = {}
        for member in own:
            key = _kind(models[member.number], batch_sizes[member.number])
            kinds.setdefault(key, []).append(member)
        free = _free(device) if limit is None else limit
        if limit is None and _bound(kinds, models, batch_sizes) <= _SHARE * free:
            found[device] = Room(_SHARE * free)
            continue
        needs: dict[int, Need] = {}
        for alike in kinds.values():
            need = _need_of(alike[0].look_ahead(), device)
            needs |= {member.number: need for member in alike}
        found[device] = _planned(what, needs, device, free if limit else int(0.8 * free), limit)
    return found


def _planned(
    what: str, needs: Mapping[int, Need], device: int | None, free: int, limit: int | None
) -> Room:
    """The room for trainings that are known.

    On a device what an optimiser keeps goes to the host with the model, once its training has ended.
    """
    kept = sum(need.kept for need in needs.values()) if device is None else 0
    common = max(need.common for need in needs.values())
    largest = max(needs, key=lambda number: needs[number].taken)
    budget = free - kept - common
    if needs[largest].taken > budget:
        place = "this machine" if device is None else f"device {device}"
        has = (
            f"{place} has {in_units(free)}"
            if limit is None
            else f"memory_limit is {in_units(limit)}"
        )
        beside = f", optimisers keep {in_units(kept)} of all {len(needs):,}" if kept else ""
        raise OutOfMemoryError(
            f"{what}: the training of models[{largest}] takes "
            f"{in_units(needs[largest].taken + common)}{beside}, and {has}; train "
            "fewer models in one call, or with a smaller batch_size"
        )
    return Room(budget, needs, limit)


def share_memory(host: int, device: int) -> None:
    """Of what is free, plan on a part only, since other processes do so too at the same time.

    Args:
        host: how many processes share this machine's memory, this one included.
        device: how many share a GPU's.
    """
    _sharers.update(host=host, device=device)


def devices_of(members: Sequence[Member]) -> set[int]:
    """The GPUs that trainings run on."""
    return {member.device for member in members if member.device is not None}


@contextmanager
def sharing_memory(ranks: Communicator, devices: Collection[int] = ()) -> Iterator[None]:
    """Meanwhile plan on a part only of this process's part of the machine's memory, and of GPUs'. Collective.

    Args:
        ranks: all do so; those of one machine, and of one GPU, have equal parts of it.
        devices: GPUs that this rank trains on.
    """
    own = [gpu_of(device) for device in devices]
    told: list[Any] = ranks.exchange([socket.gethostname(), own])
    hosts = [host for host, _ in told]
    counts = {
        "host": hosts.count(hosts[ranks.rank]),
        "device": max((sum(gpu in gpus for _, gpus in told) for gpu in own), default=1),
    }
    for name, count in counts.items():
        _sharers[name] *= count
    try:
        yield
    finally:
        for name, count in counts.items():
            _sharers[name] //= count


def _free(device: int | None) -> int:
    """This process's part of what is free in this machine's memory, or on a GPU, with its pool's unused."""
    if device is None:
        return available_bytes() // _sharers["host"]
    from magmadnn.backends.cuda import device_memory
    from magmadnn.memory.kinds import Kind
    from magmadnn.memory.pool import POOLS

    free, total = device_memory(device).free_and_total()
    there = total if free is None else free
    return there // _sharers["device"] + POOLS[Kind.DEVICE].report().pooled


def _calls(model: Model) -> list[Node]:
    return topological([o.node for o in model.outputs], layer_calls)


def _kind(model: Model, batch_size: int) -> Any:
    """Equal for trainings that take the same memory."""
    shapes = tuple(node.shape for node in _calls(model))
    parameters = tuple((p.node.shape, p.node.dtype) for p in model.parameters())
    layers = tuple(map(type, model.layers))
    way = type(model._given), model.precision, model.executor, batch_size
    return shapes, parameters, layers, way


def _bound(
    kinds: Mapping[Any, Sequence[Member]],
    models: Mapping[int, Model],
    batch_sizes: Mapping[int, int],
) -> float:
    """More than all trainings take together, found without planning one; infinity where sizes are unknown."""
    total = 0.0
    for alike in kinds.values():
        model, size = models[alike[0].number], batch_sizes[alike[0].number]
        own = sum(
            math.prod(map(int, p.node.shape)) * p.node.dtype.itemsize for p in model.parameters()
        )
        try:
            nodes = topological([o.node for o in model.outputs])
            values = sum(nbytes_of(n, {BATCH: size + _EVALUATED}) for n in nodes)
        except (KeyError, TypeError, ValueError):
            return math.inf
        total += len(alike) * (_PARAMETERS * own + _VALUES * values)
    return total


def _need_of(fit: Fit, device: int | None) -> Need:
    """What a training takes, as its plans say; of one that NumPy runs only what is kept is known."""
    size, rows = fit.current_batch_size, fit.source.rows or 0
    legs = [fit.memory_of(n) for n in (min(size, rows), rows % size) if n]
    found = [leg for leg in legs if leg is not None]
    if not found:
        state = sum(p.nbytes for p in fit.step.state().values())
        return Need(state, state)
    values = sum(leg.activations + leg.gradients + leg.batch for leg in found)
    values += _evaluated(fit)
    if device is None:
        return Need(found[0].optimizer, values + found[0].copies, found[0].workspace)
    there = found[0].parameters + found[0].optimizer
    return Need(found[0].optimizer, there + found[0].copies, values + found[0].workspace)


def _evaluated(fit: Fit) -> int:
    """What is taken by a batch of what is evaluated after each epoch."""
    if not isinstance(fit.validation, Validation):
        return 0
    source = fit.validation.source()
    objective, executable = evaluation_of(fit.model, source)
    data = data_for(objective, source.arrays)
    rows = min(fit.validation.batch_size, source.rows or 1)
    sizes = executable.sizes({node: array[:rows] for node, array in data.items()})
    memory = executable.memory(sizes)
    return 0 if memory is None else memory.activations + memory.batch
