"""remake: what a reader makes again of a matrix that it reads anyway; the bits stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.plan.planning import LOOKS_FOR
from magmadnn.compiler.program.recompute import recompute
from magmadnn.compiler.program.remake import remake
from magmadnn.compiler.program.verify import verify
from magmadnn.graph.op import Op
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.ops.images._calls import convolution_whole
from magmadnn.runtime import Executable
from magmadnn.tensor import placeholder

RNG = np.random.default_rng(11)
SETTINGS: dict[str, Any] = {
    "strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1
}  # fmt: skip


def made(way: str) -> Program:
    """What a library makes of a normalisation that ReLU cut, and the gradient of what was normalised."""
    shapes = {"x": (3, 4, 5, 6), "g": (3, 4, 5, 6), "scale": (6,), "shift": (6,), "w": (2, 1, 1, 6)}
    x, g, scale, shift, w = (placeholder(name, s, "float32").node for name, s in shapes.items())
    centred: Any = x - md.ops.mean(x, (0, 1, 2))
    variance = md.ops.mean(md.ops.square(centred), (0, 1, 2))
    normal: Any = centred * (scale / md.ops.sqrt(variance + 1e-5)) + shift
    if way == "two added":
        normal = normal + g
    kept: Any = md.ops.relu(normal)
    taken: Any = kept if way == "no library" else convolution_whole(kept, w, **SETTINGS)
    if way == "only the shift":  # whose gradient needs nothing of x
        return Program.of([taken, *gradient(md.ops.sum(kept * g), [shift])])
    return Program.of([taken, *gradient(md.ops.sum(kept * g), [x])])


def readers_of_kept(program: Program) -> set[str]:
    relu = next(n for n in program.nodes() if isinstance(n.op, Op) and n.op.name == "relu")
    return {n.op.name for n in program.readers[relu] if isinstance(n.op, Op)}


def test_what_relu_kept_is_not_read_by_its_gradient() -> None:
    before = recompute(made("plain"))
    after = remake(before)
    verify(before=before, after=after, name="remake")
    assert readers_of_kept(before) == {"_convolution_whole", "_where_positive"}
    assert readers_of_kept(after) == {"_convolution_whole"}
    feeds = {n: RNG.standard_normal(n.shape).astype(np.float32) for n in before.placeholders}
    one, other = (
        [a.tobytes() for a in Executable(p.outputs, executor="reference").run(feeds)]
        for p in (before, after)
    )
    assert one == other


@pytest.mark.parametrize("way", ["no library", "two added", "only the shift"])
def test_it_is_read_where_that_is_no_more(way: str) -> None:
    """It need not lie in memory; it is made of two matrices; what was normalised is not read beside."""
    before = recompute(made(way))
    assert remake(before) is before


def test_plans_have_the_pass_where_a_library_is_called_and_else_not() -> None:
    wanted = LOOKS_FOR[remake.__name__]
    assert any(map(wanted, made("plain").nodes()))
    assert not any(map(wanted, made("no library").nodes()))
