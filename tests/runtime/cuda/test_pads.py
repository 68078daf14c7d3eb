"""Copies with a constant around them: by index where they are one matrix, else as boxes."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from magmadnn import ops
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.memory import as_dtype
from magmadnn.runtime import Executable
from magmadnn.tensor import Operation
from tests.runtime.cuda.devices import DEVICES, on

NONE = (0, 0)
Make = Callable[[Operation], Operation]
# a shape, what is made of it, and whether a kernel finds elements by their index
CASES: dict[str, tuple[tuple[int, ...], Make, bool]] = {
    "rows": ((5, 37), lambda x: ops.pad(x, ((2, 3), NONE)), True),
    "columns": ((5, 37), lambda x: ops.pad(x, (NONE, (1, 6))), True),
    "both": ((5, 60), lambda x: ops.pad(x, ((1, 0), (2, 2)), -1.5), True),
    "images": ((2, 5, 6, 64), lambda x: ops.pad(x, (NONE, (1, 2), (2, 1), NONE), -np.inf), True),
    "a slice": ((5, 9, 40), lambda x: ops.pad(x[:, 2:7, 3:], (NONE, (1, 0), (0, 3))), True),
    "one row": ((37,), lambda x: ops.pad(x, ((3, 2),)), True),
    "narrow": ((5, 7), lambda x: ops.pad(x, (NONE, (1, 1))), False),
    "every second": ((5, 90), lambda x: ops.pad(x[:, ::2], (NONE, (1, 1))), False),
    "beside itself": (
        (5, 37),
        lambda x: ops.concat([ops.pad(x, ((5, 0), NONE)), ops.pad(x, ((0, 5), NONE))], 1),
        True,
    ),
    "nothing": ((0, 37), lambda x: ops.pad(x, ((2, 3), NONE)), False),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32"])
def test_copies(dtype: str, device: str) -> None:
    rng = np.random.default_rng(2)
    with on(device):
        for name, (shape, make, by_index) in CASES.items():
            if dtype == "int32" and name in ("images", "both"):
                continue  # whose constants are no integers
            x = placeholder("x", Spec(shape, as_dtype(dtype)))
            made = make(Operation(x))
            values = (9 * rng.standard_normal(shape)).astype(as_dtype(dtype))
            (wanted,) = Executable([made.node], executor="reference").run({x: values})
            step = Executable([made.node], executor="native", device="cuda")
            (found,) = step.run({x: values})
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted, err_msg=name)
            is_row = "own kernel (rows)" in step.text({})
            assert is_row == (by_index and dtype != "int32"), name


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradient_of_a_slice(device: str) -> None:
    """Which a product reads: zeros around what comes back."""
    rng = np.random.default_rng(3)
    x, w = (
        placeholder(n, Spec(s, np.dtype(np.float32))) for n, s in (("x", (9, 40)), ("w", (40, 7)))
    )
    loss = ops.sum((Operation(x) @ Operation(w))[3:8] * 2)
    slopes = gradient(loss.node, [x, w])
    given = {n: rng.integers(-4, 5, n.shape).astype(np.float32) for n in (x, w)}
    wanted = Executable(slopes, executor="reference").run(given)
    with on(device):
        found = Executable(slopes, executor="native", device="cuda").run(given)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("device", DEVICES)
def test_payloads_of_nan_stay_numbers_that_are_none(device: str) -> None:
    values = np.array([[0x7F81, 0xFFC3, 0x8000, 0x0001] * 9], np.uint16).view(ml_dtypes.bfloat16)
    x = placeholder("x", Spec(values.shape, values.dtype))
    made = ops.pad(Operation(x), ((1, 0), NONE))
    with on(device):
        (found,) = Executable([made.node], executor="native", device="cuda").run({x: values})
    assert np.isnan(found[1, ::4].astype(np.float32)).all()
    assert np.isnan(found[1, 1::4].astype(np.float32)).all()
    np.testing.assert_array_equal(found[1, 2::4].view(np.uint16), 0x8000)
    np.testing.assert_array_equal(found[1, 3::4].view(np.uint16), 1)
