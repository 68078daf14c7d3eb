"""Sums over batches: what a row of the history is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from magmadnn.errors import DataError
from magmadnn.graph.op import Array
from magmadnn.runtime import Executable
from magmadnn.training.objective.objective import Objective

from .pieces import Batch, BatchArrays

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model


class Totals:
    """Sums over the batches of an epoch."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.rows = 0
        self.weight = 0.0
        self.loss = 0.0
        self.sums: list[Array] = []

    def add(self, batch: Batch, loss: Array, sums: Sequence[Array]) -> None:
        """Add a batch's mean loss and its metrics' sums."""
        weight = batch.weight
        self.rows += batch.all_rows
        self.weight += weight
        self.loss += weight * float(loss)
        old = self.sums or [np.zeros_like(s, np.float64) for s in sums]
        self.sums = [a + b for a, b in zip(old, sums, strict=True)]

    def add_all(
        self, rows: int, losses: Array, sums: Sequence[Array], weights: Array | None = None
    ) -> None:
        """Add batches of so many rows each, in their order: the same bits as one by one.

        Args:
            rows: of a batch.
            losses: of the batches.
            sums: of the metrics, [batches, ...] each.
            weights: of the rows, [batches * rows] or [batches * rows, outputs]; None where all are 1.
        """
        count = len(losses)
        self.rows += rows * count
        terms = losses.astype(np.float64)
        if weights is None:
            self.weight += float(rows) * count  # of integers: exact in any order
            terms *= float(rows)
        else:
            total = weights.reshape(count, -1).sum(axis=1).astype(np.float64)
            self.weight = float(_added(self.weight, total))
            terms *= total
        self.loss = float(_added(self.loss, terms))
        old = self.sums or [np.zeros_like(s[0], np.float64) for s in sums]
        self.sums = [_added(a, s) for a, s in zip(old, sums, strict=True)]

    def results(self) -> dict[str, Any]:
        """Mean losses and metrics; NaN where all weights are 0."""
        mean = self.loss / self.weight if self.weight else math.nan
        return self.objective.results(mean, self.sums)

    def state(self) -> dict[str, Any]:
        """Everything, as JSON data."""
        sums = [s.tolist() for s in self.sums]
        return {"rows": self.rows, "weight": self.weight, "loss": self.loss, "sums": sums}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self.rows, self.weight, self.loss = state["rows"], state["weight"], state["loss"]
        self.sums = [np.asarray(s, np.float64) for s in state["sums"]]


def totals_of_epochs(
    objective: Objective, epochs: int, parts: Sequence[tuple[int, Array, Sequence[Array]]]
) -> list[Totals]:
    """The totals of whole epochs, in which all weights are 1: the same bits as `Totals.add_all` of each.

    Args:
        objective: what was computed.
        epochs: how many.
        parts: of an epoch, in their order: rows of a batch, losses and sums of the batches of all epochs.
    """
    count, losses, sums = sums_of_epochs(epochs, parts)
    found = []
    for epoch, loss in enumerate(losses.tolist()):
        totals = Totals(objective)
        totals.rows, totals.weight, totals.loss = count, float(count), loss
        totals.sums = [own[epoch] for own in sums]
        found.append(totals)
    return found


def sums_of_epochs(
    epochs: int, parts: Sequence[tuple[int, Array, Sequence[Array]]]
) -> tuple[int, Array, list[Array]]:
    """Rows of an epoch, and of each epoch the sums of losses and of metrics; see `totals_of_epochs`."""
    each = [(rows, loss, sums) for rows, loss, sums in parts if len(loss)]
    count = sum(rows * (len(loss) // epochs) for rows, loss, _ in each)
    losses = _totals(epochs, [loss.astype(np.float64) * float(rows) for rows, loss, _ in each])
    sums = [_totals(epochs, own) for own in zip(*(sums for *_, sums in each), strict=True)]
    return count, losses, sums


def _totals(epochs: int, terms: Sequence[Array]) -> Array:
    """For each epoch 0 + the terms of the first part + those of the second one, from the left."""
    by_epoch = [part.reshape(epochs, len(part) // epochs, *part.shape[1:]) for part in terms]
    start = np.zeros((epochs, 1, *terms[0].shape[1:]))
    last: Array = np.add.accumulate(np.concatenate([start, *by_epoch], axis=1), axis=1)[:, -1]
    return last


def _added(start: Any, terms: Array) -> Any:
    """start + terms[0] + terms[1] + ..., from the left."""
    return np.add.accumulate(np.concatenate([np.asarray(start, np.float64)[None], terms]))[-1]


def feeds_for(objective: Objective, batch: Batch) -> dict[Any, Array]:
    """The feeds of one batch."""
    feeds = dict(zip(objective.inputs, batch.inputs, strict=True))
    feeds |= dict(zip(objective.targets, batch.targets, strict=True))
    if objective.weights is not None:
        of_each = (len(objective.targets),) if len(objective.weights.shape) > 1 else ()
        sizes = (batch.rows, *of_each)
        found = np.ones(sizes, np.float32) if batch.weights is None else batch.weights
        if found.ndim != len(sizes):
            raise DataError(
                "this batch has weights of one kind, the first had others: give weights of all outputs "
                "together with each batch, or of each output by its name"
            )
        feeds[objective.weights] = found
    elif batch.weights is not None:
        raise DataError("this batch has weights, the first had none; give weights with each batch")
    return feeds


def data_for(objective: Objective, arrays: BatchArrays) -> dict[Any, Array]:
    """The arrays that rows of batches are taken from, by placeholder."""
    inputs, targets, weights = arrays
    data = dict(zip(objective.inputs, inputs, strict=True))
    data |= dict(zip(objective.targets, targets, strict=True))
    if objective.weights is not None:
        data[objective.weights] = weights[0]
    return data


def scalars(results: dict[str, Any]) -> dict[str, float]:
    """The results that are single numbers; a confusion matrix has no place in a row."""
    return {k: float(v) for k, v in results.items() if np.ndim(v) == 0}


def run_once(
    model: Model, objective: Objective, executable: Executable, batches: Iterator[Batch]
) -> dict[str, Any]:
    """Loss and metrics over batches, without training."""
    totals = Totals(objective)
    for batch in batches:
        feeds = feeds_for(objective, batch)
        loss, *sums = executable.run({k.node: v for k, v in feeds.items()})
        totals.add(batch, loss, sums)
    return totals.results()
