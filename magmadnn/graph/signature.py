"""Axes named once: `"... m k, ... k n -> ... m n"`.

From that text come the shape rule, the words of the error, the number of floating-point operations and,
later, the sharding rules. A token is an axis name, `...` (leading axes, broadcast as NumPy does), or an
integer (an axis of that size).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from magmadnn.errors import ShapeError

from .dim import Shape, Size, product
from .spec import Spec

Attributes = Mapping[str, Any]
ShapeRule = Callable[["OpWords", Sequence[Spec], Attributes], Shape]


@dataclass(frozen=True)
class OpWords:
    """What an error needs to know of an op: its name, its operands' names, its formula.

    `integers` names operands that are counted with (indices, classes) or only tell which (conditions): a
    Python number there is what it is, whatever the dtype of the operands beside it, which it does not change.
    """

    name: str
    args: tuple[str, ...]
    formula: str
    integers: tuple[str, ...] = ()

    def operand(self, number: int) -> str:
        """The name of an operand; those of `*xs` are `xs[0]`, `xs[1]`, ..."""
        if self.args and self.args[-1].startswith("*") and number >= len(self.args) - 1:
            return f"{self.args[-1][1:]}[{number - len(self.args) + 1}]"
        return self.args[number] if number < len(self.args) else f"operand {number}"

    def shapes(self, specs: Sequence[Spec]) -> str:
        """`x (2, 3), w (4, 5)`."""
        return ", ".join(f"{self.operand(i)} {shape_text(s.shape)}" for i, s in enumerate(specs))


def shape_text(shape: Shape) -> str:
    """A shape as Python writes a tuple, symbols by name: `(batch, 784)`."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


@dataclass(frozen=True)
class Signature:
    """A parsed signature: the axes of each operand and of the result."""

    text: str
    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]

    @classmethod
    @cache
    def parse(cls, text: str) -> Signature:
        """The signature that `text` says."""
        left, right = text.split("->")
        return cls(text, tuple(tuple(p.split()) for p in left.split(",")), tuple(right.split()))

    def bind(self, words: OpWords, specs: Sequence[Spec]) -> tuple[Shape, dict[str, Size]]:
        """The result's shape and the size of each axis.

        Raises:
            ShapeError: naming the axis, the sizes and the operands.
        """
        sizes: dict[str, Size] = {}
        owner: dict[str, str] = {}
        leading: list[tuple[int, Shape]] = []
        for number, (axes, spec) in enumerate(zip(self.inputs, specs, strict=True)):
            rest = self._leading_count(words, specs, number)
            if "..." in axes:
                leading.append((number, spec.shape[:rest]))
            named = [a for a in axes if a != "..."]
            for axis, size in zip(named, spec.shape[rest:], strict=True):
                expected = int(axis) if axis.isdigit() else sizes.setdefault(axis, size)
                if size != expected:
                    where = f" in {owner[axis]}" if axis in owner else ""
                    raise ShapeError(
                        f"{words.name}: axis {axis} is {expected}{where} but {size} in "
                        f"{words.operand(number)}; make them equal: {self.text}, {words.shapes(specs)}"
                    )
                owner.setdefault(axis, words.operand(number))
        front = broadcast(words, specs, leading)
        shape: list[Size] = []
        for axis in self.output:
            shape.extend(front if axis == "..." else [int(axis) if axis.isdigit() else sizes[axis]])
        if leading:
            sizes["..."] = product(front)
        return tuple(shape), sizes

    def _leading_count(self, words: OpWords, specs: Sequence[Spec], number: int) -> int:
        """How many leading axes an operand has, which `...` stands for."""
        axes, ndim = self.inputs[number], specs[number].ndim
        named = sum(a != "..." for a in axes)
        if ndim < named or (ndim > named and "..." not in axes):
            more = " or more" if "..." in axes else ""
            raise ShapeError(
                f"{words.name}: {words.operand(number)} has {axes_text(ndim)}, expected {named}{more} "
                f"({' '.join(axes) or 'a scalar'}): {words.shapes(specs)}"
            )
        return ndim - named


def broadcast(
    words: OpWords, specs: Sequence[Spec], shapes: Sequence[tuple[int, Shape]]
) -> tuple[Size, ...]:
    """The shape that numbered shapes broadcast to, by NumPy's rule; a symbol fits itself and 1."""
    result: list[Size] = []
    owner: list[int] = []
    behind = {number: specs[number].ndim - len(shape) for number, shape in shapes}
    for number, shape in shapes:
        for back in range(1, len(shape) + 1):
            size = shape[-back]
            if back > len(result):
                result.insert(0, size)
                owner.insert(0, number)
            elif result[-back] == 1:
                result[-back], owner[-back] = size, number
            elif size not in (1, result[-back]):
                first, axis = (-back - behind[n] for n in (owner[-back], number))
                raise ShapeError(
                    f"{words.name}: axis {first} is {result[-back]} in {words.operand(owner[-back])} "
                    f"but {f'axis {axis} is ' * (axis != first)}{size} in {words.operand(number)}; "
                    f"make them equal, or one of them 1: {words.shapes(specs)}"
                )
    return tuple(result)


def by_signature(signature: str | Callable[..., str]) -> ShapeRule:
    """The shape rule of a signature, or of one that depends on the attributes and the ranks.

    A callable gets the operands' ranks first and then the attributes by name.
    """

    def rule(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
        text = signature
        if callable(text):
            text = text(*(s.ndim for s in specs), **attributes)
        return Signature.parse(text).bind(words, specs)[0]

    rule.signature = signature  # type: ignore[attr-defined]  # which axes can be split over ranks follows
    return rule


def elementwise(words: OpWords, specs: Sequence[Spec], attributes: Attributes) -> Shape:
    """The shape rule of pointwise ops: everything broadcasts."""
    first = specs[0].shape if specs else ()
    if all(s.shape == first for s in specs):
        return first
    return broadcast(words, specs, [(i, s.shape) for i, s in enumerate(specs)])


def axes_text(count: int) -> str:
    """`1 axis`, `2 axes`."""
    return f"{count} {'axis' if count == 1 else 'axes'}"


def is_integer(value: object) -> bool:
    """Whether a value counts: an integer of Python or NumPy, no truth value."""
    if isinstance(value, (bool, np.bool_)):
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]  # a TypeError is an answer
    except TypeError:
        return False
    return True


def axis_number(words: OpWords, axis: Any, ndim: int) -> int:
    """`axis` counted from the front.

    Raises:
        ShapeError: if there is no such axis.
    """
    if not is_integer(axis):
        raise ShapeError(f"{words.name}: axis must be an integer, got {axis!r}")
    if not -ndim <= axis < ndim:
        has = f"has {axes_text(ndim)}; use {-ndim} to {ndim - 1}" if ndim else "is a scalar"
        raise ShapeError(f"{words.name}: there is no axis {axis}: {words.operand(0)} {has}")
    return int(axis) % ndim
