"""PyTorch: eager, and with the whole step compiled; data lies in tensors before the clock starts."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, grad_and_value

from benchmarks.networks import loaded

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

ACTIVATIONS = {"sigmoid": torch.nn.Sigmoid, "relu": torch.nn.ReLU}
LEARNING_RATES = {"sgd": 0.05, "momentum": 0.01, "adam": 0.001}
SLOTS = {"sgd": 0, "momentum": 1, "adam": 2}


def network(weights: list[Any], activation: str) -> Any:
    """A perceptron with the given kernels [inputs, outputs] and biases."""
    layers: list[Any] = []
    for w, b in zip(weights[::2], weights[1::2], strict=True):
        layer = torch.nn.Linear(*w.shape, dtype=torch.from_numpy(w).dtype)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(w.T.copy()))
            layer.bias.copy_(torch.from_numpy(b))
        layers += [layer, ACTIVATIONS[activation]()]
    return torch.nn.Sequential(*layers[:-1])


class Training:
    """One run is an epoch: gather, forward, gradient, update, and the mean of the batches' losses."""

    def __init__(
        self, file: str, activation: str, batch: int, optimizer: str, compiled: bool
    ) -> None:
        x, y, order, weights = loaded(file)
        self._x, self._y = torch.from_numpy(x), torch.from_numpy(y)
        self._batches = torch.from_numpy(order).split(batch)
        self._rows = torch.tensor([len(b) for b in self._batches], dtype=self._x.dtype)
        self._model = network(weights, activation)
        made = Compiled if compiled else Eager
        self._step: Callable[[Any], Any] = made(self._model, self._x, self._y, optimizer)
        self._loss = float("nan")

    def run(self) -> None:
        losses = torch.stack([self._step(rows) for rows in self._batches])
        self._loss = ((losses * self._rows).sum() / self._rows.sum()).item()

    def check(self) -> dict[str, Any]:
        self.run()
        # Linear keeps its kernel transposed
        values = [p.detach().numpy().T for p in self._model.parameters()]
        return {"loss": self._loss, **{f"weights {k}": v.copy() for k, v in enumerate(values)}}


class Eager:
    """The loop of the tutorials, with the fused update."""

    def __init__(self, model: Any, x: Any, y: Any, optimizer: str) -> None:
        self._model, self._x, self._y = model, x, y
        rate, parameters = LEARNING_RATES[optimizer], list(model.parameters())
        if optimizer == "adam":
            self._optimizer: Any = torch.optim.Adam(parameters, rate, fused=True)
        else:
            momentum = 0.9 if optimizer == "momentum" else 0.0
            self._optimizer = torch.optim.SGD(parameters, rate, momentum=momentum, fused=True)

    def __call__(self, rows: Any) -> Any:
        x, y = torch.index_select(self._x, 0, rows), torch.index_select(self._y, 0, rows)
        loss = torch.nn.functional.cross_entropy(self._model(x), y)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.detach()


class Compiled:
    """The whole step, gather and update included, as one compiled function.

    It is faster than compiling model and optimiser one by one. States are tensors that it changes in place.
    """

    def __init__(self, model: Any, x: Any, y: Any, optimizer: str) -> None:
        self._parameters = {k: p.detach() for k, p in model.named_parameters()}
        self._slots = [
            {k: torch.zeros_like(p) for k, p in self._parameters.items()}
            for _ in range(SLOTS[optimizer])
        ]
        self._count = torch.zeros((), dtype=torch.float64, device=x.device)
        self._step = torch.compile(_step_of(model, x, y, optimizer))

    def __call__(self, rows: Any) -> Any:
        with torch.no_grad():
            # Not in the compiled step: PyTorch 2.13 writes the new count before all kernels have read the
            # old one, and Adam's corrections are wrong then (the check in float64 tells).
            self._count += 1
            return self._step(self._parameters, self._slots, self._count, rows)

    def states(self) -> list[Any]:
        """What the optimiser keeps."""
        return [self._count, *(v for slot in self._slots for v in slot.values())]


def _step_of(model: Any, x: Any, y: Any, optimizer: str) -> Callable[..., Any]:
    rate = LEARNING_RATES[optimizer]

    def step(parameters: Any, slots: Any, count: Any, rows: Any) -> Any:
        batch, labels = torch.index_select(x, 0, rows), torch.index_select(y, 0, rows)

        def loss_of(p: Any) -> Any:
            return torch.nn.functional.cross_entropy(functional_call(model, p, (batch,)), labels)

        gradients, loss = grad_and_value(loss_of)(parameters)
        for key, w in parameters.items():
            g = gradients[key]
            if optimizer == "momentum":
                g = slots[0][key].copy_(0.9 * slots[0][key] + g)
            elif optimizer == "adam":
                m, v = (slot[key] for slot in slots)
                m.copy_(0.9 * m + 0.1 * g)
                v.copy_(0.999 * v + 0.001 * g * g)
                corrected = (m / (1 - 0.9**count)).to(w.dtype)
                g = corrected / ((v / (1 - 0.999**count)).to(w.dtype).sqrt() + 1e-8)
            w.sub_(rate * g)
        return loss

    return step


class Predict:
    """One run predicts the first rows: NumPy array in, NumPy array out."""

    def __init__(self, file: str, activation: str, rows: int, compiled: bool) -> None:
        x, _, _, weights = loaded(file)
        self._x = x[:rows]
        model = network(weights, activation).eval()
        self._model = torch.compile(model) if compiled else model

    def run(self) -> Any:
        with torch.inference_mode():
            return self._model(torch.from_numpy(self._x)).numpy()

    def check(self) -> dict[str, Any]:
        return {"logits": np.array(self.run())}


class FirstStep(Training):
    """A training whose first step is to be timed: what the compiler imports is there already."""

    def __init__(self, **arguments: Any) -> None:
        for module in ("torch._dynamo", "torch._inductor.compile_fx"):
            importlib.import_module(module)

        super().__init__(**arguments)
