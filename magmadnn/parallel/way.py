"""What all ways to train on several workers have in common: what `fit(parallel=...)` asks of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from magmadnn.comm import Communicator, world
from magmadnn.comm.communicator import Json
from magmadnn.errors import ArgumentError, DataError, FrozenError

from .tree import cuts

if TYPE_CHECKING:
    from .ranks_step import RanksStep


SHARDS = 8  # parts of a batch
MODULE = "module "  # what aspects begin with that are digests of the user's modules


class TrainingWay(ABC):
    """A way in which ranks share a training.

    Args:
        communicator: the ranks that train; None for all of `magmadnn launch`, this process alone without it.
        computed: called with the communicator after each part of a batch that this rank has computed; for
            simulations, in which arithmetic takes no time.

    Raises:
        ArgumentError: if communicator is none.
    """

    travelling: ClassVar[tuple[str, ...] | None] = None  # arguments that are sent to `md.workers`
    wire: Literal["bfloat16"] | None = None  # what gradients are rounded to before they travel

    def __init__(
        self,
        communicator: Communicator | None = None,
        *,
        computed: Callable[[Any], None] | None = None,
    ) -> None:
        if communicator is not None and not isinstance(communicator, Communicator):
            raise ArgumentError(
                f"{type(self).__name__}: communicator must be one of md.comm, got "
                f"{type(communicator).__name__}"
            )
        self.communicator, self.computed = communicator, computed

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse what was given: steps that are made would go on with what it was.

        Raises:
            FrozenError: it is an argument.
        """
        if name in _arguments(type(self)) and self._has(name):
            self.check_change(name)
        object.__setattr__(self, name, value)

    def _has(self, name: str) -> bool:
        """Whether it is there already; the ranks are not, as long as nobody has asked for them."""
        if isinstance(getattr(type(self), name, None), property):
            return True
        return name in vars(self) and (name != "communicator" or self.communicator is not None)

    def check_change(self, name: str) -> None:
        """Refuse to change an argument, or what it holds; see `magmadnn.calls.FixedList`."""
        way = type(self).__name__
        raise FrozenError(
            f"{way}: {name} cannot be set, steps that are made would go on with what it was: make another "
            f"one, {way}(..., {name}=...)"
        )

    def workers(self) -> Communicator:
        """The ranks that train."""
        if self.communicator is None:
            self.communicator = world()
        return self.communicator

    def record(self) -> dict[str, Any]:
        """This way as JSON, for workers that train so; `way_from` reads it.

        Raises:
            ArgumentError: if it cannot travel.
        """
        if self.travelling is None or self.computed is not None:
            reason = "" if self.travelling is None else " with computed="
            raise ArgumentError(
                f"fit: {type(self).__name__}{reason} cannot travel to the workers of md.workers: give "
                "DataParallel, ParameterServer, ModelParallel, Hybrid or Pipeline, or run the script by "
                "magmadnn launch"
            )
        given = {name: self._argument(name) for name in self.travelling}
        return {"way": type(self).__name__, "arguments": given}

    def _argument(self, name: str) -> Any:
        """An argument as it was given."""
        return getattr(self, name)

    def goes_on_with(self, shards: int | None) -> None:
        """Be told, before the first step, of how many shards the training is that this one goes on from.

        Args:
            shards: as the checkpoint says; None if there is none.
        """
        return

    @classmethod
    def of_record(cls, arguments: dict[str, Any], communicator: Communicator) -> TrainingWay:
        """The way that `record` wrote, for these ranks."""
        return cls(communicator=communicator, **arguments)

    @abstractmethod
    def step_class(self) -> Callable[..., RanksStep]:
        """What computes and shares gradients."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What results depend on, beside rounding: part of what a training is known by."""

    def own_rows(self, count: int) -> slice:
        """Which of `count` rows of a batch this rank reads; here all."""
        return slice(0, count)

    def check_same(self, training: Mapping[str, str], beside: Json = None) -> list[Json]:
        """Look whether all ranks are about to run the same training.

        Args:
            training: its aspects in words and digests, by name.
            beside: what may differ, and is told to all with it.

        Returns:
            what each rank told.

        Raises:
            DataError: naming what differs, on which ranks.
        """
        own = {name: str(value) for name, value in self.settings.items()}
        words = {"parallel": repr(self)} | dict(training) | own
        told = self.workers().exchange([words, beside])
        found: Sequence[Any] = [one for one, _ in told]
        for name in [*found[0], *(k for one in found for k in one if k not in found[0])]:
            first, *others = [
                (rank, one.get(name))
                for rank, one in enumerate(found)
                if name in one or not name.startswith(MODULE)  # what one rank imports, to plot, say
            ]
            for rank, one in others:
                if one != first[1]:
                    same = "files" if name.startswith(MODULE) else "model, data and settings"
                    raise DataError(
                        f"{type(self).__name__}: ranks differ in {name}: rank {first[0]} has "
                        f"{first[1] or 'none'}, rank {rank} has {one or 'none'}; give all ranks the same "
                        f"{same}"
                    )
        return [other for _, other in told]


@cache
def _arguments(cls: type[TrainingWay]) -> frozenset[str]:
    """The names that a way is made with."""
    return frozenset(signature(cls).parameters)


def is_whole(value: Any, least: int) -> bool:
    """Whether a value is a whole number of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def shard_rows(communicator: Communicator, count: int, parts: int) -> slice:
    """Which of `count` rows of a batch a rank reads, where the batch is cut into so many parts."""
    bounds, ranks = cuts(count, parts), cuts(parts, communicator.size)
    return slice(bounds[ranks[communicator.rank]], bounds[ranks[communicator.rank + 1]])


def even_rows(communicator: Communicator, count: int) -> slice:
    """A rank's part of `count` rows of a batch, all of them if there are no equal parts."""
    each, rest = divmod(count, communicator.size)
    first = each * communicator.rank
    return slice(0, count) if rest else slice(first, first + each)
