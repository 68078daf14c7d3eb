"""Plans of steps whose graph was not made, filled in for other widths: what the passes would have made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.dump import Dump
from magmadnn.compiler.plan import planning
from magmadnn.compiler.plan.built_alike import other_sizes, reuse
from magmadnn.compiler.plan.built_alike.other_sizes import described
from magmadnn.compiler.regions.draft import Draft
from magmadnn.graph.program import LaterProgram
from magmadnn.ops._pointwise import pointwise
from magmadnn.optim.building import alike

RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, 13)).astype(np.float32)
Y = RNG.integers(0, 3, 40)
L = md.layers


def dense(w: int, v: int) -> list[Any]:
    return [L.Dense(w, activation="relu"), L.Dense(v, activation="softmax"), L.Dense(w)]


def normalised(w: int, v: int) -> list[Any]:
    return [L.Dense(w), L.BatchNorm(), L.Dropout(0.3), L.Dense(v, activation="gelu")]


def penalised(w: int, v: int) -> list[Any]:
    return [L.Dense(w, activation="relu", kernel_regularizer=L.L2(1e-3)), L.Dense(v)]


def layer_normalised(w: int, v: int) -> list[Any]:
    return [L.Dense(w), L.LayerNorm(), L.Dense(v)]


def model_of(layers: list[Any], optimizer: Any = "adam") -> md.Model:
    whole = [L.Input((13,)), *layers, L.Dense(3)]
    return md.Model(whole, loss="cross_entropy", optimizer=optimizer, metrics=["accuracy"], seed=1)


def trained(model: md.Model) -> dict[str, bytes]:
    model.fit(X, Y, batch_size=16, epochs=1, verbose=0)
    return {name: value.tobytes() for name, value in model.values().items()}


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many steps were filled in, each compared with what the passes make; nothing is known at first."""
    for module, name in ((alike, "_known"), (other_sizes, "_made"), (reuse, "_templates")):
        monkeypatch.setattr(module, name, type(getattr(module, name))())
    found: Counter[str] = Counter()

    def compared(program: LaterProgram, way: Hashable) -> Draft | None:
        draft = other_sizes.filled_in(program, way)
        found["made" if draft is None else "filled"] += 1
        if draft is not None:
            own = planning._passed(program.made, True, True, planning.ON_CPUS, Dump("native"))
            assert described(draft) == described(own), program.sizes
        return draft

    monkeypatch.setattr(reuse, "filled_in", compared)
    return found


def widths(count: int) -> list[tuple[int, int]]:
    draw = np.random.default_rng(3)
    return [(int(w), int(v)) for w, v in 2 ** draw.uniform(4.1, 9, (count, 2))]


@pytest.mark.parametrize(
    ("layers", "optimizer"),
    [
        (dense, "adam"),
        (normalised, "lamb"),
        (penalised, md.optim.SGD(0.1, momentum=0.9, clip_norm=1.0)),
    ],
    ids=["dense", "normalised", "penalised"],
)
def test_later_widths_are_filled_in_with_the_bits_of_a_plan_of_their_own(
    layers: Any, optimizer: Any, counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    each = widths(12)
    together = [trained(model_of(layers(w, v), optimizer)) for w, v in each]
    assert counts["filled"], counts
    monkeypatch.setattr(alike, "_MOST", 0)
    alike._known.clear()
    reuse._templates.clear()
    before = counts["filled"]
    assert [trained(model_of(layers(w, v), optimizer)) for w, v in each] == together
    assert counts["filled"] == before


def test_the_fourth_width_of_a_range_is_the_first_that_needs_no_graph(counts: Counter[str]) -> None:
    for number, width in enumerate((40, 51, 47, 64, 65, 129)):
        trained(model_of([L.Dense(width, activation="relu")]))
        assert counts["filled"] == max(0, number - 2)
    assert counts["made"] == 2
    trained(model_of([L.Dense(64, activation="relu")]))
    assert counts["filled"] == 4


def test_a_size_that_did_not_differ_stays_a_number(counts: Counter[str]) -> None:
    for width in (20, 31, 27, 17):
        trained(model_of([L.Dense(width), L.Dense(40)]))
    assert counts["filled"] == 1
    trained(model_of([L.Dense(20), L.Dense(41)]))
    assert counts["filled"] == 1


def test_a_width_in_a_constant_needs_a_graph(counts: Counter[str]) -> None:
    for w, v in ((50, 71), (33, 97), (53, 70), (51, 73)):
        trained(model_of(layer_normalised(w, v)))
    assert not counts["filled"]


@pytest.mark.parametrize("says_so", [False, True])
def test_a_rule_that_asks_for_a_width_is_asked_for_each(
    says_so: bool, counts: Counter[str]
) -> None:
    """A user's op that decides by a width, and one that says it does not, but makes a constant of it."""

    def factor(width: int) -> float:
        return 1.0 / width if says_so else 1.0 + (width > 60)

    name = f"scaled_by_width_{says_so}".lower()
    op = pointwise(name, "2 x", lambda x: x + x, vjp=lambda g, y, x: g * factor(x.shape[-1]))
    object.__setattr__(op, "any_size", says_so)
    for width in (40, 51, 47, 64, 65):
        x = md.placeholder("x", (None, 13))
        w = md.variable("w", np.ones((13, width), np.float32))
        step = md.optim.SGD(0.1).step(md.ops.sum(op(x @ w)), [w])
        step.run({x: X}, guard=True)
        expected = 1 - 0.1 * factor(width) * X.sum(0, np.float64)
        np.testing.assert_allclose(np.asarray(w.value)[:, 0], expected, rtol=1e-5, atol=1e-4)
    assert not counts["filled"]


def test_large_operands_and_small_constants_are_decided_by_their_own_sizes(
    counts: Counter[str],
) -> None:
    """A reduction of a million elements is made in two stages, a constant of a thousand beforehand."""
    for width in (100, 120, 140, 160):
        trained(model_of([L.Dense(width), *penalised(width + 7, 3)]))
    before = counts["filled"]
    assert before
    for width in (1030, 18):
        trained(model_of([L.Dense(width), *penalised(width + 7, 3)]))
    assert counts["filled"] == before
