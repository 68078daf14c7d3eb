"""Movements on a device that swap the axis along which elements lie: by tiles, whatever the sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler.cuda.fused.transposed import Transposed
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda.schedule import small
from magmadnn.runtime.cuda.schedule.launches import Items
from magmadnn.tensor import Operation
from tests.runtime.cuda.devices import DEVICES, on

# shape, axes, dtype, elements that are read together; 0: not by tiles
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], str, int]] = {
    "filters": ((3, 3, 20, 34), (3, 0, 1, 2), "bfloat16", 2),
    "filters back": ((66, 3, 3, 16), (1, 2, 3, 0), "bfloat16", 2),
    "an odd number of filters": ((3, 3, 20, 67), (3, 0, 1, 2), "float16", 1),
    "rows, columns": ((70, 130), (1, 0), "float32", 1),
    "exactly a tile": ((64, 64), (1, 0), "bfloat16", 2),
    "matrices of a stack": ((5, 18, 33), (0, 2, 1), "float32", 1),
    "axes around": ((2, 17, 3, 4, 19), (3, 4, 0, 2, 1), "float32", 1),
    "bytes": ((36, 68), (1, 0), "uint8", 4),
    "few columns": ((40, 8), (1, 0), "float32", 0),
    "few rows": ((8, 40), (1, 0), "float32", 0),
    "elements of 8 bytes": ((40, 40), (1, 0), "float64", 0),
    "rows stay rows": ((20, 30, 8), (1, 0, 2), "float32", 0),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_axes_change_places(device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, axes, dtype, together = CASES[name]
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    seen: list[Any] = []
    moved = Items._moved

    def noted(self: Items, *given: Any) -> Any:
        made = moved(self, *given)
        assert made is not None
        seen.append(made.variant)
        return made

    monkeypatch.setattr(Items, "_moved", noted)
    x = placeholder("x", Spec(shape, as_dtype(dtype)))
    y = ops.transpose(Operation(x), axes)
    y = ops.reshape(y, (int(np.prod(shape)),))  # a copy: the result is packed
    high = 200 if dtype == "uint8" else 99
    array = np.random.default_rng(3).integers(0, high, shape).astype(as_dtype(dtype))
    with on(device):
        (found,) = Executable([y.node], executor="native", device="cuda").run({x: array})
    np.testing.assert_array_equal(found, array.transpose(axes).ravel())
    (variant,) = seen
    assert (variant.together if isinstance(variant, Transposed) else 0) == together
