"""Three small programs whose plans are kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from magmadnn import ops
from magmadnn.graph import Dim, scope
from magmadnn.graph import node as nodes
from magmadnn.graph.program import Program
from magmadnn.graph.transforms.gradient import gradient
from tests.graph.bare_nodes import F32, placed, variable

BATCH = Dim.symbol("batch")


def ramp(*shape: int) -> NDArray[np.float32]:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def training_step() -> Program:
    """One step of gradient descent of a two-layer network."""
    x, target = placed("x", BATCH, 7), placed("target", BATCH, dtype=np.int64)
    rate = placed("learning_rate")
    parameters = [
        variable("dense_1/weight", ramp(7, 5)), variable("dense_1/bias", ramp(5)),
        variable("dense_2/weight", ramp(5, 3)), variable("dense_2/bias", ramp(3)),
    ]  # fmt: skip
    with scope("dense_1"):
        h = ops.relu(ops.linear(x, *parameters[:2]))
    with scope("dense_2"):
        logits = ops.linear(h, *parameters[2:])
    with scope("loss"):
        loss = -ops.mean(ops.take_class(ops.log_softmax(logits), target))
    with scope("sgd"):
        updates = [
            (p, p - rate * g)
            for p, g in zip(parameters, gradient(loss, parameters, training=True), strict=True)
        ]
    return Program.of([loss], updates, training=True)


def prediction() -> Program:
    """Class numbers for any number of rows, through a graph with a phase and repeated parts."""
    x = placed("x", BATCH, 2, 3)
    w = variable("weight", ramp(6, 4))
    with scope("classifier"):
        flat = ops.flatten(x)
        dropped = ops.dropout(flat, 0.5, np.int64(7))
        scores = nodes.phase(dropped, flat * np.float32(1)) @ w
        shifted = scores - ops.mean(ops.flatten(x) @ w, axis=1, keepdims=True)
    return Program.of([ops.argmax(ops.softmax(shifted), axis=1), ops.softmax(shifted)])


def running_statistics() -> Program:
    """Normalisation in training: a mask, batch statistics, and updates of variables."""
    x = placed("x", BATCH, 3)
    mean, count = (
        variable("norm/mean", np.zeros(3, F32)),
        variable("noise/counter", np.int64(40) << 32),
    )
    with scope("noise"):
        drawn = nodes.update(ops.dropout(x, 0.25, count, seed=3), count, count + 1)
    with scope("norm"):
        batch_mean = ops.mean(drawn, axis=0)
        seen = nodes.update(drawn - batch_mean, mean, mean * 0.9 + batch_mean * 0.1)
    return Program.of([ops.std(seen, axis=0)], training=True)


PROGRAMS = {f.__name__: f for f in (training_step, prediction, running_statistics)}
