"""Metrics: how good predictions are. Each is a record; sums over batches, then a result."""

from typing import TYPE_CHECKING

from magmadnn.calls import check_public, explains_names

from .classification import F1 as F1
from .classification import Accuracy as Accuracy
from .classification import ConfusionMatrix as ConfusionMatrix
from .classification import MatthewsCorrelation as MatthewsCorrelation
from .classification import Precision as Precision
from .classification import Recall as Recall
from .classification import TopK as TopK
from .conversion import MetricLike as MetricLike
from .conversion import as_metric as as_metric
from .metric import Average as Average
from .metric import Metric as Metric
from .metric import by_name as by_name
from .ranking import AUC as AUC
from .regression import R2 as R2
from .regression import MeanAbsoluteError as MeanAbsoluteError
from .regression import MeanSquaredError as MeanSquaredError
from .regression import RootMeanSquaredError as RootMeanSquaredError

__all__ = [
    "AUC",
    "F1",
    "R2",
    "Accuracy",
    "Average",
    "ConfusionMatrix",
    "MatthewsCorrelation",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Metric",
    "MetricLike",
    "Precision",
    "Recall",
    "RootMeanSquaredError",
    "TopK",
    "as_metric",
    "by_name",
]

check_public(vars(), "bool", "float")

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.metrics", __all__)
