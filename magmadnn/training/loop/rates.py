"""What is said of settings that trainings before have left: once, in a line of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from magmadnn.optim.records import Record, Setting
from magmadnn.storage.printing import note

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

    from .fit import Fit

_RATE = "learning_rate"
_told: WeakKeyDictionary[Model, dict[str, Setting]] = WeakKeyDictionary()


class Rates:
    """Looks at settings when a training begins its epochs.

    Args:
        fit: the training, before any callback has set something.
    """

    def __init__(self, fit: Fit) -> None:
        self._is_said = False
        self._left = fit.step.overrides
        fit.step.touched.clear()

    def look(self, fit: Fit) -> None:
        """Say, when callbacks have had their turn, what is still as others left it, and a rate of 0."""
        self._say_left(fit)
        step, rate = fit.step, fit.step.source(_RATE)
        if self._is_said or not callable(rate):
            return
        done = step.count
        last = done + max((fit.batches or 1) - fit.batch, 1) - 1
        if not any(rate(number) for number in {done, (done + last) // 2, last}):
            self._is_said = True
            note(
                f"fit: the learning rate is 0 from step {done} on, so nothing is learnt: {_short(rate)} is "
                "used up; model.reset_optimizer() begins it anew, model.optimizer = ... takes another"
            )

    def _say_left(self, fit: Fit) -> None:
        """Settings that callbacks of an earlier training have set, and none of this one."""
        left, self._left = self._left, {}
        model, touched = fit.model, fit.step.touched
        left = {name: value for name, value in left.items() if name not in touched}
        if left and _told.get(model) != left:
            _told[model] = left
            words = ", ".join(f"{name} {_short(value)}" for name, value in left.items())
            note(
                f"fit: goes on with {words}, which callbacks of an earlier fit have set; "
                "model.reset_optimizer() goes back to the optimiser as it was given"
            )


def _short(value: Setting) -> str:
    """A number, a schedule of ours with its settings, or the name of a function."""
    if not callable(value):
        return f"{value:.6g}"
    return repr(value) if isinstance(value, Record) else str(getattr(value, "__name__", value))
