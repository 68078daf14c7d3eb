"""Work that memory bounds, by PyTorch: its own fused functions, into buffers that are there where it can."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.func import grad_and_value
from torch.nn.functional import batch_norm, cross_entropy, layer_norm

from benchmarks.contenders.row_data import DISTINCT_ROWS, HELD, labels, matrices

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def tensor(value: Any, device: str) -> Any:
    """An array's values, on a device."""
    return torch.from_numpy(value).to(device)


class Rows:
    """One run does the work on the next set of buffers; on a GPU, on all of them unless `single` says so."""

    def __init__(
        self,
        work: str,
        rows: int,
        columns: int,
        total_bytes: int,
        device: str = "cpu",
        single: bool = False,
    ) -> None:
        self._work = self._made(work)
        count = max(2, -(-total_bytes // (rows * columns * 4 * HELD[work])))
        self._device = device
        self._labels = tensor(labels(rows, columns), device)
        self._ones, self._zeros = (f(columns, device=device) for f in (torch.ones, torch.zeros))
        self._count = torch.tensor(7.0, device=device)
        own = rows if device == "cpu" else min(rows, DISTINCT_ROWS)
        blocks = [tensor(a, device) for a in matrices(own, columns, 4 if work == "adam" else 2)]
        if work == "adam":
            blocks[-1].abs_()  # the mean of squares
        self._sets = [
            [b.repeat(-(-rows // own), 1)[:rows].contiguous() for b in blocks] for _ in range(count)
        ]
        self.runs = 1 if device == "cpu" or single else count
        self._next = 0

    def _made(self, work: str) -> Callable[..., dict[str, Any]]:
        found: Callable[..., dict[str, Any]] = getattr(self, f"_{work}")
        return found

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
        return {"y": layer_norm(x, (x.shape[1],), self._ones, self._zeros, 1e-5)}

    def _batch_norm(self, x: Any, g: Any) -> dict[str, Any]:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (x, self._ones, self._zeros)]
            y = batch_norm(leaves[0], None, None, *leaves[1:], training=True, eps=1e-5)
            slopes = torch.autograd.grad(y, leaves, g)
        rows = {n: s[None] for n, s in zip(("dgamma", "dbeta"), slopes[1:], strict=True)}
        return {"y": y.detach(), "dx": slopes[0], **rows}

    def _adam(self, w: Any, g: Any, m: Any, v: Any) -> dict[str, Any]:
        torch._fused_adam_(
            [w], [g], [m], [v], [], [self._count], lr=0.001, beta1=0.9, beta2=0.999,
            weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip
        return {"w": w, "m": m, "v": v}

    def _cross_entropy(self, x: Any, y: Any) -> dict[str, Any]:
        return {"loss": cross_entropy(x, self._labels)}

    def _cross_entropy_gradient(self, x: Any, y: Any) -> dict[str, Any]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            loss = cross_entropy(leaf, self._labels)
            (gradient,) = torch.autograd.grad(loss, leaf)
        return {"loss": loss.detach(), "y": gradient}


class CompiledRows(Rows):
    """The same by `torch.compile`, which makes one kernel or two of each work."""

    def _made(self, work: str) -> Callable[..., dict[str, Any]]:
        return torch.compile(getattr(self, f"_{work}"), dynamic=False)

    def _softmax(self, x: Any, y: Any) -> dict[str, Any]:
        return {"y": y.copy_(torch.softmax(x, 1))}

    def _layer_norm(self, x: Any, y: Any) -> dict[str, Any]:
        return {"y": y.copy_(layer_norm(x, (x.shape[1],), self._ones, self._zeros, 1e-5))}

    def _adam(self, w: Any, g: Any, m: Any, v: Any) -> dict[str, Any]:
        m.copy_(0.9 * m + 0.1 * g)
        v.copy_(0.999 * v + 0.001 * g * g)
        corrected = (v / (1 - 0.999**7)).sqrt() + 1e-8
        return {"w": w.sub_(0.001 * (m / (1 - 0.9**7)) / corrected), "m": m, "v": v}

    def _cross_entropy_gradient(self, x: Any, y: Any) -> dict[str, Any]:
        gradient, loss = grad_and_value(lambda x: cross_entropy(x, self._labels))(x)
        return {"loss": loss, "y": y.copy_(gradient)}
