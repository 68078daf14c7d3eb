"""Layers made of layers: in a row, and in a row with a way around; and a name for an output."""

from __future__ import annotations

from collections.abc import Sequence

from magmadnn.errors import ArgumentError, ShapeError
from magmadnn.graph.signature import shape_text
from magmadnn.memory.dtypes import is_floating
from magmadnn.ops.repeated.checkpoints import recomputed
from magmadnn.tensor import Operation

from .activations import ActivationLike, as_activation, settled
from .dense import Dense
from .layer import Layer


def _as_parts(layer: Layer, parts: Sequence[Layer] | Layer) -> list[Layer]:
    """The layers as a list.

    Raises:
        ArgumentError: if there is none, or something else among them.
    """
    if not isinstance(parts, (Layer, list, tuple)):
        raise ArgumentError(f"{layer}: parts must be a list of layers, got {parts!r}")
    listed = [parts] if isinstance(parts, Layer) else list(parts)
    if not listed:
        raise ArgumentError(f"{layer}: needs at least one layer, got an empty list")
    for number, part in enumerate(listed):
        if not isinstance(part, Layer):
            raise ArgumentError(
                f"{layer}: parts[{number}] must be a layer, got {part!r}; "
                "put a function into md.layers.Activation"
            )
    return listed


def _applied(parts: Sequence[Layer], x: Operation) -> Operation:
    for part in parts:
        x = part(x)
    return x


class Sequential(Layer):
    """Layers in a row, as one layer: `parts[-1](... parts[0](x))`.

    Attributes:
        parts: the layers, at least one.
    """

    parts: Sequence[Layer] | Layer

    def __post_init__(self) -> None:
        self.parts = _as_parts(self, self.parts)
        self.number_parts()

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        return _applied(_as_parts(self, self.parts), x)


class Residual(Layer):
    """`activation(parts(x) + x)`, or `+ projection(x)`.

    He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, eq. (1) and (2). Where
    parts change the size of the last axis, the projection is made: a Dense without bias on that axis.

    Attributes:
        parts: the layers of the main way, at least one.
        projection: the layer of the way around; None for x itself, or a Dense where that does not fit.
        activation: name or function, after the sum; None for none.
    """

    parts: Sequence[Layer] | Layer
    projection: Layer | None = None
    activation: ActivationLike = None

    def __post_init__(self) -> None:
        self.parts = _as_parts(self, self.parts)
        self.activation = settled(self.activation)
        if self.projection is not None and not isinstance(self.projection, Layer):
            raise ArgumentError(f"{self}: projection must be a layer, got {self.projection!r}")
        self.number_parts()

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        y = _applied(_as_parts(self, self.parts), x)
        total: Operation = as_activation(self.activation)(y + self._around(x, y))
        return total

    def _around(self, x: Operation, y: Operation) -> Operation:
        if self.projection is None and x.shape != y.shape:
            units = y.shape[-1] if y.shape else None
            if x.shape[:-1] != y.shape[:-1] or not isinstance(units, int):
                raise ShapeError(
                    f"{self}: parts turn x {shape_text(x.shape)} into {shape_text(y.shape)}, and only the "
                    "last axis may change by itself; give a layer that does the same as projection"
                )
            self.projection = Dense(units, use_bias=False)
            self.number_parts()
        around = x if self.projection is None else self.projection(x)
        if around.shape != y.shape:
            raise ShapeError(
                f"{self}: projection gives {shape_text(around.shape)}, "
                f"expected {shape_text(y.shape)} as parts give"
            )
        return around


class Checkpointed(Layer):
    """Layers in a row that keep nothing for their gradient but their inputs: it computes them once more.

    A training step then needs memory for what one such block computes, and for the inputs of the others, and
    takes up to a third more time. Of n equal layers in sqrt(n) blocks, 2 sqrt(n) values lie in memory in
    place of n. On the CPU no bit of a result changes: dropout draws the same numbers again, and running
    statistics are updated once. Only where a layer is used several times, in nested blocks, gradients may be
    added up in another order. Predictions are as without.

    Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost", arXiv:1604.06174 (2016),
    section 4.

    Attributes:
        parts: the layers, at least one; the first may take several inputs.
    """

    parts: Sequence[Layer] | Layer

    def __post_init__(self) -> None:
        self.parts = _as_parts(self, self.parts)
        self.number_parts()

    def forward(self, *inputs: Operation) -> Operation:
        """The formula."""
        first, *rest = _as_parts(self, self.parts)
        y = _applied(rest, first(*inputs))
        floats = [p for p in dict.fromkeys(self.parameters()) if is_floating(p.dtype)]
        return Operation(recomputed(y, inputs, floats))


class Output(Layer):
    """`x`, under a name: `md.layers.Output(name="energy")(x)` names an output of a model."""

    def forward(self, x: Operation) -> Operation:
        """The formula."""
        return x
