"""Steps that NumPy computes as tasks of the native driver: many batches in one call, errors, interrupts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import DataError
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu.host_call import HostCall
from magmadnn.runtime.cpu.sliced.slices import Slices
from magmadnn.runtime.threads import thread_count
from tests.runtime.by_numpy import X, Y, by_numpy, failing_at, network, trained


class EachBatch(md.callbacks.Callback):
    """Looks after every step, so that batches run one by one."""

    def on_batch_end(self, fit: Any) -> None:
        """Nothing."""


def test_many_batches_run_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as fit asks for, with the bits of single steps and of any number of threads."""
    batches: list[int] = []
    run = Slices.run

    def counted(self: Slices, data: Any, order: Any, *rest: Any) -> Any:
        batches.append(len(order) // 16)
        return run(self, data, order, *rest)

    monkeypatch.setattr(Slices, "run", counted)
    together = trained(network(lambda x: None))
    assert sum(batches) == 3 * (len(X) // 16) and max(batches) > 1
    assert "1 calls of NumPy" in together.plan(X, Y)
    count, alone = len(batches), trained(network(lambda x: None), callbacks=[EachBatch()])
    assert len(batches) == count
    for name, value in together.values().items():
        assert value.tobytes() == alone.values()[name].tobytes()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_do_not_depend_on_threads(threads: int) -> None:
    wanted = trained(network(lambda x: None)).values()
    before = thread_count()
    md.set_threads(threads)
    try:
        found = trained(network(lambda x: None)).values()
    finally:
        md.set_threads(before)
    assert {n: v.tobytes() for n, v in found.items()} == {n: v.tobytes() for n, v in wanted.items()}


def test_what_numpy_raises_comes_out_with_its_own_words() -> None:
    """From whatever thread: the batch is run again by itself, and names the operation."""

    def look(x: np.ndarray) -> None:
        if (x == X[100, 0]).any():
            raise DataError("double: row 100 is not welcome")

    model = network(look)
    with pytest.raises(DataError, match="row 100 is not welcome"):
        trained(model, shuffle=False)
    stepped = network(lambda x: None)  # batches 0 to 5 were whole
    stepped.fit(X[:96], Y[:96], batch_size=16, shuffle=False, verbose=False)
    for name, value in model.values().items():
        assert value.tobytes() == stepped.values()[name].tobytes(), name


def test_an_interruption_is_raised_and_leaves_the_variables_of_whole_slices() -> None:
    model = network(failing_at(5, KeyboardInterrupt()))
    before = model.values()
    with pytest.raises(KeyboardInterrupt):
        trained(model)
    for name, value in model.values().items():
        assert value.tobytes() == before[name].tobytes(), name
    again = trained(network(lambda x: None)).values()  # and the model can go on as if it were new
    model.optimizer = md.optim.Adam(0.01)
    assert {n: v.tobytes() for n, v in trained(model).values().items()} == {
        n: v.tobytes() for n, v in again.items()
    }


def test_what_is_written_in_place_waits_for_what_numpy_may_raise() -> None:
    """A step of NumPy that only an update needs: where it raises, no other variable has its new value."""
    x = md.placeholder("x", (3, 7))
    counted, doubled = (
        md.variable("counted", np.ones(2)),
        md.variable("doubled", np.ones((3, 7), np.float32)),
    )
    made = by_numpy(failing_at(2, DataError("double: not again")))(x)
    updates = [(counted.node, counted.node + 1.0), (doubled.node, made.node)]
    step = Executable([(x.node * 3.0)], updates, executor="native", check=True)
    feeds = {x.node: X[:3]}
    step.run(feeds)
    with pytest.raises(DataError, match="not again"):
        step.run(feeds)
    assert np.array_equal(counted, [2.0, 2.0])
    assert np.array_equal(doubled, 2 * X[:3])


def test_a_failure_is_told_once() -> None:
    faults = np.zeros(1, np.int64)
    call = HostCall(lambda: 1 // 0, faults)
    call._run(0, 0, 0)
    assert faults[0] == 1
    assert isinstance(call.take_failure(), ZeroDivisionError)
    assert call.take_failure() is None


def test_eval_tells_what_numpy_raises() -> None:
    x = md.placeholder("x", ("rows", 7))
    made = by_numpy(failing_at(2, DataError("double: not again")))(x)
    assert np.array_equal(made.eval({x: X}).numpy(), 2 * X)
    with pytest.raises(DataError, match="not again"):
        made.eval({x: X})
    assert np.array_equal(made.eval({x: X}).numpy(), 2 * X)
