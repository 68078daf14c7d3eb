"""Products whose parts share a copy of a factor: the bits of one thread, whatever is fed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.graph.program import Program
from magmadnn.runtime import Executable
from magmadnn.runtime.cpu import cuts, tasks
from magmadnn.runtime.cpu.native import Instance

RANDOM = np.random.default_rng(3)


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Small products share factors too; the sides of those that did."""
    found: list[str] = []
    rule = cuts.shared_factor

    def noted(*arguments: Any) -> Any:
        shared = rule(*arguments)
        found.extend([shared.side] if shared else [])
        return shared

    monkeypatch.setattr(cuts, "_LEAST_PRODUCTS", 0)
    monkeypatch.setattr(tasks, "shared_factor", noted)
    return found


def same_on_any_threads(program: Executable, fed: Any) -> None:
    """One to three threads give the same bits."""
    found = []
    for count in (1, 2, 3):
        md.set_threads(count)
        found.append(program.run(fed)[0])
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("m", "n", "ta", "side"),
    [(101, 419, False, "a"), (101, 419, True, "a"), (430, 99, False, "b"), (430, 99, True, "b")],
)
def test_what_is_fed_is_copied_in_each_run(
    m: int, n: int, ta: bool, side: str, dtype: str, sides: list[str]
) -> None:
    k = 311
    x = md.placeholder("x", (k, m) if ta else (m, k), dtype)
    w = md.placeholder("w", (k, n), dtype)
    program = Executable([((x.T if ta else x) @ w).node], [], executor="native")
    for _ in range(2):
        fed = {p.node: RANDOM.standard_normal(p.shape).astype(dtype) for p in (x, w)}
        same_on_any_threads(program, fed)
    assert set(sides) == {side}


def test_parts_do_not_turn_all_of_b(sides: list[str]) -> None:
    """As many rows as columns: cut by columns, of which each part turns its own."""
    m, n, k = 430, 421, 97
    x = md.placeholder("x", (m, k), "float32")
    w = md.placeholder("w", (n, k), "float32")
    program = Executable([(x @ w.T).node], [], executor="native")
    fed = {p.node: RANDOM.standard_normal(p.shape).astype(np.float32) for p in (x, w)}
    same_on_any_threads(program, fed)
    assert set(sides) == {"a"}


def test_a_training_has_the_bits_of_one_thread(sides: list[str]) -> None:
    x = RANDOM.standard_normal((300, 97)).astype(np.float32)
    y = RANDOM.integers(0, 7, 300)
    found = []
    for count in (1, 2):
        md.set_threads(count)
        layers = [md.layers.Dense(units, activation="relu") for units in (301, 263)]
        layers = [md.layers.Input((97,)), *layers, md.layers.Dense(7)]
        net = md.Model(layers, loss="cross_entropy", optimizer="sgd", seed=5)
        net.fit(x, y, batch_size=100, epochs=2, verbose=False)
        found.append(net.values())
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value)
    assert set(sides) == {"a", "b"}


def test_small_products_copy_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    rule = cuts.shared_factor
    monkeypatch.setattr(tasks, "shared_factor", lambda *x: made.append(rule(*x)) or made[-1])
    md.set_threads(2)
    for size in (256, 640):
        x = md.placeholder(f"x{size}", (size, size))
        program = Executable([(x @ x).node], [], executor="native")
        program.run({x.node: np.ones((size, size), np.float32)})
    assert [shared is not None for shared in made] == [False, True]


@pytest.mark.parametrize(("m", "n"), [(61, 40), (300, 17), (40, 161)])
def test_deep_products_have_one_part_for_each_thread(
    m: int, n: int, sides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums of their elements are long, so copying a factor takes as long as multiplying by it."""
    monkeypatch.setattr(cuts, "_DEEP_PRODUCTS", 0)
    k = 4 * max(m, n) + 11
    x, g = md.placeholder("x", (k, m), "float32"), md.placeholder("g", (k, n), "float32")
    program = Executable([(x.T @ g).node], [], executor="native")
    fed = {p.node: RANDOM.standard_normal(p.shape).astype(np.float32) for p in (x, g)}
    same_on_any_threads(program, fed)
    assert not sides
    plan = native_plan(Program.of([(x.T @ g).node]))
    (tasks_of_phase,) = Instance(plan, {}, 2, prepared=False).tasks(2).phase(0)
    assert len(tasks_of_phase) == 2
