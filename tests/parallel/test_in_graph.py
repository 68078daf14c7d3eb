"""A step of several ranks as one program: the bits of two programs, and sums beside what is computed."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, bound, simulate
from magmadnn.comm.groups import telling
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.errors import NumericError
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder
from magmadnn.parallel.buckets import last_apart
from magmadnn.parallel.in_graph import whole_step
from magmadnn.parallel.in_graph.beside import Beside
from magmadnn.parallel.in_graph.slices import RanksSlices
from magmadnn.parallel.in_graph.whole_step import _gpu_buckets
from tests.comm.test_launch import launched

from .test_data_parallel import RANKS, WEIGHTS, X, network, sha, trained


class Looks(md.callbacks.Callback):
    """Wants to see each batch, so none is in a slice."""

    def batches(self, fit: Any) -> int:
        return 1


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Communicator, RanksSlices, int]]:
    """The slices that ran, and of how many batches."""
    found: list[tuple[Communicator, RanksSlices, int]] = []
    known = RanksSlices.run

    def run(self: RanksSlices, order: Any, count: int, follows: bool = False) -> Any:
        found.append((self._comm, self, count))
        return known(self, order, count, follows)

    monkeypatch.setattr(RanksSlices, "run", run)
    return found


@pytest.mark.parametrize(
    ("bucket", "options", "numbers"),
    [
        (64, {"batch_size": 24}, RANKS),
        (1 << 20, {"sample_weight": WEIGHTS, "accumulate": 3, "shards": 13}, (1, 3)),
    ],
    ids=["24 rows, small buckets", "weighted, accumulated, 13 shards"],
)
def test_one_program_gives_the_bits_of_two(
    bucket: int,
    options: dict[str, Any],
    numbers: tuple[int, ...],
    runs: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole_step, "BUCKET_BYTES", bucket)
    apart = simulate(2, lambda comm: trained(comm, callbacks=[Looks()], **options))
    assert not runs
    for ranks in numbers:
        assert simulate(ranks, lambda comm: trained(comm, **options)) == [apart[0]] * ranks
        # all batches but the last of an epoch, which has fewer rows
        assert sum(count for *_, count in runs) == ranks * 2 * (
            len(X) // options.get("batch_size", 32)
        )
        runs.clear()


def test_narrow_products_have_the_same_bits(runs: Any) -> None:
    def make() -> md.Model:
        return network(precision="mixed_bf16")

    apart = simulate(1, lambda comm: trained(comm, make, callbacks=[Looks()]))
    assert simulate(2, lambda comm: trained(comm, make)) == apart * 2
    assert runs


def test_nan_takes_a_slice_back_and_is_named(runs: Any) -> None:
    bad = X.copy()
    bad[90, 2] = 3e38

    def run(comm: Communicator) -> str:
        layers = [md.layers.Input((5,)), md.layers.Dense(7), md.layers.Dense(3)]
        model = md.Model(layers, loss="cross_entropy", optimizer="sgd")
        with pytest.raises(NumericError) as found:
            trained(comm, lambda: model, bad, shuffle=False, batch_size=16)
        return f"{sha(model)} {found.value}"

    for text in simulate(3, run):
        assert "NaN" in text or "infinity" in text
    assert runs


def test_sums_begin_while_gradients_are_computed(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the plan: from the last layer on, each bucket is begun before gradients of earlier layers."""
    monkeypatch.setattr(whole_step, "BUCKET_BYTES", 1)
    layers = [md.layers.Input((5,)), *(md.layers.Dense(6, activation="tanh") for _ in range(3))]

    def make() -> md.Model:
        return md.Model([*layers, md.layers.Dense(3)], loss="cross_entropy", optimizer="sgd")

    simulate(2, lambda comm: trained(comm, make, epochs=1))
    plan = runs[0][1].executable.native.plan
    begun, waits, computed = [], [], []
    for work in plan.work:
        if work.region.kind is RegionKind.COLLECTIVE:
            (waits if work.region.arrives else begun).append(work.phase)
        elif work.region.kind is RegionKind.GEMM:
            computed.append(work.phase)
    assert len(begun) == len(waits) == 9  # weights of a batch, four layers' weights and biases
    assert begun == sorted(begun) and waits == sorted(waits)
    assert begun[1] < max(computed)  # gradients of the first layer
    assert min(waits) > max(computed)
    updated = [
        w.phase for w in plan.work if w.region.kind is RegionKind.ROWS and w.phase > min(waits)
    ]
    assert min(updated) < max(waits)  # the first bucket's parameters, before the last one has come


SCRIPT = """
import json
import time

import numpy as np

import magmadnn as md
from magmadnn.parallel.in_graph import whole_step
from magmadnn.parallel.in_graph.beside import Beside, beside
from magmadnn.storage.checkpoint import parameters_sha256

whole_step.BUCKET_BYTES = 1 << 16
md.set_threads(1)
known_result = Beside.result


def late(self, number):
    time.sleep(0.003)  # in which a sum that runs beside ends, also on a busy machine
    return known_result(self, number)


Beside.result = late
draw = np.random.default_rng(0)
x, y = draw.normal(size=(640, 300)).astype("f"), draw.integers(0, 10, 640)
layers = [md.layers.Input((300,)), *(md.layers.Dense(200, activation="relu") for _ in range(3))]
model = md.Model([*layers, md.layers.Dense(10)], loss="cross_entropy", optimizer="sgd", seed=1)
way = md.parallel.DataParallel()
model.fit(x, y, batch_size=64, epochs=3, verbose=False, parallel=way)
comm = md.comm.world()
way.to_chrome_trace(f"trace{comm.rank}.json")
spans = beside(comm).spans if comm.size > 1 else []
found = [[s.number, s.begun, s.ended, s.wanted] for s in spans]
told = comm.exchange([parameters_sha256(model.values().items()), found])
if comm.rank == 0:
    print(json.dumps(told))
"""


def test_processes_sum_beside_what_they_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mpi4py")
    monkeypatch.chdir(tmp_path)
    found = [launched(tmp_path, ranks, SCRIPT, "")[1] for ranks in (1, 2)]
    told = [rank for one in found for rank in json.loads(one.splitlines()[-1])]
    assert len(told) == 3 and len({sha for sha, _ in told}) == 1
    for rank, (_, spans) in enumerate(told[1:]):
        events = json.loads((tmp_path / f"trace{rank}.json").read_text())["traceEvents"][2:]
        under_way = [e for e in events if e["tid"] == 0]
        waits = [e for e in events if e["tid"] == 1]
        assert len(under_way) == len(waits) == len(spans)
        first = np.array([span[1:] for span in spans if span[0] == 1])  # of the last layers
        begun, _, wanted = first.T
        assert len(first) == 30 and (begun < wanted).all()
        assert any(a["dur"] > 0 == b["dur"] for a, b in zip(under_way, waits, strict=True))
        assert any(ended < wanted for number, _, ended, wanted in spans if number)


def test_calls_are_made_at_once_while_ranks_look_for_a_mistake() -> None:
    """They ask each other before each call then, which no other thread may come between."""

    def run(comm: Communicator) -> list[bool]:
        found = []
        for context in (nullcontext(), telling()):
            with bound(comm), context:
                calls = Beside(is_simulated=False)
                calls.begin(0, 0, lambda: np.array(threading.get_ident()))
                found.append(int(calls.result(0)) == threading.get_ident())
        return found

    assert simulate(2, run) == [[False, True]] * 2


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_plan_says_what_is_sent(ranks: int) -> None:
    def run(comm: Communicator) -> str:
        model = network(optimizer=md.optim.SGD(0.01))
        trained(comm, lambda: model)
        return str(model.plan(batch_size=32))

    texts = simulate(ranks, run)
    numbers = 5 * 7 + 7 + 7 * 3 + 3
    for rank, text in enumerate(texts):
        if ranks == 1:
            assert "# one rank: nothing is sent" in text and "tree_begin" not in text
            continue
        summed = 2 * 8 + 4 * numbers  # weight and rows in float64, gradients in float32
        blocks = (1, 2, 2)[rank]  # of 8 shards: 0 and 1; 2 and 3, 4; 5, 6 and 7
        sent = blocks * summed * 2  # all of them to both others
        assert f"# rank {rank} of 3: 2 sums of {summed} bytes a step, {sent} bytes sent by" in text


def test_gradients_on_gpus_travel_alone_where_they_are_large() -> None:
    """Small ones in buckets of the same dtypes, whole packs first; all are there, large ones uncopied."""
    sizes = [
        (3, "float32"),
        (100, "float32"),
        (5, "float64"),
        (6, "float32"),
        (4, "float32"),
        (60, "float64"),
    ]
    nodes = [placeholder(f"g{k}", Spec((n,), np.dtype(d))) for k, (n, d) in enumerate(sizes)]
    stored = [node.dtype for node in nodes]
    assert _gpu_buckets(nodes, stored, limit=48) == [[1], [4, 0, 3], [5], [2]]
    stored[3] = np.dtype("float64")
    assert _gpu_buckets(nodes, stored, limit=48) == [[1], [5], [2], [3], [4, 0]]


def test_what_is_ready_last_travels_by_itself_where_others_are_many() -> None:
    """At most 256 KiB, and the others are at least 1 MiB; else all travel together."""
    small, large = 100 << 10, 1 << 20
    assert last_apart([large, small, small, small]) == 2
    assert last_apart([large - 1, small]) == 0
    assert last_apart([large, large]) == 0
    assert last_apart([large, 300 << 10, small]) == 1
    assert last_apart([]) == last_apart([small]) == 0
    nodes = [
        placeholder(f"g{k}", Spec((n,), np.dtype("f4"))) for k, n in enumerate((1 << 18, 7, 8))
    ]
    stored = [node.dtype for node in nodes]
    assert _gpu_buckets(nodes, stored, limit=4 << 20) == [[0], [2, 1]]
    assert _gpu_buckets(nodes[1:], stored[1:], limit=4 << 20) == [[1, 0]]
