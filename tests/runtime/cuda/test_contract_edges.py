"""Every op on a device at the edges of its contract: special values, layouts, sizes 0, 1 and unknown ones,
what it decomposes into, gradients in every precision.

What an op refuses it refuses when a graph is built, so devices have no part in that. All checks of an op are
outputs of few programs, since each costs a compilation: with g++ on the emulated device, where the usual run
has a few ops. The processor's kernels are held to the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.op import NoGradient, Op, OpKind
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory.dtypes import DTYPES, is_floating
from magmadnn.runtime import Executable
from tests.ops import test_contract_sizes as odd
from tests.ops.contract_cases import (
    BUILT_IN,
    EPS,
    EXACT,
    FLOATS,
    LAYOUTS,
    Array,
    Case,
    assert_matches,
    bits,
    cases,
    error_bound,
)
from tests.ops.test_special_values import ROWS, SOFTMAX, specials
from tests.runtime.cuda.devices import DEVICES, on

Feeds = dict[Node, Array]
EMULATED, GPU = DEVICES
USUAL = ("remainder",)
CPU = pytest.param("cpu")
LATER_CPU = pytest.param("cpu", marks=pytest.mark.long)
LATER = pytest.param("emulated", marks=[*EMULATED.marks, pytest.mark.long])
EACH = [
    pytest.param(op, *device.values, id=f"{op.name}-{device.values[0]}", marks=device.marks)
    for op in BUILT_IN.values()
    for device in ((CPU, EMULATED, GPU) if op.name in USUAL else (LATER_CPU, LATER, GPU))
]
every_op = pytest.mark.parametrize(("op", "device"), EACH)


def run(device: str, nodes: list[Node], *fed: Feeds) -> list[list[Array]]:
    """The values of nodes on a device, for each of the feeds."""
    where = "cpu" if device == "cpu" else "cuda"
    with nullcontext() if device == "cpu" else on(device):
        program = Executable(nodes, executor="native", device=where)
        return [[np.array(x) for x in program.run(feeds)] for feeds in fed]


def on_graph(case: Case, name: str) -> tuple[Node, Feeds]:
    inputs = [
        placeholder(f"{name}_{k}", Spec(x.shape, x.dtype)) for k, x in enumerate(case.operands)
    ]
    node = case.op(*case.listed(list(inputs)), **case.attributes)
    return node, dict(zip(inputs, case.operands, strict=True))


# --- special values ---------------------------------------------------------------------------------


def special_cases(op: Op, dtype: str) -> Iterator[Case]:
    """NaN, infinities, zeros of both signs, subnormal and largest numbers, alone and in pairs."""
    x = specials(dtype)
    kind = x.dtype
    if op.kind is OpKind.MOVEMENT:
        for case in cases(op, dtype):
            filled = [np.resize(x, y.shape) if y.dtype == kind else y for y in case.operands]
            yield case._replace(operands=filled)
    elif op.kind is OpKind.REDUCTION or op.name == "cumsum":
        yield Case(op, [ROWS.astype(kind)], {"axis": 1})
    elif op.kind is OpKind.POINTWISE:
        pair = [x[:, None], x[None, :]]
        attributes = {"dtype": "float64"} if op.name == "cast" else {}
        if op.name == "where":
            yield Case(op, [np.arange(x.size)[:, None] % 3 > 0, *pair], {})
        elif op.name in ("prelu", "gaussian_rbf"):
            yield Case(op, [x, np.full_like(x, 0.25)], {})
        elif op.name == "_after":
            yield Case(op, [x, np.full((), 2, kind)], {})
        elif op.name == "_clip":
            yield Case(op, [x, np.full_like(x, -3), np.full_like(x, 3)], {})
        else:
            yield Case(op, [x] if len(op.args) == 1 else pair, attributes)


def plain_nan(x: Array) -> Array:
    """With one NaN for all: half precision moves as float32, which changes the digits of NaN."""
    return np.where(np.isnan(x), x.dtype.type(np.nan), x) if is_floating(x.dtype) else x


def assert_special(case: Case, result: Array) -> None:
    """What the processor's NumPy says: finite numbers within the op's bound, everything else exactly."""
    with np.errstate(all="ignore"):
        expected = case.run()
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype), case
        if case.op.kind is OpKind.MOVEMENT:
            assert bits(plain_nan(result)) == bits(plain_nan(expected)), case
            return
        got, wanted = result.astype(np.float64), expected.astype(np.float64)
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(got[~finite], wanted[~finite], err_msg=str(case))
        rows = case.attributes.get("axis") == 1 and case.op.name not in ("softmax", "log_softmax")
        # sums of small whole numbers round nowhere
        exact = rows or case.op.name in EXACT or not is_floating(expected.dtype)
        # NumPy's result and this one are each within the bound of the true one
        bound = 0 if exact else 2 * error_bound(case, wanted, expected.dtype.name)
        bound = np.where(np.isnan(bound), 0, bound)  # of 0 * inf: exp(-inf) is 0
        off = np.abs(got - wanted)
        assert (off <= bound)[finite].all(), (case, off, bound)
        zeros = finite & (wanted == 0)  # the larger or smaller of -0.0 and 0.0 may be either
        if case.op.name not in ("relu", "elu", "maximum", "minimum", "max", "min"):
            assert (np.signbit(got) == np.signbit(wanted))[zeros].all(), case


@every_op
def test_special_values(op: Op, device: str) -> None:
    found = [case for dtype in FLOATS for case in special_cases(op, dtype)]
    if not found:
        return
    made = [on_graph(case, f"x{k}") for k, case in enumerate(found)]
    fed = {node: x for _, feeds in made for node, x in feeds.items()}
    (results,) = run(device, [node for node, _ in made], fed)
    for case, result in zip(found, results, strict=True):
        assert_special(case, result)


@pytest.mark.parametrize("device", [CPU, LATER, GPU])
def test_softmax_of_infinities(device: str) -> None:
    nodes, fed, wanted = list[Node](), Feeds(), list[Any]()
    for dtype in FLOATS:
        for number, (row, *values) in enumerate(SOFTMAX):
            x = placeholder(f"{dtype}_{number}", Spec((len(row),), DTYPES[dtype]))
            fed[x] = np.array(row).astype(DTYPES[dtype])
            nodes += [BUILT_IN[name](x) for name in ("softmax", "log_softmax")]
            wanted += [(dtype, np.array(value)) for value in values[:2]]
    (results,) = run(device, nodes, fed)
    for got, (dtype, value) in zip(results, wanted, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), value, rtol=2 * EPS[dtype])


# --- layouts, sizes, other ops of equal value ---------------------------------------------------------


@every_op
def test_layouts_small_sizes_and_other_ops_of_equal_value(op: Op, device: str) -> None:
    plain = cases(op, "float32")
    small = [Case(op, odd.drawn(op, s, 0), s.attributes) for s in odd.small_sizes(op)]
    made = [on_graph(case, f"x{k}") for k, case in enumerate([*plain, *small])]
    nodes = [node for node, _ in made]
    others = [_decomposed(node) for node in nodes[: len(plain)]]
    fed = {node: x for _, feeds in made for node, x in feeds.items()}
    turned = [
        {node: layout(x) if x.ndim and node.name.startswith("x") else x for node, x in fed.items()}
        for layout in LAYOUTS
    ]
    results = run(device, nodes + [node for node in others if node is not None], fed, *turned)
    for feeds, found in zip([fed, *turned], results, strict=True):
        cases_of = [
            case._replace(operands=[feeds[k] for k in given])
            for case, (_, given) in zip([*plain, *small], made, strict=True)
        ]
        for case, result in zip(cases_of, found[: len(nodes)], strict=True):
            expected = case.run()
            assert (result.shape, result.dtype) == (expected.shape, expected.dtype), case
            if result.size and not any(x.size == 0 for x in case.operands):
                assert_matches(case, result)
            else:  # sums and products of nothing
                np.testing.assert_array_equal(result, expected, err_msg=str(case))
        rest = [case for case, other in zip(cases_of, others, strict=False) if other is not None]
        for case, result in zip(rest, found[len(nodes) :], strict=True):
            assert_matches(case, result)


def _decomposed(node: Node) -> Node | None:
    assert isinstance(node.op, Op)
    return None if node.op.decompose is None else node.op.decompose(*node.inputs, **node.attributes)


@every_op
def test_sizes_unknown_while_the_graph_is_built(op: Op, device: str) -> None:
    """The op and its gradients, as one program run with batches of 1, 5 and 7."""
    nodes: list[Node] = []
    given: list[tuple[odd.Sizes, list[Node]]] = []
    for number, sizes in enumerate(odd.unknown_sizes(op)):
        inputs = [
            placeholder(f"x{number}_{k}", Spec(tuple(map(odd.dim, shape)), x.dtype))
            for k, (shape, x) in enumerate(zip(sizes.shapes, odd.drawn(op, sizes, 1), strict=True))
        ]
        node = op(*Case(op, [], {}).listed(list(inputs)), **sizes.attributes)
        nodes += [node, *odd.slopes(op, node, [x for x in inputs if x.dtype == np.float64])]
        given.append((sizes, inputs))
    if not nodes:
        return
    fed = [
        {odd.ROWS: np.zeros(batch)}
        | {
            node: x
            for sizes, inputs in given
            for node, x in zip(inputs, odd.drawn(op, sizes, batch), strict=True)
        }
        for batch in odd.SIZES
    ]
    reference = Executable(nodes)
    for feeds, found in zip(fed, run(device, nodes, *fed), strict=True):
        for got, expected in zip(found, reference.run(feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12, err_msg=op.name)


# --- gradients ----------------------------------------------------------------------------------------

# Of the largest: a few dozen roundings in float32 and float64; with half precision each op rounds, and
# what is nearly half-way may go either way.
ALLOWED = {"float32": 64 * EPS["float32"], "float16": 8 * EPS["float16"],
           "bfloat16": 8 * EPS["bfloat16"]}  # fmt: skip


@every_op
def test_gradients_of_less_precision(op: Op, device: str) -> None:
    """Of the sum of each sample's result, as the reference executor has them; float64: test_contracts."""
    nodes: list[Node] = []
    fed: Feeds = {}
    if isinstance(op.vjp, NoGradient):
        return
    for dtype in ALLOWED:
        for number, case in enumerate(cases(op, dtype)):
            node, feeds = on_graph(case, f"{dtype}_{number}")
            real = [x for x in feeds if x.dtype == DTYPES[dtype]]
            if node.dtype == DTYPES[dtype] and real:
                nodes += gradient(BUILT_IN["sum"](node), real)
                fed |= feeds
    if not nodes:
        return
    with np.errstate(all="ignore"):
        expected = Executable(nodes).run(fed)
    (found,) = run(device, nodes, fed)
    for got, wanted in zip(found, expected, strict=True):
        exact = wanted.astype(np.float64)
        scale = max(1.0, float(np.abs(exact).max(initial=0)))
        allowed = ALLOWED[wanted.dtype.name] * scale
        assert (np.abs(got.astype(np.float64) - exact) <= allowed).all(), (op.name, wanted.dtype)
