"""The module that an op is defined by is the one whose import defines it."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import magmadnn as md
from magmadnn.graph import scalar
from magmadnn.graph.op import REGISTRY
from magmadnn.graph.operators import FUNCTIONS
from magmadnn.graph.origins import DEFINED_IN, is_ours

MAKER = """
import magmadnn as md
from magmadnn.graph import scalar

def made(name, formula=None):
    return md.ops.pointwise(name, "sin(x)", formula or scalar.sin, vjp=lambda g, y, x: g * md.ops.cos(x))

def formula(x):
    return scalar.sin(x)
"""
USER = """
import origins_maker

ops = [origins_maker.made("origins_a"), origins_maker.made("origins_b", origins_maker.formula)]
class Holder:
    op = origins_maker.made("origins_c")
"""


@pytest.fixture
def _no_ops_are_left() -> Iterator[None]:
    yield
    for name in [name for name in REGISTRY if name.startswith("origins_")]:
        del REGISTRY[name], FUNCTIONS[name], DEFINED_IN[name]
    for name in ("origins_maker", "origins_user"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("_no_ops_are_left")
def test_an_op_is_defined_by_the_module_that_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "origins_maker.py").write_text(MAKER)
    (tmp_path / "origins_user.py").write_text(USER)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("origins_user")
    assert {DEFINED_IN[f"origins_{letter}"] for letter in "abc"} == {"origins_user"}


@pytest.mark.usefixtures("_no_ops_are_left")
def test_in_a_thread_an_op_is_that_of_its_formula() -> None:
    def formula(x: Any) -> Any:
        return scalar.sin(x)

    def make() -> None:
        md.ops.pointwise("origins_d", "sin(x)", formula, vjp=lambda g, y, x: g * md.ops.cos(x))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert DEFINED_IN["origins_d"] == __name__


def test_ops_of_magmadnn_are_its_own() -> None:
    assert all(is_ours(DEFINED_IN[name]) for name in ("sin", "relu", "matmul", "_faded"))
    assert is_ours("magmadnn")
    assert not is_ours("magmadnn_extras.ops")
    assert not is_ours("__main__")


@pytest.mark.usefixtures("_no_ops_are_left")
def test_what_magmadnn_makes_for_a_script_is_not_the_scripts() -> None:
    module: dict[str, Any] = {"__name__": "magmadnn.layers.later"}
    exec(MAKER, module)  # stands in for a function of magmadnn's
    module["made"]("origins_e")
    assert DEFINED_IN["origins_e"] == "magmadnn.layers.later"
