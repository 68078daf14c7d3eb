"""Which algorithm the device's library takes for a product or a convolution: chosen once, and kept.

Algorithms differ in the order in which they sum, so the choice belongs to the results. What was chosen is in
checkpoints, and training that goes on takes the same. The fastest of those that the library proposes is
found by measuring; what was found is kept on disk for each device and version of the library, so that other
runs give the same results. Ranks that train together take what the first of them has chosen (`take_first`).
Where nothing is to be measured (`MAGMADNN_TUNE_SECONDS=0`), or nothing can be kept, it is the library's
first proposal.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from magmadnn.backends.cuda import device_memory
from magmadnn.backends.cuda.engine import (
    ConvolutionNode,
    Engine,
    EventNode,
    GraphNode,
    ProductNode,
)
from magmadnn.errors import OutOfMemoryError
from magmadnn.memory import Kind, MemoryManager, as_dtype

from .measured import Record, RecordsOf, may_measure

Chosen = ProductNode | ConvolutionNode

_PROPOSALS = 8
_ROUNDS = 3
_PATTERN = 1 << 14  # random numbers that are repeated
_AT_A_TIME = 3  # runs of a product between two events
# An algorithm whose single run takes so many times the fastest one's is not run again,
_HOPELESS = 3.0
_SLOW = 1.5  # nor is one that takes so many times as long in a round
_WORTH = 0.97  # of the first proposal's time: what another must take to be chosen
_ALIGNED = 16  # bytes: what algorithms may ask for

_frozen: dict[str, bytes] = {}
_wanted: dict[str, bytes] = {}  # what another process chose
_lock = threading.RLock()


def frozen() -> dict[str, str]:
    """What was chosen in this process: words of a product, and its algorithm in hex."""
    with _lock:
        return {words: algorithm.hex() for words, algorithm in _frozen.items()}


def freeze(chosen: Mapping[str, str]) -> None:
    """From now on choose what `frozen` gave in another process, for products of graphs that are not made yet.

    What belongs to another device or version is never asked for, and nothing is taken that the library does
    not propose itself.

    Raises:
        ValueError: if an algorithm is not written in hex.
    """
    with _lock:
        _wanted.update({words: bytes.fromhex(algorithm) for words, algorithm in chosen.items()})
        for words in chosen:
            _frozen.pop(words, None)


def take_first(told: Sequence[Mapping[str, str]]) -> None:
    """From now on choose for each product what the first of several processes has chosen that has.

    Args:
        told: what `frozen` gave in each, this one among them, in an order that all of them know.
    """
    first: dict[str, str] = {}
    for one in told:
        first = {**one, **first}
    own = frozen()
    freeze({words: found for words, found in first.items() if own.get(words) != found})


def algorithm_of(engine: Engine, device: int, node: Chosen) -> bytes:
    """The algorithm of a product; the library's first where `node` can be had in one way only."""
    words = words_of(engine, node)
    with _lock:
        if words not in _frozen:
            _frozen[words] = _chosen(engine, device, node, words)
        return _frozen[words]


def words_of(engine: Engine, node: Chosen) -> str:
    """All that the choice may depend on, in one line."""
    if isinstance(node, ConvolutionNode):
        return _words_of_convolution(engine, node)
    m, n, k = node.sizes
    a, b, c = node.strides
    letters = "".join("t" if turned else "n" for turned in node.transposes)
    read = node.halves or ("tf32" if node.tensor_float else node.dtype)
    does = [
        ("parts in float32", node.stored),  # choices of before may add parts as halves
        ("bias", node.bias), ("positive", node.positive), ("scales", node.scales),
    ]  # fmt: skip
    aligned = min((x & -x or _ALIGNED) for x in (node.a, node.b, node.c, _ALIGNED))
    parts = [
        f"{engine.library}: {m} x {n} x {k} {letters} of {read}, rows of {a}, {b}, {c}",
        f"{node.stored or node.dtype} at multiples of {aligned}",
        *(name for name, is_there in does if is_there),
    ]
    if node.count > 1:
        parts.append(f"{node.count} apart by {', '.join(map(str, node.steps))}")
    return ", ".join(parts)


def _words_of_convolution(engine: Engine, node: ConvolutionNode) -> str:
    first = next(iter(engine.algorithms(node)), b"").decode()
    library = first.rpartition(" engine ")[0].rpartition(" ")[0]  # with its version
    settings = f"strides {node.strides}, padding {node.padding}, dilation {node.dilation}"
    return f"{engine.library}, {library}: {node.title}, {settings}, groups {node.groups}"


def _chosen(engine: Engine, device: int, node: Chosen, words: str) -> bytes:
    proposals = engine.algorithms(node, _PROPOSALS)
    if _wanted.get(words) in proposals:
        return _wanted[words]
    is_empty = isinstance(node, ProductNode) and 0 in node.sizes
    if not may_measure() or len(proposals) < 2 or is_empty:
        return next(iter(proposals), b"")
    records = records_of(engine.library)
    known = records.read().get(words)
    if known is None and (fresh := _measured(engine, device, node, proposals)) is not None:
        known = records.settle(words, fresh)
    return next((p for p in proposals if known and p.hex() == known.choice), proposals[0])


def records_of(library: str) -> RecordsOf:
    """The file of what was measured with a device and its library."""
    return RecordsOf(library)


def _measured(
    engine: Engine, device: int, node: Chosen, proposals: Sequence[bytes]
) -> Record | None:
    """The fastest, on memory of its own; None where there is no memory for it."""
    try:
        made: tuple[Chosen, list[MemoryManager]]
        if isinstance(node, ProductNode):
            made = _on_noise(device, node)
        else:
            made = _convolution_on_noise(engine, device, node, proposals)
        node, held = made
    except OutOfMemoryError:
        return None
    times = _times_of(engine, node, proposals)
    del held
    best = min(proposals, key=times.__getitem__)
    if times[best] > _WORTH * times[proposals[0]]:
        best = proposals[0]
    return Record(best.hex(), {f"{k}": round(1e6 * t, 2) for k, t in enumerate(times.values())})


def _times_of(engine: Engine, node: Chosen, proposals: Sequence[bytes]) -> dict[bytes, float]:
    """Seconds of a run by each; those that turn out to be slow are run less often."""
    nodes = {p: replace(node, algorithm=p) for p in proposals}
    times = {p: _Timed(engine, one, 1).seconds() for p, one in nodes.items()}
    limit = _HOPELESS * min(times.values())
    graphs = {p: _Timed(engine, nodes[p], _AT_A_TIME) for p, once in times.items() if once <= limit}
    for _ in range(_ROUNDS):
        for proposal, timed in graphs.items():
            times[proposal] = min(times[proposal], timed.seconds())
        limit = _SLOW * min(times.values())
        graphs = {p: timed for p, timed in graphs.items() if times[p] <= limit}
    return times


def _on_noise(device: int, node: ProductNode) -> tuple[ProductNode, list[MemoryManager]]:
    """A product of random numbers: zeros are multiplied with less power, and other algorithms win then."""
    (m, n, k), (turned_a, turned_b) = node.sizes, node.transposes
    lines = (k if turned_a else m, n if turned_b else k, m)
    read, wide = node.halves or node.dtype, node.stored or node.dtype
    sizes = (
        rows * stride + (node.count - 1) * step
        for rows, stride, step in zip(lines, node.strides, node.steps, strict=True)
    )
    held = [_noise(device, n, d) for n, d in zip(sizes, (read, read, wide), strict=True)]
    a, b, c = (block.device_pointer(write=True) for block in held)
    memory, scales = device_memory(device), node.scales
    if scales:
        held.append(MemoryManager(2, node.dtype, Kind.DEVICE, device))
        scales = held[-1].device_pointer(write=True)
        memory.copy_to_device(scales, np.array([-1e-3, 1], node.dtype).view(np.uint8))
    return replace(node, a=a, b=b, c=c, scales=scales), held


def _convolution_on_noise(
    engine: Engine, device: int, node: ConvolutionNode, proposals: Sequence[bytes]
) -> tuple[ConvolutionNode, list[MemoryManager]]:
    """A convolution of random numbers, with a workspace for each of its algorithms."""
    counts = [
        math.prod(shape[:-1]) * (pitch or shape[-1])
        for shape, pitch in zip(node.shapes, node.pitches, strict=True)
    ]
    held = [
        _noise(device, count, node.stored if k == node.result else node.dtype)
        for k, count in enumerate(counts)
    ]
    room = max(engine.workspace(replace(node, algorithm=p)) for p in proposals)
    held.append(MemoryManager(max(room, 1), np.uint8, Kind.DEVICE, device))
    if node.bias:
        held.append(_noise(device, node.shapes[node.result][-1], node.dtype))
    if node.added:
        held.append(_noise(device, counts[node.result], node.stored))
    x, w, y, workspace, *others = (block.device_pointer(write=True) for block in held)
    bias, added = (*others, 0, 0)[:2]
    return replace(node, x=x, w=w, y=y, workspace=workspace, bias=bias, added=added), held


def _noise(device: int, count: int, dtype: str) -> MemoryManager:
    """At least so many random numbers."""
    pattern = np.random.default_rng(count).standard_normal(min(count, _PATTERN))
    pattern = pattern.astype(as_dtype(dtype))
    times = -(-count // len(pattern))
    held = MemoryManager(times * len(pattern), dtype, Kind.DEVICE, device)
    device_memory(device).fill(held.device_pointer(write=True), pattern.tobytes(), times)
    return held


class _Timed:
    """Runs of a product, one after the other, between two events."""

    def __init__(self, engine: Engine, node: Chosen, runs: int) -> None:
        self._engine, self._events, self._runs = engine, (engine.event(), engine.event()), runs
        nodes: list[GraphNode] = [EventNode(self._events[0])]
        nodes += [replace(node, after=(k,)) for k in range(runs)]
        self._graph = engine.graph([*nodes, EventNode(self._events[1], (runs,))])

    def seconds(self) -> float:
        """Of one run."""
        self._graph.launch()
        self._engine.wait()
        return self._engine.seconds(*self._events) / self._runs
