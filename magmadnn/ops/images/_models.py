"""Convolutions of many models at once: images and filters have an axis of models in front.

With x `[k, n, *places, c]`, w `[k, *size, c / groups, o]` and y `[k, n, *windows, o]` the three ops are those
of `convolutions.py` for each of the k models. They are what these become in a program of many models
(`graph/transforms/stacking.py`); models that share their filters are images one after the other instead.

For a target with a library of convolutions there are two ways, with equal results up to the order of sums:

    "calls"     one step of the plan for all models, which is a call for each of them where its images lie
    "groups"    one call with k times as many groups, of images whose channels are those of all models side by
                side: `[n, *places, k c]`; these are movements of the plan

Others compute each model by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from magmadnn.graph.dim import Shape, Size, product
from magmadnn.graph.epilogue import Epilogue
from magmadnn.graph.node import Node
from magmadnn.graph.op import REQUIRED, Array, Draw, NoGradient, Op, OpKind, Sample, promote
from magmadnn.graph.signature import Attributes, OpWords
from magmadnn.graph.spec import Spec
from magmadnn.graph.transforms.stacking import StackedCall
from magmadnn.ops.arithmetic import cast
from magmadnn.ops.indexing import getitem
from magmadnn.ops.movement import reshape, stack, transpose

from . import _calls
from ._epilogues import absorbed_by, convolution_added, convolution_biased
from ._library import WHY

_SAMPLES = 6
WAYS = ("calls", "groups")
way = "calls"  # of these, for all models that become one program from now on

Make = Callable[..., Any]


def folded(x: Any) -> Any:
    """Images of all models one after the other."""
    return reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def stacked_as(of_models: Callable[[], Op], *, shares: bool) -> Callable[[StackedCall], Any]:
    """The rule of a single op: it becomes one of all models.

    Args:
        of_models: gives the op of all models.
        shares: whether the second operand are filters: where models share them, images are put one after the
            other.
    """

    def rule(call: StackedCall) -> Any:
        if shares and not call.is_stacked[1]:
            images, filters = call.operands
            made = call.again([folded(images), filters])
            return reshape(made, (call.count, images.shape[1], *made.shape[1:]))
        return of_models()(*map(call.whole, (0, 1)), **call.attributes, way=way)

    return rule


def _again(call: StackedCall) -> Any:
    """Models of models: all in one row."""
    whole = [call.whole(k) for k in range(len(call.operands))]
    made = call.again(list(map(folded, whole)))
    return reshape(made, (*whole[0].shape[:2], *made.shape[1:]))


# --- what an op of all models has of the op of one -------------------------------------------------


def _shapes(one: Op) -> Any:
    def shapes(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
        own = [Spec(spec.shape[1:], spec.dtype) for spec in specs]
        return (specs[0].shape[0], *one.shapes(words, own, attributes))

    return shapes


def _each(function: Callable[..., Array], shapes: Any) -> Callable[..., Array]:
    """A function on arrays, for each model."""

    def called(*arrays: Array, **settled: Any) -> Array:
        if not len(arrays[0]):
            specs = [Spec(a.shape, a.dtype) for a in arrays]
            return np.zeros(shapes(None, specs, settled), np.result_type(*arrays))
        return np.stack([function(*own, **settled) for own in zip(*arrays, strict=True)])

    return called


def _any_way(function: Make) -> Make:
    """A function that has no need to know the way."""

    def called(*operands: Any, way: str, **settled: Any) -> Any:
        return function(*operands, **settled)

    return called


def _nodes(one: Op) -> Make:
    def made(*operands: Any, **settled: Any) -> Any:
        count = operands[0].shape[0]
        return stack([one(*(getitem(x, k) for x in operands), **settled) for k in range(count)])

    return made


def _samples(one: Op, settle: bool, **more: str) -> Callable[[Draw], Iterable[Sample]]:
    """Two models of each of the first samples of the op of one."""

    def samples(draw: Draw) -> Iterable[Sample]:
        pairs = zip(one.samples(draw), one.samples(draw), strict=True)
        for first, second in itertools.islice(pairs, _SAMPLES):
            operands = tuple(map(np.stack, zip(first.operands, second.operands, strict=True)))
            attributes = first.attributes
            if settle:
                specs = [Spec(x.shape, x.dtype) for x in first.operands]
                attributes = one.settle(specs, {**one.attributes, **attributes})
            yield Sample(operands, {**attributes, **more})

    return samples


def of_models(one: Op, name: str, args: tuple[str, str], vjp: Any, function: str, call: Make) -> Op:
    """The op of all models, of one of the three.

    Args:
        one: that of one model.
        name: of the new one.
        args: names of its operands.
        vjp: its gradient.
        function: of a library, that computes one model's,
        call: and what computes all of them where a target has that function.
    """
    shapes = _shapes(one)
    return Op(
        name=name,
        args=args,
        formula=f"for each model {one.formula}",
        kind=one.kind,
        shapes=shapes,
        dtypes=promote,
        numpy=_any_way(_each(one.numpy, shapes)),
        vjp=vjp,
        reference=_any_way(_each(one.reference, shapes)),
        samples=_samples(one, settle=True, way="calls"),
        attributes=dict.fromkeys((*one.attributes, "way"), REQUIRED),
        contracts="add",
        decompose=_any_way(_nodes(one)),
        by_library={function: call},
        stacked=_again,
    )


# --- calls of a library ----------------------------------------------------------------------------


def convolution(x: Any, w: Any, algorithm: str, way: str, **settled: Any) -> Any:
    """Convolutions; None where the library does not take the operands."""
    if way == "groups":
        made = _calls.convolution(_beside(x), _beside(w), **_grouped(settled, x))
        return None if made is None else _apart(made, x.shape[0])
    return _called(convolutions_whole, x, w, settled)


def inputs(g: Any, w: Any, algorithm: str, way: str, **settled: Any) -> Any:
    """What their gradients for inputs are, likewise."""
    if way == "groups":
        made = _calls.inputs(_beside(g), _beside(w), **_grouped(settled, g))
        return None if made is None else _apart(made, g.shape[0])
    return _called(convolutions_inputs_whole, g, w, settled)


def filters(x: Any, g: Any, algorithm: str, way: str, **settled: Any) -> Any:
    """What their gradients for filters are, likewise."""
    if way == "groups":
        made = _calls.filters(_beside(x), _beside(g), **_grouped(settled, x))
        return None if made is None else _apart(made, x.shape[0])
    return _called(convolutions_filters_whole, x, g, settled)


def _called(op: Op, one: Any, other: Any, settled: Mapping[str, Any]) -> Any:
    operands = _calls.operands_for(one, other, settled)
    if operands is None:
        return None
    dtype = np.result_type(one.dtype, other.dtype)
    first, second = operands
    if op is convolutions_filters_whole:
        made = _moved(op(first, second, **settled), first=False)
    else:
        made = op(first, _moved(second, first=True), **settled)
    return cast(made, dtype.name) if made.dtype != dtype else made


def _moved(w: Any, *, first: bool) -> Any:
    """Filters with their number in front of their other axes, or again as the last."""
    axes = tuple(range(1, len(w.shape)))
    return transpose(w, (0, axes[-1], *axes[:-1]) if first else (0, *axes[1:], axes[0]))


def _beside(x: Any) -> Any:
    """`[k, *axes, c]` as `[*axes, k c]`."""
    last = len(x.shape) - 1
    x = transpose(x, (*range(1, last), 0, last))
    return reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))


def _apart(x: Any, count: Any) -> Any:
    """`[*axes, k c]` as `[k, *axes, c]`."""
    x = reshape(x, (*x.shape[:-1], count, x.shape[-1] // count))
    last = len(x.shape) - 1
    return transpose(x, (last - 1, *range(last - 1), last))


def _grouped(settled: Mapping[str, Any], x: Any) -> dict[str, Any]:
    return {**settled, "groups": settled["groups"] * x.shape[0]}


def _whole(one: Op, name: str, **parts: Any) -> Op:
    """The op of all models, of one that is a call of a library."""
    library, shapes = one.library, _shapes(one)
    assert library is not None
    operations = library.operations

    def of_all(*shapes: Shape) -> Size:
        return product((shapes[0][0], operations(*(shape[1:] for shape in shapes))))

    return Op(
        name=name,
        args=one.args,
        formula=f"for each model {one.formula}",
        kind=OpKind.LIBRARY,
        shapes=shapes,
        dtypes=promote,
        numpy=_each(one.numpy, shapes),
        vjp=NoGradient(why=WHY),
        reference=_each(one.reference, shapes),
        samples=_samples(one, settle=False),
        attributes=dict(one.attributes),
        contracts="add",
        library=replace(library, strided=(), of_models=True, operations=of_all),
        stacked=_again,
        **parts,
    )


def _absorbed(node: Node, epilogue: Epilogue) -> Any:
    return absorbed_by(convolutions_biased, convolutions_added, node, epilogue)


convolutions_whole = _whole(
    _calls.convolution_whole, "_convolutions_whole", absorbs={"fprop_fused": _absorbed}
)
convolutions_inputs_whole = _whole(_calls.convolution_inputs_whole, "_convolutions_inputs_whole")
convolutions_filters_whole = _whole(_calls.convolution_filters_whole, "_convolutions_filters_whole")
convolutions_biased = _whole(convolution_biased, "_convolutions_biased")
convolutions_added = _whole(convolution_added, "_convolutions_added")
