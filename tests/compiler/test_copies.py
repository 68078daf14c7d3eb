"""Which reader copies which layout first: a table of both back ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from magmadnn import ops
from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.plan.planning import ON_CPUS, native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.memory import as_dtype
from magmadnn.tensor import Operation

Make = Callable[[Operation], Operation]
Shape = tuple[int, ...]


def fed(shape: Shape, name: str, dtype: str = "float32") -> Operation:
    return Operation(placeholder(name, Spec(shape, as_dtype(dtype))))


def pad(*widths: tuple[int, int]) -> Make:
    return lambda x: ops.pad(x, widths)


def repeat(*shape: int) -> Make:
    return lambda x: ops.broadcast_to(x, shape)


READERS: dict[str, Make] = {
    "x @ w": lambda x: x @ fed((64, 40), "w"),
    "w @ x": lambda x: fed((40, 64), "w") @ x,
    "x.T @ w": lambda x: ops.transpose(x) @ fed((64, 40), "w"),
    "a stack @ w": lambda x: ops.reshape(x, (1, 64, 64)) @ fed((5, 64, 40), "w"),
    "sum of rows": lambda x: ops.sum(x, axis=0),
    "sum of columns": lambda x: ops.sum(x, axis=1),
    "relu": ops.relu,
}
# Copies on a CPU and on a GPU for each reader. What is left: a formula over elements that lie apart, second
# factors, which a CPU's products copy anyhow, and first factors that a GPU's products cannot read; slices of
# sequences that they can, as stacks: tests/runtime/cuda/test_slices_in_products.py.
LAYOUTS: list[tuple[str, Shape, Make, str]] = [
    ("some rows", (100, 64), lambda x: x[5:69], "00 00 00 00 00 00 00"),
    ("some columns", (64, 100), lambda x: x[:, 8:72], "00 00 00 00 00 00 00"),
    ("every second row", (128, 64), lambda x: x[::2], "00 00 00 00 00 00 00"),
    ("every second column", (64, 128), lambda x: x[:, ::2], "01 11 01 11 11 11 11"),
    ("rows backwards", (64, 64), lambda x: x[::-1], "01 11 01 11 00 00 00"),
    ("columns backwards", (64, 64), lambda x: x[:, ::-1], "01 11 01 11 11 11 11"),
    ("transposed", (64, 64), ops.transpose, "00 00 00 00 11 11 11"),
    ("a repeated row", (1, 64), repeat(64, 64), "01 11 01 11 00 00 00"),
    ("a repeated column", (64, 1), repeat(64, 64), "01 11 01 11 00 00 00"),
    ("one number", (1, 1), repeat(64, 64), "01 11 01 11 00 00 00"),
    ("rows padded", (59, 64), pad((2, 3), (0, 0)), "11 11 11 11 00 00 00"),
    ("columns padded", (64, 59), pad((0, 0), (2, 3)), "11 11 11 11 00 00 00"),
]  # fmt: skip
JOINED: list[tuple[str, Shape, Make, str]] = [
    ("a slice in the middle", (64, 8, 16), lambda x: x[:, 2:6], "00 00 00 00 00 00 00"),
    ("leading axes reordered", (8, 8, 64), lambda x: ops.transpose(x, (1, 0, 2)), "01 11 01 11 11 11 11"),
    ("repeated in the middle", (8, 1, 64), repeat(8, 8, 64), "01 01 01 11 11 11 11"),
]  # fmt: skip
CASES = [
    *LAYOUTS,
    *((n, s, lambda x, f=f: ops.reshape(f(x), (64, 64)), t) for n, s, f, t in JOINED),
]


def copies(made: Operation, **how: Any) -> int:
    plan = native_plan(Program.of([made.node]), check=True, **how)
    return sum(work.region.kind is RegionKind.MOVE for work in plan.work)


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_copies(case: tuple[str, Shape, Make, str]) -> None:
    _, shape, view, expected = case
    found = []
    for reader in READERS.values():
        made = reader(view(fed(shape, "x")))
        on_cpu = copies(made, libraries=ON_CPUS)
        found.append(f"{on_cpu}{copies(made, rounding=False, libraries=frozenset())}")
    assert " ".join(found) == expected


def test_halves_are_padded_and_multiplied_as_halves() -> None:
    """No conversion to float32 takes the place of the pad: the product would not be one of halves."""
    x, w = fed((64, 59), "x", "bfloat16"), fed((64, 40), "w", "bfloat16")
    made = pad((0, 0), (2, 3))(x) @ w
    plan = native_plan(Program.of([made.node]), rounding=False, libraries=frozenset())
    assert [work.region.kind for work in plan.work] == [RegionKind.MOVE, RegionKind.GEMM]
    lowered = plan.work[-1].lowered
    assert lowered is not None
    assert isinstance(lowered.kernel, Gemm)
    assert lowered.kernel.halves == "bfloat16"
