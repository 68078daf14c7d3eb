"""magmadnn as its users call it: `Model.fit` and `Model.predict`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import magmadnn as md
from benchmarks.networks import SEED, Array, loaded
from magmadnn.backends.cuda import device_engine

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: md.optim.SGD(0.05),
    "momentum": lambda: md.optim.SGD(0.01, momentum=0.9),
    "adam": lambda: md.optim.Adam(0.001),
}


def model_of(weights: list[Array], activation: str, optimizer: str, **options: Any) -> md.Model:
    """A perceptron with the given kernels and biases."""
    units = [w.shape[1] for w in weights[::2]]
    layers: list[Any] = [md.layers.Input((weights[0].shape[0],), str(weights[0].dtype))]
    layers += [md.layers.Dense(n, activation=activation) for n in units[:-1]]
    layers += [md.layers.Dense(units[-1])]
    options |= {"optimizer": OPTIMIZERS[optimizer](), "seed": SEED}
    made = md.Model(layers, loss="cross_entropy", **options)
    made.assign({p.name: w for p, w in zip(made.variables(), weights, strict=True)})
    return made


def open_gpu() -> None:
    """Open the GPU and load what runs there; the peers do that when their data is put there."""
    device_engine(0).prepare()
    importlib.import_module("magmadnn.runtime.cuda.running.sliced.slices")


class Training:
    """One run is a whole call of `fit` for one epoch; `options` say device and precision."""

    def __init__(
        self, file: str, activation: str, batch: int, optimizer: str, **options: str
    ) -> None:
        x, y, _, weights = loaded(file)
        if options.get("device") == "cuda":
            open_gpu()
        else:  # what the first step would import; the peers have imported theirs
            importlib.import_module("magmadnn.runtime.cpu.sliced.slices")
        # What nobody may write is looked at once, and stays on a GPU, where the peers' data is too. Loaded
        # arrays are views of others that may be written, so these are copies.
        self._x, self._y = x.copy(), y.copy()
        for array in (self._x, self._y):
            array.flags.writeable = False
        self._batch = batch
        self._model = model_of(weights, activation, optimizer, **options)
        self._loss = float("nan")

    def run(self) -> None:
        history = self._model.fit(self._x, self._y, batch_size=self._batch, verbose=False)
        self._loss = history.rows[-1]["loss"]

    def check(self) -> dict[str, Any]:
        self.run()
        values = self._model.values().values()
        return {"loss": self._loss, **{f"weights {k}": v for k, v in enumerate(values)}}


class Predict:
    """One run predicts the first rows: NumPy array in, NumPy array out."""

    def __init__(self, file: str, activation: str, rows: int) -> None:
        x, _, _, weights = loaded(file)
        self._x = x[:rows]
        self._model = model_of(weights, activation, "sgd")

    def run(self) -> Any:
        return self._model.predict(self._x)

    def check(self) -> dict[str, Any]:
        return {"logits": self.run()}
