"""Programs of eager calls, kept for the next call like one before."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from magmadnn.backends.cpu.forks import ProcessLock
from magmadnn.backends.cuda import Provider, device_engine, device_memory, installed
from magmadnn.errors import DeviceError, MagmaDNNError, OutOfMemoryError
from magmadnn.graph.node import Node, placeholder
from magmadnn.graph.spec import Spec
from magmadnn.memory import Kind, MemoryManager, as_dtype
from magmadnn.memory.pool import device_source
from magmadnn.ops.movement import copy

from .known import Known
from .operands import Given, given

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.running.direct import Direct
    from magmadnn.runtime.cuda.running.runner import CudaRunner

MOST_PROGRAMS = 128
MOST_KEPT = 64 << 20  # bytes of results whose memory a program takes again
SHARE = 32  # of a device's memory one part of so many is kept by programs for their next calls


class Traced(NamedTuple):
    """The results of a call as nodes, and anything that says what the caller makes of them."""

    nodes: Sequence[Node]
    form: Any


Part = tuple[
    MemoryManager, Any, int
]  # a result: its memory, a frame of its elements, and an address or 0


class Results(NamedTuple):
    """The results of a call, and what tracing it gave as their form."""

    parts: list[Part]
    form: Any


Trace = Callable[[list[Any]], Traced | None]


class _Key:
    """What a program is known by; its hash, of many parts, is computed once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, *parts: Any) -> None:
        self._parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._parts == other._parts


class _Short(NamedTuple):
    """The program of a call that is known at once; its results are DEVICE memory, as its operands are."""

    program: _Program
    provider: Provider
    turn: ProcessLock


class _Program:
    """One program; `runner` is None where the host has to compute such calls.

    Attributes:
        direct: what computes with operands that all lie well, if that is how it ran last.
        was_used: whether it was called at once since it was looked at for that.
        keeps_more: whether it began to keep memory of results with its last call.
    """

    def __init__(self, operands: Sequence[Given], trace: Trace, device: int) -> None:
        self.runner: CudaRunner | None = None
        self.direct: Direct | None = None
        self.was_used = self.keeps_more = False
        self._last: list[Part] = []
        self.device, self.nbytes = device, 0
        memory: Any = device_memory(device)  # each is equal to itself alone
        self._source = device_source(memory, False)
        self.nodes = [
            placeholder(f"x{k}", Spec(x.view.block, x.values.dtype)) for k, x in enumerate(operands)
        ]
        try:
            traced = trace([x.view.of(n) for x, n in zip(operands, self.nodes, strict=True)])
        except MagmaDNNError:  # which the host raises too, with the names that the user knows
            return
        if traced is None:
            return
        self.form = traced.form
        shapes = [tuple(map(int, node.shape)) for node in traced.nodes]
        self.results = [
            (shape, math.prod(shape), as_dtype(node.dtype))
            for shape, node in zip(shapes, traced.nodes, strict=True)
        ]
        nbytes = sum(size * dtype.itemsize for _, size, dtype in self.results)
        self._keeps = nbytes if nbytes <= MOST_KEPT else 0
        runner = _runner(traced.nodes, device)
        if not all(runner.are_whole):
            whole = zip(traced.nodes, runner.are_whole, strict=True)
            runner = _runner([node if is_whole else copy(node) for node, is_whole in whole], device)
        if runner.stays_on_device:
            self.runner = runner

    def parts(self, kind: Kind) -> list[Part]:
        """New memory for results."""
        device = self.device
        if kind is Kind.DEVICE:
            source = self._source
            made = [
                (MemoryManager.of_source(size, dtype, source, device), shape)
                for shape, size, dtype in self.results
            ]
        else:
            made = [
                (MemoryManager.of(size, dtype, kind, device), shape)
                for shape, size, dtype in self.results
            ]
        return [
            (memory, memory.frame().reshape(shape), memory.overwritten_on_device())
            for memory, shape in made
        ]

    def parts_at_once(self) -> list[Part]:
        """The same in DEVICE memory: that of the last results, if nobody has them any more."""
        for part in self._last:
            if not part[0].is_new_again():
                break
        else:
            if self._last:  # who gets them has tuples of its own, so that they count as somebody's
                self.keeps_more = False
                return [(memory, frame, place) for memory, frame, place in self._last]
        made = self.parts(Kind.DEVICE)
        self.keeps_more = bool(self._keeps and not self._last)
        if self._keeps:
            self._last = [(memory, frame, place) for memory, frame, place in made]
        return made

    def grows(self) -> bool:
        """Look how much memory it keeps for its next call now; whether that is more than before."""
        before, self.nbytes = self.nbytes, 0 if self.runner is None else self.runner.nbytes
        if self._last:
            self.nbytes += self._keeps
        return self.nbytes > before

    def give_back(self) -> None:
        """Give that memory back."""
        self.nbytes, self.direct, self._last = 0, None, []
        if self.runner is not None:
            self.runner.give_back()


def _runner(outputs: Sequence[Node], device: int) -> CudaRunner:
    from magmadnn.runtime import Executable

    return Executable(outputs, executor="native", device=f"cuda:{device}").cuda


class Programs:
    """Programs by what is called and what operands look like: those used last, and memory of few of them.

    One thread at a time uses a device.
    """

    def __init__(self) -> None:
        self._programs: OrderedDict[_Key, _Program] = OrderedDict()
        self._shorts: OrderedDict[Hashable, _Short] = OrderedDict()
        self._lock = ProcessLock()
        self._turns: defaultdict[int, ProcessLock] = defaultdict(ProcessLock)

    def __len__(self) -> int:
        return len(self._programs)

    @property
    def nbytes(self) -> int:
        """Memory that all keep for their next calls."""
        with self._lock:
            return sum(program.nbytes for program in self._programs.values())

    def call(
        self,
        what: Hashable,
        operands: Sequence[Any],
        place: tuple[Kind, int],
        trace: Trace,
        *,
        finite: bool = False,
        known: Known | None = None,
    ) -> Results | None:
        """The results of a call, computed on a device; None where the host has to compute.

        Args:
            what: what is called, with its attributes.
            operands: arrays and Tensors, of which at least one lies on the device.
            place: kind of memory of the results, and number of the device.
            trace: makes the results of nodes of the operands; None for what programs cannot do.
            finite: whether the host computes with operands that are not finite; as `what` says.
            known: the call as `again` is to know it, with the same operands in the same order.
        """
        kind, device = place
        try:
            hash(what)
        except TypeError:  # an attribute that the host has to look at
            return None
        try:
            fed = [x for x in (given(x, device) for x in operands) if x is not None]
            if len(fed) < len(operands):
                return None
            parts = tuple(x.key for x in fed)
            key = _Key(what, device_memory(device), device_engine(device), parts)
            turn = self._turn(device)
            with turn:
                program = self._program(key, fed, trace, device)
                found = self._run(program, fed, kind, finite)
        except DeviceError:  # one that only holds memory
            return None
        if found is not None and known is not None and _is_as_known(fed, known):
            with self._lock:
                self._shorts[known.key] = _Short(program, installed(), turn)
                while len(self._shorts) > MOST_PROGRAMS:
                    self._shorts.popitem(last=False)
        return found

    def again(self, known: Known) -> Results | None:
        """The results of a call like one before; None where `call` has to look at it."""
        short = self._shorts.get(known.key)
        if short is None or short.provider is not installed():
            return None
        program = short.program
        with short.turn:
            direct = program.direct
            if direct is None:
                return None
            program.was_used = True
            try:
                parts = program.parts_at_once()
                places = known.places.copy()
                for _, _, place in parts:
                    places.append(place)
                well = direct.launch(places)
                if program.keeps_more and program.grows():
                    self._shrink(program.device, most_bytes(program.device))
            except (MagmaDNNError, MemoryError):  # `call` finds room, or what is wrong
                return None
        return Results(parts, program.form) if well else None

    def _turn(self, device: int) -> ProcessLock:
        with self._lock:
            return self._turns[device]

    def _run(
        self, program: _Program, fed: Sequence[Given], kind: Kind, finite: bool
    ) -> Results | None:
        device = program.device
        if program.runner is None:
            return None
        for is_last in (False, True):
            try:
                found = self._results(program, program.runner, fed, kind, finite)
                break
            except (OutOfMemoryError, MemoryError):  # the other library's is Python's
                self._shrink(device, 0)
                if is_last:
                    return None
            except MagmaDNNError:  # the host says what is wrong
                return None
            finally:
                if program.grows():
                    self._shrink(device, most_bytes(device))
        return None if found is None else Results(found, program.form)

    def _program(self, key: _Key, fed: Sequence[Given], trace: Trace, device: int) -> _Program:
        with self._lock:
            found = self._programs.get(key)
            if found is not None:
                self._programs.move_to_end(key)
                return found
        made = _Program(fed, trace, device)
        with self._lock:
            self._programs[key] = made
            while len(self._programs) > MOST_PROGRAMS:
                self._forget_one()
        return made

    def _forget_one(self) -> None:
        """Forget the program that was used longest ago, or one near it."""
        while True:
            key, program = self._programs.popitem(last=False)
            if not program.was_used:
                program.direct = None  # for those that still know it
                return
            program.was_used = False
            self._programs[key] = program

    @staticmethod
    def _results(
        program: _Program, runner: CudaRunner, fed: Sequence[Given], kind: Kind, finite: bool
    ) -> list[Part] | None:
        parts = program.parts(kind)
        goals = [place for _, _, place in parts]
        values = dict(zip(program.nodes, (x.values for x in fed), strict=True))
        well = runner.run_into(values, goals, finite)
        program.direct = runner.all_direct()
        return parts if well else None

    def _shrink(self, device: int, most: int) -> None:
        """Have programs of a device give memory back, those first that were used longest ago."""
        with self._lock:
            held = [p for p in self._programs.values() if p.device == device and p.nbytes]
            held.sort(key=lambda program: program.was_used)  # of calls at once nobody knows when
            total = sum(program.nbytes for program in held)
            for program in held:
                if total <= most:
                    return
                total -= program.nbytes
                program.give_back()


def most_bytes(device: int) -> int:
    """Memory of a device that all programs together keep for their next calls."""
    return device_memory(device).total // SHARE


def _is_as_known(fed: Sequence[Given], known: Known) -> bool:
    """Whether operands of a call are whole blocks at the addresses that it is known by."""
    return all(x.view.index is None for x in fed) and known.places == [
        getattr(x.values, "place", None) for x in fed
    ]


PROGRAMS = Programs()
