"""Analysis of data with scikit-learn's conventions: `fit`, `transform`, `predict`; results end in `_`.

Estimators take NumPy arrays, Tensors and memory maps, [rows, columns], and give NumPy arrays. Statistics
are accumulated in float64, block by block, so that a memory map is read but never copied as a whole.
"""

from typing import TYPE_CHECKING

from magmadnn.calls import check_methods, check_public, checked_call, explains_names

from .clusters import KMeans
from .components import PCA, TruncatedSVD, randomized_svd
from .discriminants import LinearDiscriminantAnalysis
from .regressions import LinearRegression, Ridge
from .scaling import StandardScaler

__all__ = [
    "PCA",
    "KMeans",
    "LinearDiscriminantAnalysis",
    "LinearRegression",
    "Ridge",
    "StandardScaler",
    "TruncatedSVD",
    "randomized_svd",
]

randomized_svd = checked_call(randomized_svd)
check_public(vars(), "bool")
for _estimator in (PCA, TruncatedSVD, KMeans, LinearDiscriminantAnalysis, Ridge, StandardScaler):
    check_methods(_estimator, *(name for name in vars(_estimator) if not name.startswith("_")))

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.analytics", __all__)
