"""Layers of which each rank has a part: the training of one rank, but for the order of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.errors import ArgumentError, MagmaDNNError, NumericError, UnknownNameError
from magmadnn.parallel.placements.part import Part
from tests.parallel.parameters import assert_near

DRAW = np.random.default_rng(5)
ROWS = 103  # of which the last batch of 32 has 7
X = DRAW.normal(size=(ROWS, 6))
Y = DRAW.integers(0, 4, ROWS)
IMAGES = DRAW.normal(size=(44, 9, 7, 2))
WEIGHTS = DRAW.integers(0, 32, ROWS) / 16
WAYS: dict[str, Callable[[Communicator], Any]] = {
    "model": lambda comm: md.parallel.ModelParallel(comm),
    "hybrid": lambda comm: md.parallel.Hybrid(communicator=comm),
    "sync": lambda comm: md.parallel.DataParallel(comm, sync=True),
}


def dense(**settings: Any) -> md.Model:
    layers = md.layers
    given = {"loss": "cross_entropy", "optimizer": md.optim.Adam(0.01), "metrics": ["accuracy"]}
    return md.Model(
        [
            layers.Input((6,)), layers.Dense(8, activation="tanh"), layers.BatchNorm(),
            layers.Dropout(0.3), layers.Dense(12, activation="relu"), layers.Dense(4),
        ],
        seed=3, precision="float64", **(given | settings),
    )  # fmt: skip


def clipped() -> md.Model:
    return dense(optimizer=md.optim.SGD(0.2, momentum=0.9, clip_norm=0.05))


def images() -> md.Model:
    layers = md.layers
    return md.Model(
        [
            layers.Input((9, 7, 2)), layers.Conv2D(4, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(2), layers.Conv2D(8, 3, activation="tanh"), layers.BatchNorm(),
            layers.Flatten(), layers.Dense(12, activation="relu"), layers.Dense(3),
        ],
        loss="cross_entropy", optimizer=md.optim.SGD(0.1, momentum=0.9), seed=3, precision="float64",
    )  # fmt: skip


CASES: dict[str, tuple[Callable[[], md.Model], Any, dict[str, Any]]] = {
    "dense": (dense, X, {}),
    "weighted": (dense, X, {"sample_weight": WEIGHTS}),
    "groups": (dense, X, {"accumulate": 2}),
    "clipped": (clipped, X, {"validation_split": 0.1}),
    "images": (images, IMAGES, {}),
}


def trained(comm: Communicator | None, case: str, way: str = "model") -> Any:
    make, x, options = CASES[case]
    model = make()
    parallel = False if comm is None else WAYS[way](comm)
    history = model.fit(
        x, Y[: len(x)] % 3, batch_size=32, epochs=2, verbose=False, parallel=parallel, **options
    )
    told = [(row["loss"], row.get("val_loss")) for row in history.rows]
    return model.values(), told, model._step[2] if model._step else None


@cache
def alone(case: str) -> Any:
    """What it is without a communicator."""
    return trained(None, case)


def same(found: Any, expected: Any) -> None:
    assert_near(found[0], expected[0])
    for row, other in zip(found[1], expected[1], strict=True):
        assert row == pytest.approx(other, abs=1e-12)


def runs() -> Iterator[Any]:
    """Every case in every way on few ranks; the usual run has two for all, and others for one case."""
    for case, way, ranks in product(CASES, WAYS, (1, 2, 4)):
        usual = ranks == 2 or case == "dense"
        yield pytest.param(case, way, ranks, marks=() if usual else pytest.mark.long)


@pytest.mark.parametrize(("case", "way", "ranks"), list(runs()))
def test_it_is_the_training_of_one_rank(case: str, way: str, ranks: int) -> None:
    expected = alone(case)
    for found in simulate(ranks, lambda comm: trained(comm, case, way)):
        same(found, expected)
        if ranks > 1:  # BatchNorm of `sync` sees whole batches too
            splits = set(found[2].splits.values())
            assert splits == {"data"} if way == "sync" else splits > {"columns"}


def test_statistics_of_shards_are_others() -> None:
    """Without `sync` BatchNorm sees a shard of the batch: running statistics are not those of one rank."""
    expected = alone("dense")[0]

    def run(comm: Communicator) -> Any:
        model = dense()
        way = md.parallel.DataParallel(comm)
        model.fit(X, Y % 3, batch_size=32, epochs=2, verbose=False, parallel=way)
        return model.values()

    found = simulate(2, run)[0]
    apart = [np.abs(found[name] - expected[name]).max() for name in found if "batch_norm" in name]
    assert max(apart) > 1e-3


@pytest.mark.parametrize("ranks", [3, pytest.param(8, marks=pytest.mark.long)])
def test_other_numbers_of_ranks(ranks: int) -> None:
    """What they cannot share is whole on each."""
    expected = alone("dense")
    for way in ("model", "hybrid")[: 1 if ranks == 8 else 2]:
        for found in simulate(ranks, lambda comm, way=way: trained(comm, "dense", way)):
            same(found, expected)
            splits = {3: ["rows", "columns", "rows"], 8: ["columns", "rows", "data"]}
            assert list(found[2].splits.values()) == splits[ranks]


@pytest.mark.long
def test_sixty_four_ranks() -> None:
    def run(comm: Communicator | None) -> Any:
        layers = md.layers
        model = md.Model(
            [layers.Input((6,)), layers.Dense(64, activation="tanh"), layers.Dense(4)],
            loss="cross_entropy", optimizer="sgd", seed=1, precision="float64",
        )  # fmt: skip
        parallel = False if comm is None else md.parallel.ModelParallel(comm)
        model.fit(X, Y, batch_size=64, epochs=1, verbose=False, parallel=parallel)
        return model.values()

    expected = run(None)
    for found in simulate(64, run):
        assert_near(found, expected)


def test_each_rank_has_its_part() -> None:
    """Columns and rows: one sum forward and one back; each rank keeps 1 / P of kernels and moments."""

    def run(comm: Communicator) -> Any:
        layers = md.layers
        model = md.Model(
            [layers.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(8, use_bias=False)],
            loss="mean_squared_error", optimizer="adam", seed=1, precision="float64",
        )  # fmt: skip
        y = np.zeros((ROWS, 8))
        way = md.parallel.ModelParallel(comm)
        model.fit(X, y, batch_size=ROWS, epochs=1, verbose=False, parallel=way)
        step: Any = model._step[2] if model._step else None
        shapes = {str(part.whole.name): part.own.shape for part in step.parts}
        ops = [n.op.name for n in step._executable.program.nodes() if "all_" in str(n.op.name)]
        return shapes, ops, step.own_bytes

    for shapes, ops, count in simulate(2, run):
        assert shapes["dense_1/kernel"] == (6, 4) and shapes["dense_1/bias"] == (4,)
        assert shapes["dense_2/kernel"] == (4, 8)
        assert ops == ["all_reduce"]  # the first layer sends no gradient on
        assert count == 3 * 8 * (6 * 8 + 8 + 8 * 8) // 2


def test_layers_as_they_are_told() -> None:
    expected = alone("images")

    def run(comm: Communicator, layers: Any) -> Any:
        model = images()
        way = md.parallel.Hybrid(layers, comm)
        model.fit(IMAGES, Y[:44] % 3, batch_size=32, epochs=2, verbose=False, parallel=way)
        return model.values(), model._step[2].splits if model._step else None

    for layers in (
        {"conv2d_2": "channels", "dense_1": "rows"},
        {"conv2d_1": "model", "dense_1": "columns"},
    ):
        for values, splits in simulate(2, run, layers):
            assert [s for s in splits.values() if s != "data"] == [
                "channels" if s == "model" else s for s in layers.values()
            ]
            assert_near(values, expected[0])


@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_goes_on_with_another_number_of_ranks(tmp_path: Any, way: str) -> None:
    expected = alone("dense")[0]
    folder = tmp_path / "kept"

    def run(comm: Communicator, epochs: int) -> Any:
        model = dense()
        keep = [md.callbacks.Checkpoint(folder, signals=False)]
        model.fit(
            X, Y % 3, batch_size=32, epochs=epochs, verbose=False, parallel=WAYS[way](comm),
            callbacks=keep,
        )  # fmt: skip
        return model.values()

    simulate(2, run, 1)
    for ranks in (4,):
        for found in simulate(ranks, run, 2):
            assert_near(found, expected)


def test_callbacks_see_whole_parameters_and_may_set_them() -> None:
    seen: list[Any] = []

    class Halves(md.callbacks.Callback):
        is_everywhere = True

        def on_batch_end(self, fit: Any) -> None:
            node = fit.model.parameters()[0].node
            node.value.write(node.value.read() / 2)
            seen.append(fit.model.values())

    def run(comm: Communicator | None) -> Any:
        model = dense()
        parallel = False if comm is None else md.parallel.ModelParallel(comm)
        model.fit(
            X[:64], Y[:64], batch_size=32, epochs=1, verbose=False, parallel=parallel,
            callbacks=[Halves()],
        )  # fmt: skip
        return model.values()

    expected = run(None)
    for found in simulate(2, run):
        assert_near(found, expected)


@pytest.mark.parametrize("way", WAYS)
def test_nan_is_told_and_nothing_is_updated(way: str) -> None:
    bad = X[:64].copy()
    bad[3] = 1e308

    def run(comm: Communicator) -> str:
        model = dense()
        before = model.values()
        with pytest.raises(NumericError) as found:
            model.fit(
                bad, Y[:64], batch_size=64, epochs=1, verbose=False, parallel=WAYS[way](comm),
                shuffle=False,
            )  # fmt: skip
        after = model.values()
        assert all(np.array_equal(before[name], after[name]) for name in before)
        return str(found.value)

    assert all("NaN" in text or "infinity" in text for text in simulate(2, run))


def refused(make: Callable[[Any], Any], ranks: int = 2, model: Any = dense) -> str:
    def run(comm: Communicator) -> str:
        with pytest.raises(MagmaDNNError) as found:
            model().fit(X, Y, batch_size=32, epochs=1, verbose=False, parallel=make(comm))
        return f"{type(found.value).__name__}: {found.value}"

    return simulate(ranks, run)[0]


def test_mistakes() -> None:
    assert (
        "no layer can be split among 5 ranks: dense_1 (6 inputs, 8 units), dense_2 (8 inputs, 12 units), "
        "dense_3 (12 inputs, 4 units); give layers sizes that 5 divides"
        in refused(WAYS["model"], 5)
    )
    told = refused(lambda comm: md.parallel.Hybrid({"batch_norm_1": "columns"}, comm))
    assert "layer 'batch_norm_1' cannot be split; those of this model that can are: dense_1" in told
    told = refused(lambda comm: md.parallel.ModelParallel(comm, layers={"dense_1": "channels"}))
    assert (
        "dense_1 (6 inputs, 8 units) cannot be split by 'channels' among 2 ranks: it can by 'columns'"
        in told
    )
    told = refused(lambda comm: md.parallel.Hybrid({"dense_1": "rows"}, comm), 4)
    assert "cannot be split by 'rows' among 4 ranks" in told
    with pytest.raises(UnknownNameError, match=r"'colums'.*did you mean 'columns'"):
        md.parallel.Hybrid({"dense_1": "colums"})
    with pytest.raises(ArgumentError, match="sync=True has no shards whose sums"):
        md.parallel.DataParallel(sync=True, shard="optimiser")
    with pytest.raises(ArgumentError, match="with sync=True what ranks send is not rounded"):
        md.parallel.DataParallel(sync=True, wire="bfloat16")
    with pytest.raises(
        ArgumentError, match="with shard='optimiser' what ranks send is not rounded"
    ):
        md.parallel.DataParallel(shard="optimiser", wire="bfloat16")
    with pytest.raises(
        UnknownNameError, match="wire 'float16' is not known: did you mean 'bfloat16'"
    ):
        md.parallel.DataParallel(wire="float16")  # type: ignore[arg-type]
    told = refused(lambda comm: md.parallel.DataParallel(comm, wire="bfloat16"))
    assert "wire='bfloat16' is for gradients among GPUs, and the model is on the CPU" in told
    with pytest.raises(ArgumentError, match="sync must be True or False, got 1"):
        md.parallel.DataParallel(sync=1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="layers must be a dict"):
        md.parallel.Hybrid("dense_1")  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [4, 8])
def test_infinity_in_the_part_of_one_rank(rows: int) -> None:
    """Others do not see it in this batch: all end with an error, also where it is the last one."""

    def run(comm: Communicator) -> str:
        layers = md.layers
        model = md.Model(
            [layers.Input((2,)), layers.Dense(2, use_bias=False), layers.Dense(1, use_bias=False)],
            loss="mse", optimizer=md.optim.SGD(1e308), seed=1, precision="float64",
        )  # fmt: skip
        for parameter, value in zip(
            model.parameters(), ([[0, 1], [0, 1]], [[0], [1]]), strict=True
        ):
            parameter.node.value.write(np.array(value, float))
        x, y = np.full((rows, 2), 9.0), np.zeros((rows, 1))
        with pytest.raises(NumericError) as error:
            way = md.parallel.ModelParallel(comm)
            model.fit(x, y, batch_size=4, epochs=1, verbose=False, parallel=way)
        return str(error.value)

    texts = simulate(2, run)
    assert all("infinity" in text for text in texts), texts
    assert "rank" in texts[0]


def test_a_callback_sets_parameters_between_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks go on from what it set; parts of others stay where they are."""

    class Sets(md.callbacks.Callback):
        is_everywhere = True

        def on_epoch_end(self, fit: Any) -> None:
            if fit.epoch == 1:
                kernel = fit.model.parameters()[0].node.value
                kernel.write(np.ones(kernel.shape))

    def run(comm: Communicator | None) -> Any:
        model = dense()
        parallel = False if comm is None else md.parallel.ModelParallel(comm)
        how = {"batch_size": 32, "epochs": 3, "verbose": False, "callbacks": [Sets()]}
        model.fit(X, Y, parallel=parallel, **how)
        return model.values()

    own_part, cut = Part.own_part, list[str]()
    monkeypatch.setattr(
        Part, "own_part", lambda part: (cut.append(str(part.whole.name)), own_part(part))[1]
    )
    expected = run(None)
    results = simulate(2, run)
    whole = [
        name for name in set(cut) if cut.count(name) == 2
    ]  # once on each rank, and again where set
    assert len(whole) == len(set(cut)) - 1
    for found in results:
        assert_near(found, expected)


@pytest.mark.parametrize("way", [md.parallel.ModelParallel, md.parallel.Hybrid])
def test_parts_stay_where_they_are_between_epochs_that_nobody_looks_at(
    monkeypatch: pytest.MonkeyPatch, way: Any
) -> None:
    """With the same bits; validation, or a callback on one rank, has whole parameters behind each epoch."""
    given, known = list[str](), Part.give
    monkeypatch.setattr(
        Part, "give", lambda part: (given.append(str(part.whole.name)), known(part))[1]
    )

    class Looks(md.callbacks.Callback):
        def on_epoch_end(self, fit: Any) -> None:
            values = fit.model.values().values()
            sums.append(sum(float(v.sum()) for v in values if v.dtype.kind == "f"))

    def times(callbacks: Sequence[Any] = (), **options: Any) -> tuple[int, Any]:
        def run(comm: Communicator) -> Any:
            model = dense()
            options["callbacks"] = callbacks if comm.rank == 0 else ()
            how = {"batch_size": 32, "epochs": 3, "verbose": False, **options}
            model.fit(X, Y, parallel=way(communicator=comm), **how)
            return {name: value.tobytes() for name, value in model.values().items()}

        given.clear()
        found = simulate(2, run)
        assert found[0] == found[1]
        return max(map(given.count, given)) // 2, found[0]

    sums: list[float] = []
    once, kept = times()
    each, looked = times([Looks()])
    validated, _ = times(validation_split=0.25)
    assert (once, each, validated) == (1, 3, 3)
    assert len(sums) == len(set(sums)) == 3
    assert kept == looked
