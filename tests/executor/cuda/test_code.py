"""Which kernels are compiled together, and that it makes no difference."""

from __future__ import annotations

import threading

import pytest

from magmadnn.compiler.emit.cuda.step_ends import Advance, KeepAll
from magmadnn.executor.cuda import code
from tests.executor.cuda.emulator import emulated_device, needs_compiler


def variants() -> list[KeepAll | Advance]:
    kinds = ("float32", "float64", "int64")
    return [Advance(), *(KeepAll(kinds[: k % 3 + 1] * (k + 1)) for k in range(9))]


def test_few_kernels_are_one_module_and_many_some_of_equal_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = variants()
    assert [set(m) for m in code._modules(list(wanted))] == [set(wanted)]
    assert code._modules([]) == []
    monkeypatch.setattr(code, "_MODULE", 1000)
    modules = code._modules(list(wanted))
    assert 1 < len(modules) <= 8
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
