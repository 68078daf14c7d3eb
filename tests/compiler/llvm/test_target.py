"""Targets: what the host is, other machines, errors, and loading object code without IR."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace

import numpy as np
import pytest

from magmadnn.compiler.llvm import kernel
from magmadnn.compiler.llvm.gemm.register_tile import largest_tile
from magmadnn.compiler.llvm.ir.builder import F32, Code
from magmadnn.compiler.llvm.ir.frame import ALIGNMENT, Frame
from magmadnn.compiler.llvm.ir.target import Target, assembly, host, named, object_code
from magmadnn.compiler.llvm.object.library import Library
from magmadnn.errors import ArgumentError, DeviceError, UnknownNameError


@dataclass(frozen=True)
class Double:
    """y[i] = 2 * x[i] for one vector."""

    slots = ("x", "y")

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        x = frame.array("x", F32).vector(0, target.lanes(4))
        frame.array("y", F32).put(0, x * 2.0)


def test_host():
    found = host()
    assert found.vector_bytes in (16, 32, 64)
    assert found.vector_registers in (16, 32)
    assert 8 << 10 <= found.l1_bytes < found.l2_bytes <= 64 << 20
    assert found.triple.startswith(("x86_64", "arm64", "aarch64")) == (
        platform.machine().lower() in ("x86_64", "amd64", "arm64", "aarch64")
    )


@pytest.mark.parametrize(
    ("cpu", "item", "tile"),
    [
        ("x86-64-v3", 4, (6, 2, 8)),
        ("x86-64-v4", 4, (8, 3, 16)),
        ("x86-64-v4", 8, (8, 3, 8)),
        ("apple-m1", 4, (8, 3, 4)),
    ],
)
def test_tiles_fill_the_registers(cpu, item, tile):
    found = largest_tile(named(cpu), item)
    assert (found.rows, found.width, found.lanes) == tile


@pytest.mark.parametrize(
    ("cpu", "word"), [("znver3", "ymm"), ("znver5", "zmm"), ("apple-m1", ".4s")]
)
def test_vector_registers_of_other_machines(cpu, word):
    assert word in assembly(kernel.llvm_text([Double()], named(cpu)), named(cpu))


@pytest.mark.parametrize(
    ("features", "lanes"),
    [
        ("+avx2,+avx512f,-avx512fp16", [8, 16]),  # the name of a feature begins that of another
        ("+avx2,-avx512f,-avx512fp16", [8]),
        ("-avx2,-avx512f", []),
    ],
)
def test_permutations_are_those_of_the_features(features, lanes):
    assert list(replace(named("x86-64-v4"), features=features).permutations) == lanes


def test_unknown_target():
    with pytest.raises(UnknownNameError, match="did you mean 'znver5'"):
        named("znver6")


def test_object_code_is_loaded_and_runs():
    code = object_code(kernel.llvm_text([Double()], host()), host())
    made = kernel.Loaded(Library([code], [kernel.symbol(0)]), kernel.symbol(0))
    x, y = np.arange(16, dtype="f4"), np.zeros(16, "f4")
    made(kernel.block(Double(), x=x, y=y), kernel.scratch(64))
    lanes = host().lanes(4)
    np.testing.assert_array_equal(y, np.where(np.arange(16) < lanes, 2 * x, 0))


def test_text_that_llvm_refuses():
    with pytest.raises(DeviceError, match=f"LLVM refuses the code made for {host().cpu}"):
        object_code("define void @f() { ret i32 0 }", host())


def test_argument_blocks_are_checked():
    x = np.zeros(16, "f4")
    with pytest.raises(ArgumentError, match="missing or not known: y, z"):
        kernel.block(Double(), x=x, z=x)


def test_scratch_is_aligned():
    for size in (1, 64, 1000):
        made = kernel.scratch(size)
        assert made.size == size
        assert made.ctypes.data % ALIGNMENT == 0


def test_kernels_are_compiled_once():
    first = kernel.load([Double()])[0]
    assert kernel.load([Double(), Double()]) == [first, first]
