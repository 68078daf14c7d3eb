"""Axes by name: what an op makes of operands of which each rank has a part.

A name that an operand's axis and the result's have in common says that places of the one depend on the same
places of the other alone: each rank computes its own. A name that only operands have is summed over, where
the op adds: ranks have terms of a sum then. An axis without a name must be whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magmadnn.graph.dim import Dim, Shape, Size
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.signature import Attributes, Signature, elementwise
from magmadnn.graph.spec import Spec

Name = object  # None for an axis that must be whole
_PRIMES = (1_000_003, 1_000_033, 1_000_037, 1_000_039, 1_000_081, 1_000_099)
_TRUSTED = (OpKind.CONTRACTION, OpKind.REDUCTION)  # each name of their signatures can be split
_LEADING = (OpKind.LIBRARY, OpKind.OTHER)  # of these only `...`, which are stacks


@dataclass(frozen=True)
class Axes:
    """Names of the axes of a node.

    Attributes:
        operands: a name, or None, for each axis of each operand.
        result: the same of the result.
        adds: whether names that the result has not are summed over.
        sized: the attribute that is the result's shape, if there is one.
        local: what attributes become for a part: `local(attributes, axis of the result, size of the part)`.
    """

    operands: tuple[tuple[Name, ...], ...]
    result: tuple[Name, ...]
    adds: bool = False
    sized: str = ""
    local: Callable[[Attributes, int, Size], Attributes] | None = None

    def attributes(self, attributes: Attributes, name: Name, shape: Shape) -> Attributes:
        """The attributes of what one rank computes, whose result has this shape."""
        if name not in self.result:
            return attributes
        axis = self.result.index(name)
        if self.sized:
            attributes = {**attributes, self.sized: shape}
        return attributes if self.local is None else self.local(attributes, axis, shape[axis])


def axes_of(op: Op, specs: Sequence[Spec], attributes: Attributes) -> Axes | None:
    """The names of an op's axes; None where it has none, so that it needs whole operands."""
    if op.axes is not None:
        found: Axes | None = op.axes(specs, attributes)
        return found
    if op.kind is OpKind.POINTWISE and op.shapes is elementwise:
        return broadcasting([s.shape for s in specs], elementwise(op.words, specs, attributes))
    text = getattr(op.shapes, "signature", None)
    if text is None or op.kind not in (*_TRUSTED, *_LEADING):
        return None
    text = text(*(s.ndim for s in specs), **attributes) if callable(text) else text
    return _of_signature(op, Signature.parse(text), specs)


def broadcasting(shapes: Sequence[Shape], result: Shape, sized: str = "") -> Axes:
    """Shapes that are aligned at their last axis; one of size 1 that is repeated must be whole."""
    return Axes(
        tuple(_aligned(shape, result) for shape in shapes), tuple(range(len(result))), sized=sized
    )


def _aligned(shape: Shape, result: Shape) -> tuple[Name, ...]:
    before = len(result) - len(shape)
    return tuple(before + k if size == result[before + k] else None for k, size in enumerate(shape))


def _of_signature(op: Op, signature: Signature, specs: Sequence[Spec]) -> Axes:
    """Names of a signature; leading axes are numbers."""
    counts = [
        s.ndim - sum(a != "..." for a in axes)
        for axes, s in zip(signature.inputs, specs, strict=True)
    ]
    fronts = [
        s.shape[:n] if "..." in axes else ()
        for axes, s, n in zip(signature.inputs, specs, counts, strict=True)
    ]
    whole = _front(op, specs, fronts)
    is_trusted = op.kind in _TRUSTED

    def names(axes: tuple[str, ...], front: tuple[Name, ...]) -> tuple[Name, ...]:
        found: list[Name] = []
        for axis in axes:
            if axis == "...":
                found += front
            else:
                found.append(axis if is_trusted and not axis.isdigit() else None)
        return tuple(found)

    operands = tuple(
        names(axes, _aligned(front, whole))
        for axes, front in zip(signature.inputs, fronts, strict=True)
    )
    result = names(signature.output, tuple(range(len(whole))))
    return Axes(operands, result, adds=op.contracts == "add")


def _front(op: Op, specs: Sequence[Spec], fronts: Sequence[Shape]) -> Shape:
    given = [Spec(front, s.dtype) for front, s in zip(fronts, specs, strict=True)]
    return elementwise(op.words, given, {})


def reshaping(shape: Shape, result: Shape) -> Axes | None:
    """Runs of axes that become other runs of as many elements: their first axes can be split alike."""
    numbers = {s for size in (*shape, *result) if isinstance(size, Dim) for s in size.symbols}
    if len(numbers) > len(_PRIMES):
        return None
    sizes = dict(zip(sorted(numbers), _PRIMES, strict=False))
    before, after = (
        [n.bind(sizes) if isinstance(n, Dim) else n for n in given] for given in (shape, result)
    )
    if 0 in before or 0 in after:
        return None
    left: list[Name] = [None] * len(before)
    right: list[Name] = [None] * len(after)
    i = j = 0
    while True:
        while i < len(before) and before[i] == 1:
            i += 1
        while j < len(after) and after[j] == 1:
            j += 1
        if i == len(before) or j == len(after):
            return Axes((tuple(left),), tuple(right), sized="shape")
        left[i] = right[j] = (i, j)
        a, b = before[i], after[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a, i = a * before[i], i + 1
            else:
                b, j = b * after[j], j + 1
