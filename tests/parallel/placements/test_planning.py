"""Which way to train is proposed: never slower with more workers, and with room."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.errors import ArgumentError, OutOfMemoryError
from magmadnn.parallel.placements.splits import dense_in_turns, splittable
from magmadnn.parallel.planning import tried_numbers
from tests.parallel.parameters import assert_near

DRAW = np.random.default_rng(5)
IMAGES = DRAW.normal(size=(48, 12, 12, 3)).astype("f")
X = DRAW.normal(size=(48, 16))
Y = DRAW.integers(0, 4, 48)


def wide() -> md.Model:
    """Nearly all of its memory is in two kernels."""
    layers = md.layers
    return md.Model(
        [layers.Input((16,)), layers.Dense(512, activation="tanh"), layers.Dense(512), layers.Dense(4)],
        loss="cross_entropy", optimizer=md.optim.Adam(0.01), seed=3, precision="float64",
    )  # fmt: skip


def alexnet() -> md.Model:
    """Convolutions with the work, Dense layers with the weights."""
    layers = md.layers
    return md.Model(
        [
            layers.Input((12, 12, 3)), layers.Conv2D(32, 3, activation="relu", padding="same"),
            layers.Conv2D(32, 3, activation="relu", padding="same"), layers.MaxPooling2D(2),
            layers.Flatten(), layers.Dense(1024, activation="relu"), layers.Dense(1024), layers.Dense(4),
        ],
        loss="cross_entropy", optimizer="sgd", seed=3,
    )  # fmt: skip


def test_the_proposal_is_never_slower_with_more_workers() -> None:
    model, seconds = alexnet(), []
    for workers in (1, 2, 3, 5):
        found = md.parallel.plan(model, workers, IMAGES, Y, batch_size=48)
        names = {one.name for one in found.predictions} | set(found.left_out)
        assert names == {
            "alone", "data", "optimiser", "parameters", "model", "hybrid", "pipeline",
        }  # fmt: skip
        assert all(one.workers <= workers and one.memory > 0 for one in found.predictions)
        assert found.best.seconds == min(one.seconds for one in found.predictions)
        seconds.append(found.best.seconds)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > seconds[1]


def test_numbers_that_are_tried_are_few_and_stay_with_more_workers() -> None:
    assert tried_numbers(1) == [] and tried_numbers(16) == list(range(2, 17))
    assert tried_numbers(67)[15:] == [20, 24, 28, 32, 40, 48, 56, 64]
    for workers in range(1, 300):
        assert set(tried_numbers(workers)) <= set(tried_numbers(workers + 1))
    assert len(tried_numbers(256)) == 31


def test_one_weird_trick() -> None:
    """On a slow wire Dense layers with many weights are better split, and convolutions not."""
    rates = md.parallel.Rates(wire=2e8)
    found = md.parallel.plan(alexnet(), 2, IMAGES, Y, batch_size=48, rates=rates)
    by = {one.name: one for one in found.predictions}
    assert by["hybrid"].sent < by["data"].sent / 4
    assert by["hybrid"].seconds < min(by["data"].seconds, by["model"].seconds)


def test_fewer_workers_for_a_layer_where_that_is_quicker() -> None:
    """On a slow wire; the proposal says which, is never slower with more, and trains as one worker does."""
    rates = md.parallel.Rates(wire=1e8)
    plans = {
        n: md.parallel.plan(alexnet(), n, IMAGES, Y, batch_size=48, rates=rates) for n in (4, 8)
    }
    found = plans[8]
    assert found.best.seconds <= plans[4].best.seconds
    assert found.best.name == "hybrid" and found.best.workers == 8
    (path, ranks), *_ = found.best.fewer.items()
    which = "rank 0" if ranks == 1 else f"ranks 0 to {ranks - 1}"
    assert f"  hybrid    {path} on {which} of 8" in str(found).splitlines()
    way: Any = found.way
    assert way.layers[path].on == tuple(range(ranks))

    def run(comm: Communicator | None) -> Any:
        model = alexnet()
        parallel = False if comm is None else type(way)(way.layers, comm)
        model.fit(IMAGES, Y, batch_size=48, epochs=1, verbose=False, parallel=parallel)
        return model.values()

    expected = run(None)
    for values in simulate(8, run):
        assert_near(values, expected, 1e-5)


def test_dense_layers_take_columns_and_rows_in_turns() -> None:
    """Rows behind columns of as many ranks; whole on one of several, and where sizes do not allow it."""
    layers = md.layers
    model = md.Model(
        [layers.Input(6), *(layers.Dense(units) for units in (8, 12, 11, 7, 4))],
        loss="cross_entropy",
        optimizer=md.optim.SGD(0.1),
    )
    roots = [output.node for output in model.outputs]
    parts = splittable(roots, [parameter.node for parameter in model.parameters()])
    found = dense_in_turns(parts, {}, 4)
    assert list(found.values()) == ["columns", "rows", "rows", "data", "columns"]
    found = dense_in_turns(parts, {"dense_1": 2, "dense_5": 1}, 4)
    assert list(found.values()) == ["columns", "columns", "rows", "data", "data"]
    found = dense_in_turns(parts, {}, 1)
    assert list(found.values()) == ["columns", "rows", "columns", "rows", "columns"]


def test_layers_that_all_workers_cannot_share() -> None:
    """Five have no equal parts of 512 units, four and fewer have."""
    found = md.parallel.plan(wide(), 5, X, Y, batch_size=45, all_workers=True)
    by = {one.name: one for one in found.predictions}
    assert by["hybrid"].workers == 5 and set(by["hybrid"].fewer.values()) <= {1, 2, 4}
    assert by["hybrid"].fewer


def test_a_slow_wire_leaves_one_worker() -> None:
    rates = md.parallel.Rates(wire=1e4, latency=1.0)
    found = md.parallel.plan(alexnet(), 4, IMAGES, Y, rates=rates)
    assert found.best.name == "alone" and found.way is None
    assert str(found).splitlines()[2].startswith("* alone")


def test_each_shard_reads_weights_and_writes_gradients() -> None:
    """8 rows of a worker in four shards, beside 8 rows in one: all rates but memory's are out of sight."""
    layers = md.layers
    model = md.Model(
        [layers.Input((16,)), layers.Dense(512, activation="tanh"), layers.Dense(384), layers.Dense(4)],
        loss="cross_entropy", optimizer=md.optim.SGD(0.01), seed=3, precision="float64",
    )  # fmt: skip
    rates = md.parallel.Rates(
        operations=1e30, memory=1e9, wire=1e30, latency=1e-30, collecting=1e30
    )
    seconds = {}
    for workers, batch in ((2, 16), (8, 64)):
        found = md.parallel.plan(
            model, workers, X, Y, batch_size=batch, rates=rates, all_workers=True
        )
        seconds[workers] = next(p.seconds for p in found.predictions if p.name == "data")
    kernels, biases = (16 * 512, 512 * 384, 384 * 4), 512 + 384 + 4
    back = sum(kernels[1:])  # nobody asks for the gradient of the data
    of_shard = 2 * sum(kernels) + back + biases  # forward, gradients of kernels, backward
    adding = 3 * (sum(kernels) + biases)
    expected = 3 * (of_shard + adding) * 8 / 1e9
    assert seconds[2] - seconds[8] == pytest.approx(expected, rel=2e-3)  # and some scalars


def test_collectives_take_latency_by_rounds_and_time_by_bytes() -> None:
    fast = {"operations": 1e30, "memory": 1e30}
    rounds = md.parallel.Rates(**fast, wire=1e30, latency=1.0, collecting=1e30)
    found = md.parallel.plan(wide(), 2, X, Y, batch_size=16, rates=rounds, all_workers=True)
    seconds = {one.name: one.seconds for one in found.predictions}
    nbytes = 8 * (16 * 512 + 512 + 512 * 512 + 512 + 512 * 4 + 4)
    buckets = -(-nbytes // (256 << 10))
    assert seconds["data"] == pytest.approx(2 * (buckets + 1))
    assert seconds["model"] % 1 == pytest.approx(0, abs=1e-9) and seconds["model"] < 20
    together = md.parallel.Rates(**fast, wire=2e9, latency=1e-30, collecting=1e9)
    found = md.parallel.plan(wide(), 2, X, Y, batch_size=16, rates=together, all_workers=True)
    for one in found.predictions:
        collected = (
            0.0 if one.name == "pipeline" else one.sent / 1e9
        )  # its stages send, and add nothing
        assert one.seconds == pytest.approx(one.sent / 2e9 + collected, rel=1e-3)


def test_the_text_says_what_is_supposed() -> None:
    assert str(md.parallel.plan(wide(), 2, X, Y)).startswith(
        "predicted, with a core for each worker"
    )


def test_memory_and_bytes_are_those_of_the_step() -> None:
    """What is predicted for one worker is `Model.memory`; a part of two kernels of three is as it is cut."""
    model = wide()
    found = md.parallel.plan(model, 2, X, Y, batch_size=16)
    by = {one.name: one for one in found.predictions}
    assert by["alone"].memory == pytest.approx(model.memory(batch_size=16).total, rel=0.02)
    assert by["model"].memory < 0.6 * by["alone"].memory
    grads = 8 * (16 * 512 + 512 + 512 * 512 + 512 + 512 * 4 + 4)
    assert by["data"].sent == pytest.approx(grads, rel=0.01)  # 2 (P - 1) / P of all gradients


def test_a_network_larger_than_one_device_trains_on_two() -> None:
    limit = int(0.7 * wide().memory(X, Y, batch_size=16).total)
    with pytest.raises(
        OutOfMemoryError, match=r"no way to train .* on up to 1 workers has room in"
    ):
        md.parallel.plan(wide(), 1, X, Y, batch_size=16, memory_limit=limit)
    found = md.parallel.plan(wide(), 2, X, Y, batch_size=16, memory_limit=limit)
    assert found.best.workers == 2 and found.best.memory <= limit
    assert "no room" in str(found)
    way: Any = type(found.way)

    def run(comm: Communicator | None) -> Any:
        model = wide()
        parallel = False if comm is None else way(communicator=comm)
        model.fit(X, Y, batch_size=16, epochs=1, verbose=False, parallel=parallel)
        return model.values()

    expected = run(None)
    for values in simulate(2, run):
        assert_near(values, expected)


@cache
def plan_of_deep(ranks: int) -> Any:
    return md.parallel.plan(deep(), ranks, X, Y, batch_size=16, all_workers=True)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("shard", [None, "optimiser", "parameters"])
def test_data_parallel_ways_are_predicted_as_they_are(shard: Any, ranks: int) -> None:
    """Their memory beside that of a step on ranks, the most of any; bytes beside those of all gradients."""
    by = {one.name: one for one in plan_of_deep(ranks).predictions}
    one, data = by[shard or "data"], by["data"]
    assert isinstance(one.way, md.parallel.DataParallel) and one.way.shard == shard
    assert one.sent == pytest.approx(data.sent * (1.5 if shard == "parameters" else 1))

    def run(comm: Communicator) -> int:
        model = deep()
        way = md.parallel.DataParallel(communicator=comm, shard=shard)
        model.fit(X, Y, batch_size=16, epochs=1, verbose=False, parallel=way)
        return int(model.memory(batch_size=16).total)

    assert one.memory == pytest.approx(max(simulate(ranks, run)), rel=0.2)


def deep() -> md.Model:
    """Several layers of one size, of which none has most of the weights."""
    layers = md.layers
    hidden = [layers.Dense(256, activation="tanh") for _ in range(6)]
    return md.Model(
        [layers.Input((16,)), *hidden, layers.Dense(4)],
        loss="cross_entropy", optimizer=md.optim.Adam(0.01), seed=3,
    )  # fmt: skip


def test_where_memory_is_short_parameters_are_shared_out() -> None:
    """On a quick wire that is the way with room, but for those that split layers."""
    limit = int(0.75 * deep().memory(X, Y, batch_size=16).total)
    found = md.parallel.plan(deep(), 4, X, Y, batch_size=16, memory_limit=limit)
    by = {one.name: one for one in found.predictions}
    assert by["parameters"].memory <= limit < by["data"].memory
    assert "parameters" in str(found)
    assert found.best.memory <= limit


def test_mistakes() -> None:
    with pytest.raises(
        ArgumentError, match="plan: workers must be a whole number of at least 1, got 0"
    ):
        md.parallel.plan(wide(), 0, X, Y)
    with pytest.raises(ArgumentError, match="no targets are known before fit"):
        md.parallel.plan(wide(), 2)
    with pytest.raises(ArgumentError, match="Rates: wire must be a number above 0, got 0"):
        md.parallel.Rates(wire=0)
    model = md.Model([md.layers.Input((16,)), md.layers.Dense(4)], loss="cross_entropy", seed=1)
    with pytest.raises(ArgumentError, match="plan: the model has no optimizer"):
        md.parallel.plan(model, 2, X, Y)
    found = md.parallel.plan(wide(), 5, X, Y, batch_size=4)
    assert "5" in str(found.left_out) or found.left_out == {}
