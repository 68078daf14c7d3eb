"""Metrics in the units of the targets, which are standardised for training; of several targets each alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.data.preparation.preparation import Preparation
from magmadnn.graph.op import Array
from magmadnn.losses.loss import refuse_pairs
from magmadnn.metrics import (
    R2,
    MeanAbsoluteError,
    MeanSquaredError,
    Metric,
    RootMeanSquaredError,
)
from magmadnn.metrics.operands import weights_like
from magmadnn.tensor import Operation

_OF_DIFFERENCES = (MeanSquaredError, RootMeanSquaredError, MeanAbsoluteError, R2)


@dataclass(frozen=True)
class Unit:
    """What a target was before it was standardised.

    Attributes:
        name: what its metrics' columns begin with; "" for the only target.
        mean: of the training rows.
        deviation: their standard deviation.
    """

    name: str
    mean: float
    deviation: float


def units_of(preparation: object) -> tuple[Unit, ...] | None:
    """The units of the targets, [rows] or [rows, targets]; None for classes and other shapes."""
    if not isinstance(preparation, Preparation) or len(preparation.target_shape) > 1:
        return None
    pairs = list(zip(preparation.target_mean, preparation.target_std, strict=True))
    names: Sequence[str] = preparation.target_names
    if len(pairs) == 1:
        names = [""]
    elif len(names) != len(pairs):
        names = [f"target_{k}" for k in range(len(pairs))]
    return tuple(Unit(name, *pair) for name, pair in zip(names, pairs, strict=True)) or None


@dataclass(frozen=True)
class Measured:
    """A metric of an output, as an objective adds it up.

    Attributes:
        column: of the history; of several targets each has one, `<target>_<column>`.
        metric: what is measured.
        units: of the targets; None where they are taken as they are.
    """

    column: str
    metric: Metric
    units: tuple[Unit, ...] | None

    @property
    def columns(self) -> list[str]:
        """The columns of the history."""
        if self.units is None or len(self.units) == 1:
            return [self.column]
        return [f"{unit.name}_{self.column}" for unit in self.units]

    def sums(
        self, output: Operation, target: Operation, weights: Operation | None
    ) -> list[Operation]:
        """Streaming sums of a batch: one vector, or one for each target."""
        if self.units is not None and len(self.units) > 1 and self._adds_up_together:
            return [self._of_all(output, target, weights)]
        return [self._checked(*pair, weights) for pair in self._compared(output, target)]

    def results(self, totals: Iterator[Array]) -> dict[str, Any]:
        """The figures, by column, of the next totals of `sums`."""
        columns = self.columns
        if len(columns) == 1 or not self._adds_up_together:
            return {column: self.metric.result(next(totals)) for column in columns}
        total, count = next(totals), len(columns)
        if isinstance(self.metric, R2):
            parts = [np.append(total[:1], total[1 + k :: count]) for k in range(count)]
        else:
            parts = [total[k::count] for k in range(count)]
        return {
            column: self.metric.result(part) for column, part in zip(columns, parts, strict=True)
        }

    @property
    def _adds_up_together(self) -> bool:
        """Whether the sums of all targets are taken at once: many targets then cost no more than one."""
        return isinstance(self.metric, _OF_DIFFERENCES)

    def _of_all(self, output: Operation, target: Operation, weights: Operation | None) -> Operation:
        """Sums for each target: of differences, which no shift changes and which would only lose digits."""
        assert self.units is not None
        deviations = np.array([unit.deviation for unit in self.units])
        first, second = (ops.cast(x, "float64") * deviations for x in (output, target))
        if isinstance(self.metric, R2):
            sums: Operation = self.metric.sums(first, second, weights)
            return sums
        absolute = isinstance(self.metric, MeanAbsoluteError)
        values = (ops.abs if absolute else ops.square)(first - second)
        w = weights_like(self.metric.name, weights, values)
        found: Operation = ops.concat([ops.sum(w * values, axis=0), ops.sum(w, axis=0)])
        return found

    def _compared(
        self, output: Operation, target: Operation
    ) -> Iterator[tuple[Operation, Operation]]:
        """What is compared, for each target in its units if there are any."""
        if self.units is None:
            yield output, target
            return
        if len(output.shape) == len(target.shape) + 1 and output.shape[-1] == 1:
            output = output[..., 0]  # what a function of the user's own would broadcast
        for k, unit in enumerate(self.units):
            mean = 0.0 if self._adds_up_together else unit.mean
            pair = (output, target) if len(self.units) == 1 else (output[:, k], target[:, k])
            first, second = (ops.cast(x, "float64") * unit.deviation + mean for x in pair)
            yield first, second

    def _checked(
        self, output: Operation, target: Operation, weights: Operation | None
    ) -> Operation:
        found: Operation = self.metric.sums(output, target, weights)
        refuse_pairs(f"metric {self.metric.name}", found, output, target)
        return found
