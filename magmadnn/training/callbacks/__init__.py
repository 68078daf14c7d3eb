"""Callbacks: what happens beside training. Each is a few lines over the hooks of `Callback`."""

from typing import TYPE_CHECKING

from magmadnn.calls import check_public, explains_names

from .averages import ExponentialMovingAverage as ExponentialMovingAverage
from .callback import Callback as Callback
from .checkpoints import Checkpoint as Checkpoint
from .early_stopping import EarlyStopping as EarlyStopping
from .functions import LambdaCallback as LambdaCallback
from .functions import Schedule as Schedule
from .logs import CSVLogger as CSVLogger
from .logs import TensorBoard as TensorBoard
from .plateau import ReduceLROnPlateau as ReduceLROnPlateau
from .rate_finder import RateFinder as RateFinder
from .time_limit import TimeLimit as TimeLimit

__all__ = [
    "CSVLogger",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "ExponentialMovingAverage",
    "LambdaCallback",
    "RateFinder",
    "ReduceLROnPlateau",
    "Schedule",
    "TensorBoard",
    "TimeLimit",
]

check_public(vars(), "bool")

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.callbacks", __all__)
