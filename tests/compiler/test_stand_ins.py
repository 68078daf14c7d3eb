"""Axes of unknown size: places far along them, and places that are not there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from magmadnn import Operation, ops
from magmadnn.compiler.stand_ins import PRIMES, stand_ins_for
from magmadnn.errors import IndexOutOfRangeError
from magmadnn.graph import Spec
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import placeholder
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from magmadnn.runtime import Executable
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

EPS = float(
    np.finfo(np.float64).eps
)  # of tanh near 1 the derivative is a difference of 1 and almost 1
FAR: dict[str, Callable[[Operation], Operation]] = {
    "one place": lambda x: x[150],
    "a place of the second axis": lambda x: x[:, 260],
    "from there on": lambda x: x[120:] * 2.0,
    "and further": lambda x: ops.tanh(x[120:, 110:])[130:],
    "all but some": lambda x: x[:-120, :-3] + 1.0,
    "every third": lambda x: x[104::3],
}


@needs_compiler
@pytest.mark.parametrize("way", FAR)
def test_places_far_along_axes_of_unknown_size(way: str) -> None:
    """Further than the usual stand-ins reach."""
    rows, columns = Dim.symbol("rows"), Dim.symbol("columns")
    x = placeholder("x", Spec((rows, columns), np.dtype(np.float64)))
    y = FAR[way](Operation(x))
    (g,) = gradient(ops.sum(y * y).node, [x])
    fed = {x: np.random.default_rng(4).normal(size=(307, 311))}
    wanted = Executable([y.node, g]).run(fed)
    with emulated_device():
        for device in ("cpu", "cuda"):
            run = Executable([y.node, g], executor="native", device=device, check=True)
            for one, other in zip(run.run(fed), wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=8 * EPS, atol=8 * EPS)


@needs_compiler
@pytest.mark.parametrize("place", [0, 2, 150])
def test_the_gradient_of_a_place_that_is_not_there_is_refused(place: int) -> None:
    """Though the value itself is not computed; once zeros were given."""
    x = placeholder("x", Spec((Dim.symbol("rows"), 3), np.dtype(np.float32)))
    (g,) = gradient(ops.sum(Operation(x)[place] * 2.0).node, [x])
    with emulated_device():
        for executor, device in (("reference", "cpu"), ("native", "cpu"), ("native", "cuda")):
            run = Executable([g], executor=executor, device=device)
            size = 0 if not place else 2
            words = f"index {place} is outside axis 0 of size {size}"
            with pytest.raises(IndexOutOfRangeError, match=words):
                run.run({x: np.ones((size, 3), np.float32)})
            (found,) = run.run({x: np.ones((place + 1, 3), np.float32)})
            assert found[place].tolist() == [2.0] * 3 and found.sum() == 6.0


def test_stand_ins_are_as_small_as_can_be() -> None:
    def of(y: Operation) -> list[int]:
        return list(stand_ins_for(Program.of([y.node]).nodes()))

    x = Operation(placeholder("x", Spec((Dim.symbol("rows"), 5000), np.dtype(np.float32))))
    assert of(x[:, 4000:] * 2.0) == of(x[99:]) == of(x[:, 4321]) == list(PRIMES)
    assert (
        of(x[101])[0] == 103
        and of(x[105])[0] == 107
        and of(x[120:])[0] == 211
        and len(set(of(x[120:]))) == len(PRIMES)
    )
    assert of(x[1 << 30])[0] == PRIMES[0]  # which no plan can have
