"""MagmaRegressor: numbers from rows."""

from __future__ import annotations

from typing import Any, Self

from sklearn.base import RegressorMixin

from magmadnn.errors import ShapeError

from .estimator import Array, Network
from .scaling import Floats, Scaling


class MagmaRegressor(RegressorMixin, Network):  # type: ignore[misc]  # scikit-learn has no types
    """A multi-layer perceptron for one quantity or several, with the settings of the preset `table`.

    Inputs and targets are standardised with the statistics of the training rows; predictions are in the
    targets' own units. The loss is the mean squared error of the standardised targets.

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
        model_: the trained `md.Model`; its inputs and outputs are standardised.
        scaling_: mean and std of the inputs' columns.
        target_scaling_: likewise of the targets.
        history_: the `md.History` of the last training.
        n_iter_: epochs done.
        best_iter_: with early_stopping, the best epoch, from 1.
        loss_: of the last epoch's training rows.
        n_features_in_, feature_names_in_: of the inputs, as in scikit-learn.
    """

    _numeric = True
    target_scaling_: Scaling

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn should know."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """One epoch on these rows, at the first learning rate; scaling is that of the first call's rows.

        Args:
            X: as in `fit`.
            y: as in `fit`.
            sample_weight: as in `fit`.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> Array:
        """The predicted quantities: [rows], or [rows, targets] where targets had two axes.

        Args:
            X: [rows, features].
        """
        raw = self._raw(X)
        return self.target_scaling_.restore(raw).reshape(len(raw), *self._target_shape)

    def _loss(self) -> str:
        return "mse"

    def _learn_target(self, y: Array, weights: Floats | None) -> None:
        self.target_scaling_ = Scaling.of(y.reshape(len(y), -1), weights)
        self._target_shape = y.shape[1:]

    def _encoded(self, y: Array) -> Array:
        columns = y.reshape(len(y), -1)
        if columns.shape[1] != len(self.target_scaling_.mean):
            raise ShapeError(
                f"fit: y has {columns.shape[1]} targets, expected {len(self.target_scaling_.mean)} as before"
            )
        return self.target_scaling_.apply(columns, self._dtype)

    def _outputs(self, targets: Array) -> int:
        return int(targets.shape[1])

    def _groups(self, y: Array) -> None:
        return None
