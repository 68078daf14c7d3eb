"""MagmaClassifier: classes from rows."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from magmadnn.errors import ArgumentError, DataError

from .estimator import Array, Network
from .scaling import Floats


class MagmaClassifier(ClassifierMixin, Network):  # type: ignore[misc]  # scikit-learn has no types
    """A multi-layer perceptron for classes, with the settings of the preset `table`.

    Targets are one class for each row, or, for labels of which a row may have several, a matrix of 0 and 1
    with a column for each label. Inputs are standardised with the statistics of the training rows. The loss
    is the cross entropy, of labels the binary one of each.

    Args:
        hidden_layer_sizes: units of each hidden layer; a number for one layer.
        activation: of the hidden layers; names of `md.layers`.
        dropout: share of the hidden outputs that is dropped in training.
        optimizer: the name of one of `md.optim`.
        weight_decay: of the optimiser; "auto" for the preset's, which follows the number of rows.
        learning_rate: "cosine": falls to 0 along a cosine until the last epoch; or "constant".
        learning_rate_init: of the first step.
        batch_size: rows of a step; "auto" for the preset's.
        max_iter: epochs; "auto" for the preset's: about 1,500 steps, for more than 1,000 rows more.
        shuffle: a new order of the rows in each epoch.
        random_state: of initial values, order and validation rows: a number, a RandomState, or None.
        tol: with early_stopping, what counts as an improvement of the validation loss.
        verbose: whether to print a line for each epoch.
        warm_start: whether `fit` goes on from the parameters and the scaling of the last `fit`.
        early_stopping: whether a part of the rows is kept back; training ends where its loss no longer
            improves, and the parameters of the best epoch are kept.
        validation_fraction: share of the rows that is kept back.
        n_iter_no_change: epochs without an improvement that are put up with.
        refit: with early_stopping, whether all rows are then trained on, from the start to the best epoch.
        device: "cpu", "cuda" or "auto"; see `md.Model`.
        precision: "auto": on the processor that of X, float64 or float32, else float32; or one of `md.Model`.

    Attributes:
        classes_: the classes in order; of labels, their numbers.
        model_: the trained `md.Model`; its inputs are standardised, its outputs logits.
        scaling_: mean and std of the inputs' columns.
        history_: the `md.History` of the last training.
        n_iter_: epochs done.
        best_iter_: with early_stopping, the best epoch, from 1.
        loss_: of the last epoch's training rows.
        n_features_in_, feature_names_in_: of the inputs, as in scikit-learn.
    """

    _numeric = False

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn should know."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One epoch on these rows, at the first learning rate; scaling is that of the first call's rows.

        Args:
            X: as in `fit`.
            y: as in `fit`.
            classes: all that there will be; needed in the first call, later they may be left out.
            sample_weight: as in `fit`.
        """
        if not hasattr(self, "model_"):
            if classes is None:
                raise ArgumentError("partial_fit: classes must be given in the first call")
            self._expected = np.unique(classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ArgumentError(
                f"partial_fit: classes={classes!r} is not the same as in the first call, {self.classes_!r}"
            )
        return self._partial_fit(X, y, sample_weight)

    def decision_function(self, X: Any) -> Array:
        """The network's logits: [rows, classes]; for two classes the difference of both, [rows].

        Args:
            X: [rows, features].
        """
        logits = self._raw(X)
        if self._multilabel or logits.shape[1] > 2:
            return logits
        difference: Array = logits[:, 1] - logits[:, 0]
        return difference

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, or of each label: [rows, classes].

        Args:
            X: [rows, features].
        """
        logits = self._raw(X).astype(np.float64)
        if self._multilabel:
            return np.exp(-np.logaddexp(0.0, -logits))
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        found: Array = shares / shares.sum(axis=1, keepdims=True)
        return found

    def predict(self, X: Any) -> Array:
        """The likeliest class of each row, or its labels, [rows, labels] of 0 and 1.

        Args:
            X: [rows, features].
        """
        logits = self._raw(X)
        if self._multilabel:
            return (logits > 0).astype(np.int64)
        found: Array = self.classes_[logits.argmax(axis=1)]
        return found

    def _loss(self) -> str:
        return "binary_cross_entropy" if self._multilabel else "cross_entropy"

    def _learn_target(self, y: Array, weights: Floats | None) -> None:
        check_classification_targets(y)
        self._multilabel = type_of_target(y) == "multilabel-indicator"
        if y.ndim > 1 and not self._multilabel:
            raise DataError(
                "fit: y has several columns, but classes of several outputs are not known"
            )
        found = np.arange(y.shape[1]) if self._multilabel else np.unique(y)
        self.classes_ = self.__dict__.pop("_expected", found)
        if len(self.classes_) < 2 and not self._multilabel:
            raise DataError(
                f"fit: y has one class only, {self.classes_[0]}, expected at least 2 classes"
            )

    def _encoded(self, y: Array) -> Array:
        if self._multilabel:
            if y.ndim != 2 or y.shape[1] != len(self.classes_):
                raise DataError(
                    f"fit: y has the shape {y.shape}, expected {len(self.classes_)} labels"
                )
            return y.astype(self._dtype)
        if len(unknown := np.setdiff1d(y, self.classes_)):
            raise DataError(
                f"fit: y has the class {unknown[0]}, which is none of {self.classes_!r}"
            )
        return np.searchsorted(self.classes_, y)

    def _outputs(self, targets: Array) -> int:
        return len(self.classes_)

    def _groups(self, y: Array) -> Array | None:
        return None if self._multilabel else y
