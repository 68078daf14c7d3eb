"""The base of callbacks: the hooks that training calls."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

from magmadnn.errors import ArgumentError, FrozenError, NumericError
from magmadnn.graph.op import Array
from magmadnn.optim import Transform
from magmadnn.storage.checkpoint import State
from magmadnn.training.loop.fit import Fit


class Callback:
    """Base of callbacks; override the hooks that you need. Each gets the running `Fit`.

    One callback may serve several trainings. What `state` and `tensors` tell is set back to what it was at
    first whenever a training begins; whatever else a callback counts, it sets back in `on_train_begin`.

    Attributes:
        comes_last: whether it is called after the others, wherever it stands among them.
        stands_aside: whether it neither looks at parameters and optimiser nor changes or stops anything, so
            that the next steps may have begun when it is called. What a class says is not true of classes
            that are made from it.
        is_everywhere: whether each rank of a training with `parallel=` calls it, as what decides by figures,
            which are the same on all, may. Others are called on rank 0 alone; all ranks stop, and set the
            optimiser's numbers and schedules and the model's parameters and states, as they do there.
        writes_files: whether it writes into a place that it was given, so that each of several models needs
            one with a place of its own.
    """

    is_everywhere: ClassVar[bool] = False
    comes_last: ClassVar[bool] = False
    writes_files: ClassVar[bool] = False
    stands_aside: ClassVar[bool] = False
    _made_with: ClassVar[
        tuple[str, ...]
    ] = ()  # arguments that a class looks at when it is made only

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse what this class, not one that is derived from it, would not heed any more."""
        if name in vars(type(self)).get("_made_with", ()):
            own = type(self).__name__
            raise FrozenError(
                f"{own}: {name} cannot be set, it is looked at when one is made: make another one, "
                f"{own}(..., {name}=...)"
            )
        told = getattr(type(self), name, None)
        if isinstance(told, property) and told.fset is None:  # of a class that this is derived from
            raise FrozenError(
                f"{type(self).__name__}: {name} cannot be set, a {type(self).__mro__[1].__name__} tells by "
                "it what it was made with: give that to super().__init__, and call what is your own "
                f"something else than {name}"
            )
        object.__setattr__(self, name, value)

    def begin(self, fit: Fit) -> None:
        """Begin a training in the state of the first one; training calls this, `on_train_begin` is yours.

        Raises:
            ArgumentError: if there is a state, but nothing to restore it by.
        """
        cls, base = type(self), Callback
        keeps = (cls.state, cls.tensors) != (base.state, base.tensors)
        if keeps and cls.restore is base.restore:
            raise ArgumentError(
                f"{cls.__name__}: has a state, so it needs restore(self, state, tensors) too"
            )
        first = vars(self).get("_first")
        if first is not None:
            self.restore(*copy.deepcopy(first))
        self.on_train_begin(fit)
        if first is None and keeps:
            self._first = copy.deepcopy((self.state(), self.tensors()))

    @property
    def _ending_signal(self) -> int | None:
        """The signal that ends training; None if none came to it."""
        return None

    def _take_signal(self, number: int) -> None:
        """Take a signal that another rank was sent as if it had come to this one."""

    def _on_other_ranks(self) -> Callback | None:
        """What the other ranks call, where this one is called on rank 0 alone; None for nothing."""
        return None

    def on_train_begin(self, fit: Fit) -> None:
        """Before the first step, and before a training that was saved is resumed."""

    def parts(self) -> tuple[Transform, ...]:
        """What the training step has to compute for this callback, after the optimiser's own parts."""
        return ()

    def evaluated(self, fit: Fit) -> dict[str, Array] | None:
        """Values in place of the model's that validation looks at and early stopping keeps; None for none."""
        return None

    def forgives(self, fit: Fit, error: NumericError) -> bool:
        """Whether a loss that is not finite only ends this training, in place of raising the error."""
        return False

    def saved_run(self) -> Mapping[str, Any]:
        """What the training is known by that this callback will go on from; nothing if there is none."""
        return {}

    def saved(self, fit: Fit) -> State | None:
        """What training is to go on from, asked when all callbacks have begun; None for no such thing."""
        return None

    def on_epoch_begin(self, fit: Fit) -> None:
        """Before the first batch of an epoch, and after resuming within one."""

    def on_batch_end(self, fit: Fit) -> None:
        """After each step; `fit.last_loss` is its loss."""

    def looks(self, fit: Fit) -> bool:
        """Whether `on_batch_end`, called now, would look at parameters, or at the optimiser's state.

        Where ranks have parts of these each, they are collected first.
        """
        return self._has_own("on_batch_end") and not self.is_aside

    @property
    def looks_between_epochs(self) -> bool:
        """Whether `on_epoch_end` or `on_epoch_begin` may look at parameters, or set them."""
        return self._has_own("on_epoch_end", "on_epoch_begin") and not self.is_aside

    @property
    def is_aside(self) -> bool:
        """Whether its class says itself that it `stands_aside`: one derived from such a class may do more."""
        return bool(vars(type(self)).get("stands_aside", False))

    def _has_own(self, *events: str) -> bool:
        """Whether it does anything at one of these events."""
        cls = type(self)
        return any(getattr(cls, e) is not getattr(Callback, e) or e in vars(self) for e in events)

    @property
    def is_idle(self) -> bool:
        """Whether it does nothing, at whatever event, in a training in which nothing goes wrong."""
        return not self._has_own(*_EVENTS)

    def batches(self, fit: Fit) -> int | None:
        """How many batches may run before `on_batch_end` must be called; None for any number.

        Here: each single one, for callbacks that look at batches at all.
        """
        return 1 if self._has_own("on_batch_end") else None

    def on_epoch_end(self, fit: Fit) -> None:
        """After validation; `fit.row` holds the epoch's figures."""

    def on_train_end(self, fit: Fit) -> None:
        """At the end, also after an error."""

    def arguments(self) -> dict[str, Any] | None:
        """What its class was called with, as JSON data; None where that is not known.

        A training that goes on from a checkpoint says which of them are others than before, of callbacks that
        have a state and write no files.
        """
        return None

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep of this callback, as JSON data."""
        return {}

    def tensors(self) -> dict[str, Array]:
        """Arrays that a checkpoint must keep beside `state`."""
        return {}

    def restore(self, state: dict[str, Any], tensors: dict[str, Array]) -> None:
        """Go on from `state()` and `tensors()`."""


_EVENTS = tuple(
    name for name, hook in vars(Callback).items() if callable(hook) and name != "forgives"
)
