"""A network from Caffe's description of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, DataError, ShapeError, UnknownNameError, quoted
from magmadnn.graph.signature import is_integer
from magmadnn.layers import Flatten, Input
from magmadnn.losses import as_loss
from magmadnn.tensor import Operation, Placeholder
from magmadnn.training import Model

from .data import DATA, Unused, declared
from .description import Described, Description, Source, read_description
from .layers import KINDS, check_ends, made, normalized, softmax_options

_IGNORED = ("Accuracy", "Silence")
_OTHERS = ("BatchNorm", "Scale", "SoftmaxWithLoss", *DATA, *_IGNORED)


@checked_call
def from_caffe(
    file: str | os.PathLike[str], input_shape: Sequence[int] | None = None, **options: Any
) -> Model:
    """The network that a Caffe description (.prototxt) has, for training it from the start.

    Layers keep their names. Of a file with phases the network of the training is taken. Its outputs are what
    goes into its SoftmaxWithLoss layers, in their order, and its loss is then the cross entropy, with their
    `loss_weight`, unless options say otherwise; what leads to no loss is left out. Without such a layer they
    are all tops that no layer takes. A Softmax at the end gives probabilities, as in Caffe, unless options
    have a loss of classes: losses take what goes into the softmax. An output of 1 x 1 places has only its
    channels.

    Read are Input and Data layers, Convolution, Pooling (MAX and AVE, with as many windows as Caffe has,
    which rounds up), InnerProduct, BatchNorm with Scale behind it, LRN across channels, ReLU, PReLU, ELU,
    Sigmoid, TanH, BNLL, Dropout, Softmax, Concat of channels, Eltwise, Flatten, SoftmaxWithLoss; Accuracy and
    Silence are left out. `lr_mult: 0` freezes a layer. Both formats are read, `layer` and the older `layers`.

    Where it departs from Caffe:

    - Images are channels last, [n, height, width, channels]. What Flatten gives, and what InnerProduct sums
      over images, is therefore in another order. In training that makes no difference; weights of a
      .caffemodel, which are not read, would have to be put in order.
    - A weight without `weight_filler` begins with the layer's own initial values, not with zeros.
    - Other `lr_mult` than 0, `decay_mult`, `transform_param` and the sources of data are not taken up: the
      optimiser has one learning rate, and data is given to `fit`.
    - BatchNorm's running statistics begin with 0 and 1 and are not divided by the sum of their weights, so
      that with Caffe's `moving_average_fraction` of 0.999 predictions need some thousand steps to follow.
    - A Scale layer that is frozen freezes the running statistics of its BatchNorm layer too.
    - ReLU with a `negative_slope` other than 0.01 is a frozen PReLU, whose slopes count as parameters.

    Args:
        file: protobuf's text format. A solver's file and weights are not read.
        input_shape: of one sample, as magmadnn has it: (height, width, channels) or (features,). None: what
            the file says, [n, channels, height, width] or [n, features]. It takes the place of that.
        options: of `md.Model`.

    Raises:
        FileError: the file cannot be read.
        DataError: it is no description of a network, or has what cannot be expressed; names layer and line.
        UnknownNameError: for a layer, a type or an option that is not known, with the nearest that is.
        ShapeError: sizes do not fit; names layer and line.
        ArgumentError: the shape of the input is needed and not given, or options are wrong.
    """
    return built(read_description(file), input_shape, options)


def built(
    description: Description, input_shape: Sequence[int] | None, options: Mapping[str, Any]
) -> Model:
    """The model of a description; see `from_caffe`."""
    network = _Network(description, input_shape, options)
    for layer in network.layers:
        network.add(layer)
    inputs, outputs, weights = network.ends()
    own = dict(options)
    if weights:
        own.setdefault("loss", "cross_entropy")
        if set(weights) != {1.0}:
            own.setdefault("loss_weights", weights)
    return Model(inputs=inputs, outputs=outputs, **own)


@dataclass(eq=False)
class _Unscaled:
    """What a BatchNorm layer is to be applied to, once its Scale layer is known."""

    layer: Described
    x: Operation
    scaled: bool = False


class _Network:
    """Takes layer after layer and keeps what their tops stand for."""

    def __init__(
        self,
        description: Description,
        input_shape: Sequence[int] | None,
        options: Mapping[str, Any],
    ) -> None:
        self.file = description.file
        self.layers = [layer for layer in description.layers if layer.trained]
        self._tested = [layer for layer in description.layers if not layer.trained]
        self._shape = None if input_shape is None else _checked_shape(input_shape)
        self._dtype = "float64" if options.get("precision") == "float64" else "float32"
        self._drops_softmax = _is_of_classes(options.get("loss"))
        self._tops: dict[str, Operation | Unused | _Unscaled] = {}
        self._taken: set[str] = set()
        self._inputs: dict[str, Placeholder] = {}
        self._order: list[str] = []  # of all data
        self._losses: list[tuple[Operation, float]] = []
        self._logits: list[tuple[Operation, Operation]] = []  # of each softmax what goes in
        self._unscaled: list[_Unscaled] = []
        self._named: dict[str, Described] = {}
        self._sharing: dict[str, Described] = {}
        for source in description.sources:
            self._declare(source)

    # --- layers -----------------------------------------------------------------------------------

    def add(self, layer: Described) -> None:
        """The next layer of the file.

        Raises:
            MagmaDNNError: as `from_caffe`.
        """
        if layer.type not in KINDS and layer.type not in _OTHERS:
            line = (layer.fields.lines("type") or [layer.line])[0]
            raise UnknownNameError.of(
                f"{self.file}, line {line}: layer {quoted(layer.name)}: type",
                layer.type,
                [*KINDS, *_OTHERS],
            )
        if layer.type in _IGNORED:
            return
        self._check_names(layer)
        if layer.type in DATA:
            self._add_data(layer)
        elif layer.type == "SoftmaxWithLoss":
            self._add_loss(layer)
        else:
            if any(layer.loss_weights):
                raise layer.fields.refuse(
                    "loss_weight", "loss_weight: only SoftmaxWithLoss has a loss here"
                )
            self._add_inner(layer)

    def _check_names(self, layer: Described) -> None:
        """Each layer has a name of its own, and so have parameters."""
        if layer.name and (other := self._named.setdefault(layer.name, layer)) is not layer:
            raise DataError(
                f"{layer.where}: has the name of the layer in line {other.line}; give each another"
            )
        for name in layer.shared:
            if (other := self._sharing.setdefault(name, layer)) is not layer:
                raise DataError(
                    f"{layer.where}: shares the parameter {quoted(name)} with layer {other}: layers have "
                    "parameters of their own here"
                )

    def _add_inner(self, layer: Described) -> None:
        bottoms = [self._bottom(layer, name) for name in layer.bottoms]
        if layer.type == "BatchNorm":
            check_ends(layer)
            layer.parameters_trained(3)
            self._check_statistics(layer)
            waiting = _Unscaled(layer, self._operation(layer, 0, bottoms[0]))
            self._unscaled.append(waiting)
            self._put(layer, 0, waiting)
            return
        if layer.type == "Scale":
            check_ends(layer)
            before = bottoms[0]
            if not isinstance(before, _Unscaled):
                raise DataError(
                    f"{layer.where}: Scale is read behind a BatchNorm layer only, as one with it"
                )
            before.scaled = True
            self._put(layer, 0, normalized(before.layer, layer, before.x))
            return
        inputs = [self._operation(layer, k, bottom) for k, bottom in enumerate(bottoms)]
        y = made(layer, inputs)
        if layer.type == "Softmax":
            self._logits.append((y, inputs[0]))
        self._put(layer, 0, y)

    def _check_statistics(self, layer: Described) -> None:
        """Training normalises by the batch; a file for predictions says that it uses running statistics."""
        options = layer.options("batch_norm_param")
        trains = any(other.type == "SoftmaxWithLoss" for other in self.layers)
        if options.flag("use_global_stats", False) and trains:
            raise options.refuse(
                "use_global_stats",
                "use_global_stats: true is not supported in a network that is trained: training "
                "normalises by mean and variance of the batch",
            )

    def _add_loss(self, layer: Described) -> None:
        if len(layer.bottoms) != 2 or len(layer.tops) > 1:
            raise DataError(
                f"{layer.where}: expected 2 bottoms (predictions, labels) and at most 1 top, got "
                f"{len(layer.bottoms)} and {len(layer.tops)}"
            )
        label = self._bottom(layer, layer.bottoms[1])
        if not isinstance(label, Unused):
            raise DataError(
                f"{layer.where}: bottom {quoted(layer.bottoms[1])} must be labels, which come from a data "
                "layer and go into nothing but losses"
            )
        x = self._operation(layer, 0, self._bottom(layer, layer.bottoms[0]))
        weight = layer.loss_weights[0] if layer.loss_weights else 1.0
        _check_loss(layer, x)
        if weight < 0:
            raise layer.fields.refuse(
                "loss_weight", f"loss_weight must be at least 0, got {weight:g}"
            )
        if weight:
            self._losses.append((x, weight))

    # --- data -------------------------------------------------------------------------------------

    def _declare(self, source: Source) -> None:
        if source.name in self._tops:
            raise DataError(
                f"{self.file}, line {source.line}: input {quoted(source.name)} is declared twice"
            )
        self._tops[source.name] = Unused(source.name, source.sizes, source.line)
        self._order.append(source.name)

    def _add_data(self, layer: Described) -> None:
        for k, data in enumerate(declared(layer)):
            self._put(layer, k, data)
            self._order.append(data.name)

    def _operation(self, layer: Described, k: int, x: Operation | Unused | _Unscaled) -> Operation:
        """What bottom k of a layer stands for; data becomes an input of the model."""
        if isinstance(x, _Unscaled):
            raise DataError(
                f"{x.layer.where}: its top goes into layer {layer}, expected a Scale layer with bias_term: "
                "true right behind it: batch normalisation has a factor and a bias"
            )
        if isinstance(x, Operation):
            return x
        if x.name not in self._inputs:
            self._inputs[x.name] = Input(self._sizes(x), self._dtype, name=x.name)
        self._tops[layer.bottoms[k]] = self._inputs[x.name]
        return self._inputs[x.name]

    def _sizes(self, data: Unused) -> tuple[int, ...]:
        """The shape of a sample of the data."""
        if self._shape is None:
            return data.sample_shape(self.file)
        if self._inputs:
            raise ArgumentError(
                f"{data.where(self.file)}: input_shape is for networks with one input, and "
                f"{next(iter(self._inputs))!r} is one too: write the shapes into the file, as Input layers"
            )
        return self._shape

    # --- tops and bottoms -------------------------------------------------------------------------

    def _put(self, layer: Described, k: int, value: Operation | Unused | _Unscaled) -> None:
        """Top k of a layer stands for the value from here on."""
        name = layer.tops[k]
        if name in self._tops and name not in layer.bottoms:
            raise DataError(
                f"{layer.where}: top {quoted(name)} is that of a layer above too; only a layer that takes it "
                "may replace it"
            )
        self._tops.pop(name, None)  # to the end: outputs are in the order of their making
        self._tops[name] = value
        self._taken.discard(name)

    def _bottom(self, layer: Described, name: str) -> Operation | Unused | _Unscaled:
        """What a bottom stands for.

        Raises:
            DataError: a layer below makes it, or one that is not trained.
            UnknownNameError: none makes it.
        """
        if name not in self._tops:
            raise self._no_bottom(layer, name)
        self._taken.add(name)
        return self._tops[name]

    def _no_bottom(self, layer: Described, name: str) -> DataError | UnknownNameError:
        where = f"{layer.where}: bottom {quoted(name)}"
        for other in self.layers:
            if name in other.tops and other is not layer:
                if self._leads_to(layer, other):
                    return DataError(
                        f"{where} is made by layer {other}, which needs this layer: they form a circle"
                    )
                return DataError(
                    f"{where} is made further below, by layer {other}: move that above this layer"
                )
        for other in self._tested:
            if name in other.tops:
                return DataError(
                    f"{where} is made by layer {other}, which is no part of the network of the training"
                )
        known = [top for top in self._tops if top != name]
        return UnknownNameError.of(f"{layer.where}: bottom", name, known)

    def _leads_to(self, layer: Described, other: Described) -> bool:
        """Whether a layer needs, directly or by way of others, what `layer` makes."""
        seen: set[str] = set()
        left = list(other.bottoms)
        while left:
            name = left.pop()
            if name in layer.tops:
                return True
            if name not in seen:
                seen.add(name)
                left += [b for one in self.layers if name in one.tops for b in one.bottoms]
        return False

    def ends(self) -> tuple[list[Placeholder], list[Operation], list[float]]:
        """Inputs and outputs of the model, and the weights of the losses where there are some.

        Raises:
            DataError: there are no outputs, or a BatchNorm layer has no Scale layer.
        """
        for waiting in self._unscaled:
            if not waiting.scaled:
                raise DataError(
                    f"{waiting.layer.where}: expected a Scale layer with bias_term: true behind it: batch "
                    "normalisation has a factor and a bias"
                )
        if self._losses:
            outputs, weights = [x for x, _ in self._losses], [w for _, w in self._losses]
        else:
            weights = []
            outputs = [
                x
                for name, x in self._tops.items()
                if isinstance(x, Operation) and not isinstance(x, Placeholder)
                if name not in self._taken
            ]
            if self._drops_softmax:
                outputs = [self._before_softmax(x) for x in outputs]
        if not outputs:
            raise DataError(
                f"{self.file}: the network of the training has no output: no layer is behind its data"
            )
        needed = _inputs_of(outputs)
        inputs = [self._inputs[name] for name in self._order if name in self._inputs]
        inputs = [x for x in inputs if x.node in needed]
        return inputs, [_without_places(x) for x in outputs], weights

    def _before_softmax(self, x: Operation) -> Operation:
        return next((before for y, before in self._logits if y is x), x)


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a sample that a user gave."""
    sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else ()
    if len(sizes) not in (1, 3) or not all(is_integer(n) and n >= 1 for n in sizes):
        raise ShapeError(
            "from_caffe: input_shape must be (height, width, channels) or (features,), with sizes of "
            f"at least 1, got {quoted(shape)}"
        )
    return tuple(int(n) for n in sizes)


def _is_of_classes(loss: Any) -> bool:
    """Whether a loss, or one of several, is one of classes, which takes what goes into a softmax."""
    if loss is None:
        return False
    each = loss.values() if isinstance(loss, Mapping) else loss
    each = each if isinstance(loss, (Mapping, list, tuple)) else [loss]
    return any(as_loss(one).outputs == "classes" for one in each)


def _check_loss(layer: Described, x: Operation) -> None:
    """Look at the options of a loss."""
    options = layer.options("loss_param")
    if "ignore_label" in options:
        raise options.refuse(
            "ignore_label",
            "ignore_label is not supported: all samples count; leave such out of the data",
        )
    options.ignore("ignore_label")
    normalize = options.flag("normalize", True)
    options.fixed("normalize", normalize, True, why="a loss is the mean over samples")
    norms = ("FULL", "VALID", "BATCH_SIZE", "NONE")
    norm = options.word("normalization", norms, "VALID")
    options.fixed(
        "normalization", norm, "FULL", "VALID", why="a loss is the mean over samples and places"
    )
    softmax_options(layer, x)
    layer.fields.check_all_read()


def _inputs_of(outputs: Iterable[Operation]) -> set[Any]:
    """All nodes that the outputs depend on."""
    seen: set[Any] = set()
    left = [x.node for x in outputs]
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left.extend(node.inputs)
    return seen


def _without_places(x: Operation) -> Operation:
    """An output of 1 x 1 places as its channels alone."""
    flat: Operation = Flatten()(x) if x.ndim == 4 and tuple(x.shape[1:3]) == (1, 1) else x
    return flat
