"""Models, layers and graphs that are copied, pickled, and used in other processes."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.graph.body import body_of, is_loop
from magmadnn.graph.node import VARIABLE, topological

RNG = np.random.default_rng(5)
X = RNG.standard_normal((53, 7)).astype(np.float32)
Y = RNG.integers(0, 3, 53)


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


WAYS = pytest.mark.parametrize("twin", [copy.deepcopy, pickled])
Twin = Callable[[Any], Any]


class Gain(md.layers.Layer):
    """A layer of one's own, with a part."""

    inner: md.layers.Dense

    def build(self, x: Any) -> None:
        self.gain = self.parameter("gain", x.shape[-1:], md.init.ones())

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.gain


def network(**settings: Any) -> md.Model:
    """With all that has a state: moments, running statistics, counters of dropout."""
    layers = [
        md.layers.Input((7,)),
        md.layers.Dense(7, activation="relu"),
        md.layers.Dropout(0.3),
        Gain(md.layers.Dense(7)),
        md.layers.BatchNorm(),
        md.layers.Dense(3),
    ]
    settings = {"loss": "cross_entropy", "optimizer": md.optim.Adam(0.01)} | settings
    return md.Model(layers, metrics=["accuracy"], **settings)


def fit(model: md.Model, first: int, last: int, y: Any = Y) -> None:
    model.fit(X, y, epochs=last, initial_epoch=first, batch_size=8, verbose=0)


@WAYS
@pytest.mark.parametrize(
    "precision", ["float32", pytest.param("mixed_bf16", marks=pytest.mark.long), "mixed_fp16"]
)
def test_a_copy_goes_on_as_the_model_does(twin: Twin, precision: str) -> None:
    model = network(precision=precision)
    fit(model, 0, 2)
    other = twin(model)
    assert np.array_equal(other.predict(X), model.predict(X))
    fit(model, 2, 4)
    before = model.values()
    fit(other, 2, 4)
    for name, value in other.values().items():
        assert value.tobytes() == before[name].tobytes() == model.values()[name].tobytes(), name


@WAYS
def test_a_copy_shares_nothing(twin: Twin) -> None:
    model = network()
    fit(model, 0, 1)
    kept = model.values()
    other = twin(model)
    fit(other, 1, 2)
    other.layer("dense_1").kernel.assign(np.ones((7, 7)))
    assert all(np.array_equal(kept[name], value) for name, value in model.values().items())
    assert {p.name for p in other.parameters()} == {p.name for p in model.parameters()}
    assert not {p.node for p in other.parameters()} & {p.node for p in model.parameters()}


@WAYS
def test_initial_values_that_nobody_has_read_are_those_of_the_model(twin: Twin) -> None:
    model = network(seed=3)
    other = twin(model)
    assert np.array_equal(other.predict(X), model.predict(X))


def test_a_copy_of_a_copy_that_was_not_used_has_the_state_too() -> None:
    model = network()
    fit(model, 0, 2)
    other = copy.deepcopy(pickled(model))
    fit(model, 2, 3)
    fit(other, 2, 3)
    assert np.array_equal(other.predict(X), model.predict(X))


@pytest.mark.parametrize("change", ["optimizer", "loss", "targets"])
def test_the_state_is_left_where_the_model_would_leave_it(change: str) -> None:
    model = network(loss=md.losses.CrossEntropy())
    fit(model, 0, 2)
    other = copy.deepcopy(model)
    y: Any = Y
    for one in (model, other):
        if change == "optimizer":
            one.optimizer = md.optim.SGD(0.1)
        elif change == "loss":
            one.loss = md.losses.CrossEntropy()
        else:
            y = np.eye(3, dtype=np.float32)[Y]
        fit(one, 2, 3, y)
    assert np.array_equal(other.predict(X), model.predict(X))


@WAYS
def test_what_several_outputs_share_is_there_once_in_a_copy(twin: Twin) -> None:
    """Statistics of the shared part follow each batch once; gradients are added as in the model."""
    x = md.layers.Input((7,))
    hidden = md.layers.Dropout(0.3)(md.layers.BatchNorm()(md.layers.Dense(11)(x)))
    heads = [md.layers.Dense(3)(hidden), md.layers.Dense(3)(hidden)]
    model = md.Model(inputs=x, outputs=heads, loss="cross_entropy", optimizer=md.optim.Adam(0.01))
    fit(model, 0, 1, [Y, Y[::-1].copy()])
    other = twin(model)
    nodes = [len(topological([y.node for y in m.outputs])) for m in (model, other)]
    assert nodes[0] == nodes[1]
    for one in (model, other):
        fit(one, 1, 2, [Y, Y[::-1].copy()])
    for name, value in other.values().items():
        assert value.tobytes() == model.values()[name].tobytes(), name


class Recurrent(md.layers.Layer):
    """Two carried values of a common part."""

    def build(self, x: Any) -> None:
        self.w = self.parameter("w", (2, 6), "glorot_uniform", x.dtype)

    def forward(self, x: Any) -> Any:
        zero = md.ops.broadcast_to(np.zeros(1, x.dtype), (x.shape[0], 3))

        def step(cell: Any, x: Any) -> Any:
            gate, fresh = md.ops.split(md.ops.tanh(x @ self.w), 2, axis=-1)
            h, c = cell
            c = gate * c + fresh
            return (h + md.ops.tanh(c), c), ()

        (h, _), _ = md.scan(step, (zero, zero), md.ops.transpose(x, (1, 0, 2)))
        return h


@WAYS
def test_a_loop_has_the_same_graph_in_a_copy(twin: Twin) -> None:
    layers = [md.layers.Input((5, 2)), Recurrent(), md.layers.Dense(3)]
    model = md.Model(layers, loss="cross_entropy", optimizer=md.optim.Adam(0.01))
    x = RNG.standard_normal((53, 5, 2)).astype(np.float32)
    model.fit(x, Y, batch_size=8, verbose=0)
    other = twin(model)
    bodies = [
        [body_of(n) for n in topological([m.outputs[0].node]) if is_loop(n)] for m in (model, other)
    ]
    before, after = ([len(body.program.nodes()) for body in found] for found in bodies)
    assert before == after
    for one in (model, other):
        one.fit(x, Y, batch_size=8, verbose=0)
    for name, value in other.values().items():
        assert value.tobytes() == model.values()[name].tobytes(), name


@WAYS
def test_models_that_share_layers_still_do(twin: Twin) -> None:
    x = md.layers.Input((7,))
    shared = md.layers.Dense(5)
    both = [
        md.Model(inputs=[x], outputs=[shared(x)]),
        md.Model(inputs=[x], outputs=[shared(x) * 2]),
    ]
    one, other = twin(both)
    one.layers[0].kernel.assign(np.ones((7, 5)))
    assert one.layers[0] is other.layers[0]
    np.testing.assert_allclose(other.predict(X), 2 * one.predict(X), 1e-6)


@WAYS
def test_graphs_deeper_than_python_recurses(twin: Twin) -> None:
    x = md.placeholder("x", (None, 3))
    w = md.variable("w", np.ones(3, np.float32))
    y: Any = x
    for _ in range(1200):
        y = md.ops.tanh(y) + w
    fed, made = twin((x, y))
    (held,) = {n for n in topological([made.node]) if n.op is VARIABLE}
    held.value.write(np.zeros(3, np.float32))
    assert np.all(np.asarray(w) == 1)
    assert not np.any(made.eval({fed: np.zeros((2, 3), np.float32)}))


@WAYS
def test_every_kind_of_node_is_copied(twin: Twin) -> None:
    x = md.placeholder("x", (None, 3))
    y = md.ops.mean(x, 0) + np.array([1, 2, 3], np.float32)  # a size, and a constant
    fed, made = twin((x, y))
    assert np.array_equal(made.eval({fed: X[:, :3]}), y.eval({x: X[:, :3]}))
    assert str(md.graph.show(made)) == str(md.graph.show(y))


def test_an_op_that_the_other_process_has_not() -> None:
    x = md.placeholder("x", (None, 3))
    data = pickle.dumps(md.ops.tanh(x)).replace(b"\x04tanh", b"\x04tenh")
    with pytest.raises(md.errors.UnknownNameError, match="a pickled graph: op 'tenh'"):
        pickle.loads(data)


@WAYS
def test_a_compiled_step_says_what_to_keep_instead(twin: Twin) -> None:
    w = md.variable("w", np.ones(3))
    step = md.optim.SGD(0.1).step(md.ops.sum(w * w), [w])
    with pytest.raises(md.errors.ArgumentError, match=r"keep step\.state\(\)"):
        twin(step)


# --- processes --------------------------------------------------------------------------------------


def trained_elsewhere(model: md.Model) -> md.Model:
    fit(model, 2, 4)
    return model


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_models_go_to_processes_and_come_back(start: str) -> None:
    """An ensemble, of which each member is trained in a process of its own."""
    models = [network(seed=k) for k in range(2)]
    for model in models:
        fit(model, 0, 2)
    with multiprocessing.get_context(start).Pool(2) as pool:
        back = pool.map_async(trained_elsewhere, models).get(timeout=100)
    for model, other in zip(models, back, strict=True):
        fit(model, 2, 4)
        assert np.array_equal(other.predict(X), model.predict(X))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning"
)  # of Python 3.12: that is the test
def test_a_forked_child_has_none_of_the_threads_and_needs_none() -> None:
    """A network large enough to be cut: the child uses the parent's programs, and makes its own."""
    x = RNG.standard_normal((2048, 64)).astype(np.float32)
    layers = [md.layers.Input((64,)), md.layers.Dense(256, activation="relu"), md.layers.Dense(3)]
    model = md.Model(layers, loss="cross_entropy", optimizer="adam")
    y = RNG.integers(0, 3, len(x))
    model.fit(x, y, batch_size=512, verbose=0)
    for _ in range(5):
        expected = model.predict(x)
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # a child that hangs is killed
            same = np.array_equal(model.predict(x), expected)
            model.fit(x, y, batch_size=512, verbose=0)
            os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
