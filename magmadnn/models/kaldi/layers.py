"""Lines of xconfig as nodes: what goes in, and what is done with it, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from magmadnn.errors import ShapeError

from .descriptors import Frames, Joined, Scaled, Source, appended, shifted
from .lines import Line
from .matrices import inverse_cosines, read_matrix

Array = NDArray[Any]

# Numbers and texts of Kaldi's own training. They change no network.
_TRAINING: Final = (
    *("max-change", "self-repair-scale", "learning-rate-factor", "l2-regularize"),
    *("ng-affine-options", "ng-linear-options", "orthonormal-constraint"),
)
NOT_READ: Final = {
    "spec-augment-layer": "change the features before, and leave the line out",
    **dict.fromkeys(
        (
            "lstm-layer",
            "lstmp-layer",
            "fast-lstm-layer",
            "fast-lstmp-layer",
            "gru-layer",
            "pgru-layer",
        ),
        "networks without recurrence are read",
    ),
    **dict.fromkeys(
        (
            "conv-layer",
            "relu-conv-layer",
            "conv-relu-layer",
            "conv-relu-batchnorm-layer",
            "res-block",
        ),
        "of convolutions those over time are read, as Append() of frames",
    ),
    "attention-renorm-layer": "networks without attention are read",
    "attention-relu-renorm-layer": "networks without attention are read",
    "stats-layer": "sums over all frames are not read",
}
NORMS_OVER_ZERO: Final = 2.0**-66  # Kaldi's floor of a mean square


Kind = Literal[
    "affine",
    "fixed",
    "relu",
    "sigmoid",
    "tanh",
    "renorm",
    "batchnorm",
    "dropout",
    "dropout-per-dim",
]
_ACTIVATIONS: Final[dict[str, Kind]] = {"relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh"}


@dataclass(frozen=True)
class Step:
    """One layer of magmadnn.

    Attributes:
        kind: which.
        name: that the layer gets.
        size: features of the result of an affine step.
        bias: whether an affine step has one.
        number: share of a dropout, or root mean square of what is normalised.
        matrix: of a fixed step, [size, features of its input], and its bias.
    """

    kind: Kind
    name: str
    size: int = 0
    bias: bool = True
    number: float = 1.0
    matrix: tuple[Array, Array] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Node:
    """What a name stands for.

    Attributes:
        name: by which others take it.
        line: of the file.
        source: what goes in; None for inputs.
        steps: one after the other.
        size: features of the result.
    """

    name: str
    line: Line
    source: Source | None
    steps: tuple[Step, ...]
    size: int


@dataclass(frozen=True)
class End:
    """An output.

    Attributes:
        node: its value, what goes into its softmax if it has one.
        delay: frames by which it is late.
        loss: the name of its loss; None where it has none of its own.
    """

    node: Node
    delay: int = 0
    loss: str | None = None


Size = Callable[[Source], int]


def _basic(line: Line, source: Source, size: Size) -> list[Node]:
    """relu-batchnorm-dropout-layer and the like: an affine step, then what the type names."""
    wide = line.whole("dim", -1)
    wide = size(source) if wide <= 0 else wide
    line.ignore(*_TRAINING)
    steps = [Step("affine", f"{line.name}.affine", wide)]
    parts = line.type.split("-")[:-1]
    rms = line.number_of("target-rms", 1.0, 0.0, float("inf"))
    if line.flag("add-log-stddev", False):
        raise line.refuse("add-log-stddev=true is not supported: leave it out")
    dropout = _dropout(line, line.number_of("dropout-proportion", 0.5, 0.0, 0.999))
    for part in parts:
        name = f"{line.name}.{part}"
        if part == "dropout":
            steps.append(dropout)
        elif part in ("renorm", "batchnorm"):
            steps.append(Step("renorm" if part == "renorm" else "batchnorm", name, number=rms))
        else:
            steps.append(Step(_ACTIVATIONS[part], name))
    return [Node(line.name, line, source, tuple(steps), wide)]


def _dropout(line: Line, share: float) -> Step:
    each = line.flag("dropout-per-dim", False)
    if line.flag("dropout-per-dim-continuous", False):
        if share and "dropout" in line.type:
            raise line.refuse(
                "dropout-per-dim-continuous=true with a dropout-proportion above 0 is not supported: write "
                "dropout-per-dim=true, which has zeros, or dropout-proportion=0"
            )
        each = True
    return Step("dropout-per-dim" if each else "dropout", f"{line.name}.dropout", number=share)


def _affine(line: Line, source: Source, size: Size) -> list[Node]:
    line.ignore(*_TRAINING, "param-stddev", "bias-stddev", "bias-mean")
    bias = line.type != "linear-component"
    wide = line.size("dim")
    return [Node(line.name, line, source, (Step("affine", line.name, wide, bias),), wide)]


def _normal(line: Line, source: Source, size: Size) -> list[Node]:
    rms = line.number_of("target-rms", 1.0, 0.0, float("inf"))
    step = Step("renorm" if line.type.startswith("renorm") else "batchnorm", line.name, number=rms)
    return [Node(line.name, line, source, (step,), size(source))]


def _same(line: Line, source: Source, size: Size) -> list[Node]:
    return [Node(line.name, line, source, (), size(source))]


def _fixed(line: Line, source: Source, size: Size) -> list[Node]:
    """A matrix that Kaldi has estimated, such as LDA, with the bias as its last column."""
    features, path = size(source), line.path("affine-transform-file")
    line.ignore("delay")
    line.flag("write-init-config", True)
    found = read_matrix(path)
    wide = line.whole("dim", -1)
    wide = features if wide <= 0 else wide
    if found.shape != (wide, features + 1):
        raise ShapeError(
            f"{line.where}: the matrix of {path.name} is {found.shape[0]} x {found.shape[1]}, expected "
            f"{wide} x {features + 1}: a row for each of its {wide} features, and the bias as the last column"
        )
    step = Step("fixed", line.name, wide, matrix=(found[:, :-1], found[:, -1]))
    return [Node(line.name, line, source, (step,), wide)]


def _cosines(line: Line, source: Source, size: Size) -> list[Node]:
    """From cepstra back to energies; Kaldi writes the matrix to a file, which is not looked at."""
    features, lifter = size(source), line.number_of("cepstral-lifter", 22.0, 0.0, 1e6)
    line.text("affine-transform-file", "")
    wide = line.whole("dim", -1)
    wide = features if wide <= 0 else wide
    matrix = inverse_cosines(features, wide, lifter)
    step = Step("fixed", line.name, wide, False, matrix=(matrix, np.zeros(wide)))
    return [Node(line.name, line, source, (step,), wide)]


def _deltas(line: Line, source: Source, size: Size) -> list[Node]:
    """Features, their differences over two frames, and the differences of these; normalised."""
    first = Joined("sum", (Scaled(-1.0, shifted(source, -1)), shifted(source, 1)))
    around = shifted(source, -2), shifted(source, 2)
    second = Joined("sum", (*around, Scaled(-2.0, source)))
    wide = 3 * size(source)
    both = appended(source, first, second)
    return [Node(line.name, line, both, (Step("batchnorm", line.name),), wide)]


def _tdnnf(line: Line, source: Source, size: Size) -> list[Node]:
    """Two affine steps with few features in between, each over two frames, and a multiple of the input."""
    wide, few = line.size("dim"), line.size("bottleneck-dim")
    stride, scale = line.whole("time-stride", 1), line.number_of("bypass-scale", 0.66, -1.0, 1.0)
    share = line.number_of("dropout-proportion", -1.0, -1.0, 0.999)
    line.ignore(*_TRAINING)
    context = line.text("context", "default")
    if context not in ("default", "left-only", "shift-left", "none"):
        raise line.refuse(
            f"context must be default, left-only, shift-left or none, got {context!r}"
        )
    if wide <= few:
        raise line.refuse(f"dim must be greater than bottleneck-dim, got {wide} and {few}")
    if scale and size(source) != wide:
        raise ShapeError(
            f"{line.where}: adds its input of {size(source)} features to its {wide}: give "
            f"dim={size(source)}, or bypass-scale=0"
        )
    if share > 0:
        raise line.refuse(
            f"dropout-proportion={share:g}: factors between 0 and 2 are not supported: write "
            "dropout-proportion=0"
        )
    name, still = line.name, context == "none" or not stride
    first = source if still else appended(shifted(source, -stride), source)
    middle: Source = Frames(f"{name}.linear")
    if not still and context != "left-only":
        before, after = (0, stride) if context == "default" else (-stride, 0)
        middle = appended(shifted(middle, before), shifted(middle, after))
    steps = (
        Step("affine", f"{name}.affine", wide),
        Step("relu", f"{name}.relu"),
        Step("batchnorm", f"{name}.batchnorm"),
    )
    inner = f"{name}.batchnorm" if scale else name
    nodes = [
        Node(f"{name}.linear", line, first, (Step("affine", f"{name}.linear", few, False),), few),
        Node(inner, line, middle, steps, wide),
    ]
    if scale:
        both = Joined("sum", (Scaled(scale, source), Frames(inner)))
        nodes.append(Node(name, line, both, (), wide))
    return nodes


def _prefinal(line: Line, source: Source, size: Size) -> list[Node]:
    big, small = line.size("big-dim"), line.size("small-dim")
    line.ignore(*_TRAINING)
    if big <= small:
        raise line.refuse(f"big-dim must be greater than small-dim, got {big} and {small}")
    name = line.name
    steps = (
        Step("affine", f"{name}.affine", big),
        Step("relu", f"{name}.relu"),
        Step("batchnorm", f"{name}.batchnorm1"),
        Step("affine", f"{name}.linear", small, False),
        Step("batchnorm", f"{name}.batchnorm2"),
    )
    return [Node(name, line, source, steps, small)]


def ended(line: Line, source: Source, size: Size) -> End:
    """The output that a line describes."""
    kind = line.text("objective-type", "linear")
    if kind not in ("linear", "quadratic"):
        raise line.refuse(f"objective-type must be linear or quadratic, got {kind!r}")
    delay = line.whole("output-delay", 0)
    steps: tuple[Step, ...] = ()
    wide, softmax = 0, False
    if line.type == "output-layer":
        if "presoftmax-scale-file" in line.settings:
            raise line.refuse(
                "presoftmax-scale-file= is not read: leave it out, and give class_weights or sample_weights"
            )
        line.ignore(*_TRAINING, "param-stddev", "bias-stddev", "objective-scale")
        wide = line.size("dim")
        softmax = line.flag("include-log-softmax", True)
        steps = (Step("affine", f"{line.name}.affine", wide),)
    if softmax and kind == "quadratic":
        raise line.refuse(
            "objective-type=quadratic of a softmax is not supported: write include-log-softmax=false"
        )
    wide = wide or size(source)
    loss = "cross_entropy" if softmax else "mean_squared_error" if kind == "quadratic" else None
    return End(Node(line.name, line, source, steps, wide), delay, loss)


KINDS: Final[dict[str, Callable[[Line, Source, Size], list[Node]]]] = {
    **dict.fromkeys(
        (
            *("relu-layer", "relu-renorm-layer", "relu-batchnorm-layer", "relu-dropout-layer"),
            *("relu-batchnorm-dropout-layer", "sigmoid-layer", "tanh-layer"),
        ),
        _basic,
    ),
    **dict.fromkeys(("affine-layer", "affine-component", "linear-component"), _affine),
    **dict.fromkeys(("renorm-component", "batchnorm-component"), _normal),
    "no-op-component": _same,
    "fixed-affine-layer": _fixed,
    "idct-layer": _cosines,
    "delta-layer": _deltas,
    "tdnnf-layer": _tdnnf,
    "prefinal-layer": _prefinal,
}
