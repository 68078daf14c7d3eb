"""Pooling of padded images: on the CPU no pad is stored; no half becomes float32."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.plan.planning import ON_GPUS, native_plan
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from tests.compiler.sample_programs import BATCH
from tests.ops.contract_cases import Array
from tests.runtime.cuda.devices import DEVICES, on
from tests.runtime.cuda.emulator import needs_compiler


class Case(NamedTuple):
    """An image's places and channels, and its windows."""

    places: tuple[int, ...]
    channels: int
    size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]


CASES = [
    Case((13, 11), 37, (3, 3), (2, 2), ((1, 1), (1, 1))),
    Case((7, 12), 32, (3, 3), (1, 1), ((1, 1), (1, 1))),
    Case((8, 9), 48, (5, 2), (3, 1), ((4, 2), (0, 1))),
    Case((6, 7), 33, (2, 4), (3, 5), ((1, 0), (3, 3))),  # strides larger than windows
    Case((1, 2), 64, (3, 3), (1, 2), ((1, 2), (2, 2))),  # places of windows at which none is x's
    Case((17,), 41, (4,), (2,), ((3, 3),)),
    Case((19,), 32, (3,), (1,), ((0, 2),)),
    Case((4, 5), 32, (1, 1), (2, 1), ((0, 0), (0, 0))),  # nothing to choose
]


def direct(x: Array, w: Array, case: Case, count_padding: bool) -> list[Array]:
    """Largest, means, and the gradients of the sums of either times w; in float64, by padded windows."""
    axes = tuple(range(1, x.ndim - 1))
    widths = ((0, 0), *case.padding, (0, 0))
    step = (slice(None), *(slice(None, None, s) for s in case.strides))

    def seen(value: Array) -> Array:
        views = np.lib.stride_tricks.sliding_window_view(value, case.size, axes)[step]
        return views.reshape(*views.shape[: x.ndim], -1)

    values = seen(np.pad(x, widths, constant_values=-np.inf))
    inside = seen(np.pad(np.ones(x.shape), widths))
    numbers = seen(np.pad(np.arange(x.size).reshape(x.shape), widths, constant_values=-1))
    first = np.where(inside > 0, values, -np.inf).argmax(-1)[..., None]
    largest = np.take_along_axis(values, first, -1)[..., 0]
    counts = math.prod(case.size) if count_padding else inside.sum(-1)
    means = np.where(inside > 0, values, 0).sum(-1) / counts
    of_largest, of_means = np.zeros(x.size), np.zeros(x.size + 1)
    np.add.at(of_largest, np.take_along_axis(numbers, first, -1)[..., 0], w)
    np.add.at(of_means, numbers, np.broadcast_to((w / counts)[..., None], numbers.shape))
    return [largest, means, of_largest.reshape(x.shape), of_means[:-1].reshape(x.shape)]


def programs(case: Case, dtype: str, count_padding: bool) -> tuple[Node, Node, list[Node]]:
    """X, the weights, and what `direct` gives."""
    x = placeholder("x", Spec((BATCH, *case.places, case.channels), as_dtype(dtype)))
    geometry: dict[str, Any] = {
        "size": case.size, "strides": case.strides, "padding": case.padding
    }  # fmt: skip
    values = [
        ops.max_pooling(x, **geometry),
        ops.average_pooling(x, **geometry, count_padding=count_padding),
    ]
    w = placeholder("w", Spec(values[0].shape, as_dtype(dtype)))
    return x, w, [*values, *(gradient((y * w).sum(), [x])[0] for y in values)]


def drawn(node: Node, batch: int, seed: int) -> Array:
    """Eighths below 2 by size, of which many are equal: sums of a few are exact in every dtype."""
    numbers = np.random.default_rng(seed).integers(-8, 9, (batch, *node.shape[1:])) / 8.0
    return numbers.astype(node.dtype)


def check(case: Case, dtype: str, count_padding: bool, **more: Any) -> int:
    x, w, nodes = programs(case, dtype, count_padding)
    run = Executable(nodes, executor="native", check=True, **more)
    for batch in (3, 1):
        fed = {x: drawn(x, batch, 1), w: drawn(w, batch, 2)}
        wide = (fed[n].astype(np.float64) for n in (x, w))
        digits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[dtype]
        for k, (got, want) in enumerate(
            zip(run.run(fed), direct(*wide, case, count_padding), strict=True)
        ):
            if k == 0:
                np.testing.assert_array_equal(got.astype(np.float64), want)
            else:  # means and sums of up to 10 terms of at most 1, a rounding each, and one of the result
                bound = 2.0**-digits * (2 * np.abs(want) + (0 if digits < 23 else 11))
                assert (np.abs(got.astype(np.float64) - want) <= bound + 2.0**-20).all(), (case, k)
    return 8


DTYPES = ["float32", "float64", "float16", "bfloat16"]


@pytest.mark.parametrize(  # float64 and one of the halves for every second case, all with --all
    ("case", "dtype"),
    [
        pytest.param(case, dtype, marks=() if turn == 0 or (k + turn) % 2 else pytest.mark.long)
        for k, case in enumerate(CASES)
        for turn, dtype in enumerate(DTYPES)
    ],
)
def test_values_and_gradients(case: Case, dtype: str, checked: Callable[[int], None]) -> None:
    for count_padding in (False, True) if dtype == "float32" else (False,):
        checked(check(case, dtype, count_padding))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(  # each case in one dtype, all of them with --all
    ("case", "dtype"),
    [
        pytest.param(case, dtype, marks=() if turn == k % 2 else pytest.mark.long)
        for k, case in enumerate([CASES[k] for k in (0, 1, 4, 5, 6)])
        for turn, dtype in enumerate(["float32", "bfloat16"])
    ],
)
def test_on_a_device(case: Case, dtype: str, device: str) -> None:
    """As it is on it, and on the emulated one also with all pads found by indices."""
    for functions in (frozenset[str](), frozenset({"indexed pads"})):
        if device == "gpu" and functions:
            return
        with on(device, functions):
            check(case, dtype, False, device="cuda")


@pytest.mark.parametrize("rounding", [True, False])
@pytest.mark.parametrize(  # which of the halves, and of the others, makes no difference to a plan
    "dtype", [d if d in DTYPES[::3] else pytest.param(d, marks=pytest.mark.long) for d in DTYPES]
)
@pytest.mark.parametrize("case", CASES)
def test_no_pad_is_stored(case: Case, dtype: str, rounding: bool) -> None:
    """Where pads are found by indices, whether or not kernels round as they read.

    Nor what is made of one place of the windows, which the kernel that reads the others makes too: whether it
    is NaN, which windows chose it.
    """
    x, w, (largest, mean, of_largest, of_mean) = programs(case, dtype, True)
    for y, g in ((largest, of_largest), (mean, of_mean)):
        plan = native_plan(Program.of([y, g]), check=True, rounding=rounding)
        assert {work.region.kind.value for work in plan.work} == {"rows"}
        stored = {
            node.dtype for work in plan.work if work.lowered for _, node, _ in work.lowered.writes
        }
        assert stored <= {x.dtype, np.dtype(np.uint8)}
        assert x in Program.of([y, g]).nodes() and w in Program.of([g]).nodes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_stored_pads_have_the_dtype_of_what_is_padded(dtype: str) -> None:
    """As on a GPU: one for x, and in the gradient one for what windows chose and one for what they get."""
    x, _, (largest, _, of_largest, _) = programs(CASES[1], dtype, True)
    plan = native_plan(
        Program.of([largest, of_largest]), check=True, rounding=False, libraries=frozenset()
    )
    made = [w.region.nodes[0].dtype for w in plan.work if w.region.kind.value == "move"]
    assert sorted(map(str, made)) == sorted([str(x.dtype), str(x.dtype), "uint8"])


def test_where_a_gpu_finds_pads_by_indices() -> None:
    """Sequences with strides, and means of images with strides, but not what their gradients add up."""

    def stored(places: tuple[int, ...], strides: int, of: Callable[..., Any]) -> tuple[int, int]:
        x = placeholder("x", Spec((2, *places, 32), np.dtype(np.float32)))
        y = of(x, 3, strides, padding=1)
        (g,) = gradient(y.sum(), [x])
        plans = (native_plan(Program.of([n]), rounding=False, libraries=ON_GPUS) for n in (y, g))
        kinds = [[work.region.kind.value for work in plan.work] for plan in plans]
        return kinds[0].count("move"), kinds[1].count("move")

    for of in (ops.max_pooling, ops.average_pooling):
        assert stored((9,), 2, of) == (0, 0)
        assert stored((9,), 1, of)[0] == stored((9, 9), 1, of)[0] == 1
    assert stored((9, 9), 2, ops.max_pooling)[0] == 1
    first, second = stored((9, 9), 2, ops.average_pooling)
    assert first == 0 and second > 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_values_as_small_as_the_padding(dtype: str) -> None:
    """The largest of nothing but -inf is the first of x, not what is around it."""
    for places in itertools.product((2, 5), repeat=2):
        x = placeholder("x", Spec((1, *places, 40), as_dtype(dtype)))
        index = ops.max_pooling_indices(x, 3, 1, padding=1)
        (g,) = gradient(ops.max_pooling(x, 3, 1, padding=1).sum(), [x])
        fed = {x: np.full(x.shape, -np.inf, x.dtype)}
        first, found = Executable([index, g], executor="native", check=True).run(fed)
        rows, columns = ([1, *[0] * (n - 1)] for n in places)
        wanted = [[3 * a + b for b in columns] for a in rows]
        assert first[0, ..., 7].tolist() == wanted
        assert found.astype(np.float64).sum() == fed[x].size


@needs_compiler
@pytest.mark.parametrize("rounding", [True, False])
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_what_is_rounded_first_is_no_float32_in_memory(half: str, rounding: bool) -> None:
    """As in mixed precision: a value that others want in halves, and pooling in float32 with their digits."""
    x = placeholder("x", Spec((BATCH, 9, 8, 40), np.dtype(np.float32)))
    halves = ops.cast(ops.relu(x), half)
    y = ops.max_pooling(ops.cast(halves, "float32"), 3, 1, padding=1)
    mean = ops.average_pooling(ops.cast(halves, "float32"), 3, 2, padding=1)
    plan = native_plan(Program.of([halves, y, mean]), check=True, rounding=rounding)
    assert {work.region.kind.value for work in plan.work} == {"rows"}
    stored = [node for work in plan.work if work.lowered for _, node, _ in work.lowered.writes]
    whole = [node for node in stored if node.shape == x.shape]
    assert [node.dtype.name for node in whole] in ([half, "float32"], ["float32", half])  # and y
    more = {} if rounding else {"device": "cuda"}
    fed = np.random.default_rng(3).standard_normal((3, *x.shape[1:])).astype(np.float32)
    wide = np.maximum(fed, 0).astype(as_dtype(half)).astype(np.float64)
    case = Case((9, 8), 40, (3, 3), (1, 1), ((1, 1), (1, 1)))
    with on("emulated") if more else nullcontext():
        run = Executable([halves, y, mean], executor="native", check=True, **more)
        _, largest, means = run.run({x: fed})
    np.testing.assert_array_equal(largest, direct(wide, np.zeros(largest.shape), case, False)[0])
    case = case._replace(strides=(2, 2))
    wanted = direct(wide, np.zeros(means.shape), case, False)[1]
    np.testing.assert_allclose(means, wanted, rtol=1e-6, atol=1e-7)
