"""Running plans: bind what is fed, run the steps, write the updates."""

from .evaluate import Executable as Executable
from .places import device_of as device_of
from .places import placed as placed
from .watch import FiniteWatch as FiniteWatch

__all__ = ["Executable", "FiniteWatch", "device_of", "placed"]
