"""Traces of products: what they show on the simulator's clock, on processes, and by events of a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Network, SimulatedCommunicator, simulate
from magmadnn.dmath import Columns, Rows
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.arrays.tracing import MESSAGE, PRODUCT, Trace, span
from magmadnn.dmath.client.timeline import Timeline
from magmadnn.dmath.layouts.recipes import resolve
from magmadnn.dmath.products import running
from magmadnn.dmath.products.choosing import candidates
from magmadnn.errors import FileError
from tests.dmath.drawn import parts_of, plain

N, WORKERS, FLOPS = 48, 4, 1e9


def simulated(name: str, ratio: float) -> Timeline:
    """A product whose blocks take `ratio` times as long to send as to multiply by."""
    lies = resolve(Columns() if name == "ring of A" else Rows(), (N, N), WORKERS)
    plan = next(p for p in candidates(lies, lies, lies) if p.name == name)
    stage = 2 * (N / WORKERS) ** 2 * N / FLOPS
    network = Network(0.0, N / WORKERS * N * 8 / (ratio * stage))
    x = np.random.default_rng(0).standard_normal((N, N))

    def one(comm: SimulatedCommunicator) -> Any:
        def timed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            comm.advance(2 * a.shape[0] * a.shape[1] * b.shape[1] / FLOPS)
            made: np.ndarray = a @ b
            return made

        team = Team(comm, multiply=timed)
        team.trace = Trace(team)
        running.run(parts_of(team, x, lies), parts_of(team, x, lies), plan, x.dtype, plain(x))
        return team.trace.told()

    return Timeline.of(simulate(WORKERS, one, network=network))


@pytest.mark.parametrize("name", ["ring of B", "ring of A"])
@pytest.mark.parametrize("ratio", [0.25, 1.0, 4.0])
def test_a_ring_hides_its_messages_as_far_as_products_last(name: str, ratio: float) -> None:
    found = simulated(name, ratio)
    stage = 2 * (N / WORKERS) ** 2 * N / FLOPS
    for worker in range(WORKERS):
        assert found.seconds(worker, PRODUCT) == pytest.approx(WORKERS * stage)
        assert found.seconds(worker, MESSAGE) == pytest.approx(
            (WORKERS - 1) * max(1, ratio) * stage
        )
        assert found.hidden(worker) == pytest.approx(1 / max(1, ratio))
    products = [one for one in found.spans if one.kind == PRODUCT]
    assert len(products) == WORKERS**2 and products[0].what == "12 x 12 x 48"


def test_bringing_operands_first_hides_nothing() -> None:
    found = simulated("C stays", 1.0)
    assert [found.hidden(worker) for worker in range(WORKERS)] == [0.0] * WORKERS
    assert all(found.seconds(worker, MESSAGE) > 0 for worker in range(WORKERS))
    assert str(found).splitlines()[1].endswith("0%")


def test_a_trace_of_processes_is_written_for_browsers(tmp_path: Path) -> None:
    a = np.random.default_rng(1).standard_normal((256, 256))
    with md.workers(2) as w:
        A = w.array(a, layout=Rows())
        made: list[Any] = []
        found = w.trace(lambda: made.append(A @ A))
        np.testing.assert_allclose(np.asarray(made[0]), a @ a, rtol=1e-12, atol=1e-11)
        for worker in (0, 1):
            assert found.seconds(worker, PRODUCT) > 0 and found.seconds(worker, MESSAGE) > 0
        assert all(0 <= one.start <= one.end < 60 for one in found.spans)
        assert not w.trace(lambda: None).spans  # and the last one has ended
        fixed = md.dmath.distributed(w, deterministic="layout")
        B = fixed.array(a, layout=Rows())
        assert fixed.trace(lambda: B @ B).seconds(0, PRODUCT) > 0
    found.to_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    shown = [one for one in events if one["ph"] == "X"]
    assert len(shown) == len(found.spans)
    assert {(one["pid"], one["tid"]) for one in shown} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    with pytest.raises(FileError, match="trace: cannot write"):
        found.to_chrome_trace(tmp_path / "none" / "trace.json")


def test_in_this_process_there_are_products_only() -> None:
    with md.workers(0) as w:
        A = w.random((64, 64), seed=1)
        found = w.trace(lambda: A @ A)
    assert [one.kind for one in found.spans] == [PRODUCT]
    assert found.hidden(0) == 1.0


class Event:
    """Of a stream: when it was recorded, in milliseconds."""

    def __init__(self, at: float) -> None:
        self.at = at

    def synchronize(self) -> None:
        pass


def test_on_a_gpu_spans_are_between_events_of_their_streams() -> None:
    """Products stand on the present stream, copies on their own, which is further behind here."""
    now = {"present": 100.0, "copies": 200.0}

    def recorded(stream: str) -> Event:
        now[stream] += 1.0
        return Event(now[stream])

    stream = SimpleNamespace(record=lambda: recorded("present"))
    cuda = SimpleNamespace(
        get_current_stream=lambda: stream, get_elapsed_time=lambda a, b: b.at - a.at
    )
    finished = list[int]()
    team: Any = SimpleNamespace(
        xp=SimpleNamespace(cuda=cuda),
        comm=SimpleNamespace(),
        peers=SimpleNamespace(mark=lambda: recorded("copies")),
        finish=lambda: finished.append(1),
    )
    team.trace = trace = Trace(team)
    with span(team, PRODUCT, "a"):
        pass
    with span(team, MESSAGE, "b", copies=True):
        pass
    (_, _, start, end), (_, _, begun, ended) = trace.told()
    assert end - start == pytest.approx(1e-3) and ended - begun == pytest.approx(1e-3)
    assert begun - start == pytest.approx((201.0 - 102.0) / 1e3)
    assert len(finished) == 2  # before it begins, and before times are asked for
