"""Callbacks: what happens beside training. Each is a few lines over the hooks of `Callback`."""

from .callback import Callback as Callback
from .checkpoints import Checkpoint as Checkpoint
from .early_stopping import EarlyStopping as EarlyStopping
from .functions import LambdaCallback as LambdaCallback
from .functions import Schedule as Schedule
from .logs import CSVLogger as CSVLogger
from .logs import TensorBoard as TensorBoard

__all__ = [
    "CSVLogger",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "LambdaCallback",
    "Schedule",
    "TensorBoard",
]
