"""A network from Kaldi's description of it (nnet3, xconfig)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from magmadnn import ops
from magmadnn.calls import checked_call
from magmadnn.errors import (
    ArgumentError,
    DataError,
    MagmaDNNError,
    ShapeError,
    UnknownNameError,
    quoted,
)
from magmadnn.graph.signature import is_integer
from magmadnn.layers import (
    Activation,
    BatchNorm,
    Concatenate,
    Conv1D,
    Dense,
    Dropout,
    Input,
    RMSNorm,
    SpatialDropout1D,
)
from magmadnn.tensor import Operation, Placeholder
from magmadnn.training import Model

from .descriptors import Frames, Joined, Source, leaves, parsed
from .layers import KINDS, NORMS_OVER_ZERO, NOT_READ, End, Node, Step, ended
from .lines import Line, check_type, read_lines

_EPSILON = 1e-3  # of Kaldi's batch normalisation


@checked_call
def from_kaldi(file: str | os.PathLike[str], frames: int | None = None, **options: Any) -> Model:
    """The network that an xconfig file of Kaldi's nnet3 describes, for training it from the start.

    An input `input dim=40 name=input` takes [batch, frames, 40]. A result is there for each frame whose whole
    context is there: with a context of c frames before and d behind, outputs are [batch, frames - c - d,
    classes], the first of them for frame c. Labels have as many frames. `kaldi_context` tells c and d; where
    a recording begins and ends Kaldi repeats its first and its last frame, as
    `np.pad(x, ((c, d), (0, 0)), "edge")` does. An input that is taken as ReplaceIndex(ivector, t, 0) is one
    vector for all frames, [batch, features].

    Layers have Kaldi's names. An output is what goes into the softmax of its output-layer, and its loss is
    the cross entropy of each frame, unless options say otherwise; with objective-type=quadratic it is the
    mean squared error. Outputs without a softmax of their own, as in chain models, have no loss of their own:
    give one, or keep the others with `outputs`.

    Read are input, output and output-layer; relu-layer, relu-renorm-layer, relu-batchnorm-layer, their forms
    with dropout, sigmoid-layer, tanh-layer; affine-layer, affine-component, linear-component,
    batchnorm-component, renorm-component, no-op-component; tdnnf-layer and prefinal-layer; delta-layer,
    idct-layer, and fixed-affine-layer (such as LDA) with its matrix, which is frozen; Append, Offset, Sum,
    Scale, and ReplaceIndex of an input. An affine step over frames at even distances is a `Conv1D` with
    that dilation.

    Where it departs from Kaldi:

    - Weights begin with magmadnn's own initial values.
    - Settings of Kaldi's training are not taken up: max-change, self-repair-scale, learning-rate-factor,
      l2-regularize, natural gradients, orthonormal-constraint (so that tdnnf layers are trained without one).
    - Batch normalisation has no factor and no bias, as in Kaldi, but running statistics that fade, where
      Kaldi keeps sums of all that it has seen.
    - Every frame gets an output; Kaldi's `--frame-subsampling-factor=3` is `outputs[:, ::3]`.

    Args:
        file: an xconfig file, as recipes write to configs/network.xconfig.
        frames: of a sample, context included. None: as many as one output needs; outputs are then
            [batch, classes].
        options: of `md.Model`; and `outputs`, names of the output lines to keep.

    Raises:
        FileError: the file cannot be read.
        DataError: it is no description of a network, or has what cannot be expressed; names the line.
        UnknownNameError: for a type, a setting or a name that is not known, with the nearest that is.
        ShapeError: sizes do not fit; names the line. Or frames are fewer than the context.
        ArgumentError: options are wrong.
    """
    network = _Network(read_lines(file, "from_kaldi"), options.pop("outputs", None))
    before, after = network.context()
    needed = before + after + 1
    if frames is not None and not is_integer(frames):
        raise ArgumentError(
            f"from_kaldi: frames must be a whole number or None, got {quoted(frames)}"
        )
    if frames is not None and frames < needed:
        raise ShapeError(
            f"from_kaldi: frames={frames} are fewer than one output of {network.file} needs: {before} before "
            f"it, {after} behind it, {needed} in all"
        )
    return network.model(needed if frames is None else int(frames), frames is None, options)


@checked_call
def kaldi_context(
    file: str | os.PathLike[str], outputs: list[str] | None = None
) -> tuple[int, int]:
    """How many frames before and behind a frame an output of a Kaldi network looks at; see `from_kaldi`.

    Args:
        file: an xconfig file.
        outputs: names of the output lines that count; None for all.

    Raises:
        MagmaDNNError: as `from_kaldi`.
    """
    return _Network(read_lines(file, "kaldi_context"), outputs).context()


@dataclass(frozen=True)
class _Signal:
    """What a name stands for, in some frames.

    Attributes:
        value: [batch, count, features]; [batch, features] where it is the same in all frames.
        first: frame of the input that its first one is for.
        count: of frames; None where it is the same in all.
    """

    value: Operation
    first: int
    count: int | None


class _Network:
    """Nodes by name, and the outputs."""

    def __init__(self, lines: list[Line], outputs: Any) -> None:
        self.file = lines[0].file
        self._nodes: dict[str, Node] = {}
        self._ends: dict[str, End] = {}
        self._lines: list[str] = []  # names, in order
        for line in lines:
            self._add(line)
        if not self._ends:
            raise DataError(
                f"{self.file}: has no output: expected a line such as `output-layer name=output dim=...`"
            )
        self._chosen = self._kept(outputs)
        self._ranges: dict[str, tuple[int, int]] = {}
        self._given: list[tuple[Dense, Step]] = []  # layers whose weights are said
        self._needed = self._all_needed()
        self._stills = self._inputs_that_stand_still()

    def _kept(self, outputs: Any) -> list[End]:
        if outputs is None:
            return list(self._ends.values())
        if not isinstance(outputs, (list, tuple)) or not outputs:
            raise ArgumentError(
                f"from_kaldi: outputs must be names of output lines in a list, got {quoted(outputs)}"
            )
        for name in outputs:
            if name not in self._ends:
                raise UnknownNameError.of(f"{self.file}: output", name, self._ends)
        return [self._ends[name] for name in outputs]

    # --- lines ------------------------------------------------------------------------------------

    def _add(self, line: Line) -> None:
        check_type(line, ["input", "output", "output-layer", *KINDS], NOT_READ)
        name = line.name
        if name in self._lines:
            raise line.refuse("a line above has the same name")
        if line.type == "input":
            size = line.size("dim")
            line.check_all_read()
            self._nodes[name] = Node(name, line, None, (), size)
        else:
            source = parsed(line, self._lines)
            for leaf in leaves(source):
                self._check_name(line, leaf)
            if line.type in ("output", "output-layer"):
                self._ends[name] = ended(line, source, lambda x: self._size(line, x))
            else:
                for node in KINDS[line.type](line, source, lambda x: self._size(line, x)):
                    self._nodes[node.name] = node
            line.check_all_read()
            self._size(line, source)
        self._lines.append(name)

    def _check_name(self, line: Line, leaf: Frames) -> None:
        if leaf.name in self._ends:
            other = self._ends[leaf.name].node.line.number
            raise line.refuse(
                f"takes the output {quoted(leaf.name)} of line {other}, which no line may: write input= with "
                "another name"
            )
        if leaf.name not in self._nodes:
            raise UnknownNameError.of(f"{line.where}: input", leaf.name, self._nodes)
        if leaf.still and self._nodes[leaf.name].source is not None:
            raise line.refuse(
                f"ReplaceIndex() is read of inputs only, and {quoted(leaf.name)} is none"
            )

    def _size(self, line: Line, source: Source) -> int:
        """Features of a source.

        Raises:
            ShapeError: terms of a sum differ.
        """
        if isinstance(source, Frames):
            return self._nodes[source.name].size
        if not isinstance(source, Joined):
            return self._size(line, source.part)
        sizes = [self._size(line, part) for part in source.parts]
        if source.how == "append":
            return sum(sizes)
        if len(set(sizes)) > 1:
            raise ShapeError(
                f"{line.where}: Sum() of {', '.join(map(str, sizes))} features: they must be equally many"
            )
        return sizes[0]

    # --- frames -----------------------------------------------------------------------------------

    def context(self) -> tuple[int, int]:
        """Frames before and behind one of all outputs."""
        ranges = [self._range_of_end(end) for end in self._chosen]
        return -min(low for low, _ in ranges), max(high for _, high in ranges)

    def _range_of_end(self, end: End) -> tuple[int, int]:
        low, high = self._range_of(end.node)
        return low + end.delay, high + end.delay

    def _range_of(self, node: Node) -> tuple[int, int]:
        """The first and the last frame of the inputs, counted from that of its result."""
        if node.source is None:
            return 0, 0
        if node.name not in self._ranges:
            places = [leaf for leaf in leaves(node.source) if not leaf.still]
            found = [(leaf, self._range_of(self._nodes[leaf.name])) for leaf in places]
            if not found:
                raise node.line.refuse(
                    "all that it takes is the same in all frames: append frames of an input"
                )
            low = min(leaf.offset + first for leaf, (first, _) in found)
            high = max(leaf.offset + last for leaf, (_, last) in found)
            self._ranges[node.name] = low, high
        return self._ranges[node.name]

    def _all_needed(self) -> set[str]:
        """Names that outputs depend on."""
        needed: set[str] = set()
        left = [end.node for end in self._chosen]
        while left:
            node = left.pop()
            for leaf in leaves(node.source) if node.source is not None else ():
                if leaf.name not in needed:
                    needed.add(leaf.name)
                    left.append(self._nodes[leaf.name])
        return needed

    def _inputs_that_stand_still(self) -> set[str]:
        taken: dict[str, set[bool]] = {}
        nodes = [self._nodes[name] for name in self._needed] + [end.node for end in self._chosen]
        for node in nodes:
            for leaf in leaves(node.source) if node.source is not None else ():
                taken.setdefault(leaf.name, set()).add(leaf.still)
        for name, ways in taken.items():
            if len(ways) > 1:
                raise self._nodes[name].line.refuse(
                    "is taken both by frames and, with ReplaceIndex(), as one vector for all frames"
                )
        return {name for name, ways in taken.items() if ways == {True}}

    # --- the model --------------------------------------------------------------------------------

    def model(self, frames: int, single: bool, options: Mapping[str, Any]) -> Model:
        """The network for samples of so many frames; `single`: outputs have no axis of frames."""
        dtype = "float64" if options.get("precision") == "float64" else "float32"
        inputs: list[Placeholder] = []
        made: dict[str, _Signal] = {}
        for name, node in self._nodes.items():
            if name not in self._needed:
                continue
            if node.source is None:
                still = name in self._stills
                x = Input((node.size,) if still else (frames, node.size), dtype, name=name)
                inputs.append(x)
                made[name] = _Signal(x, 0, None if still else frames)
            else:
                made[name] = self._made(node, made, frames)
        before, after = self.context()
        outputs = []
        for end in self._chosen:
            signal = self._made(end.node, made, frames)
            start = before + end.delay - signal.first
            y = _part(signal, start, frames - before - after)
            outputs.append(y[:, 0] if single else y)
        own = dict(options)
        losses = [end.loss for end in self._chosen]
        if all(losses):
            own.setdefault("loss", losses[0] if len(losses) == 1 else losses)
        model = Model(inputs=inputs, outputs=outputs, **own)
        for layer, step in self._given:
            assert step.matrix is not None
            layer.kernel.assign(step.matrix[0].T.astype(dtype))
            if layer.bias is not None:
                layer.bias.assign(step.matrix[1].astype(dtype))
        return model

    def _made(self, node: Node, made: Mapping[str, _Signal], frames: int) -> _Signal:
        assert node.source is not None
        low, high = self._range_of(node)
        first, count = -low, frames - (high - low)
        y: Operation | None = None
        try:
            for step in node.steps:
                if y is None and step.kind == "affine":
                    y = _affine(step, node.source, made, first, count)
                    continue
                y = _value(node.source, made, first, count) if y is None else y
                layer = _layer(step)
                y = layer(y)
                if step.kind == "fixed":
                    self._given.append((layer, step))
                if step.kind in ("batchnorm", "renorm") and step.number != 1:
                    y = step.number * y
        except MagmaDNNError as error:
            raise type(error)(f"{node.line.where}: {error}") from error
        return _Signal(_value(node.source, made, first, count) if y is None else y, first, count)


def _part(signal: _Signal, start: int, count: int) -> Operation:
    """Some frames of a signal."""
    if signal.count is None or (start == 0 and count == signal.count):
        return signal.value
    part: Operation = signal.value[:, start : start + count]
    return part


def _value(source: Source, made: Mapping[str, _Signal], first: int, count: int) -> Operation:
    """A source in `count` frames from `first` on: [batch, count, features]."""
    if isinstance(source, Frames):
        signal = made[source.name]
        if signal.count is None:
            n, features = signal.value.shape
            row = ops.reshape(signal.value, (n, 1, features))
            still: Operation = ops.broadcast_to(row, (n, count, features))
            return still
        return _part(signal, first + source.offset - signal.first, count)
    if not isinstance(source, Joined):
        scaled: Operation = source.factor * _value(source.part, made, first, count)
        return scaled
    parts = [_value(part, made, first, count) for part in source.parts]
    if source.how == "append":
        joined: Operation = Concatenate(axis=-1)(parts)
        return joined
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _affine(
    step: Step, source: Source, made: Mapping[str, _Signal], first: int, count: int
) -> Operation:
    """An affine step: a convolution where its frames are of one name and at even distances."""
    spliced = _even_frames(source)
    y: Operation
    if spliced is None:
        y = Dense(step.size, use_bias=step.bias, name=step.name)(_value(source, made, first, count))
        return y
    name, offsets = spliced
    signal, distance = made[name], offsets[1] - offsets[0]
    x = _part(signal, first + offsets[0] - signal.first, count + offsets[-1] - offsets[0])
    layer = Conv1D(step.size, len(offsets), dilation=distance, use_bias=step.bias, name=step.name)
    y = layer(x)
    return y


def _even_frames(source: Source) -> tuple[str, list[int]] | None:
    """The name and the offsets of frames that a convolution can take; None for others."""
    if not isinstance(source, Joined) or source.how != "append":
        return None
    found = [part for part in source.parts if isinstance(part, Frames) and not part.still]
    offsets = sorted({part.offset for part in found})
    if len(offsets) < max(2, len(source.parts)) or len({part.name for part in found}) > 1:
        return None
    if len({b - a for a, b in pairwise(offsets)}) > 1:
        return None
    return found[0].name, offsets


def _layer(step: Step) -> Any:
    """The layer of a step."""
    if step.kind in ("affine", "fixed"):
        trainable = step.kind == "affine"
        return Dense(step.size, use_bias=step.bias, trainable=trainable, name=step.name)
    if step.kind == "batchnorm":
        return BatchNorm(epsilon=_EPSILON, affine=False, name=step.name)
    if step.kind == "renorm":
        return RMSNorm(epsilon=NORMS_OVER_ZERO, use_scale=False, name=step.name)
    if step.kind == "dropout":
        return Dropout(step.number, name=step.name)
    if step.kind == "dropout-per-dim":
        return SpatialDropout1D(step.number, name=step.name)
    return Activation(step.kind, name=step.name)
