"""PyTorch on a GPU: eager, the whole step in a CUDA graph, and the compiled step in a CUDA graph.

Data, order and losses lie on the device; the host waits once an epoch.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from ctypes import c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np
import torch

from benchmarks.contenders.torch_peer import LEARNING_RATES, Compiled, network
from benchmarks.networks import loaded

DEVICE = "cuda"
WARM_UPS = 3  # steps before a capture, as PyTorch's notes on CUDA graphs ask for


def settle(precision: str) -> None:
    """What products in float32 may round to."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"


def casts(precision: str) -> Any:
    """The context of a forward pass."""
    if precision == "mixed_bf16":
        return torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False)  # graphs forbid it
    return contextlib.nullcontext()


class Training:
    """One run is an epoch: gather, forward, gradient, update, and the mean of the batches' losses.

    `mode` is "eager", "graph" or "compiled graph".
    """

    def __init__(
        self, file: str, activation: str, batch: int, optimizer: str, precision: str, mode: str
    ) -> None:
        settle(precision)
        x, y, order, weights = loaded(file)
        self._order = torch.from_numpy(order.reshape(-1, batch)).to(DEVICE)
        kind = torch.from_numpy(x).dtype
        self._losses = torch.zeros(len(self._order), dtype=kind, device=DEVICE)
        self._count = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        self._model = network(weights, activation).to(DEVICE)
        made = _CompiledStep if mode == "compiled graph" else _Step
        data = (torch.from_numpy(x).to(DEVICE), torch.from_numpy(y).to(DEVICE))
        self._step: Any = made(self._model, data, optimizer, precision)
        self._replay: Callable[[], None] = self._one if mode == "eager" else self._captured()
        self._loss = float("nan")

    def _one(self) -> None:
        """The step of the batch that the device's counter says."""
        rows = self._order.index_select(0, self._count)[0]
        self._losses.index_copy_(0, self._count, self._step(rows).to(self._losses.dtype).reshape(1))
        self._count.add_(1)

    def _captured(self) -> Callable[[], None]:
        """A graph of one step; weights and states are as before."""
        values = [*self._model.parameters()]
        kept = [v.detach().clone() for v in values]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._count.zero_()
                self._one()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._one()
        with torch.no_grad():
            for value, before in zip(values, kept, strict=True):
                value.copy_(before)
            for state in self._step.states():
                state.zero_()
        replay: Callable[[], None] = graph.replay
        return replay

    def run(self) -> None:
        self._count.zero_()
        for _ in range(len(self._order)):
            self._replay()
        self._loss = self._losses.mean().item()

    def check(self) -> dict[str, Any]:
        self.run()
        values = [p.detach().cpu().numpy().T for p in self._model.parameters()]
        return {"loss": self._loss, **{f"weights {k}": v.copy() for k, v in enumerate(values)}}


class _Step:
    """Autograd, and the fused update."""

    def __init__(self, model: Any, data: tuple[Any, Any], optimizer: str, precision: str) -> None:
        self._model, self._data, self._precision = model, data, precision
        rate, parameters = LEARNING_RATES[optimizer], list(model.parameters())
        if optimizer == "adam":
            self._optimizer: Any = torch.optim.Adam(parameters, rate, fused=True, capturable=True)
        else:
            momentum = 0.9 if optimizer == "momentum" else 0.0
            self._optimizer = torch.optim.SGD(parameters, rate, momentum=momentum, fused=True)

    def __call__(self, rows: Any) -> Any:
        x, y = (torch.index_select(a, 0, rows) for a in self._data)
        self._optimizer.zero_grad(set_to_none=True)
        with casts(self._precision):
            loss = torch.nn.functional.cross_entropy(self._model(x), y)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def states(self) -> list[Any]:
        """What the optimiser keeps."""
        kept = self._optimizer.state.values()
        return [v for state in kept for v in state.values() if isinstance(v, torch.Tensor)]


class _CompiledStep:
    """The whole step, gather and update included, as one compiled function."""

    def __init__(self, model: Any, data: tuple[Any, Any], optimizer: str, precision: str) -> None:
        self._step, self._precision = Compiled(model, *data, optimizer), precision

    def __call__(self, rows: Any) -> Any:
        with casts(self._precision):
            return self._step(rows)

    def states(self) -> list[Any]:
        """What the optimiser keeps."""
        return self._step.states()


class LargeProduct:
    """The rate of large matrix products on random data; `check` says how many FLOPs one run is."""

    SIZE, PRODUCTS = 8192, 4

    def __init__(self, dtype: str) -> None:
        settle(dtype)
        kind = {"bfloat16": torch.bfloat16, "float64": torch.float64}.get(dtype, torch.float32)
        made = [torch.randn(self.SIZE, self.SIZE, device=DEVICE, dtype=kind) for _ in range(3)]
        self._a, self._b, self._c = made

    def run(self) -> None:
        for _ in range(self.PRODUCTS):
            torch.mm(self._a, self._b, out=self._c)
        torch.cuda.synchronize()

    def check(self) -> float:
        return 2.0 * self.SIZE**3 * self.PRODUCTS


class Copy:
    """One run moves `nbytes` on the device: half of them are read, half are written.

    By the driver's own calls, with arguments that are there: PyTorch's take 5 us more.
    """

    def __init__(self, nbytes: int, total_bytes: int, single: bool = False) -> None:
        half = nbytes // 2
        self._pairs = [
            torch.randint(256, (2, half), dtype=torch.uint8, device=DEVICE)
            for _ in range(max(2, -(-total_bytes // nbytes)))
        ]
        torch.cuda.synchronize()
        self.runs = 1 if single else len(self._pairs)  # of one call
        self._next = 0
        driver = ctypes.CDLL("libcuda.so.1")
        self._copy, self._wait = driver.cuMemcpyDtoDAsync_v2, driver.cuCtxSynchronize
        self._arguments = [
            (c_uint64(target.data_ptr()), c_uint64(source.data_ptr()), c_size_t(half), c_void_p())
            for source, target in self._pairs
        ]

    def run(self) -> None:
        for _ in range(self.runs):
            failed = self._copy(*self._arguments[self._next % len(self._arguments)])
            assert not failed
            self._next += 1
        assert not self._wait()


def numpy_of(value: Any) -> Any:
    """A tensor's values."""
    return np.array(value.detach().cpu())
