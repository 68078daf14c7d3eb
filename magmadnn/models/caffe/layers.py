"""Caffe's layers as layers of magmadnn: one function for each type, which reads all options of the type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from magmadnn.errors import DataError, MagmaDNNError
from magmadnn.graph.signature import shape_text
from magmadnn.layers import (
    Activation,
    Add,
    BatchNorm,
    Concatenate,
    Conv2D,
    Dense,
    Dropout,
    Flatten,
    Layer,
    LocalResponseNormalization,
    Maximum,
    Multiply,
    PReLU,
)
from magmadnn.models.convolutional.blocks import known_sizes
from magmadnn.tensor import Operation, init

from .description import Described
from .fields import Fields
from .fillers import filler
from .pooling import average_pooling, max_pooling, windows

_ENGINES = ("DEFAULT", "CAFFE", "CUDNN")
_CHANNELS = "only the axis of channels, 1, can be chosen"

Build = Callable[[Described, list[Operation]], list[Layer]]


def applied(layers: list[Layer], inputs: list[Operation]) -> Operation:
    """Layers one after the other, the first of several inputs."""
    x: Operation = layers[0](inputs if len(inputs) > 1 else inputs[0])
    for layer in layers[1:]:
        x = layer(x)
    return x


def made(layer: Described, inputs: list[Operation]) -> Operation:
    """The layer applied to its inputs.

    Raises:
        DataError, UnknownNameError: for an option that is not known, or cannot be had.
        ShapeError: it does not fit its inputs. All name the layer and the line.
    """
    build, least, most = KINDS[layer.type]
    check_ends(layer, least, most)
    layers = build(layer, inputs)
    layer.fields.check_all_read()
    if not layers:
        return inputs[0]
    try:
        return applied(layers, inputs)
    except MagmaDNNError as error:
        raise type(error)(f"{layer.where}: {error}") from error


def check_ends(layer: Described, least: int = 1, most: int | None = 1) -> None:
    """Look how many bottoms and tops a layer has.

    Raises:
        DataError: naming the layer, if these are not from `least` to `most`, and 1.
    """
    given = len(layer.bottoms)
    if given < least or (most is not None and given > most):
        expected = f"{least} or more" if most is None else str(least)
        raise DataError(
            f"{layer.where}: expected bottoms: {expected}, got {given} ({', '.join(layer.bottoms) or 'none'})"
        )
    if len(layer.tops) != 1:
        raise DataError(
            f"{layer.where}: expected tops: 1, got {len(layer.tops)} ({', '.join(layer.tops) or 'none'})"
        )


# --- with weights ---------------------------------------------------------------------------------


def _pair(
    options: Fields, name: str, parts: tuple[str, str], default: int | None, least: int
) -> tuple[int, int] | None:
    """(height, width) of one number, two, or one each by name."""
    both = options.wholes(name, least)
    height, width = options.whole(parts[0], None, least), options.whole(parts[1], None, least)
    if height is not None or width is not None:
        if both:
            raise options.refuse(name, f"{name} and {parts[0]} or {parts[1]} are both given")
        height = default if height is None else height
        width = default if width is None else width
        if height is None or width is None:
            raise options.refuse(parts[height is None], f"needs both of {parts[0]} and {parts[1]}")
        return height, width
    if len(both) > 2:
        raise options.refuse(
            name, f"{name} must be one number or two, (height, width), got {len(both)}"
        )
    if both:
        return both[0], both[-1]
    return None if default is None else (default, default)


def _images(layer: Described, x: Operation) -> tuple[int, int, int]:
    """Height, width and channels.

    Raises:
        DataError: x has no places.
    """
    if x.ndim != 4:
        raise DataError(
            f"{layer.where}: expected images, (height, width, channels), got {shape_text(x.shape)}"
        )
    height, width, channels = known_sizes(x)
    return height, width, channels


def _convolution(layer: Described, inputs: list[Operation]) -> list[Layer]:
    options = layer.options("convolution_param")
    options.word("engine", _ENGINES)
    options.ignore("force_nd_im2col")
    options.fixed("axis", options.number("axis", 1), 1, why=_CHANNELS)
    bias = options.flag("bias_term", True)
    stride = _pair(options, "stride", ("stride_h", "stride_w"), 1, 1)
    pad = _pair(options, "pad", ("pad_h", "pad_w"), 0, 0)
    dilation = options.wholes("dilation", 1)
    if len(dilation) > 2:
        raise options.refuse("dilation", "dilation must be one number or two, (height, width)")
    group = options.whole("group", 1, 1)
    size = _pair(options, "kernel_size", ("kernel_h", "kernel_w"), None, 1)
    options.ignore("weight_filler", "bias_filler")
    filters = options.needed("num_output")
    if size is None:
        raise options.missing("kernel_size, a whole number of at least 1, or kernel_h and kernel_w")
    channels = _images(layer, inputs[0])[2]
    fans = size[0] * size[1] * channels // group, size[0] * size[1] * filters
    return [
        Conv2D(
            filters,
            size,
            strides=stride or 1,
            padding=pad or 0,
            dilation=(dilation[0], dilation[-1]) if dilation else 1,
            groups=group,
            use_bias=bias,
            kernel_init=filler(options, "weight_filler", init.glorot_uniform(), fans),
            bias_init=filler(options, "bias_filler", init.zeros()),
            name=layer.name or None,
            trainable=layer.parameters_trained(1 + bias),
        )
    ]


def _inner_product(layer: Described, inputs: list[Operation]) -> list[Layer]:
    options = layer.options("inner_product_param")
    options.fixed("axis", options.number("axis", 1), 1, why="all axes of a sample are summed over")
    transposed = options.flag("transpose", False)
    options.fixed("transpose", transposed, False, why="it is about how weights are stored only")
    bias = options.flag("bias_term", True)
    options.ignore("weight_filler", "bias_filler")
    units = options.needed("num_output")
    fan_in = prod(known_sizes(inputs[0]))
    dense = Dense(
        units,
        use_bias=bias,
        kernel_init=filler(options, "weight_filler", init.glorot_uniform(), (fan_in, units)),
        bias_init=filler(options, "bias_filler", init.zeros()),
        name=layer.name or None,
        trainable=layer.parameters_trained(1 + bias),
    )
    return [Flatten(), dense] if inputs[0].ndim > 2 else [dense]


def _prelu(layer: Described, inputs: list[Operation]) -> list[Layer]:
    options = layer.options("prelu_param")
    shared = options.flag("channel_shared", False)
    options.fixed("channel_shared", shared, False, why="there is a slope for each channel")
    slope = filler(options, "filler", init.constant(0.25))
    return [PReLU(slope, name=layer.name or None, trainable=layer.parameters_trained(1))]


def normalized(layer: Described, scale: Described, x: Operation) -> Operation:
    """A BatchNorm layer and the Scale layer behind it, as one.

    Args:
        layer: BatchNorm, from which the name is.
        scale: behind it, which says whether it is trained.
        x: what goes in.

    Raises:
        DataError, UnknownNameError: for an option that is not known, or cannot be had.
    """
    options, scaling = layer.options("batch_norm_param"), scale.options("scale_param")
    fraction = options.number("moving_average_fraction", 0.999)
    epsilon = options.number("eps", 1e-5)
    options.ignore("use_global_stats")  # looked at by those who know whether the network is trained
    scaling.fixed("axis", scaling.number("axis", 1), 1, why=_CHANNELS)
    axes = scaling.number("num_axes", 1)
    scaling.fixed("num_axes", axes, 1, why="there is a factor for each channel")
    has_bias = scaling.flag("bias_term", False)
    scaling.fixed(
        "bias_term", has_bias, True, why="batch normalisation has both a factor and a bias"
    )
    gamma = filler(scaling, "filler", init.ones())
    beta = filler(scaling, "bias_filler", init.zeros())
    for one in (layer, scale):
        one.fields.check_all_read()
    try:
        return BatchNorm(
            fraction,
            epsilon,
            gamma,
            beta,
            name=layer.name or None,
            trainable=scale.parameters_trained(2),
        )(x)
    except MagmaDNNError as error:
        raise type(error)(f"{layer.where}: {error}") from error


# --- without weights ------------------------------------------------------------------------------


def _pooling(layer: Described, inputs: list[Operation]) -> list[Layer]:
    options = layer.options("pooling_param")
    options.word("engine", _ENGINES)
    method = options.word("pool", ("MAX", "AVE", "STOCHASTIC"), "MAX")
    options.fixed("pool", method, "MAX", "AVE", why="windows have a largest value or a mean")
    up = options.word("round_mode", ("CEIL", "FLOOR"), "CEIL") == "CEIL"
    everywhere = options.flag("global_pooling", False)
    stride = _pair(options, "stride", ("stride_h", "stride_w"), 1, 1) or (1, 1)
    pad = _pair(options, "pad", ("pad_h", "pad_w"), 0, 0) or (0, 0)
    size = _pair(options, "kernel_size", ("kernel_h", "kernel_w"), None, 1)
    places = _images(layer, inputs[0])[:2]
    if everywhere:
        if size is not None or stride != (1, 1) or pad != (0, 0):
            raise options.refuse(
                "global_pooling", "global_pooling has one window of all places: leave size, stride "
                "and pad out",
            )  # fmt: skip
        size = places
    elif size is None:
        raise options.missing("kernel_size, a whole number of at least 1, or global_pooling: true")
    axes = tuple(
        windows(layer, n, k, s, p, up) for n, k, s, p in zip(places, size, stride, pad, strict=True)
    )
    pooling = max_pooling if method == "MAX" else average_pooling
    return pooling(layer.name or None, size, stride, (axes[0], axes[1]))


def _activation(name: str, options_name: str = "") -> Build:
    """The function for a type that has no options but the engine."""

    def build(layer: Described, inputs: list[Operation]) -> list[Layer]:
        if options_name:
            layer.options(options_name).word("engine", _ENGINES)
        return [Activation(name, name=layer.name or None)]

    return build


def _relu(layer: Described, inputs: list[Operation]) -> list[Layer]:
    options = layer.options("relu_param")
    options.word("engine", _ENGINES)
    slope = options.number("negative_slope", 0.0)
    name = layer.name or None
    if slope in (0.0, 0.01):  # what the activations have
        return [Activation("leaky_relu" if slope else "relu", name=name)]
    return [PReLU(init.constant(slope), name=name, trainable=False)]


def _elu(layer: Described, inputs: list[Operation]) -> list[Layer]:
    options = layer.options("elu_param")
    options.fixed("alpha", options.number("alpha", 1.0), 1.0, why="only alpha: 1 is there")
    return [Activation("elu", name=layer.name or None)]


def _softmax(layer: Described, inputs: list[Operation]) -> list[Layer]:
    softmax_options(layer, inputs[0])
    return [Activation("softmax", name=layer.name or None)]


def softmax_options(layer: Described, x: Operation) -> None:
    """Look at the options of a softmax, which is taken over channels.

    Raises:
        DataError: it is over another axis.
    """
    options = layer.options("softmax_param")
    options.word("engine", _ENGINES)
    _over_channels(options, "axis", x)


def _over_channels(options: Fields, name: str, x: Operation) -> None:
    """Look whether an axis, in Caffe's order, is that of channels."""
    last = (1.0, -1.0) if x.ndim == 2 else (1.0, 1.0 - x.ndim)
    options.fixed(name, options.number(name, 1.0), *last, why=_CHANNELS)


def _dropout(layer: Described, inputs: list[Operation]) -> list[Layer]:
    options = layer.options("dropout_param")
    scaled = options.flag("scale_train", True)
    options.fixed("scale_train", scaled, True, why="what is kept is scaled in training")
    ratio = options.number("dropout_ratio", 0.5)
    if not 0 <= ratio < 1:
        raise options.refuse(
            "dropout_ratio", f"dropout_ratio must be at least 0 and below 1, got {ratio:g}"
        )
    return [Dropout(ratio, name=layer.name or None)]


def _lrn(layer: Described, inputs: list[Operation]) -> list[Layer]:
    options = layer.options("lrn_param")
    options.word("engine", _ENGINES)
    region = options.word("norm_region", ("ACROSS_CHANNELS", "WITHIN_CHANNEL"), "ACROSS_CHANNELS")
    options.fixed("norm_region", region, "ACROSS_CHANNELS", why="sums go over channels")
    size = options.whole("local_size", 5, 1)
    if size % 2 == 0:
        raise options.refuse("local_size", f"local_size must be odd, as in Caffe, got {size}")
    alpha, beta, k = (
        options.number("alpha", 1.0), options.number("beta", 0.75), options.number("k", 1.0),
    )  # fmt: skip
    # Caffe takes the mean of the squares, where the layer takes their sum.
    return [LocalResponseNormalization(size, k, alpha / size, beta, name=layer.name or None)]


def _concat(layer: Described, inputs: list[Operation]) -> list[Layer]:
    options = layer.options("concat_param")
    for name in ("axis", "concat_dim"):
        _over_channels(options, name, inputs[0])
    return [Concatenate(name=layer.name or None)] if len(inputs) > 1 else []


def _eltwise(layer: Described, inputs: list[Operation]) -> list[Layer]:
    options = layer.options("eltwise_param")
    options.ignore("stable_prod_grad")
    for coefficient in options.numbers("coeff"):
        options.fixed("coeff", coefficient, 1.0, why="inputs are added as they are")
    operation = options.word("operation", ("PROD", "SUM", "MAX"), "SUM")
    kind: Callable[..., Layer] = {"PROD": Multiply, "SUM": Add, "MAX": Maximum}[operation]
    return [kind(name=layer.name or None)]


def _flatten(layer: Described, inputs: list[Operation]) -> list[Layer]:
    options = layer.options("flatten_param")
    options.fixed("axis", options.number("axis", 1), 1, why="all axes of a sample become one")
    end = options.number("end_axis", -1)
    options.fixed("end_axis", end, -1, why="all axes of a sample become one")
    return [Flatten(name=layer.name or None)]


# What makes a layer, and how many bottoms it has: from, to (None: any number).
KINDS: Mapping[str, tuple[Build, int, int | None]] = {
    "BNLL": (_activation("softplus"), 1, 1),
    "Concat": (_concat, 1, None),
    "Convolution": (_convolution, 1, 1),
    "Dropout": (_dropout, 1, 1),
    "ELU": (_elu, 1, 1),
    "Eltwise": (_eltwise, 2, None),
    "Flatten": (_flatten, 1, 1),
    "InnerProduct": (_inner_product, 1, 1),
    "LRN": (_lrn, 1, 1),
    "PReLU": (_prelu, 1, 1),
    "Pooling": (_pooling, 1, 1),
    "ReLU": (_relu, 1, 1),
    "Sigmoid": (_activation("sigmoid", "sigmoid_param"), 1, 1),
    "Softmax": (_softmax, 1, 1),
    "TanH": (_activation("tanh", "tanh_param"), 1, 1),
}
