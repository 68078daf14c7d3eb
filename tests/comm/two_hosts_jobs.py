"""What the ranks of `test_two_hosts` do."""

from __future__ import annotations

import socket
import sys
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn.storage.checkpoint import parameters_sha256

DRAW = np.random.default_rng(7)
X = DRAW.normal(size=(300, 20)).astype(np.float32)
Y = (X @ DRAW.normal(size=(20, 5))).argmax(axis=1)


def network() -> md.Model:
    """A small network with random numbers of its own."""
    layers = [
        md.layers.Input((20,)), md.layers.Dense(32, activation="relu"), md.layers.Dropout(0.1),
        md.layers.Dense(5),
    ]  # fmt: skip
    return md.Model(
        layers, loss="cross_entropy", optimizer=md.optim.Adam(0.01), metrics=["accuracy"], seed=2
    )


def sha_of_training(comm: Any) -> str:
    """The digest of all parameters after some epochs."""
    model, way = network(), md.parallel.DataParallel(comm, shards=4)
    model.fit(X, Y, batch_size=32, epochs=2, verbose=False, parallel=way)
    return parameters_sha256(model.values().items())


def training() -> None:
    """Data parallel training."""
    comm = md.comm.world()
    sha, hosts = sha_of_training(comm), comm.exchange(socket.gethostname())
    if comm.rank == 0:
        print(sha, *hosts)


def workers() -> None:
    """A product of spread matrices, and a fit on the workers."""
    a, b = DRAW.normal(size=(130, 90)), DRAW.normal(size=(90, 70))
    with md.workers() as w:
        blocks = md.dmath.Blocks((32, 32), owners=md.dmath.cyclic(2, 2))
        c = w.array(a, layout=blocks) @ w.array(b, layout=md.dmath.Rows())
        right = np.abs(np.asarray(c) - a @ b).max() < 1e-12
        print("product right" if right else "product wrong")
        rows = network().fit(X, Y, batch_size=32, epochs=3, verbose=False).rows
        print("fit learns" if rows[-1]["loss"] < rows[0]["loss"] else "fit does not learn")


def give(ctx: Any) -> None:
    """Put arrays of which each is larger than a message."""
    ctx.put("host", np.frombuffer(socket.gethostname().encode(), np.uint8))
    for k in range(3):
        ctx.put("large", np.random.default_rng(k).normal(size=100_000))
    ctx.dist_put("spread", np.arange(200_000))


def take(ctx: Any) -> None:
    """Get them on the other host."""
    for k in range(3):
        assert np.array_equal(ctx.get("large"), np.random.default_rng(k).normal(size=100_000))
    assert np.array_equal(ctx.dist_get("spread"), np.arange(200_000))
    print("taken on", socket.gethostname(), "from", bytes(np.asarray(ctx.get("host"))).decode())


def workflow() -> None:
    """Two modules that pass arrays on."""
    flow = md.workflow.Workflow("two_hosts")
    flow.add_module(give, "give")
    flow.add_module(take, "take")
    flow.run(out=sys.argv[2])


JOBS = {"training": training, "workers": workers, "workflow": workflow}

if __name__ == "__main__":
    JOBS[sys.argv[1]]()
