"""Work that memory bounds, by PyTorch: its own fused functions, into buffers that are there where it can."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from benchmarks.contenders.row_data import HELD, labels, matrices

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def tensor(value: Any, device: str) -> Any:
    """An array's values, on a device."""
    return torch.from_numpy(value).to(device)


class Rows:
    """One run does the work on the next set of buffers; on a GPU, on all of them."""

    def __init__(
        self, work: str, rows: int, columns: int, total_bytes: int, device: str = "cpu"
    ) -> None:
        self._work = getattr(self, f"_{work}")
        count = max(2, -(-total_bytes // (rows * columns * 4 * HELD[work])))
        self._device = device
        self._labels = tensor(labels(rows, columns), device)
        self._sets = [
            [tensor(a, device) for a in matrices(rows, columns, 4 if work == "adam" else 2)]
            for _ in range(count)
        ]
        for buffers in self._sets:
            buffers[-1].abs_()  # Adam's mean of squares
        self.runs = 1 if device == "cpu" else count
        self._next = 0

    def run(self) -> None:
        for _ in range(self.runs):
            self._one()
        if self._device != "cpu":
            torch.cuda.synchronize()

    def _one(self) -> None:
        buffers = self._sets[self._next % len(self._sets)]
        self._next += 1
        with torch.no_grad():
            self._work(*buffers)

    def check(self) -> dict[str, Any]:
        with torch.no_grad():
            found = self._work(*self._sets[0])
        return {name: np.array(value.cpu()) for name, value in found.items()}

    def _softmax(self, x: Any, y: Any) -> dict[str, Any]:
        return {"y": torch.softmax(x, 1, out=y)}

    def _layer_norm(self, x: Any, y: Any) -> dict[str, Any]:
        columns = x.shape[1]
        ones, zeros = (f(columns, device=x.device) for f in (torch.ones, torch.zeros))
        return {"y": torch.nn.functional.layer_norm(x, (columns,), ones, zeros, 1e-5)}

    def _adam(self, w: Any, g: Any, m: Any, v: Any) -> dict[str, Any]:
        torch._fused_adam_(
            [w], [g], [m], [v], [], [torch.tensor(7.0, device=w.device)], lr=0.001, beta1=0.9, beta2=0.999,
            weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip
        return {"w": w, "m": m, "v": v}

    def _cross_entropy(self, x: Any, y: Any) -> dict[str, Any]:
        return {"loss": torch.nn.functional.cross_entropy(x, self._labels)}

    def _cross_entropy_gradient(self, x: Any, y: Any) -> dict[str, Any]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            loss = torch.nn.functional.cross_entropy(leaf, self._labels)
            (gradient,) = torch.autograd.grad(loss, leaf)
        return {"loss": loss.detach(), "y": gradient}
