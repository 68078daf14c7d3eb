"""Reductions over any axes: compiled ones against the reference, and which of them have kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.errors import DataError, ShapeError
from magmadnn.graph import Node, Spec
from magmadnn.graph.node import constant, placeholder
from magmadnn.graph.program import Program
from magmadnn.memory.dtypes import BFLOAT16
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.native import Instance
from magmadnn.tensor import Operation
from tests.compiler.sample_programs import BATCH

RNG = np.random.default_rng(4)
# eight roundings; those of results in half precision are single ones
TOLERANCE = {"float32": 2.0**-20, "float64": 2.0**-49, "float16": 2.0**-10, "bfloat16": 2.0**-7}
NAMES = ("sum", "prod", "max", "min", "mean")
AXES: list[tuple[tuple[Any, ...], Any]] = [
    ((3, 5, 7), 1),
    ((3, 5, 7), 0),
    ((3, 5, 7), (0, 2)),
    ((3, 5, 7), (1, 2)),
    ((BATCH, 5, 37), 1),
    ((2, 3, 5, 7), (0, 2)),
    ((2, 3, 5, 7), (1, 2)),
    ((BATCH, 3, 5, 7), (1, 3)),
    ((2, 3, 5, 7), (0, 2, 3)),
    ((2, 3, 1, 5), (2, 1)),
    ((1, 5, 7), 1),
    ((3, 1, 7), 1),
    ((3, 5, 1), 1),
    ((2, 131, 41), 1),
    ((BATCH, 3, 7), 0),
    ((5, 3, BATCH), (0, 2)),
]


def drawn(shape: tuple[Any, ...], dtype: Any, batch: int = 11) -> Any:
    numbers = RNG.uniform(0.5, 1.5, [batch if n is BATCH else n for n in shape])
    signs = RNG.choice([-1, 1], numbers.shape)
    if np.dtype(dtype).kind in "iu":
        return (3 * numbers * (signs if np.dtype(dtype).kind == "i" else 1)).astype(dtype)
    return (numbers * signs).astype(dtype)


def graph(name: str, shape: tuple[Any, ...], dtype: Any, axis: Any, keep: bool) -> tuple[Node, Any]:
    node = placeholder("x", Spec(shape, np.dtype(dtype)))
    return node, getattr(ops, name)(Operation(node), axis=axis, keepdims=keep).node


def both(node: Node, made: Node, x: Any) -> tuple[Any, Any, str]:
    """The compiled result, the reference's, and the plan."""
    run = Executable([made], executor="native", check=True)
    (found,) = run.run({node: x})
    (wanted,) = Executable([made], executor="reference").run({node: x})
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    return found, wanted, run.text({})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("shape", "axis"), AXES)
def test_any_axes(name: str, shape: tuple[Any, ...], axis: Any) -> None:
    for keep in (False, True):
        node, made = graph(name, shape, np.float32, axis, keep)
        x = drawn(shape, np.float32)
        found, wanted, plan = both(node, made, x)
        bound = np.abs(x).astype(np.float64)
        # A product of 131 numbers is rounded 130 times, in another order than NumPy's behind 64 of them.
        scale = 8 * bound.prod(axis) if name == "prod" else bound.sum(axis)
        assert np.all(np.abs(found - wanted).ravel() <= TOLERANCE["float32"] * np.ravel(scale))
        assert "0 calls of NumPy" in plan, plan
        if axis == 1 and 1 not in shape and name != "mean":
            assert "columns [" in plan


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", BFLOAT16, "int64", "int32", "uint8", "bool"]
)
@pytest.mark.parametrize("name", NAMES)
def test_any_dtype(name: str, dtype: Any) -> None:
    x = drawn((3, 5, 7), dtype)
    for axis in (1, (0, 2)):
        node, made = graph(name, x.shape, dtype, axis, False)
        found, wanted, plan = both(node, made, x)
        assert "0 calls of NumPy" in plan
        if found.dtype.kind in "iub":
            np.testing.assert_array_equal(found, wanted)
        else:
            most = TOLERANCE[found.dtype.name] * 21 * 1.5**7
            np.testing.assert_allclose(found.astype(float), wanted.astype(float), most, most)


@pytest.mark.parametrize("shape", [(BATCH, 3, 5), (3, BATCH, 5), (BATCH, 3, BATCH)])
def test_what_others_are_made_of_is_a_kernel_too(shape: tuple[Any, ...]) -> None:
    """Softmax along each axis, of no elements too: nobody reads the largest of them."""
    for axis in range(3):
        node = placeholder("x", Spec(shape, np.dtype(np.float32)))
        made = ops.softmax(Operation(node), axis=axis).node
        for batch in (11, 1, 0):
            found, wanted, plan = both(node, made, drawn(shape, np.float32, batch))
            np.testing.assert_allclose(found, wanted, 1e-6)
            assert "0 calls of NumPy" in plan


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((BATCH, BATCH, 0), 0), ((BATCH, 0), 0), ((0, BATCH), 1), ((0, 0), 0), ((BATCH, 0, 3), 1)],
)
def test_softmax_of_a_value_that_never_has_elements(
    name: str, shape: tuple[Any, ...], axis: int
) -> None:
    """Its largest element is not looked for: there is none, and nothing to subtract it from."""
    node = placeholder("x", Spec(shape, np.dtype(np.float32)))
    made = getattr(ops, name)(Operation(node), axis=axis).node
    for batch in (5, 0):
        found, wanted, _ = both(node, made, drawn(shape, np.float32, batch))
        assert found.shape == wanted.shape and found.size == 0


def test_a_view_and_what_is_done_to_the_result() -> None:
    """A transposed operand is copied; the mean's division and a row are in the kernel of the sum."""
    node = placeholder("x", Spec((7, BATCH, 5), np.dtype(np.float32)))
    x, bias = drawn(node.shape, np.float32), drawn((7,), np.float32)
    made = ops.mean(ops.transpose(Operation(node), (1, 2, 0)), axis=1) * 2.0 + bias
    found, _, plan = both(node, made.node, x)
    np.testing.assert_allclose(found, x.transpose(1, 2, 0).mean(1) * 2 + bias, 0, 1e-6)
    assert "sum divide multiply add" in plan and "0 calls of NumPy" in plan


def test_numbers_of_each_matrix_are_read_by_a_kernel_of_their_own() -> None:
    node = placeholder("x", Spec((3, 5, 7), np.dtype(np.float32)))
    x, weights = drawn((3, 5, 7), np.float32), drawn((3, 1), np.float32)
    made = ops.sum(Operation(node), axis=1) * weights
    found, _, plan = both(node, made.node, x)
    np.testing.assert_allclose(found, x.sum(1) * weights, 0, 1e-6)
    assert "0 calls of NumPy" in plan


@pytest.mark.parametrize("name", ["sum", "max", "prod"])
def test_special_values(name: str) -> None:
    x = drawn((3, 67, 7), np.float32)
    x[0, 3, 1], x[1, 66, 2], x[2, 0, 3], x[2, 9, 3] = np.nan, np.inf, -np.inf, np.inf
    node, made = graph(name, x.shape, np.float32, 1, False)
    found, wanted, _ = both(node, made, x)
    np.testing.assert_allclose(found, wanted, 1e-5)


@pytest.mark.parametrize("shape", [(301, 67, 9), (2, 67, 1031)])
@pytest.mark.parametrize("name", ["sum", "max"])
def test_bits_are_the_same_on_any_number_of_threads(name: str, shape: tuple[int, ...]) -> None:
    """Cut between matrices, and between columns."""
    x = drawn(shape, np.float32)
    node, made = graph(name, shape, np.float32, 1, False)
    plan = native_plan(Program((made,), ()))
    found = []
    for threads in (1, 2, 3):
        run = Instance(plan, {}, threads)
        (parts,) = run.tasks(threads).phase(0)
        assert (len(parts) > 1) == (threads > 1)
        found.append(np.array((run.run({node: x}, guard=False) or [])[0]))
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    np.testing.assert_allclose(found[0], getattr(np, name)(x.astype(float), 1), 0, 1e-4)


def test_gradients() -> None:
    node = placeholder("x", Spec((3, 5, 7), np.dtype(np.float64)))
    x = drawn((3, 5, 7), np.float64)
    for name in NAMES:
        for axis in (1, (0, 2)):
            y = ops.sum(ops.square(getattr(ops, name)(Operation(node), axis=axis)))
            (made,) = md.grad(y, [Operation(node)])
            found, wanted, _ = both(node, made.node, x)
            np.testing.assert_allclose(found, wanted, 1e-12, 1e-12)


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int64", "int32", "uint8", "bool"]
)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_along_axes_of_unknown_length(name: str, dtype: str) -> None:
    """The first of equal ones, the first NaN; along rows, columns and all of the elements."""
    for shape, axis in (((BATCH,), 0), ((BATCH, 5), 0), ((3, BATCH), 1), ((BATCH, 5), None)):
        node, made = graph(name, shape, dtype, axis, shape == (BATCH, 5))
        for batch in (67, 1):
            x = np.round(drawn(shape, "int32" if dtype == "bool" else dtype, batch)).astype(dtype)
            if x.dtype.kind == "f" and batch > 1:
                x.flat[40], x.flat[52] = np.nan, np.nan
            found, wanted, plan = both(node, made, x)
            np.testing.assert_array_equal(found, wanted)
            assert "0 calls of NumPy" in plan, plan


def test_places_are_not_read_from_memory() -> None:
    """Whether rows are many or one."""
    for shape in ((BATCH,), (3, BATCH)):
        _, made = graph("argmax", shape, np.float32, -1, False)
        plan = Executable([made], executor="native").text({})
        assert "places" not in plan, plan


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_nothing_to_choose_from(name: str, executor: str) -> None:
    node, made = graph(name, (BATCH, 5), np.float32, 0, False)
    with pytest.raises(ShapeError, match=rf"{name}: axis 0 of x \(0, 5\) is empty"):
        Executable([made], executor=executor).run({node: np.zeros((0, 5), np.float32)})


def test_a_part_of_the_places_begins_later() -> None:
    """Too many numbers to be computed beforehand: a view of 0, 1, 2, ... is not 0, 1, 2, ... itself."""
    node, many = placeholder("x", Spec((3, 1500), np.dtype(np.int64))), constant(np.arange(2000))
    made = ops.add(node, ops.getitem(many, np.s_[5:1505]))
    found, wanted, _ = both(node, made, drawn((3, 1500), np.int64))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8", "bool"])
@pytest.mark.parametrize("name", NAMES)
def test_no_axes(name: str, dtype: str) -> None:
    """What is combined with nothing; a sum of -0 alone is 0, as NumPy's is."""
    node, made = graph(name, (BATCH, 5), dtype, (), False)
    for batch in (11, 0):
        x = drawn((BATCH, 5), dtype, batch)
        if np.dtype(dtype).kind == "f" and batch:
            x[0, :3] = -0.0, np.nan, -np.inf
        found, wanted, plan = both(node, made, x)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))
        assert "0 calls of NumPy" in plan, plan


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_place_of_a_single_number(name: str) -> None:
    node, made = graph(name, (), np.float32, None, False)
    found, wanted, plan = both(node, made, np.array(np.nan, np.float32))
    assert found == wanted == 0 and "0 calls of NumPy" in plan


def test_classes_that_a_stack_of_matrices_shares() -> None:
    node, classes = placeholder("x", Spec((BATCH, 3, 5), np.dtype(np.float32))), np.array([4, 0, 2])
    x = drawn(node.shape, np.float32)
    found, wanted, plan = both(node, ops.take_class(node, classes), x)
    np.testing.assert_array_equal(found, wanted)
    assert "0 calls of NumPy" in plan
    node = placeholder("x", Spec((3, 5), np.dtype(np.float32)))  # and rows that many classes share
    found, wanted, plan = both(node, ops.take_class(node, np.array([[4, 0, 2], [1, 1, 3]])), x[0])
    np.testing.assert_array_equal(found, wanted)
    assert "0 calls of NumPy" in plan


def test_a_class_outside_is_found_in_a_stack() -> None:
    node = placeholder("x", Spec((BATCH, 3, 5), np.dtype(np.float32)))
    classes = placeholder("classes", Spec((3,), np.dtype(np.int64)))
    run = Executable([ops.take_class(node, classes)], executor="native")
    with pytest.raises(DataError, match="index 5 at"):
        run.run({node: drawn(node.shape, np.float32), classes: np.array([4, 5, 2])})


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16])
def test_uniform_numbers_in_half_precision(dtype: Any) -> None:
    node = placeholder("counter", Spec((), np.dtype(np.int64)))
    made = ops.random_uniform(node, (1009,), dtype, seed=7)
    found, wanted, plan = both(node, made, np.asarray(2**40 + 3))
    assert found.tobytes() == wanted.tobytes()
    assert "0 calls of NumPy" in plan, plan


@pytest.mark.parametrize("shape", [("batch", 1), ("batch", 2, 1), (1, 7), ("batch", 3)])
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_what_is_made_for_a_reduction_over_rows_only(shape: tuple[Any, ...], reduce: str) -> None:
    """Also where the matrix has one column: its reduction is a single number, of elements in a row."""
    sizes = tuple(5 if n == "batch" else n for n in shape)
    values = np.random.default_rng(2).normal(size=sizes)
    x = md.placeholder("x", shape, "float64")
    made = getattr(md.ops, reduce)(x / 2.0 * x, axis=tuple(range(len(shape) - 1)))
    run = Executable([made.node], executor="native", check=True)
    (found,) = run.run({x.node: values})
    expected = getattr(np, reduce)(values / 2 * values, axis=tuple(range(len(shape) - 1)))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("shape", "axis"), [((64, 50), 0), ((64, 50), 1), ((300, 17), 0), ((2, 7, 5, 30), (1, 2))]
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_mean_overflows_where_numpy_s_does(shape: tuple[int, ...], axis: Any) -> None:
    """Where the sum does, and where it does not neither: no pass takes a factor out of a sum."""
    count = np.prod(shape) // np.prod(np.delete(shape, axis))
    draw = np.random.default_rng(4)
    x = (draw.uniform(1.7, 2.3, shape) * (3.4e38 / 2 / count)).astype(np.float32)
    node = placeholder("x", Spec(shape, np.dtype(np.float32)))
    small = np.float32(1e-3)
    outputs = [ops.mean(node, axis), ops.sum(node * small, axis), ops.sum(node / 1e3, axis)]
    found = Executable(outputs, executor="native", check=True).run({node: x})
    expected = [x.mean(axis), (x * small).sum(axis), (x / np.float32(1e3)).sum(axis)]
    assert 0 < np.isinf(expected[0]).sum() < expected[0].size
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE["float32"])
