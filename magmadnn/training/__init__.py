"""Training: the model, its loop, its callbacks, and the durable files that a run leaves."""

from .history import History as History
from .model import Model as Model
from .saving import load as load

__all__ = ["History", "Model", "load"]
