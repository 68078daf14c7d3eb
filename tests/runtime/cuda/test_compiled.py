"""The text of whole trainings, compiled by NVIDIA's compiler for every architecture; no kernel runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

import magmadnn as md
from magmadnn.compiler.cuda.module import OPTIONS
from magmadnn.runtime.cuda import code
from magmadnn.runtime.cuda.schedule import small
from tests.compiler.cuda.nvrtc import ARCHITECTURES, compiled
from tests.runtime.cuda import emulator
from tests.runtime.cuda.devices import network, samples
from tests.runtime.cuda.emulator import Emulator, emulated_device

SIZES = (13, 17, 11, 5)
# What a block may have of shared memory
SHARED = {70: 96 << 10, 75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10}
# What only the text of such kernels has: all levels in one block; launches that became one, and a last layer
# with its loss
MARKS = {"one kernel": ["whole::begin_copy"], "launches": ["_part0 part;", "Part2::begin"]}
WAYS = [
    *((precision, "one kernel") for precision in ("float32", "tf32", "float64")),
    *((precision, "launches") for precision in ("float32", "tf32", "mixed_fp16", "mixed_bf16")),
]
USUAL = ("sm_90a", "tf32", "launches")  # a dozen seconds
CASES = [
    pytest.param(
        *architecture.values,
        precision,
        way,
        id=f"{architecture.id}-{precision}-{way}",
        marks=[
            *architecture.marks,
            *([] if (architecture.values[1], precision, way) == USUAL else [pytest.mark.long]),
        ],
    )
    for architecture in ARCHITECTURES
    for precision, way in WAYS
]


def texts_of(
    capability: int, precision: str, patch: pytest.MonkeyPatch
) -> tuple[list[str], list[int]]:
    """All modules of a training on a GPU of that kind, and how many nodes its graphs have."""
    texts: list[str] = []

    def noted(self: Emulator, text: str, options: Sequence[str]) -> bytes:
        texts.append(text)
        return b""

    def nothing(self: Emulator, image: bytes, names: Sequence[str]) -> list[Any]:
        return list(names)

    patch.setattr(Emulator, "compile", noted)
    patch.setattr(Emulator, "load", nothing)
    patch.setattr(emulator, "_run", lambda node: None)
    patch.setattr(code, "kernel_cache", lambda: None)  # where no empty code is to be kept
    patch.setattr(code, "_loaded", {})
    for name, value in (
        ("capability", capability),
        ("processors", 100),
        ("shared_bytes", SHARED[capability]),
    ):
        patch.setattr(Emulator, name, value)
    x, y = samples(24, SIZES[0], SIZES[-1])
    with emulated_device() as engine:
        model = network(
            SIZES, md.optim.Adam(0.01), activation="relu", device="cuda", precision=precision
        )
        model.fit(x, y, batch_size=8, verbose=0)
        return texts, [len(graph.nodes) for graph in engine.graphs]


@pytest.mark.parametrize(("major", "architecture", "precision", "way"), CASES)
def test_trainings_compile(
    major: int, architecture: str, precision: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "launches":
        monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    capability = int(re.sub(r"\D", "", architecture))
    texts, nodes = texts_of(capability, precision, monkeypatch)
    assert (max(nodes) == 1) == (way == "one kernel")
    assert all(any(mark in text for text in texts) for mark in MARKS[way])
    for text in texts:
        image, _ = compiled(text, major, [*OPTIONS, f"-arch={architecture}"])
        assert image.startswith(b"\x7fELF")
