"""Layers split over ranks: the training of one rank that averages gradients of the same micro-batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, Network, simulate
from magmadnn.errors import ArgumentError, DataError, MagmaDNNError, NumericError, UnknownNameError
from magmadnn.parallel.pipelined.schedule import orders
from magmadnn.parallel.pipelined.stages import evened
from tests.parallel.parameters import assert_near

DRAW = np.random.default_rng(11)
ROWS = 103  # of which the last batch of 32 has 7
X = DRAW.normal(size=(ROWS, 5))
Y = DRAW.integers(0, 3, ROWS)
IMAGES = DRAW.normal(size=(37, 9, 7, 2))
WEIGHTS = DRAW.uniform(0, 2, ROWS).astype(np.float32)
WEIGHTS[:8] = 0.0  # a micro-batch that weighs nothing


def deep(**settings: Any) -> md.Model:
    layers = md.layers
    given = {"loss": "cross_entropy", "optimizer": md.optim.Adam(0.01), "metrics": ["accuracy"]}
    return md.Model(
        [
            layers.Input((5,)), layers.Dense(7, activation="tanh"), layers.BatchNorm(),
            layers.Dropout(0.3), layers.Dense(6, activation="relu"), layers.Dense(5), layers.Dense(3),
        ],
        seed=3, precision="float64", **(given | settings),
    )  # fmt: skip


def clipped() -> md.Model:
    return deep(optimizer=md.optim.SGD(0.2, momentum=0.9, clip_norm=0.05))


def residual() -> md.Model:
    """A value that passes over stages, a layer that is used twice, and a penalty on weights."""
    layers = md.layers
    x = layers.Input((5,), "float64")
    shared = layers.Dense(5, activation="tanh", kernel_regularizer=layers.L2(1e-2))
    first = layers.Dense(5)(x)
    second = shared(first)
    third = layers.Dense(5)(second) + first
    return md.Model(
        inputs=[x], outputs=[layers.Dense(3)(shared(third))], loss="cross_entropy",
        optimizer=md.optim.SGD(0.1), metrics=["accuracy"], seed=3, precision="float64",
    )  # fmt: skip


def images() -> md.Model:
    layers = md.layers
    return md.Model(
        [
            layers.Input((9, 7, 2)), layers.Conv2D(3, 3, activation="relu"), layers.MaxPooling2D(2),
            layers.Flatten(), layers.Dense(4), layers.BatchNorm(), layers.Dense(3),
        ],
        loss="cross_entropy", optimizer=md.optim.SGD(0.2), seed=3, precision="float64",
    )  # fmt: skip


SEQUENCES = DRAW.normal(size=(37, 5, 4))


class Recurrent(md.layers.Layer):
    """h <- h + tanh(x w + h u), of which the last: [batch, time, features] -> [batch, units]."""

    units: int = 6

    def build(self, x: Any) -> None:
        self.w = self.parameter("w", (x.shape[-1], self.units), "glorot_uniform", x.dtype)
        self.u = self.parameter("u", (self.units, self.units), "orthogonal", x.dtype)

    def forward(self, x: Any) -> Any:
        zero = md.ops.broadcast_to(np.zeros(1, x.dtype), (x.shape[0], self.units))

        def step(h: Any, x: Any) -> Any:
            return h + md.ops.tanh(x @ self.w + h @ self.u), ()

        return md.scan(step, zero, md.ops.transpose(x, (1, 0, 2)))[0]


def loops() -> md.Model:
    """The gradient of a loop reads what the loop carried into each step, which forward nobody asks for."""
    layers = md.layers
    return md.Model(
        [layers.Input((5, 4)), Recurrent(), layers.Dense(5, activation="tanh"), layers.Dense(3)],
        loss="cross_entropy", optimizer=md.optim.SGD(0.2), seed=3, precision="float64",
    )  # fmt: skip


CASES: dict[str, tuple[Callable[[], md.Model], Any, dict[str, Any]]] = {
    "layers": (deep, X, {}),
    "validated": (deep, X, {"validation_split": 0.1}),
    "weighted": (deep, X, {"sample_weight": WEIGHTS, "shuffle": False}),
    "clipped": (clipped, X, {}),
    "residual": (residual, X, {}),
    "images": (images, IMAGES, {}),
    "loops": (loops, SEQUENCES, {}),
}


def figures(history: Any) -> list[dict[str, float]]:
    left_out = ("seconds", "samples_per_second")
    return [{k: v for k, v in row.items() if k not in left_out} for row in history.rows]


def trained(comm: Communicator | None, case: str, **settings: Any) -> tuple[Any, Any, Any]:
    make, x, options = CASES[case]
    model = make()
    way = {"parallel": False, "batch_size": 8, "accumulate": 4}
    if comm is not None:
        way = {"parallel": md.parallel.Pipeline(comm, **settings), "batch_size": 32}
    history = model.fit(x, Y[: len(x)], epochs=2, verbose=False, **way, **options)
    return model.values(), figures(history), model.evaluate(x, Y[: len(x)])


def same(found: Any, expected: Any) -> None:
    values, rows, figures_after = expected
    assert_near(found[0], values)
    for row, other in zip(found[1], rows, strict=True):
        assert row == pytest.approx(other, abs=1e-12)
    assert found[2] == pytest.approx(figures_after, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_training_of_one_rank_that_accumulates(case: str) -> None:
    expected = trained(None, case)
    for ranks in (1, 2, 3):
        for found in simulate(ranks, lambda comm: trained(comm, case)):
            same(found, expected)


def test_stages_of_ones_own() -> None:
    expected = trained(None, "layers")
    names = ["batch_norm_1", "dense_2", "dense_4"]
    for found in simulate(4, lambda comm: trained(comm, "layers", stages=names)):
        same(found, expected)


def test_groups_of_batches() -> None:
    def run(comm: Communicator | None) -> Any:
        model = deep()
        way: dict[str, Any] = {"parallel": False, "accumulate": 4, "batch_size": 8}
        if comm is not None:
            way = {"parallel": md.parallel.Pipeline(comm, micro_batches=2), "batch_size": 16}
            way["accumulate"] = 2
        model.fit(X[:96], Y[:96], epochs=2, verbose=False, **way)
        return model.values()

    expected = run(None)
    for found in simulate(2, run):
        assert_near(found, expected)


def test_the_schedule_is_one_forward_one_backward() -> None:
    assert orders(2, 3, 3) == [(True, 0), (False, 0), (True, 1), (False, 1), (True, 2), (False, 2)]
    assert orders(0, 3, 4)[:5] == [(True, 0), (True, 1), (True, 2), (False, 0), (True, 3)]
    for stages in range(1, 6):
        for stage in range(stages):
            for pieces in range(1, 8):
                found = orders(stage, stages, pieces)
                assert sorted(found) == sorted((f, k) for f in (True, False) for k in range(pieces))
                waiting = np.cumsum([1 if forward else -1 for forward, _ in found])
                assert waiting.max() == min(stages - stage, pieces) and waiting[-1] == 0


def test_ranks_wait_for_as_long_as_the_schedule_says() -> None:
    """(M + S - 1) (forward + backward) seconds a batch, where each piece takes 1 second either way."""
    seconds, pieces, stages = 1.0, 8, 3

    def run(comm: Any) -> tuple[float, int]:
        model = deep(metrics=[])
        way = md.parallel.Pipeline(
            comm, micro_batches=pieces, computed=lambda comm: comm.advance(seconds)
        )
        model.fit(X[:32], Y[:32], batch_size=32, epochs=1, verbose=False, parallel=way)
        assert model._step is not None
        return comm.clock, model._step[2].most_in_flight  # type: ignore[attr-defined]

    found = simulate(stages, run, network=Network(latency=1e-9, bandwidth=1e15))
    assert max(clock for clock, _ in found) == pytest.approx(2 * (pieces + stages - 1), abs=1e-4)
    assert [most for _, most in found] == [3, 2, 1]


def test_stages_are_as_even_as_can_be() -> None:
    draw = np.random.default_rng(2)
    for _ in range(50):
        costs = draw.integers(1, 20, 7).tolist()
        needed = (draw.uniform(size=7) < 0.7).tolist()
        for count in (1, 2, 3):
            found = evened(costs, needed, count)
            every = [[0, *begins, 7] for begins in itertools.combinations(range(1, 7), count - 1)]
            dearest = {
                tuple(bounds[1:-1]): max(sum(costs[a:b]) for a, b in itertools.pairwise(bounds))
                for bounds in every
                if all(any(needed[a:b]) for a, b in itertools.pairwise(bounds))
            }
            assert dearest[tuple(found)] == min(dearest.values()) if dearest else found == []


def test_each_rank_updates_and_keeps_its_own_stage() -> None:
    def run(comm: Communicator) -> tuple[list[str], int]:
        model = deep()
        model.fit(X, Y, batch_size=32, epochs=1, verbose=False, parallel=md.parallel.Pipeline(comm))
        assert model._step is not None
        step: Any = model._step[2]
        assert len(step.state()) == 2 * 10 + 1  # of all, once they are collected
        return sorted(step._slots), step.stages[comm.rank]

    found = simulate(3, run)
    assert len({name for slots, _ in found for name in slots}) == sum(len(s) for s, _ in found)
    for slots, layers in found:
        assert {name.split("/")[0] for name in slots} <= set(layers)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_checkpoint_goes_on_with_another_number_of_ranks(tmp_path: Any, ranks: int) -> None:
    expected = trained(None, "layers")[0]
    folder = tmp_path / "kept"

    def run(comm: Communicator, epochs: int) -> Any:
        model = deep()
        keep = [md.callbacks.Checkpoint(folder, signals=False)]
        way = md.parallel.Pipeline(comm)
        model.fit(X, Y, batch_size=32, epochs=epochs, verbose=False, parallel=way, callbacks=keep)
        return model.values()

    simulate(3, run, 1)
    for found in simulate(ranks, run, 2):
        assert_near(found, expected)


def test_a_checkpoint_within_an_epoch(tmp_path: Any) -> None:
    """Callbacks that look at parameters after a batch see those of all stages."""
    seen: list[Any] = []

    class Looks(md.callbacks.Callback):
        def on_batch_end(self, fit: Any) -> None:
            seen.append(fit.model.values())
            if fit.steps == 3:
                fit.stop("enough", goes_on=True)

    def run(comm: Communicator | None) -> Any:
        model = deep()
        way: dict[str, Any] = {"parallel": False, "accumulate": 4, "batch_size": 8}
        if comm is not None:
            way = {"parallel": md.parallel.Pipeline(comm), "batch_size": 32}
        calls = [Looks()] if comm is not None else []
        model.fit(X[:96], Y[:96], epochs=1, verbose=False, callbacks=calls, **way)
        return model.values()

    expected = run(None)
    simulate(2, run)
    assert len(seen) == 3
    for name, value in expected.items():
        np.testing.assert_allclose(seen[2][name], value, rtol=0, atol=1e-12)
        assert name.startswith("batch_norm_1") or np.ptp([v[name] for v in seen], axis=0).max() > 0


def refused(
    make: Callable[[], md.Model], x: Any = X, y: Any = Y, ranks: int = 2, **way: Any
) -> str:
    def run(comm: Communicator) -> str:
        with pytest.raises(MagmaDNNError) as found:
            make().fit(
                x, y, batch_size=32, epochs=1, verbose=False,
                parallel=md.parallel.Pipeline(comm, **way),
            )  # fmt: skip
        return f"{type(found.value).__name__}: {found.value}"

    texts = simulate(ranks, run)
    assert all(texts)
    return texts[0]


def test_mistakes() -> None:
    text = refused(deep, ranks=7)
    assert "7 stages need 7 layers with parameters to train, the model has 5" in text
    assert "use 5 ranks, or DataParallel" in text
    assert "did you mean" in refused(deep, stages=["dense_12"]) or "dense_1" in refused(
        deep, stages=["dens_2"]
    )
    assert "so 1 layers for 2 ranks" in refused(deep, stages=["dense_2", "dense_3"])
    assert "without parameters to train (layers dropout_1" in refused(
        deep, ranks=3, stages=["dropout_1", "dense_2"]
    )
    for wrong in (0, True, 2.5):
        with pytest.raises(ArgumentError, match="micro_batches must be a whole number"):
            md.parallel.Pipeline(micro_batches=wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="stages must be a list of names"):
        md.parallel.Pipeline(stages=3)  # type: ignore[arg-type]
    assert "mixed_fp16" in refused(
        lambda: md.Model(
            [md.layers.Input((5,)), md.layers.Dense(4), md.layers.Dense(3)],
            loss="cross_entropy",
            optimizer="sgd",
            precision="mixed_fp16",
        )
    )


def test_a_part_that_needs_all_gradients_is_refused() -> None:
    from dataclasses import dataclass

    from magmadnn.optim import Transform

    @dataclass(frozen=True)
    class ByCount(Transform):
        def transform(self, gradients: Any, *rest: Any) -> Any:
            return [g / len(gradients) for g in gradients], [{} for _ in gradients]

    chain = md.optim.Chain([ByCount(), md.optim.parts.LearningRate(0.1)])
    assert "ByCount looks at the gradients of all parameters" in refused(
        lambda: deep(optimizer=chain)
    )


@pytest.mark.parametrize("ranks", [1, 3])
def test_nan_and_wrong_data_are_told_on_all_ranks(ranks: int) -> None:
    bad = X.copy()
    bad[50] = 1e308

    def run(comm: Communicator, x: Any, y: Any, kind: Any) -> Any:
        model = deep()
        before = model.values()
        way = md.parallel.Pipeline(comm)
        with pytest.raises(kind) as found:
            model.fit(x, y, batch_size=64, epochs=1, verbose=False, parallel=way, shuffle=False)
        after = model.values()
        assert all(np.array_equal(before[name], after[name]) for name in before)
        return str(found.value)

    for text in simulate(ranks, run, bad, Y, NumericError):
        assert "infinity" in text or "NaN" in text

    batches = [(X[:32], Y[:32]), (X[32:64], np.where(np.arange(32) == 9, 5, Y[32:64]))]

    def stream(comm: Communicator) -> str:
        model = deep()
        with pytest.raises(MagmaDNNError) as found:
            model.fit(lambda: iter(batches), verbose=False, parallel=md.parallel.Pipeline(comm))
        return str(found.value)

    assert all("5" in text for text in simulate(ranks, stream))


def test_differing_ranks_are_refused() -> None:
    def run(comm: Communicator) -> None:
        way = md.parallel.Pipeline(comm, micro_batches=2 + comm.rank)
        deep().fit(X, Y, verbose=False, parallel=way)

    with pytest.raises(DataError, match="ranks differ in parallel: rank 0 has Pipeline"):
        simulate(2, run)


def test_a_name_that_is_none() -> None:
    with pytest.raises(UnknownNameError, match="layer 'dense_9'"):
        simulate(
            2,
            lambda comm: deep().fit(
                X, Y, verbose=False, parallel=md.parallel.Pipeline(comm, stages=["dense_9"])
            ),
        )
