"""What classifier and regressor have in common: the parameters, the training, the network's outputs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from magmadnn import optim
from magmadnn.errors import ArgumentError, CheckpointError, UnknownNameError
from magmadnn.layers import Input
from magmadnn.memory.dtypes import refuse_masked
from magmadnn.models import MLP, Preset
from magmadnn.models.network import rows_of_batch
from magmadnn.models.perceptron import mlp_layers
from magmadnn.training import Model
from magmadnn.training.arguments import at_least
from magmadnn.training.callbacks import Callback, EarlyStopping

from .scaling import Floats, Scaling

Array = NDArray[Any]
Rows = tuple[Array, Array, Floats | None]  # inputs, targets, weights
TABLE = MLP.preset("table")
SCHEDULES = ("constant", "cosine")


class Network(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A multi-layer perceptron on standardised inputs: the base of classifier and regressor."""

    model_: Model
    scaling_: Scaling
    _dtype: str  # of the network's inputs
    _numeric: bool  # whether targets are numbers, not classes

    def __init__(
        self,
        hidden_layer_sizes: Any = TABLE.hidden,
        activation: str = TABLE.activation,
        *,
        dropout: float = TABLE.dropout,
        optimizer: Any = TABLE.optimizer,
        weight_decay: Any = "auto",
        learning_rate: str = "cosine",
        learning_rate_init: float = TABLE.learning_rate,
        batch_size: Any = "auto",
        max_iter: Any = "auto",
        shuffle: bool = True,
        random_state: Any = None,
        tol: float = 1e-4,
        verbose: Any = False,
        warm_start: bool = False,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        refit: bool = False,
        device: str = "cpu",
        precision: str = "auto",
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.dropout = dropout
        self.optimizer = optimizer
        self.weight_decay = weight_decay
        self.learning_rate = learning_rate
        self.learning_rate_init = learning_rate_init
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.random_state = random_state
        self.tol = tol
        self.verbose = verbose
        self.warm_start = warm_start
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.refit = refit
        self.device = device
        self.precision = precision

    # --- what classifier and regressor differ in ---------------------------------------------------

    @abstractmethod
    def _learn_target(self, y: Array, weights: Floats | None) -> None:
        """Keep what the targets of a first training say: their classes, or their scaling."""

    @abstractmethod
    def _encoded(self, y: Array) -> Array:
        """Targets as the loss takes them."""

    @abstractmethod
    def _loss(self) -> str:
        """The name of the loss."""

    @abstractmethod
    def _outputs(self, targets: Array) -> int:
        """How many numbers the network gives for a row, for targets as the loss takes them."""

    @abstractmethod
    def _groups(self, y: Array) -> Array | None:
        """What validation rows are to have in the shares of all rows; None for nothing."""

    # --- training ----------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on all rows; with `warm_start`, from the parameters that are there.

        Args:
            X: [rows, features], finite numbers.
            y: a target for each row, [rows], or several, [rows, targets].
            sample_weight: [rows], how much each row counts; not negative. 2 counts as the row twice.

        Raises:
            ValueError: if rows or parameters are not such; the text says which.
        """
        going_on = self.warm_start and hasattr(self, "model_")
        x, y, weights = self._rows(X, y, sample_weight, reset=not going_on)
        if not going_on:
            self._learn(x, y, weights)
        rows = (self._scaled(x), self._encoded(y), weights)
        seed = self._seed()
        start = self.model_.values() if going_on else None
        if not self.early_stopping:
            return self._train(self._settings(len(x)), rows, None, seed, start)
        kept, held = self._split(y, seed)
        preset = self._settings(len(kept))
        self._train(preset, _taken(rows, kept), _taken(rows, held), seed, start)
        if not self.refit:
            return self
        size = rows_of_batch(preset.batch_size, len(kept), len(x))
        preset = replace(preset, batch_size=size)
        return self._train(preset, rows, None, seed, start, self.best_iter_)

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """One pass over rows, at the first learning rate; scaling is that of the first call's rows."""
        if self.early_stopping:
            raise ArgumentError(
                "partial_fit: early_stopping needs the epochs of fit; set it to False"
            )
        first = not hasattr(self, "model_")
        x, y, weights = self._rows(X, y, sample_weight, reset=first)
        if first:
            self._learn(x, y, weights)
            self.n_iter_ = 0
        # The settings for one number of rows: parts of the data may be large and small.
        targets, preset = self._encoded(y), self._settings(TABLE.rows)
        if first:
            self.model_ = self._network(self._outputs(targets), self._seed())
        optimizer = self._optimizer(preset, None)
        if self.model_.optimizer != optimizer:
            self.model_.optimizer = optimizer
        self.history_ = self.model_.fit(
            self._scaled(x), targets, batch_size=preset.batch_size, epochs=self.n_iter_ + 1,
            initial_epoch=self.n_iter_, sample_weight=weights, shuffle=self.shuffle, verbose=self.verbose,
        )  # fmt: skip
        self.n_iter_ += 1
        self.loss_ = self.history_["loss"][-1]
        return self

    def _train(
        self,
        preset: Preset,
        rows: Rows,
        held: Rows | None,
        seed: int,
        start: dict[str, Array] | None,
        epochs: int | None = None,
    ) -> Self:
        """Train a new network.

        Args:
            preset: settings of the training, which the rate is planned for.
            rows: that are trained on.
            held: that are kept back, and choose the epoch whose parameters are kept.
            seed: of initial values and order.
            start: values of the parameters to begin with.
            epochs: to end after, of those that the rate is planned for; None for all.
        """
        x, targets, weights = rows
        model = self._network(self._outputs(targets), seed)
        model.optimizer = self._optimizer(preset, len(x))
        if start is not None:
            _go_on(model, start)
        stopping = EarlyStopping(
            "val_loss", patience=self.n_iter_no_change, min_delta=self.tol, restore_best=True
        )
        callbacks: list[Callback] = [] if held is None else [stopping]
        self.history_ = model.fit(
            x, targets, batch_size=preset.batch_size, epochs=epochs or preset.epochs,
            validation_data=held, sample_weight=weights, shuffle=self.shuffle,
            callbacks=callbacks, verbose=self.verbose,
        )  # fmt: skip
        self.model_, self.n_iter_ = model, len(self.history_)
        self.loss_ = self.history_["loss"][-1]
        if held is not None:
            self.best_iter_ = stopping.best_epoch
        return self

    def _settings(self, rows: int) -> Preset:
        """The preset `table` for so many rows, changed by the parameters."""
        if self.learning_rate not in SCHEDULES:
            raise UnknownNameError.of("learning_rate", self.learning_rate, SCHEDULES)
        given = {
            "batch_size": self.batch_size,
            "epochs": self.max_iter,
            "weight_decay": self.weight_decay,
        }
        for name, value in (("batch_size", self.batch_size), ("max_iter", self.max_iter)):
            if not _is_auto(value):
                at_least(name, value, 1)
        chosen = {name: value for name, value in given.items() if not _is_auto(value)}
        return TABLE.for_rows(rows, optimizer=self.optimizer, **chosen)

    def _optimizer(self, preset: Preset, rows: int | None) -> optim.Optimizer:
        """The optimiser, its rate over the epochs on so many rows; for None, the first rate always."""
        rate: Any = self.learning_rate_init
        if rows is not None and self.learning_rate == "cosine":
            rate = optim.cosine(rate, preset.epochs * -(-rows // preset.batch_size))
        decay = {} if preset.weight_decay is None else {"weight_decay": preset.weight_decay}
        return optim.by_name(self.optimizer, learning_rate=rate, **decay)

    def _network(self, outputs: int, seed: int) -> Model:
        """A network with initial parameters."""
        hidden = self.hidden_layer_sizes
        layers = mlp_layers(
            (self.n_features_in_,),
            outputs,
            hidden=tuple(hidden) if np.iterable(hidden) else (hidden,),
            activation=self.activation,
            dropout=self.dropout,
        )
        layers[0] = Input((self.n_features_in_,), self._dtype)
        precision = self._dtype if _is_auto(self.precision) else self.precision
        return Model(layers, loss=self._loss(), seed=seed, precision=precision, device=self.device)

    # --- rows --------------------------------------------------------------------------------------

    def _rows(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[Array, Array, Floats | None]:
        """Checked rows that count: inputs, targets, and weights if they were given."""
        for name, value in (("X", X), ("y", y), ("sample_weight", sample_weight)):
            refuse_masked(name, value)  # scikit-learn's checks take what is under a mask
        x, y = validate_data(
            self, X, y, dtype=(np.float64, np.float32), multi_output=True,
            y_numeric=self._numeric, reset=reset,
        )  # fmt: skip
        if y.ndim == 2 and y.shape[1] == 1 and not self._numeric:
            y = column_or_1d(y, warn=True)
        if sample_weight is None:
            return x, y, None
        weights = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        counts = weights > 0
        return x[counts], y[counts], weights[counts]

    def _split(self, y: Array, seed: int) -> tuple[Array, Array]:
        """Numbers of the rows that are trained on, and of those that are kept back."""
        groups = self._groups(y)
        if groups is not None and np.unique(groups, return_counts=True)[1].min() < 2:
            groups = None  # a class of one row has no share of it
        held: tuple[Array, Array] = train_test_split(
            np.arange(len(y)), test_size=self.validation_fraction, random_state=seed,
            stratify=groups,
        )  # fmt: skip
        return held

    def _learn(self, x: Array, y: Array, weights: Floats | None) -> None:
        """Keep what the rows of a first training say."""
        double = self.precision == "float64"
        if _is_auto(self.precision):
            double = x.dtype == np.float64 and self.device == "cpu"
        self._dtype = "float64" if double else "float32"
        self.scaling_ = Scaling.of(x, weights)
        self._learn_target(y, weights)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _scaled(self, x: Array) -> Array:
        return self.scaling_.apply(x, self._dtype)

    def _raw(self, X: Any) -> Array:
        """The network's outputs for rows X [rows, features]: [rows, outputs]."""
        check_is_fitted(self)
        refuse_masked("X", X)
        x = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        found: Array = self.model_.predict(self._scaled(x))
        return found


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _taken(rows: Rows, chosen: Array) -> Rows:
    x, targets, weights = rows
    return x[chosen], targets[chosen], None if weights is None else weights[chosen]


def _go_on(model: Model, start: dict[str, Array]) -> None:
    try:
        model.assign(start)
    except CheckpointError as error:
        raise ArgumentError(
            f"fit: warm_start goes on with the network of the last fit, but {error}; set warm_start=False"
        ) from error
