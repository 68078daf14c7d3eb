"""Products by the device's library, with what it does to their elements; models of half precision."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.backends.cuda.engine import ProductNode
from magmadnn.compiler.cuda.fused.folded import Folded, folded
from magmadnn.compiler.kernels.gemm import Finish, Gemm
from magmadnn.compiler.kernels.operands import Operand, Result
from magmadnn.compiler.plan.planning import native_plan
from magmadnn.compiler.program.precision import precision as precision_pass
from magmadnn.graph.program import Program
from magmadnn.runtime import Executable
from magmadnn.runtime.cuda import algorithms
from magmadnn.runtime.cuda.measured import Record, RecordsOf
from magmadnn.runtime.cuda.running.sliced import kept_slices, sliced_plans
from magmadnn.runtime.cuda.schedule import launches as items
from magmadnn.runtime.cuda.schedule import small
from magmadnn.tensor import placeholder
from tests.runtime.cuda.devices import DEVICES, GPU, distance, network, on, samples
from tests.runtime.cuda.emulator import Emulator, emulated_device, needs_compiler

PRODUCT, X, RATE = ("product",), ("argument", 0), ("argument", 1)
SIZES = (13, 31, 17, 5)
# Two updates of numbers near 1, whose gradients may be rounded the other way in half precision.
OFF = {"tf32": 2e-3, "mixed_bf16": 2e-3, "mixed_fp16": 2e-4}


@pytest.fixture(autouse=True)
def launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks as larger ones are run: a launch for each product."""
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)


def products(engine: Emulator) -> list[ProductNode]:
    return [n for g in engine.graphs for n in g.nodes if isinstance(n, ProductNode)]


# --- models ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("by_library", "precision"),
    [
        pytest.param(by, precision, marks=() if by == (precision == "tf32") else pytest.mark.long)
        for by in (False, True)
        for precision in OFF
    ],
)
def test_models_of_every_precision_run_in_slices(
    device: str, precision: str, by_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_library:
        monkeypatch.setattr(items, "choose_gemm", lambda *_: None)
    x, y = samples(64, 13, 5)
    with on(device):
        for optimizer in (md.optim.SGD(0.05), md.optim.Adam(0.01)):
            made = [
                network(SIZES, optimizer, activation="relu", precision=precision, **where)
                for where in ({"device": "cuda"}, {"executor": "reference"})
            ]
            losses = [m.fit(x, y, batch_size=32, verbose=0).rows[0]["loss"] for m in made]
            assert losses[0] == pytest.approx(losses[1], rel=OFF[precision])
            assert distance(*made) < OFF[precision]
            assert any(kept_slices._kept.values())  # not batch by batch


@needs_compiler
@pytest.mark.parametrize("precision", ["float32", "mixed_bf16"])
def test_no_kernel_follows_where_the_library_does_it_all(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "choose_gemm", lambda *_: None)
    x, y = samples(32, 13, 5)
    with emulated_device() as engine:
        model = network(
            SIZES, md.optim.SGD(0.05), activation="relu", precision=precision, device="cuda"
        )
        model.fit(x, y, batch_size=32, verbose=0)
        found = products(engine)
    half = "bfloat16" if precision == "mixed_bf16" else None
    assert len(found) == 8  # three forward, two input gradients, three updates
    assert {n.halves for n in found} == {half}
    assert sum(n.positive and n.bias > 0 and n.stored == half for n in found) == 2
    assert sum(n.scales > 0 and n.stored is None for n in found) == 3


@needs_compiler
def test_what_the_library_refuses_is_a_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "choose_gemm", lambda *_: None)
    x, y = samples(32, 13, 5)
    made: list[Any] = []
    for some in ([b"first"], []):
        monkeypatch.setattr(Emulator, "algorithms", lambda self, n, k=1, some=some: some)
        with emulated_device() as engine:
            made.append(network(SIZES, md.optim.SGD(0.05), activation="relu", device="cuda"))
            made[-1].fit(x, y, batch_size=32, verbose=0)
            assert any(n.scales or n.bias or n.positive for n in products(engine)) == bool(some)
            made[-1].values()
    assert distance(*made) < 1e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_products_of_float32_are_rounded_by_a_kernel(
    device: str, half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library has none of float32 that stores halves, whatever it proposes: memory would overflow."""
    monkeypatch.setattr(items, "choose_gemm", lambda *_: None)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((257, 36), (36, 64)))
    x, w = (placeholder(name, array.shape) for name, array in (("x", a), ("w", b)))
    made = ops.cast(x @ w, half)
    with on(device):
        step = Executable([made.node], executor="native", device="cuda")
        (found,) = step.run({x.node: a, w.node: b})
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert found.dtype.name == half
    # some 36 roundings to TF32, and one to the half: 8 and 11 bits
    allowed = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[half]
    assert np.abs(found.astype(np.float64) - wanted).max() < 2 * allowed * np.abs(wanted).max()


# --- which algorithm ---------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two algorithms of each product, nothing chosen yet, and nothing kept."""
    monkeypatch.setattr(Emulator, "proposals", (b"first", b"second"))
    monkeypatch.setattr(items, "choose_gemm", lambda *_: None)
    monkeypatch.setattr(algorithms, "_frozen", {})
    monkeypatch.setattr(algorithms, "_wanted", {})
    monkeypatch.setattr(algorithms, "records_of", lambda name: RecordsOf(name, tmp_path))


def timed_as(seconds: Sequence[float]) -> Any:
    """Proposals take these times in turn."""
    turns = itertools.cycle(seconds)
    return lambda self, first, last: next(turns)


def trained(engine: Emulator) -> Any:
    x, y = samples(32, 13, 5)
    model = network(SIZES, md.optim.SGD(0.05), activation="relu", device="cuda")
    model.fit(x, y, batch_size=16, verbose=0)
    return model


@needs_compiler
def test_the_fastest_algorithm_is_taken_and_kept(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with emulated_device() as engine:
        for seconds, name in (((2.0, 1.0), b"second"), ((1.0, 2.0), b"second")):
            # the second time it is read from the file, whatever the clock says
            monkeypatch.setattr(Emulator, "seconds", timed_as(seconds))
            monkeypatch.setattr(algorithms, "_frozen", {})
            trained(engine)
            assert set(algorithms.frozen().values()) == {name.hex()}
        assert len(algorithms.frozen()) >= 8
        assert engine.library in next(iter(algorithms.frozen()))


@needs_compiler
def test_a_little_faster_is_not_worth_another_order(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Emulator, "seconds", timed_as((1.0, 0.98)))
    with emulated_device() as engine:
        trained(engine)
        assert set(algorithms.frozen().values()) == {b"first".hex()}


@needs_compiler
def test_the_librarys_first_is_taken_where_nothing_may_be_measured(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor is anything used that was measured before."""
    monkeypatch.setattr(Emulator, "seconds", timed_as((2.0, 1.0)))
    with emulated_device() as engine:
        trained(engine)
        assert set(algorithms.frozen().values()) == {b"second".hex()}
        monkeypatch.setattr(algorithms, "_frozen", {})
        monkeypatch.setenv("MAGMADNN_TUNE_SECONDS", "0")
        trained(engine)
        assert set(algorithms.frozen().values()) == {b"first".hex()}


@needs_compiler
def test_training_that_goes_on_takes_the_algorithms_of_its_checkpoint(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x, y = samples(48, 13, 5)

    def run(epochs: int) -> set[bytes]:
        model = network(SIZES, md.optim.SGD(0.05), activation="relu", device="cuda")
        keep = md.callbacks.Checkpoint(tmp_path / "run")
        model.fit(x, y, batch_size=16, epochs=epochs, callbacks=[keep], verbose=0)
        return {
            n.algorithm for g in engine.graphs[-2:] for n in g.nodes if isinstance(n, ProductNode)
        }

    with emulated_device() as engine:
        monkeypatch.setattr(Emulator, "seconds", timed_as((2.0, 1.0)))
        assert run(1) == {b"second"}
        monkeypatch.setattr(Emulator, "seconds", timed_as((1.0, 2.0)))
        for name in ("_frozen", "_wanted"):
            monkeypatch.setattr(algorithms, name, {})
        other = tmp_path / "elsewhere"
        monkeypatch.setattr(algorithms, "records_of", lambda name: RecordsOf(name, other))
        assert run(2) == {b"second"}


def test_what_the_library_does_not_propose_is_not_taken(fresh: None) -> None:
    node = ProductNode("float32", False, (5, 7, 3), (False, False), 0, 0, 0, (3, 7, 7), 0)
    with emulated_device() as engine:
        algorithms.freeze({algorithms.words_of(engine, node): b"another".hex()})
        assert algorithms.algorithm_of(engine, 0, node) in (b"first", b"second")
        with pytest.raises(ValueError, match="hex"):
            algorithms.freeze({"a product": "no hex"})


def test_choices_for_halves_of_before_are_not_asked_for(fresh: None) -> None:
    """They were measured among algorithms that may add parts of sums as halves."""
    wide = ProductNode("float32", False, (5, 7, 3), (False, False), 0, 0, 0, (3, 7, 7), 0)
    wide = replace(wide, halves="bfloat16")
    half = replace(wide, stored="bfloat16")
    with emulated_device() as engine:
        words = algorithms.words_of(engine, half)
        assert ", parts in float32" in words
        assert ", parts" not in algorithms.words_of(engine, wide)
        before = words.replace(", parts in float32", "")
        algorithms.records_of(engine.library).settle(before, Record(b"second".hex(), {}))
        algorithms.freeze({before: b"second".hex()})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(algorithms, "_measured", lambda *_: Record(b"first".hex(), {}))
            assert algorithms.algorithm_of(engine, 0, half) == b"first"
            assert algorithms.records_of(engine.library).read()[words].choice == b"first".hex()


@pytest.mark.parametrize("sizes", [(0, 7, 3), (5, 7, 0)])
def test_nothing_is_measured_of_a_product_without_elements(
    fresh: None, sizes: tuple[int, int, int]
) -> None:
    node = ProductNode("float32", False, sizes, (False, False), 0, 0, 0, (3, 7, 7), 0)
    with emulated_device() as engine:
        assert algorithms.algorithm_of(engine, 0, node) == b"first"


# --- what is folded ----------------------------------------------------------------------------------


def product(
    results: Sequence[Result], operands: Sequence[Operand], formula: Any = PRODUCT, **more: Any
) -> Folded | None:
    return folded(
        Gemm("float32", epilogue=Finish(tuple(operands), tuple(results), formula), **more)
    )


def test_bias_and_what_is_positive_of_it() -> None:
    bias, zero = Operand("x0", "float32", "row"), ("constant", 0, "0")
    added = ("add", PRODUCT, X)
    assert product((), (bias,), added) == Folded(Result("c", "float32", added), "x0")
    turned = product((), (bias,), ("maximum", ("add", X, PRODUCT), zero))
    assert turned is not None and turned.positive and turned.bias == "x0"
    bare = product((), (), ("maximum", PRODUCT, zero))
    assert bare is not None and bare.positive and bare.bias is None
    half = Result("y0", "bfloat16", ("cast", ("maximum", added, zero), "bfloat16"))
    assert product((half,), (bias,), unread=True) is None  # a bias of the result's dtype is needed
    rounded = product((half,), (Operand("x0", "bfloat16", "row"),), unread=True)
    assert rounded == Folded(half, "x0", True)


def test_halves_are_rounded_before_they_are_chosen() -> None:
    y, zero = Operand("x0", "bfloat16"), ("constant", 0, "0")
    chosen = ("where", ("greater", X, zero), PRODUCT, zero)
    half = Result("y0", "bfloat16", ("cast", chosen, "bfloat16"))
    found = product((half,), (y,), unread=True)
    assert found is not None and found.after is not None
    assert found.after.operands == (y, Operand("y0", "bfloat16"))
    (stored,) = found.after.stages[0].store
    assert stored.formula == ("cast", ("where", ("greater", X, zero), RATE, zero), "bfloat16")
    for other in (
        (
            "where",
            ("greater", PRODUCT, zero),
            PRODUCT,
            zero,
        ),  # rounding first might change a comparison
        ("where", ("greater", X, zero), ("multiply", PRODUCT, X), zero),
        ("where", ("greater", X, zero), PRODUCT, ("constant", 0.1, "0.1")),
    ):
        result = Result("y0", "bfloat16", ("cast", other, "bfloat16"))
        assert product((result,), (y,), unread=True) is None


@pytest.mark.parametrize(
    "formula",
    [
        ("maximum", ("add", PRODUCT, X), ("constant", 1, "1")),
        ("tanh", ("add", PRODUCT, X)),
        ("add", PRODUCT, PRODUCT),
        ("multiply", PRODUCT, X),
    ],
)
def test_other_formulas_are_a_kernels(formula: Any) -> None:
    assert product((), (Operand("x0", "float32", "row"),), formula) is None


def test_a_second_result_is_a_kernels() -> None:
    bias = Operand("x0", "float32", "row")
    more = Result("y0", "float32", PRODUCT)
    assert product((more,), (bias,), ("add", PRODUCT, X)) is None
    assert product((more,), (bias,), ("add", PRODUCT, X), unread=True) == Folded(more)


def test_updates_are_sums_of_multiples() -> None:
    operands = (Operand("x0", "float32"), Operand("x1", "float32", "scalar"))
    new = ("subtract", X, ("multiply", RATE, PRODUCT))
    plain = product((Result("y0", "float32", new),), operands, unread=True)
    assert plain is not None and plain.over == "x0" and plain.scales is not None
    alpha, beta = plain.scales.stages[0].store
    assert [o.name for o in plain.scales.operands] == ["x1"]
    assert alpha.formula == ("subtract", ("constant", 0.0, "0.0"), ("argument", 0))
    assert beta.formula == ("constant", 1.0, "1.0")
    decayed = (
        "subtract",
        X,
        ("multiply", RATE, ("add", PRODUCT, ("multiply", X, ("constant", 0.5, "0.5")))),
    )
    assert product((Result("y0", "float32", decayed),), operands, unread=True) is None  # x0 twice
    squared = ("subtract", X, ("multiply", PRODUCT, PRODUCT))
    assert product((Result("y0", "float32", squared),), operands, unread=True) is None


# --- what is fetched ---------------------------------------------------------------------------------


def test_a_batch_is_rounded_as_it_is_fetched_where_only_products_read_it() -> None:
    x = placeholder("x", (None, 7), "float32")
    w = md.variable("w", np.ones((7, 3), np.float32))

    def rounded(*outputs: Any) -> list[str]:
        program = precision_pass(Program.of([o.node for o in outputs]), "mixed_bf16")
        plan = native_plan(program, rounding=False)
        found = sliced_plans.fetched_rounded(plan, [x.node])
        return [work.needed[0].dtype.name for work in found.values()]

    assert rounded(x @ w) == ["bfloat16"]
    assert rounded(x @ w, ops.sum(x * 2.0)) == []  # which reads all its digits
    assert rounded(x * 1.0) == []


@pytest.mark.parametrize("device", [pytest.param("gpu", marks=GPU)])
def test_static_and_dynamic_shared_memory_may_be_more_than_48_kib_together(device: str) -> None:
    """A launch that has 46,080 bytes and 4,096 that its function declares."""
    x, y = samples(448, 784, 10)
    with on(device):
        there, here = (
            network((784, 256, 10), md.optim.SGD(0.05), activation="relu", **where)
            for where in ({"device": "cuda", "precision": "tf32"}, {})
        )
        for model in (there, here):
            model.fit(x, y, batch_size=512, verbose=0)
        assert distance(there, here) < 1e-3
