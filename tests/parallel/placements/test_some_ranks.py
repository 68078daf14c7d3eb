"""Layers that some of the ranks compute: the training of one rank, but for the order of sums."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.comm import Communicator, bound, simulate
from magmadnn.errors import ArgumentError, MagmaDNNError, NumericError
from magmadnn.graph import Spec
from magmadnn.graph.node import placeholder, scope
from magmadnn.graph.placing import Partial, Replicate, Shard, routed
from magmadnn.graph.program import Program
from magmadnn.parallel.placements.distribute import Distribution
from magmadnn.parallel.placements.laid_out import LaidOutStep
from magmadnn.parallel.placements.one_rank import of_rank
from magmadnn.parallel.placements.slices import PlacedSlices
from magmadnn.parallel.placements.step import PlacedStep
from magmadnn.runtime import Executable
from tests.parallel.parameters import assert_near

ROOT = Path(__file__).resolve().parents[3]
Columns, Rows, Replicated = md.dmath.Columns, md.dmath.Rows, md.dmath.Replicated
DRAW = np.random.default_rng(5)
ROWS = 55  # of which the last batch of 16 has 7
X, Y = DRAW.normal(size=(ROWS, 9, 7, 2)), DRAW.integers(0, 4, ROWS)
WEIGHTS = DRAW.integers(1, 32, ROWS) / 16


def network(optimizer: Any = None) -> md.Model:
    layers = md.layers
    return md.Model(
        [
            layers.Input((9, 7, 2)), layers.Conv2D(4, 3, activation="relu"), layers.BatchNorm(),
            layers.MaxPooling2D(2), layers.Flatten(), layers.Dense(12, activation="tanh"),
            layers.BatchNorm(), layers.Dropout(0.2), layers.Dense(8, activation="relu"), layers.Dense(4),
        ],
        loss="cross_entropy", optimizer=optimizer or md.optim.Adam(0.01), metrics=["accuracy"], seed=3,
        precision="float64",
    )  # fmt: skip


OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (None, {}),
    "weighted": (None, {"sample_weight": WEIGHTS}),
    "groups": (md.optim.SGD(0.1, momentum=0.9), {"accumulate": 2}),
    "clipped": (md.optim.SGD(0.2, momentum=0.9, clip_norm=0.05), {"validation_split": 0.1}),
}
SOME: dict[str, Any] = {
    "one": {"dense_1": Columns(on=(0,)), "dense_2": Replicated(on=(0,))},
    "same": {"dense_1": Columns(on=(0, 1)), "dense_2": Rows(on=(0, 1))},
    "others": {"dense_1": Columns(on=(1, 0)), "dense_2": Rows(on=(0,)), "dense_3": "columns"},
    "apart": {"dense_1": Rows(on=(0, 2)), "dense_2": Columns(on=(3, 1)), "dense_3": Replicated(on=(1,))},
    "copies": {"conv2d_1": Columns(on=(0, 1)), "dense_1": Replicated(on=(1, 0))},
}  # fmt: skip


def trained(comm: Communicator | None, layers: Any, case: str = "plain", **more: Any) -> Any:
    optimizer, options = OPTIONS[case]
    model = network(optimizer)
    way = False if comm is None else md.parallel.Hybrid(layers, comm)
    given = {"batch_size": 16, "epochs": 2, "verbose": False} | options | more
    history = model.fit(X, Y, parallel=way, **given)
    step = model._step[2] if model._step else None
    return model.values(), [row["loss"] for row in history.rows], step, model


@cache
def alone(case: str = "plain") -> Any:
    return trained(None, None, case)


def same(found: Any, expected: Any) -> None:
    assert_near(found[0], expected[0])
    assert found[1] == pytest.approx(expected[1], abs=1e-12)


def runs() -> Iterator[Any]:
    """Layers and cases on numbers of ranks; the usual run has some of them."""
    usual = {
        ("one", "plain", 2),
        ("others", "clipped", 3),
        ("same", "groups", 4),
        ("apart", "weighted", 4),
    }
    usual |= {("copies", "plain", 4)}
    for layers in SOME:
        for case in OPTIONS:
            for ranks in (2, 3, 4, 8):
                if (layers, ranks) in {("apart", 2), ("apart", 3), ("others", 8)}:
                    continue
                marks = () if (layers, case, ranks) in usual else pytest.mark.long
                yield pytest.param(layers, case, ranks, marks=marks)


@pytest.mark.parametrize(("layers", "case", "ranks"), list(runs()))
def test_it_is_the_training_of_one_rank(layers: str, case: str, ranks: int) -> None:
    said = SOME[layers]
    if layers == "others" and ranks == 3:
        said = {**said, "dense_3": "data"}  # three ranks have no equal parts of 4 units
    for found in simulate(ranks, lambda comm: trained(comm, said, case)):
        same(found, alone(case))
        assert type(found[2]) is PlacedStep


def test_model_parallel_has_the_whole_batch_on_these_ranks() -> None:
    def run(comm: Communicator) -> Any:
        model = network()
        way = md.parallel.ModelParallel(comm, layers=SOME["same"])
        rows = model.fit(X, Y, batch_size=16, epochs=2, verbose=False, parallel=way).rows
        return model.values(), [row["loss"] for row in rows]

    for found in simulate(3, run):
        same(found, alone())


def test_parameters_and_moments_are_on_these_ranks_alone() -> None:
    """While steps run; outside of them are no kernel, no moment and no work of the layer."""
    kernel, bias = 24 * 12, 12

    def run(comm: Communicator) -> Any:
        step = trained(comm, {"dense_1": Columns(on=(3, 1))})[2]
        shapes = {n.shape for n in step._by_rows.program.nodes() if str(n.name) == "dense_1/kernel"}
        scopes = {n.scope for n in step._by_rows.program.nodes() if n.op.name == "matmul"}
        return step.own_bytes, shapes, {s for s in scopes if s.startswith("dense_1")}

    found = simulate(4, run)
    part = 3 * 8 * (kernel + bias) // 2  # a weight and two moments of float64
    assert [one[0] for one in found] == [0, part, 0, part]
    assert [one[1] for one in found] == [set(), {(24, 6)}, set(), {(24, 6)}]
    assert [bool(one[2]) for one in found] == [False, True, False, True]


def test_plan_tells_which_ranks_a_layer_has() -> None:
    def run(comm: Communicator) -> str:
        layers = {"dense_1": Columns(on=(2, 0)), "dense_2": Rows(on=(1,)), "dense_3": "data"}
        return str(trained(comm, layers)[3].plan(batch_size=16))

    texts = simulate(4, run)
    assert all("# dense_1: by columns on ranks 2, 0 of 4\n" in text for text in texts)
    assert all("# dense_2: whole on rank 1 of 4\n" in text for text in texts)
    assert not any("# dense_3: " in text for text in texts)
    assert "# rank 3 keeps 0 B of these layers" in texts[3]


def test_many_steps_run_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """On ranks that have nothing of a layer too, whole batches; by the reference they run one by one."""
    run, counts = PlacedSlices.run, list[int]()

    def counted(self: PlacedSlices, order: Any, count: int, follows: bool = False) -> Any:
        counts.append(count)
        return run(self, order, count, follows)

    monkeypatch.setattr(PlacedSlices, "run", counted)
    simulate(3, lambda comm: trained(comm, SOME["same"]))
    assert sum(counts) == 3 * 2 * (ROWS // 16)

    def by_reference(comm: Communicator) -> Any:
        model = network()
        model.executor = "reference"
        way = md.parallel.Hybrid(SOME["same"], comm)
        rows = model.fit(X, Y, batch_size=16, epochs=2, verbose=False, parallel=way).rows
        return model.values(), [row["loss"] for row in rows]

    counts.clear()
    for found in simulate(3, by_reference):
        same(found, alone())
    assert not counts


def test_a_checkpoint_goes_on_with_other_ranks(tmp_path: Path) -> None:
    def run(comm: Communicator, layers: Any, epochs: int) -> Any:
        keep = [md.callbacks.Checkpoint(tmp_path / "kept", signals=False)]
        return trained(comm, layers, epochs=epochs, callbacks=keep)

    simulate(4, run, SOME["apart"], 1)
    for found in simulate(2, run, SOME["same"], 2):
        assert_near(found[0], alone()[0])


def test_bits_do_not_depend_on_ranks_with_deterministic() -> None:
    """Some ranks keep and update the weights then; all compute their rows."""
    model = network()
    model.fit(X, Y, batch_size=16, epochs=2, verbose=False, parallel=md.parallel.DataParallel())
    expected = model.values()

    def run(comm: Communicator) -> Any:
        layers = {"dense_1": Columns(on=(comm.size - 1, 0)), "dense_2": Rows(on=(0,))}
        model, way = network(), md.parallel.Hybrid(layers, comm, deterministic="layout")
        model.fit(X, Y, batch_size=16, epochs=2, verbose=False, parallel=way)
        assert model._step and type(model._step[2]) is LaidOutStep
        return model.values()

    for ranks in (2, 4):
        for found in simulate(ranks, run):
            for name, value in expected.items():
                np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_callbacks_see_whole_parameters_and_may_set_them() -> None:
    class Halves(md.callbacks.Callback):
        is_everywhere = True

        def on_epoch_end(self, fit: Any) -> None:
            kernel = fit.model.named()["dense_1/kernel"].node.value
            kernel.write(kernel.read() / 2)

    expected = trained(None, None, callbacks=[Halves()])
    for found in simulate(4, lambda comm: trained(comm, SOME["same"], callbacks=[Halves()])):
        same(found, expected)


@pytest.mark.parametrize("rows", [8, 6])
def test_what_one_rank_finds_is_told_to_all(rows: int) -> None:
    """Infinity comes into being on rank 1 alone; ranks that have nothing of the layer end with it too."""

    def run(comm: Communicator) -> str:
        layers = md.layers
        model = md.Model(
            [layers.Input((2,)), layers.Dense(4, activation="tanh"), layers.Dense(2), layers.Dense(1)],
            loss="mse", optimizer=md.optim.SGD(0.1), seed=1, precision="float64",
        )  # fmt: skip
        before = model.values()
        kernel = model.named()["dense_2/kernel"].node.value
        kernel.write(np.full(kernel.shape, 1e308))
        way = md.parallel.Hybrid({"dense_2": Columns(on=(1,))}, comm)
        with pytest.raises(NumericError) as error:
            model.fit(
                np.full((rows, 2), 9.0), np.zeros((rows, 1)), batch_size=4, epochs=1, verbose=False,
                parallel=way,
            )  # fmt: skip
        after = model.values()
        assert all(np.array_equal(before[n], after[n]) for n in before if n != "dense_2/kernel")
        return str(error.value)

    texts = simulate(4, run)
    assert all("infinity" in text or "NaN" in text for text in texts), texts
    assert "rank 1 of 4" in texts[0]


def refused(layers: Mapping[str, Any], ranks: int = 4) -> str:
    def run(comm: Communicator) -> str:
        with pytest.raises(MagmaDNNError) as found:
            trained(comm, layers)
        return f"{type(found.value).__name__}: {found.value}"

    return simulate(ranks, run)[0]


def test_mistakes() -> None:
    told = refused({"dense_1": Columns(on=(0, 4))})
    assert "Hybrid: layers['dense_1']: Columns: owner 4 names no worker, there are 4" in told
    assert "layer 'dense_9' cannot be split; those" in refused({"dense_9": Rows(on=(0,))})
    assert "'batch_norm_1' cannot be split" in refused({"batch_norm_1": Replicated(on=(0,))})
    with pytest.raises(ArgumentError, match="Columns: on= names no worker"):
        Columns(on=())


def test_what_is_in_a_scope_is_computed_on_its_ranks() -> None:
    """Though all ranks have rows of both operands, so that nothing would travel."""
    shape = {True: (8, 3), False: (2, 3)}
    x, y, own_x, own_y = (
        placeholder(name, Spec(shape[whole], np.dtype(float)))
        for whole in (True, False)
        for name in ("x", "y")
    )
    with scope("layer"):
        product = x * y
    leaves = {x: (Shard(0), own_x), y: (Shard(0), own_y)}
    given = Program((ops.sum(product),))
    for within, there in (({"layer": (1, 2)}, {1, 2}), ({}, {0, 1, 2, 3})):
        found = Distribution(given, leaves, 4, within=within).program
        programs = [of_rank(found, {}, rank, 4) for rank in range(4)]
        names = [{n.op.name for n in program.nodes()} for program in programs]
        assert {rank for rank, own in enumerate(names) if "multiply" in own} == there


@pytest.mark.parametrize("executor", ["reference", "native"])
def test_ranks_send_though_nothing_of_theirs_depends_on_it(executor: str) -> None:
    """A variable of rank 1 alone becomes a sum over all: other ranks have no use for the call."""
    x, own = (placeholder("x", Spec((rows, 2), np.dtype(float))) for rows in (8, 2))
    loss = placeholder("loss", Spec((), np.dtype(float)))
    with scope("layer"):
        total = ops.sum(x, 0)

    def run(comm: Communicator) -> tuple[float, list[float]]:
        kept = md.variable("kept", np.zeros(2)).node
        leaves = {x: (Shard(0), own), kept: (Replicate((1,)), kept)}
        given = Program((loss * 2.0,), ((kept, total),))
        found = Distribution(given, leaves, 4, within={"layer": (1,)}).program
        program = Executable(of_rank(found, {kept: (1,)}, comm.rank, 4), executor=executor)
        with bound(comm):
            (told,) = program.run({own: np.full((2, 2), comm.rank + 1.0), loss: np.array(3.0)})
        return float(told), kept.value.read().tolist()

    zeros = (6.0, [0.0, 0.0])
    assert simulate(4, run) == [zeros, (6.0, [20.0, 20.0]), zeros, zeros]


def test_what_moves() -> None:
    """Elements that the busiest rank sends, of n: the least that its part allows."""
    some, one, rows = Shard(1, (0, 1)), Replicate((0,)), Shard(0)
    for before, after, sent in (
        (rows, Replicate((0, 1)), 2),  # a quarter of n to each of both, of which it has a quarter
        (rows, one, 1),
        (some, rows, 3 / 4),  # three of four quarters of its half
        (Shard(0, (0, 1)), rows, 1),  # rank 1 has rows of ranks 2 and 3
        (one, rows, 3 / 4),
        (Partial((0, 1)), Shard(0, (0, 1)), 1 / 2),
        (Partial((0, 1)), rows, 3 / 4),
        (Shard(0, (0, 1)), Shard(0, (1, 0)), 1),
        (Replicate((0, 1)), Replicate((0, 1, 2, 3)), 1),  # each serves one of the others
    ):
        assert routed(before, after, 4).sent == sent, (before, after)


@pytest.mark.parametrize(
    "layout", [Columns(block=3), Columns(on=(0, 1, 0)), Rows(on=(1, 0, 0, 1)), Rows(block=7)]
)
def test_several_strips_on_a_rank_say_who_keeps_them(layout: Any) -> None:
    # other sizes of strips say who keeps them too; all compute
    found, others = (
        simulate(2, lambda comm, one=one: trained(comm, {"dense_1": one}))
        for one in (layout, Columns(sizes=(5, 7)))
    )
    for one, other in zip(found, others, strict=True):
        assert isinstance(one[2], LaidOutStep)
        same(one, other)


def test_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    )
    layers = {
        "dense_1": Columns(on=(0, 1)),
        "dense_2": Rows(on=(0, 1)),
        "dense_3": Replicated(on=(2,)),
    }
    model = network()
    with md.workers(4) as w:
        rows = model.fit(
            X, Y, batch_size=16, epochs=2, verbose=False, parallel=md.parallel.Hybrid(layers)
        ).rows
        lies = {name: str(array.layout) for name, array in w.weights().items()}
        whole = np.asarray(w.weights()["dense_1/kernel"])
    same((model.values(), [row["loss"] for row in rows]), alone())
    np.testing.assert_array_equal(whole, model.values()["dense_1/kernel"])
    assert "on workers 0, 1 of 4" in lies["dense_1/kernel"] and "2" in lies["dense_3/bias"]


SCRIPT = """
import numpy as np
import magmadnn as md
from magmadnn.storage.checkpoint import parameters_sha256
from tests.parallel.placements.test_some_ranks import SOME, trained

print(f"<{parameters_sha256(trained(COMM, SOME['apart'])[0].items())}>")
"""


def test_processes_give_what_simulated_ranks_give(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    from magmadnn.storage.checkpoint import parameters_sha256

    (tmp_path / "train.py").write_text(SCRIPT.replace("COMM", "md.comm.world()"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "magmadnn", "launch", "-n", "4", "train.py"]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment
    )
    assert found.returncode == 0, found.stderr
    expected = simulate(4, lambda comm: parameters_sha256(trained(comm, SOME["apart"])[0].items()))
    assert len(set(expected)) == 1
    assert found.stdout.count(f"<{expected[0]}>") == 4, (found.stdout, expected)
