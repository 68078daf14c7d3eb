"""Networks from Caffe's descriptions: sizes, values, phases and training."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError
from magmadnn.models import from_caffe
from magmadnn.tensor import init
from tests.models.caffe import descriptions as of
from tests.models.formula_weights import images


@pytest.fixture
def network(tmp_path):
    """The model of a text."""

    def make(text, input_shape=None, **options) -> md.Model:
        file = tmp_path / "network.prototxt"
        file.write_text(text, encoding="utf-8")
        return from_caffe(file, input_shape, **options)

    return make


def count(model) -> int:
    """Numbers in parameters, frozen ones too."""
    return sum(math.prod(p.shape) for p in model.named().values() if p.trained)


def shapes(model) -> dict[str, tuple]:
    return {name: tuple(p.shape) for name, p in model.named().items()}


# --- sizes ---


def test_lenet_of_the_training(network):
    model = network(of.LENET, (28, 28, 1))
    assert count(model) == 431_080
    assert [layer.name for layer in model.layers if layer.name] == [
        "conv1", "pool1", "conv2", "pool2", "ip1", "relu1", "ip2",
    ]  # fmt: skip
    assert (model.inputs[0].shape[1:], model.outputs[0].shape[1:]) == ((28, 28, 1), (10,))
    assert model.loss == "cross_entropy" and model.loss_weights is None
    assert model.layer("conv1").kernel_init == init.lecun_uniform()
    assert network(of.LENET, (28, 28, 1), loss="mse").loss == "mse"


def test_caffenet_with_its_groups(network):
    model = network(of.CAFFENET)
    assert count(model) == 60_965_224
    assert model.inputs[0].shape[1:] == (227, 227, 3)
    assert shapes(model)["conv2/kernel"] == (5, 5, 48, 256)
    assert shapes(model)["fc6/kernel"] == (6 * 6 * 256, 4096)
    norm = model.layer("norm1")  # alpha of Caffe is divided by the size
    assert (norm.size, norm.k, norm.alpha, norm.beta) == (5, 1.0, 0.0001 / 5, 0.75)


def test_an_inception_block(network, tmp_path):
    filters = (64, 96, 128, 16, 32, 32)
    text = of.data(192, 28, 28) + of.inception("inception_3a", "data", filters)
    model = network(text)
    one, before3, three, before5, five, behind = filters
    weights = 192 * (one + before3 + before5 + behind) + 9 * before3 * three + 25 * before5 * five
    assert count(model) == weights + sum(filters) == 163_696
    assert model.outputs[0].shape[1:] == (28, 28, 256)
    assert "inception_3a/3x3_reduce/kernel" in shapes(model)
    model.save(tmp_path / "saved")  # names with a slash are kept
    again = md.load(tmp_path / "saved")
    assert shapes(again) == shapes(model)


def caffes_windows(n: int, k: int, s: int, p: int) -> int:
    """What Caffe's pooling layer computes."""
    found = math.ceil((n + 2 * p - k) / s) + 1
    return found - 1 if p and (found - 1) * s >= n + p else found


GEOMETRIES = [
    (n, k, s, p)
    for n, k, s, p in itertools.product((4, 5, 7, 10), (1, 2, 3, 5), (1, 2, 3), (0, 1, 2))
    if p < k and caffes_windows(n, k, s, p) >= 1 and (caffes_windows(n, k, s, p) - 1) * s - p < n
]


def pooled(x, kind: str, k, s, p):
    """Caffe's pooling in loops, [n, h, w, c]."""
    n, h, w, c = x.shape
    rows, columns = caffes_windows(h, k[0], s[0], p[0]), caffes_windows(w, k[1], s[1], p[1])
    y = np.zeros((n, rows, columns, c))
    for r, q in np.ndindex(rows, columns):
        top, left = r * s[0] - p[0], q * s[1] - p[1]
        bottom, right = min(top + k[0], h + p[0]), min(left + k[1], w + p[1])
        size = (bottom - top) * (right - left)
        seen = x[:, max(top, 0) : min(bottom, h), max(left, 0) : min(right, w)]
        y[:, r, q] = seen.max((1, 2)) if kind == "MAX" else seen.sum((1, 2)) / size
    return y


@pytest.mark.parametrize("kind", ["MAX", "AVE"])
def test_pooling_has_caffes_windows_and_divisors(network, kind):
    assert len(GEOMETRIES) > 60
    text, expected = of.data(2, 10, 9), []
    x = (
        images(2, 10, 2)[:, :, :9].astype(np.float64) - 2
    )  # below 0, where a zero of the padding would win
    for number, (n, k, s, p) in enumerate(GEOMETRIES):
        if n != 10 or 9 + 2 * p < k or (caffes_windows(9, k, s, p) - 1) * s - p >= 9:
            continue
        text += of.pool(f"p{number}", "data", kind, k, s, f"pad: {p}")
        expected.append(pooled(x, kind, (k, k), (s, s), (p, p)))
    text += of.layer(
        "uneven", "Pooling", "data",
        f"pooling_param {{ pool: {kind} kernel_h: 3 kernel_w: 4 stride_h: 2 stride_w: 3 pad_h: 0 pad_w: 1 }}",
    )  # fmt: skip
    expected.append(pooled(x, kind, (3, 4), (2, 3), (0, 1)))
    found = network(text, precision="float64").predict(x)
    assert len(found) == len(expected) > 15
    for y, right in zip(found, expected, strict=True):
        assert y.shape == right.shape
        np.testing.assert_allclose(y, right, rtol=25 * 2.3e-16)  # sums of up to 25 values


@pytest.mark.parametrize(("n", "k", "s", "p"), GEOMETRIES)
def test_numbers_of_windows_are_caffes(network, n, k, s, p):
    for kind in ("MAX", "AVE"):
        made = network(of.data(1, n, n) + of.pool("p", "data", kind, k, s, f"pad: {p}"))
        windows = caffes_windows(n, k, s, p)
        one = (1,) if windows == 1 else (windows, windows, 1)
        assert made.outputs[0].shape[1:] == one


def test_rounding_down_and_pooling_of_all_places(network):
    text = of.data(3, 6, 6) + of.pool("p", "data", "AVE", 3, 2, "round_mode: FLOOR")
    assert network(text).outputs[0].shape[1:] == (2, 2, 3)
    assert network(text.replace("FLOOR", "CEIL")).outputs[0].shape[1:] == (3, 3, 3)
    x = images(2, 6, 3)
    everywhere = of.layer(
        "g", "Pooling", "data", "pooling_param { pool: AVE global_pooling: true }"
    )
    model = network(of.data(3, 6, 6) + everywhere + of.conv("c", "g", 4, 1))
    assert model.outputs[0].shape[1:] == (4,)  # 1 x 1 places of an output are left out
    y = x.astype(np.float64).mean((1, 2)) @ model.layer("c").kernel.value[0, 0]
    np.testing.assert_allclose(model.predict(x), y, rtol=1e-5, atol=1e-6)


# --- values ---


def test_values_of_a_small_network(network):
    """Convolution, pooling that rounds up, local response normalisation, inner product: float64 loops."""
    text = (
        of.data(4, 8, 7)
        + of.layer("c", "Convolution", "data",
                   "convolution_param { num_output: 6 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 "
                   "pad_h: 1 pad_w: 0 group: 2 bias_filler { type: 'uniform' min: 0.2 max: 0.6 } }")
        + of.in_place("r", "ReLU", "c", "relu_param { negative_slope: 0.2 }")
        + of.pool("p", "c", "MAX", 3, 2)
        + of.layer("n", "LRN", "p", "lrn_param { local_size: 3 alpha: 0.7 beta: 0.6 k: 1.5 }")
        + of.dense("ip", "n", 5, "bias_filler { type: 'gaussian' std: 0.3 }")
        + of.layer("prob", "Softmax", "ip")
    )  # fmt: skip
    model = network(text, precision="float64", seed=3)
    x = images(3, 8, 4)[:, :, :7].astype(np.float64)
    kernel, bias = (np.asarray(p.value) for p in (model.layer("c").kernel, model.layer("c").bias))
    padded = np.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    c = np.zeros((3, 4, 6, 6))
    for r, q, o in np.ndindex(4, 6, 6):
        group = slice(0, 2) if o < 3 else slice(2, 4)
        seen = padded[:, 2 * r : 2 * r + 3, q : q + 2, group]
        c[:, r, q, o] = (seen * kernel[..., o]).sum((1, 2, 3)) + bias[o]
    assert (c < 0).any() and (c > 0).any()
    p = pooled(np.where(c > 0, c, 0.2 * c), "MAX", (3, 3), (2, 2), (0, 0))
    assert p.shape == (3, 2, 3, 6)  # (4 - 3) / 2 and (6 - 3) / 2 are rounded up
    n = np.zeros_like(p)
    for i in range(6):
        near = (p[..., max(i - 1, 0) : i + 2] ** 2).sum(-1)
        n[..., i] = p[..., i] / (1.5 + 0.7 / 3 * near) ** 0.6
    ip = n.reshape(3, -1) @ model.layer("ip").kernel.value + model.layer("ip").bias.value
    prob = np.exp(ip) / np.exp(ip).sum(-1, keepdims=True)
    np.testing.assert_allclose(model.predict(x), prob, rtol=1e-13)
    # A loss of classes takes what goes into the softmax.
    logits = network(text, precision="float64", seed=3, loss="cross_entropy")
    np.testing.assert_allclose(logits.predict(x), ip, rtol=1e-12)
    assert "prob" not in [layer.name for layer in logits.layers]
    assert "prob" in [layer.name for layer in network(text, loss="mse").layers]


def test_activations_and_merging(network):
    options = {
        "BNLL": ("", lambda v: np.log1p(np.exp(v))),
        "ELU": ("elu_param { alpha: 1 }", lambda v: np.where(v > 0, v, np.expm1(v))),
        "PReLU": ("prelu_param { filler { value: 0.3 } }", lambda v: np.where(v > 0, v, 0.3 * v)),
        "ReLU": ("relu_param { engine: CAFFE }", lambda v: np.maximum(v, 0)),
        "Sigmoid": ("", lambda v: 1 / (1 + np.exp(-v))),
        "TanH": ("tanh_param { engine: CUDNN }", np.tanh),
    }
    text = of.data(2, 3, 3) + "".join(
        of.layer(kind.lower(), kind, "data", more) for kind, (more, _) in options.items()
    )
    tops = [kind.lower() for kind in options]
    for name in ("SUM", "PROD", "MAX"):
        text += of.layer(
            f"e{name}", "Eltwise", " ".join(tops), f"eltwise_param {{ operation: {name} }}"
        )
    text += of.layer("flat", "Flatten", "data") + of.layer("one", "Concat", "flat")
    text += of.layer("both", "Concat", "one one", "concat_param { axis: 1 }")
    x = images(2, 3, 2).astype(np.float64) + 0.1
    found = network(text, precision="float64").predict(x)
    each = [function(x) for _, function in options.values()]
    right = [sum(each), math.prod(each), np.max(each, axis=0), np.tile(x.reshape(2, -1), 2)]
    for y, expected in zip(found, right, strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-13)


def test_batch_norm_and_scale_are_one_layer(network):
    scale = "scale_param { bias_term: true filler { value: 3 } bias_filler { value: -2 } }"
    text = (
        of.data(2, 4, 4)
        + of.conv("c", "data", 5, 1, "bias_term: false")
        + of.in_place("bn", "BatchNorm", "c", "param { lr_mult: 0 } " * 3
                      + "batch_norm_param { moving_average_fraction: 0.7 eps: 0.01 }")
        + of.in_place("sc", "Scale", "c", scale)
        + of.layer("r", "ReLU", "c")
    )  # fmt: skip
    model = network(text, precision="float64")
    norm = model.layer("bn")
    assert (norm.momentum, norm.epsilon, norm.trainable) == (0.7, 0.01, True)
    assert [layer.name for layer in model.layers] == ["c", "bn", "r"]
    x = images(2, 4, 2).astype(np.float64)
    c = x @ model.layer("c").kernel.value[0, 0]  # statistics are 0 and 1 before the first step
    np.testing.assert_allclose(
        model.predict(x), np.maximum(3 * c / np.sqrt(1.01) - 2, 0), rtol=1e-12, atol=1e-14
    )
    frozen = network(text.replace("scale_param", "param { lr_mult: 0 } " * 2 + "scale_param"))
    assert not frozen.layer("bn").trainable
    # A file for predictions says so; in training there is no such thing.
    network(text.replace("eps: 0.01", "use_global_stats: true"))


# --- what the file says ---


@pytest.mark.parametrize(
    ("filler", "expected"),
    [
        ("", init.glorot_uniform()),
        ("weight_filler { }", init.constant(0.0)),
        ('weight_filler { type: "constant" value: 0.5 }', init.constant(0.5)),
        ('weight_filler { type: "gaussian" mean: 0.1 std: 0.01 }', init.normal(0.1, 0.01)),
        ('weight_filler { type: "uniform" min: -0.2 max: 0.3 }', init.uniform(-0.2, 0.3)),
        ('weight_filler { type: "xavier" }', init.lecun_uniform()),
        ('weight_filler { type: "msra" }', init.he_normal()),
        # 3 x 3 places of 6 channels in 2 groups, 8 filters: fans 27 and 72
        (
            'weight_filler { type: "xavier" variance_norm: FAN_OUT }',
            init.uniform(-math.sqrt(3 / 72), math.sqrt(3 / 72)),
        ),
        (
            'weight_filler { type: "msra" variance_norm: AVERAGE }',
            init.normal(0.0, math.sqrt(2 / 49.5)),
        ),
    ],
)
def test_fillers_are_initialisers(network, filler, expected):
    model = network(of.data(6, 5, 5) + of.conv("c", "data", 8, 3, f"group: 2 {filler}"))
    assert model.layer("c").kernel_init == expected
    assert init.fans((3, 3, 3, 8)) == (27, 72)


def test_learning_rates_of_0_freeze(network):
    text = of.data(2, 4, 4) + of.conv("c", "data", 3, 3) + of.dense("ip", "c", 2)
    for rates, trained in (("param { lr_mult: 0 } " * 2, False), (of.RATES, True)):
        model = network(text.replace("  convolution_param", f"  {rates} convolution_param"))
        assert model.layer("c").trainable == trained
        assert model.layer("ip").trainable
    no_bias = text.replace("kernel_size: 3", "kernel_size: 3 bias_term: false")
    frozen = no_bias.replace("  convolution_param", "  param { lr_mult: 0 } convolution_param")
    assert not network(frozen).layer("c").trainable


def test_the_network_of_the_training_is_taken(network):
    rules = {
        "a": "include { phase: TRAIN }",
        "b": "include { phase: TEST }",
        "c": "exclude { phase: TRAIN }",
        "d": "exclude { phase: TEST }",
        "e": "include { phase: TEST } include { phase: TRAIN }",
        "f": 'include { stage: "fancy" }',
        "g": 'include { not_stage: "fancy" }',
        "h": "include { min_level: 1 }",
        "i": "exclude { max_level: -1 }",
    }
    text = of.data(1, 2, 2)
    text += "".join(of.layer(name, "ReLU", "data", rule) for name, rule in rules.items())
    assert [layer.name for layer in network(text).layers] == list("adegi")


def test_the_older_format(network):
    model = network(of.OLD, (6, 6, 2))
    assert count(model) == 9 * 2 * 4 + 4 + 64 * 3 + 3
    assert model.layer("c").trainable and not model.layer("ip").trainable
    assert model.loss == "cross_entropy"


def test_several_losses_with_weights(network):
    text = 'input: "data" input_shape { dim: 1 dim: 3 dim: 4 dim: 4 }\n'
    text += 'input: "label" input_shape { dim: 1 dim: 1 }\n'
    text += of.dense("side", "data", 4) + of.dense("main", "data", 4)
    for name, weight in (("side", 0.3), ("main", 1)):
        text += of.layer(f"l{name}", "SoftmaxWithLoss", f"{name} label", f"loss_weight: {weight}")
    text += of.layer("prob", "Softmax", "main")  # leads to no loss
    model = network(text, optimizer="sgd")
    assert (model.loss, model.loss_weights) == ("cross_entropy", [0.3, 1.0])
    assert [layer.name for layer in model.layers if layer.name] == ["side", "main"]
    assert len(model.inputs) == 1
    x, y = images(6, 4, 3), np.arange(6) % 4
    model.fit(x, [y, y], verbose=False)
    assert network(text.replace("0.3", "0")).loss_weights is None


def test_several_inputs(network):
    text = """
    layer { name: "d" type: "Input" top: "a" top: "b" input_param {
      shape { dim: 1 dim: 2 dim: 3 dim: 5 } shape { dim: 1 dim: 7 } } }
    """
    text += of.dense("x", "b", 4) + of.dense("y", "a", 4) + of.layer("z", "Eltwise", "x y")
    model = network(text)
    assert [x.shape[1:] for x in model.inputs] == [(3, 5, 2), (7,)]
    with pytest.raises(ArgumentError, match="input_shape is for networks with one input"):
        network(text, (7,))
    memory = 'layer { name: "m" type: "MemoryData" top: "data" top: "label" memory_data_param '
    memory += "{ batch_size: 3 channels: 2 height: 4 width: 5 } }"
    assert network(memory + of.dense("i", "data", 1)).inputs[0].shape[1:] == (4, 5, 2)
    assert network(of.data(3, 9, 9) + of.dense("i", "data", 1), (4, 4, 3)).inputs[0].shape[1:] == (
        4, 4, 3,
    )  # fmt: skip


def test_outputs_are_what_no_layer_takes(network):
    """A layer that replaces its bottom makes an output of it; data that is taken twice is one input."""
    text = of.data(2, 3, 3) + of.layer("twice", "Eltwise", "data data")
    text += of.in_place("r", "ReLU", "twice") + of.layer("t", "TanH", "data")
    model = network(text, precision="float64")
    x = images(2, 3, 2).astype(np.float64)
    doubled, t = model.predict(x)
    assert len(model.inputs) == 1
    np.testing.assert_array_equal(doubled, np.maximum(2 * x, 0))
    np.testing.assert_allclose(t, np.tanh(x), rtol=1e-14)


def test_data_that_leads_to_no_loss_is_no_input(network):
    text = (
        'input: "side" input_shape { dim: 1 dim: 5 } input: "data" input_shape { dim: 1 dim: 6 }\n'
    )
    text += 'input: "label" input_shape { dim: 1 dim: 1 }\n'
    text += of.dense("s", "side", 2) + of.dense("ip", "data", 2)
    text += of.layer("l", "SoftmaxWithLoss", "ip label")
    model = network(text)
    assert [tuple(x.shape[1:]) for x in model.inputs] == [(6,)]
    assert [layer.name for layer in model.layers] == ["ip"]


# --- training ---


def digits(rows: int):
    """Images with a bright bar whose place is the class."""
    rng = np.random.default_rng(5)
    y = rng.integers(0, 10, rows)
    x = 0.2 * rng.random((rows, 28, 28, 1), np.float32)
    for image, k in zip(x, y, strict=True):
        image[2 * k + 3 : 2 * k + 6, 5:23] += 0.8
    return x, y


def test_lenet_learns(network):
    x, y = digits(160)
    model = network(of.LENET, (28, 28, 1), optimizer=md.optim.SGD(0.05, momentum=0.9), seed=1)
    before = model.evaluate(x, y)["loss"]
    model.fit(x, y, batch_size=32, epochs=4, verbose=False)
    assert model.evaluate(x, y)["loss"] < before / 4
