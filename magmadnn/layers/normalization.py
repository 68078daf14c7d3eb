"""Normalisation: values with mean 0 and variance 1, then scaled and shifted by trained gamma and beta.

Half-precision values are normalised in float32, in which gamma, beta and statistics are kept.
"""

from __future__ import annotations

import functools
from typing import Any

from magmadnn import ops
from magmadnn.errors import ArgumentError, DTypeError, ShapeError
from magmadnn.graph.dim import product
from magmadnn.graph.node import size
from magmadnn.graph.signature import OpWords, axis_number, shape_text
from magmadnn.memory.dtypes import as_dtype, is_floating
from magmadnn.tensor import Operation, by_phase, init, with_update
from magmadnn.tensor.init import Initializer

from .checks import above_zero, fraction, positive, zero_or_above
from .layer import Layer, Regularizer


def _wide_dtype(layer: Layer, x: Operation) -> Any:
    """What is computed in: the dtype of x, float32 at least."""
    if not is_floating(x.dtype):
        raise DTypeError(f"{layer}: x must be floating-point, got {x.dtype.name}; cast it")
    return as_dtype("float32") if x.dtype.itemsize < 4 else x.dtype


class LayerNorm(Layer):
    """`gamma * (x - mean) / sqrt(variance + epsilon) + beta`, over axes of each sample; the shape stays.

    Ba, Kiros, Hinton, "Layer normalization", arXiv:1607.06450, eq. (4); epsilon keeps a constant sample
    from dividing by 0. gamma and beta have the sizes of the axes. Training and prediction are the same.

    Attributes:
        axis: the axes that mean and variance are taken over; the last one.
        epsilon: above 0, in units of the variance.
        gamma_init: initial scale; ones.
        beta_init: initial shift; zeros.
        gamma_regularizer: adds to the loss.
        beta_regularizer: likewise.
    """

    axis: int | tuple[int, ...] = -1
    epsilon: float = 1e-5
    gamma_init: Initializer | str = init.ones()
    beta_init: Initializer | str = init.zeros()
    gamma_regularizer: Regularizer | None = None
    beta_regularizer: Regularizer | None = None

    def __post_init__(self) -> None:
        above_zero(self, "epsilon", self.epsilon)

    def build(self, x: Operation) -> None:
        """Scale and shift."""
        self.wide = _wide_dtype(self, x)
        shape = tuple(x.shape[axis] for axis in self._axes(x))
        self.gamma = self.parameter(
            "gamma", shape, self.gamma_init, self.wide, regularizer=self.gamma_regularizer
        )
        self.beta = self.parameter(
            "beta", shape, self.beta_init, self.wide, regularizer=self.beta_regularizer
        )

    def _axes(self, x: Operation) -> tuple[int, ...]:
        given = self.axis if isinstance(self.axis, (tuple, list)) else (self.axis,)
        words = OpWords(str(self), ("x",), "")
        axes = sorted({axis_number(words, axis, x.ndim) for axis in given})
        if not axes or len(axes) < len(given) or axes[0] == 0:
            raise ArgumentError(
                f"{self}: axis must name axes of a sample, each once, got {self.axis!r} "
                f"for x {shape_text(x.shape)}; axis 0 is the batch"
            )
        return tuple(axes)

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        axes = self._axes(x)
        aligned = tuple(n if axis in axes else 1 for axis, n in enumerate(x.shape))
        gamma, beta = (ops.reshape(p, aligned) for p in (self.gamma, self.beta))
        wide = ops.cast(x, self.wide) if x.dtype != self.wide else x
        centred = wide - ops.mean(wide, axes, keepdims=True)
        variance = ops.mean(ops.square(centred), axes, keepdims=True)
        y = gamma * (centred * (1 / ops.sqrt(variance + self.epsilon))) + beta
        normal: Operation = ops.cast(y, x.dtype) if x.dtype != self.wide else y
        return normal


class RMSNorm(Layer):
    """`gamma * x / sqrt(mean of x**2 + epsilon)`, over the last axis; the shape stays.

    Zhang, Sennrich, "Root mean square layer normalization", NeurIPS 2019, eq. (4): `LayerNorm` without the
    mean and without a shift. gamma has the size of the axis. Training and prediction are the same.

    Attributes:
        epsilon: above 0, in units of the mean square.
        use_scale: whether there is gamma.
        gamma_init: initial scale; ones.
        gamma_regularizer: adds to the loss.
    """

    epsilon: float = 1e-6
    use_scale: bool = True
    gamma_init: Initializer | str = init.ones()
    gamma_regularizer: Regularizer | None = None

    def __post_init__(self) -> None:
        above_zero(self, "epsilon", self.epsilon)

    def build(self, x: Operation) -> None:
        """The scale."""
        if x.ndim < 2:
            raise ShapeError(f"{self}: x must be (batch, ..., features), got {shape_text(x.shape)}")
        self.wide, self.gamma = _wide_dtype(self, x), None
        if self.use_scale:
            self.gamma = self.parameter(
                "gamma",
                x.shape[-1:],
                self.gamma_init,
                self.wide,
                regularizer=self.gamma_regularizer,
            )

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        wide = ops.cast(x, self.wide) if x.dtype != self.wide else x
        y = wide * (1 / ops.sqrt(ops.mean(ops.square(wide), -1, keepdims=True) + self.epsilon))
        y = y if self.gamma is None else y * self.gamma
        normal: Operation = ops.cast(y, x.dtype) if x.dtype != self.wide else y
        return normal


class BatchNorm(Layer):
    """`gamma * (x - mean) / sqrt(variance + epsilon) + beta`, per feature; the shape stays.

    Ioffe, Szegedy, "Batch normalization", ICML 2015, algorithms 1 and 2: x [batch, ..., k] has k features.
    Training takes mean and variance over the batch and all axes between; prediction uses running ones::

        running = momentum * running + (1 - momentum) * of the batch

    with the variance of the batch times n / (n - 1), as in algorithm 2, step 10 (n values per feature; for
    n = 1 the variance is 0). Running statistics change in training only; a layer that is called several
    times in a model takes in the batch of each call. The layer keeps gamma and beta (trained) and both
    statistics, [k] each. A frozen layer keeps all four as they are; training goes on to normalise by mean
    and variance of the batch.

    Attributes:
        momentum: of the running statistics, from 0 up to but not including 1. PyTorch calls 1 - momentum so.
        epsilon: above 0, in units of the variance.
        gamma_init: initial scale; ones.
        beta_init: initial shift; zeros.
        gamma_regularizer: adds to the loss.
        beta_regularizer: likewise.
        affine: whether there are gamma and beta; without them the layer has nothing that is trained.
    """

    momentum: float = 0.9
    epsilon: float = 1e-5
    gamma_init: Initializer | str = init.ones()
    beta_init: Initializer | str = init.zeros()
    gamma_regularizer: Regularizer | None = None
    beta_regularizer: Regularizer | None = None
    affine: bool = True

    def __post_init__(self) -> None:
        above_zero(self, "epsilon", self.epsilon)
        fraction(self, "momentum", self.momentum)

    def build(self, x: Operation) -> None:
        """Scale, shift, and the running statistics."""
        if x.ndim < 2:
            raise ShapeError(f"{self}: x must be (batch, ..., features), got {shape_text(x.shape)}")
        self.wide, features = _wide_dtype(self, x), x.shape[-1:]
        self.places = product(x.shape[1:-1])  # values of a feature in a sample
        self.gamma = self.beta = None
        if self.affine:
            self.gamma = self.parameter(
                "gamma", features, self.gamma_init, self.wide, regularizer=self.gamma_regularizer
            )
            self.beta = self.parameter(
                "beta", features, self.beta_init, self.wide, regularizer=self.beta_regularizer
            )
        self.running_mean = self.state("running_mean", features, init.zeros(), self.wide)
        self.running_variance = self.state("running_variance", features, init.ones(), self.wide)

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        wide = ops.cast(x, self.wide) if x.dtype != self.wide else x
        axes = tuple(range(x.ndim - 1))
        batch_mean, batch_variance = ops.mean(wide, axes), ops.var(wide, axes)
        mean = by_phase(batch_mean, self.running_mean)
        variance = by_phase(batch_variance, self.running_variance)
        scale = 1 if self.gamma is None else self.gamma
        y = (wide - mean) * (scale / ops.sqrt(variance + self.epsilon))
        y = y if self.beta is None else y + self.beta
        n = size(product(x.shape[:-1]), self.wide)
        unbiased = batch_variance * (n / ops.maximum(n - 1, 1))
        for running, of_batch in (
            (self.running_mean, batch_mean), (self.running_variance, unbiased),
        ):  # fmt: skip
            fresh = self.momentum * running + (1 - self.momentum) * of_batch
            y = with_update(y, running, fresh)
        normal: Operation = ops.cast(y, x.dtype) if x.dtype != self.wide else y
        return normal


class GroupNorm(Layer):
    """`gamma * (x - mean) / sqrt(variance + epsilon) + beta`, over the places and channels of a group.

    Wu, He, "Group normalization", ECCV 2018, eqs. (1) to (7): x [batch, places..., c] has groups of
    c / groups channels that follow each other; mean and variance are taken over all places and the channels
    of a group, for each sample. gamma and beta are [c]. With one group, mean and variance are of the whole
    sample, with as many as channels of each channel alone (instance normalisation). Training and prediction
    are the same.

    Attributes:
        groups: how many there are; must divide the channels.
        epsilon: above 0, in units of the variance.
        gamma_init: initial scale; ones.
        beta_init: initial shift; zeros.
        gamma_regularizer: adds to the loss.
        beta_regularizer: likewise.
    """

    groups: int
    epsilon: float = 1e-5
    gamma_init: Initializer | str = init.ones()
    beta_init: Initializer | str = init.zeros()
    gamma_regularizer: Regularizer | None = None
    beta_regularizer: Regularizer | None = None

    def __post_init__(self) -> None:
        positive(self, "groups", self.groups)
        above_zero(self, "epsilon", self.epsilon)

    def build(self, x: Operation) -> None:
        """Scale and shift."""
        if x.ndim < 2:
            raise ShapeError(f"{self}: x must be (batch, ..., channels), got {shape_text(x.shape)}")
        channels = x.shape[-1:]
        if isinstance(channels[0], int) and channels[0] % self.groups:
            raise ShapeError(
                f"{self}: {channels[0]} channels do not divide into {self.groups} groups"
            )
        self.wide = _wide_dtype(self, x)
        self.gamma = self.parameter(
            "gamma", channels, self.gamma_init, self.wide, regularizer=self.gamma_regularizer
        )
        self.beta = self.parameter(
            "beta", channels, self.beta_init, self.wide, regularizer=self.beta_regularizer
        )

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        wide = ops.cast(x, self.wide) if x.dtype != self.wide else x
        rows = ops.reshape(wide, (x.shape[0], product(x.shape[1:-1]), x.shape[-1]))
        centred = rows - self._of_groups(ops.mean(rows, 1))
        variance = self._of_groups(ops.mean(ops.square(centred), 1))
        y = self.gamma * (centred * (1 / ops.sqrt(variance + self.epsilon))) + self.beta
        y = ops.reshape(y, x.shape)
        normal: Operation = ops.cast(y, x.dtype) if x.dtype != self.wide else y
        return normal

    def _of_groups(self, means: Operation) -> Operation:
        """Means of channels [n, c] averaged over each group: [n, 1, c]."""
        n, c = means.shape
        shape = (n, self.groups, c // self.groups)
        each = ops.mean(ops.reshape(means, shape), -1, keepdims=True)
        spread: Operation = ops.reshape(ops.expand(each, shape), (n, 1, c))
        return spread


class LocalResponseNormalization(Layer):
    """`x[i] / (k + alpha * sum of x[j]**2)**beta` over channels j from i - size // 2 on, size of them.

    Krizhevsky, Sutskever, Hinton, "ImageNet classification with deep convolutional neural networks", NIPS
    2012, section 3.3, whose k, n (size), alpha and beta are the defaults; what is beyond the first and last
    channel counts as 0. PyTorch divides alpha by size. Training and prediction are the same.

    Attributes:
        size: channels that are summed over; of an even number one more lies before than behind.
        k: above 0.
        alpha: factor of the sum, at least 0.
        beta: exponent, at least 0.
    """

    size: int = 5
    k: float = 2.0
    alpha: float = 1e-4
    beta: float = 0.75

    def __post_init__(self) -> None:
        positive(self, "size", self.size)
        above_zero(self, "k", self.k)
        zero_or_above(self, "alpha", self.alpha)
        zero_or_above(self, "beta", self.beta)

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        if x.ndim < 2:
            raise ShapeError(f"{self}: x must be (batch, ..., channels), got {shape_text(x.shape)}")
        dtype = _wide_dtype(self, x)
        wide, channels = ops.cast(x, dtype) if x.dtype != dtype else x, x.shape[-1]
        ends = (self.size // 2, (self.size - 1) // 2)
        squares = ops.pad(ops.square(wide), (*[(0, 0)] * (x.ndim - 1), ends))
        near = [squares[..., j : j + channels] for j in range(self.size)]
        y = wide * ops.power(self.k + self.alpha * functools.reduce(ops.add, near), -self.beta)
        normal: Operation = ops.cast(y, x.dtype) if x.dtype != dtype else y
        return normal
