"""The step: what a run gives and changes, settings as inputs, and the state."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from magmadnn import ops, optim
from magmadnn.compiler.plan import planning as native
from magmadnn.errors import (
    ArgumentError,
    CheckpointError,
    DTypeError,
    GraphError,
    MagmaDNNError,
    ShapeError,
    UnknownNameError,
)
from magmadnn.graph import node as nodes
from magmadnn.optim import Optimizer
from magmadnn.runtime import evaluate
from magmadnn.tensor import Operation, Tensor, placeholder, variable

ALL: list[Optimizer] = [
    optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01, clip_value=0.5, clip_norm=0.9),
    optim.AdaGrad(0.1),
    optim.RMSProp(0.01, momentum=0.5),
    optim.Adam(optim.cosine(0.05, steps=30)),
    optim.AdamW(0.05),
    optim.LARS(1.7),
    optim.LAMB(0.05),
]
BATCHES = np.random.default_rng(3).normal(size=(12, 5, 7))


def network(dtype: str = "float64") -> tuple[Any, Any, list[Any]]:
    x = placeholder("x", (None, 7), dtype)
    draw = np.random.default_rng(11)
    w = variable("layer/w", draw.normal(size=(7, 3)).astype(dtype))
    b = variable("layer/b", draw.normal(size=3).astype(dtype))
    return x, ops.mean(ops.tanh(x @ w + b) ** 2), [w, b]


# --- a run -------------------------------------------------------------------------------------


def test_a_run_gives_values_from_before_the_update() -> None:
    x, loss, ws = network()
    before = [w.numpy().copy() for w in ws]
    total = ops.sum(ws[0])
    expected = float(loss.eval({x: BATCHES[0]}))
    step = optim.SGD(0.1).step(loss, ws, outputs=(total, x * 2))
    values = step.run({x: BATCHES[0]})
    assert [type(v) for v in values] == [np.ndarray] * 3
    assert float(values[0]) == expected
    assert float(values[1]) == pytest.approx(before[0].sum(), rel=1e-14)
    np.testing.assert_array_equal(values[2], 2 * BATCHES[0])
    assert all(np.abs(w.numpy() - old).min() > 1e-6 for w, old in zip(ws, before, strict=True))
    assert step.count == 1


def test_a_call_gives_the_loss_as_a_tensor() -> None:
    x, loss, ws = network("float32")
    value = optim.Adam().step(loss, ws)({x: BATCHES[0].astype("float32")})
    assert isinstance(value, Tensor)
    assert (value.shape, value.dtype) == ((), np.float32)


def test_batches_of_any_size() -> None:
    x, loss, ws = network()
    step = optim.Adam().step(loss, ws)
    for rows in (5, 2, 1):
        step({x: BATCHES[0, :rows]})
    assert step.count == 3


def test_training_phase_and_the_graphs_own_updates() -> None:
    w = variable("w", np.array([0.4, -0.6]))
    mean = variable("mean", np.array([1.0, 1.0]))
    trained = nodes.update(w.node * 3, mean.node, w.node * 0.5 + mean.node * 0.5)
    loss = Operation(ops.sum(nodes.phase(trained, w.node * 100)))
    step = optim.SGD(0.1).step(loss, [w])
    assert float(step()) == pytest.approx(3 * -0.2)
    np.testing.assert_allclose(mean.numpy(), [0.7, 0.2])  # of w as it was before the step
    np.testing.assert_allclose(w.numpy(), [0.4 - 0.3, -0.6 - 0.3])


def test_a_parameter_that_the_loss_does_not_depend_on_is_left_as_it_is() -> None:
    x, loss, ws = network()
    other = variable("other", np.array([1.0, 2.0]))
    step = optim.AdamW(0.1, weight_decay=0.5).step(loss, [ws[0], other, ws[1]])
    step({x: BATCHES[0]})
    np.testing.assert_array_equal(other.numpy(), [1.0, 2.0])
    assert step.parameters == (ws[0], ws[1])
    assert not [name for name in step.state() if name.startswith("other")]


def test_several_networks_with_steps_of_their_own() -> None:
    x, first, ws = network()
    _, second, vs = network()
    optimizer = optim.Adam(0.05)
    one, two = optimizer.step(first, ws), optimizer.step(second, vs)
    x2 = two.plan.program.placeholders[0]
    assert x2 is not x.node
    for batch in BATCHES[:3]:
        one({x: batch})
    assert (one.count, two.count) == (3, 0)
    np.testing.assert_array_equal(vs[0].numpy(), network()[2][0].numpy())


def test_adversaries_share_a_graph_and_train_their_own_variables() -> None:
    u, v = variable("u", np.array(1.0)), variable("v", np.array(1.0))
    product = u * v
    down, up = optim.SGD(0.1).step(product, [u]), optim.SGD(0.1).step(-product, [v])
    down()
    assert (float(u), float(v)) == (0.9, 1.0)
    up()
    assert float(v) == pytest.approx(1.09)


# --- settings are inputs -----------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """All programs that are compiled from now on, by what compiles them."""
    programs: dict[str, list[Any]] = {"reference": [], "native": []}

    def count(module: Any, function: str, kind: str) -> None:
        original = getattr(module, function)

        def counting(program: Any, *args: Any, **options: Any) -> Any:
            programs[kind].append(program)
            return original(program, *args, **options)

        monkeypatch.setattr(module, function, counting)

    count(evaluate, "compile_program", "reference")
    count(native, "native_plan", "native")
    return programs


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: type(o).__name__)
def test_one_compilation_for_all_settings(
    optimizer: Optimizer, executor: str, compiled: dict[str, list[Any]]
) -> None:
    x, loss, ws = network()
    step = optimizer.step(loss, ws, executor=executor)
    for t, batch in enumerate(BATCHES):
        changed = {k: v * 0.99 for k, v in step.settings.items()}
        step.set(**changed)
        assert step.settings == changed
        step({x: batch[: 1 + t % 5]})
    assert len(compiled[executor]) == 1
    program = compiled[executor][0]
    constants = [float(n.value) for n in program.nodes() if n.op is nodes.CONSTANT and not n.shape]
    own = [v for v in optimizer.config().values() if isinstance(v, float) and v]
    assert own
    assert not set(own) & set(constants)  # they are inputs


def test_every_setting_changes_what_a_step_does() -> None:
    optimizer = optim.chain(
        optim.ClipValue(0.01), optim.ClipNorm(0.02), optim.WeightDecay(0.1), optim.AdamMoments(),
        optim.Momentum(0.9), optim.LearningRate(0.1),
    )  # fmt: skip

    def after(**settings: float) -> Any:
        x, loss, ws = network()
        step = optimizer.step(loss, ws)
        step.set(**settings)
        for batch in BATCHES[:3]:
            step({x: batch})
        return ws[0].numpy().copy()

    plain = after()
    names = ["clip_value", "clip_norm", "weight_decay", "beta1", "beta2", "eps", "momentum"]
    for name in [*names, "learning_rate"]:
        assert np.abs(after(**{name: 0.005}) - plain).max() > 1e-7, name


def test_set_takes_numbers_schedules_and_none() -> None:
    x, loss, ws = network()
    step = optim.SGD(optim.exponential(0.8, 0.5), momentum=0.9).step(loss, ws)
    assert step.settings == {"momentum": 0.9, "learning_rate": 0.8}
    step.set(learning_rate=0.3)
    step({x: BATCHES[0]})
    assert step.settings["learning_rate"] == 0.3
    assert step.overrides == {"learning_rate": 0.3}
    step.set(learning_rate=lambda t: 0.1 * t, momentum=0.5)
    assert step.settings == {"momentum": 0.5, "learning_rate": 0.1}
    step.set(learning_rate=None, momentum=None)
    assert step.settings == {"momentum": 0.9, "learning_rate": 0.4}
    assert step.overrides == {}


def test_two_parts_with_one_setting_and_slot() -> None:
    _, loss, ws = network()
    optimizer = optim.chain(optim.Momentum(0.9), optim.Momentum(0.5), optim.LearningRate(0.1))
    step = optimizer.step(loss, ws[:1])
    assert step.settings == {"momentum": 0.9, "momentum_2": 0.5, "learning_rate": 0.1}
    assert list(step.state()) == ["layer/w/velocity", "layer/w/velocity_2", "count"]
    step.set(momentum_2=0.25)
    assert step.settings["momentum"] == 0.9


SETTING_MISTAKES: list[tuple[Optimizer, dict[str, Any], type[MagmaDNNError], str]] = [
    (
        optim.SGD(0.1), {"learning_rate": -0.5}, ArgumentError,
        "SGD: learning_rate must be a number of at least 0, got -0.5",
    ),
    (
        optim.SGD(0.1), {"learnin_rate": 0.5}, UnknownNameError,
        ("SGD: setting 'learnin_rate' is not known: did you mean 'learning_rate'? known are "
        "learning_rate"),
    ),
    (
        optim.SGD(0.1), {"momentum": 0.5}, ArgumentError,
        ("SGD: momentum is 0.0, so this step was built without it and it cannot be set; make the "
        "optimiser with another value"),
    ),
    (
        optim.Adam(), {"clip_norm": 1.0}, ArgumentError,
        ("Adam: clip_norm is None, so this step was built without it and it cannot be set; make the "
        "optimiser with another value"),
    ),
    (
        optim.Adam(), {"beta1": 1.0}, ArgumentError,
        "Adam: beta1 must be at least 0 and below 1, got 1.0",
    ),
    (
        optim.Adam(), {"eps": "tiny"}, ArgumentError,
        "Adam: eps must be a number above 0, got 'tiny'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("optimizer", "settings", "error", "text"), SETTING_MISTAKES)
def test_mistakes_in_set(
    optimizer: Optimizer, settings: dict[str, Any], error: type[MagmaDNNError], text: str
) -> None:
    step = optimizer.step(*network()[1:])
    before = step.settings
    with pytest.raises(error) as caught:
        step.set(**{"learning_rate": 0.7, **settings})
    assert str(caught.value) == text
    assert step.settings == before  # nothing of a wrong call counts


def test_a_schedule_that_gives_nonsense_is_named() -> None:
    x, loss, ws = network()
    before = ws[0].numpy().copy()
    step = optim.SGD(optim.piecewise((2,), (0.1, -0.1))).step(loss, ws)
    step({x: BATCHES[0]})
    step({x: BATCHES[0]})
    after = ws[0].numpy().copy()
    with pytest.raises(ArgumentError) as caught:
        step({x: BATCHES[0]})
    assert str(caught.value) == (
        "SGD: learning_rate must be a number of at least 0, got -0.1 from "
        "piecewise(boundaries=(2,), values=(0.1, -0.1)) at step 2"
    )
    assert step.count == 2
    np.testing.assert_array_equal(ws[0].numpy(), after)
    assert np.abs(after - before).max() > 0


# --- the state ---------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: type(o).__name__)
def test_going_on_from_a_state_is_bit_identical(optimizer: Optimizer) -> None:
    dtype = "float32"
    x, loss, ws = network(dtype)
    step = optimizer.step(loss, ws)
    batches = BATCHES.astype(dtype)
    for batch in batches[:5]:
        step({x: batch})
    state, values = step.state(), [w.numpy().copy() for w in ws]
    losses = [float(step({x: batch})) for batch in batches[5:]]

    y, again, vs = network(dtype)
    for v, value in zip(vs, values, strict=True):
        v.assign(value)
    other = optimizer.step(again, vs)
    other.load_state(state)
    assert other.count == 5
    assert [float(other({y: batch})) for batch in batches[5:]] == losses
    for w, v in zip(ws, vs, strict=True):
        np.testing.assert_array_equal(w.numpy(), v.numpy())
    for name, slot in step.state().items():
        np.testing.assert_array_equal(slot.numpy(), other.state()[name].numpy())


def test_the_state_is_a_copy_with_stable_names() -> None:
    x, loss, ws = network()
    step = optim.Adam(0.1).step(loss, ws)
    state = step.state()
    assert list(state) == ["layer/w/m", "layer/w/v", "layer/b/m", "layer/b/v", "count"]
    assert state["count"].dtype == np.int64
    step({x: BATCHES[0]})
    assert int(state["count"]) == 0
    assert not state["layer/w/m"].numpy().any()
    assert step.state()["layer/w/m"].numpy().all()


def test_parameters_of_one_name_are_told_apart_by_their_index() -> None:
    ws = [variable("w", np.array([1.0, 2.0])) for _ in range(3)]
    loss = ops.sum(ws[0] * ws[2]) + 0 * ops.sum(ws[0])
    step = optim.SGD(0.1, momentum=0.9).step(loss, ws)  # ws[1] has no part in it
    assert list(step.state()) == ["0/velocity", "2/velocity", "count"]


def changed(state: dict[str, Any], **entries: Any) -> dict[str, Any]:
    return {k: v for k, v in {**state, **entries}.items() if v is not None}


STATE_MISTAKES: list[tuple[dict[str, Any], str]] = [
    (
        {"layer/w/m": None, "count": None},
        "state of Adam: count, layer/w/m are missing; is it of another optimiser?",
    ),
    (
        {"layer/w/velocity": np.zeros(3)},
        "state of Adam: layer/w/velocity is unknown; is it of another optimiser?",
    ),
    (
        {"layer/w/m": np.zeros((3, 7))},
        "state of Adam: layer/w/m must be float64 of shape (7, 3), got float64 of shape (3, 7)",
    ),
    (
        {"layer/b/v": np.zeros(3, np.float32)},
        "state of Adam: layer/b/v must be float64 of shape (3,), got float32 of shape (3,)",
    ),
    ({"count": np.array(-1)}, "state of Adam: count must be from 0 to 9007199254740992, got -1"),
]


@pytest.mark.parametrize(("entries", "text"), STATE_MISTAKES)
def test_mistakes_in_a_state_change_nothing(entries: dict[str, Any], text: str) -> None:
    x, loss, ws = network()
    step = optim.Adam(0.1).step(loss, ws)
    step({x: BATCHES[0]})
    before = step.state()
    wrong = changed({k: v.numpy() + 1 for k, v in before.items()}, **entries)
    with pytest.raises(CheckpointError) as caught:
        step.load_state(wrong)
    assert str(caught.value) == text
    for name, slot in step.state().items():
        np.testing.assert_array_equal(slot.numpy(), before[name].numpy())


# --- low precision -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_parameters_are_updated_in_float32(dtype: str) -> None:
    exact = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    start = np.array([0.3, -0.7, 1.9]).astype(exact)
    g = np.array([0.25, 0.5, -1.5]).astype(exact)  # the gradient, the same at each step
    w = variable("w", start.copy())
    step = optim.SGD(0.01, momentum=0.9).step(ops.sum(w * g), [w])
    velocity, value = np.zeros(3, np.float32), start
    for _ in range(7):
        step()
        velocity = np.float32(0.9) * velocity + g.astype(np.float32)
        value = (value.astype(np.float32) - np.float32(0.01) * velocity).astype(exact)
        np.testing.assert_array_equal(w.numpy().astype(np.float32), value.astype(np.float32))
    kept = step.state()["w/velocity"]
    assert kept.dtype == np.float32
    np.testing.assert_array_equal(kept.numpy(), velocity)
    assert w.dtype == exact


def test_bias_correction_keeps_its_digits_in_float32() -> None:
    # 1 - 0.999 in float32 is off by 1e-5; after one step v_hat is g**2 only to the digits of 1 - beta2.
    w = variable("w", np.array([0.5], np.float32))
    step = optim.Adam(0.1, eps=1e-30).step(ops.sum(w * np.float32(3.0)), [w])
    step()
    assert float(w.numpy()[0]) == pytest.approx(0.4, rel=3 * 2**-24)
    v = step.state()["w/v"].numpy()[0]
    assert float(v) == pytest.approx(0.009, rel=3 * 2**-24)


def test_parameters_of_several_dtypes_in_one_step() -> None:
    u = variable("u", np.array([0.5, 0.25], np.float32))
    v = variable("v", np.array([0.5, 0.25]))
    loss = ops.sum(u * 3) + ops.sum(v * 4)
    optim.SGD(1.0, clip_norm=1.0).step(loss, [u, v])()
    scale = 1 / np.sqrt(9 + 9 + 16 + 16)
    np.testing.assert_allclose(u.numpy(), np.array([0.5, 0.25]) - 3 * scale, atol=1e-7)
    np.testing.assert_allclose(v.numpy(), np.array([0.5, 0.25]) - 4 * scale, atol=1e-15)
    assert (u.dtype, v.dtype) == (np.float32, np.float64)


# --- what cannot be trained --------------------------------------------------------------------

W = variable("w", np.array([0.4, 0.6]))
N = variable("n", np.array([1, 2]))
LOSS = ops.sum(W * W)
MISTAKES: list[tuple[Any, Any, Any, type[MagmaDNNError], str]] = [
    (LOSS, [], (), ArgumentError,
     "Adam.step: the list of parameters is empty; give the variables to train"),
    (LOSS, W, (), ArgumentError, "Adam.step: parameters must be a list of variables, got Variable"),
    (LOSS, [W, 3.0], (), GraphError, "Adam.step: parameter 1 must be a variable, got 3.0"),
    (LOSS, [LOSS], (), GraphError,
     "Adam.step: parameter 0 must be a variable, got <Operation sum: float64[]>"),
    (LOSS, [W, W], (), ArgumentError, "Adam.step: parameter w comes twice"),
    (LOSS, [W, N], (), DTypeError,
     "Adam.step: parameter n is int64; only floating-point variables can be trained"),
    (LOSS, [variable("u", np.ones(2)), variable("v", np.ones(2))], (), GraphError,
     ("Adam.step: the loss does not depend on any of the 2 parameters (u, v); give the variables "
     "that it is computed from")),
    (W * W, [W], (), ShapeError,
     "Adam.step: the loss must be a scalar, got multiply of shape (2,); take its mean"),
    (ops.sum(N), [W], (), DTypeError,
     "Adam.step: the loss must be a floating-point value, got sum of int64"),
    (3.0, [W], (), GraphError, "Adam.step: the loss must be an Operation, got float"),
    (LOSS, [W], (1.0,), GraphError, "Adam.step: outputs must be Operations, got float"),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "parameters", "outputs", "error", "text"), MISTAKES)
def test_mistakes(
    loss: Any, parameters: Any, outputs: Any, error: type[MagmaDNNError], text: str
) -> None:
    with pytest.raises(error) as caught:
        optim.Adam().step(loss, parameters, outputs=outputs)
    assert str(caught.value) == text


def test_a_parameter_that_the_graph_updates_is_refused() -> None:
    w = variable("w", np.array(1.0))
    loss = Operation(nodes.update((w * w).node, w.node, (w * 0.5).node))
    with pytest.raises(GraphError, match="parameter w is also updated by a layer; leave it out"):
        optim.SGD().step(loss, [w])


def test_a_wrong_feed_leaves_everything_as_it_was() -> None:
    x, loss, ws = network()
    before = ws[0].numpy().copy()
    step = optim.Adam().step(loss, ws)
    with pytest.raises(ShapeError, match="placeholder x: axis 1 must be 7, got 6"):
        step({x: BATCHES[0][:, :6]})
    assert step.count == 0
    np.testing.assert_array_equal(ws[0].numpy(), before)


def test_minimize_wants_at_least_one_step() -> None:
    with pytest.raises(ArgumentError) as caught:
        optim.SGD().minimize(LOSS, [W], steps=0)
    text = "SGD.minimize: steps must be a whole number of at least 1, got 0"
    assert str(caught.value) == text


def test_minimize_takes_feeds() -> None:
    x, loss, ws = network()
    before = float(loss.eval({x: BATCHES[0]}))
    after = optim.SGD(0.5).minimize(loss, ws, steps=100, feeds={x: BATCHES[0]})
    assert float(after) == float(loss.eval({x: BATCHES[0]})) < 0.5 * before
