"""Random poolings against loops over windows: values, gradients, second gradients; and what is compiled."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.op import REGISTRY
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable
from tests.ops.contract_cases import Array

EPS = 2.0**-52
TOGETHER = 13  # poolings of one program
PROGRAMS, USUAL = 40, 12  # of which the usual run has some


class Pooling(NamedTuple):
    """A random pooling of random numbers."""

    x: Array
    size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: Any
    count_padding: bool

    @property
    def pads(self) -> list[tuple[int, int]]:
        if self.padding == "same":
            totals = [
                max((math.ceil(n / s) - 1) * s + k - n, 0)
                for n, k, s in zip(self.x.shape[1:-1], self.size, self.strides, strict=True)
            ]
            return [(t // 2, t - t // 2) for t in totals]
        return [(0, 0)] * len(self.size) if self.padding == "valid" else list(self.padding)

    @property
    def geometry(self) -> dict[str, Any]:
        return {"size": self.size, "strides": self.strides, "padding": self.padding}

    def __str__(self) -> str:  # without the numbers: to write them takes longer than to pool them
        return f"pooling of {self.x.shape} by {self.geometry}, {self.count_padding=}"


def drawn(rng: np.random.Generator) -> Pooling:
    axes = int(rng.integers(1, 4))
    size = tuple(map(int, rng.integers(1, 5 if axes < 3 else 4, axes)))
    strides = tuple(map(int, rng.integers(1, 5, axes))) if rng.integers(3) else size
    pads = tuple((int(rng.integers(k)), int(rng.integers(k))) for k in size)
    padding = ["valid", "same", pads, pads][rng.integers(4)]
    least = [
        k if padding == "valid" else max(k - sum(p), 1) for k, p in zip(size, pads, strict=True)
    ]
    places = [int(n + rng.integers(6 if axes < 3 else 3)) for n in least]
    shape = (int(rng.integers(1, 3)), *places, int(rng.integers(1, 10)))
    x = rng.permutation(math.prod(shape)) / 8.0 - 3.0  # no two are equal
    if rng.integers(3) == 0:  # as behind ReLU: many are, and the first of them counts
        x = np.maximum(np.floor(x / 8.0) % 3.0 - 1.0, 0.0)
    return Pooling(x.reshape(shape), size, strides, padding, bool(rng.integers(2)))


def windows(case: Pooling) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """Each window, and the places of x in it, row by row."""
    places = case.x.shape[1:-1]
    starts = [
        range(-a, n + b - k + 1, s)
        for n, k, s, (a, b) in zip(places, case.size, case.strides, case.pads, strict=True)
    ]
    for window in itertools.product(*(range(len(r)) for r in starts)):
        spans = [
            range(max(r[i], 0), min(r[i] + k, n))
            for r, i, k, n in zip(starts, window, case.size, places, strict=True)
        ]
        yield window, list(itertools.product(*spans))


def pooled(case: Pooling, weights: dict[str, Array]) -> dict[str, Array]:
    """Values, and gradients of `sum(weights * values)`, number by number."""
    x = case.x
    found = {name: np.zeros(w.shape) for name, w in weights.items()}
    found |= {f"{name}/x": np.zeros(x.shape) for name in weights}
    for n, c in itertools.product(range(x.shape[0]), range(x.shape[-1])):
        for window, places in windows(case):
            at = (n, *window, c)
            held = [(n, *place, c) for place in places]
            top = max(held, key=lambda place: x[place])  # the first of the largest
            found["max"][at] = x[top]
            found["max/x"][top] += weights["max"][at]
            count = math.prod(case.size) if case.count_padding else len(held)
            found["average"][at] = math.fsum(x[place] for place in held) / count
            for place in held:
                found["average/x"][place] += weights["average"][at] / count
    return found


def programs(case: Pooling, rng: np.random.Generator) -> tuple[dict[str, Node], Any, Any]:
    """Nodes of values and gradients, what is fed, and the weights."""
    x = placeholder("x", Spec(case.x.shape, np.dtype(np.float64)))
    values = {
        "max": ops.max_pooling(x, **case.geometry),
        "average": ops.average_pooling(x, **case.geometry, count_padding=case.count_padding),
    }
    weights = {name: rng.normal(size=node.shape) for name, node in values.items()}
    nodes = dict(values)
    for name, node in values.items():
        (nodes[f"{name}/x"],) = gradient((node * weights[name]).sum(), [x])
    return nodes, {x: case.x}, weights


def kernels(nodes: list[Node]) -> list[str]:
    return [work.region.kind.value for work in native_plan(Program.of(nodes)).work]


@pytest.mark.parametrize(
    "seed",
    [*range(USUAL), *(pytest.param(k, marks=pytest.mark.long) for k in range(USUAL, PROGRAMS))],
)
def test_random_poolings(seed: int, checked: Callable[[int], None]) -> None:
    rng = np.random.default_rng(seed)
    nodes: list[Node] = []
    feeds: dict[Node, Array] = {}
    wanted: list[tuple[str, Pooling, Array]] = []
    for _ in range(TOGETHER):
        case = drawn(rng)
        made, fed, weights = programs(case, rng)
        loops = pooled(case, weights)
        nodes += made.values()
        feeds |= fed
        wanted += [(name, case, loops[name]) for name in made]
    for executor in ("native", "reference"):
        run = Executable(nodes, executor=executor, check=True)
        for got, (name, case, expected) in zip(run.run(feeds), wanted, strict=True):
            if name == "max":
                np.testing.assert_array_equal(got, expected, err_msg=str(case))
            else:  # sums of up to 64 terms, each a rounding off, of sizes below 4
                largest = max(np.abs(case.x).max(), 4.0)
                bound = 66 * EPS * 64 * largest
                np.testing.assert_allclose(
                    got, expected, rtol=0, atol=bound, err_msg=f"{name} {case}"
                )
            checked(1)
    assert not {"call"} & {*kernels(nodes)}  # nothing is left to NumPy


@pytest.mark.parametrize("seed", range(12))
def test_second_gradients(seed: int, checked: Callable[[int], None]) -> None:
    """Along a direction, against differences of gradients; max pooling is linear between its kinks."""
    rng = np.random.default_rng(seed + 1000)
    case = drawn(rng)
    case = case._replace(x=(rng.permutation(case.x.size) / 8.0).reshape(case.x.shape))
    x = placeholder("x", Spec(case.x.shape, np.dtype(np.float64)))
    u = placeholder("u", Spec(case.x.shape, np.dtype(np.float64)))
    direction = rng.normal(size=case.x.shape)
    for pool in (ops.max_pooling, ops.average_pooling):
        y = pool(x, **case.geometry)
        (first,) = gradient((y * y * y).sum(), [x])
        (second,) = gradient((first * u).sum(), [x])
        run = Executable([first, second], executor="native", check=True)
        _, found = run.run({x: case.x, u: direction})
        step = 2.0**-10
        ahead, behind = (
            run.run({x: case.x + s * step * direction, u: direction})[0] for s in (1, -1)
        )
        numeric = (ahead - behind) / (2 * step)
        scale = max(1.0, float(np.abs(numeric).max()))
        np.testing.assert_allclose(found, numeric, rtol=0, atol=1e-6 * scale)
        checked(1)


SPECIAL = [  # a window, its largest value, and the number of the first of those
    ([1.0, math.nan, 2.0, math.nan], math.nan, 1),
    ([-math.inf, -math.inf, -math.inf, -math.inf], -math.inf, 0),
    ([-0.0, 0.0, -0.0, 0.0], 0.0, 0),
    ([math.inf, 1.0, math.inf, 2.0], math.inf, 0),
]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize(("values", "largest", "number"), SPECIAL)
def test_special_values(
    values: list[float], largest: float, number: int, executor: str, dtype: str
) -> None:
    array = np.array(values).astype(
        Spec((), placeholder("x", Spec((), np.dtype(dtype))).dtype).dtype
    )
    array = array.reshape(1, 2, 2, 1)
    x = placeholder("x", Spec(array.shape, array.dtype))
    nodes = [ops.max_pooling(x, 2), ops.max_pooling_indices(x, 2)]
    found, index = Executable(nodes, executor=executor).run({x: array})
    np.testing.assert_array_equal(found.astype(np.float64).ravel(), [largest])
    assert index.ravel().tolist() == [number]


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_what_is_as_small_as_the_padding_comes_before_it(executor: str) -> None:
    for array in (np.full((1, 3, 3, 2), -math.inf), np.zeros((1, 3, 3, 2), np.uint8)):
        x = placeholder("x", Spec(array.shape, array.dtype))
        node = ops.max_pooling_indices(x, 3, 2, padding=1)
        (index,) = Executable([node], executor=executor).run({x: array})
        assert index[0, ..., 0].tolist() == [[4, 3], [1, 0]]


def test_windows_of_many_places_have_wide_numbers() -> None:
    x = np.zeros((1, 16, 17, 1))
    x[0, 15, 15] = 1.0
    assert ops.max_pooling_indices(x, (15, 17)).dtype == np.uint8
    found = ops.max_pooling_indices(x, 16)
    assert (found.dtype, found.ravel().tolist()) == (np.dtype(np.int32), [255])


# --- what is compiled -----------------------------------------------------------------------------


GEOMETRIES = [
    ({"size": 2}, 0, 0),
    ({"size": (3, 1), "strides": 1}, 0, 2),
    ({"size": 3, "strides": 2}, 0, 2),
    ({"size": 3, "strides": 2, "padding": "same"}, 1, 2),
]


@pytest.mark.parametrize(("geometry", "padded", "missing"), GEOMETRIES)
@pytest.mark.parametrize("places", [(12, 16), (13, 17)])
def test_nothing_is_gathered(
    places: tuple[int, int], geometry: Any, padded: int, missing: int
) -> None:
    """One kernel for values and numbers, one for the gradient and what follows it.

    Besides x, which has too few channels for rows of a kernel, is copied where it is padded, and values of
    windows where places belong to fewer of them at the edges (`test_padded_pooling.py` has more channels).
    Where the places at the end are no whole stride, a kernel of its own follows.
    """
    x = placeholder("x", Spec((3, *places, 5), np.dtype(np.float32)))
    y, index = ops.max_pooling(x, **geometry), ops.max_pooling_indices(x, **geometry)
    g = placeholder("g", Spec(y.shape, y.dtype))
    found = REGISTRY["_max_pooling_inputs"](g, index, places=places, **index.attributes)
    odd = places[0] % 2 and geometry["size"] != (3, 1)
    if odd and geometry["size"] == 2:
        missing = 2  # windows of the places at the end
    moves, rows = ["move"] * (padded + missing), ["rows"] * (3 if odd else 2)
    assert sorted(kernels([y, found * 2.0])) == [*moves, *rows]
