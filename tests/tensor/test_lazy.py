"""Storage whose values come at the first use: threads that use it at the same time have one and the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.tensor import lazy
from magmadnn.tensor.lazy import LazyTensor

THREADS = 4


class SlowOnes(md.init.Initializer):
    """Gives other threads time to ask for the same."""

    def make(self, shape: Any, dtype: Any, seed: int, stream: int) -> Any:
        time.sleep(0.02)
        return np.ones(shape, dtype)


def from_threads(ask: Callable[[], Any]) -> list[Any]:
    found, gate = list[Any](), threading.Barrier(THREADS)

    def run() -> None:
        gate.wait()
        found.append(ask())

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("is_held", [False, True])
def test_threads_that_read_first_have_one_tensor(
    is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LazyTensor("x", (3,), np.dtype(np.float32), SlowOnes())
    if is_held:
        wrap = lazy.Tensor.wrap

        def slowly(array: Any) -> Any:
            time.sleep(0.02)
            return wrap(array)

        monkeypatch.setattr(lazy.Tensor, "wrap", slowly)
        storage.hold(np.ones(3, np.float32))
    found = from_threads(lambda: storage.tensor)
    assert len(found) == THREADS and len(set(map(id, found))) == 1
    assert storage.read().tolist() == [1, 1, 1]
