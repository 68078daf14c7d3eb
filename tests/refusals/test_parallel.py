"""Several workers: what cannot be shared, or is not the same on all ranks.

See `cases.py` for what the tables hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import (
    ArgumentError,
    DataError,
    FileError,
    OutOfMemoryError,
    UnknownArgumentError,
    UnknownNameError,
)
from tests.refusals.cases import D, NoEpoch, PythonCase, X, Y, check_in_python, network


def shared(ranks: int, x: Any = None, way: Any = None, **options: Any) -> None:
    """A fit that is refused before its first epoch."""

    def run(comm: Any) -> None:
        data = X if x is None else x(comm)
        how = md.parallel.DataParallel(comm) if way is None else way(comm)
        found = options | (
            {"batch_size": 8 + comm.rank} if options.get("batch_size") == "rank" else {}
        )
        code = [md.layers.Dense(4 + comm.rank), md.layers.Dense(3)]
        model = network(*code) if found.pop("code", False) else network()
        model.fit(data, Y, callbacks=[NoEpoch()], parallel=how, verbose=False, **found)

    md.comm.simulate(ranks, run)


def in_pieces(ranks: int, *layers: Any, **changes: Any) -> None:
    """A fit with parameters in pieces."""

    def run(comm: Any) -> None:
        way = md.parallel.DataParallel(comm, shards=32, shard="parameters")
        network(*layers, **changes).fit(X, Y, callbacks=[NoEpoch()], parallel=way, verbose=False)

    md.comm.simulate(ranks, run)


def files(folder: Path) -> None:
    """Ranks that read files of their own, which differ in one number."""

    def x(comm: Any) -> Any:
        values = X.copy()
        values[-1, -1] += comm.rank
        np.save(folder / f"x{comm.rank}.npy", values)
        return np.load(folder / f"x{comm.rank}.npy", mmap_mode="r")

    shared(2, x)


def batches() -> None:
    """Batches that a function of each rank makes; one differs in one number."""

    def run(comm: Any) -> None:
        values = X.copy()
        values[-1, -1] += comm.rank
        parts = [(values[k : k + 8], Y[k : k + 8]) for k in range(0, len(X), 8)]
        way = md.parallel.DataParallel(comm)
        network().fit(lambda: iter(parts), epochs=1, parallel=way, verbose=False)

    md.comm.simulate(2, run)


def _on(*ranks: int) -> md.dmath.Columns:
    return md.dmath.Columns(on=ranks)


PYTHON: dict[str, PythonCase] = {
    "parallel: a number": (
        lambda p: network().fit(X, Y, parallel=4),
        ArgumentError,
        "fit: parallel must be one of md.parallel, such as DataParallel(), got int",
    ),
    "shards: none": (
        lambda p: md.parallel.DataParallel(shards=0),
        ArgumentError,
        "DataParallel: shards must be a whole number of at least 1, got 0",
    ),
    "deterministic: no layout": (
        lambda p: md.parallel.DataParallel(deterministic="bits"),  # type: ignore[arg-type]
        UnknownNameError,
        "DataParallel: deterministic 'bits' is not known: known are layout",
    ),
    "deterministic: with sums in the middle of the step": (
        lambda p: md.parallel.DataParallel(deterministic="layout", sync=True),
        ArgumentError,
        (
            "DataParallel: with sync=True sums over ranks are in the middle of the step, and bits depend on "
            "how many there are: leave sync or deterministic='layout' out"
        ),
    ),
    "deterministic: on GPUs": (
        lambda p: md.parallel.DataParallel(deterministic="layout").settle("cuda"),
        ArgumentError,
        (
            "DataParallel: on GPUs each rank has a part of the batch, and bits are those of as many ranks: "
            "leave deterministic='layout' out, or take device=\"cpu\""
        ),
    ),
    "call: an argument of a way": (
        lambda p: md.parallel.DataParallel(ranks=4),  # type: ignore[call-arg]
        UnknownArgumentError,
        (
            "DataParallel: argument 'ranks' is not known: known are communicator, computed, deterministic, "
            "shard, shards, sync, wire"
        ),
    ),
    "plan: no model": (
        lambda p: md.parallel.plan(3, 4, X, Y),  # type: ignore[arg-type]
        ArgumentError,
        "plan: model must be an md.Model, got 3",
    ),
    "plan: no rates": (
        lambda p: md.parallel.plan(network(), 4, X, Y, rates=2.0),  # type: ignore[arg-type]
        ArgumentError,
        "plan: rates must be md.parallel.Rates, got 2.0",
    ),
    "call: an argument of plan": (
        lambda p: md.parallel.plan(network(), 4, X, Y, batch=64),  # type: ignore[call-arg]
        UnknownArgumentError,
        (
            "plan: argument 'batch' is not known: did you mean 'batch_size'? known are all_workers, "
            "batch_size, memory_limit, model, rates, workers, x, y"
        ),
    ),
    "communicator: a number of workers": (
        lambda p: md.parallel.DataParallel(4),
        ArgumentError,
        "DataParallel: communicator must be one of md.comm, got int",
    ),
    "ranks: more than shards": (
        lambda p: shared(9, way=lambda comm: md.parallel.DataParallel(comm, shards=8)),
        ArgumentError,
        "~rank . of 9: DataParallel: 9 ranks cannot share shards=8: give shards=9, or fewer ranks",
    ),
    "model parallel: sizes that ranks do not divide": (
        lambda p: shared(4, way=lambda comm: md.parallel.ModelParallel(comm)),
        ArgumentError,
        "~rank . of 4: ModelParallel: no layer can be split among 4 ranks: dense_1 .*; give layers sizes .*",
    ),
    "hybrid: a layer without weights to split": (
        lambda p: shared(2, way=lambda comm: md.parallel.Hybrid({"flatten_1": "columns"}, comm)),
        ArgumentError,
        "~rank . of 2: Hybrid: layer 'flatten_1' cannot be split; those of this model that can are: .*",
    ),
    "hybrid: a layer on a rank that is not there": (
        lambda p: shared(2, way=lambda comm: md.parallel.Hybrid({"dense_1": _on(0, 2)}, comm)),
        ArgumentError,
        "~rank . of 2: Hybrid: layers.'dense_1'.: Columns: owner 2 names no worker, there are 2: give .*",
    ),
    "hybrid: a layer on no rank": (
        lambda p: md.parallel.Hybrid({"dense_1": _on()}),
        ArgumentError,
        "Columns: on= names no worker",
    ),
    "hybrid: a layer that is not there on some ranks": (
        lambda p: shared(2, way=lambda comm: md.parallel.Hybrid({"dense_7": _on(0)}, comm)),
        ArgumentError,
        "~rank . of 2: Hybrid: layer 'dense_7' cannot be split; those of this model that can are: .*",
    ),
    "pipeline: more ranks than layers": (
        lambda p: shared(3, way=md.parallel.Pipeline),
        ArgumentError,
        r"~rank . of 3: Pipeline: 3 stages need 3 layers with parameters to train, .*: use 2 ranks, or .*",
    ),
    "pipeline: a stage that is no layer": (
        lambda p: shared(2, way=lambda comm: md.parallel.Pipeline(comm, stages=["dense_9"])),
        UnknownNameError,
        "~rank . of 2: Pipeline: stages: layer 'dense_9' is not known: .* known are .*",
    ),
    "shards of the optimiser: more ranks than parameters": (
        lambda p: shared(5, way=lambda comm: md.parallel.DataParallel(comm, shard="optimiser")),
        ArgumentError,
        "~rank . of 5: DataParallel: .* whole parameters, 5 ranks cannot share 4: use 4 ranks, or .*",
    ),
    "memory: a step beyond the limit": (
        lambda p: network().fit(X, Y, memory_limit=9_000, parallel=False),
        OutOfMemoryError,
        r"~fit: a step with batch_size=23 takes [\d,]+ bytes, memory_limit is 9,000; not even .*",
    ),
    "memory: a limit that is no number of bytes": (
        lambda p: network().fit(X, Y, memory_limit="1 GB"),
        ArgumentError,
        "fit: memory_limit must be a number of bytes of at least 1, got '1 GB'",
    ),
    "asynchronous: groups of batches": (
        lambda p: shared(2, way=md.parallel.AsyncSGD, accumulate=2),
        ArgumentError,
        "~rank . of 2: AsyncSGD: each gradient has an update of its own: give accumulate=1",
    ),
    "sync: with shards of the optimiser": (
        lambda p: md.parallel.DataParallel(sync=True, shard="optimiser"),
        ArgumentError,
        "DataParallel: sync=True has no shards whose sums shard='optimiser' could share out: leave one out",
    ),
    "parameters in pieces: an optimiser with norms": (
        lambda p: in_pieces(2, optimizer=md.optim.SGD(0.1, clip_norm=1.0)),
        ArgumentError,
        "~rank . of 2: DataParallel: .* looks at whole gradients, .*: use shard='optimiser', or a part .*",
    ),
    "parameters in pieces: more ranks than elements": (
        lambda p: in_pieces(19, md.layers.Dense(3)),
        ArgumentError,
        "~rank .* of 19: DataParallel: shard='parameters' leaves rank .* no element of 18: use fewer ranks",
    ),
    "plan: no room": (
        lambda p: md.parallel.plan(network(), 2, X, Y, memory_limit=64),
        OutOfMemoryError,
        "~plan: no way to train with batch_size=32 on up to 2 workers has room in memory_limit=64 B: .*",
    ),
    "data: another on a rank": (
        lambda p: shared(2, lambda comm: X + np.float32(comm.rank)),
        DataError,
        "~rank . of 2: DataParallel: ranks differ in x: rank 0 has .*; give all ranks the same model, .*",
    ),
    "code: another layer on a rank": (
        lambda p: shared(2, code=True),
        DataError,
        "~rank . of 2: DataParallel: ranks differ in layer.*: rank 0 has .*, rank 1 has .*; give all .*",
    ),
    "files: others on a rank": (
        lambda p: files(p),
        DataError,
        "~rank . of 2: DataParallel: ranks differ in x: rank 0 has .*; give all ranks the same model, .*",
    ),
    "batches: others on a rank": (
        lambda p: batches(),
        DataError,
        "~rank . of 2: DataParallel: ranks 0 and 1 have seen different batches in epoch 1: give all .*",
    ),
    "settings: others on a rank": (
        lambda p: shared(2, batch_size="rank"),
        DataError,
        "~rank . of 2: .*: ranks differ in batch_size: rank 0 has 8, rank 1 has 9; give all ranks .*",
    ),
    "trace: a folder that is not there": (
        lambda p: md.parallel.DataParallel(md.comm.SerialCommunicator()).to_chrome_trace(
            p / "none" / "sums.json"
        ),
        FileError,
        "~trace: cannot write .*sums.json: No such file or directory; choose another file",
    ),
    "asynchronous: alone": (
        lambda p: shared(1, way=md.parallel.AsyncSGD),
        ArgumentError,
        "rank 0 of 1: AsyncSGD: needs a server and a worker, so 2 ranks or more; got 1",
    ),
    "asynchronous: too little staleness": (
        lambda p: shared(5, way=lambda comm: md.parallel.AsyncSGD(comm, staleness=1)),
        ArgumentError,
        "~rank . of 5: AsyncSGD: staleness=1 is too little for 4 workers, .*: give at least 3",
    ),
}


WAYS: dict[str, Any] = {
    "data": lambda comm: md.parallel.DataParallel(comm),
    "sync": lambda comm: md.parallel.DataParallel(comm, sync=True),
    "optimiser": lambda comm: md.parallel.DataParallel(comm, shard="optimiser"),
    "parameters": lambda comm: md.parallel.DataParallel(comm, shard="parameters"),
    "server": md.parallel.ParameterServer,
    "model": md.parallel.ModelParallel,
    "hybrid": lambda comm: md.parallel.Hybrid(communicator=comm),
    "pipeline": md.parallel.Pipeline,
}


@pytest.mark.parametrize("rows, batch", [(3, 3), (7, 5)])
@pytest.mark.parametrize("name", WAYS)
def test_no_mistakes(name: str, rows: int, batch: int) -> None:
    """Fewer samples than ranks, and batches that ranks do not divide: the training of one rank."""

    def trained(comm: Any) -> Any:
        model = network(D(8, activation="tanh"), D(8), D(8), D(4), precision="float64")
        way = False if comm is None else WAYS[name](comm)
        options = {"batch_size": batch, "epochs": 2, "verbose": False}
        losses = [
            row["loss"] for row in model.fit(X[:rows], Y[:rows], parallel=way, **options).rows
        ]
        return losses, model.values()

    losses, values = trained(None)
    for found in md.comm.simulate(4, trained):
        assert found[0] == pytest.approx(losses, abs=1e-12)
        for key, value in values.items():
            np.testing.assert_allclose(found[1][key], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", PYTHON.values(), ids=PYTHON)
def test_in_python(case: PythonCase, tmp_path: Path) -> None:
    check_in_python(tmp_path, case)
