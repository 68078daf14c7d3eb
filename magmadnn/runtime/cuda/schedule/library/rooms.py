"""Workspaces of calls of the device's libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

from magmadnn.backends.cpu.forks import cached_property
from magmadnn.backends.cuda.engine import (
    PRODUCT_WORKSPACE,
    ConvolutionNode,
    Engine,
    FourierNode,
    MatrixNode,
)
from magmadnn.compiler.regions.draft import Work
from magmadnn.runtime.cuda.layout import Layout
from magmadnn.runtime.cuda.schedule.hazards import Span

_LARGEST_OWN = 1 << 20  # bytes


class InTurn:
    """Pieces of scratch memory, of which callers get one after the other.

    Args:
        all_of: gives them; it is asked when the first is wanted.
    """

    def __init__(self, all_of: Callable[[], Sequence[Span]]) -> None:
        self.all_of = all_of

    def take(self) -> Span:
        """The next piece."""
        return next(self._next)

    @cached_property
    def _next(self) -> Iterator[Span]:
        return cycle(self.all_of())


class Rooms:
    """Gives calls a workspace: one of the device's, or where they want more one that calls like them share.

    Calls that share one run one after the other.

    Args:
        layout: keeps those that are made.
        engine: says how much a call wants.
        workspaces: pieces of `PRODUCT_WORKSPACE` bytes.
    """

    def __init__(self, layout: Layout, engine: Engine, workspaces: InTurn) -> None:
        self._layout, self._engine, self._workspaces = layout, engine, workspaces
        self._large: dict[tuple[int, int], Span] = {}  # by their bytes, and which of a call's it is
        self._own: dict[tuple[Work, int], Span] = {}

    def of(self, node: MatrixNode | ConvolutionNode | FourierNode) -> Span:
        """A workspace for a call; an empty one, which others may have too, for a call that wants none."""
        nbytes = self._engine.workspace(node)
        if nbytes > PRODUCT_WORKSPACE:
            return self._shared(nbytes, 0)
        start, end = self._workspaces.take()
        return start, end if nbytes else start

    def pieces(self, work: Work, nbytes: tuple[int, ...]) -> tuple[Span, ...]:
        """Pieces of memory for a step: small ones are its own, large ones are shared as workspaces are."""
        found = []
        for number, wanted in enumerate(nbytes):
            if wanted > _LARGEST_OWN:
                found.append(self._shared(wanted, number + 1))
                continue
            key = work, number
            if key not in self._own:
                start = self._layout.reserved(max(wanted, 1))
                self._own[key] = start, start + max(wanted, 1)
            found.append(self._own[key])
        return tuple(found)

    def _shared(self, nbytes: int, number: int) -> Span:
        """Memory that calls share: what is a call's at the same time has different numbers."""
        unit = max(1 << (nbytes - 1).bit_length() >> 3, 1)
        nbytes = -(-nbytes // unit) * unit  # at most an eighth more, so that some have the same
        if (nbytes, number) not in self._large:
            start = self._layout.reserved(nbytes)
            self._large[nbytes, number] = start, start + nbytes
        return self._large[nbytes, number]
