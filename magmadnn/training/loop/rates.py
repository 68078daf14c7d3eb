"""What is said of settings that trainings before have left: once, in a line of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from magmadnn.optim.records import Record, Setting
from magmadnn.storage.printing import note

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

    from .fit import Fit

_told: WeakKeyDictionary[Model, dict[str, Setting]] = WeakKeyDictionary()


def say_left(fit: Fit, before: Mapping[str, Setting]) -> None:
    """Say what of the settings `before` callbacks of this training have left as they were."""
    model, touched = fit.model, fit.step.touched
    left = {name: value for name, value in before.items() if name not in touched}
    if left and _told.get(model) != left:
        _told[model] = left
        words = ", ".join(f"{name} {_short(value)}" for name, value in left.items())
        note(
            f"fit: goes on with {words}, which callbacks of an earlier fit have set; "
            "model.reset_optimizer() goes back to the optimiser as it was given"
        )


def say_used_up(fit: Fit, rate: Callable[[int], float]) -> bool:
    """Say that a schedule of the learning rate gives 0 for all that is left of an epoch; whether it does."""
    done = fit.step.count
    last = done + max((fit.batches or 1) - fit.batch, 1) - 1
    if any(rate(number) for number in {done, (done + last) // 2, last}):
        return False
    note(
        f"fit: the learning rate is 0 from step {done} on, so nothing is learnt: {_short(rate)} is "
        "used up; model.reset_optimizer() begins it anew, model.optimizer = ... takes another"
    )
    return True


def _short(value: Setting) -> str:
    """A number, a schedule of ours with its settings, or the name of a function."""
    if not callable(value):
        return f"{value:.6g}"
    return repr(value) if isinstance(value, Record) else str(getattr(value, "__name__", value))
