"""Weights in layouts of `md.dmath`: one training, whatever the layouts and the number of ranks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.dmath.layouts.records import of_record, record_of
from magmadnn.errors import ArgumentError, CheckpointError, MagmaDNNError, NumericError, ShapeError
from magmadnn.parallel.placements.laid_out import LaidOutStep
from magmadnn.parallel.placements.step import PlacedStep
from magmadnn.training.model.training_step import carried_from
from tests.parallel.parameters import assert_near

Blocks, Columns, Rows, Replicated = (
    md.dmath.Blocks, md.dmath.Columns, md.dmath.Rows, md.dmath.Replicated
)  # fmt: skip
DRAW = np.random.default_rng(5)
ROWS = 71  # of which the last batch of 32 has 7
X, IMAGES = DRAW.normal(size=(ROWS, 6)), DRAW.normal(size=(29, 7, 5, 2))
Y = DRAW.integers(0, 3, ROWS)
LAYOUTS: dict[str, Any] = {
    "auto": "auto",
    "blocks": {"dense_1": Blocks((2, 3)), "dense_2": Blocks((4, 2), owners=md.dmath.cyclic(1, 1))},
    "uneven": {"dense_1": Columns(), "dense_2": Rows(), "dense_3": "data"},
    "one rank": {"dense_1": Rows(on=(0,)), "dense_2": Replicated(on=(0,))},
    "turns": {"dense_2": Rows(block=2), "dense_3": Columns(block=1)},
    "empty": {"dense_1": Blocks(cuts=((0, 0, 6), (0, 5, 5, 11)))},
}


def dense(**settings: Any) -> md.Model:
    layers = md.layers
    given = {"loss": "cross_entropy", "optimizer": md.optim.Adam(0.01), "metrics": ["accuracy"]}
    return md.Model(
        [
            layers.Input((6,)), layers.Dense(11, activation="tanh"), layers.BatchNorm(),
            layers.Dropout(0.3), layers.Dense(7, activation="relu"), layers.Dense(3),
        ],
        seed=3, **(given | settings),
    )  # fmt: skip


def images() -> md.Model:
    layers = md.layers
    return md.Model(
        [
            layers.Input((7, 5, 2)), layers.Conv2D(5, 3, activation="relu"), layers.Flatten(),
            layers.Dense(6, activation="tanh"), layers.Dense(3, use_bias=False),
        ],
        loss="cross_entropy", optimizer=md.optim.SGD(0.1, momentum=0.9, weight_decay=0.01), seed=3,
    )  # fmt: skip


MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "dense": (dense, X, {"sample_weight": DRAW.uniform(0, 2, ROWS)}),
    "groups": (lambda: dense(precision="float64"), X, {"accumulate": 2}),
    "norm": (lambda: dense(optimizer=md.optim.SGD(0.2, momentum=0.9, clip_norm=0.05)), X, {}),
    "decay": (lambda: dense(optimizer=md.optim.AdamW(0.01)), X, {}),
    "images": (images, IMAGES, {}),
}


def trained(model: Any, way: Any, x: Any = X, **options: Any) -> dict[str, Any]:
    given = {"batch_size": 32, "epochs": 2, "verbose": False} | options
    rows = model.fit(x, Y[: len(x)], parallel=way, **given).rows
    carried = carried_from(model)
    assert carried is not None
    moments = {f"state of {k}": np.asarray(v) for k, v in carried.state.items()}
    return model.values() | moments | {"losses": np.array([row["loss"] for row in rows])}


@cache
def on_one_rank(case: str) -> dict[str, Any]:
    make, x, options = MODELS[case]
    return trained(make(), md.parallel.DataParallel(), x, **options)


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


USUAL = {"dense": (5,), "groups": (2,), "norm": (5,), "decay": (2,), "images": (2,)}
RUNS = [
    pytest.param(case, ranks, marks=() if ranks in USUAL[case] else pytest.mark.long)
    for case in MODELS
    for ranks in (1, 2, 5)
]


@pytest.mark.parametrize(("case", "ranks"), RUNS)
def test_bits_depend_on_no_layout_and_no_number_of_ranks(case: str, ranks: int) -> None:
    """They are those of `DataParallel` on one rank; moments and averages too."""
    make, x, options = MODELS[case]
    expected = on_one_rank(case)
    kinds = [None, {"conv2d_1": Columns(), "dense_1": Blocks((9, 4))}] if case == "images" else None
    for layers in kinds or list(LAYOUTS.values())[ranks % 3 :: 2]:

        def run(comm: Communicator, layers: Any = layers) -> dict[str, Any]:
            way = md.parallel.Hybrid(layers, comm, deterministic="layout")
            return trained(make(), way, x, **options)

        for found in simulate(ranks, run):
            same(found, expected)


KINDS = (md.parallel.ModelParallel, md.parallel.Hybrid)
TURNS = [  # the usual run has each layout one way: both ways compile the same step
    pytest.param(layouts, kind, marks=() if (k + turn) % 2 else pytest.mark.long)
    for k, layouts in enumerate(LAYOUTS)
    for turn, kind in enumerate(KINDS)
]


@pytest.mark.parametrize(("layouts", "kind"), TURNS)
def test_each_layout_with_both_ways(layouts: str, kind: Any) -> None:
    make, x, options = MODELS["dense"]
    expected = on_one_rank("dense")

    def run(comm: Communicator) -> dict[str, Any]:
        way = kind(communicator=comm, layers=LAYOUTS[layouts], deterministic="layout")
        return trained(make(), way, x, **options)

    for found in simulate(4, run):
        same(found, expected)


def test_ranks_compute_their_part_where_a_layout_lets_them() -> None:
    """Even columns and rows over all ranks are the placements of that name; others are brought together."""
    expected = trained(dense(precision="float64"), False, batch_size=ROWS)

    def run(comm: Communicator, layers: Any, units: type) -> Any:
        model = dense(precision="float64")
        way = md.parallel.ModelParallel(comm, layers=layers)
        found, step = trained(model, way, batch_size=ROWS), model._step[2]
        assert type(step) is units
        return found, {str(node.name): str(lies) for node, lies in step.layouts.items()}, way

    def even(comm: Communicator) -> Any:
        return run(comm, {"dense_1": Rows, "dense_2": Replicated()}, PlacedStep)

    for found, layouts, way in simulate(3, even):
        assert layouts == {"dense_1/kernel": "3 x 1 blocks on workers 0, 1, 2 of 3"}
        assert way.settings == {} and way.own_rows(9) == slice(0, 9)
        assert_near(found, expected)

    def uneven(comm: Communicator) -> Any:
        return run(comm, {"dense_1": Columns(), "dense_3": "data"}, LaidOutStep)

    for rank, (_, layouts, way) in enumerate(simulate(3, uneven)):
        both = {"dense_1/kernel": "1 x 3", "dense_1/bias": "3"}
        assert layouts == {k: f"{v} blocks on workers 0, 1, 2 of 3" for k, v in both.items()}
        assert way.settings == {"shards": 8}
        assert way.own_rows(80) == [slice(0, 20), slice(20, 50), slice(50, 80)][rank]


def test_each_rank_keeps_moments_of_its_elements_only() -> None:
    def run(comm: Communicator) -> int:
        model = dense(optimizer=md.optim.Adam(0.01))
        trained(model, md.parallel.Hybrid({"dense_1": Rows()}, comm, deterministic="layout"))
        return int(model._step[2].own_bytes)

    for ranks in (2, 3):  # a weight and two moments of float32
        assert simulate(ranks, run) == [3 * 4 * 66 // ranks] * ranks


def test_training_goes_on_with_another_number_of_ranks() -> None:
    expected = trained(dense(), md.parallel.DataParallel(), epochs=3)
    last: dict[str, Any] = {}
    told: list[float] = []
    for epoch, (ranks, layouts) in enumerate(((3, "blocks"), (1, "uneven"), (4, "auto"))):

        def run(
            comm: Communicator, epoch: int = epoch, lies: str = layouts, last: Any = last
        ) -> Any:
            model = dense()
            way = md.parallel.Hybrid(LAYOUTS[lies], comm, deterministic="layout")
            if epoch:
                model.fit(X, Y, batch_size=32, epochs=0, verbose=False, parallel=way)
                model.assign(last["values"])
                model._step[2].load_state(last["state"])
            found = trained(model, way, epochs=epoch + 1, initial_epoch=epoch)
            return {"values": model.values(), "state": dict(model._step[2].state())}, found[
                "losses"
            ]

        last, losses = simulate(ranks, run)[0]
        told += losses.tolist()
    found = last["values"] | {"losses": np.array(told)}
    same(found, {name: expected[name] for name in found})


def test_a_state_that_does_not_fit_is_refused() -> None:
    def run(comm: Communicator) -> None:
        model = dense()
        trained(model, md.parallel.Hybrid(LAYOUTS["uneven"], comm), epochs=1)
        state = dict(model._step[2].state())
        name = next(k for k in state if k.startswith("dense_1/kernel"))
        with pytest.raises(CheckpointError, match=r"must be of shape \(6, 11\), got \(5, 11\)"):
            model._step[2].load_state(state | {name: np.zeros((5, 11), np.float32)})

    simulate(2, run)


def test_all_ranks_hear_of_a_number_that_is_not_finite() -> None:
    """Infinity comes into being in the update of one rank's elements."""

    def run(comm: Communicator) -> None:
        optimizer = md.optim.SGD(3e38, momentum=0.0)
        way = md.parallel.Hybrid({"dense_1": Rows(on=(1,))}, comm, deterministic="layout")
        dense(optimizer=optimizer).fit(X * 1e3, Y, epochs=3, verbose=False, parallel=way)

    with pytest.raises(NumericError):
        simulate(3, run)


@pytest.mark.parametrize(
    ("layers", "error", "text"),
    [
        ({"dense_9": Rows()}, ArgumentError, "'dense_9' cannot be split; those of this model that can"),
        ({"dense_1": Blocks((2, 2), owners=[[0, 7], [0, 1], [0, 1]])}, MagmaDNNError, "'dense_1'.*: Bl"),
        ({"dense_1": Blocks((2, 2, 2))}, ShapeError, "'dense_1'.*: Blocks: blocks of 3 axes do not"),
        ({"dense_1": Rows().layout((6, 11), 3)}, ArgumentError, "a layout of 3 workers is of another"),
        ({"dense_1": "channels", "dense_2": Columns(block=1)}, ArgumentError, "cannot be split by 'ch"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(layers: Any, error: type, text: str) -> None:
    def run(comm: Communicator) -> None:
        trained(dense(), md.parallel.Hybrid(layers, comm))

    with pytest.raises(error, match=text):
        simulate(2, run)


def test_arguments_are_looked_at_when_they_are_given() -> None:
    with pytest.raises(ArgumentError, match=r"layers\['a'\]: expected a layout such as .*, got 3"):
        md.parallel.ModelParallel(layers={"a": 3})
    with pytest.raises(ArgumentError, match='deterministic must be "layout" or None, got True'):
        md.parallel.Hybrid(deterministic=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "recipe",
    [
        Rows(), Columns(sizes=(1, 2)), Rows(on=(1, 0)), Columns(block=3), Replicated(), Replicated(on=(1,)),
        Blocks((2, None)), Blocks((2, 3), owners=md.dmath.cyclic(2, 1)),
        Blocks((2, 3), owners=[[0, 1], [1, 0]]), Blocks(cuts=((0, 1, 4), (0, 3))), Rows().layout((4, 3), 2),
    ],
)  # fmt: skip
def test_layouts_travel_as_json(recipe: Any) -> None:
    import json

    assert of_record(json.loads(json.dumps(record_of("test", recipe)))) == recipe


def test_ways_travel_as_json() -> None:
    import json

    for way in (
        md.parallel.Hybrid({"a": Rows(block=2), "b": "columns"}, deterministic="layout"),
        md.parallel.ModelParallel(),
        md.parallel.DataParallel(shards=4, shard="optimiser"),
        md.parallel.ParameterServer(shards=3),
        md.parallel.Pipeline(micro_batches=3, stages=["a"]),
    ):
        record = json.loads(json.dumps(way.record()))
        made = type(way).of_record(record["arguments"], md.comm.world())
        assert repr(made) == repr(way)
    with pytest.raises(ArgumentError, match="AsyncSGD cannot travel to the workers"):
        md.parallel.AsyncSGD().record()
    with pytest.raises(ArgumentError, match="DataParallel with computed= cannot travel"):
        md.parallel.DataParallel(computed=print).record()
