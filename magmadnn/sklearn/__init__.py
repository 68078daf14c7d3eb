"""Networks as scikit-learn estimators: `md.sklearn.MagmaClassifier`, `md.sklearn.MagmaRegressor`.

Needs scikit-learn, the extra `sklearn`.
"""

from magmadnn.errors import MissingExtraError

try:
    import sklearn as _sklearn  # noqa: F401  # to say what is missing before anything else fails
except ImportError as error:
    raise MissingExtraError.of("scikit-learn", "magmadnn.sklearn", "sklearn") from error

from .classifier import MagmaClassifier as MagmaClassifier
from .regressor import MagmaRegressor as MagmaRegressor

__all__ = ["MagmaClassifier", "MagmaRegressor"]
