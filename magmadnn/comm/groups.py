"""Which communicator a graph's collectives run on: graphs name groups, runs bind them.

A graph holds no communicator, so one graph serves any number of runs, ranks and kinds of communicator. The
op's attributes `group` and `ranks` say which group it means and how many ranks it was made for; `bound` says
for a thread which communicator that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

from magmadnn.errors import ArgumentError, CommunicationError, MagmaDNNError, NumericError

from .communicator import Communicator
from .job import world
from .sites import call_site, told_site

WORLD: Final = "world"
Groups = Mapping[str, Communicator]

_witnesses: ContextVar[Communicator | None] = ContextVar("magmadnn_witnesses", default=None)
_bound: ContextVar[Groups] = ContextVar("magmadnn_groups", default=MappingProxyType({}))


@contextmanager
def bound(groups: Communicator | Groups) -> Iterator[None]:
    """Run the collectives of graphs on these communicators, on this thread, while the block lasts.

    Args:
        groups: a communicator for each name of a group, beside those that are bound already; a single
            communicator is that of the group "world". A group "world" that nobody bound is all ranks of
            `magmadnn launch`, this process alone without it.

    >>> import numpy as np
    >>> import magmadnn as md
    >>> def rank(comm):
    ...     x = md.placeholder("x", (2,), "float32")
    ...     total = md.ops.all_reduce(x, ranks=3)
    ...     with md.comm.bound(comm):
    ...         return total.eval({x: np.full(2, comm.rank, "float32")}).numpy().tolist()
    >>> md.comm.simulate(3, rank)
    [[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]]
    """
    named = {WORLD: groups} if isinstance(groups, Communicator) else groups
    if not isinstance(named, Mapping) or not all(
        isinstance(name, str) and isinstance(one, Communicator) for name, one in named.items()
    ):
        raise ArgumentError(
            "bound: groups must be a communicator of md.comm, or a dict of them by name of the group, got "
            f"{type(groups).__name__}"
        )
    token = _bound.set({**_bound.get(), **named})
    try:
        yield
    finally:
        _bound.reset(token)


class Binding:
    """What is bound on a thread, and its line of the user's program, for a run that goes on in others."""

    def __init__(self) -> None:
        self._groups, self._site = _bound.get(), call_site()

    @contextmanager
    def here(self) -> Iterator[None]:
        """Bind the same on this thread while the block lasts."""
        token = _bound.set(self._groups)
        try:
            with told_site(self._site):
                yield
        finally:
            _bound.reset(token)


def group_named(name: str, ranks: int, call: str) -> Communicator:
    """The communicator of a group, for a call of all its ranks.

    Raises:
        CommunicationError: if nobody bound it, or it has another number of ranks than the graph says.
    """
    witnesses = _witnesses.get()
    if witnesses is not None:
        _ask(witnesses)
    return group_of(name, ranks, call)


def group_of(name: str, ranks: int, call: str) -> Communicator:
    """As `group_named`, for what is no call, such as the wait for one: no rank is asked."""
    found = _bound.get().get(name)
    if found is None and name == WORLD:
        found = world()
    if found is None:
        known = ", ".join(sorted(_bound.get())) or "none"
        raise CommunicationError(
            f"{call}: no communicator is bound to group {name!r} (bound: {known}): run in "
            f"md.comm.bound({{{name!r}: communicator}})"
        )
    if found.size != ranks:
        raise CommunicationError(
            f"{call}: the graph was made for ranks={ranks} in group {name!r}, the communicator has "
            f"{found.size}: make the graph again, or bind another one"
        )
    return found


@contextmanager
def telling() -> Iterator[None]:
    """What one rank raises in the block is raised on all, which run the same collectives in it.

    Each collective first asks whether all ranks have come that far: for runs that look for a mistake.

    Raises:
        NumericError, MagmaDNNError: where another rank raised, with its number and its words.
    """
    known = _bound.get()
    ranks = known.get(WORLD) or (next(iter(known.values())) if len(known) == 1 else None)
    if ranks is None or ranks.size == 1:
        yield
        return
    token = _witnesses.set(ranks)
    try:
        yield
        _ask(ranks)
    except _ToldError as told:
        raise told.error from None
    except CommunicationError:
        raise
    except Exception as error:
        ranks.exchange(f"{type(error).__name__}: {error}")
        raise
    finally:
        _witnesses.reset(token)


def is_telling() -> bool:
    """Whether this thread is in `telling`: it uses the communicator between any two collectives."""
    return _witnesses.get() is not None


class _ToldError(Exception):
    """Another rank has raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _ask(ranks: Communicator) -> None:
    """Raise if another rank has raised."""
    for rank, text in enumerate(ranks.exchange(None)):
        if text is not None:
            kind = NumericError if text.startswith("NumericError") else MagmaDNNError
            raise _ToldError(kind(f"rank {rank} of {ranks.size} stopped the step: {text}"))
