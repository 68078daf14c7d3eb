"""What a loop refuses: bodies that return something else, lengths that differ, effects in the body."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, DTypeError, GraphError, NumericError, ShapeError
from magmadnn.runtime import Executable
from tests.refusals.cases import PythonCase, check_in_python

SEVEN = md.variable("seven", np.int64(7))
ZERO, ROWS = np.zeros(3, np.float32), np.ones((5, 3), np.float32)


def with_update(h: Any, x: Any) -> Any:
    count = md.variable("count", np.float32(0.0))
    return md.with_update(h + x, count, count + 1.0), ()


def with_dropout(h: Any, x: Any) -> Any:
    return md.layers.Dropout(0.5, name="thin")(h + x), ()


def drawn_alike(n: Any, _: Any) -> Any:
    inner = md.scan(lambda k, _: (k + 1, md.ops.random_uniform(k, (2,))), np.int64(0), length=2)
    return n + 1, inner[1]


def leaked() -> md.Operation:
    kept: list[md.Operation] = []

    def body(h: Any, x: Any) -> Any:
        kept.append(h + 1.0)
        return h + x, ()

    md.scan(body, ZERO, ROWS)
    return kept[0]


def nan_in_step(_: Path) -> None:
    x = md.placeholder("x", ("time", 3))
    last, _ = md.scan(lambda h, x: (md.ops.log(x) + h, ()), ZERO, x)
    made = Executable([last.node], executor="native")
    made.run({x.node: -ROWS}, guard=True)


def wrong_class(_: Path) -> None:
    table, x = md.variable("table", np.eye(3)), md.variable("x", np.array([0, 7]))
    md.scan(lambda h, k: (h + md.ops.take(table, k, axis=0), ()), np.zeros(3), x)[0].eval()


PYTHON: dict[str, PythonCase] = {
    "no length": (
        lambda p: md.scan(lambda h, _: (h, ()), ZERO),
        ArgumentError,
        "scan: there are no inputs to count the steps of; give length=",
    ),
    "length below 0": (
        lambda p: md.scan(lambda h, _: (h, ()), ZERO, length=-1),
        ArgumentError,
        "scan: length must be an integer of at least 0, got -1",
    ),
    "lengths differ": (
        lambda p: md.scan(lambda h, x: (h, ()), ZERO, (ROWS, ROWS[:4])),
        ShapeError,
        "scan: axis 0 (steps) of inputs[1] (4, 3) is 4, but inputs[0] has 5; make them equal",
    ),
    "another length than that of the inputs": (
        lambda p: md.scan(lambda h, x: (h, ()), ZERO, ROWS, length=6),
        ShapeError,
        "scan: axis 0 (steps) of inputs[0] (5, 3) is 5, but length is 6; make them equal",
    ),
    "an input without an axis": (
        lambda p: md.scan(lambda h, x: (h, ()), ZERO, np.float32(1.0)),
        ShapeError,
        "scan: inputs[0] is a number, expected steps along axis 0",
    ),
    "a number that is carried": (
        lambda p: md.scan(lambda h, x: (h + x, ()), 0.0, ROWS),
        ArgumentError,
        "scan: carried: 0.0 has no dtype; give an array, for instance np.float32(0.0)",
    ),
    "no function": (
        lambda p: md.scan(3, ZERO, ROWS),
        ArgumentError,
        (
            "scan: the body must be a function of two arguments, what is carried and the slices of a step "
            "(() where there are no inputs), got 3"
        ),
    ),
    "a function of one argument": (
        lambda p: md.scan(lambda h: (h, ()), ZERO, length=3),
        ArgumentError,
        "~scan: the body must be a function of two arguments, .*",
    ),
    "values by name": (
        lambda p: md.scan(lambda h, x: (h, ()), {"h": ZERO}, ROWS),
        DTypeError,
        (
            "scan: carried: expected an Operation or an array of numbers, or several in a tuple, got dict; "
            "() is none"
        ),
    ),
    "nothing kept, as None": (
        lambda p: md.scan(lambda h, x: (h, None), ZERO, ROWS),
        DTypeError,
        (
            "scan: the body keeps: expected an Operation or an array of numbers, or several in a tuple, got "
            "NoneType; () is none"
        ),
    ),
    "a value of a step outside of the loop": (
        lambda p: leaked().eval(),
        GraphError,
        (
            "carried[0] of a loop (md.scan) has a value in its steps only: return what is needed of a step "
            "as an output of the body"
        ),
    ),
    "no pair": (
        lambda p: md.scan(lambda h, x: h + x, ZERO, ROWS),
        ArgumentError,
        (
            "scan: the body must return a pair: what is carried on, and what is kept of the step (() for "
            "nothing), got Operation"
        ),
    ),
    "fewer carried on": (
        lambda p: md.scan(lambda hc, x: (hc[0] + x, ()), (ZERO, ZERO), ROWS),
        ArgumentError,
        (
            "scan: the body takes 2 carried values, but carries on 1; return them in the same form, then the "
            "outputs: (carried, outputs)"
        ),
    ),
    "another shape": (
        lambda p: md.scan(lambda h, x: (h.sum(), ()), ZERO, ROWS),
        ShapeError,
        (
            "scan: carried[0] begins as float32[3], but the body gives float32[]; every step must give the "
            "shape that it takes: reshape it"
        ),
    ),
    "another dtype": (
        lambda p: md.scan(lambda h, x: (h + x, ()), ZERO, ROWS.astype(np.float64)),
        DTypeError,
        (
            "scan: carried[0] begins as float32[3], but the body gives float64[3]; cast it, or begin with "
            "float64"
        ),
    ),
    "a variable is updated": (
        lambda p: md.scan(with_update, ZERO, ROWS),
        GraphError,
        (
            "scan: the body gives count a new value, which a loop cannot (in scan); carry the value instead, "
            "and update the variable with what the last step gave"
        ),
    ),
    "a layer that counts": (
        lambda p: md.scan(with_dropout, ZERO, ROWS),
        GraphError,
        "~scan: .*(random_uniform in the body draws|counter a new value).*",
    ),
    "the same numbers in each step": (
        lambda p: md.scan(lambda h, x: (h + md.ops.random_uniform(SEVEN, (3,)), ()), ZERO, ROWS),
        GraphError,
        (
            "scan: random_uniform in the body draws the same numbers in each step (in scan); carry a counter "
            "and draw with it, or draw outside of the body for the same numbers in all steps"
        ),
    ),
    "the same numbers in each step, in a loop in it": (
        lambda p: md.scan(drawn_alike, np.int64(0), length=3),
        GraphError,
        (
            "scan: _scan in the body draws the same numbers in each step (in scan); carry a counter and draw "
            "with it, or draw outside of the body for the same numbers in all steps"
        ),
    ),
    "NaN in a step": (
        nan_in_step,
        NumericError,
        "~log in scan: the result has NaN, first at \\(0,\\); .*",
    ),
    "a row that is not there": (wrong_class, md.errors.DataError, "~take: .*7.*"),
}


@pytest.mark.parametrize("name", PYTHON)
def test_in_python(place: Path, name: str) -> None:
    check_in_python(place, PYTHON[name])
