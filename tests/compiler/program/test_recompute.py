"""recompute: what is computed again by each reader, where that moves fewer bytes; the bits stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda.engine import FUSED_CONVOLUTIONS
from magmadnn.compiler.program.recompute import recompute
from magmadnn.compiler.program.verify import verify
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program
from magmadnn.runtime import Executable
from magmadnn.tensor import placeholder
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

RNG = np.random.default_rng(7)
IMAGES = RNG.standard_normal((6, 8, 8, 3)).astype(np.float32)
LABELS = RNG.integers(0, 4, 6)


def test_a_difference_is_computed_by_each_reader() -> None:
    """Sums of d and of d * d, with d = x - mean: d has no memory, and is a node for each of its readers."""
    x = placeholder("x", (64, 5), "float32")
    d = x - md.ops.mean(x, axis=0)
    program = Program.of([md.ops.sum(d, axis=0).node, md.ops.sum(d * d, axis=0).node])
    after = recompute(program)
    verify(before=program, after=after, name="recompute")
    differences = [n for n in after.nodes() if isinstance(n.op, Op) and n.op.name == "subtract"]
    assert len(differences) == 2
    feeds = {x.node: RNG.standard_normal((64, 5)).astype(np.float32)}
    one, other = (
        [a.tobytes() for a in Executable(p.outputs, executor="reference").run(feeds)]
        for p in (program, after)
    )
    assert one == other


def network(device: str, precision: str) -> md.Model:
    layers = md.layers
    return md.Model(
        [
            layers.Input((8, 8, 3)), layers.Conv2D(8, 3, padding="same"), layers.BatchNorm(),
            layers.Activation("relu"), layers.Conv2D(8, 3, padding="same"), layers.Flatten(), layers.Dense(4),
        ],
        loss="cross_entropy", optimizer=md.optim.SGD(0.1), seed=3, device=device, precision=precision,
    )  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(
    "precision", ["float32", pytest.param("mixed_bf16", marks=pytest.mark.long)]
)
def test_a_gradient_that_a_library_gave_is_cut_by_its_readers(precision: str) -> None:
    """The gradient of BatchNorm's result has no memory of its own, and training is what it is elsewhere."""

    def trained(device: str) -> tuple[dict[str, Any], str]:
        net = network(device, precision)
        net.fit(IMAGES, LABELS, epochs=2, batch_size=6, verbose=False)
        return net.values(), net.plan()

    here, _ = trained("cpu")
    with emulated_device(functions=FUSED_CONVOLUTIONS):
        there, plan = trained("cuda")
    cut = [line for line in plan.splitlines() if "_where_positive" in line and "keeps" in line]
    assert cut == []
    assert any(" columns " in line and "_where_positive" in line for line in plan.splitlines())
    unit = 2.0**-8 if precision == "mixed_bf16" else np.finfo(np.float32).eps
    for name, value in here.items():
        # two steps, each a sum of up to 384 rounded products; steps of the size of the values
        allowed = 0.1 * 2 * unit * np.sqrt(384) * max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(there[name], value, rtol=0, atol=allowed, err_msg=name)
