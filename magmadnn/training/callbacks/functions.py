"""Callbacks made of a user's functions: a setting by epoch, a function for each hook."""

from __future__ import annotations

from collections.abc import Callable

from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.training.loop.fit import Fit

from .callback import Callback


class Schedule(Callback):
    """Sets a setting of the optimiser at the start of each epoch.

    `Schedule(lambda epoch: 0.1 / (epoch + 1))` sets the learning rate.

    Args:
        schedule: function of the epoch, counted from 0.
        setting: which setting.

    Raises:
        ArgumentError: if schedule is no function.
    """

    is_everywhere = True

    def __init__(self, schedule: Callable[[int], float], setting: str = "learning_rate") -> None:
        if not callable(schedule):
            raise ArgumentError(
                f"Schedule: schedule must be a function of the epoch, got {schedule!r}"
            )
        self.schedule, self.setting = schedule, setting

    def on_epoch_begin(self, fit: Fit) -> None:
        """Set the value."""
        fit.step.set(**{self.setting: float(self.schedule(fit.epoch))})


class LambdaCallback(Callback):
    """Calls functions at the hooks: `LambdaCallback(on_epoch_end=lambda fit: print(fit.row))`."""

    def __init__(self, **hooks: Callable[[Fit], None]) -> None:
        known = [name for name in vars(Callback) if name.startswith("on_")]
        for name, function in hooks.items():
            if name not in known:
                raise UnknownNameError.of("LambdaCallback: hook", name, known)
            if not callable(function):
                raise ArgumentError(
                    f"LambdaCallback: {name} must be a function of the fit, got {function!r}; write "
                    f"{name}=lambda fit: print(fit.row)"
                )
            setattr(self, name, function)
