"""A description of a network: the layers of its training, in both formats that Caffe has for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from magmadnn.errors import DataError, UnknownNameError, quoted, shown
from magmadnn.storage.input_files import input_path, opened

from .fields import Fields, Place
from .text_format import Message, parse

_MOST_BYTES = 1 << 24  # the largest that are known have some hundred kilobytes
PHASES = ("TRAIN", "TEST")
# Types of `layers { }`, which Caffe had until 2014, and what they are called since.
OLD_TYPES = {
    "ACCURACY": "Accuracy", "BNLL": "BNLL", "CONCAT": "Concat", "CONVOLUTION": "Convolution",
    "DATA": "Data", "DROPOUT": "Dropout", "DUMMY_DATA": "DummyData", "ELTWISE": "Eltwise",
    "FLATTEN": "Flatten", "HDF5_DATA": "HDF5Data", "IMAGE_DATA": "ImageData",
    "INNER_PRODUCT": "InnerProduct", "LRN": "LRN", "MEMORY_DATA": "MemoryData",
    "POOLING": "Pooling", "RELU": "ReLU", "SIGMOID": "Sigmoid", "SILENCE": "Silence",
    "SOFTMAX": "Softmax", "SOFTMAX_LOSS": "SoftmaxWithLoss", "TANH": "TanH",
    "WINDOW_DATA": "WindowData",
}  # fmt: skip
_OF_SOLVERS = frozenset(
    "base_lr gamma lr_policy max_iter net snapshot solver_mode train_net".split()
)


@dataclass(frozen=True, eq=False)
class Described:
    """A layer as the file describes it.

    Attributes:
        name: its own; empty where it has none.
        type: as Caffe calls it today.
        bottoms: names of what goes in.
        tops: names of what comes out.
        fields: all that the file says of it.
        line: where it begins.
        rates: `lr_mult` of its parameters, in order.
        shared: names of its parameters.
        loss_weights: one for each top, where they are given.
        trained: whether it is a part of the network that is trained; else of the one that is tested only.
    """

    name: str
    type: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    fields: Fields
    line: int
    rates: tuple[float, ...]
    shared: tuple[str, ...]
    loss_weights: tuple[float, ...]
    trained: bool

    @property
    def where(self) -> str:
        """How an error about it begins."""
        return self.fields.place.at(self.line)

    def __str__(self) -> str:
        return f"{quoted(self.name)} in line {self.line}"

    def options(self, name: str) -> Fields:
        """The message with the options of its type."""
        return self.fields.part(name)

    def parameters_trained(self, count: int) -> bool:
        """Whether its parameters are trained: no `lr_mult` is 0; all are 0 where it is frozen.

        Raises:
            DataError: some are frozen and others not, or there are more rates than parameters.
        """
        if len(self.rates) > count:
            raise DataError(
                f"{self.where}: {len(self.rates)} learning rates are given for {count} parameters"
            )
        rates = (*self.rates, *(1.0 for _ in range(count - len(self.rates))))
        if 0 in rates and any(rates):
            raise DataError(
                f"{self.where}: lr_mult is 0 for some of its parameters only, got "
                f"{', '.join(f'{rate:g}' for rate in rates)}: layers are frozen as a whole, so make all 0 or "
                "none (one that is left out is 1)"
            )
        return any(rates)


@dataclass(frozen=True)
class Source:
    """Data that the file declares without a layer: `input: "data"`.

    Attributes:
        name: what layers call it.
        sizes: as the file has them, the batch first; empty where it has none.
        line: of the declaration.
    """

    name: str
    sizes: tuple[int, ...]
    line: int


@dataclass(frozen=True)
class Description:
    """What a file says.

    Attributes:
        file: its name, for errors.
        name: of the network.
        sources: data that is declared without a layer.
        layers: all of them, in order.
    """

    file: str
    name: str
    sources: tuple[Source, ...]
    layers: tuple[Described, ...]


def read_description(file: str | os.PathLike[str], where: str = "from_caffe") -> Description:
    """The layers that a file describes.

    Args:
        file: a .prototxt.
        where: how messages about its name begin.

    Raises:
        FileError: it cannot be read.
        DataError: it is no text, or no description of a network.
        UnknownNameError: for a field that is not known.
    """
    path = input_path(f"{where}: the file", file)
    with opened(path) as opened_file:
        data = opened_file.read(_MOST_BYTES + 1)
    name = shown(path)
    if len(data) > _MOST_BYTES:
        raise DataError(
            f"{name}: has more than {_MOST_BYTES:,} bytes; expected a description of a network as text, "
            "weights (.caffemodel) are not read"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: is no text; expected a description of a network (.prototxt), weights (.caffemodel) "
            "are not read"
        ) from error
    return described(parse(text, name), name)


def described(message: Message, file: str) -> Description:
    """The network that a message describes; errors as of `read_description`."""
    fields = Fields(message, Place(file))
    old, new = "layers" in fields, "layer" in fields
    if found := sorted(_OF_SOLVERS.intersection(fields.names())):
        raise DataError(
            f"{file}: describes a solver ({found[0]}), expected a network: give the file that its `net` names"
        )
    if old and new:
        raise fields.refuse(
            "layers", "a file has `layer` or, in the older format, `layers`, not both"
        )
    fields.ignore("force_backward", "debug_info", "state")
    name = fields.text("name", "")
    sources = _sources(fields)
    # Known both, so that either is proposed for what is written wrongly.
    parts = [*fields.parts("layer"), *fields.parts("layers")]
    layers = tuple(_layer(part, old) for part in parts)
    fields.check_own()  # layers are looked at when they are made
    if not layers:
        raise DataError(f"{file}: holds no layer; expected a network, `layer {{ ... }}`")
    return Description(file, name, sources, layers)


def _sources(fields: Fields) -> tuple[Source, ...]:
    """Data of `input`, with the sizes of `input_shape` or `input_dim`."""
    names = fields.texts("input")
    shapes = [tuple(part.wholes("dim")) for part in fields.parts("input_shape")]
    sizes = fields.wholes("input_dim")
    if sizes and shapes:
        raise fields.refuse("input_dim", "input_dim and input_shape are both given; leave one out")
    if sizes:
        if len(sizes) != 4 * len(names):
            raise fields.refuse(
                "input_dim",
                f"expected 4 sizes (batch, channels, height, width) for each input, got {len(sizes)} for "
                f"{len(names)}",
            )
        shapes = [tuple(sizes[k : k + 4]) for k in range(0, len(sizes), 4)]
    if shapes and len(shapes) != len(names):
        raise fields.refuse(
            "input_shape",
            f"expected a shape for each input, got {len(shapes)} for {len(names)}",
        )
    lines = fields.lines("input")
    return tuple(
        Source(name, shapes[k] if shapes else (), lines[k]) for k, name in enumerate(names)
    )


def _layer(fields: Fields, old: bool) -> Described:
    name = fields.text("name", "")
    fields.place = Place(fields.place.file, f"layer {quoted(name)}")
    if old and "layer" in fields:
        raise fields.refuse(
            "layer",
            "the oldest format, `layers { layer { ... } }`, is not read; Caffe's tool "
            "upgrade_net_proto_text writes the present one",
        )
    kind = _type(fields, old)
    fields.place = Place(fields.place.file, f"layer {quoted(name)} ({kind})")
    rates, shared = _parameters(fields, old)
    for flag in fields.flags("propagate_down"):
        fields.fixed("propagate_down", flag, True, why="gradients go to all inputs; freeze layers")
    return Described(
        name,
        kind,
        tuple(fields.texts("bottom")),
        tuple(fields.texts("top")),
        fields,
        fields.line,
        rates,
        shared,
        tuple(fields.numbers("loss_weight")),
        _is_trained(fields),
    )


def _type(fields: Fields, old: bool) -> str:
    """The type of a layer, as Caffe calls it today."""
    value = fields.scalar("type")
    if value is None:
        raise fields.refuse("type", 'has no type; expected one such as type: "Convolution"')
    if not old:
        if value.kind != "text":
            raise fields.refuse(
                "type",
                f'type must be text in quotes, such as "Convolution", got {value}; words such as '
                "CONVOLUTION belong into `layers`, the older format",
            )
        return value.text
    if value.kind != "word":
        raise fields.refuse(
            "type",
            f"type in `layers`, the older format, must be a word such as CONVOLUTION, got {value}; write "
            "`layer` for the present format",
        )
    if value.text not in OLD_TYPES:
        raise UnknownNameError.of(f"{fields.place.at(value.line)}: type", value.text, OLD_TYPES)
    return OLD_TYPES[value.text]


def _parameters(fields: Fields, old: bool) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Learning rates of a layer's parameters, and names by which they are shared."""
    if old:
        fields.ignore("weight_decay", "blob_share_mode")
        return tuple(fields.numbers("blobs_lr")), tuple(fields.texts("param"))
    rates, shared = [], []
    for part in fields.parts("param"):
        rates.append(part.number("lr_mult", 1.0))
        shared.append(part.text("name", ""))
        part.ignore("decay_mult", "share_mode")
    return tuple(rates), tuple(name for name in shared if name)


def _is_trained(fields: Fields) -> bool:
    """Whether a layer is a part of the network that is trained, at level 0 and without stages."""
    fields.ignore("phase")  # written by Caffe itself
    included = [_holds(rule) for rule in fields.parts("include")]
    excluded = [_holds(rule) for rule in fields.parts("exclude")]
    if included and excluded:
        raise fields.refuse("exclude", "include and exclude are both given; leave one out")
    return any(included) if included else not any(excluded)


def _holds(rule: Fields) -> bool:
    """Whether a rule holds for the training."""
    phase = rule.word("phase", PHASES, "TRAIN")
    least, most = rule.number("min_level", 0), rule.number("max_level", 0)
    stages: Sequence[str] = rule.texts("stage")
    rule.texts("not_stage")  # there are no stages, so none of these is there
    return phase == "TRAIN" and least <= 0 <= most and not stages
