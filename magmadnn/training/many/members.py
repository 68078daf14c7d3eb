"""One of many models while it is trained: begun when it is its turn, and left out where it fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from magmadnn.errors import NumericError
from magmadnn.storage.printing import note
from magmadnn.training.loop.fit import Fit
from magmadnn.training.loop.history import History


class Member:
    """A model of the set.

    Args:
        number: of the model, from 0.
        make: gives its training.

    Attributes:
        history: what was measured; of a model that was left out, up to there.
        is_done: whether its training has ended, well or not.
    """

    def __init__(self, number: int, make: Callable[[], Fit]) -> None:
        self.number, self._make = number, make
        self.history = History()
        self.is_done = False
        self._fit: Fit | None = None
        self._ends: AbstractContextManager[None] | None = None

    @property
    def fit(self) -> Fit:
        """Its training; it has begun."""
        assert self._fit is not None
        return self._fit

    def begin(self) -> None:
        """Make the training, and let callbacks begin."""
        try:
            self._fit = self._make()
            self.history = self._fit.history
            self._ends = self._fit.under_way()
            self._ends.__enter__()
        except Exception as error:
            self._ends = None
            error.add_note(f"in the training of models[{self.number}]")
            raise

    def run_epoch(self) -> None:
        """Run an epoch; where a number is NaN or infinite, this model is left out."""
        try:
            self.fit.run_epoch()
        except NumericError as error:
            self.end(error)
            return
        except BaseException as error:
            error.add_note(f"in the training of models[{self.number}]")
            self.end(error)
            raise
        if not self.fit.goes_further:
            self.end()

    def end(self, error: BaseException | None = None) -> None:
        """Let callbacks end, and let go of what is compiled."""
        if self.is_done:
            return
        self.is_done, ends = True, self._ends
        if ends is None:
            return
        kind, trace = type(error) if error else None, error.__traceback__ if error else None
        try:
            forgiven = ends.__exit__(kind, error, trace)
        except NumericError as raised:
            if raised is not error:
                raise
            forgiven = False
        if isinstance(error, NumericError) and not forgiven:
            self.history.stopped = str(error)
            note(f"fit_many: models[{self.number}] is left out, the others go on: {error}")
