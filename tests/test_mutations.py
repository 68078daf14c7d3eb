"""The compiler's parts broken on purpose: for each fault there is a test that fails.

Each fault is one text for another in a copy of the package; what it breaks is in the name. Where a text is
not there any more, the part was written anew: choose another fault in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import magmadnn as md
from tests.runtime.cuda.emulator import needs_compiler

PACKAGE = Path(md.__file__).parent
TOP = Path(__file__).parents[1]
LIMIT = 300  # seconds of a test file
TESTS_FAILED = 1  # what pytest ends with


class Fault(NamedTuple):
    """A text in a file, what stands there in place of it, and what is run."""

    file: str
    text: str
    wrong: str
    tests: str


CPU, GPU = "compiler/llvm", "compiler/cuda"
FAULTS = {
    "rows of strided operands": Fault(
        f"{CPU}/expressions/operands.py",
        "            left.value = size\n",
        "            left.value = size + 1\n",
        "tests/compiler/test_strides.py",
    ),
    "rows of strided operands on a GPU": Fault(
        f"{GPU}/text/prelude.py",
        "place += (row - outer * size) * steps.at[axis];",
        "place += outer * steps.at[axis];",
        "tests/compiler/test_strides.py",
    ),
    "matrices of a stack that are written apart": Fault(
        f"{GPU}/gemm/stacked.py",
        "if slot in dict(self.placed):",
        "if slot in ():",
        "tests/runtime/cuda/test_merged_heads.py",
    ),
    "groups of matrices for a library": Fault(
        "runtime/cuda/schedule/batched_products.py",
        "if step < 0 or reach not in (None, step):",
        "if step < 0:",
        "tests/runtime/cuda/test_merged_heads.py",
    ),
    "edges of padded operands": Fault(
        f"{CPU}/expressions/operands.py",
        "(index.value >= first)",
        "(index.value > first)",
        "tests/compiler/test_padded_operands.py",
    ),
    "parts of another shape that lie in their result": Fault(
        "compiler/padding.py",
        "and first + n <= size",
        "",
        "tests/compiler/test_padded_operands.py",
    ),
    "edges of padded operands on a GPU": Fault(
        f"{GPU}/text/prelude.py",
        "index < ends.at[axis]",
        "index <= ends.at[axis]",
        "tests/compiler/test_padded_operands.py",
    ),
    "filters that have changed": Fault(
        f"{CPU}/fused/saving.py",
        "for found in (code.any(differ.value.differs(0)), rest.value.differs(0)):",
        "for found in (rest.value.differs(0),):",
        "tests/training/test_kept_filters.py",
    ),
    "memory of filters that are kept": Fault(
        "compiler/plan/memory.py",
        "for node in (*plan.program.roots, *kept):",
        "for node in plan.program.roots:",
        "tests/training/test_kept_filters.py",
    ),
    "factors of several axes": Fault(
        f"{CPU}/gemm/joined_axes.py",
        "over = following >= size",
        "over = following > size",
        "tests/compiler/test_joined_axes.py",
    ),
    "second factors of several axes": Fault(
        f"{CPU}/gemm/packing/pack.py",
        "start.at(places[lane])",
        "start.at(places[0])",
        "tests/compiler/test_joined_axes.py",
    ),
    "boxes with gaps": Fault(
        "ops/slicing.py",
        "len(numbers) - 1, numbers.step - 1,",
        "len(numbers) - 1, numbers.step - 2,",
        "tests/compiler/test_native_moves.py",
    ),
    "quotients of sizes": Fault(
        "graph/dim.py",
        "inner.numerator // (inner.divisor * divisor)",
        "inner.numerator // (inner.divisor + divisor)",
        "tests/graph/test_dim.py",
    ),
    "values in their concatenation": Fault(
        "compiler/plan/parts_in_place.py",
        "bases.count(part) == 1 and",
        "bases.count(part) >= 1 and",
        "tests/compiler/test_parts_in_place.py",
    ),
    "a library's order of triangles": Fault(
        f"{CPU}/library/potrf.py",
        'arguments.letter("U")',
        'arguments.letter("L")',
        "tests/linalg/test_library_steps.py",
    ),
    "running sums": Fault(
        f"{CPU}/fused/accumulate.py",
        "self._length - 1 - number if self._reverse",
        "self._length - number if self._reverse",
        "tests/compiler/test_native_accumulate.py",
    ),
    "loops backwards": Fault(
        "runtime/cpu/loops.py",
        "order[::-1] if plan.reverse else order",
        "order",
        "tests/runtime/test_scan.py",
    ),
    "loops backwards on a GPU": Fault(
        "runtime/cuda/step_layout.py",
        "self.steps - 1 - step if self._loop.reverse else step",
        "step",
        "tests/runtime/cuda/test_loops.py",
    ),
    "gradients of loops": Fault(
        "ops/repeated/loops.py",
        "length, not reverse)",
        "length, reverse)",
        "tests/runtime/test_scan.py",
    ),
    "filters side by side": Fault(
        "ops/images/_products.py",
        "(k, block - 1 - k)",
        "(block - 1 - k, k)",
        "tests/ops/test_convolutions.py",
    ),
    "phases as one product": Fault(
        "ops/images/_phases.py",
        "stride * hi - before",
        "stride * hi - before + 1",
        "tests/ops/test_convolutions.py",
    ),
    "rows of few columns": Fault(
        f"{CPU}/fused/columns.py",
        "_FEW * self.lanes, whole, first)",
        "_FEW * self.lanes, whole - _ROWS, first)",
        "tests/compiler/test_row_blocks.py",
    ),
    "deviations of two blocks": Fault(
        f"{CPU}/fused/columns.py",
        "both = joined + number + apart * apart * weight",
        "both = joined + number",
        "tests/compiler/test_row_blocks.py",
    ),
    "lengths of blocks": Fault(
        "compiler/lower/row_blocks.py",
        '"rows": rows, "each": each}',
        '"rows": rows, "each": each + 8}',
        "tests/compiler/test_row_blocks.py",
    ),
    "decisions of several workers": Fault(
        "runtime/cpu/sliced/slices.py",
        'if not agreement().all(well, "steps are finite"):',
        "if not well:",
        "tests/runtime/test_agreement.py",
    ),
    "stacks of products on a GPU": Fault(
        "runtime/cuda/schedule/batched_products.py",
        "if len(apart) > 1 or any(",
        "if any(",
        "tests/runtime/cuda/test_stacks.py",
    ),
    "constants of plans built alike": Fault(
        "compiler/plan/built_alike/look.py",
        "return array.dtype, array.shape, array.tobytes()",
        "return array.dtype, array.shape",
        "tests/compiler/test_reuse.py",
    ),
    "sizes of plans built alike": Fault(
        "compiler/plan/built_alike/sizes.py",
        "if any(answer.of(numbers) != answer.is_below for answer in template.answers):",
        "if False:",
        "tests/compiler/test_sizes.py",
    ),
    "stand-ins of unknown sizes": Fault(
        "compiler/layout.py",
        "self._stand_ins = stand_ins_for(order)",
        "self._stand_ins = PRIMES",
        "tests/compiler/test_stand_ins.py",
    ),
    "what cuDNN writes into others' channels": Fault(
        "runtime/cuda/schedule/library/convolutions.py",
        "ways = (here, there) if is_result else (there, here)",
        "ways = (there, here)",
        "tests/runtime/cuda/test_strided_convolutions.py",
    ),
    "whose filters a call for each model reads": Fault(
        "runtime/cuda/schedule/library/convolutions.py",
        "own[slot] = start + number * nbytes",
        "own[slot] = start",
        "tests/runtime/cuda/test_stacked_convolutions.py",
    ),
}


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "magmadnn", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests", "benchmarks", "docs"):
        (tmp_path / name).symlink_to(TOP / name)
    shutil.copy(TOP / "pyproject.toml", tmp_path)
    broken = tmp_path / "magmadnn" / fault.file
    text = broken.read_text()
    assert text.count(fault.text) == 1, "choose another fault: the text is not there, or often"
    broken.write_text(text.replace(fault.text, fault.wrong))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", fault.tests]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == TESTS_FAILED, (
        done.returncode,
        done.stdout[-2000:],
        done.stderr[-500:],
    )
    assert " failed" in done.stdout
