"""Losses: what training makes smaller. Records such as `CrossEntropy`, and functions that apply them."""

from typing import TYPE_CHECKING

from magmadnn.calls import check_public, explains_names

from .classification import BinaryCrossEntropy as BinaryCrossEntropy
from .classification import CrossEntropy as CrossEntropy
from .classification import Hinge as Hinge
from .classification import binary_cross_entropy as binary_cross_entropy
from .classification import cross_entropy as cross_entropy
from .classification import hinge as hinge
from .conversion import FunctionLoss as FunctionLoss
from .conversion import LossLike as LossLike
from .conversion import as_loss as as_loss
from .loss import Loss as Loss
from .loss import by_name as by_name
from .loss import weighted_mean as weighted_mean
from .regression import Huber as Huber
from .regression import MeanAbsoluteError as MeanAbsoluteError
from .regression import MeanSquaredError as MeanSquaredError
from .regression import huber as huber
from .regression import mae as mae
from .regression import mean_absolute_error as mean_absolute_error
from .regression import mean_squared_error as mean_squared_error
from .regression import mse as mse

__all__ = [
    "BinaryCrossEntropy",
    "CrossEntropy",
    "FunctionLoss",
    "Hinge",
    "Huber",
    "Loss",
    "LossLike",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "as_loss",
    "binary_cross_entropy",
    "by_name",
    "cross_entropy",
    "hinge",
    "huber",
    "mae",
    "mean_absolute_error",
    "mean_squared_error",
    "mse",
    "weighted_mean",
]

check_public(vars(), "bool", "float")

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.losses", __all__)
