"""Training: the model, its loop, its callbacks, and the durable files that a run leaves."""

from .loop.history import History as History
from .model.model import Model as Model
from .model.saving import load as load

__all__ = ["History", "Model", "load"]
