"""Plans of programs that are built alike: copied, not made again, and the same in every bit."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import ops
from magmadnn.compiler.plan import planning
from magmadnn.compiler.plan.built_alike import look, reuse
from magmadnn.errors import NumericError
from magmadnn.graph import Spec
from magmadnn.graph.dim import Dim
from magmadnn.graph.node import constant, placeholder
from magmadnn.graph.program import Program
from magmadnn.runtime import step_memory
from magmadnn.tensor import Operation
from tests.runtime.cuda.devices import on
from tests.runtime.cuda.emulator import needs_compiler

RNG = np.random.default_rng(2)
X = RNG.normal(size=(101, 5)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int64)


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs for which the passes ran; no template is there at first."""
    monkeypatch.setattr(reuse, "_templates", type(reuse._templates)())
    programs: list[Program] = []
    run = planning._passed

    def noted(program: Program, *rest: Any, **named: Any) -> Any:
        programs.append(program)
        return run(program, *rest, **named)

    monkeypatch.setattr(planning, "_passed", noted)
    return programs


def network(seed: int = 0, activation: str = "relu", rate: float = 0.01, **more: Any) -> md.Model:
    layers = [
        md.layers.Input((5,)),
        md.layers.Dense(7, activation=activation),
        md.layers.BatchNorm(),
        md.layers.Dense(2),
    ]
    return md.Model(
        layers, loss="cross_entropy", optimizer=md.optim.Adam(rate), metrics=["accuracy"],
        seed=seed, **more,
    )  # fmt: skip


def trained(model: md.Model, **options: Any) -> dict[str, bytes]:
    model.fit(X, Y, batch_size=16, epochs=2, verbose=False, **options)
    model.predict(X)
    return {name: value.tobytes() for name, value in model.values().items()}


def test_the_second_model_takes_a_copy_and_gets_the_bits_of_a_plan_of_its_own(
    made: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(network())
    count = len(made)
    assert count == 2  # the step and the prediction
    second, other = network(seed=3, rate=0.02), network(seed=4)
    found = trained(second), trained(other)
    assert len(made) == count
    with monkeypatch.context() as alone:
        alone.setattr(reuse, "_MOST", 0)
        reuse._templates.clear()
        assert (trained(network(seed=3, rate=0.02)), trained(network(seed=4))) == found
    assert len(made) == count + 4
    assert found[0] != found[1]


def test_plans_as_text_are_equal(made: list[Program]) -> None:
    first, second = network(), network(seed=1)
    texts = [model.plan(X, Y, batch_size=16) for model in (first, second)]
    assert texts[0] == texts[1] and len(made) == 1


def test_what_is_built_otherwise_is_planned_anew(made: list[Program]) -> None:
    models = [network(), network(activation="tanh"), network(precision="mixed_bf16")]
    for number, model in enumerate(models):
        model.predict(X)
        assert len(made) == number + 1


@pytest.mark.parametrize(
    "values",
    [(0.0, -0.0), (1, 1.0), (np.float32(2), np.float32(3)), (np.zeros(2), np.zeros((1, 2)))],
    ids=str,
)
def test_constants_are_compared_by_their_bytes(values: tuple[Any, Any]) -> None:
    x = placeholder("x", Spec((3, 2), np.dtype(np.float64)))
    looks = [reuse.look_of(Program((ops.multiply(x, constant(np.asarray(v))),))) for v in values]
    assert looks[0] != looks[1]
    again = Program((ops.multiply(x, constant(np.asarray(values[0]))),))
    assert looks[0] == reuse.look_of(again)


def test_attributes_that_are_equal_need_not_mean_the_same() -> None:
    assert len({look.plain(v) for v in (0.0, -0.0, 0, False)}) == 4
    assert len({look.plain(v) for v in ((1, 2), (1, 2.0), (True, 2), ((1,), 2))}) == 4


def test_names_are_those_of_the_model_at_hand(made: list[Program]) -> None:
    """Two models whose layers are called differently do not share a plan, nor its names."""
    texts = []
    for name in ("first", "second"):
        inner = md.layers.Dense(3, name=name)
        model = md.Model([md.layers.Input((5,)), inner])
        model.predict(X)
        texts.append(model.plan(batch_size=4))
    assert "# first" in texts[0] and "# second" in texts[1] and len(made) == 2


def test_an_error_names_the_layer_of_the_copy() -> None:
    trained(network())
    model = network(seed=1)
    model.layers[0].kernel.assign(np.full((5, 7), 1e30, np.float32))
    model.layers[2].kernel.assign(np.full((7, 2), 1e38, np.float32))
    with pytest.raises(NumericError, match="batch_norm_1"):
        trained(model)


def test_no_model_is_kept_alive(made: list[Program]) -> None:
    model = network()
    trained(model)
    kernel = weakref.ref(model.layers[0].kernel.value)
    layer, whole = weakref.ref(model.layers[0]), weakref.ref(model)
    del model
    made.clear()
    gc.collect()
    assert reuse._templates
    assert whole() is None and layer() is None and kernel() is None


def test_a_bounded_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "_MOST", 3)
    for width in range(2, 8):
        md.Model([md.layers.Input((5,)), md.layers.Dense(width)]).predict(X)
    assert len(reuse._templates) == 3


def test_of_long_programs_none_is_kept(
    made: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "LONGEST", 5)
    for _ in range(2):
        md.Model([md.layers.Input((5,)), md.layers.Dense(3), md.layers.Dense(2)]).predict(X)
    assert not reuse._templates and len(made) == 2


def test_threads_may_plan_at_once() -> None:
    wanted = [trained(network(seed=s)) for s in range(4)]
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda s=s: found.update({s: trained(network(seed=s))}))
        for s in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[s] for s in range(4)] == wanted


@needs_compiler
def test_plans_for_a_gpu_are_copied_too(made: list[Program]) -> None:
    with on("emulated"):
        first = trained(network(device="cuda"))
        count = len(made)
        assert trained(network(device="cuda")) == first
        assert len(made) == count
        assert trained(network(seed=5, device="cuda")) != first


def test_memory_is_found_once_and_nodes_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of models that are built alike; another size of batches takes other memory."""
    counted, measured = list[Any](), step_memory._measured
    monkeypatch.setattr(
        step_memory, "_measured", lambda plan, sizes: counted.append(sizes) or measured(plan, sizes)
    )
    plans = []
    for seed in range(4):
        trained(network(seed), validation_data=(X[:13], Y[:13]))
        if seed == 2:
            counted.clear()
    assert not counted
    for seed in range(2):
        x = placeholder("x", Spec((Dim.symbol("batch"), 5), np.dtype(np.float32)))
        w = md.variable("w", X[seed : seed + 5])
        y = ops.tanh(Operation(x) @ w) + ops.sum(w, 0)
        program = Program.of([y.node, (y * 2.0).node], [(w.node, (w * 0.5).node)])
        plans.append(planning.native_plan(program))
    assert plans[0].alike is plans[1].alike
    for plan in plans:
        order = plan.program.nodes()
        assert order == Program(plan.program.outputs, plan.program.updates).nodes()
    few, many = ([step_memory.step_memory(p, {"batch": n}) for p in plans] for n in (3, 77))
    assert few[0] == few[1] and many[0] == many[1]
    assert counted == [{"batch": 3}, {"batch": 77}]
    assert (few[0].batch, many[0].batch, few[0].parameters) == (60, 1540, 100)
    assert step_memory.step_memory(plans[0], {"batch": 3}, 5).workspace == 5
