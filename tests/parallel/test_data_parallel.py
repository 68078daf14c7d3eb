"""Data parallel training: the same bits for any number of ranks, the figures of one on whole batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.errors import ArgumentError, CheckpointError, DataError, MagmaDNNError, NumericError
from magmadnn.parallel.tree import TreeSum
from magmadnn.storage.checkpoint import parameters_sha256
from tests.parallel.parameters import assert_near

DRAW = np.random.default_rng(5)
ROWS = 103  # of which the last batch of 32 has 7: shards of one row, and one that is empty
X = DRAW.normal(size=(ROWS, 5)).astype(np.float32)
Y = DRAW.integers(0, 3, ROWS)
WEIGHTS = DRAW.uniform(0.0, 2.0, ROWS).astype(np.float32)
WEIGHTS[::7] = 0.0
RANKS = (1, 2, 3, 8)


def network(*between: Any, precision: str = "float32", **settings: Any) -> md.Model:
    layers = [
        md.layers.Input((5,)), md.layers.Dense(7, activation="tanh"), *between, md.layers.Dense(3),
    ]  # fmt: skip
    given = {
        "loss": "cross_entropy",
        "optimizer": md.optim.Adam(0.01),
        "metrics": ["accuracy"],
        "seed": 3,
    }
    return md.Model(layers, precision=precision, **(given | settings))


def noisy() -> md.Model:
    return network(md.layers.BatchNorm(), md.layers.Dropout(0.3))


def sha(model: md.Model) -> str:
    return parameters_sha256(model.values().items())


def trained(
    comm: Communicator | None,
    make: Callable[[], md.Model] = noisy,
    x: Any = X,
    y: Any = Y,
    **options: Any,
) -> tuple[str, list[dict[str, float]]]:
    model = make()
    given: dict[str, Any] = {"batch_size": 32, "epochs": 2, "verbose": False} | options
    parallel = (
        False if comm is None else md.parallel.DataParallel(comm, shards=given.pop("shards", 8))
    )
    rows = model.fit(x, y, parallel=parallel, **given).rows
    told = [
        {k: v for k, v in row.items() if k not in ("seconds", "samples_per_second")} for row in rows
    ]
    return sha(model), told


@pytest.mark.parametrize(
    "options",
    [
        {"validation_split": 0.1},
        {"sample_weight": WEIGHTS, "accumulate": 3},
        pytest.param({"sample_weight": WEIGHTS}, marks=pytest.mark.long),
        pytest.param({"accumulate": 3}, marks=pytest.mark.long),
        pytest.param({"shards": 13}, marks=pytest.mark.long),
    ],
    ids=["validated", "both", "weighted", "accumulated", "13 shards"],
)
def test_any_number_of_ranks_gives_the_same_bits(options: dict[str, Any]) -> None:
    one, *others = (simulate(ranks, lambda comm: trained(comm, **options)) for ranks in RANKS)
    for found in others:
        assert all(each == one[0] for each in found)


@pytest.mark.long
def test_64_ranks() -> None:
    found = simulate(64, lambda comm: trained(comm, shards=64, epochs=1))
    assert set(map(str, found)) == {str(trained_alone(shards=64, epochs=1))}


def trained_alone(**options: Any) -> Any:
    return simulate(1, lambda comm: trained(comm, **options))[0]


@pytest.mark.parametrize("options", [{}, {"sample_weight": WEIGHTS}, {"accumulate": 3}])
def test_it_is_the_training_of_one_rank_on_the_same_batches(options: dict[str, Any]) -> None:
    models = []

    def make() -> md.Model:
        models.append(network(precision="float64", optimizer=md.optim.SGD(0.1)))
        return models[-1]

    x = X.astype(np.float64)
    _, alone = trained(None, make, x, **options)
    _, shared = simulate(3, lambda comm: trained(comm, make, x, **options))[0]
    for expected, found in zip(alone, shared, strict=True):
        assert found == pytest.approx(expected, rel=1e-12)
    assert_near(models[1].values(), models[0].values())


def test_a_batch_that_weighs_nothing() -> None:
    """Of 7 batches the third and fourth: nothing is infinite on the way, which op by op is looked for."""
    weights = WEIGHTS.astype(np.float64)
    weights[30:60] = 0.0

    def run(comm: Communicator | None, way: Any) -> Any:
        model = network(precision="float64", optimizer=md.optim.SGD(0.1), executor="reference")
        model.fit(
            X.astype(np.float64), Y, sample_weight=weights, batch_size=15, shuffle=False,
            parallel=way(comm), verbose=False,
        )  # fmt: skip
        return model.values()

    alone = run(None, lambda comm: False)
    ways = md.parallel
    for way in (
        ways.DataParallel,
        lambda comm: ways.DataParallel(comm, shard="optimiser"),
        lambda comm: ways.DataParallel(comm, shard="parameters"),
        lambda comm: ways.Hybrid(communicator=comm, deterministic="layout"),
        lambda comm: ways.Pipeline(comm, micro_batches=3),
    ):
        for found in simulate(2, run, way):
            assert_near(found, alone)


def test_statistics_of_batches_are_means_over_shards() -> None:
    """Running means after one step: 0.1 of the mean of the batch, and variances those within shards."""
    models = []

    def make() -> md.Model:
        layers = [md.layers.Input((5,)), md.layers.BatchNorm(name="norm"), md.layers.Dense(3)]
        models.append(md.Model(layers, loss="cross_entropy", optimizer=md.optim.SGD(0.1)))
        return models[-1]

    simulate(2, lambda comm: trained(comm, make, X[:32], Y[:32], epochs=1, shuffle=False))
    values = models[0].values()
    before = md.Model(
        [md.layers.Input((5,)), md.layers.BatchNorm(name="norm"), md.layers.Dense(3)]
    ).values()
    mean = next(k for k in values if k.startswith("norm") and "mean" in k)
    step = X[:32].astype(np.float64).mean(axis=0)
    momentum = 1 - (values[mean] - step) / (before[mean] - step)
    assert np.ptp(momentum) < 1e-5 and 0 < momentum[0] < 1


def test_early_stopping_and_callbacks_of_rank_0() -> None:
    calls: list[int] = []

    class Lowers(md.callbacks.Callback):
        def on_epoch_end(self, fit: Any) -> None:
            calls.append(fit.epoch)
            fit.step.set(learning_rate=1e-3)
            if fit.epoch == 3:
                fit.stop("enough")

    def run(comm: Communicator) -> Any:
        model = noisy()
        way = md.parallel.DataParallel(comm)
        history = model.fit(
            X, Y, batch_size=32, epochs=9, verbose=False, callbacks=[Lowers()], parallel=way
        )
        return sha(model), history.stopped, [row["learning_rate"] for row in history.rows]

    one, three = simulate(1, run)[0], simulate(3, run)
    assert calls == [1, 2, 3, 1, 2, 3]
    assert one[1:] == ("enough", [0.01, 1e-3, 1e-3])
    assert three == [one] * 3


def test_only_rank_0_prints(capsys: pytest.CaptureFixture[str]) -> None:
    simulate(3, lambda comm: trained(comm, verbose=True))
    assert capsys.readouterr().out.count("val_loss") == 0
    simulate(1, lambda comm: trained(comm, verbose=True))
    once = len(capsys.readouterr().out.splitlines())
    simulate(3, lambda comm: trained(comm, verbose=True))
    assert len(capsys.readouterr().out.splitlines()) == once


@pytest.mark.parametrize("ranks", [1, 3])
def test_nan_ends_the_training_on_all_ranks(ranks: int) -> None:
    bad = X.copy()
    bad[50, 2] = 3e38

    def run(comm: Communicator) -> str:
        layers = [md.layers.Input((5,)), md.layers.Dense(7), md.layers.Dense(3)]
        model = md.Model(layers, loss="cross_entropy", optimizer="sgd")
        before = sha(model)
        with pytest.raises(NumericError) as found:
            trained(comm, lambda: model, bad, shuffle=False, batch_size=ROWS)
        assert sha(model) == before
        return str(found.value)

    for text in simulate(ranks, run):
        assert "the result has infinity" in text
        assert ranks == 1 or "rank 1 of 3 stopped the step" in text or "in SGD" in text


def test_an_error_on_one_rank_is_told_on_all() -> None:
    wrong = [(X[:16], np.where(np.arange(16) == 13, 7, Y[:16]))]

    def run(comm: Communicator) -> str:
        model = network()
        with pytest.raises(MagmaDNNError) as found:
            model.fit(lambda: iter(wrong), verbose=False, parallel=md.parallel.DataParallel(comm))
        return str(found.value)

    found = simulate(2, run)
    assert all("7" in text for text in found)


def test_differing_ranks_are_refused() -> None:
    def data(comm: Communicator) -> None:
        trained(comm, x=X + np.float32(comm.rank))

    def settings(comm: Communicator) -> None:
        trained(comm, batch_size=16 + comm.rank)

    def code(comm: Communicator) -> None:
        trained(comm, lambda: network(md.layers.Dense(4 + comm.rank)))

    for run, what in (
        (data, "differ in x:"),
        (settings, "differ in batch_size"),
        (code, "differ in layer"),
    ):
        with pytest.raises(DataError, match=what):
            simulate(2, run)


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="9 ranks cannot share shards=8: give shards=9"):
        simulate(9, lambda comm: trained(comm, shards=8))
    with pytest.raises(ArgumentError, match="mixed_fp16"):
        simulate(1, lambda comm: trained(comm, lambda: network(precision="mixed_fp16")))
    for wrong in (0, 2.5, True):
        with pytest.raises(ArgumentError, match="shards must be"):
            md.parallel.DataParallel(shards=wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"parallel must be one of md\.parallel"):
        network().fit(X, Y, parallel=4, verbose=False)  # type: ignore[arg-type]


def test_more_ranks_than_samples_leaves_some_without_rows() -> None:
    one = simulate(1, lambda comm: trained(comm, x=X[:3], y=Y[:3]))
    assert simulate(8, lambda comm: trained(comm, x=X[:3], y=Y[:3])) == one * 8


def test_a_checkpoint_goes_on_with_any_number_of_ranks(tmp_path: Any) -> None:
    def run(comm: Communicator, folder: Any, stop: bool) -> str:
        model = noisy()
        kept = md.callbacks.Checkpoint(folder, every_steps=3, signals=False)

        class Stops(md.callbacks.Callback):
            def on_batch_end(self, fit: Any) -> None:
                if fit.steps == 5 and stop:
                    fit.stop("test", goes_on=True)

        way = md.parallel.DataParallel(comm)
        given = {"batch_size": 32, "epochs": 3, "verbose": False}
        model.fit(X, Y, callbacks=[Stops(), kept], parallel=way, **given)
        return sha(model)

    whole = simulate(1, lambda comm: run(comm, tmp_path / "whole", False))[0]
    for number, (first, then) in enumerate([(1, 3), (4, 2), (3, 8)]):
        folder = tmp_path / str(number)
        stopped = simulate(first, lambda comm, f=folder: run(comm, f, True))
        assert whole not in stopped
        assert simulate(then, lambda comm, f=folder: run(comm, f, False)) == [whole] * then


def test_a_checkpoint_of_more_than_eight_ranks_goes_on_with_any_fewer(tmp_path: Path) -> None:
    """Nine ranks have nine shards by default; three that go on with theirs take as many by themselves."""

    def run(comm: Communicator, folder: str, epochs: int, shards: int | None = None) -> Any:
        kept = [md.callbacks.Checkpoint(tmp_path / folder, signals=False)]
        way = md.parallel.DataParallel(comm, shards=shards)
        model = noisy()
        model.fit(X, Y, batch_size=32, epochs=epochs, verbose=False, callbacks=kept, parallel=way)
        return sha(model), way.shards

    whole = simulate(1, lambda comm: trained(comm, shards=9, epochs=2)[0])
    for folder, ranks in (("three", 3), ("nine", 9), ("one", 1)):
        simulate(9, run, folder, 1)
        assert simulate(ranks, run, folder, 2) == [(whole[0], 9)] * ranks
    simulate(9, run, "kept", 1)
    with pytest.raises(
        CheckpointError,
        match=r"up to 9 ranks go on with parallel=md.parallel.DataParallel\(shards=9",
    ):
        simulate(4, run, "kept", 2, 8)
    with pytest.raises(CheckpointError, match="shards is 10, in the checkpoint 9; up to 9 ranks"):
        simulate(10, run, "kept", 2)


def test_to_ask_for_the_same_bits_changes_none() -> None:
    def asked(comm: Communicator) -> tuple[str, dict[str, Any]]:
        way = md.parallel.DataParallel(comm, deterministic="layout")
        assert repr(way) == "DataParallel(shards=8, deterministic='layout')"
        model = network()
        model.fit(X, Y, batch_size=32, verbose=False, parallel=way)
        return sha(model), way.record()["arguments"]

    for found, arguments in simulate(2, asked):
        assert found == simulate(3, lambda comm: trained(comm, network, epochs=1))[0][0]
        assert md.parallel.DataParallel(**arguments).record()["arguments"] == arguments
        assert arguments["deterministic"] == "layout"


def test_shards_travel_as_they_were_given() -> None:
    """Workers that are more than eight, or go on from a checkpoint, take their own number."""
    for way in (md.parallel.DataParallel, md.parallel.ParameterServer):
        for given in (None, 5):
            made = way(shards=given)
            assert made.record()["arguments"]["shards"] == given
            assert f"shards={given}" in repr(made) and made.communicator is None
    assert simulate(9, lambda comm: md.parallel.DataParallel(comm).shards) == [9] * 9
    assert simulate(3, lambda comm: repr(md.parallel.DataParallel(comm)))[0].endswith("(shards=8)")


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7, 11])
@pytest.mark.parametrize("leaves", [11, 16])
@pytest.mark.parametrize("there", [range(11), (1, 2, 5, 6, 10), (10,)], ids=str)
def test_the_tree(ranks: int, leaves: int, there: Sequence[int]) -> None:
    """Sums of numbers of very different size differ in each other order; 9,001 elements take the long way."""
    draw = np.random.default_rng(leaves)
    values = draw.normal(size=(leaves, 9001)) * 10.0 ** draw.integers(-8, 8, (leaves, 9001))

    def expected(first: int, size: int) -> Any:
        if size == 1:
            return values[first] if first in there else None
        parts = [expected(first, size // 2), expected(first + size // 2, size // 2)]
        found = [part for part in parts if part is not None]
        return found[0] if len(found) == 1 else (found[0] + found[1] if found else None)

    def run(comm: Communicator) -> Any:
        tree = TreeSum(comm, leaves)
        own = [one for (one,) in tree.own(lambda s: [values[s].copy()], there)]
        few = [one[:5].copy() for one in own]
        return tree.all_sum(own, np.empty(9001), there), tree.all_sum(few, np.empty(5), there)

    right = expected(0, 16)
    for whole, few in simulate(ranks, run):
        np.testing.assert_array_equal(whole, right)
        np.testing.assert_array_equal(few, right[:5])
