"""Movements on a device in items of several elements: what they give, and how wide items are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.cuda.fused.moves import MoveVariant
from magmadnn.compiler.cuda.text.variant import Launch
from magmadnn.compiler.kernels.moves import Move
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.schedule.launches import Items
from magmadnn.runtime.cuda.schedule.wide_boxes import alignment_of
from magmadnn.tensor import Operation
from tests.runtime.cuda.devices import DEVICES, on


def padded(*widths: tuple[int, int], value: float = 0.0) -> Any:
    return lambda x: ops.pad(x, ((0, 0), *widths, (0, 0)), value=value)


CASES: dict[
    str, tuple[tuple[int, ...], Any, str, int]
] = {  # shape, function, dtype, bytes of an item
    "pad of wide channels": ((3, 5, 7, 16), padded((1, 2), (2, 1), value=2.5), "float32", 16),
    "pad of three channels": ((2, 4, 6, 3), padded((2, 2), (2, 2)), "float32", 8),
    "pad of halves": ((2, 5, 5, 24), padded((1, 1), (1, 1), value=-1.0), "bfloat16", 16),
    "pad of a prime": ((2, 5, 5, 7), padded((1, 1), (1, 1)), "float32", 4),
    "planes": (
        (4, 6, 8),
        lambda x: ops.reshape(ops.transpose(x, (1, 0, 2)), (24, 8)),
        "float32",
        16,
    ),
    "rows, columns": (
        (12, 20),
        lambda x: ops.reshape(ops.transpose(x, (1, 0)), (240,)),
        "float32",
        4,
    ),
    "repeated": (
        (1, 5, 8),
        lambda x: ops.reshape(ops.broadcast_to(x, (3, 5, 8)), (15, 8)),
        "float32",
        16,
    ),
    "backwards": ((3, 5, 8), lambda x: ops.reshape(x[:, ::-1], (15, 8)), "float32", 16),
    "elements backwards": ((5, 8), lambda x: ops.reshape(x[:, ::-1], (40,)), "float32", 4),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_a_movement(device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, function, dtype, width = CASES[name]
    widths: list[int] = []
    moved = Items._moved

    def noted(self: Items, kernel: Move, node: Any, values: dict[str, int]) -> Launch | None:
        made = moved(self, kernel, node, values)
        assert made is not None and isinstance(made.variant, MoveVariant)
        widths.append(made.variant.kernel.item_bytes)
        return made

    monkeypatch.setattr(Items, "_moved", noted)
    x = placeholder("x", Spec(shape, as_dtype(dtype)))
    result = function(Operation(x))
    array = np.random.default_rng(3).integers(-9, 9, shape).astype(as_dtype(dtype))
    with on(device):
        (found,) = Executable([result.node], executor="native", device="cuda").run({x: array})
    (expected,) = Executable([result.node], executor="reference").run({x: array})
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))
    assert widths == [width]


def test_alignment() -> None:
    assert alignment_of([4096, 64]) == 16
    assert alignment_of([4096, 72]) == 8
    assert alignment_of([4096 + 4, 72]) == 4
    assert alignment_of([4097, 64]) == 1
