"""Batches one by one: of steps that cannot run in slices, and of a slice that did not go well."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from magmadnn.parallel.ranks_step import RanksStep

from .pieces import Batch, feeds_for, numbered

if TYPE_CHECKING:
    from .fit import Fit


def run_batches(fit: Fit, batches: Iterator[Batch], started: float) -> None:
    """Run batches one by one, until something asks to stop; the epoch has begun at `started` seconds."""
    if fit.together is not None and fit.together.serves(fit):
        return
    if fit.stopped is not None:  # before the first batch
        return
    fit.source.look()
    for batch in _timed(fit, batches):
        fit.tell_place()
        if isinstance(fit.step, RanksStep):
            whole = batch.all_rows if fit.source.rows is None else fit.current_batch_size
            fit.step.next_batch(batch.all_rows, fit.epoch, fit.batch, fit.batches, whole)
        with numbered(fit.batch, fit.epoch):
            loss, *sums = fit.step.run(feeds_for(fit.objective, batch), guard=True)
        if isinstance(fit.step, RanksStep) and (done := fit.step.last_batch()) is not None:
            batch = replace(batch, whole_rows=done[0], whole_weight=done[1])
        fit.totals.add(batch, loss, sums)
        fit.last_loss = float(loss)
        fit.batch += 1
        fit.steps += 1
        fit.seconds = time.perf_counter() - started
        fit.call("on_batch_end")
        if fit.stopped is not None:
            return


def _timed(fit: Fit, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches, and how long it takes to get them."""
    while True:
        begun = time.perf_counter()
        batch = next(batches, None)
        fit.waits(time.perf_counter() - begun)
        if batch is None:
            return
        yield batch
