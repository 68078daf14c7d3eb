"""What all estimators have beside `fit`: settings by name, as scikit-learn's tools ask for them."""

from __future__ import annotations

from inspect import signature
from typing import Any, ClassVar, Self

import numpy as np

from magmadnn.errors import ArgumentError, ShapeError, UnknownNameError, quoted
from magmadnn.memory.dtypes import refuse_masked


class Estimator:
    """The settings of an estimator, by name: `sklearn.base.clone`, pipelines and searches work with it."""

    _kind: ClassVar[str]  # as scikit-learn names it
    _found: ClassVar[str]  # an attribute that is None until `fit`

    @classmethod
    def _names(cls) -> list[str]:
        return list(signature(cls).parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, by name; `deep` changes nothing, as none is an estimator."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor; what was found by `fit` stays until the next.

        Raises:
            UnknownNameError: for a name that is not an argument's.
            ArgumentError: as the constructor.
        """
        known = self._names()
        for name in params:
            if name not in known:
                raise UnknownNameError.of(f"{type(self).__name__}: argument", name, known)
        changed = type(self)(**{**self.get_params(), **params})
        for name in params:
            setattr(self, name, getattr(changed, name))
        return self

    def __repr__(self) -> str:
        usual = signature(type(self)).parameters
        given = self.get_params().items()
        told = [f"{name}={quoted(value)}" for name, value in given if value != usual[name].default]
        return f"{type(self).__name__}({', '.join(told)})"

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, self._found, None) is not None

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's tools ask about an estimator; they alone call it."""
        from sklearn.utils import ClassifierTags, RegressorTags, Tags, TargetTags, TransformerTags

        kind = self._kind
        return Tags(
            estimator_type=None if kind == "transformer" else kind,
            target_tags=TargetTags(required=kind in ("classifier", "regressor")),
            transformer_tags=TransformerTags() if hasattr(self, "transform") else None,
            classifier_tags=ClassifierTags() if kind == "classifier" else None,
            regressor_tags=RegressorTags() if kind == "regressor" else None,
        )


def right_share(name: str, found: Any, y: Any) -> float:
    """The share of rows whose class is the right one.

    Raises:
        ShapeError: if there is not one class for each row.
        DataError: if elements are masked.
    """
    refuse_masked(f"{name}: y", y)
    expected = np.asarray(y)
    if expected.shape != found.shape:
        raise ShapeError(
            f"{name}: y has the shape {expected.shape}, expected a class for each of {len(found)} rows"
        )
    return float(np.mean(found == expected))


def determination(name: str, found: Any, targets: Any) -> float:
    """R^2: 1 - (sum of squared errors) / (sum of squares about the mean), the mean of all targets'.

    A target that does not differ counts 1 where it is met exactly, else 0.

    Raises:
        ShapeError: if there is not one target for each row.
        ArgumentError: if there is one row only.
    """
    if targets.shape != found.shape:
        raise ShapeError(
            f"{name}: y has the shape {targets.shape}, predictions have {found.shape}; give one target "
            "for each row"
        )
    if len(targets) < 2:
        raise ArgumentError(f"{name}: score needs 2 rows or more, got {len(targets)}")
    errors = ((targets - found) ** 2).sum(0)
    about = ((targets - targets.mean(0)) ** 2).sum(0)
    met = np.where(errors > 0, 0.0, 1.0)
    scores = np.where(about > 0, 1 - errors / np.where(about > 0, about, 1), met)
    return float(np.mean(scores))
