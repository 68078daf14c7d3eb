"""Parameters of which each rank keeps a piece: the bits of `DataParallel`, in one program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import Communicator, simulate
from magmadnn.compiler.plan.native_plan import NativePlan
from magmadnn.compiler.regions.region import RegionKind
from magmadnn.errors import DeviceError, MagmaDNNError, NumericError
from magmadnn.graph.node import VARIABLE
from magmadnn.parallel.sharding.parameters import PiecesSlices
from magmadnn.parallel.sharding.pieces import Group
from magmadnn.storage.checkpoint import parameters_sha256
from tests.comm.test_launch import launched

DRAW = np.random.default_rng(13)
X = DRAW.normal(size=(103, 5)).astype(np.float32)  # the last batch of 32 has 7 rows
Y = DRAW.integers(0, 3, 103)
IMAGES = DRAW.normal(size=(44, 9, 7, 2)).astype(np.float32)
SIZES = [5 * 17, 17, 17, 17, 17 * 11, 11, 11 * 3, 3]
LARGEST = 17 * 11 + 11  # elements of the largest layer


def network(optimizer: Any = None) -> md.Model:
    layers = md.layers
    return md.Model(
        [
            layers.Input((5,)), layers.Dense(17, activation="tanh"), layers.BatchNorm(),
            layers.Dropout(0.3), layers.Dense(11, activation="relu"), layers.Dense(3),
        ],
        loss="cross_entropy", optimizer=optimizer or md.optim.Adam(0.01), metrics=["accuracy"], seed=3,
    )  # fmt: skip


def images() -> md.Model:
    layers = md.layers
    return md.Model(
        [
            layers.Input((9, 7, 2)), layers.Conv2D(4, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(2), layers.Conv2D(8, 3, activation="tanh"), layers.BatchNorm(),
            layers.Flatten(), layers.Dense(12, activation="relu"), layers.Dense(3),
        ],
        loss="cross_entropy", optimizer=md.optim.SGD(0.1, momentum=0.9), seed=3,
    )  # fmt: skip


def halves() -> md.Model:
    layers = md.layers
    return md.Model(
        [
            layers.Input((5,)), layers.Dense(17, activation="relu"), layers.LayerNorm(), layers.Dense(16),
            layers.Dense(3),
        ],
        loss="cross_entropy", optimizer=md.optim.Adam(0.01), precision="mixed_bf16", seed=3,
    )  # fmt: skip


CASES: dict[str, Any] = {
    "halves": (halves, X, {}),  # only what products read is rounded
    "dense": (network, X, {}),
    "groups": (network, X, {"accumulate": 3}),
    "images": (images, IMAGES, {}),
}


def trained(comm: Communicator, case: str, shard: Any, **options: Any) -> tuple[Any, Any]:
    make, x, given = CASES[case]
    model = make()
    given = {"batch_size": 32, "epochs": 2, "verbose": False} | given | options
    way = md.parallel.DataParallel(comm, shard=shard)
    history = model.fit(x, Y[: len(x)], parallel=way, **given)
    assert model._step is not None
    step: Any = model._step[2]
    state = {k: np.asarray(v).tobytes() for k, v in step.state().items()}
    sha = parameters_sha256(model.values().items())
    return (sha, state, [row["loss"] for row in history.rows]), step


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps each call had."""
    found: list[int] = []
    known = PiecesSlices.run

    def run(self: PiecesSlices, order: Any, count: int, follows: bool = False) -> Any:
        found.append(count)
        return known(self, order, count, follows)

    monkeypatch.setattr(PiecesSlices, "run", run)
    return found


@pytest.mark.parametrize(
    ("case", "numbers"),
    [
        ("dense", (1, 2, 3, 4)),
        pytest.param(
            "dense", (8,), marks=pytest.mark.long
        ),  # the last batch has no row for one of them
        pytest.param("groups", (1, 3), marks=pytest.mark.long),
        pytest.param("images", (1, 2, 3), marks=pytest.mark.long),
        pytest.param("halves", (1, 2), marks=pytest.mark.long),
    ],
)
def test_bits_are_those_of_data_parallel(
    case: str, numbers: tuple[int, ...], runs: list[int]
) -> None:
    """In calls of many steps, and batch by batch where the last one of an epoch has fewer rows."""
    expected = simulate(1, lambda comm: trained(comm, case, None))[0][0]
    for ranks in numbers:
        runs.clear()
        for found, _ in simulate(ranks, lambda comm: trained(comm, case, "parameters")):
            assert found == expected
        assert sum(runs) == ranks * 2 * (len(CASES[case][1]) // 32)
        assert case == "images" or max(runs) > 1


def test_batch_by_batch_gives_the_bits_of_many_steps_in_a_call(runs: list[int]) -> None:
    class Looks(md.callbacks.Callback):
        def batches(self, fit: Any) -> int:
            return 1

    together = simulate(2, lambda comm: trained(comm, "dense", "parameters")[0])
    assert runs
    runs.clear()
    assert together == simulate(
        2, lambda comm: trained(comm, "dense", "parameters", callbacks=[Looks()])[0]
    )
    assert not runs


def test_each_rank_keeps_its_piece() -> None:
    """The model's arrays have no memory in the middle of an epoch; pieces are even."""
    seen: list[int] = []

    class Looks(md.callbacks.Callback):
        is_everywhere = True

        def looks(self, fit: Any) -> bool:
            with pytest.raises(DeviceError, match="these values lie in parts on several workers"):
                fit.model.parameters()[0].node.value.read()
            seen.append(sum(not p.value.memory.is_aside for p in fit.model.parameters()))
            return False

    def run(comm: Communicator) -> Any:
        _, step = trained(comm, "dense", "parameters", callbacks=[Looks()])
        _, executable = step._programs[32]
        variables = [n for n in executable.program.leaves if n.op is VARIABLE and n.ndim]
        kept = sum(
            n.value.nbytes for n in variables if not str(n.name).startswith("batch_norm_1/running")
        )
        most = most_gathered(executable.native.plan)
        return step.own_bytes, kept, most, step.text({"batch": 32})

    for ranks in (2, 3):
        found = simulate(ranks, run)
        assert sum(own for own, *_ in found) == 3 * 4 * sum(SIZES)
        for own, kept, most, text in found:
            assert own <= 3 * 4 * (sum(SIZES) // ranks + 3)  # rounded up, in each of three groups
            assert own == kept  # a step reads and writes no other parameters and moments
            assert 4 * LARGEST <= most <= 4 * (LARGEST + ranks)  # one group, the next is on its way
            assert f"of {ranks} keeps" in text and "group 1: dense_2" in text
            assert "3 groups of layers; 4 gathers" in text  # the first layer's not on the way back
    assert set(seen) == {0}


def most_gathered(plan: NativePlan) -> int:
    """Bytes of gathered parameters that there are at a time, at most."""
    lives = []
    for work in plan.work:
        node = work.region.nodes[0]
        if node.op.name == "_gather_wait":
            users = [w for w in plan.work if node in {plan.layouts.bases[i] for i in w.region.read}]
            size = int(np.prod(node.shape)) * node.dtype.itemsize
            lives.append((work.phase, max(w.phase for w in users), size))
    phases = range(max(last for _, last, _ in lives) + 1)
    return max(sum(n for first, last, n in lives if first <= k <= last) for k in phases)


def test_gathers_and_sums_begin_while_others_are_computed() -> None:
    """In the plan: a gather begins before products with what was gathered before, and ends behind them."""

    def run(comm: Communicator) -> Any:
        _, step = trained(comm, "dense", "parameters", epochs=1)
        return step._programs[32][1].native.plan

    plan = simulate(2, run)[0]
    calls: dict[str, list[int]] = {}
    products = []
    for work in sorted(plan.work, key=lambda w: w.phase):
        node = work.region.nodes[0]
        if work.region.kind is RegionKind.COLLECTIVE:
            calls.setdefault(node.op.name, []).append(work.phase)
        elif work.region.kind is RegionKind.GEMM:
            products.append((work.phase, tuple(node.shape)))
    # of four shards of this rank
    first = [phase for phase, shape in products if shape == (4, 17)][:4]
    second = [phase for phase, shape in products if shape == (4, 11)][:4]
    begun, ended = calls["_gather_begin"], calls["_gather_wait"]
    assert ended[0] <= begun[1] <= min(first) and max(first) < ended[1] <= min(second)
    assert begun[2] <= min(second) and max(second) < ended[2]
    own = [phase for phase, shape in products if shape == (5, 17)]  # gradients of the first layer
    assert calls["_share_begin"][0] < max(own) and calls["_share_wait"][0] < max(own)


@pytest.mark.parametrize("shard", ["parameters", "optimiser", None])
def test_checkpoints_go_on_with_another_number_of_ranks(tmp_path: Any, shard: Any) -> None:
    expected = simulate(1, lambda comm: trained(comm, "dense", None))[0][0][:2]

    def run(comm: Communicator, epochs: int, shard: Any) -> Any:
        keep = [md.callbacks.Checkpoint(tmp_path / "kept", signals=False)]
        return trained(comm, "dense", shard, epochs=epochs, callbacks=keep)[0][:2]

    simulate(3, run, 1, "parameters")
    for found in simulate(2, run, 2, shard):
        assert found == expected


@pytest.mark.parametrize("where", ["forward", "update"])
def test_nan_is_told_on_all_ranks_and_parameters_are_whole_again(where: str) -> None:
    bad = X.copy()
    bad[50, 2] = 3e38 if where == "forward" else bad[50, 2]

    def run(comm: Communicator) -> str:
        layers = [md.layers.Input((5,)), md.layers.Dense(7), md.layers.Dense(3)]
        linear = md.Model(layers, loss="cross_entropy", optimizer="sgd")
        grown = md.optim.SGD(1e38, weight_decay=100.0)  # kernels grow beyond float32, biases do not
        model = linear if where == "forward" else network(grown)
        if where == "forward":
            kernel = model.parameters()[0].node.value
            kernel.write(np.full(kernel.shape, 2, np.float32))  # twice 3e38 is infinity
        before = parameters_sha256(model.values().items())
        way = md.parallel.DataParallel(comm, shard="parameters")
        with pytest.raises(NumericError) as found:
            model.fit(bad, Y, batch_size=103, verbose=False, parallel=way, shuffle=False)
        assert parameters_sha256(model.values().items()) == before
        return str(found.value)

    assert all("infinity" in text or "NaN" in text for text in simulate(3, run))


def test_mistakes() -> None:
    def run(comm: Communicator) -> None:
        model = network(md.optim.SGD(0.1, clip_norm=1.0))
        way = md.parallel.DataParallel(comm, shard="parameters")
        model.fit(X, Y, verbose=False, parallel=way)

    with pytest.raises(
        MagmaDNNError, match=r"looks at whole gradients, .* use shard='optimiser', or a part"
    ):
        simulate(2, run)


SCRIPT = """
import json

import numpy as np

import magmadnn as md
from magmadnn.errors import NumericError
from magmadnn.storage.checkpoint import parameters_sha256
from tests.parallel.test_sharded_parameters import X, Y

comm, told = md.comm.world(), []
for bad in (False, True):
    x = X.copy()
    x[90, 2] = 3e38 if bad else x[90, 2]
    layers = [md.layers.Input((5,)), md.layers.Dense(7), md.layers.Dropout(0.2), md.layers.Dense(3)]
    model = md.Model(layers, loss="cross_entropy", optimizer=md.optim.Adam(0.01), seed=1)
    kernel = model.parameters()[0].node.value
    kernel.write(np.full(kernel.shape, 2, np.float32))  # twice 3e38 is infinity
    way = md.parallel.DataParallel(shard="parameters")
    try:
        model.fit(x, Y, batch_size=32, epochs=2, verbose=False, parallel=way, shuffle=False)
    except NumericError as error:
        told.append(str(error))
    told.append(parameters_sha256(model.values().items()))
    told.append(model.evaluate(X, Y)["loss"])
told = comm.exchange(told)
if comm.rank == 0:
    print(json.dumps(told))
"""


def test_processes_train_and_tell_of_nan(tmp_path: Path) -> None:
    """Calls of a thread beside the steps: the bits of one rank, and after NaN the weights of before."""
    pytest.importorskip("mpi4py")
    told = []
    for ranks in (1, 2):
        code, out, errors, _ = launched(tmp_path, ranks, SCRIPT, "")
        assert code == 0, errors
        told += json.loads(out.splitlines()[-1])
    for sha, loss, error, after, again in told:
        assert [sha, loss, after] == [told[0][0], told[0][1], told[0][3]]
        assert sha != after and loss != again and np.isfinite(again)
        assert "NaN" in error or "infinity" in error


class Looks(md.callbacks.Callback):
    """Notes the sum of the parameters behind each epoch."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_epoch_end(self, fit: Any) -> None:
        values = fit.model.values().values()
        self.found.append(sum(float(v.sum()) for v in values if v.dtype.kind == "f"))


def test_parameters_stay_in_pieces_between_epochs_that_nobody_looks_at(monkeypatch: Any) -> None:
    """With the same bits; a callback on rank 0 alone, or validation, has whole ones behind each epoch."""
    given: list[int] = []
    known = Group.give
    monkeypatch.setattr(Group, "give", lambda self: (given.append(self.number), known(self)))

    def run(comm: Communicator, **options: Any) -> Any:
        return trained(comm, "dense", "parameters", epochs=3, **options)[0]

    kept = simulate(2, run)
    times = given.count(0)
    assert times == 2  # by each rank at the end
    looks = Looks()
    looked = simulate(2, lambda comm: run(comm, callbacks=[looks] if comm.rank == 0 else [Looks()]))
    assert given.count(0) - times == 2 * 3
    assert len(looks.found) == 3 and len(set(looks.found)) == 3
    assert kept[0] == kept[1] == looked[0] == looked[1]
    times = given.count(0)
    simulate(2, lambda comm: run(comm, validation_split=0.2))
    assert given.count(0) - times == 2 * 3
