"""Random programs for comparing the native executor with the reference.

A `Case` is a program with feeds for several sizes of its batch. How far float32 may be off is found out
with float64: a run in which every value is disturbed by its own rounding (random signs), which is what
Monte Carlo arithmetic does (Parker, "Monte Carlo Arithmetic", 1997). Programs in which a disturbance
turns a comparison, or a rounding to integers, over are not drawn: both results would be right.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import magmadnn as md
from magmadnn import ops
from magmadnn.errors import MagmaDNNError
from magmadnn.graph import Spec
from magmadnn.graph.body import body_of, is_loop, is_result
from magmadnn.graph.dim import Dim, bind_shape, bind_value
from magmadnn.graph.node import CONSTANT, PLACEHOLDER, SIZE, VARIABLE, Node, placeholder, rebuild
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory.dtypes import is_floating
from magmadnn.runtime import Executable

Array = NDArray[Any]
Updates = list[tuple[Node, Node]]

BATCH = Dim.symbol("batch")
WIDE = np.dtype(np.float64)
LARGEST = 700  # elements of a value
RUNS = 4  # disturbed runs
_EXACT = np.zeros(0), np.zeros(0)  # in place of limits: equal or wrong
SAFETY = 8.0  # the largest of few disturbances against the largest possible one
_SUMMING = (OpKind.REDUCTION, OpKind.CONTRACTION, OpKind.LIBRARY, OpKind.OTHER)
EXACT = {"maximum", "minimum", "max", "min", "negative", "abs", "where", "relu", "stop_gradient"}


@dataclass(frozen=True)
class Case:
    """A program and what it is run with.

    Attributes:
        outputs: what is computed.
        updates: (variable, new value).
        feeds: for each run, arrays by placeholder.
        rounded: the relative step of what is rounded to half precision on purpose, which is more than that of
            the values computed from it; 0 where nothing is.
    """

    outputs: list[Node]
    updates: Updates
    feeds: list[dict[Node, Array]]
    rounded: float = 0.0

    @property
    def program(self) -> Program:
        return Program.of(self.outputs, self.updates, training=True)

    def text(self) -> str:
        """The graph, and the shapes that are fed."""
        values = [value for _, value in self.updates]
        lines = [md.graph.show(*self.outputs, *values)]
        lines += [
            f"{t.name} := output {len(self.outputs) + k}" for k, (t, _) in enumerate(self.updates)
        ]
        lines += [
            "fed " + ", ".join(f"{n.name} {a.shape} {a.strides}" for n, a in feeds.items())
            for feeds in self.feeds
        ]
        return "\n".join(lines)


# --- how far results may be off -------------------------------------------------------------------


def eps_of(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number."""
    return float(ml_dtypes.finfo(dtype).eps)


def sizes_of(feeds: Mapping[Node, Array]) -> dict[str, int]:
    return {
        str(size): n
        for node, array in feeds.items()
        for size, n in zip(node.shape, array.shape, strict=True)
        if isinstance(size, Dim) and size.is_symbol
    }


def evaluate(
    nodes: Sequence[Node],
    feeds: Mapping[Node, Array],
    known: Mapping[Node, Array],
    rng: np.random.Generator | None,
) -> dict[Node, Array]:
    """Every value in float64; with `rng`, disturbed by rounding."""
    sizes = sizes_of(feeds)
    values = dict(known)
    for node in nodes:
        if node not in values:
            values[node] = _evaluated(node, feeds, values, sizes, rng)
    return values


def _evaluated(
    node: Node,
    feeds: Mapping[Node, Array],
    values: Mapping[Node, Array],
    sizes: Mapping[str, int],
    rng: np.random.Generator | None,
) -> Array:
    if not isinstance(node.op, Op):
        value = _leaf(node, feeds, sizes)
        return value.astype(WIDE) if is_floating(value.dtype) else value
    if is_loop(node):
        return _looped(node, feeds, values, sizes, rng)
    if is_result(node):
        found: Array = values[node.inputs[0]][node.attributes["index"]]
        return found
    attributes = {key: bind_value(value, sizes) for key, value in node.attributes.items()}
    wide = is_floating(node.dtype)
    dtype = WIDE if wide and node.op.kind is not OpKind.RANDOM else node.dtype
    if dtype is WIDE:
        attributes = {k: WIDE if _is_float(v) else v for k, v in attributes.items()}
    operands = [values[i] for i in node.inputs]
    quiet = rng is None or not wide or node.op.name in EXACT or node.op.kind is OpKind.RANDOM
    if not quiet and node.op.kind in _SUMMING:
        terms = max((x.size for x in operands), default=1)
        unit = eps_of(node.dtype) * (1 + math.sqrt(terms))
        operands = [_disturbed(x, unit, rng) for x in operands]
    value = node.op.forward(operands, attributes, dtype)
    value = value.astype(WIDE) if wide else value
    if not quiet and node.op.kind is not OpKind.MOVEMENT:
        value = _disturbed(value, 4 * eps_of(node.dtype), rng)
    return value


def _looped(
    node: Node,
    feeds: Mapping[Node, Array],
    values: Mapping[Node, Array],
    sizes: Mapping[str, int],
    rng: np.random.Generator | None,
) -> Any:
    """All results of a loop, by their numbers."""
    body, operands = body_of(node), [values[i] for i in node.inputs]
    count, taken = len(body.carried), len(body.carried) + len(body.sliced)
    carried, stacked, same = operands[:count], operands[count:taken], operands[taken:]
    steps = list(range(bind_value(node.attributes["length"], sizes)))
    kept: list[dict[int, Array]] = [{} for _ in body.kept]
    for step in reversed(steps) if node.attributes["reverse"] else steps:
        given = [*carried, *(x[step] for x in stacked), *same]
        known = dict(zip(body.inputs, given, strict=True))
        found = evaluate(body.program.nodes(), feeds, known, rng)
        for of_steps, one in zip(kept, body.kept, strict=True):
            of_steps[step] = found[one] if one in found else known[one]
        carried = [found[one] for one in body.new]
    shapes = [bind_shape(one.shape, sizes) for one in body.kept]
    stacks = [
        np.stack([of_steps[step] for step in steps]) if steps else np.zeros((0, *shape))
        for of_steps, shape in zip(kept, shapes, strict=True)
    ]
    return [*carried, *stacks]


def _leaf(node: Node, feeds: Mapping[Node, Array], sizes: Mapping[str, int]) -> Array:
    if node.op is CONSTANT:
        return np.asarray(node.value)
    if node.op is SIZE:
        return np.asarray(node.attributes["dim"].bind(sizes), node.dtype)
    return feeds[node] if node.op is PLACEHOLDER else np.array(node.value.read())


def _is_float(value: object) -> bool:
    return isinstance(value, np.dtype) and is_floating(value)


def _disturbed(x: Array, unit: float, rng: np.random.Generator | None) -> Array:
    if rng is None or not is_floating(x.dtype):
        return x
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(x * (1 + unit * rng.choice([-1.0, 1.0], x.shape)))


def bound(
    node: Node, exact: Array, disturbed: Sequence[Array], rounded: float = 0.0
) -> Array | None:
    """How far a value may be from the exact one; None where it hangs on a rounding (see `Case.rounded`)."""
    if not is_floating(node.dtype):
        return (
            None if any(not np.array_equal(exact, d) for d in disturbed) else np.zeros(exact.shape)
        )
    finite = np.isfinite(exact)
    for d in disturbed:
        if not np.array_equal(np.isfinite(d), finite):
            return None
    scale = np.abs(np.where(finite, exact, 0))
    off = max(
        (float(np.abs(d[finite] - exact[finite]).max(initial=0)) for d in disturbed), default=0.0
    )
    eps = eps_of(node.dtype)
    most = max(2000 * eps, 30 * rounded) * max(1.0, float(scale.max(initial=0)))
    if scale.max(initial=0) > 1e6 or off > most:
        return None
    return np.asarray(SAFETY * (off + eps * scale) + 1e-30)


# --- running --------------------------------------------------------------------------------------


def variables_of(case: Case) -> list[Node]:
    return [n for n in case.program.nodes() if n.op is VARIABLE] + [t for t, _ in case.updates]


def ran(
    case: Case, executor: str, start: Mapping[Node, Array], device: str = "cpu"
) -> list[list[Array]]:
    """Outputs and new values of variables, for each of the feeds; each from the same start."""
    executable = Executable(
        case.outputs,
        case.updates,
        training=True,
        executor=executor,
        device=device,
        check=executor == "native",
    )
    found = []
    for feeds in case.feeds:
        for node, value in start.items():
            node.value.write(value)
        outputs = executable.run(feeds)
        found.append([*outputs, *(np.array(t.value.read()) for t, _ in case.updates)])
    for node, value in start.items():
        node.value.write(value)
    return found


def fault(case: Case, device: str = "cpu", exact: bool = False) -> str | None:
    """What differs between native and reference; None where nothing does.

    Args:
        case: what is run.
        device: the native executor's.
        exact: whether results must be equal; otherwise, as far off as their roundings may make them.
    """
    start = {node: np.array(node.value.read()) for node in variables_of(case)}
    try:
        expected = ran(case, "reference", start)
        limits = [
            [_EXACT] * len(case.program.roots) if exact else limits_of(case, feeds)
            for feeds in case.feeds
        ]
    except MagmaDNNError:
        return None
    finally:
        for node, value in start.items():
            node.value.write(value)
    try:
        got = ran(case, "native", start, device)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {error}"
    for run, (wanted, have, limit) in enumerate(zip(expected, got, limits, strict=True)):
        for k, (a, b, within) in enumerate(zip(wanted, have, limit, strict=True)):
            if (why := difference(a, b, within)) is not None:
                return f"run {run}, result {k}: {why}"
    return None


def limits_of(case: Case, feeds: Mapping[Node, Array]) -> list[tuple[Array, Array] | None]:
    """For each result the exact value and how far it may be off; None where that cannot be told."""
    program = case.program
    nodes = program.nodes()
    exact = evaluate(nodes, feeds, {}, None)
    others = [evaluate(nodes, feeds, {}, np.random.default_rng(k)) for k in range(RUNS)]
    limits = {
        n: bound(n, exact[n], [o[n] for o in others], case.rounded) for n in nodes if not is_loop(n)
    }
    if any(limits[n] is None or _is_undefined(n, exact) for n in limits):
        return [None] * len(program.roots)
    return [(exact[n], limits[n]) for n in program.roots]  # type: ignore[misc]


def _is_undefined(node: Node, values: Mapping[Node, Array]) -> bool:
    """Whether a number becomes an integer that cannot hold it: then any integer is right."""
    if is_floating(node.dtype) or node.dtype == np.bool_ or not node.inputs:
        return False
    limits, source = np.iinfo(node.dtype), values[node.inputs[0]]
    if not is_floating(node.inputs[0].dtype):
        return False
    return not bool(((source > limits.min) & (source < limits.max)).all())


def difference(wanted: Array, have: Array, limit: tuple[Array, Array] | None) -> str | None:
    """Why a native result is wrong."""
    if wanted.shape != have.shape or wanted.dtype != have.dtype:
        return f"expected {wanted.dtype} {wanted.shape}, got {have.dtype} {have.shape}"
    if limit is None:
        return None
    if limit is _EXACT:
        return _inequality(wanted, have)
    a, b = (x.astype(WIDE) for x in (wanted, have))
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return f"NaN elsewhere: expected {wanted}, got {have}"
    special = ~np.isfinite(a) | ~np.isfinite(b)
    if not np.array_equal(a[special], b[special], equal_nan=True):
        return f"infinity elsewhere: expected {wanted}, got {have}"
    exact, within = limit
    with np.errstate(invalid="ignore"):
        off = np.where(special, 0, np.minimum(np.abs(b - exact.astype(WIDE)), np.abs(b - a)))
    if (off > within).any():
        at = np.unravel_index(int(np.argmax(off - within)), off.shape)
        return f"at {at}: expected {a[at]}, got {b[at]}, off by {off[at]:.3g}, allowed {within[at]:.3g}"
    return None


def _inequality(wanted: Array, have: Array) -> str | None:
    """Where two arrays of one shape and dtype are not equal, NaN or not NaN, zeros of any sign."""
    same = (wanted == have) | ((wanted != wanted) & (have != have))
    if same.all():
        return None
    at = tuple(int(k) for k in np.argwhere(~same)[0])
    return f"{int((~same).sum())} of {same.size} differ, at {at}: expected {wanted[at]}, got {have[at]}"


# --- shrinking ------------------------------------------------------------------------------------


def shrunk(case: Case, device: str = "cpu", exact: bool = False) -> Case:
    """A smaller case that still fails: fewer results, or earlier ones; fewer runs; more values fed."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(case):
            if len(candidate.program.roots) and fault(candidate, device, exact) is not None:
                case, smaller = candidate, True
                break
    return case


def _smaller(case: Case) -> Any:
    for k in range(len(case.feeds) if len(case.feeds) > 1 else 0):
        yield replace(case, feeds=case.feeds[:k] + case.feeds[k + 1 :])
    for k in range(len(case.outputs)):
        yield replace(case, outputs=case.outputs[:k] + case.outputs[k + 1 :])
    for k in range(len(case.updates)):
        yield replace(case, updates=case.updates[:k] + case.updates[k + 1 :])
    program = case.program
    for node in program.nodes():
        if isinstance(node.op, Op) and node.inputs and node not in program.roots:
            used = set(Program.of([node]).nodes())
            feeds = [_only(fed, used) for fed in case.feeds]
            yield replace(case, outputs=[node], updates=[], feeds=feeds)
    base = replace(case, outputs=list(program.outputs), updates=list(program.updates))
    for node in reversed(program.nodes()):
        is_inner = isinstance(node.op, Op) and node.inputs and node not in program.roots
        if is_inner and not is_loop(node):
            if (cut := _cut(base, node)) is not None:
                yield cut


def _cut(case: Case, node: Node) -> Case | None:
    """The case with a node fed."""
    fresh = placeholder(f"v{len(case.program.nodes())}", Spec(node.shape, node.dtype))
    before = case.program.nodes()
    feeds = []
    for fed in case.feeds:
        value = evaluate(before, fed, {}, None)[node].astype(node.dtype)
        feeds.append({**fed, fresh: value})
    values = rebuild([*case.outputs, *(v for _, v in case.updates)], {node: fresh})
    count = len(case.outputs)
    targets = [t for t, _ in case.updates]
    updates = list(zip(targets, values[count:], strict=True))
    made = replace(case, outputs=values[:count], updates=updates, feeds=feeds)
    used = set(made.program.nodes())
    made = replace(made, feeds=[_only(fed, used) for fed in made.feeds])
    return made if len(used) < len(before) else None


def _only(feeds: dict[Node, Array], used: set[Node]) -> dict[Node, Array]:
    kept = {n: a for n, a in feeds.items() if n in used}
    symbols = set().union(*(d.symbols for n in used for d in n.shape if isinstance(d, Dim)), set())
    for node, array in feeds.items():  # something must tell the sizes
        if symbols - set(sizes_of(kept)):
            kept[node] = array
    return kept


__all__ = ["BATCH", "Callable", "Case", "bind_shape", "fault", "gradient", "ops", "shrunk"]
