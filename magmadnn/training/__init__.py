"""Training: the model, its loop, its callbacks, and the durable files that a run leaves."""

from magmadnn.calls import check_methods, check_public

from .loop.history import History as History
from .many.ensemble import Ensemble as Ensemble
from .many.fits import fit_many as fit_many
from .many.folds import CrossValidation as CrossValidation
from .many.folds import cross_validate as cross_validate
from .many.loading import load as load
from .model.model import Model as Model

__all__ = ["CrossValidation", "Ensemble", "History", "Model", "cross_validate", "fit_many", "load"]

check_public(vars())
check_methods(Ensemble, "predict", "predict_std", "predict_probability", "predict_class", "save")
check_methods(
    Model,
    *("__call__", "fit", "evaluate", "predict", "predict_probability", "predict_class"),
    *("layer", "plan", "diagram", "profile", "save", "export"),
)
