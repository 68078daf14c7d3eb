"""Every layer with what it is tried on and its formula in NumPy: what the generated tests run over."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from magmadnn import Model, init, layers, ops
from magmadnn.layers import Layer

Array = np.ndarray[Any, np.dtype[Any]]
Formula = Callable[[Any, Mapping[str, Array]], Array]


@dataclass(frozen=True)
class Case:
    """A layer, its inputs, its parameters and its formula.

    Attributes:
        name: of the test.
        make: gives a new layer.
        sample: shape of a sample of x.
        others: shapes of samples of further inputs; formulas then get a list of inputs.
        result: shape of a sample of y.
        formula: y of x and parameters in prediction; in float64.
        training: the same in training; None where it is no other. Not asked where training is random.
        parameters: trained ones, name and shape, in order.
        states: kept ones that are not trained.
        integers: x are integers below this; 0 for real numbers.
        random: whether training draws random numbers.
    """

    name: str
    make: Callable[[], Layer]
    sample: tuple[int, ...]
    result: tuple[int, ...]
    formula: Formula
    training: Formula | None = None
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    integers: int = 0
    random: bool = False
    others: tuple[tuple[int, ...], ...] = ()

    def model(self) -> Model:
        """A model of the layer alone."""
        dtype = "int64" if self.integers else "float32"
        samples = enumerate((self.sample, *self.others))
        inputs = [layers.Input(sample, dtype, name=f"x{k}") for k, sample in samples]
        return Model(inputs=inputs, outputs=[self.make()(inputs)])

    def draw(self, batch: int, seed: int = 0) -> list[Array]:
        """Values of all inputs."""
        rng = np.random.default_rng((seed, batch))
        if self.integers:
            return [rng.integers(0, self.integers, (batch, *self.sample))]
        drawn = [rng.normal(size=(batch, *sample)) for sample in (self.sample, *self.others)]
        return [x + np.sign(x) * 0.05 for x in drawn]  # away from the kinks at 0

    def expected(
        self, inputs: list[Array], parameters: Mapping[str, Array], training: bool
    ) -> Array:
        """What the formula gives."""
        formula = (training and self.training) or self.formula
        return formula(inputs if self.others else inputs[0], parameters)


def each_window(
    x: Array, w: Array, strides: tuple[int, ...], pads: tuple[tuple[int, int], ...]
) -> Array:
    """Each window of padded places times the filters, summed."""
    x = np.pad(x, ((0, 0), *pads, (0, 0)))
    counts = [(n - k) // s + 1 for n, k, s in zip(x.shape[1:-1], w.shape, strides, strict=False)]
    y = np.empty((len(x), *counts, w.shape[-1]))
    for place in np.ndindex(*counts):
        at = [slice(p * s, p * s + k) for p, s, k in zip(place, strides, w.shape, strict=False)]
        y[(slice(None), *place)] = np.tensordot(x[(slice(None), *at)], w, w.ndim - 1)
    return y


def spread(x: Array, w: Array, stride: int) -> Array:
    """Each place of sequences times the filters, summed where they come to lie."""
    y = np.zeros((len(x), (x.shape[1] - 1) * stride + len(w), w.shape[1]))
    for place in range(x.shape[1]):
        y[:, place * stride : place * stride + len(w)] += np.einsum("nc,koc->nko", x[:, place], w)
    return y


def softmax(x: Array) -> Array:
    e = np.exp(x)
    return np.asarray(e / e.sum(-1, keepdims=True))


def elementwise(function: Callable[[float], float]) -> Callable[[Array], Array]:
    return np.vectorize(function, otypes=[np.float64])


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda x: x,
    "relu": lambda x: np.where(x > 0, x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": lambda x: (np.exp(2 * x) - 1) / (np.exp(2 * x) + 1),
    "softmax": softmax,
    "softplus": lambda x: np.log(1 + np.exp(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "gelu": elementwise(lambda a: a * 0.5 * (1 + math.erf(a / math.sqrt(2)))),
    "gaussian_rbf": lambda x: np.exp(-(x**2)),
}


def prelu(x: Array, slope: Array) -> Array:
    return np.where(x > 0, x, slope * x)


def normal(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def batch_norm(x: Array, p: Mapping[str, Array], epsilon: float = 1e-5) -> Array:
    scaled = (x - p["running_mean"]) / np.sqrt(p["running_variance"] + epsilon)
    return scaled * p["gamma"] + p["beta"]


def batch_norm_training(x: Array, p: Mapping[str, Array]) -> Array:
    return normal(x, tuple(range(x.ndim - 1)), 1e-5) * p["gamma"] + p["beta"]


def two_dense(x: Array, p: Mapping[str, Array]) -> Array:
    h = np.tanh(x @ p["dense_1/kernel"] + p["dense_1/bias"])
    return np.asarray(h @ p["dense_2/kernel"] + p["dense_2/bias"])


def dense_shapes(*sizes: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for number, (k, n) in enumerate(itertools.pairwise(sizes), 1):
        shapes |= {f"dense_{number}/kernel": (k, n), f"dense_{number}/bias": (n,)}
    return shapes


def halves(x: Any) -> Any:
    """A named function, so that a Lambda of it can be saved."""
    return x[:, :2] * x[:, 2:]


def gated(x: Any, gate: Any) -> Any:
    return x * ops.sigmoid(gate)


def two_layers(units: int) -> list[Layer]:
    return [layers.Dense(7, "tanh"), layers.Dense(units)]


def convolved(x: Array, kernel: Array, strides: Any, pads: Any) -> Array:
    """By loops over pixels of the result; pads are above, below, left and right."""
    top, bottom, left, right = pads
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    high, wide, _, filters = kernel.shape
    rows, columns = (x.shape[1] - high) // strides[0] + 1, (x.shape[2] - wide) // strides[1] + 1
    y = np.empty((len(x), rows, columns, filters))
    for i, j in itertools.product(range(rows), range(columns)):
        a, b = i * strides[0], j * strides[1]
        y[:, i, j] = np.einsum("bhwc,hwcf->bf", x[:, a : a + high, b : b + wide], kernel)
    return y


def pooled(x: Array, size: Any, strides: Any, pads: Any, function: Any) -> Array:
    """By loops over pixels of the result; what is beyond the edge does not count."""
    top, bottom, left, right = pads
    rows = (x.shape[1] + top + bottom - size[0]) // strides[0] + 1
    columns = (x.shape[2] + left + right - size[1]) // strides[1] + 1
    y = np.empty((len(x), rows, columns, x.shape[3]))
    for i, j in itertools.product(range(rows), range(columns)):
        a, b = i * strides[0] - top, j * strides[1] - left
        window = x[:, max(a, 0) : a + size[0], max(b, 0) : b + size[1]]
        y[:, i, j] = function(window, axis=(1, 2))
    return y


def binned(x: Array, rows: int, columns: int, function: Any) -> Array:
    """What a function makes of each of rows x columns bins."""
    y = np.empty((len(x), rows, columns, x.shape[3]))
    for i, j in np.ndindex(rows, columns):
        top, left = math.floor(i * x.shape[1] / rows), math.floor(j * x.shape[2] / columns)
        bottom = math.ceil((i + 1) * x.shape[1] / rows)
        right = math.ceil((j + 1) * x.shape[2] / columns)
        y[:, i, j] = function(x[:, top:bottom, left:right], axis=(1, 2))
    return y


def between(x: Array, factor: int, axis: int) -> Array:
    """Linear interpolation at the middles of places, constant beyond the first and last."""
    n = x.shape[axis]
    at = (np.arange(n * factor) + 0.5) / factor - 0.5
    return np.apply_along_axis(lambda line: np.interp(at, np.arange(n), line), axis, x)


def responses(x: Array, before: int, behind: int) -> Array:
    """Local response normalisation with k = 1.5, alpha = 0.4, beta = 0.6."""
    y = np.empty_like(x)
    for i in range(x.shape[-1]):
        near = x[..., max(i - before, 0) : i + behind + 1]
        y[..., i] = x[..., i] / (1.5 + 0.4 * np.linalg.norm(near, axis=-1) ** 2) ** 0.6
    return y


def each_depth(x: Array, function: Any) -> Array:
    """What a function of images makes of each depth of volumes."""
    return np.stack([function(x[:, depth]) for depth in range(x.shape[1])], axis=1)


STATISTICS = {"running_mean": (3,), "running_variance": (3,)}
NORMALISED = {"gamma": (3,), "beta": (3,)}

CASES = [
    Case("convolution", lambda: layers.Conv2D(3, (3, 2), strides=(2, 1), padding=(1, 0), activation="tanh"),
         (5, 4, 2), (3, 3, 3),
         lambda x, p: np.tanh(convolved(x, p["kernel"], (2, 1), (1, 1, 0, 0)) + p["bias"]),
         parameters={"kernel": (3, 2, 2, 3), "bias": (3,)}),
    Case("convolution that keeps sizes", lambda: layers.Conv2D(2, 4, padding="same", use_bias=False),
         (5, 3, 1), (5, 3, 2), lambda x, p: convolved(x, p["kernel"], (1, 1), (1, 2, 1, 2)),
         parameters={"kernel": (4, 4, 1, 2)}),
    Case("convolution of single pixels", lambda: layers.Conv2D(2, 1, strides=2), (5, 4, 3), (3, 2, 2),
         lambda x, p: x[:, ::2, ::2] @ p["kernel"][0, 0] + p["bias"],
         parameters={"kernel": (1, 1, 3, 2), "bias": (2,)}),
    Case("max pooling", layers.MaxPooling2D, (5, 6, 3), (2, 3, 3),
         lambda x, p: pooled(x, (2, 2), (2, 2), (0, 0, 0, 0), np.max)),
    Case("max pooling that overlaps", lambda: layers.MaxPooling2D(3, strides=2, padding=1), (5, 4, 2),
         (3, 2, 2), lambda x, p: pooled(x, (3, 3), (2, 2), (1, 1, 1, 1), np.max)),
    Case("max pooling that keeps sizes", lambda: layers.MaxPooling2D(3, strides=2, padding="same"),
         (4, 5, 2), (2, 3, 2), lambda x, p: pooled(x, (3, 3), (2, 2), (0, 1, 1, 1), np.max)),
    Case("average pooling", lambda: layers.AveragePooling2D((3, 2), strides=(2, 1)), (5, 4, 3), (2, 3, 3),
         lambda x, p: pooled(x, (3, 2), (2, 1), (0, 0, 0, 0), np.mean)),
    Case("average pooling that keeps sizes", lambda: layers.AveragePooling2D(3, 1, "same"), (3, 4, 2),
         (3, 4, 2), lambda x, p: pooled(x, (3, 3), (1, 1), (1, 1, 1, 1), np.mean)),
    Case("average pooling of zeros too", lambda: layers.AveragePooling2D(2, 2, 1, count_padding=True),
         (3, 4, 2), (2, 3, 2), lambda x, p: pooled(x, (2, 2), (2, 2), (1, 1, 1, 1), np.sum) / 4),
    Case("max pooling of sequences", lambda: layers.MaxPooling1D(3, 2, 1), (5, 2), (3, 2),
         lambda x, p: pooled(x[:, None], (1, 3), (1, 2), (0, 0, 1, 1), np.max)[:, 0]),
    Case("max pooling of volumes", lambda: layers.MaxPooling3D((1, 2, 2)), (2, 5, 2, 2), (2, 2, 1, 2),
         lambda x, p: each_depth(x, lambda y: pooled(y, (2, 2), (2, 2), (0, 0, 0, 0), np.max))),
    Case("average pooling of sequences", lambda: layers.AveragePooling1D(2, 1, padding=((1, 0),)), (3, 2),
         (3, 2), lambda x, p: pooled(x[:, None], (1, 2), (1, 1), (0, 0, 1, 0), np.mean)[:, 0]),
    Case("average pooling of volumes", lambda: layers.AveragePooling3D((1, 2, 1)), (2, 4, 1, 2), (2, 2, 1, 2),
         lambda x, p: each_depth(x, lambda y: pooled(y, (2, 1), (2, 1), (0, 0, 0, 0), np.mean))),
    Case("adaptive max pooling", lambda: layers.AdaptiveMaxPooling2D((3, 2)), (5, 3, 2), (3, 2, 2),
         lambda x, p: binned(x, 3, 2, np.max)),
    Case("adaptive max pooling of equal bins", lambda: layers.AdaptiveMaxPooling2D(2), (4, 2, 3), (2, 2, 3),
         lambda x, p: binned(x, 2, 2, np.max)),
    Case("adaptive average pooling", lambda: layers.AdaptiveAveragePooling2D((2, 4)), (3, 5, 2), (2, 4, 2),
         lambda x, p: binned(x, 2, 4, np.mean)),
    Case("adaptive average pooling to more", lambda: layers.AdaptiveAveragePooling2D([3, 1]), (2, 3, 2),
         (3, 1, 2), lambda x, p: binned(x, 3, 1, np.mean)),
    Case("adaptive max pooling of sequences", lambda: layers.AdaptiveMaxPooling1D(3), (5, 2), (3, 2),
         lambda x, p: binned(x[:, None], 1, 3, np.max)[:, 0]),
    Case("adaptive average pooling of sequences", lambda: layers.AdaptiveAveragePooling1D(4), (5, 2), (4, 2),
         lambda x, p: binned(x[:, None], 1, 4, np.mean)[:, 0]),
    Case("adaptive max pooling of volumes", lambda: layers.AdaptiveMaxPooling3D((2, 3, 2)), (2, 5, 3, 2),
         (2, 3, 2, 2), lambda x, p: each_depth(x, lambda y: binned(y, 3, 2, np.max))),
    Case("adaptive average pooling of volumes", lambda: layers.AdaptiveAveragePooling3D((1, 2, 3)),
         (1, 3, 4, 2), (1, 2, 3, 2), lambda x, p: each_depth(x, lambda y: binned(y, 2, 3, np.mean))),
    Case("upsampling", lambda: layers.UpSampling2D((3, 2)), (2, 3, 2), (6, 6, 2),
         lambda x, p: np.kron(x, np.ones((1, 3, 2, 1)))),
    Case("upsampling of rows", lambda: layers.UpSampling2D((2, 1)), (2, 3, 2), (4, 3, 2),
         lambda x, p: x[:, [0, 0, 1, 1]]),
    Case("upsampling between places", lambda: layers.UpSampling2D((2, 3), "bilinear"), (3, 2, 2), (6, 6, 2),
         lambda x, p: between(between(x, 2, 1), 3, 2)),
    Case("zero padding", lambda: layers.ZeroPadding2D(((1, 0), (2, 1))), (2, 3, 2), (3, 6, 2),
         lambda x, p: np.pad(x, ((0, 0), (1, 0), (2, 1), (0, 0)))),
    Case("zero padding of columns", lambda: layers.ZeroPadding2D((0, 1)), (2, 1, 2), (2, 3, 2),
         lambda x, p: np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))),
    Case("cropping", lambda: layers.Cropping2D(((1, 0), (0, 2))), (3, 5, 2), (2, 3, 2),
         lambda x, p: x[:, 1:, :3]),
    Case("spatial dropout", lambda: layers.SpatialDropout2D(0.3), (3, 2, 5), (3, 2, 5), lambda x, p: x,
         states={"counter": ()}, random=True),
    Case("spatial dropout of sequences", lambda: layers.SpatialDropout1D(0.3), (3, 5), (3, 5),
         lambda x, p: x, states={"counter": ()}, random=True),
    Case("group norm", lambda: layers.GroupNorm(2), (2, 3, 4), (2, 3, 4),
         lambda x, p: normal(x.reshape(-1, 2, 3, 2, 2), (1, 2, 4), 1e-5).reshape(x.shape) * p["gamma"]
         + p["beta"], parameters={"gamma": (4,), "beta": (4,)}),
    Case("group norm of features", lambda: layers.GroupNorm(1, epsilon=0.1), (3,), (3,),
         lambda x, p: normal(x, (1,), 0.1) * p["gamma"] + p["beta"], parameters=NORMALISED),
    Case("local response normalisation", lambda: layers.LocalResponseNormalization(3, 1.5, 0.4, 0.6),
         (2, 5), (2, 5), lambda x, p: responses(x, 1, 1)),
    Case("local response normalisation, even", lambda: layers.LocalResponseNormalization(4, 1.5, 0.4, 0.6),
         (2, 1, 3), (2, 1, 3), lambda x, p: responses(x, 2, 1)),
    Case("global max pooling of sequences", layers.GlobalMaxPooling1D, (5, 3), (3,),
         lambda x, p: np.sort(x, 1)[:, -1]),
    Case("global max pooling", layers.GlobalMaxPooling2D, (3, 4, 2), (2,),
         lambda x, p: np.sort(x.reshape(-1, 12, 2), 1)[:, -1]),
    Case("global max pooling of volumes", layers.GlobalMaxPooling3D, (2, 3, 1, 2), (2,),
         lambda x, p: np.sort(x.reshape(-1, 6, 2), 1)[:, -1]),
    Case("global average pooling of sequences", layers.GlobalAveragePooling1D, (5, 3), (3,),
         lambda x, p: x.sum(1) / 5),
    Case("global average pooling of volumes", layers.GlobalAveragePooling3D, (2, 3, 1, 2), (2,),
         lambda x, p: x.sum((1, 2, 3)) / 6),
    Case("global average pooling", layers.GlobalAveragePooling2D, (5, 4, 3), (3,),
         lambda x, p: x.mean((1, 2))),
    Case("dense", lambda: layers.Dense(3, "tanh"), (5,), (3,),
         lambda x, p: np.tanh(x @ p["kernel"] + p["bias"]), parameters={"kernel": (5, 3), "bias": (3,)}),
    Case("dense without bias, on steps", lambda: layers.Dense(3, use_bias=False), (2, 5), (2, 3),
         lambda x, p: x @ p["kernel"], parameters={"kernel": (5, 3)}),
    Case("convolution of images",
         lambda: layers.Conv2D(3, 2, strides=(1, 2), padding=((1, 0), (0, 1)), activation="tanh"),
         (2, 3, 2), (2, 2, 3),
         lambda x, p: np.tanh(each_window(x, p["kernel"], (1, 2), ((1, 0), (0, 1))) + p["bias"]),
         parameters={"kernel": (2, 2, 2, 3), "bias": (3,)}),
    Case("convolution of sequences", lambda: layers.Conv1D(2, 2, dilation=2, use_bias=False), (4, 2), (2, 2),
         lambda x, p: each_window(x, np.insert(p["kernel"], 1, 0, 0), (1,), ((0, 0),)),
         parameters={"kernel": (2, 2, 2)}),
    Case("depthwise convolution", lambda: layers.Conv1D(2, 2, groups=2), (3, 2), (2, 2),
         lambda x, p: each_window(x, p["kernel"] * np.eye(2), (1,), ((0, 0),)) + p["bias"],
         parameters={"kernel": (2, 1, 2), "bias": (2,)}),
    Case("convolution of volumes", lambda: layers.Conv3D(2, (1, 2, 1)), (2, 2, 1, 3), (2, 1, 1, 2),
         lambda x, p: each_window(x, p["kernel"], (1, 1, 1), ((0, 0),) * 3) + p["bias"],
         parameters={"kernel": (1, 2, 1, 3, 2), "bias": (2,)}),
    Case("transposed convolution of sequences", lambda: layers.Conv1DTranspose(2, 3, strides=2),
         (2, 3), (5, 2),
         lambda x, p: spread(x, p["kernel"], 2) + p["bias"],
         parameters={"kernel": (3, 2, 3), "bias": (2,)}),
    Case("transposed convolution of images", lambda: layers.Conv2DTranspose(2, (1, 2)), (1, 2, 3), (1, 3, 2),
         lambda x, p: spread(x[:, 0], p["kernel"][0], 1)[:, None] + p["bias"],
         parameters={"kernel": (1, 2, 2, 3), "bias": (2,)}),
    Case("transposed convolution of volumes", lambda: layers.Conv3DTranspose(2, (1, 1, 3), strides=(1, 1, 2)),
         (1, 1, 2, 3), (1, 1, 5, 2),
         lambda x, p: spread(x[:, 0, 0], p["kernel"][0, 0], 2)[:, None, None] + p["bias"],
         parameters={"kernel": (1, 1, 3, 2, 3), "bias": (2,)}),
    Case("dense with its own slopes", lambda: layers.Dense(3, "prelu"), (5,), (3,),
         lambda x, p: prelu(x @ p["kernel"] + p["bias"], p["prelu/slope"]),
         parameters={"kernel": (5, 3), "bias": (3,), "prelu/slope": (3,)}),
    *(Case(f"activation {name}", lambda name=name: layers.Activation(name), (3, 5), (3, 5),
           lambda x, p, f=f: f(x)) for name, f in ACTIVATIONS.items()),
    Case("activation prelu", lambda: layers.Activation("prelu"), (2, 5), (2, 5),
         lambda x, p: prelu(x, p["prelu/slope"]), parameters={"prelu/slope": (5,)}),
    Case("prelu", lambda: layers.PReLU(init.constant(0.1)), (5,), (5,),
         lambda x, p: prelu(x, p["slope"]), parameters={"slope": (5,)}),
    Case("gaussian rbf", lambda: layers.GaussianRBF(0.7), (5,), (5,),
         lambda x, p: np.exp(-((0.7 * x) ** 2))),
    Case("gaussian rbf, trained", lambda: layers.GaussianRBF(0.7, trained=True), (5,), (5,),
         lambda x, p: np.exp(-((p["epsilon"] * x) ** 2)), parameters={"epsilon": ()}),
    Case("dropout", lambda: layers.Dropout(0.3), (3, 5), (3, 5), lambda x, p: x,
         states={"counter": ()}, random=True),
    Case("dropout of nothing", lambda: layers.Dropout(0.0), (5,), (5,), lambda x, p: x,
         states={"counter": ()}),
    Case("gaussian noise", lambda: layers.GaussianNoise(0.3), (3, 5), (3, 5), lambda x, p: x,
         states={"counter": ()}, random=True),
    Case("gaussian noise of nothing", lambda: layers.GaussianNoise(0), (5,), (5,), lambda x, p: x,
         states={"counter": ()}),
    Case("concatenate", layers.Concatenate, (2, 3), (2, 10), lambda xs, p: np.concatenate(xs, -1),
         others=((2, 5), (2, 2))),
    Case("concatenate on an axis in the middle", lambda: layers.Concatenate(axis=1), (2, 3), (7, 3),
         lambda xs, p: np.concatenate(xs, 1), others=((5, 3),)),
    Case("add", layers.Add, (2, 3), (2, 3), lambda xs, p: sum(xs), others=((2, 3),) * 2),
    Case("subtract", layers.Subtract, (5,), (5,), lambda xs, p: xs[0] - xs[1], others=((5,),)),
    Case("multiply", layers.Multiply, (5,), (5,), lambda xs, p: np.prod(xs, 0), others=((5,),) * 2),
    Case("average", layers.Average, (5,), (5,), lambda xs, p: np.mean(xs, 0), others=((5,),) * 2),
    Case("maximum", layers.Maximum, (5,), (5,), lambda xs, p: np.max(xs, 0), others=((5,),) * 2),
    Case("minimum", layers.Minimum, (5,), (5,), lambda xs, p: np.min(xs, 0), others=((5,),) * 2),
    Case("lambda", lambda: layers.Lambda(halves), (4,), (2,), lambda x, p: x[:, :2] * x[:, 2:]),
    Case("lambda of two", lambda: layers.Lambda(gated), (5,), (5,),
         lambda xs, p: xs[0] / (1 + np.exp(-xs[1])), others=((5,),)),
    Case("flatten", layers.Flatten, (2, 3, 5), (30,), lambda x, p: x.reshape(len(x), 30)),
    Case("flatten of numbers", layers.Flatten, (), (1,), lambda x, p: x.reshape(len(x), 1)),
    Case("reshape", lambda: layers.Reshape((3, 5)), (15,), (3, 5), lambda x, p: x.reshape(-1, 3, 5)),
    Case("reshape, one size open", lambda: layers.Reshape([5, -1]), (2, 10), (5, 4),
         lambda x, p: x.reshape(-1, 5, 4)),
    Case("embedding", lambda: layers.Embedding(11, 3), (5,), (5, 3), lambda x, p: p["table"][x],
         parameters={"table": (11, 3)}, integers=11),
    Case("layer norm", layers.LayerNorm, (2, 3), (2, 3),
         lambda x, p: normal(x, (2,), 1e-5) * p["gamma"] + p["beta"], parameters=NORMALISED),
    Case("layer norm over two axes", lambda: layers.LayerNorm((1, -1), epsilon=0.1), (2, 3), (2, 3),
         lambda x, p: normal(x, (1, 2), 0.1) * p["gamma"] + p["beta"],
         parameters={"gamma": (2, 3), "beta": (2, 3)}),
    Case("layer norm over an axis in the middle", lambda: layers.LayerNorm(1), (3, 5), (3, 5),
         lambda x, p: normal(x, (1,), 1e-5) * p["gamma"][:, None] + p["beta"][:, None],
         parameters=NORMALISED),
    Case("batch norm", layers.BatchNorm, (3,), (3,), batch_norm, batch_norm_training,
         parameters=NORMALISED, states=STATISTICS),
    Case("batch norm of images", layers.BatchNorm, (2, 5, 3), (2, 5, 3), batch_norm, batch_norm_training,
         parameters=NORMALISED, states=STATISTICS),
    Case("batch norm without gamma and beta", lambda: layers.BatchNorm(affine=False), (5, 3), (5, 3),
         lambda x, p: batch_norm(x, {"gamma": 1, "beta": 0, **p}),
         lambda x, p: normal(x, (0, 1), 1e-5), states=STATISTICS),
    Case("rms norm", lambda: layers.RMSNorm(epsilon=0.1), (2, 3), (2, 3),
         lambda x, p: x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.1) * p["gamma"],
         parameters={"gamma": (3,)}),
    Case("rms norm without gamma", lambda: layers.RMSNorm(use_scale=False), (5,), (5,),
         lambda x, p: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)),
    Case("sequential", lambda: layers.Sequential(two_layers(3)), (5,), (3,), two_dense,
         parameters=dense_shapes(5, 7, 3)),
    Case("sequential with states", lambda: layers.Sequential([layers.BatchNorm(), layers.Flatten()]),
         (2, 3), (6,),
         lambda x, p: batch_norm(x, {k.split("/")[1]: v for k, v in p.items()}).reshape(len(x), 6),
         lambda x, p: batch_norm_training(x, {k.split("/")[1]: v for k, v in p.items()}).reshape(-1, 6),
         parameters={f"batch_norm_1/{k}": v for k, v in NORMALISED.items()},
         states={f"batch_norm_1/{k}": v for k, v in STATISTICS.items()}),
    Case("checkpointed", lambda: layers.Checkpointed(two_layers(3)), (5,), (3,), two_dense,
         parameters=dense_shapes(5, 7, 3)),
    Case("checkpointed with states", lambda: layers.Checkpointed([layers.BatchNorm(), layers.Flatten()]),
         (2, 3), (6,),
         lambda x, p: batch_norm(x, {k.split("/")[1]: v for k, v in p.items()}).reshape(len(x), 6),
         lambda x, p: batch_norm_training(x, {k.split("/")[1]: v for k, v in p.items()}).reshape(-1, 6),
         parameters={f"batch_norm_1/{k}": v for k, v in NORMALISED.items()},
         states={f"batch_norm_1/{k}": v for k, v in STATISTICS.items()}),
    Case("residual", lambda: layers.Residual(two_layers(5)), (5,), (5,),
         lambda x, p: two_dense(x, p) + x, parameters=dense_shapes(5, 7, 5)),
    Case("residual with a projection", lambda: layers.Residual(two_layers(3), activation="softplus"),
         (2, 5), (2, 3),
         lambda x, p: np.log1p(np.exp(two_dense(x, p) + x @ p["dense_3/kernel"])),
         parameters={**dense_shapes(5, 7, 3), "dense_3/kernel": (5, 3)}),
    Case("residual with a given projection",
         lambda: layers.Residual(layers.Dense(3, name="main"), layers.Dense(3, name="around")), (5,), (3,),
         lambda x, p: x @ (p["main/kernel"] + p["around/kernel"]) + p["main/bias"] + p["around/bias"],
         parameters={"main/kernel": (5, 3), "main/bias": (3,),
                     "around/kernel": (5, 3), "around/bias": (3,)}),
    Case("output", lambda: layers.Output(name="energy"), (5,), (5,), lambda x, p: x),
]  # fmt: skip
