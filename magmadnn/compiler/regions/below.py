"""Questions of passes whether a size is below a number, which a plan for many sizes keeps in mind.

A pass that asks gets the answer for the sizes of the program at hand, and it is noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from magmadnn.graph.dim import Dim, Size


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
