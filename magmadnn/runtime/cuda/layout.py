"""Where the values of a plan lie on a device, for given sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from magmadnn.backends.cuda import device_memory
from magmadnn.compiler.kernels.formula import DTYPES
from magmadnn.compiler.plan.frames import frames_of
from magmadnn.compiler.plan.memory import arena_of, nbytes_of
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.draft import Work
from magmadnn.errors import OutOfMemoryError
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.node import CONSTANT, VARIABLE, Node, follows_sizes, value_for
from magmadnn.graph.op import Array
from magmadnn.memory import Kind, MemoryManager
from magmadnn.memory.foreign import OnDevice, packed_strides
from magmadnn.memory.usage import in_units
from magmadnn.runtime.variables import tensor_of

Span = tuple[int, int]

_ALIGNMENT = 256  # of every value
# Up to here every value has memory of its own: where two share some, one waits for the other's readers.
_APART_BYTES = 1 << 28
# Values of so few bytes always have memory of their own.
_FEW_BYTES = 1 << 14
# Up to here a step begins beside the end of the one before, in memory of its own: with more it takes so long
# that this gains less than the memory is worth.
_TWICE_BYTES = 1 << 30
_NAMED = 3  # values that are named where memory runs out


class Place(NamedTuple):
    """Where a variable's values are on a device.

    Attributes:
        tensor: what the variable holds.
        offset: bytes from the beginning of its memory.
        address: if that never changes and the host sees nothing of it.
    """

    tensor: Any
    offset: int
    address: int | None


class Places(NamedTuple):
    """Places in one piece of memory.

    Attributes:
        offsets: of values,
        rooms: and of partial results, first and last.
        nbytes: how large the memory is.
        shared: whether values use what others have used.
    """

    offsets: dict[Node, int]
    rooms: dict[Node, Span]
    nbytes: int
    shared: bool

    @property
    def sets(self) -> int:
        """How many sets of this memory steps use in turn."""
        return 2 if self.nbytes <= _TWICE_BYTES else 1


def places_of(plan: NativePlan, sizes: Mapping[str, int], own: Sequence[Node]) -> Places:
    """Where values and partial results lie in one piece of memory.

    Args:
        plan: what is run.
        sizes: of symbolic dimensions.
        own: the values that have memory of their own: no views or parts, and nothing that lies in a variable.
    """
    arena = arena_of(plan, sizes)
    lives = {life.node: life for life in arena.lives}
    shared = arena.apart > _APART_BYTES
    end = arena.nbytes if shared else 0
    offsets, rooms = dict[Node, int](), dict[Node, Span]()
    for node in own:
        if shared and node in lives and lives[node].nbytes > _FEW_BYTES:
            offsets[node] = lives[node].start
        else:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            offsets[node], end = start, start + max(nbytes_of(node, sizes), 1)
    for room in arena.rooms:
        start = room.start
        if not shared:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + room.nbytes
        rooms[room.node] = start, start + room.nbytes
    return Places(offsets, rooms, end, shared)


class Layout:
    """Addresses of all values on a device.

    Args:
        plan: what is run.
        sizes: of symbolic dimensions.
        device: number of the device.
        elsewhere: addresses of values that lie in memory of others.

    Attributes:
        frames: an array for each value that has memory, laid out as on the device; its elements mean nothing.
        sets: how many of its kind steps that follow each other use in turn.
    """

    def __init__(
        self,
        plan: NativePlan,
        sizes: Mapping[str, int],
        device: int,
        elsewhere: Mapping[Node, int] | None = None,
    ) -> None:
        self._elsewhere = elsewhere or {}
        self.plan, self.sizes, self.device = plan, dict(sizes), device
        self.frames = frames_of(plan, sizes)
        self._memory = device_memory(device)
        self._offsets: dict[Node, int] = {}
        self._rooms: dict[Node, Span] = {}  # of partial results, in the arena
        self._shared = False  # whether values use memory that others have used
        self.sets = 1
        nodes = plan.program.nodes()
        self.variables = [node for node in nodes if node.op is VARIABLE]
        self._targets = {target for target, _ in plan.program.updates}
        self._places: dict[Node, Place] = {}  # of variables that are on this device
        self._mirrors: dict[Node, MemoryManager] = {}  # of others
        self._arena = self._allocated(max(self._place(), 1))
        self._base = self._arena.device_pointer(write=True)
        self._held: list[MemoryManager] = []
        self.faults = self.put(np.zeros(1, np.int64))
        self._upload_leaves()

    # --- places -----------------------------------------------------------------------------------

    def viewed(self, node: Node, source: Array) -> Array:
        """A view of a value, by the rules of NumPy."""
        return self.plan.layouts.seen(node, source, self.sizes)

    def _place(self) -> int:
        """Offsets in the arena; how large it is."""
        own = [n for n in self.frames if not self.plan.layouts.is_view(n)]
        own = [n for n in own if self._variable_of(n) is None and n not in self.plan.inside]
        own = [n for n in own if n not in self._elsewhere]
        places = places_of(self.plan, self.sizes, own)
        self._offsets, self._rooms, self._shared = places.offsets, places.rooms, places.shared
        self.sets = places.sets
        return places.nbytes

    def _variable_of(self, node: Node) -> Node | None:
        """The variable whose memory a value lies in."""
        return node if node.op is VARIABLE else self.plan.in_place.get(node)

    def _upload_leaves(self) -> None:
        for node in self._offsets:
            if node.op is CONSTANT:
                self.write(node, np.asarray(node.value))
            elif follows_sizes(node):
                self.write(node, value_for(node, self.sizes))

    def _allocated(self, nbytes: int) -> MemoryManager:
        try:
            return MemoryManager(nbytes, np.uint8, Kind.DEVICE, self.device)
        except OutOfMemoryError as error:
            largest = sorted(self._offsets, key=lambda n: -self.frames[n].nbytes)[:_NAMED]
            named = ", ".join(
                f"{n.label} {in_units(self.frames[n].nbytes)}{f' in {n.scope}' if n.scope else ''}"
                for n in largest
            )
            sizes = (
                ", ".join(f"{name} {size}" for name, size in self.sizes.items()) or "fixed sizes"
            )
            raise OutOfMemoryError(
                f"the plan needs {in_units(nbytes)} on device {self.device} for {sizes}; the largest "
                f"values are {named}; lower the batch size, or compute on the processor ({error})"
            ) from error

    # --- addresses --------------------------------------------------------------------------------

    def base_address(self, node: Node) -> int:
        """The address of the memory that a value, which is no view, lies in."""
        variable = self._variable_of(node)
        if variable is not None:
            return self.variable(variable)
        if node in self.plan.inside:
            return self.base_address(self.plan.owner(node)) + self._beyond(node)
        if node in self._elsewhere:
            return self._elsewhere[node]
        return self._base + self._offsets[node]

    def _beyond(self, node: Node) -> int:
        """Bytes from the beginning of the memory that a value has a part of to its first element."""
        frames = self.frames
        return frames[node].ctypes.data - frames[self.plan.owner(node)].ctypes.data

    def address(self, node: Node) -> int:
        """The address of a value's first element."""
        base = self.plan.layouts.bases[node]
        offset = self.frames[node].ctypes.data - self.frames[base].ctypes.data
        return self.base_address(base) + offset

    def room(self, work: Work) -> Span | None:
        """Where partial results of a step lie; None where it makes none."""
        found = self._rooms.get(work.needed[0])
        return None if found is None else (self._base + found[0], self._base + found[1])

    def span(self, node: Node) -> Span:
        """Addresses that stand for the memory that a value, or what it is a view of, lies in.

        Mostly the first and the last. The parts of a concatenation lie between each other, row by row: each
        has a share of the result's addresses that no other part has, so that nothing waits for what only
        lies beside it. Where memory is used again, by values that know nothing of shares, it has all.
        """
        base = self.plan.layouts.bases[node]
        whole = self.plan.inside.get(base)
        if whole is None:
            start = self.base_address(base)
            return start, start + max(self.frames[base].nbytes, 1)
        start, end = self.span(whole)
        if self._shared:
            return start, end
        bases = [self.plan.layouts.bases[i] for i in whole.inputs]
        sizes = [self.frames[i].nbytes for i in whole.inputs[: bases.index(base)]]
        return start + sum(sizes), start + sum(sizes) + max(self.frames[base].nbytes, 1)

    def variable(self, node: Node) -> int:
        """The address of a variable's values on this device, brought up to date if it lies there."""
        tensor = tensor_of(node)
        known = self._places.get(node)
        if known is not None and known.tensor is tensor and tensor.device == self.device:
            if known.address is not None:
                return known.address  # it stays where it is in its memory
            start: int = tensor.memory.device_pointer()
            return start + known.offset
        if comes_to(tensor, self.device):
            offset = int(tensor.offset * tensor.dtype.itemsize)
            # whoever writes it later does so without asking again
            is_written = tensor.kind is Kind.DEVICE and node in self._targets
            start = tensor.memory.device_pointer(write=is_written) + offset
            self._places[node] = Place(
                tensor, offset, start if tensor.kind is Kind.DEVICE else None
            )
            return start
        if node not in self._mirrors:
            count = int(np.prod(bind_shape(node.shape, {}), dtype=np.int64))
            self._mirrors[node] = MemoryManager(count, node.dtype, Kind.DEVICE, self.device)
        return self._mirrors[node].device_pointer(write=True)

    def is_there(self, node: Node) -> bool:
        """Whether a variable's own memory is on this device, and kernels know its elements."""
        tensor = tensor_of(node)
        return tensor.dtype.name in DTYPES and comes_to(tensor, self.device)

    def put(self, values: Array) -> int:
        """The address of a copy on the device that lives as long as this layout."""
        held = MemoryManager(max(values.nbytes, 1), np.uint8, Kind.DEVICE, self.device)
        self._held.append(held)
        address = held.device_pointer(write=True)
        self.copy_in(address, values)
        return address

    def reserved(self, nbytes: int) -> int:
        """The address of memory on the device that lives as long as this layout."""
        self._held.append(self._allocated(nbytes))
        return self._held[-1].device_pointer(write=True)

    def take_faults(self) -> bool:
        """Whether a row was asked for that is not there, since this was asked last."""
        word = np.zeros(1, np.int64)
        self.copy_out(word, self.faults)
        if word[0]:
            self.copy_in(self.faults, np.zeros(1, np.int64))
        return bool(word[0])

    @property
    def nbytes(self) -> int:
        """Memory on the device that this layout has."""
        return sum(m.nbytes for m in (self._arena, *self._held, *self._mirrors.values()))

    def variable_span(self, node: Node) -> Span:
        """First and last address of a variable's values."""
        start = self.variable(node)
        return start, start + int(
            np.prod(bind_shape(node.shape, {}), dtype=np.int64)
        ) * node.dtype.itemsize

    # --- variables --------------------------------------------------------------------------------

    def begin(self) -> tuple[int, ...]:
        """Before a run: bring what lies on the host to the device; the addresses of all variables."""
        addresses = tuple(map(self.variable, self.variables))
        for node in self._mirrors:
            self.copy_in(self.variable(node), tensor_of(node).read())
        return addresses

    def forget(self) -> None:
        """Hold nothing of what variables hold."""
        self._places.clear()

    def written(self) -> None:
        """After kernels wrote variables: the host's copies are stale."""
        for target in self.plan.in_place.values():
            known = self._places.get(target)
            if known is not None and known.address is not None:
                continue  # nothing of it is on the host
            if target in self._mirrors:
                array = np.empty(bind_shape(target.shape, {}), target.dtype)
                self.copy_out(array, self.variable(target))
                target.value.write(array)
            else:
                tensor_of(target).memory.device_pointer(write=True)

    # --- values -----------------------------------------------------------------------------------

    def write(self, node: Node, values: Array | OnDevice) -> None:
        """Give a value, which is no view, its elements."""
        if isinstance(values, OnDevice):
            self.copy_within(self.base_address(node), values.address, values.nbytes)
            return
        self.copy_in(self.base_address(node), np.broadcast_to(values, self.frames[node].shape))

    def read(self, node: Node) -> Array:
        """A value as an array of its own on the host."""
        base = self.plan.layouts.bases[node]
        owner = self.plan.owner(node)
        memory = np.empty(self.frames[owner].shape, owner.dtype)
        self.copy_out(memory, self.base_address(owner))
        if node is owner:
            return memory
        frame = self.frames[base]
        held = memory.reshape(-1).view(np.uint8).data  # NumPy has no buffers of every dtype
        part = np.ndarray(frame.shape, frame.dtype, held, self._beyond(base), frame.strides)
        return np.array(part if node is base else self._through(node, base, part))

    def _through(self, node: Node, base: Node, whole: Array) -> Array:
        source = node.inputs[0]
        return self.viewed(node, whole if source is base else self._through(source, base, whole))

    def copy_in(self, address: int, values: Array) -> None:
        """Copy from the host."""
        if values.size:
            flat = np.ascontiguousarray(values).reshape(-1)
            self._memory.copy_to_device(address, flat.view(np.uint8))

    def copy_out(self, values: Array, address: int) -> None:
        """Copy to the host, into a contiguous array."""
        if values.size:
            self._memory.copy_to_host(values.reshape(-1).view(np.uint8), address)

    def copy_within(self, to: int, source: int, nbytes: int) -> None:
        """Copy on the device."""
        if nbytes:
            self._memory.copy_on_device(to, source, nbytes)


_packed = lru_cache(1024)(packed_strides)  # each model of many asks for those of its variables


def comes_to(tensor: Any, device: int) -> bool:
    """Whether kernels on a device can work on a variable's own memory; managed memory comes there."""
    if tensor.kind is Kind.HOST or not tensor.memory.writable:
        return False
    if tensor.strides != _packed(tensor.shape, tensor.dtype.itemsize):
        return False
    if tensor.kind is Kind.MANAGED:
        tensor.memory.move_to(device)
    return bool(tensor.device == device)
