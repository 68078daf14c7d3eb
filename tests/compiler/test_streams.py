"""Large results that nobody reads are stored past the caches; nothing else changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from magmadnn import ops, placeholder, variable
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.kernels.rows import Rows, pointwise
from magmadnn.compiler.llvm.fused.rows import rows_scratch_bytes
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.llvm.kernel import scratch
from magmadnn.compiler.lower.size_rules import streaming
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.tasks import Tasks
from tests.compiler.llvm.llvm_calls import WIDTHS, call

DOUBLE = ("multiply", ("argument", 0), ("constant", 2.0, "2.0"))
KERNEL = pointwise((Operand("x", "float32"),), Result("y", "float32", DOUBLE))
CACHE = 1 << 16
PLACES = {"row0": 0, "row1": 64, "column0": 0, "column1": 64, "x": 1 << 20, "y": 1 << 21}
SLOTS = {**PLACES, "x_row": 64, "y_row": 64}  # y is a quarter of the cache


@pytest.mark.parametrize(
    ("changes", "again", "streamed"),
    [
        ({}, (), True),
        ({"row1": 63}, (), False),  # too small
        ({}, ("y",), False),  # read again, and still in the cache then
        ({"row1": 256}, ("y",), True),  # read again, and gone by then
        ({"y": 1 << 20}, (), False),  # over its own operand
        ({"y": (1 << 21) + 4}, (), False),  # between two vectors
        ({"y_row": 65}, (), False),
        ({"column1": 60, "row1": 99}, (), False),
        ({"x": (1 << 20) + 4, "x_row": 65}, (), True),
    ],
)
def test_the_rule(changes: dict[str, int], again: tuple[str, ...], streamed: bool) -> None:
    found = streaming(KERNEL, {**SLOTS, **changes}, again, CACHE, 32)
    assert found == dataclasses.replace(KERNEL, streamed=("y",) * streamed)


def test_no_cache_is_large_enough_for_any_result() -> None:
    for rows, streamed in ((1 << 16, ("y",)), ((1 << 16) - 1, ())):  # 16 MiB and less
        assert streaming(KERNEL, SLOTS | {"row1": rows}, (), 1 << 30, 32).streamed == streamed


def test_bytes_and_numbers_of_rows_are_not_streamed() -> None:
    mask = pointwise(KERNEL.operands, Result("y", "bool", ("less", *DOUBLE[1:])))
    assert streaming(mask, SLOTS | {"row1": 4096}, (), CACHE, 32).streamed == ()


@pytest.mark.parametrize("columns", [64, 71])
def test_it_changes_no_bit(columns: int) -> None:
    """With columns behind the last whole vector too: those are stored as ever."""
    x = np.random.default_rng(4).standard_normal((5, columns)).astype(np.float32)
    for target in WIDTHS:
        y = np.zeros((5, 128), np.float32)
        room = scratch(y.nbytes).view(np.float32).reshape(y.shape)
        made: Rows = dataclasses.replace(KERNEL, streamed=("y",))
        slots: dict[str, Any] = SLOTS | {"row1": 5, "column1": columns, "x_row": columns}
        call(made, target, rows_scratch_bytes(made), **slots | {"x": x, "y": room, "y_row": 128})
        np.testing.assert_array_equal(room[:, :columns], 2 * x)
        assert not room[:, columns:].any()


def test_results_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two results that go into variables, the one that is also an output stays in the cache."""
    rows = 1 + host().last_bytes // (4 * 512 * 4)
    chosen: list[Rows] = []
    selected = Tasks._selected

    def seen(self: Tasks, work: Any) -> Any:
        lowered = selected(self, work)
        if isinstance(lowered.kernel, Rows):
            chosen.append(lowered.kernel)
        return lowered

    monkeypatch.setattr(Tasks, "_selected", seen)
    value = np.random.default_rng(3).standard_normal((rows, 512)).astype(np.float32)
    x = placeholder("x", (rows, 512))
    kept, shown = (variable(n, np.zeros_like(value)) for n in ("kept", "shown"))
    first, second = ops.softmax(x), x * 3.0
    run = Executable(
        [second.node], [(kept.node, first.node), (shown.node, second.node)],
        training=True, executor="native",
    )  # fmt: skip
    (output,) = run.run({x.node: value})
    assert sum(len(kernel.streamed) for kernel in chosen) == 1
    np.testing.assert_array_equal(output, value * 3)
    np.testing.assert_array_equal(shown.value.read(), output)
    np.testing.assert_allclose(kept.value.read().sum(1), 1, rtol=1e-5)
