"""Noise in training, nothing in prediction: zeros of dropout, and Gaussian noise that is added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from magmadnn import ops
from magmadnn.errors import DTypeError
from magmadnn.graph.op import Array
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops import philox
from magmadnn.tensor import Operation, by_phase, with_update
from magmadnn.tensor.init import Initializer, Shape

from .checks import check_places, fraction, zero_or_above
from .layer import Layer


@dataclass(frozen=True)
class _OwnStreams(Initializer):
    """The counter's start: 32 random bits, from seed and name, above 32 bits that count the draws."""

    def make(self, shape: Shape, dtype: np.dtype[np.generic], seed: int, stream: int) -> Array:
        """See `Initializer`."""
        high = philox.random_bits(seed, stream, 1).astype(np.uint64) << np.uint64(32)
        return high.view(np.int64).reshape(shape)


class Dropout(Layer):
    """Training: `x / (1 - rate)`, and 0 with probability rate. Prediction: x. The shape stays.

    Inverted dropout: Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov, JMLR 15 (2014), section 10.
    Masks depend on the model's seed, the layer's name, the number of steps taken and the element's place,
    so a resumed training draws what an unbroken one does.

    Attributes:
        rate: probability of a zero, from 0 up to but not including 1.
    """

    rate: float = 0.5

    def __post_init__(self) -> None:
        fraction(self, "rate", self.rate)

    def build(self, x: Operation) -> None:
        """The counter, which each training step moves on by one."""
        self.counter = self.state("counter", (), _OwnStreams(), "int64")

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        if self.rate == 0:
            return x
        masked = ops.dropout(x, self.rate, self.counter)
        return by_phase(with_update(masked, self.counter, self.counter + 1), x)


class _SpatialDropout(Dropout):
    """Dropout of all places of a channel at once."""

    _PLACES: ClassVar[tuple[str, ...]]

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        check_places(self, x, self._PLACES)
        if self.rate == 0:
            return x
        shape = (x.shape[0], *(1 for _ in self._PLACES), x.shape[-1])
        kept = ops.greater_equal(ops.random_uniform(self.counter, shape), self.rate)
        masked = ops.where(kept, x * (1.0 / (1.0 - self.rate)), 0)
        return by_phase(with_update(masked, self.counter, self.counter + 1), x)


class SpatialDropout1D(_SpatialDropout):
    """Dropout of whole channels of sequences [n, time, c]: see `SpatialDropout2D`.

    Attributes:
        rate: probability of a channel of zeros, from 0 up to but not including 1.
    """

    _PLACES = ("time",)


class SpatialDropout2D(_SpatialDropout):
    """Dropout of whole channels of images [n, height, width, c]; the shape stays.

    Training: all places of a channel are 0 with probability rate, or x / (1 - rate). Prediction: x.
    Neighbouring pixels are alike, so dropout of single ones takes little away: Tompson, Goroshin, Jain,
    LeCun, Bregler, CVPR 2015, section 3.2. Masks are drawn as those of `Dropout`.

    Attributes:
        rate: probability of a channel of zeros, from 0 up to but not including 1.
    """

    _PLACES = ("height", "width")


class GaussianNoise(Layer):
    """Training: `x + stddev * z`, z standard normal for each element. Prediction: x. The shape stays.

    Bishop, "Training with noise is equivalent to Tikhonov regularization", Neural Computation 7 (1995).
    z depends on the model's seed, the layer's name, the number of steps taken and the element's place, so
    a resumed training draws what an unbroken one does.

    Attributes:
        stddev: standard deviation of the noise, at least 0, in units of x.
    """

    stddev: float

    def __post_init__(self) -> None:
        zero_or_above(self, "stddev", self.stddev)

    def build(self, x: Operation) -> None:
        """The counter, which each training step moves on by one."""
        if not is_floating(x.dtype):
            raise DTypeError(f"{self}: x must be floating-point, got {x.dtype.name}; cast it")
        self.counter = self.state("counter", (), _OwnStreams(), "int64")

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        if self.stddev == 0:
            return x
        noise = ops.random_normal(self.counter, x.shape, x.dtype)
        noisy = x + self.stddev * noise
        return by_phase(with_update(noisy, self.counter, self.counter + 1), x)
