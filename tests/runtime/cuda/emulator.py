"""A device made of this process: its memory is the host's, and kernels are compiled by g++ and run as fibers.

So the text of kernels, what they are given and the order in which graphs let them run are all tried without
a GPU. Nodes of a graph run in an order that is drawn anew at each launch among all that its edges allow, so
that a missing edge shows as a wrong result. New memory holds garbage.

As on a GPU, what is launched or copied in the background runs later: here when it is waited for, or when
memory is copied that is in one order with it. So who reads without waiting finds garbage. Memory that was
given back is kept for a while, filled with other garbage: a kernel that is given an address in it fails, and
so does the end of the device where something was written to it.
"""

from __future__ import annotations

import atexit
import bisect
import ctypes
import hashlib
import itertools
import os
import random
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from magmadnn.backends.cuda import Provider, install
from magmadnn.backends.cuda.called import CalledAlone
from magmadnn.backends.cuda.engine import (
    AmongNode,
    ArrayNode,
    ConvolutionNode,
    CopyNode,
    EventNode,
    FourierNode,
    GraphNode,
    HostNode,
    KernelNode,
    LibraryNode,
    MatrixNode,
    NativeCall,
    ProductNode,
    ReplayNode,
    moved_nodes,
)
from magmadnn.backends.cuda.nodes.arrays import DeviceArray
from magmadnn.backends.cuda.nodes.stand_ins import ALIGNMENT, with_addresses
from magmadnn.backends.cuda.protocol import fill_by_doubling
from magmadnn.memory import as_dtype
from magmadnn.runtime.cuda import code
from tests.runtime.cuda.emulated_arrays import ForeignArray
from tests.runtime.cuda.emulated_lanes import (
    EmulatedCalls,
    EmulatedFence,
    EmulatedLane,
    EmulatedMark,
)
from tests.runtime.cuda.emulated_matrices import compute_matrices

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

_HEADER, _RUNNER = (Path(__file__).with_name(name) for name in ("emulator.h", "emulator.cpp"))
_COMPILER = ["g++", "-std=c++17", "-O0", "-Werror=float-conversion", "-ffp-contract=off",
             "-fno-strict-aliasing", "-fno-gnu-unique", "-fPIC"]  # fmt: skip
# Functions of C are those of this process: to look for libraries takes a tenth of the time.
_LINKER = ["-shared", "-nostdlib", "-Wl,-z,now"]
_NEW, _FREED = 0xCB, 0xDD  # each byte of memory that is new, and that was given back
_MOST_FREED = 64 << 20  # bytes that are kept of memory that was given back


class HostMemory:
    """`DeviceMemory` whose addresses are this process's."""

    name = "device 0 (emulated)"

    def __init__(self, capacity: int, engine: Emulator | None = None) -> None:
        self._blocks: dict[int, np.ndarray] = {}
        self.total, self._engine = capacity, engine or _engine()
        self._thread = threading.local()
        self._begun: list[tuple[int, int, int, object]] = []  # copies in the background
        self._pinned: list[np.ndarray] = []  # as long as something may be copied from it
        self._freed: dict[int, np.ndarray] = {}  # by address, oldest first
        self._starts: list[int] = []  # their addresses in order

    def allocate(self, nbytes: int) -> int:
        if sum(block.size for block in self._blocks.values()) + nbytes > self.total:
            raise MemoryError
        raw = np.full(nbytes + 512, _NEW, np.uint8)
        address = raw.ctypes.data + (-raw.ctypes.data) % 256
        self._blocks[address] = raw
        return address

    allocate_managed = allocate

    def free(self, address: int) -> None:
        self._engine.wait_for_all()  # as the driver does
        block = self._blocks.pop(address)
        block.fill(_FREED)
        self._freed[address] = block
        while sum(b.size for b in self._freed.values()) > _MOST_FREED:
            self._forget(next(iter(self._freed)))
        self._starts = sorted(self._freed)

    def take_again(self, address: int) -> None:
        """What a test gave back in the place of its owner, who will give it back too."""
        self._blocks[address] = self._freed.pop(address)
        self._starts = sorted(self._freed)

    def _forget(self, address: int) -> None:
        block = self._freed.pop(address)
        assert (block == _FREED).all(), "something was written to memory that had been given back"

    def close(self) -> None:
        """Look whether memory that was given back is as it was then."""
        for address in list(self._freed):
            self._forget(address)

    def spans(self) -> list[tuple[int, int]]:
        """Where memory that is in use begins and ends."""
        return [(start, start + block.size - 512) for start, block in self._blocks.items()]

    def is_freed(self, address: int) -> bool:
        """Whether an address lies in memory that was given back."""
        place = bisect.bisect_right(self._starts, address) - 1
        if place < 0:
            return False
        start = self._starts[place]
        return address < start + self._freed[start].size - 512

    def copy_to_device(self, to: int, source: np.ndarray, hold: object = None) -> None:
        self._copy(to, source.ctypes.data, source.nbytes, None if hold is None else (hold, source))

    def _copy(self, to: int, source: int, nbytes: int, hold: object = None) -> None:
        self._engine.wait()
        if hold is not None:
            self._begun.append((to, source, nbytes, hold))
            return
        ctypes.memmove(to, source, nbytes)

    def copy_beside(self, to: int, source: np.ndarray) -> None:
        """Done when it is waited for: who does not wait, or writes the source before, is found out."""
        self._beside().append((to, source))

    def wait_beside(self) -> None:
        for to, source in self._beside():
            ctypes.memmove(to, source.ctypes.data, source.nbytes)
        self._beside().clear()

    def _beside(self) -> list[tuple[int, np.ndarray]]:
        if not hasattr(self._thread, "begun"):
            self._thread.begun = []
        found: list[tuple[int, np.ndarray]] = self._thread.begun
        return found

    def pinned(self, nbytes: int) -> np.ndarray:
        self._pinned.append(np.full(nbytes, _NEW, np.uint8))
        return self._pinned[-1]

    def copy_to_host(self, to: np.ndarray, source: int, hold: object = None) -> None:
        self._copy(to.ctypes.data, source, to.nbytes, None if hold is None else (hold, to))

    def copy_on_device(self, to: int, source: int, nbytes: int) -> None:
        self._copy(to, source, nbytes)

    def fill(self, to: int, pattern: bytes, count: int) -> None:
        if count and len(set(pattern)) == 1:  # the host goes on, as with CUDA's
            self._engine.later(partial(_set, to, pattern[0], len(pattern) * count))
        elif count:
            self._engine.wait()
            ctypes.memmove(to, pattern, len(pattern))
            fill_by_doubling(self, to, pattern, len(pattern) * count)

    def prefetch_managed(self, address: int, nbytes: int, to_device: bool) -> None:
        """Nothing moves."""

    def wait(self) -> None:
        self._engine.wait_for_all()
        begun, self._begun = self._begun, []
        for to, source, nbytes, _ in begun:
            ctypes.memmove(to, source, nbytes)

    def trim(self) -> None:
        """Nobody keeps any that is not used."""

    def free_and_total(self) -> tuple[int | None, int]:
        return None, self.total


class EmulatedGraph:
    """Nodes that run in any order that their edges allow."""

    def __init__(
        self,
        nodes: Sequence[GraphNode],
        engine: Emulator,
        draw: random.Random,
        patient: Collection[int],
    ) -> None:
        self.nodes, self._engine, self._draw, self.patient = nodes, engine, draw, patient
        self.call = engine.called("graph", self.launch)

    def launch(self) -> None:
        self._engine.later(self._run)

    def moved(self, move: Callable[[int], int]) -> EmulatedGraph | None:
        nodes = moved_nodes(self.nodes, move)
        return None if nodes is None else self._engine.graph(nodes, self.patient)

    def _run(self) -> None:
        left = {k: set(node.after) for k, node in enumerate(self.nodes)}
        while left:
            ready = [k for k, after in left.items() if not after & left.keys()]
            number = self._draw.choice(ready)
            del left[number]
            self._engine.run(self.nodes[number])


class EmulatedHear:
    """A device's wait for a number at addresses, while others go on."""

    def __init__(self, places: Sequence[int], number: int, engine: Emulator) -> None:
        self._places, self._number, self._engine = places, number, engine

    def is_there(self) -> bool:
        """Whether the number, or a later one, is there."""
        found = (ctypes.c_uint32.from_address(place).value for place in self._places)
        return all((one - self._number) % (1 << 32) < 1 << 31 for one in found)

    def __call__(self) -> None:
        while not self.is_there():
            if not any(other.step() for other in self._engine.others):
                self._engine.idle()


class EmulatedCall:
    """A call that no graph holds."""

    def __init__(self, node: MatrixNode | ArrayNode, engine: Emulator) -> None:
        self.node, self._engine = node, engine
        self.call = engine.called("call", self.launch)

    def launch(self) -> None:
        self._engine.later(lambda: self._engine.run(self.node))

    def moved(self, move: Callable[[int], int]) -> None:
        """No kernels."""


class EmulatedReplay:
    """Nodes one after the other, with other memory each time."""

    def __init__(self, nodes: Sequence[ReplayNode], engine: Emulator) -> None:
        self.nodes, self._engine = tuple(nodes), engine
        self.launches = 0

    def launch(self, places: Sequence[int]) -> None:
        assert not any(place % ALIGNMENT for place in places)
        self.launches += 1
        for node in self.nodes:
            self._engine.later(partial(self._engine.run, with_addresses(node, places)))
            if isinstance(node, ArrayNode):  # whose function raises where it is called
                self._engine.wait()


def _run(node: GraphNode | ArrayNode | CopyNode) -> None:
    if isinstance(node, CopyNode):
        ctypes.memmove(node.to, node.source, node.nbytes)
        return
    if isinstance(node, ArrayNode):
        node.run([ForeignArray(_seen(array)) for array in node.arrays])
        return
    if isinstance(node, EventNode):
        node.event[0] = time.perf_counter()
        return
    if isinstance(node, ProductNode):
        _multiply(node)
        return
    if isinstance(node, MatrixNode):
        ctypes.memset(node.workspace, _NEW, Emulator.workspace_bytes)
        compute_matrices(node)
        return
    if isinstance(node, FourierNode):
        transform(node)
        return
    if isinstance(node, ConvolutionNode):
        convolve(node)
        return
    if isinstance(node, AmongNode):
        places = node.source, node.result, node.count
        node.gpus.call_on(0, node.kind, *places, node.dtype, node.stored)
        return
    run_launch(node.function, node.grid, node.block, node.arguments)


def _seen(array: DeviceArray) -> np.ndarray:
    """An array where it lies."""
    frame = np.lib.stride_tricks.as_strided(np.empty(0, array.dtype), array.shape, array.strides)
    low, high = np.lib.array_utils.byte_bounds(frame) if frame.size else (0, 0)
    if not frame.size:
        return np.empty(array.shape, array.dtype)
    before = frame.ctypes.data - low
    raw = (ctypes.c_char * (high - low)).from_address(array.address - before)
    return np.ndarray(array.shape, array.dtype, raw, before, array.strides)


def addresses_of(node: GraphNode | ArrayNode | CopyNode) -> Sequence[int]:
    """What a node is given: addresses, and numbers that are far too small for one."""
    if isinstance(node, CopyNode):
        return (node.to, node.source)
    if isinstance(node, ArrayNode):
        return node.addresses
    if isinstance(node, LibraryNode):
        return (*node.addresses, node.workspace)
    return node.arguments if isinstance(node, KernelNode) else ()


def run_launch(
    function: Any, grid: Sequence[int], block: Sequence[int], arguments: Sequence[int]
) -> None:
    """Run all blocks of one function."""
    values = (ctypes.c_int64 * max(len(arguments), 1))(*arguments)
    function(values, *((ctypes.c_uint * 3)(*three) for three in (grid, block)))


def _array(address: int, rows: int, row: int, columns: int, dtype: str) -> np.ndarray:
    count = max((rows - 1) * row + columns, 0) if rows and columns else 0
    kind = as_dtype(dtype)
    raw = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    flat = np.frombuffer(raw, kind)
    item = flat.itemsize
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (row * item, item))


def _multiply(node: ProductNode) -> None:
    """One product after the other."""
    read, wide = as_dtype(node.halves or node.dtype), as_dtype(node.stored or node.dtype)
    items = (read.itemsize, read.itemsize, wide.itemsize)
    for number in range(node.count):
        a, b, c = (
            address + number * step * item
            for address, step, item in zip((node.a, node.b, node.c), node.steps, items, strict=True)
        )
        _multiply_one(replace(node, a=a, b=b, c=c))


def _multiply_one(node: ProductNode) -> None:
    m, n, k = node.sizes
    a_shape, b_shape = (
        ((k, m) if node.transposes[0] else (m, k)),
        ((n, k) if node.transposes[1] else (k, n)),
    )
    read = node.halves or node.dtype
    a = _array(node.a, a_shape[0], node.strides[0], a_shape[1], read).astype(node.dtype)
    b = _array(node.b, b_shape[0], node.strides[1], b_shape[1], read).astype(node.dtype)
    c = _array(node.c, m, node.strides[2], n, node.stored or node.dtype)
    with np.errstate(all="ignore"):
        made = (a.T if node.transposes[0] else a) @ (b.T if node.transposes[1] else b)
        if node.scales:
            alpha, beta = _array(node.scales, 1, 2, 2, node.dtype)[0]
            made = alpha * made + beta * c
        if node.bias:
            made = made + _array(node.bias, 1, n, n, node.stored or node.dtype).astype(node.dtype)
        c[:] = np.maximum(made, 0) if node.positive else made


def transform(node: FourierNode) -> None:
    """What cuFFT does: it scales nothing, and writes over what it transforms back."""
    ctypes.memset(node.workspace, _NEW, Emulator.workspace_bytes)
    axes = tuple(range(-len(node.sizes), 0))
    half = (node.count, *node.sizes[:-1], node.sizes[-1] // 2 + 1)
    whole = (node.count, *node.sizes)
    wide, real = ("complex128", "float64") if node.double else ("complex64", "float32")
    if node.kind == "r2c":
        goal = _packed(node.result, half, wide)
        goal[:] = np.fft.rfftn(_packed(node.source, whole, real), axes=axes)
    elif node.kind == "c2r":
        source, goal = _packed(node.source, half, wide), _packed(node.result, whole, real)
        goal[:] = np.fft.irfftn(source, node.sizes, axes=axes, norm="forward")
        source[:] = -7
    else:
        source, goal = (_packed(at, whole, wide) for at in (node.source, node.result))
        function, norm = (np.fft.ifftn, "forward") if node.inverse else (np.fft.fftn, "backward")
        goal[:] = function(source, axes=axes, norm=norm)


def convolve(node: ConvolutionNode) -> None:
    """What cuDNN does: sums of halves in float32, rounded as they are stored."""
    ctypes.memset(node.workspace, _NEW, Emulator.workspace_bytes)
    assert not any(address % 16 for address in (node.x, node.w, node.y, node.added))
    arrays = [
        _packed(at, shape, node.dtype, pitch)
        for at, shape, pitch in zip(node.addresses[:3], node.shapes, node.pitches, strict=True)
    ]
    stored = node.shapes[node.result], node.stored
    goal = _packed(node.addresses[node.result], *stored, node.pitches[node.result])
    arrays[node.result] = goal
    goal[...] = np.frombuffer(bytes([_NEW] * goal.itemsize), goal.dtype)[0]
    wide = "float64" if node.dtype == "float64" else "float32"
    x, w, y = (a.astype(wide) for a in arrays)
    axes, letters = len(node.strides), "xyz"[: len(node.strides)]
    pads = [(0, 0), *node.padding, (0, 0)]
    sizes = [n + a + b for n, (a, b) in zip(node.shapes[0][1:-1], node.padding, strict=True)]
    whole = np.zeros((x.shape[0], *sizes, x.shape[-1]), wide)
    if node.result != 0:
        whole = np.pad(x, pads)
    grouped = whole.reshape(*whole.shape[:-1], node.groups, -1)
    outs = np.zeros_like(y) if node.result == 2 else y
    outs = outs.reshape(*outs.shape[:-1], node.groups, -1)
    filters = np.zeros_like(w) if node.result == 1 else w
    filters = filters.reshape(node.groups, -1, *filters.shape[1:])  # [g, o, *size, c]
    for tap in np.ndindex(*w.shape[1:-1]):
        at = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, s, n in zip(tap, node.dilation, node.strides, y.shape[1:-1], strict=True)
        )
        part, one = grouped[(slice(None), *at)], filters[(slice(None), slice(None), *tap)]
        if node.result == 2:
            outs += np.einsum(f"n{letters}gc,goc->n{letters}go", part, one)
        elif node.result == 1:
            one += np.einsum(f"n{letters}gc,n{letters}go->goc", part, outs)
        else:
            part += np.einsum(f"n{letters}go,goc->n{letters}gc", outs, one)
    inside = tuple(
        slice(a, a + n) for n, (a, _) in zip(node.shapes[0][1:-1], node.padding, strict=True)
    )
    made = (whole[(slice(None), *inside)], filters, outs)[node.result]
    made = made.reshape(goal.shape)
    if node.added:  # as cuDNN 9.19 does, whatever it is told
        made = made + _packed(node.added, *stored, node.pitches[node.result]).astype(wide)
    if node.bias:
        assert not any(node.pitches), "slower than packed"
        made = made + _packed(node.bias, goal.shape[-1:], node.dtype).astype(wide)
    if node.positive:
        assert node.bias
        made = np.maximum(made, 0)
    assert axes == len(node.padding) == len(node.dilation)
    goal[...] = made.reshape(goal.shape)


def _packed(address: int, shape: tuple[int, ...], dtype: str, pitch: int = 0) -> np.ndarray:
    """An array where it lies; with a pitch its rows are so many elements apart."""
    kind = as_dtype(dtype)
    wide = (*shape[:-1], pitch or shape[-1])
    count = max(int(np.prod(wide)) - wide[-1] + shape[-1], 0) if shape else 1
    raw = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    steps = np.empty(wide, kind).strides
    return np.ndarray(shape, kind, np.frombuffer(raw, np.uint8).data, strides=steps)


class Emulator:
    """`Engine` of this process."""

    workspace_bytes = 96  # of every call of a function of matrices

    capability, processors, shared_bytes = 80, 4, 48 << 10
    library = "emulated"
    functions: frozenset[str] = frozenset()  # of whole arrays: see `emulated_device`
    proposals: tuple[bytes, ...] = (b"first",)  # algorithms of every product

    def __init__(self) -> None:
        self.versions: tuple[str, ...] = (
            "emulated",
            hashlib.sha256(
                b"".join(
                    [repr(_COMPILER + _LINKER).encode(), _HEADER.read_bytes(), _RUNNER.read_bytes()]
                )
            ).hexdigest(),
        )
        self._draw = random.Random()
        self._folder = Path(tempfile.mkdtemp(prefix="magmadnn-emulator-"))
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        self._count = itertools.count(1)
        self.graphs: list[EmulatedGraph] = []
        self.replays: list[EmulatedReplay] = []
        self.marks: list[str] = []
        self.memory: HostMemory | None = None
        self.queue: list[Callable[[], None]] = []
        self.lanes: list[EmulatedLane] = []
        self.others: list[Emulator] = []  # that compute at the same time
        self.lock = threading.RLock()  # threads copy while others launch
        self.calls = EmulatedCalls(self, self)
        self.enter = self.called("enter", lambda: None)
        self.error: Exception | None = None  # of a call

    def begin(self, seed: int) -> None:
        """Forget graphs, and draw the order of nodes from this seed on."""
        self._draw.seed(seed)
        self.graphs.clear()
        self.replays.clear()
        self.queue.clear()
        for lane in self.lanes:
            lane.queue.clear()

    def later(self, what: Callable[[], None]) -> None:
        """Have something done after all that was launched before."""
        self.queue.append(what)

    def run(self, node: GraphNode | ArrayNode | CopyNode) -> None:
        """Do what a node says, if the memory that it is given is still there."""
        if self.memory is not None:
            freed = [k for k, x in enumerate(addresses_of(node)) if self.memory.is_freed(x)]
            assert not freed, f"arguments {freed} of {node} lie in memory that was given back"
        _run(node)

    def compile(self, text: str, options: Sequence[str]) -> bytes:
        found = re.findall(
            r"(?:__cluster_dims__\((\d+), 1, 1\) )?__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(",
            text,
        )
        calls = {
            name: f"launch_clusters({name}, values, grid, block, {blocks});"
            if blocks
            else f"launch({name}, values, grid, block);"
            for blocks, name in found
        }
        entries = "\n".join(
            f'extern "C" void run_{name}(const int64_t *values, const unsigned *grid, '
            f"const unsigned *block) {{ {call} }}"
            for name, call in calls.items()
        )
        handle, name = tempfile.mkstemp(".cpp", dir=self._folder)  # by several threads at a time
        os.close(handle)
        source = Path(name)
        source.write_text(f'#include "{_HEADER.name}"\n{text}\n{entries}\n')
        made = source.with_suffix(".so")
        runner = self._runner()
        subprocess.run([*_COMPILER, "-o", str(made), str(source), runner, *_LINKER], check=True)
        return made.read_bytes()

    def _runner(self) -> str:
        """What runs kernels, compiled; beside it lies a copy of the header, as the compiler takes it too."""
        with self.lock:
            header, made = self._folder / _HEADER.name, self._folder / f"{_RUNNER.stem}.o"
            if not made.exists():
                shutil.copy(_HEADER, header)
                read, runner = f"{header}.gch", shutil.copy(_RUNNER, self._folder)
                for kind, given, result in (("c++-header", header, read), ("c++", runner, made)):
                    words = ["-x", kind, "-c", "-o", str(result), str(given)]
                    subprocess.run([*_COMPILER, *words], check=True)
        return str(made)

    def load(self, image: bytes, names: Sequence[str]) -> list[Any]:
        path = self._folder / f"module_{next(self._count)}.so"
        path.write_bytes(image)
        library = ctypes.CDLL(str(path))
        return [getattr(library, f"run_{name}") for name in names]

    def algorithms(self, node: ProductNode | ConvolutionNode, most: int = 1) -> list[bytes]:
        """All do the same. Only products that cuBLASLt's documentation has are asked for."""
        if isinstance(node, ProductNode):
            assert node.halves is not None or node.stored is None
        return list(self.proposals[:most])

    def workspace(self, node: MatrixNode | ConvolutionNode | FourierNode) -> int:
        return self.workspace_bytes

    def graph(self, nodes: Sequence[GraphNode], patient: Collection[int] = ()) -> EmulatedGraph:
        assert all(0 <= k < len(nodes) for k in patient)
        for number, node in enumerate(nodes):
            assert all(0 <= k < number for k in node.after)
            assert isinstance(node, GraphNode)
            assert not isinstance(node, MatrixNode) or node.is_captured
            if isinstance(node, AmongNode):
                node.gpus.prepare(node.kind, node.count, node.dtype, node.stored)
        self.graphs.append(EmulatedGraph(tuple(nodes), self, self._draw, patient))
        return self.graphs[-1]

    def replay(self, nodes: Sequence[ReplayNode]) -> EmulatedReplay:
        assert all(isinstance(node, ReplayNode) for node in nodes)
        self.replays.append(EmulatedReplay(nodes, self))
        return self.replays[-1]

    def alone(self, node: MatrixNode | ArrayNode | HostNode) -> EmulatedCall | CalledAlone:
        if isinstance(node, HostNode):
            return CalledAlone(node.title, node.run)
        assert isinstance(node, ArrayNode) or not node.is_captured
        return EmulatedCall(node, self)

    def launch(self, node: KernelNode) -> None:
        self.later(lambda: self.run(node))

    def at_once(self, node: KernelNode, blocks: int) -> int:
        return self.processors // blocks

    def copy(self, to: int, source: int, nbytes: int) -> None:
        self.later(lambda: ctypes.memmove(to, source, nbytes) and None)

    def tell(self, places: Sequence[int], number: int) -> None:
        for place in places:
            self.later(partial(_write, place, number))

    def hear(self, places: Sequence[int], number: int) -> None:
        self.later(EmulatedHear(places, number, self))

    def step(self) -> bool:
        """Do what comes first, if there is anything that need not wait, and nobody does anything here."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if not self.queue:
                return False
            first = self.queue[0]
            if isinstance(first, EmulatedHear) and not first.is_there():
                return False
            self.queue.pop(0)()
            return True
        finally:
            self.lock.release()

    def idle(self) -> None:
        """No device can go on: a test puts here what lets other ranks go on."""
        raise AssertionError("a device waits for what no other one has been given to tell")

    def beside(self) -> Emulator:
        """Another device, that compiles as this one does and computes at the same time."""
        other = copy(self)
        other.queue, other.lanes, other.lock, other.error = [], [], threading.RLock(), None
        other.calls = EmulatedCalls(other, other)
        other.enter = other.called("enter", lambda: None)
        return other

    def argsort(self, count: int, draw: Callable[[int], KernelNode]) -> np.ndarray:
        """At once, whatever else was launched."""
        keys = np.zeros(count, np.uint64)
        node = draw(
            keys.ctypes.data
        )  # which may compile, for which another thread may wait for the device
        with self.lock:
            self.run(node)
        return np.argsort(keys, kind="stable")

    def prepare(self) -> None:
        """There is nothing to load."""

    def event(self) -> list[float]:
        """The host's clock is the device's."""
        return [0.0]

    @contextmanager
    def marked(self, title: str) -> Iterator[None]:
        self.marks.append(title)
        yield

    def seconds(self, first: list[float], last: list[float]) -> float:
        assert not self.queue, "an event is asked for before it is waited for"
        return last[0] - first[0]

    def wait(self) -> None:
        """Do all that was launched."""
        with self.lock:
            while self.queue:
                try:
                    self.queue.pop(0)()
                except BaseException:  # as CuPy's functions raise where they are called
                    self.queue.clear()
                    raise

    def wait_for_all(self) -> None:
        """Do all that was launched, also in lanes."""
        self.wait()
        for lane in self.lanes:
            EmulatedMark(lane).wait()

    def mark(self, timed: bool = False) -> EmulatedMark:
        """A mark behind all that was launched."""
        return EmulatedMark(self)

    def follow(self, mark: EmulatedMark) -> None:
        """What is launched from now on comes after a mark."""
        self.later(mark.wait)

    def fence(self) -> EmulatedFence:
        """A mark that is set again and again."""
        return EmulatedFence(self)

    def called(self, name: str, what: Callable[[], object]) -> NativeCall:
        """What native code can call, which takes any integers and gives 1 after an error."""

        def run() -> int:
            try:
                what()
            except Exception as error:
                self.error = error
                return 1
            return 0

        made = ctypes.CFUNCTYPE(ctypes.c_int)(run)
        return NativeCall(name, (ctypes.cast(made, ctypes.c_void_p).value or 0,), made)

    def fail(self, call: NativeCall, status: int) -> NoReturn:
        """Raise what happened."""
        error, self.error = self.error, None
        raise error or AssertionError(f"{call.name} gave {status}")

    def lane(self) -> EmulatedLane:
        """A queue of its own, in which nothing is done before it is waited for."""
        self.lanes.append(EmulatedLane(self))
        return self.lanes[-1]


def _set(to: int, byte: int, nbytes: int) -> None:
    ctypes.memset(to, byte, nbytes)


def _write(place: int, number: int) -> None:
    ctypes.c_uint32.from_address(place).value = number


@cache
def _engine() -> Emulator:
    """One for all tests: kernels are compiled once."""
    return Emulator()


@contextmanager
def emulated_device(
    seed: int = 0,
    capacity: int = 1 << 40,
    functions: frozenset[str] = frozenset(),
    devices: int = 1,
    any_size_steps: int = 0,
    apart: bool = False,
) -> Iterator[Emulator]:
    """Emulated devices in place of the machine's own, one after the other in what they do.

    Args:
        seed: of the order in which nodes run.
        capacity: bytes of its memory.
        functions: of whole arrays, that its library has.
        devices: how many.
        any_size_steps: that small networks run by kernels for any size; 0: those for theirs from the first.
        apart: whether devices compute at the same time.
    """
    engine = _engine()
    steps, code.ANY_SIZE_STEPS = code.ANY_SIZE_STEPS, any_size_steps
    engine.functions = functions
    engine.begin(seed)
    engines = [engine, *(engine.beside() if apart else engine for _ in range(1, devices))]
    memories = [HostMemory(capacity, one) for one in engines]
    for one, memory in zip(reversed(engines), reversed(memories), strict=True):
        one.memory = memory
        one.others = [other for other in dict.fromkeys(engines) if other is not one]
    before = install(
        Provider(lambda: (devices, "emulated"), lambda n: memories[n], lambda n: engines[n])
    )
    try:
        yield engine
        for one in engines:
            one.wait()
        for memory in memories:
            memory.close()
    finally:
        code.ANY_SIZE_STEPS = steps
        engine.memory, engine.functions, engine.others = None, frozenset(), []
        engine.begin(seed)
        install(before)
