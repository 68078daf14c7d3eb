"""A worker: carries out the client's records, in order, on the parts of arrays that it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from magmadnn.comm.sites import raised_at
from magmadnn.dmath.arrays import files, making
from magmadnn.dmath.arrays.kept import Kept
from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.replicas import Replica, copied, held_bytes
from magmadnn.dmath.arrays.team import Array, Failed, Team
from magmadnn.dmath.arrays.tracing import Trace
from magmadnn.dmath.devices import on_devices
from magmadnn.dmath.functions import elementwise
from magmadnn.dmath.functions.operations import OPERATIONS
from magmadnn.dmath.layouts.layout import Layout
from magmadnn.dmath.products.arithmetic import COMPUTE, arithmetic_of, kind_of, of_kind
from magmadnn.dmath.products.multiplying import matmul, worth_measuring
from magmadnn.dmath.products.rates import Rates, measured
from magmadnn.errors import (
    ArgumentError,
    CommunicationError,
    DeviceError,
    MagmaDNNError,
    OutOfMemoryError,
)
from magmadnn.memory.dtypes import as_dtype
from magmadnn.storage.machine_memory import total_bytes

Record = dict[str, Any]
"""One operation as JSON: "op", "out" (number of the result), "in" (numbers of arrays, or {"v": value}; {"c":
[real, imaginary]} of a complex one), "set", "line".
"""


Weights = dict[str, tuple[Callable[[], Array], np.dtype[Any], Layout]]


@dataclass
class Worker:
    """What one worker knows.

    Attributes:
        team: the group.
        arrays: by the numbers that the client gave them.
        rates: for the planner, by kind of arithmetic; measured when they are needed first.
        layouts: by the numbers under which the client has told them.
        strict: whether operations fail that send elements without having been told to.
        weights: whole arrays that others on this worker have, such as a model's, by name: how to read one,
            its dtype and the layout in which it is known here.
    """

    team: Team
    arrays: dict[int, Parts | Failed | Replica] = field(default_factory=dict)
    rates: dict[str, Rates] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    weights: Weights = field(default_factory=dict)
    strict: bool = False

    def __post_init__(self) -> None:
        if self.team.kept is None:
            self.team.kept = Kept()

    def rates_of(self, kind: str) -> Rates:
        """Rates for products of this kind. Collective where they have to be measured."""
        if kind not in self.rates:
            self.rates[kind] = measured(self.team, of_kind(kind))
        return self.rates[kind]

    def run(self, record: Record, flat: Array | None = None) -> tuple[Any, Array | None]:
        """Carry out one record: the answer, for those that have one, and an array that goes with it.

        An operation on the result of one that failed fails with the same words; so does one on an array, or
        a view of one, that a failed operation should have written to: until the client is told, where that
        has changed nothing, else for good. So does every worker, as all see the same shapes; what only one
        can see is agreed on before it counts.
        """
        for number in record.get("free", ()):
            self.arrays.pop(number, None)
        for number, layout in record.get("layouts", ()):
            self.layouts[number] = Layout.of_record(layout)
        for number in record.get("forget", ()):
            del self.layouts[number]
        settings = dict(record.get("set", {}))
        if "layout" in settings:
            settings["layout"] = self.layouts[settings["layout"]]
        operands: list[Any] = []
        for one in record.get("in", ()):
            found = _number(one) if isinstance(one, dict) else self.arrays[one]
            if (failed := _why_not(found)) is not None:
                if record["op"] in _ANSWERS:
                    _forgive(found)
                return self._failed(record, replace(failed, changed_nothing=True))
            operands.append(found)
        written = operands[0] if record["op"] in _WRITES else None
        target = written.data if isinstance(written, Parts) else None
        version = None if target is None else target.version
        try:
            if isinstance(written, Replica):
                raise ArgumentError(
                    f"{_name_of(record)}: a replica has the values of its original: write to that, or "
                    "to a copy of its own, x.to(md.dmath.Replicated())"
                )
            with self.team.at(record.get("line", "")) as counted, np.errstate(all="ignore"):
                given = [x.fresh() if isinstance(x, Replica) else x for x in operands]
                before = counted.sent_bytes
                found = self._carried_out(record, given, settings, flat)
                if self.strict and record["op"] not in _MAY_SEND:
                    self._check_sent(record, counted.sent_bytes - before)
                return found
        except MagmaDNNError as error:
            alike = not isinstance(error, _OF_ONE_WORKER)
            same = alike and target is not None and target.version == version
            failed = Failed(type(error).__name__, str(error), record.get("line", ""), same)
            return self._failed(record, failed)
        except (
            MemoryError
        ) as error:  # maybe of this worker alone: others, who wait for it, are ended
            line: str = record.get("line", "")
            text = (
                f"{_name_of(record)}: {error}: spread it over more workers, or take a smaller dtype"
            )
            self._failed(record, Failed("OutOfMemoryError", text, line))
            raise OutOfMemoryError(text) from error
        except Exception as error:  # a fault of ours: what is made of the result says so too
            text = f"{type(error).__name__}: {error}"
            line = record.get("line", "")
            self._failed(record, Failed("CommunicationError", text, line))
            raised_at(error, line.rpartition("/")[2])
            raise

    def _check_sent(self, record: Record, sent: int) -> None:
        """Refuse an operation that has sent elements; on all workers alike."""
        total = sum(self.team.comm.exchange(sent))
        if total:
            raise ArgumentError(
                f"{_name_of(record)}: has sent {total} bytes among workers "
                "within no_implicit_messages(): move an operand first, x.to(layout), so that layouts fit"
            )

    def _failed(self, record: Record, failed: Failed) -> tuple[Any, None]:
        if "out" in record:
            self.arrays[record["out"]] = failed
        elif record["op"] in _WRITES:
            target = self.arrays[record["in"][0]]
            if isinstance(target, Parts):
                target.data.failed = target.data.failed or failed  # of its views too
            elif isinstance(target, Replica):
                target.whole.failed = target.whole.failed or failed
        return {"error": failed.json()}, None

    def _carried_out(
        self, record: Record, operands: list[Any], settings: dict[str, Any], flat: Array | None
    ) -> tuple[Any, Array | None]:
        op = record["op"]
        if op in _ANSWERS:
            return _ANSWERS[op](self, *operands, **settings)
        if op == "array":
            made: Any = self._created(op, settings, flat)
        elif op == "replica":
            made = copied(self.arrays[record["in"][0]], **settings)  # type: ignore[arg-type]  # none that failed
        elif op in _CREATIONS:
            made = self._created(op, settings, None)
        elif op in _OPS:
            made = _OPS[op](self, *operands, **settings)
        elif op in OPERATIONS:
            made = OPERATIONS[op](*operands, **settings)
            given = self.arrays[record["in"][0]] if op in _VIEWS else None
            if isinstance(given, Replica):
                made = given.seen(partial(OPERATIONS[op], **settings), made)
        else:
            made = elementwise.apply(op, operands, **settings)
        if "out" in record:
            self.arrays[record["out"]] = made
        return None, None

    def _created(self, op: str, settings: dict[str, Any], flat: Array | None) -> Parts:
        """A new array; if a worker has no memory for its part, all say so."""
        layout, dtype = settings.pop("layout"), as_dtype(settings.pop("dtype"))
        needed, made, problem = layout.elements(self.team.rank) * dtype.itemsize, None, None
        big = layout.most * dtype.itemsize >= _AGREED_FROM
        try:
            if needed > total_bytes():
                raise MemoryError  # Linux would promise it, and end the process on use
            if op == "array":
                made = making.unpacked(self.team, layout, dtype, flat)
            else:
                made = _CREATIONS[op](self.team, layout, dtype, **settings)
        except MemoryError:
            problem = needed
        if big:
            for worker, size in enumerate(self.team.comm.exchange(problem)):
                if size is not None:
                    raise OutOfMemoryError(
                        f"{op}: worker {worker} has no memory for its {size / 2**30:.2f} GiB of an "
                        f"array of shape "
                        f"{layout.shape}: spread it over more workers, or take a smaller dtype"
                    )
        assert made is not None
        return made


_OF_ONE_WORKER = (
    CommunicationError,
    DeviceError,
    OutOfMemoryError,
)  # of which others may know nothing
_AGREED_FROM = 1 << 28  # bytes of a part from which workers ask each other whether there was room


def _why_not(found: Any) -> Failed | None:
    """Why an operand has no values, if it has none."""
    if isinstance(found, Replica):
        return found.whole.failed or found.source.data.failed
    if isinstance(found, Parts):
        return found.data.failed
    return found if isinstance(found, Failed) else None


def _forgive(found: Any) -> None:
    """The client is told of one write, of those that `_why_not` finds the first: it is told once.

    If it has changed nothing, the values from before count again.
    """
    if isinstance(found, Replica):
        if found.whole.failed is not None:
            found.whole.failed = None
            return  # a write to the original is told later
        found = found.source
    if isinstance(found, Parts) and found.data.failed is not None:
        if found.data.failed.changed_nothing:
            found.data.failed = None


def _number(told: dict[str, Any]) -> Any:
    """A number among the operands."""
    return complex(*told["c"]) if "c" in told else told["v"]


def _name_of(record: Record) -> str:
    """The operation as its user knows it."""
    name: str = record.get("set", {}).get("name", record["op"])
    return name


def _matmul(worker: Worker, a: Parts, b: Parts, **settings: Any) -> Parts:
    dtype, compute = as_dtype(settings["dtype"]), settings.get("compute")
    kind = kind_of(arithmetic_of(a.dtype, b.dtype, dtype, compute))
    known = kind in worker.rates or worth_measuring(a, b)
    return matmul(
        a,
        b,
        settings.get("layout"),
        worker.rates_of(kind) if known else None,
        dtype,
        as_dtype(settings["wire"]) if settings.get("wire") else None,
        settings.get("keep", False),
        settings.get("fixed", False),
        compute,
    )


def _weight(worker: Worker, name: str) -> Parts:
    """A copy of this worker's blocks of an array that it knows by name."""
    read, dtype, layout = worker.weights[name]
    flat = making.packed(np.asarray(read(), dtype), layout, worker.team.rank)
    return making.unpacked(worker.team, layout, dtype, flat)


_OPS: dict[str, Callable[..., Any]] = {
    "weight": _weight,
    "matmul": _matmul,
}
_CREATIONS: dict[str, Callable[..., Parts]] = {
    "full": making.full,
    "full_complex": lambda team, layout, dtype, parts: making.full(
        team, layout, dtype, complex(*parts)
    ),
    "eye": making.eye,
    "arange": making.arange,
    "random": making.random,
    "load": files.load,
}


def _pull(worker: Worker, x: Parts) -> tuple[Any, Array]:
    """This worker's share of a whole array for the client."""
    worker.team.finish()
    layout = making.first_holders(x.layout)
    blocks = [x.blocks[n] for n in layout.held[worker.team.rank]]
    flat = [worker.team.on_host(b).reshape(-1) for b in blocks]
    array = np.concatenate(flat) if flat else np.empty(0, x.dtype)
    return {"layout": layout.record()}, array


def _forget(worker: Worker) -> tuple[Any, None]:
    worker.arrays.clear()
    worker.team.programs.clear()
    worker.team.buffers.clear()
    worker.team.narrowed.clear()
    if worker.team.replays is not None:
        worker.team.replays.clear()
    worker.team.kept.set_budget(0)
    return None, None


def _info(worker: Worker, x: Parts) -> tuple[Any, None]:
    return {"layout": x.layout.record(), "version": x.data.version}, None


def _counters(worker: Worker) -> tuple[Any, None]:
    kept = worker.team.kept
    lines = {line: vars(count).copy() for line, count in worker.team.lines.items()}
    return {
        "lines": lines,
        "kept_bytes": kept.nbytes,
        "saved_bytes": kept.saved_bytes,
        "array_bytes": held_bytes(list(worker.arrays.values())),
        "buffer_bytes": worker.team.buffer_bytes,
        "page_faults": _page_faults(),
    }, None


def _page_faults() -> int:
    """How often the system has given this process a page of memory; 0 where it does not say."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _use(worker: Worker, device: str) -> tuple[Any, None]:
    """Choose where this worker computes; before there are arrays."""
    if device == "cuda":
        worker.team = on_devices(worker.team)
    return None, None


def _measure(worker: Worker, kind: str) -> tuple[Any, None]:
    return vars(worker.rates_of(kind)).copy(), None


def _set_rates(worker: Worker, **rates: Any) -> tuple[Any, None]:
    worker.rates = dict.fromkeys(COMPUTE, Rates(**rates))
    return None, None


def _known_weights(worker: Worker) -> tuple[Any, None]:
    return [
        {"name": name, "shape": list(layout.shape), "dtype": dtype.name}
        for name, (_, dtype, layout) in worker.weights.items()
    ], None


def _wait(worker: Worker) -> tuple[Any, None]:
    worker.team.finish()
    return None, None


def _trace(worker: Worker, on: bool) -> tuple[Any, None]:
    """Begin a trace; or end it and tell of it."""
    trace, worker.team.trace = worker.team.trace, None
    if on:
        worker.team.comm.barrier()
        worker.team.trace = Trace(worker.team)
    return None if trace is None else trace.told(), None


def _strict(worker: Worker, on: bool) -> tuple[Any, None]:
    worker.strict = on
    return None, None


def _graphs(worker: Worker, on: bool) -> tuple[Any, None]:
    """Whether products that come again are launched as graphs; those that there are go when not."""
    if worker.team.replays is not None:
        worker.team.replays.enabled = on
        if not on:
            worker.team.replays.clear()
    return None, None


def _save(worker: Worker, x: Parts, path: str, begin: int) -> tuple[Any, None]:
    worker.team.finish()
    files.save(x, path, begin)
    return None, None


def _set_budget(worker: Worker, nbytes: int) -> tuple[Any, None]:
    worker.team.kept.set_budget(nbytes)
    return None, None


_ANSWERS: dict[str, Callable[..., tuple[Any, Array | None]]] = {
    "pull": _pull,
    "forget": _forget,
    "info": _info,
    "counters": _counters,
    "measure": _measure,
    "use": _use,
    "set_rates": _set_rates,
    "set_budget": _set_budget,
    "weights": _known_weights,
    "wait": _wait,
    "trace": _trace,
    "save": _save,
    "strict": _strict,
    "graphs": _graphs,
}
_VIEWS = {"view", "transpose"}
_WRITES = {"assign", "in_place", "add_row_col_sum"}  # to their first operand
_MAY_SEND = {"remap", "replica", *_CREATIONS, "array", *_ANSWERS}
