"""Reductions over all rows of what has strides of its own, repeats itself or has a constant around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.graph import Spec
from magmadnn.graph.node import Node, placeholder
from magmadnn.graph.program import Program
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.native import Instance
from magmadnn.tensor import Operation
from tests.compiler.sample_programs import BATCH
from tests.runtime.cuda.devices import DEVICES, on

Make = Callable[[Any], Any]
SHAPE = (BATCH, 5, 6, 37)
ALL = (0, 1, 2)
NONE = (0, 0)


def summed(x: Operation) -> Operation:
    return ops.sum(x, axis=tuple(range(len(x.shape) - 1)))


WAYS: dict[str, Make] = {
    "a part": lambda x: summed(x[:, 1:4, ::2, 2:]),
    "backwards": lambda x: summed(x[:, ::-2, 1:]),
    "leading axes reordered": lambda x: summed(ops.transpose(x, (2, 0, 1, 3))),
    "a repeated row": lambda x: summed(ops.broadcast_to(x[0, 2, 3], (7, 37))),
    "repeated in the middle": lambda x: summed(ops.broadcast_to(x[:, :1], (*x.shape[:1], 5, 6, 37))),
    "a repeated column": lambda x: summed(ops.broadcast_to(x[0, :, 2, 3:4], (5, 33))),
    "repeated columns of a part": lambda x: summed(
        ops.broadcast_to(x[:, 1:4, :, 2:3], (*x.shape[:1], 3, 6, 33))
    ),
    "one number": lambda x: summed(ops.broadcast_to(x[0, 2, 3, 4:5], (9, 33))),
    "padded all around": lambda x: summed(ops.pad(x, ((1, 2), (0, 1), (2, 0), (3, 5)), value=2)),
    "padded rows": lambda x: summed(ops.pad(x, (NONE, (1, 1), NONE, NONE))),
    "padded, of a part": lambda x: summed(
        ops.pad(x[:, 1:4, ::-1, 2:], (NONE, (1, 1), NONE, (2, 0)), value=1)
    ),
    "padded within rows": lambda x: summed(ops.pad(x, (NONE, NONE, NONE, (4, 1)), value=-1)),
    "computed of parts": lambda x: summed(x[:, 1:] * x[:, :-1] + x[:, 1:2]),
    "computed of a pad": lambda x: summed(ops.pad(x[:, 1:], (NONE, (1, 0), NONE, NONE), value=3) * x),
    "and something with it": lambda x: summed(x[:, ::2]) * 2 + x[0, 0, 0],
    "the largest": lambda x: ops.max(ops.pad(x[:, 1:], ((1, 0), (1, 0), NONE, NONE), value=1), axis=ALL),
}  # fmt: skip


def made(way: Make, dtype: str) -> tuple[Node, Operation]:
    x = placeholder("x", Spec(SHAPE, as_dtype(dtype)))
    return x, way(Operation(x))


def drawn(batch: int, dtype: str) -> Any:
    """Small whole numbers: sums of them are exact in every dtype."""
    rng = np.random.default_rng(batch)
    return rng.integers(0, 3, (batch, *SHAPE[1:])).astype(as_dtype(dtype))


def kinds(result: Operation, rounding: bool) -> list[RegionKind]:
    plan = native_plan(Program.of([result.node]), check=True, rounding=rounding)
    return [work.region.kind for work in plan.work]


@pytest.mark.parametrize("name", WAYS)
def test_nothing_is_copied(name: str) -> None:
    _, result = made(WAYS[name], "float32")
    for rounding in (True, False):
        found = kinds(result, rounding)
        assert RegionKind.COLUMNS in found
        assert set(found) <= {RegionKind.COLUMNS, RegionKind.ROWS}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("device", [None, *DEVICES])
@pytest.mark.parametrize("name", WAYS)
def test_sums_are_those_of_the_reference(name: str, device: Any, dtype: str) -> None:
    batches = (7, 3, 2) if device is None else (7, 2)

    def compare(where: str) -> None:
        x, result = made(WAYS[name], dtype)
        run = Executable([result.node], executor="native", check=True, device=where)
        reference = Executable([result.node], executor="reference")
        for batch in batches:
            feeds = {x: drawn(batch, dtype)}
            (found,), (wanted,) = run.run(feeds), reference.run(feeds)
            np.testing.assert_array_equal(found, wanted)

    if device is None:
        compare("cpu")
    else:
        with on(device):
            compare("cuda")


BLOCKS: dict[str, Make] = {
    "a part": lambda x: summed(x[:, 1:]),
    "padded": lambda x: summed(ops.pad(x[:, 3:], ((1, 0), (1, 2), NONE), value=2)),
    "squares of a part and a pad": lambda x: summed(
        (x[:, 1:] - 1) * ops.pad(x[:, 2:], (NONE, (1, 0), NONE))
    ),
    "mean and variance of a part": lambda x: ops.var(x[:, 1:], axis=(0, 1)),
}


@pytest.mark.parametrize("device", [None, *DEVICES])
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_rows_begin_where_they_should(name: str, device: Any) -> None:
    """More rows than a block has: each block finds its rows among all."""

    def compare(where: str) -> None:
        x = placeholder("x", Spec((71, 131, 40), np.dtype(np.float32)))
        result = BLOCKS[name](Operation(x))
        values = np.random.default_rng(5).integers(0, 4, (71, 131, 40)).astype(np.float32)
        run = Executable([result.node], executor="native", check=True, device=where)
        (found,) = run.run({x: values})
        wide = placeholder("wide", Spec((71, 131, 40), np.dtype(np.float64)))
        reference = Executable([BLOCKS[name](Operation(wide)).node], executor="reference")
        (wanted,) = reference.run({wide: values.astype(np.float64)})
        # sums are exact; those of deviations are not: of up to 64 rows in order, in blocks
        rtol = 64 * 2.0**-24 if "variance" in name else 0
        np.testing.assert_allclose(found, wanted, rtol=rtol)

    if device is None:
        compare("cpu")
    else:
        with on(device):
            compare("cuda")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_columns_and_blocks_are_cut_anywhere(threads: int) -> None:
    x = placeholder("x", Spec((71, 131, 40), np.dtype(np.float32)))
    result = summed(ops.pad(Operation(x), ((1, 0), (1, 2), (0, 3))) * 0.1)
    values = np.random.default_rng(6).standard_normal((71, 131, 40)).astype(np.float32)
    plan = native_plan(Program.of([result.node]))
    found = [Instance(plan, {}, n).run({x: values}, guard=False) for n in (1, threads)]
    assert found[0] is not None and found[1] is not None
    np.testing.assert_array_equal(found[0][0], found[1][0])


def test_bits_are_those_of_a_copy() -> None:
    """Rows are added in the same order, wherever they lie."""
    x = placeholder("x", Spec((7, 40, 50), np.dtype(np.float32)))
    copy = placeholder("copy", Spec((41, 7, 53), np.dtype(np.float32)))
    seen = ops.pad(ops.transpose(Operation(x), (1, 0, 2)), ((1, 0), NONE, (0, 3)), value=0.1)
    values = np.random.default_rng(7).standard_normal((7, 40, 50)).astype(np.float32)
    lies = np.pad(
        values.transpose(1, 0, 2), ((1, 0), NONE, (0, 3)), constant_values=np.float32(0.1)
    )
    (found,) = Executable([summed(seen).node], executor="native").run({x: values})
    (wanted,) = Executable([summed(Operation(copy)).node], executor="native").run({copy: lies})
    np.testing.assert_array_equal(found, wanted)
