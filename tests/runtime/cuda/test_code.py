"""Which kernels are compiled together, and that it makes no difference."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

import magmadnn as md
from magmadnn.compiler.cuda.fused.step_ends import Advance, KeepAll
from magmadnn.runtime.cuda import code
from tests.runtime.cuda.devices import network, samples
from tests.runtime.cuda.emulator import emulated_device, needs_compiler


def variants() -> list[KeepAll | Advance]:
    kinds = ("float32", "float64", "int64")
    return [Advance(), *(KeepAll(kinds[: k % 3 + 1] * (k + 1)) for k in range(9))]


def test_few_kernels_are_one_module_and_many_some_of_equal_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = variants()
    assert [set(m) for m in code._modules(wanted[:3])] == [set(wanted[:3])]
    assert code._modules([]) == []
    monkeypatch.setattr(code, "_MODULE", 1000)
    modules = code._modules(list(wanted))
    assert 1 < len(modules) <= code._MODULES
    assert sorted(map(repr, wanted)) == sorted(repr(v) for m in modules for v in m)
    assert modules == code._modules(list(wanted))
    lengths = [sum(len(v.text("kernel")) for v in m) for m in modules]
    longest = max(len(v.text("kernel")) for v in wanted)
    assert max(lengths) <= max(longest, 2 * sum(lengths) / len(lengths))


@needs_compiler
def test_modules_are_compiled_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_MODULE", 1000)
    monkeypatch.setattr(code, "_loaded", {})
    monkeypatch.setattr(code, "kernel_cache", lambda: None)
    monkeypatch.setattr(code.os, "cpu_count", lambda: 2)
    names = set()
    with emulated_device() as engine:
        compiled = engine.compile

        def noted(text: str, options: tuple[str, ...]) -> bytes:
            names.add(threading.current_thread().name)
            return compiled(text, options)

        monkeypatch.setattr(engine, "compile", noted)
        found = code.functions_of(engine, variants())
    assert set(found) == set(variants())
    assert threading.current_thread().name not in names


_KEYS = """
from magmadnn.runtime.cuda import code
from tests.runtime.cuda.devices import network, samples
from tests.runtime.cuda.emulator import EmulatedGraph, Emulator, emulated_device
import magmadnn as md

found, key_of = [], code.key_of
code.key_of = lambda variants, *versions: found.append(key_of(variants, *versions)) or found[-1]
code.kernel_cache = lambda: type("Cache", (), {"code": lambda self, key, make: b""})()
Emulator.capability, Emulator.processors, Emulator.shared_bytes = 90, 132, 227 << 10
Emulator.load = lambda self, image, names: names
Emulator.run = Emulator.launch = EmulatedGraph.launch = lambda self, *node: None
with emulated_device():
    model = network((84, 252, 252, 10), md.optim.SGD(0.1), device="cuda", precision="tf32")
    model.fit(*samples(900, 84, 10), batch_size=100, verbose=False)
print(*sorted(found))
"""


def test_another_process_finds_what_the_first_kept() -> None:
    def keys(seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", _KEYS]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout

    first = keys("1")
    assert len(first.split()) > 5
    assert first == keys("2") == keys("3")


@needs_compiler
def test_graphs_of_a_slice_are_compiled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first steps, copies of what was before, and looks at new values."""
    calls = []
    images = code._images
    monkeypatch.setattr(code, "_loaded", {})
    monkeypatch.setattr(code, "_images", lambda e, m: calls.append(len(m)) or images(e, m))
    with emulated_device():
        model = network((6, 5, 3), md.optim.SGD(0.1), device="cuda")
        model.fit(*samples(8, 6, 3), batch_size=8, shuffle=False, verbose=False)
    assert sum(map(bool, calls)) == 1
