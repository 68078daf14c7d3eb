"""Running sums as kernels: NumPy's bits, on any number of threads, on both back ends."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.cuda.fused.accumulate import WarpScanVariant
from magmadnn.compiler.cuda.module import can_emit, choose
from magmadnn.compiler.cuda.text.variant import Chip
from magmadnn.compiler.kernels.accumulate import Accumulate
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.library import Library
from magmadnn.compiler.kernels.own import description_of
from magmadnn.compiler.plan.listing import describe
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.errors import ArgumentError
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.runtime.cpu.native import Instance
from tests.compiler.cuda.test_kernels import run_all
from tests.compiler.llvm.llvm_calls import WIDTHS, call
from tests.runtime.cuda.emulator import needs_compiler

RNG = np.random.default_rng(5)
SHAPES = [
    (1, 31, 1),
    (1, 1, 1),
    (1, 7, 1),
    (3, 1, 5),
    (6, 11, 1),
    (5, 7, 3),
    (2, 13, 37),
    (1, 300, 64),
]
LONG = [(1, 32, 1), (3, 33, 1), (5, 64, 1), (6, 528, 1), (2, 2500, 1)]  # scanned by warps


def drawn(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "int64":
        return RNG.integers(-9, 10, shape)
    x = RNG.normal(size=shape).astype(dtype)
    x.reshape(-1)[0] = -0.0  # 0 + -0.0 would be 0.0
    return x


def wanted(x: np.ndarray, reverse: bool) -> np.ndarray:
    """One addition after the other, written out."""
    result = x.copy()
    places = range(1, x.shape[1])
    for i in places:
        if reverse:
            result[:, -1 - i] = result[:, -i] + x[:, -1 - i]
        else:
            result[:, i] = result[:, i - 1] + x[:, i]
    return result


def slots(x: np.ndarray, y: np.ndarray) -> dict[str, object]:
    outer, length, columns = x.shape
    return {
        "row0": 0, "row1": outer, "column0": 0, "column1": columns, "columns": columns,
        "length": length, "source": x, "result": y,
    }  # fmt: skip


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("target", WIDTHS, ids=str)
def test_native_kernel(target: object, dtype: str, reverse: bool) -> None:
    for shape in SHAPES:
        x = drawn(shape, dtype)
        y = np.full_like(x, 99)
        call(Accumulate(dtype, reverse), target, **slots(x, y))
        assert y.tobytes() == wanted(x, reverse).tobytes(), shape


@needs_compiler
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_cuda_kernel(dtype: str, reverse: bool) -> None:
    cases = [(x := drawn(shape, dtype), np.full_like(x, 99)) for shape in SHAPES]
    launches = []
    for x, y in cases:
        values = {
            k: v.ctypes.data if isinstance(v, np.ndarray) else v for k, v in slots(x, y).items()
        }
        launch = choose(Accumulate(dtype, reverse), values, Chip(60, 4, 48 << 10))
        assert launch is not None
        launches.append(launch)
    run_all(launches)
    for x, y in cases:
        assert y.tobytes() == wanted(x, reverse).tobytes(), x.shape


@needs_compiler
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_cuda_scans_long_lines_by_warps(dtype: str, reverse: bool) -> None:
    """Integers exactly; a sum of numbers has at most 5 + length / 32 + 1 roundings of what was added."""
    drawings = [drawn(shape, dtype) for shape in LONG]
    launches, found = [], [np.full_like(x, 99) for x in drawings]
    for x, y in zip(drawings, found, strict=True):
        values = {
            k: v.ctypes.data if isinstance(v, np.ndarray) else v for k, v in slots(x, y).items()
        }
        launch = choose(Accumulate(dtype, reverse), values, Chip(60, 4, 48 << 10))
        assert launch is not None
        assert isinstance(launch.variant, WarpScanVariant)
        launches.append(launch)
    run_all(launches)
    for x, y in zip(drawings, found, strict=True):
        if dtype == "int64":
            assert np.array_equal(y, wanted(x, reverse))
            continue
        exact, sizes = (wanted(v.astype(np.longdouble), reverse) for v in (x, abs(x)))
        roundings = 6 + x.shape[1] / 32
        assert (abs(y - exact) <= roundings * np.finfo(dtype).eps / 2 * sizes).all(), x.shape
        first = (slice(0, 1), slice(-1, None) if reverse else slice(0, 1))
        assert np.array_equal(np.signbit(y[first]), np.signbit(x[first]))  # of -0.0 too


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_bits_are_numpys_on_any_number_of_threads(axis: int, reverse: bool) -> None:
    value = drawn((67, 31, 45), "float32")
    x = placeholder("x", Spec(value.shape, value.dtype))
    plan = native_plan(Program((ops.cumsum(x, axis, reverse),), ()))
    assert "0 calls of NumPy" in describe(plan)
    flipped = np.flip(value, axis) if reverse else value
    expected = np.cumsum(flipped, axis)
    expected = np.flip(expected, axis) if reverse else expected
    for threads in (1, 2, 3):
        run = Instance(plan, {}, threads)
        (found,) = run.run({x: value}, guard=False) or []
        assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_an_operand_that_is_a_view_is_copied_first() -> None:
    x = md.variable("x", drawn((5, 7), "float64"))
    value = np.asarray(x.value)
    for view, array in (
        (x.T, value.T),
        (x[::2, ::-1], value[::2, ::-1]),
        (x[1:, 2:], value[1:, 2:]),
    ):
        assert np.asarray(ops.cumsum(view, 1)).tobytes() == np.cumsum(array, 1).tobytes()


def test_unknown_and_empty_sizes() -> None:
    x = md.placeholder("x", ("rows", "time", 3))
    made = ops.cumsum(x, 1)
    for shape in ((2, 5, 3), (0, 5, 3), (2, 0, 3), (4, 1, 3)):
        value = drawn(shape, "float32") if np.prod(shape) else np.zeros(shape, np.float32)
        assert np.array_equal(made.eval({x: value}), np.cumsum(value, 1))


def test_the_gradient_runs_the_other_way() -> None:
    """d(sum(w cumsum(x)))/dx at j is the sum of w over i >= j; its own gradient likewise."""
    x, w = md.variable("x", drawn((3, 5), "float64")), drawn((3, 5), "float64")
    found = np.asarray(md.grad((ops.cumsum(x, 1) * w).sum(), x))
    np.testing.assert_allclose(found, w @ np.tril(np.ones((5, 5))), 1e-14, 1e-14)


def test_reverse_is_true_or_false() -> None:
    with pytest.raises(ArgumentError, match="cumsum: reverse must be True or False, got 2"):
        ops.cumsum(np.ones(3), 0, reverse=2)


def test_a_kernel_is_its_files_and_its_record() -> None:
    """Nothing else names it: no table, no kind of region, no branch of the compiler."""
    package = Path(md.__file__).parent
    named = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(
            r"Accumulate\b|write_accumulate|choose_accumulate|\"accumulate\",$",
            path.read_text(),
            re.M,
        )
    }
    files = {
        f"compiler/{folder}/accumulate.py" for folder in ("kernels", "llvm/fused", "cuda/fused")
    }
    assert named == files | {"ops/along_axes/accumulation.py"}


def test_kernels_without_a_file_for_a_device_are_computed_by_numpy() -> None:
    assert can_emit(Accumulate("float32", False))
    assert not can_emit(Library("potrf", "float32", 1, ()))
    assert not can_emit(Gemm("float32"))  # has a table of its own
    assert description_of("accumulate") is Accumulate
