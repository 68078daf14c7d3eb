"""What is fed: bound once for each set of shapes and dtypes, and never less strictly than the first time."""

from __future__ import annotations

import numpy as np
import pytest

from magmadnn import ops
from magmadnn.compiler import Plan, compile_program
from magmadnn.errors import DTypeError, GraphError, ShapeError
from magmadnn.graph.program import Program
from magmadnn.runtime.binding import Bindings
from tests.compiler.sample_programs import BATCH, ramp
from tests.graph.bare_nodes import placed

X, Y = placed("x", BATCH, 7), placed("y", BATCH, 1)


def plan() -> Plan:
    return compile_program(Program.of([ops.exp(X + Y)]))


def test_feeds_that_fit_are_handed_on() -> None:
    bindings, feeds = Bindings(plan().program), {X: ramp(5, 7), Y: ramp(5, 1)}
    for _ in range(3):
        fed, sizes = bindings(feeds)
        assert all(fed[node] is feeds[node] for node in (X, Y)) and sizes == {"batch": 5}


def test_what_has_to_be_converted_is_converted_every_time() -> None:
    bindings = Bindings(plan().program)
    for _ in range(2):
        fed, _ = bindings({X: ramp(5, 7).astype(np.float64), Y: [[1.0]] * 5})
        assert fed[X].dtype == fed[Y].dtype == np.float32


def test_errors_stay_after_feeds_that_fit() -> None:
    bindings, right = Bindings(plan().program), {X: ramp(5, 7), Y: ramp(5, 1)}
    for _ in range(2):
        bindings(right)
        with pytest.raises(ShapeError, match="axis 1 must be 7, got 6"):
            bindings({**right, X: ramp(5, 6)})
        with pytest.raises(ShapeError, match="but 5 in x"):
            bindings({**right, Y: ramp(4, 1)})
        with pytest.raises(GraphError, match=r"y .* is not fed"):
            bindings({X: right[X]})
        with pytest.raises(DTypeError, match="expected float32, got complex128"):
            bindings({**right, X: right[X].astype(np.complex128)})
