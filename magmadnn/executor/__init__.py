"""Running plans: bind what is fed, run the steps, write the updates."""

from .evaluate import Executable as Executable
from .watch import FiniteWatch as FiniteWatch

__all__ = ["Executable", "FiniteWatch"]
