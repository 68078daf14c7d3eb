"""Training: the model, its loop, its callbacks, and the durable files that a run leaves."""

from magmadnn.calls import check_methods, check_public

from .loop.history import History as History
from .many.fits import fit_many as fit_many
from .model.loading import load as load
from .model.model import Model as Model

__all__ = ["History", "Model", "fit_many", "load"]

check_public(vars())
check_methods(
    Model,
    *("__call__", "fit", "evaluate", "predict", "predict_probability", "predict_class"),
    *("layer", "plan", "diagram", "profile", "save", "export"),
)
