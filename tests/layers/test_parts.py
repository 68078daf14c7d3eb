"""Regularisers, layers of one's own, names, and mistakes with their texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn import grad, init, layers, ops, placeholder
from magmadnn.errors import (
    ArgumentError,
    DataError,
    DTypeError,
    FrozenError,
    GraphError,
    MagmaDNNError,
    ShapeError,
    UnknownNameError,
)
from magmadnn.layers import Layer
from magmadnn.tensor import variable

# --- regularisers --------------------------------------------------------------------------------

WEIGHT = np.random.default_rng(1).normal(size=(5, 3))


@pytest.mark.parametrize(("regularizer", "value", "slope"), [
    (layers.L1(0.3), 0.3 * np.abs(WEIGHT).sum(), 0.3 * np.sign(WEIGHT)),
    (layers.L2(0.2), 0.2 * (WEIGHT**2).sum(), 0.4 * WEIGHT),
    (layers.L1L2(0.3, 0.2), 0.3 * np.abs(WEIGHT).sum() + 0.2 * (WEIGHT**2).sum(),
     0.3 * np.sign(WEIGHT) + 0.4 * WEIGHT),
    (lambda w: ops.max(abs(w)), np.abs(WEIGHT).max(),
     np.where(np.abs(WEIGHT) == np.abs(WEIGHT).max(), np.sign(WEIGHT), 0)),
])  # fmt: skip
def test_regularizers(regularizer: Any, value: float, slope: Any) -> None:
    weight = variable("w", WEIGHT)
    penalty = regularizer(weight)
    assert penalty.shape == ()
    assert float(penalty) == pytest.approx(value, rel=16 * 2.0**-52, abs=0)
    np.testing.assert_allclose(grad(penalty, weight).numpy(), slope, rtol=4 * 2.0**-52)


@pytest.mark.parametrize(("make", "names"), [
    (lambda r: layers.Dense(3, kernel_regularizer=r, bias_regularizer=r), ["kernel", "bias"]),
    (lambda r: layers.PReLU(slope_regularizer=r), ["slope"]),
    (lambda r: layers.LayerNorm(gamma_regularizer=r, beta_regularizer=r), ["gamma", "beta"]),
    (lambda r: layers.BatchNorm(gamma_regularizer=r, beta_regularizer=r), ["gamma", "beta"]),
])  # fmt: skip
def test_any_weight_takes_a_regularizer(make: Callable[[Any], Layer], names: list[str]) -> None:
    penalty = layers.L2(0.1)
    layer = make(penalty)
    layer(placeholder("x", (None, 5)))
    assert [p.local for p in layer.parameters() if p.regularizer is penalty] == names


def test_an_embedding_takes_a_regularizer() -> None:
    layer = layers.Embedding(5, 3, table_regularizer=layers.L1())
    layer(placeholder("x", (None,), "int64"))
    assert [p.regularizer for p in layer.parameters()] == [layers.L1(0.01)]


# --- layers of one's own -------------------------------------------------------------------------


class Scale(Layer):
    factor: float = 1.0

    def build(self, x: Any) -> None:
        self.gain = self.parameter("gain", x.shape[-1:], init.ones(), x.dtype)

    def forward(self, x: Any) -> Any:
        return self.factor * self.gain * x


def test_a_layer_of_ones_own() -> None:
    layer = Scale(2.5, name="scale")
    x = placeholder("x", (None, 3))
    y = layer(x)
    layer.gain.assign([1.0, 2.0, -1.0])
    np.testing.assert_array_equal(y.numpy({x: np.ones((5, 3))}), np.tile([2.5, 5, -2.5], (5, 1)))
    assert str(layer.gain.node.name) == "scale/gain"


def test_an_initialiser_by_its_name() -> None:
    by_name, itself = (layers.Dense(3, kernel_init=given) for given in ("ones", init.ones()))
    for layer in (by_name, itself):
        layer(placeholder("x", (None, 5)))
        assert np.array_equal(layer.kernel.eval(), np.ones((5, 3)))


def test_a_function_or_a_layer_as_activation() -> None:
    x = placeholder("x", (None, 3))
    fed = np.random.default_rng(2).normal(size=(5, 3)).astype(np.float32)
    shifted = layers.Activation(lambda v: ops.tanh(v) + 1)(x)
    np.testing.assert_allclose(shifted.numpy({x: fed}), np.tanh(fed) + 1, rtol=2.0**-20)
    dense = layers.Dense(3, activation=layers.GaussianRBF(0.5, trained=True))
    dense(x)
    dense.number_parts()
    assert [str(p.node.name) for p in dense.parameters()] == [
        "dense/kernel", "dense/bias", "dense/gaussian_rbf_1/epsilon",
    ]  # fmt: skip


def test_parts_are_numbered_so_that_they_start_differently() -> None:
    layer = layers.Sequential([layers.Dense(5), layers.Dense(5)])
    layer(placeholder("x", (None, 5)))
    first, _, second, _ = layer.parameters()
    assert [str(first.node.name), str(second.node.name)] == [
        "sequential/dense_1/kernel", "sequential/dense_2/kernel",
    ]  # fmt: skip
    assert not np.array_equal(first.value, second.value)


class Made(Layer):
    """Makes its layers in build, one of them in a list, one in a dict."""

    units: int = 3

    def build(self, x: Any) -> None:
        self.first = layers.Dense(self.units, "tanh")
        self.rest = [layers.Dense(self.units)]
        self.named = {"last": layers.Dense(2)}

    def forward(self, x: Any) -> Any:
        return self.named["last"](self.rest[0](self.first(x)))


def test_layers_that_build_makes_are_trained_saved_and_frozen(tmp_path: Path) -> None:
    x, y = np.ones((11, 5), np.float32), np.ones((11, 2), np.float32)
    model = md.Model([layers.Input((5,)), Made()], loss="mse", optimizer="adam")
    names = [p.name for p in model.parameters()]
    assert names == [
        f"made_1/dense_{n}/{p}" for n in (1, 2, 3) for p in ("kernel", "bias")
    ]  # fmt: skip
    before = model.values()
    model.fit(x, y, epochs=2, verbose=False)
    assert all((model.values()[name] != before[name]).any() for name in names)
    model.save(tmp_path / "made")
    again = md.load(tmp_path / "made", custom=[Made])
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    again.freeze("made_1")
    assert again.parameters() == []


def test_composites_of_composites() -> None:
    block = lambda: layers.Residual([layers.Dense(5, "relu"), layers.Dropout(0.2)])  # noqa: E731
    net = layers.Sequential([block(), block(), layers.Dense(2)])
    x = placeholder("x", (None, 5))
    y = net(x)
    assert y.shape == (x.shape[0], 2)
    assert [str(p.node.name) for p in net.parameters()] == [
        "sequential/residual_1/dense_1/kernel", "sequential/residual_1/dense_1/bias",
        "sequential/residual_1/dropout_1/counter",
        "sequential/residual_2/dense_1/kernel", "sequential/residual_2/dense_1/bias",
        "sequential/residual_2/dropout_1/counter",
        "sequential/dense_1/kernel", "sequential/dense_1/bias",
    ]  # fmt: skip
    net.trainable = False
    assert not any(p.layer.is_trainable for p in net.parameters())


def test_output_gives_its_name() -> None:
    y = layers.Output(name="energy")(layers.Dense(1)(placeholder("x", (None, 5))))
    assert y.node.origin.layer.label == "energy"


# --- mistakes ------------------------------------------------------------------------------------


def on(layer: Layer, *shape: Any, dtype: str = "float32") -> Any:
    return layer(placeholder("x", (None, *shape), dtype))


INPUT = layers.Input((5,))
ANOTHER = layers.Input((5,), name="z")


def layers_outside() -> Callable[[Any], Any]:
    dense = layers.Dense(3)
    return lambda x: dense(x)


def shared_by_two(beside: bool = False) -> md.Model:
    shared = layers.Dense(5, name="d")
    blocks = [
        layers.Residual(shared, name="r_1"),
        shared if beside else layers.Residual(shared, name="r_2"),
    ]
    return md.Model([layers.Input((5,)), *blocks])


MISTAKES: list[tuple[str, Callable[[], Any], type[MagmaDNNError], str]] = [
    ("units", lambda: on(layers.Dense(-3, name="d"), 5), ArgumentError,
     "d: units must be an integer of at least 1, got -3"),
    ("activation", lambda: layers.Dense(3, "rleu"), UnknownNameError,
     "activation 'rleu' is not known: did you mean 'relu'? known are "),
    ("no activation", lambda: layers.Activation(3), ArgumentError,
     ("activation: expected a name or a function, got 3; a layer is given the number of its outputs only: "
      "Dense(units, activation)")),
    ("epsilon of rbf", lambda: layers.GaussianRBF(-1.0), ArgumentError,
     "gaussian_rbf: epsilon must be a finite number above 0, got -1.0"),
    ("rate", lambda: layers.Dropout(1.0, name="drop"), ArgumentError,
     "drop: rate must be a number of at least 0 and below 1, got 1.0"),
    ("rate of text", lambda: layers.Dropout("0.5"), ArgumentError,
     "dropout: rate must be a number of at least 0 and below 1, got '0.5'"),
    ("reshape", lambda: on(layers.Reshape((4,), name="r"), 6), ShapeError,
     "reshape: x (batch, 6) has 6*batch elements, which do not fit into (batch, 4) (in r)"),
    ("two open sizes", lambda: layers.Reshape((-1, -1)), ArgumentError,
     "reshape: shape must hold sizes of at least 1, one of them may be -1, got (-1, -1)"),
    ("size of text", lambda: layers.Reshape(("a",)), ArgumentError,
     "reshape: shape must hold integers, got ('a',)"),
    ("count", lambda: on(layers.Embedding(0, 3), dtype="int64"), ArgumentError,
     "embedding: count must be an integer of at least 1, got 0"),
    ("real numbers", lambda: on(layers.Embedding(5, 3)), DTypeError,
     'embedding: x must be integers, got float32; give the Input dtype="int64", or cast x'),
    ("axis 0", lambda: on(layers.LayerNorm(0), 5), ArgumentError,
     "layer_norm: axis must name axes of a sample, each once, got 0 for x (batch, 5); axis 0 is the batch"),
    ("axis", lambda: on(layers.LayerNorm(2, name="ln"), 5), ShapeError,
     "ln: there is no axis 2: x has 2 axes; use -2 to 1"),
    ("epsilon", lambda: layers.LayerNorm(epsilon=0.0), ArgumentError,
     "layer_norm: epsilon must be a finite number above 0, got 0.0"),
    ("integers", lambda: on(layers.LayerNorm(), 5, dtype="int32"), DTypeError,
     "layer_norm: x must be floating-point, got int32; cast it"),
    ("unknown size", lambda: on(layers.LayerNorm(name="ln"), "time"), ShapeError,
     "ln: parameter gamma needs known sizes, got (time,); declare them in Input"),
    ("momentum", lambda: layers.BatchNorm(momentum=1.0), ArgumentError,
     "batch_norm: momentum must be a number of at least 0 and below 1, got 1.0"),
    ("features", lambda: on(layers.BatchNorm()), ShapeError,
     "batch_norm: x must be (batch, ..., features), got (batch,)"),
    ("no parts", lambda: layers.Sequential([]), ArgumentError,
     "sequential: needs at least one layer, got an empty list"),
    ("a part", lambda: layers.Residual([layers.Dense(3), "relu"]), ArgumentError,
     ("residual: parts[1] must be a layer, got 'relu'; put a function into md.layers.Activation")),
    ("around", lambda: on(layers.Residual(layers.Flatten(), name="skip"), 2, 3), ShapeError,
     ("skip: parts turn x (batch, 2, 3) into (batch, 6), and only the last axis may change by itself; "
      "give a layer that does the same as projection")),
    ("projection", lambda: on(layers.Residual(layers.Dense(3), layers.Dense(2), name="skip"), 5),
     ShapeError, "skip: projection gives (batch, 2), expected (batch, 3) as parts give"),
    ("factor", lambda: layers.L2(-1.0), ArgumentError,
     "L2: factor must be a finite number of at least 0, got -1.0"),
    ("initialiser", lambda: on(layers.Dense(3, kernel_init="he_norml", name="d"), 5), UnknownNameError,
     "initialiser 'he_norml' is not known: did you mean 'he_normal'? known are "),
    ("own __init__", lambda: type("Own", (Layer,), {"__init__": lambda self: None}), ArgumentError,
     "Own: a layer has no __init__; list its settings as fields, "),
    ("no return", lambda: on(type("Own", (Layer,), {"forward": lambda self, x: None})(), 5), ArgumentError,
     "own: forward must return an Operation, got NoneType"),
    ("two inputs", lambda: layers.Dense(3, name="d")(md.layers.Input((5,)), md.layers.Input((5,))),
     ArgumentError, ("d: takes the inputs (x), got 2; a layer such as "
                     "md.layers.Concatenate makes one of several")),
    ("another's parameters", lambda: on(layers.Activation(layers_outside(), name="a"), 5), GraphError,
     ("a: its formula uses the variable a/dense/bias, which is not the layer's and would not be trained; "
      "make it in build with self.parameter, keep layers as fields or attributes, or compute this outside "
      "of a layer")),
    ("a variable", lambda: on(layers.Lambda(lambda x: x * variable("w", 3.0), name="l"), 5), GraphError,
     ("l: its formula uses the variable w, which is not the layer's and would not be trained; make it in "
      "build with self.parameter, keep layers as fields or attributes, or compute this outside of a layer")),
    ("another input", lambda: on(layers.Lambda(lambda x: x * ANOTHER, name="l"), 5), GraphError,
     "l: its formula uses z, which is not one of its inputs; call the layer with both: layer([a, b])"),
    ("a layer of two", lambda: shared_by_two(), ArgumentError,
     ("layer d is a part of r_1 and of r_2; give each its own, or share it outside of them, "
      "calling it twice")),
    ("a layer within and beside", lambda: shared_by_two(beside=True), ArgumentError,
     ("layer d is also a part of r_1; give each its own, or share it outside of them, "
      "calling it twice")),
    ("one to add", lambda: on(layers.Add(), 5), ArgumentError,
     "add: needs two inputs or more, got 1; call it with a list: [a, b]"),
    ("one to join", lambda: on(layers.Concatenate(), 5), ArgumentError,
     "concatenate: needs two inputs or more, got 1; call it with a list: [a, b]"),
    ("three to subtract", lambda: layers.Subtract()([INPUT, INPUT, INPUT]), ArgumentError,
     ("subtract: takes the inputs (a, b), got 3; a layer such as "
      "md.layers.Concatenate makes one of several")),
    ("shapes to add", lambda: layers.Add(name="sum")(INPUT, md.layers.Input((1,))), ShapeError,
     ("sum: input 0 is (batch, 5) but input 1 (batch, 1); make them equal, or write an operator, "
      "which broadcasts: a + b")),
    ("axes to average", lambda: layers.Average()(INPUT, INPUT, md.layers.Input((5, 5))), ShapeError,
     ("average: input 0 is (batch, 5) but input 2 (batch, 5, 5); make them equal, or write an operator, "
      "which broadcasts: a + b")),
    ("dtypes to join", lambda: layers.Concatenate()([INPUT, md.layers.Input((5,), "int64")]), DTypeError,
     'concatenate: input 0 is float32 but input 1 int64; make them equal: md.ops.cast(x, "float32")'),
    ("integers to average", lambda: layers.Average()([md.layers.Input((5,), "int64")] * 2), DTypeError,
     "average: inputs must be floating-point, got int64; cast them"),
    ("shapes to join", lambda: layers.Concatenate()([md.layers.Input((2, 5)), md.layers.Input((3, 5))]),
     ShapeError, "concatenate: input 0 is (batch, 2, 5) but input 1 (batch, 3, 5); only axis 2 may differ"),
    ("joined batches", lambda: layers.Concatenate(0)([INPUT, INPUT]), ArgumentError,
     ("concatenate: axis must be one of a sample, got 0 for input 0 (batch, 5); axis 0 is the batch")),
    ("axis to join", lambda: layers.Concatenate(2)([INPUT, INPUT]), ShapeError,
     "concatenate: there is no axis 2: input 0 has 2 axes; use -2 to 1"),
    ("stddev", lambda: layers.GaussianNoise(-0.1), ArgumentError,
     "gaussian_noise: stddev must be a finite number of at least 0, got -0.1"),
    ("noise on integers", lambda: on(layers.GaussianNoise(0.1), 5, dtype="int32"), DTypeError,
     "gaussian_noise: x must be floating-point, got int32; cast it"),
    ("no function", lambda: layers.Lambda("tanh"), ArgumentError,
     ("lambda: function must be a function of Operations, got 'tanh'; give for instance lambda x: 2 * x")),
    ("an array", lambda: layers.Dense(3)(np.ones((5, 3))), GraphError,
     ("dense: expected an Operation, got ndarray; start from md.layers.Input, or wrap data with "
      "md.variable")),
    ("inside", lambda: on(layers.Sequential([layers.Flatten(), layers.Reshape((4,))], name="s"), 3),
     ShapeError, ("reshape: x (batch, 3) has 3*batch elements, which do not fit into (batch, 4) "
                  "(in s/reshape_1)")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "text"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_mistakes(call: Callable[[], Any], kind: type[MagmaDNNError], text: str) -> None:
    with pytest.raises(MagmaDNNError) as caught:
        call()
    message = str(caught.value)
    assert caught.type is kind
    assert message.startswith(text) if text.endswith(" ") else message == text
    assert "\n" not in message


def test_a_number_outside_an_embedding_is_found() -> None:
    x = placeholder("x", (None,), "int64")
    y = layers.Embedding(5, 3, name="words")(x)
    with pytest.raises(DataError, match=r"index 5 at \(1,\) is outside 0 to 4 \(in words\)"):
        y.eval({x: [0, 5]})


class Pair(Layer):
    """Has a part that is given later."""

    width: int = 3
    inner: Any = None

    def forward(self, x: Any) -> Any:
        return x if self.inner is None else self.inner(x)


def test_parts_are_found_whenever_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, later, beside = Pair(), Pair(), Pair()
    assert [layer.layers for layer in (plain, later, beside)] == [[], [], []]
    later.inner = layers.Dense(2)
    beside.more = {"a": [layers.Dense(1)]}
    assert later.layers == [later.inner]
    assert beside.layers == [beside.more["a"][0]]
    plain.more = []
    assert plain.layers == []
    plain.more.append(later)
    assert plain.layers == [later]
    del plain.more, later.inner
    assert [plain.layers, later.layers] == [[], []]
    built = Pair(inner=layers.Dense(2))
    md.Model([layers.Input(3), built])
    assert built.inner.layers == []  # which holds the layer that it is a part of
    assert Pair(inner=built).layers == [built]
    monkeypatch.setattr(Pair, "inner", built)
    assert (plain.layers, later.layers) == ([], [built])  # `later` has none of its own any more


def test_what_would_change_nothing_once_a_layer_was_called_is_refused() -> None:
    dense: Any = layers.Dense(4, "relu")
    dense.activation, dense.kernel_regularizer = "tanh", None  # nothing is made yet
    model = md.Model([layers.Input(3), dense], loss="mse", optimizer="sgd", seed=3)
    x = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    before = model.predict(x)
    for name, value in (
        ("activation", "relu"),
        ("units", 7),
        ("kernel_regularizer", layers.L2(1.0)),
    ):
        with pytest.raises(
            FrozenError, match=rf"dense_1: {name} cannot be set once .* Dense\(..., {name}="
        ):
            setattr(dense, name, value)
    for name in ("kernel", "bias"):
        with pytest.raises(
            FrozenError, match=f"dense_1: {name} is part of .*write layer.{name}.assign"
        ):
            setattr(dense, name, np.zeros((3, 4)))
    np.testing.assert_array_equal(model.predict(x), before)
    dense.name, dense.trainable, dense.note = "first", False, "mine"
    assert set(model.values()) == {"first/kernel", "first/bias"} and not model.parameters()


class Holder(Layer):
    """Makes a layer, a list, a tuple and a dict with some, and beside them what is none."""

    def build(self, x: Any) -> None:
        self.inner = layers.Dense(2)
        self.several: Any = [layers.Dense(3), {"a": (layers.Dense(4),)}]
        self.gains = (self.parameter("gain", x.shape[-1:], "ones", x.dtype),)
        self.kernel = self.parameter("kernel", x.shape[-1:], "ones", x.dtype)
        self.calls: Any = [1, {"a": (2, "b")}]

    def forward(self, x: Any) -> Any:
        self.kernel = self.kernel
        self.calls = [*self.calls, 3]
        x = self.several[1]["a"][0](self.several[0](x * self.gains[0] * self.kernel))
        return self.inner(x)


def test_parts_of_a_layer_that_was_called_can_be_neither_replaced_nor_deleted() -> None:
    holder: Any = Holder()
    model = md.Model([layers.Input(3), holder], loss="mse", optimizer="sgd", seed=3)
    x = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    names, before = set(model.values()), model.predict(x)
    new = layers.Dense(2)
    for name, value in (("inner", new), ("several", [new]), ("gains", ()), ("inner", None)):
        with pytest.raises(
            FrozenError, match=rf"holder_1: {name} cannot be set once .* make another Holder, and"
        ):
            setattr(holder, name, value)
    for name in ("inner", "several", "gains"):
        with pytest.raises(FrozenError, match=f"holder_1: {name} cannot be deleted once the"):
            delattr(holder, name)
    with pytest.raises(FrozenError, match=r"holder_1: kernel is part of .* layer\.kernel\.assign"):
        del holder.kernel
    with pytest.raises(FrozenError, match="dense_2: units cannot be deleted once the layer"):
        del holder.several[0].units
    assert set(model.values()) == names
    np.testing.assert_array_equal(model.predict(x), before)
    holder.inner, holder.calls = holder.inner, [4]  # the same, and what is no part
    del holder.calls
    with pytest.raises(AttributeError, match="calls"):
        _ = holder.calls


class Outer(Layer):
    """Sets what is another layer's while it is called itself."""

    inner: Any

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        if self.inner.units != 2:
            self.inner.units = 2
        return y


def test_what_a_layer_keeps_is_set_by_its_own_formula_only() -> None:
    inner: Any = layers.Dense(3, name="d")
    with pytest.raises(FrozenError, match="d: units cannot be set once the layer was called"):
        Outer(inner)(layers.Input(3))
    assert inner.units == 3
    inner.units = inner.units  # the value that it has


def test_a_regularizer_is_chosen_when_a_parameter_is_made() -> None:
    dense, scale = layers.Dense(2, kernel_regularizer=layers.L2(0.5)), Scale()
    x = np.ones((5, 3), np.float32)
    model = md.Model([layers.Input(3), scale, dense], loss="mse", optimizer="sgd")
    for _ in range(2):  # before the first fit, and after it
        with pytest.raises(
            FrozenError,
            match=r"dense_1/kernel: regularizer .* Dense\(..., kernel_regularizer=...\)",
        ):
            dense.kernel.regularizer = layers.L2(100.0)
        with pytest.raises(
            FrozenError, match=r'scale_1/gain: .* self.parameter\("gain", ..., regularizer=...\) in'
        ):
            scale.gain.regularizer = None
        assert dense.kernel.regularizer == layers.L2(0.5)
        model.fit(x, x[:, :2], verbose=False)
