"""Whole calls of `fit` on a GPU, with data from here and there, and the graphs that they launch alone."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import numpy as np

from benchmarks.contenders.ours import model_of, open_gpu
from benchmarks.networks import Array, loaded
from magmadnn.runtime.cuda.running.sliced import kept_slices as device_slices
from magmadnn.runtime.cuda.schedule.cuts import cut

Arrays = Literal["fixed", "given before", "on the device", "new"]
_SETS = 3  # of arrays that are given in turns: of the last call only, copies are there


class Fit:
    """One run is a call of `fit` for one epoch.

    `arrays` says which: the same in each call that nobody may write, the same that may be written, CuPy's, or
    others in each call, so that no copy is there.
    """

    def __init__(self, file: str, activation: str, batch: int, precision: str, arrays: Arrays):
        x, y, _, weights = loaded(file)
        open_gpu()
        self._batch = batch
        self._model = model_of(weights, activation, "sgd", device="cuda", precision=precision)
        self._sets = itertools.cycle(_sets_of(x.copy(), y.copy(), arrays))

    def run(self) -> None:
        x, y = next(self._sets)
        self._model.fit(x, y, batch_size=self._batch, verbose=False)


def _sets_of(x: Array, y: Array, arrays: Arrays) -> list[tuple[Any, Any]]:
    if arrays == "on the device":
        import cupy

        return [(cupy.asarray(x), cupy.asarray(y))]
    if arrays == "new":
        return [(x.copy(), y.copy()) for _ in range(_SETS)]
    for array in (x, y):
        array.flags.writeable = arrays == "given before"
    return [(x, y)]


class BareGraphs(Fit):
    """One run launches the graphs of such an epoch, as a call of `fit` captured them, and waits once."""

    def __init__(self, file: str, activation: str, batch: int, precision: str):
        super().__init__(file, activation, batch, precision, "fixed")
        super().run()
        (kept,) = device_slices._kept.values()
        (self._slices,) = kept.values()
        self._batches = len(next(self._sets)[0]) // batch

    def run(self) -> None:
        slices = self._slices
        # the number of the first batch
        slices._layouts[0].copy_in(slices._first.address, np.zeros(1, np.int64))
        for steps in cut(self._batches, slices._small):
            slices._graph(steps).launch()
        slices._engine.wait()
