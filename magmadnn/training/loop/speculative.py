"""A call of `fit` like the one before, on a GPU: its first steps run while Python looks at what was given.

What the call before relied on is noted: where data lay, and the slices that were run. If a call begins
alike, so do they, with the order of the next epoch. If the checks then find something, or other slices are
wanted, variables go back to what they were, as if nothing had been begun.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from magmadnn.memory.foreign import OnDevice, on_device
from magmadnn.optim import StepSlices
from magmadnn.runtime.agreement import agreement

from .resident import place_of
from .sources import known_order

if TYPE_CHECKING:
    from magmadnn.runtime.cuda.run.slices import CudaSlices
    from magmadnn.training.model.model import Model

    from .fit import Fit


@dataclass(frozen=True)
class Noted:
    """What a call relied on."""

    key: tuple[Any, ...]
    slices: weakref.ref[CudaSlices]
    addresses: tuple[int, ...]  # where those took rows from

    def found(self) -> CudaSlices | None:
        """The slices, if they still take rows from there."""
        slices = self.slices()
        same = slices is not None and slices.data.addresses == self.addresses
        return slices if same else None


_noted: WeakKeyDictionary[Model, Noted] = WeakKeyDictionary()


class Call:
    """A call of `fit`.

    Attributes:
        x, y: what was given; arrays on the device as they lie there.
        fit: the training, once there is one.
        was_in_vain: whether something was begun, and given up.
    """

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y
        self.fit: Fit | None = None
        self.was_in_vain = False
        self._slices: CudaSlices | None = None

    def settle(self, device: int) -> None:
        """Wait for what other libraries have begun to write into arrays on the device."""
        self.x, self.y = (
            value if (there := on_device(value, device)) is None else there
            for value in (self.x, self.y)
        )

    def begin(self, slices: CudaSlices, order: Any) -> None:
        """Begin with slices."""
        self._slices = slices
        slices.begin(order)

    def keep(self, slices: StepSlices | None) -> None:
        """Go on with these slices; if they are others than those that were begun, all goes back."""
        same = slices is not None and slices.is_fixed and slices.on_device is self._slices
        if not same:  # schedules ask for the count of steps, which would have gone on
            self.leave()

    def leave(self) -> None:
        """Go back to what was before, unless slices went on."""
        if self._slices is not None and self._slices.leave():
            self.was_in_vain = True

    def end(self) -> Fit | None:
        """The training, which lets go of this."""
        fit, self.fit = self.fit, None
        if fit is not None:
            fit.call = None
        return fit


@contextmanager
def begun(model: Model, device: int | None, x: Any, y: Any, batch_size: Any) -> Iterator[Call]:
    """A call that trains on x and y as they are; its first steps, if the call before was alike.

    Args:
        model: what is trained.
        device: number of the GPU; None for a call of which nothing is begun or noted.
        x: inputs.
        y: targets.
        batch_size: of all epochs.
    """
    call, slices = Call(x, y), None
    if not agreement().is_alone:  # nothing is begun that others do not know of
        device = None
    try:
        if device is not None:
            call.settle(device)
            slices = _slices_for(model, call, batch_size)
        yield call
    finally:
        call.leave()
        fit = call.end()
        if call.was_in_vain:
            _noted.pop(model, None)
    if device is not None and slices is None and fit is not None:
        used, key = fit.slices_on_device(), _key(model, call, batch_size)
        if used is not None and key is not None:
            _noted[model] = Noted(key, weakref.ref(used), used.data.addresses)


def _slices_for(model: Model, call: Call, batch_size: Any) -> CudaSlices | None:
    """The slices of the call before, if it was alike; their first steps are on their way."""
    noted = _noted.get(model)
    if noted is None or noted.key != _key(model, call, batch_size):
        return None
    slices, order = noted.found(), known_order(len(call.x), model.seed, model.epochs_done)
    if slices is None or order is None:
        return None
    call.begin(slices, order)
    return slices


def _key(model: Model, call: Call, batch_size: Any) -> tuple[Any, ...] | None:
    """Equal for calls whose data lies at the same places; None where some of it is to be copied."""
    places = [_place(model, value) for value in (call.x, call.y)]
    if None in places:
        return None
    return (batch_size, model.seed, *places)


def _place(model: Model, value: Any) -> tuple[Any, ...] | None:
    """Where an array, or its copy, lies on the device."""
    if isinstance(value, OnDevice):
        return (value.place, value.shape, value.dtype)
    place = place_of(model, "fit", value) if isinstance(value, np.ndarray) else None
    return None if place is None else (place, value.shape, value.dtype)
