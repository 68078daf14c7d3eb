"""What plans say about launches on a device, and what dumps hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.runtime.cuda import code
from tests.runtime.cuda.devices import network
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

pytestmark = needs_compiler
PLANS = Path(__file__).parents[2] / "plans"


def trained(sizes: tuple[int, ...], batch: int) -> Any:
    model = network(sizes, md.optim.SGD(0.1), device="cuda", precision="tf32")
    rng = np.random.default_rng(1)
    x = rng.standard_normal((batch, sizes[0])).astype(np.float32)
    model.fit(x, rng.integers(0, sizes[-1], batch), batch_size=batch, verbose=0)
    return model


def launches(model: Any, batch: int) -> str:
    launches = str(model.plan(batch_size=batch)).split("# launches of a run", 1)[1]
    return launches.split("\n# memory of a step", 1)[0] + "\n"


@pytest.mark.parametrize(("name", "sizes", "batch"), [
    ("cuda_small", (13, 17, 5), 8),
    ("cuda_launches", (150, 130, 110, 10), 48),
])  # fmt: skip
def test_launches_are_those_of_the_kept_plan(name: str, sizes: Any, batch: int) -> None:
    with emulated_device():
        text = launches(trained(sizes, batch), batch)
    kept = PLANS / f"{name}.txt"
    assert text == kept.read_text(), f"if that is as it should be, write it to {kept}"
    assert not re.search(r"\d{8}", text)  # no addresses


def test_dumps_hold_text_and_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_loaded", {})
    monkeypatch.setenv("MAGMADNN_DUMP", str(tmp_path))
    with emulated_device():
        network((13, 17, 5), None, device="cuda").predict(np.ones((3, 13), np.float32))
    modules = [path.read_text() for path in (tmp_path / "kernels").glob("*-module.cu")]
    assert modules and all("__global__" in text for text in modules)
    (graph,) = (tmp_path / "kernels").glob("*-graph.txt")
    assert graph.read_text().startswith("0: own product 3 x 17 x 13 in float32: ")
