"""Classes, functions and metrics where an instance, a layer or a loss is meant.

See `cases.py` for what the tables hold.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError
from tests.refusals.cases import D, PythonCase, check_in_python, network

METRIC = (
    "loss: MeanSquaredError is a metric, which is not trained on: give a loss, such as "
    "md.losses.MeanSquaredError()"
)

PYTHON: dict[str, PythonCase] = {
    "class: optimiser": (
        lambda p: network(optimizer=md.optim.Adam), ArgumentError,
        "optimizer is the class Adam, expected an instance: write Adam(...)",
    ),
    "class: schedule": (
        lambda p: md.optim.SGD(md.optim.constant), ArgumentError,
        "SGD: learning_rate is the class constant, expected an instance: write constant(...)",
    ),
    "class: initialiser": (
        lambda p: network(D(3, kernel_init=md.init.normal)), ArgumentError,
        ("dense_1: init of kernel is the class normal, expected an instance: write normal(...), such as "
        "md.init.normal()"),
    ),
    "class: regulariser": (
        lambda p: network(D(3, kernel_regularizer=md.layers.L1L2)), ArgumentError,
        ("dense_1: regularizer of kernel is the class L1L2, expected an instance: write L1L2(...), such as "
        "md.layers.L2(1e-4)"),
    ),
    "class: layer": (
        lambda p: network(D(3), md.layers.BatchNorm), ArgumentError,
        "Model: expected layers, got the class BatchNorm: write BatchNorm(...)",
    ),
    "class: an op as a layer": (
        lambda p: network(D(3), md.ops.relu), ArgumentError,
        'Model: expected layers, got the op relu: write md.layers.Lambda(md.ops.relu), or activation="..."',
    ),
    "class: a metric as the loss": (
        lambda p: network(loss=md.metrics.MeanSquaredError()), ArgumentError, METRIC,
    ),
    "class: the class of a metric as the loss": (
        lambda p: network(loss=md.metrics.MeanSquaredError), ArgumentError, METRIC,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PYTHON)
def test_in_python(place: Path, name: str) -> None:
    check_in_python(place, PYTHON[name])
