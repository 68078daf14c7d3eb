"""Arrays with elements in common: views that are written to, results that share none, copies that follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from magmadnn import dmath as dm
from magmadnn.comm import Communicator
from magmadnn.comm.simulated import simulate
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.client.engines import Recording
from magmadnn.dmath.worker import Worker
from magmadnn.errors import ArgumentError
from tests.dmath.test_client import alone, gathered

LAYOUTS: tuple[Any, ...] = (
    dm.Blocks((2, 3)), dm.Rows(block=1), dm.Columns(block=2), dm.Rows(), dm.Replicated(),
)  # fmt: skip
# Statements on an array of 5 x 5; NumPy reads the right side before it writes.
WRITES: dict[str, Callable[[Any], Any]] = {
    "turned round": lambda a: a.__iadd__(a[::-1, ::-1]),
    "transposed": lambda a: a.__isub__(a.T),
    "a row of it": lambda a: a.__imul__(a[0]),
    "a column of it": lambda a: a.__isub__(a[:, 2:3]),
    "an element of it": lambda a: a.__itruediv__(a[3, 1]),
    "the rows before": lambda a: a[1:].__iadd__(a[:-1]),
    "every other row": lambda a: a[::2, 1:].__imul__(a[2::-1, :-1]),
    "assigned": lambda a: a[:, 1:].__setitem__(..., a[:, :-1]),
    "assigned transposed": lambda a: a.__setitem__(..., a.T),
}


@pytest.mark.parametrize("write", WRITES)
def test_views_of_what_is_written_are_read_as_they_were(write: str) -> None:
    values = np.random.default_rng(3).integers(1, 9, (5, 5)).astype(float)
    expected = values.copy()
    WRITES[write](expected)

    def script(w: dm.Session, check: Callable[[Any, Any], None]) -> None:
        for layout in LAYOUTS:
            A = w.array(values, layout=layout)
            WRITES[write](A)
            check(A, expected)

    script(alone(), lambda found, value: np.testing.assert_array_equal(np.asarray(found), value))
    gathered(script, 3)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_results_share_no_elements_with_operands(layout: Any) -> None:
    """Real parts were views, of which no version was kept; `flip` was one where the axis was not cut."""
    w = alone()
    real = np.random.default_rng(4).uniform(1, 2, (5, 4))
    for values in (real, real + 1j * real[::-1]):
        for function in (dm.real, dm.imag, dm.flip, dm.positive, lambda x: dm.flip(x, axis=1),
                         lambda x: dm.diff(x, n=0), lambda x: dm.max(x, axis=()), dm.clip):  # fmt: skip
            if function is dm.clip and values.dtype.kind == "c":
                continue
            A = w.array(values, layout=layout)
            made = function(A)
            before = np.asarray(made)
            A[...] = 0
            np.testing.assert_array_equal(np.asarray(made), before)
            made[...] = 7
            np.testing.assert_array_equal(np.asarray(A), np.zeros((5, 4)))
            np.testing.assert_array_equal(np.asarray(made), np.full(before.shape, 7))


def test_views_of_replicas_follow_the_original() -> None:
    values = np.random.default_rng(5).integers(0, 9, (4, 3)).astype(float)

    def script(w: dm.Session, check: Callable[[Any, Any], None]) -> None:
        A = w.array(values, layout=dm.Rows())
        R = A.replica()
        row, turned, again, some = R[1:], R.T, R.replica(on=[0]), R[:, ::2].T[:1]
        for step in (1.0, 2.0):
            A[1:] += step
            now = values + step * (step + 1) / 2 * (np.arange(4) > 0)[:, None]
            for found, expected in (
                (R, now), (row, now[1:]), (turned, now.T), (again, now), (some, now[:, ::2].T[:1]),
                (R.copy(), now), (row @ turned, now[1:] @ now.T),
            ):  # fmt: skip
                check(found.copy(), expected)

    script(alone(), lambda found, value: np.testing.assert_array_equal(np.asarray(found), value))
    gathered(script, 3)


def test_a_replica_is_made_again_at_the_cost_of_the_line_that_uses_it() -> None:
    """The bytes stood at no line, so that the bill did not add up."""
    engine = Recording(2)
    session = dm.Session(engine)
    R = session.ones((4, 6), layout=dm.Rows()).replica()
    made = R + 1

    def run(comm: Communicator) -> dict[str, int]:
        worker = Worker(Team(comm))
        for record, _ in engine.records:
            worker.run(record)
        return {line: count.sent_bytes for line, count in worker.team.lines.items()}

    for lines in simulate(2, run):
        assert "" not in lines and max(lines.values()) == 2 * 6 * 8
    assert made.shape == (4, 6)


def test_a_view_of_a_replica_is_not_written_to() -> None:
    w = alone()
    A = w.zeros((4, 3))
    R = A.replica()
    view = R[1:].T
    view += 5
    for x in (view, R):
        if x is view:
            with pytest.raises(
                ArgumentError, match="add: a replica has the values of its original"
            ):
                np.asarray(x)
        np.testing.assert_array_equal(np.asarray(x), np.zeros(x.shape))


def test_memory_that_views_share_is_counted_once() -> None:
    w = alone()
    A = w.zeros((100, 10))
    views = [A.T, A[3:], A[:, ::-1]]
    assert w.counters()["array_bytes"] == A.nbytes
    replica = A.replica()
    replica.wait()
    assert w.counters()["array_bytes"] == 2 * A.nbytes
    del A, views[1:]  # the last view keeps all of it
    assert w.counters()["array_bytes"] == 2 * 8000
    del views, replica
    assert w.counters()["array_bytes"] == 0
