"""Plans of programs that differ in sizes only: filled in, and the same as plans of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.dump import Dump
from magmadnn.compiler.plan import planning
from magmadnn.compiler.plan.built_alike import look, reuse, sizes
from magmadnn.compiler.plan.built_alike.look import structure_of
from magmadnn.compiler.plan.built_alike.other_sizes import described
from magmadnn.compiler.plan.listing import describe
from magmadnn.compiler.regions.draft import Draft
from magmadnn.graph.dim import bind_shape
from magmadnn.graph.op import NoGradient, Op, OpKind, promote
from magmadnn.graph.program import Program
from magmadnn.graph.signature import by_signature

L = md.layers
Layers = Callable[[int], list[Any]]


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often passes over regions ran, and plans were filled in; nothing is known at first."""
    monkeypatch.setattr(reuse, "_templates", type(reuse._templates)())
    monkeypatch.setattr(sizes, "_known", type(sizes._known)())
    # steps are not filled in as a whole (`test_other_sizes.py`), so that their programs come here
    monkeypatch.setattr(reuse, "filled_in", lambda *_: None)
    monkeypatch.setattr(reuse, "note", lambda *_: None)
    counts: Counter[str] = Counter()

    def planned(program: Program, run: Callable[[Program], Draft], way: Any) -> Draft:
        def counted(given: Program) -> Draft:
            counts["symbols" if given is not program else "numbers"] += 1
            return run(given)

        before = counts.total()
        found = sizes.planned(program, counted, way)
        counts["filled"] += before == counts.total()
        return found

    monkeypatch.setattr(planning, "planned", planned)
    return counts


@pytest.fixture
def compared(counts: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan is compared with one of its own."""
    planned = planning.planned  # type: ignore[attr-defined]  # the one that counts

    def compare(program: Program, run: Callable[[Program], Draft], way: Any) -> Draft:
        found = planned(program, run, way)
        assert described(found) == described(run(program))
        return found

    monkeypatch.setattr(planning, "planned", compare)


def dense(width: int) -> list[Any]:
    return [L.Input((13,)), L.Dense(width, activation="relu"), L.Dense(2)]


def square(width: int) -> list[Any]:
    return [L.Input((width,)), L.Dense(width, activation="gelu"), L.Dense(width), L.Dense(3)]


def normed(width: int) -> list[Any]:
    return [
        L.Input((13,)), L.Dense(width), L.BatchNorm(), L.Activation("relu"), L.Dropout(0.3), L.Dense(19),
    ]  # fmt: skip


def weighted(width: int) -> list[Any]:
    return [L.Input((13,)), L.Dense(width, activation="softmax"), L.Dense(2)]


def flattened(width: int) -> list[Any]:
    return [L.Input((5, 17, 1)), L.Flatten(), L.Dense(width, activation="relu"), L.Dense(2)]


def embedded(width: int) -> list[Any]:
    return [L.Input((4,), dtype="int64"), L.Embedding(30, width), L.Flatten(), L.Dense(2)]


def model_of(layers: list[Any], **more: Any) -> md.Model:
    return md.Model(
        layers, loss="cross_entropy", optimizer="adam", metrics=["accuracy"], seed=1, **more
    )


def data_for(model: md.Model, rows: int = 9) -> tuple[Any, Any]:
    given = model.inputs[0]
    shape, draw = bind_shape(given.shape[1:], {}), np.random.default_rng(5)
    whole = given.dtype == np.int64
    x = draw.integers(0, 30, (rows, *shape)) if whole else draw.normal(size=(rows, *shape))
    return x.astype(given.dtype), draw.integers(0, 2, rows)


def planned_for(layers: list[Any], **more: Any) -> str:
    model = model_of(layers, **more)
    return model.plan(*data_for(model), batch_size=4)


WIDTHS = [20, 24, 16, 15, 1, 31, 33, 13, 19, 85, 8193]
NETWORKS = [dense, square, normed, weighted, flattened, embedded]


@pytest.mark.parametrize("layers", NETWORKS, ids=lambda f: f.__name__)
def test_plans_of_many_widths_are_those_that_each_would_have_alone(
    layers: Layers, counts: Counter[str], compared: None
) -> None:
    for width in (
        WIDTHS[:-1] if layers is square else WIDTHS
    ):  # of 67 million weights nothing is shown
        planned_for(layers(width))
    assert counts["filled"] >= 3


def test_the_first_is_planned_with_numbers_the_second_with_symbols_the_others_are_filled_in(
    counts: Counter[str],
) -> None:
    for width in (20, 24, 50, 100, 21):
        planned_for(dense(width))
    assert counts == {"numbers": 1, "symbols": 1, "filled": 3}


def test_sizes_for_which_a_kernel_is_chosen_otherwise_get_a_plan_of_their_own(
    counts: Counter[str], compared: None
) -> None:
    """Rows of fewer than 32 columns have a kernel without the loops that longer ones need."""
    texts = {}
    for width in (20, 31, 32, 100, 25, 8192, 8193, 9000):
        texts[width] = planned_for(weighted(width))
    assert counts == {"numbers": 1, "symbols": 3, "filled": 4}


def test_products_of_sizes_that_are_equal_by_chance_are_planned_with_numbers(
    counts: Counter[str], compared: None
) -> None:
    """16 * 18 elements are as many as 288: what compares them must not take them for different."""

    def program(one: int, other: int, long: int) -> str:
        x, y = md.placeholder("x", (one, other)), md.placeholder("y", (long,))
        return describe(planning.native_plan(Program.of([(x + 1).node, (y + 1).node])))

    for sizes_given in ((16, 17, 300), (18, 19, 301), (20, 21, 302), (16, 18, 288)):
        program(*sizes_given)
    assert counts == {"numbers": 2, "symbols": 2, "filled": 1}  # the last is tried and refused


def test_sizes_that_follow_from_others_have_no_symbol_of_their_own(
    counts: Counter[str], compared: None
) -> None:
    def program(width: int) -> Program:
        x = md.placeholder("x", ("batch", width))
        double = md.ops.concat([x, x + 1], axis=1)
        return Program.of([md.ops.exp(double * 2).node])

    for width in (40, 44, 48, 100):
        planning.native_plan(program(width))
    assert counts == {"numbers": 1, "symbols": 1, "filled": 2}
    (known,) = sizes._known.values()
    (template,) = known.templates
    given = program(50)
    passed = planning._run(planning._ON_PROGRAMS, Draft(given), False, {}, Dump("native")).program
    found = structure_of(passed).sizes
    assert found == (50, 100) and sizes._filled(template, passed, found) is not None
    assert sizes._filled(template, passed, (50, 101)) is None


def test_movements_of_users_and_large_numbers_of_slices_are_asked_for_their_own_sizes_only(
    counts: Counter[str], compared: None
) -> None:
    """Stand-ins are primes from 101 on: not even, and shorter than what some slices leave out."""
    swapped = Op(
        name="swapped_halves",
        args=("x",),
        formula="x, its second half first",
        kind=OpKind.MOVEMENT,
        shapes=by_signature("... n -> ... n"),
        dtypes=promote,
        numpy=lambda x: np.concatenate(np.split(x, 2, axis=-1)[::-1], axis=-1),
        vjp=NoGradient("only moved here"),
        reference=lambda x: np.roll(x, x.shape[-1] // 2, -1),
        samples=lambda draw: [],
    )
    for width in (400, 440, 480):
        x = md.placeholder("x", ("batch", width))
        y = md.placeholder("y", ("batch", 2 * width))
        planning.native_plan(Program.of([(swapped(x) * 2).node, (md.ops.exp(y) + 1).node]))
        planning.native_plan(Program.of([md.ops.exp(x[:, 350:] * 2).node, (x + 1).node]))
    assert counts["symbols"] == 2 and not counts["filled"] > 1


def test_equal_sizes_are_another_structure_than_different_ones(counts: Counter[str]) -> None:
    for inner in (20, 30, 40, 50):
        planned_for([L.Input((40,)), L.Dense(inner), L.Dense(2)])
    assert counts == {"numbers": 2, "symbols": 1, "filled": 1}


@pytest.mark.parametrize("layers", NETWORKS, ids=lambda f: f.__name__)
def test_parameters_have_the_bits_of_plans_with_numbers(
    layers: Layers, counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(width: int) -> dict[str, bytes]:
        model = model_of(layers(width))
        model.fit(*data_for(model), batch_size=4, epochs=2, verbose=False)
        return {name: value.tobytes() for name, value in model.values().items()}

    widths = (20, 31, 33, 1, 129)
    together = [trained(width) for width in widths]
    assert counts["filled"]
    counts.clear()
    monkeypatch.setattr(look, "LEAST", 1 << 40)
    reuse._templates.clear()
    assert [trained(width) for width in widths] == together
    assert not counts["filled"] + counts["symbols"]


def test_a_bounded_number_of_structures_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "_MOST", 3)
    for activation in ("relu", "tanh", "gelu", "sigmoid"):
        planned_for([L.Input((13,)), L.Dense(20, activation=activation), L.Dense(2)])
    assert len(sizes._known) == 3


def test_names_and_errors_are_those_of_the_model_at_hand(counts: Counter[str]) -> None:
    for number, width in enumerate((20, 21, 22, 23)):
        text = planned_for([L.Input((13,)), L.Dense(width, name=f"own_{number}"), L.Dense(2)])
        assert f"# own_{number}" in text and f"float32[13, {width}]" in text
    assert counts["filled"] == 2
