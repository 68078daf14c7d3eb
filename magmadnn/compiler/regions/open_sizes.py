"""Sizes that are not known while passes work, since a plan is for many.

A pass that asks whether a size is below a number gets the answer for the sizes of the program at hand, and it
is noted. Reductions that choose an element need one at least, and kernels do not look whether there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np

from magmadnn.compiler.kernels.columns import DEVIATIONS
from magmadnn.compiler.kernels.rows import CHOOSING, COMBINED
from magmadnn.graph.dim import Dim, Size, bind_shape, substitute
from magmadnn.graph.node import Node, naming_scope
from magmadnn.graph.op import Op, OpKind
from magmadnn.graph.program import Program


@dataclass(frozen=True)
class Answer:
    """Whether a size with symbols is below a number."""

    size: Dim
    number: int
    is_below: bool

    def of(self, sizes: Mapping[str, int]) -> bool:
        """What the answer is for other sizes."""
        return self.size.bind(sizes) < self.number


_asked: ContextVar[tuple[Mapping[str, int], list[Answer]] | None] = ContextVar(
    "magmadnn_sizes_asked", default=None
)


@contextmanager
def noted_answers(sizes: Mapping[str, int]) -> Iterator[list[Answer]]:
    """Inside, symbols stand for these numbers where `is_below` is asked; the answers, as they are given."""
    answers: list[Answer] = []
    token = _asked.set((sizes, answers))
    try:
        yield answers
    finally:
        _asked.reset(token)


def is_below(size: Size, number: int) -> bool:
    """Whether a size is known to be less than `number`."""
    return _answer(size, number) is True


def is_at_least(size: Size, number: int) -> bool:
    """Whether a size is known not to be less than `number`."""
    return _answer(size, number) is False


def _answer(size: Size, number: int) -> bool | None:
    """Whether a size is less than `number`; None where that is not known."""
    if not isinstance(size, Dim):
        return size < number
    asked = _asked.get()
    if asked is None or not size.symbols <= asked[0].keys():
        return None
    sizes, answers = asked
    answer = Answer(size, number, size.bind(sizes) < number)
    answers.append(answer)
    return answer.is_below


# --- sizes that must not be 0 ---------------------------------------------------------------------


Choice = tuple[Node, Dim]


def open_choices(program: Program) -> tuple[Choice, ...]:
    """Reductions that choose along axes whose sizes are not known, with each of these sizes.

    Those of the program as it was given: what other ops are made of may have nothing to choose from where
    nobody reads what is chosen.
    """
    return tuple(
        (node, size)
        for node in program.nodes()
        if isinstance(node.op, Op) and _chooses(node.op)
        for axis in _axes(node)
        if isinstance(size := node.inputs[0].shape[axis], Dim)
    )


def _chooses(op: Op) -> bool:
    """Whether an op gives one of the elements, or its place: no other reduction goes without a name."""
    named = op.contracts in (*COMBINED, DEVIATIONS)
    return op.kind is OpKind.REDUCTION and (op.contracts in CHOOSING or not named)


def _axes(node: Node) -> tuple[int, ...]:
    """The axes of a reduction; none where a user's own op calls them something else."""
    axes = node.attributes.get("axis")
    return axes if isinstance(axes, tuple) else ()


def check_choices(choices: Iterable[Choice], sizes: Mapping[str, int]) -> None:
    """Before kernels run with these sizes: the op itself says if there is nothing to choose from.

    Raises:
        ShapeError: naming the empty axis.
    """
    for node, size in choices:
        if size.bind(sizes) == 0:
            assert isinstance(node.op, Op)
            x = node.inputs[0]
            attributes = {k: substitute(v, sizes) for k, v in node.attributes.items()}
            with naming_scope(node):
                node.op.numpy(np.empty(bind_shape(x.shape, sizes), x.dtype), **attributes)
