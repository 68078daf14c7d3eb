"""Code for ARM, as assembly: what it calls, what it keeps in registers, how threads see each other's stores.

`tests/training/test_export_for_arm.py` runs such code where there is an emulator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from magmadnn.compiler.kernels.data_rows import Gather, Keep
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.kernels.gemv import Gemv
from magmadnn.compiler.kernels.moves import AddPicked, Move, Pick
from magmadnn.compiler.llvm.driver.code import driver_text
from magmadnn.compiler.llvm.fused.copy_rows import CopyRows
from magmadnn.compiler.llvm.fused.digest import Digest
from magmadnn.compiler.llvm.fused.saving import FindNotFinite, Save
from magmadnn.compiler.llvm.ir.builder import F32, Code
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target, assembly, named
from magmadnn.compiler.llvm.kernel import llvm_text
from magmadnn.compiler.llvm.vmath.exponential import exp_scaled
from magmadnn.compiler.plan.planning import native_plan
from tests.compiler.llvm.test_gemm import tile_loop
from tests.compiler.native_programs import PROGRAMS

ARM = ("cortex-a72", "neoverse-v2", "apple-m1")
OTHERS = [
    Gemv("float32", transpose_b=True), Gemv("float64", column=True), Gather("uint8", "float32"),
    Keep("float32"), Move(4, 2), Pick(4, "int64"), AddPicked("float32", "int32"), CopyRows(), Digest(),
    Save(), FindNotFinite("float64"),
]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["mlp_adam", "layer_norm", *(pytest.param(n, marks=pytest.mark.long) for n in ("batch_norm", "dropout"))],
)  # fmt: skip
def test_kernels_of_training_steps_call_nothing(name: str) -> None:
    """No instruction of x86, no function of a run-time library."""
    target = named("cortex-a72")
    steps = native_plan(PROGRAMS[name]()).work
    kernels = [work.lowered.kernel for work in steps if work.lowered is not None]
    assert len(kernels) > 5
    text = llvm_text(list(dict.fromkeys(kernels)), target)
    assert "llvm.x86" not in text  # LLVM ends the process over those
    assert not calls(assembly(text, target))


def test_other_kernels_call_nothing() -> None:
    target = named("cortex-a72")
    text = llvm_text(OTHERS, target)
    assert "llvm.x86" not in text
    assert not calls(assembly(text, target))


def calls(listing: str) -> set[str]:
    """What is called and not in the listing itself."""
    called = set(re.findall(r"^\tbl?\t([A-Za-z_]\w*)$", listing, re.MULTILINE))
    return called - set(re.findall(r"^(\w+):", listing, re.MULTILINE))


@pytest.mark.parametrize(
    ("cpu", "dtype"),
    [
        pytest.param(cpu, dtype, marks=() if (k + j) % 2 else pytest.mark.long)
        for k, cpu in enumerate(ARM)
        for j, dtype in enumerate(("float32", "float64"))
    ],
)
def test_the_loop_of_a_tile_is_bound_by_its_multiply_adds(cpu: str, dtype: str) -> None:
    """24 of them by elements of A that lie in lanes, of 11 registers that are loaded, and little else."""
    loop = tile_loop(llvm_text([Gemm(dtype)], named(cpu)), named(cpu))
    code = [line.split()[0].split(".")[0] for line in loop if line.split()[0][0].isalpha()]
    lanes = [line for line in loop if "fmla" in line and line.endswith("[0]")]
    loaded = code.count("ldr") + code.count("ldur") + 2 * code.count("ldp")
    assert (code.count("fmla"), len(lanes), loaded) == (24, 24, 11)
    assert len(code) <= 48
    assert not [line for line in loop if "[sp" in line]


@dataclass(frozen=True)
class Exponentials:
    """y[i] = exp_scaled(x[i])."""

    slots = ("n", "x", "y")

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        x, y, lanes = frame.array("x", F32), frame.array("y", F32), target.lanes(4)
        with code.loop(0, frame.integer("n"), lanes) as i:
            y.put(i, exp_scaled(code, x.vector(i, lanes)))


@pytest.mark.parametrize("cpu", ARM)
def test_a_table_in_registers_stays_there(cpu: str) -> None:
    listing = assembly(llvm_text([Exponentials()], named(cpu)), named(cpu))
    assert len(re.findall(r"^\ttbl", listing, re.MULTILINE)) == 1
    assert "sp" not in re.findall(r"\w+", listing)


def test_threads_see_what_others_stored() -> None:
    """Stores before the word that tells of them, loads after it, on CPUs that keep no such order."""
    text = driver_text(named("cortex-a72"), True, False)
    listing = assembly(text, named("cortex-a72"))
    code = re.findall(r"^\t([a-z]\w*)", listing, re.MULTILINE)
    changes = len(re.findall(r"(atomicrmw|cmpxchg)", text))
    assert code.count("ldaxr") == code.count("stlxr") == changes > 10
    assert code.count("ldar") >= len(re.findall(r"load atomic", text)) > 10
    assert not calls(listing)
