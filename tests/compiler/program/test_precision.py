"""precision: which products get rounded operands, and what they then compute."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.program.precision import PRECISIONS, precision
from magmadnn.compiler.program.verify import verify
from magmadnn.errors import UnknownNameError
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program
from magmadnn.runtime import Executable
from magmadnn.tensor import placeholder

HALVES: dict[str, Any] = {"mixed_bf16": ml_dtypes.bfloat16, "mixed_fp16": np.float16}
DRAW = np.random.default_rng(5)
X, W = (DRAW.normal(size=s).astype(np.float32) for s in ((5, 7), (7, 3)))


def graph(dtype: str = "float32") -> tuple[Any, Any, Any]:
    x, w = placeholder("x", (5, 7), dtype), placeholder("w", (7, 3), dtype)
    return x, w, ops.tanh(x @ w) * 3.0


def names(program: Program) -> list[str]:
    return [n.op.name for n in program.nodes() if isinstance(n.op, Op)]


def test_before_and_after() -> None:
    program = Program.of([graph()[2].node])
    assert names(program) == ["matmul", "tanh", "multiply"]
    after = precision(program, "mixed_bf16")
    assert names(after) == ["cast"] * 4 + ["matmul", "tanh", "multiply"]
    verify(before=program, after=after, name="precision")
    assert precision(program, "tf32") is program


@pytest.mark.parametrize("executor", ["reference", "native"])
@pytest.mark.parametrize("mode", HALVES)
def test_operands_are_rounded_and_sums_are_not(mode: str, executor: str) -> None:
    x, w, y = graph()
    (found,) = Executable([y.node], executor=executor, precision=mode).run({x.node: X, w.node: W})
    rounded = [a.astype(HALVES[mode]).astype(np.float64) for a in (X, W)]
    expected = 3 * np.tanh(rounded[0] @ rounded[1])
    eps = np.finfo(np.float32).eps
    np.testing.assert_allclose(found, expected, rtol=8 * eps * np.sqrt(7), atol=8 * eps)
    exact = 3 * np.tanh(X.astype(np.float64) @ W)
    assert np.abs(found - exact).max() > 100 * eps  # it did round


def test_an_operand_of_two_products_is_rounded_once() -> None:
    x, w, _ = graph()
    program = precision(Program.of([(x @ w).node, (x @ (w * 2.0)).node]), "mixed_fp16")
    assert names(program).count("cast") == 6


def test_other_dtypes_stay() -> None:
    program = Program.of([graph("float64")[2].node])
    assert precision(program, "mixed_bf16").outputs == program.outputs


def test_an_unknown_precision() -> None:
    with pytest.raises(UnknownNameError, match=r"precision .tf23.*tf32"):
        precision(Program.of([graph()[2].node]), "tf23")


def test_a_model_learns_in_every_precision() -> None:
    x = DRAW.normal(size=(307, 11)).astype(np.float32)
    y = (x @ DRAW.normal(size=(11, 3))).argmax(1)
    losses = {}
    for mode in PRECISIONS:
        model = md.Model(
            [md.layers.Input((11,)), md.layers.Dense(17, activation="tanh"), md.layers.Dense(3)],
            loss="cross_entropy", optimizer=md.optim.Adam(0.01), precision=mode,
        )  # fmt: skip
        losses[mode] = model.fit(x, y, epochs=4, verbose=False).rows[-1]["loss"]
        wide = np.float64 if mode == "float64" else np.float32
        assert all(v.dtype == wide for v in model.values().values())
    assert losses["tf32"] == losses["float32"]  # on a CPU
    assert len(set(losses.values())) == len(PRECISIONS) - 1
    assert max(losses.values()) < 0.8 < np.log(3)


def test_a_sum_of_gradients_of_images_is_stored_in_halves() -> None:
    """The gradient of what enters a residual block is read by two; it is rounded once, after it was cut."""
    shape = (2, 5, 5, 4)
    x, w = placeholder("x", shape, "float32"), placeholder("w", (3, 3, 4, 4), "float32")
    entered = ops.relu(x)
    left = entered + ops.tanh(ops.convolution(entered, w, padding=((1, 1), (1, 1))))
    (gradient,) = md.grad(ops.sum(left * left), [x])
    arrays = [DRAW.normal(size=s).astype(np.float32) for s in (shape, (3, 3, 4, 4))]
    feeds = dict(zip((x.node, w.node), arrays, strict=True))
    mixed = precision(Program.of([(gradient * 2.0).node, (gradient * 3.0).node]), "mixed_bf16")
    found = Executable(mixed.outputs, executor="reference").run(feeds)
    half = HALVES["mixed_bf16"]
    assert found[0].any()
    np.testing.assert_array_equal(found[0], found[0].astype(half).astype(np.float32))
    np.testing.assert_allclose(found[1], 1.5 * found[0], rtol=1e-7)
