"""Losses for classes. Predictions are logits: what a network gives before softmax or sigmoid.

The logarithm is taken together with the softmax or sigmoid, so a probability near 0 costs what it should
and the papers' epsilon (Nichols et al., "MagmaDNN", 2019, eq. 10) is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from magmadnn import ops
from magmadnn.calls import checked_call
from magmadnn.errors import ArgumentError, DTypeError, ShapeError
from magmadnn.graph.signature import shape_text
from magmadnn.memory.dtypes import is_floating

from .loss import OUTPUTS, Loss, Value, check_width, floating, matched, mean_of_sample, with_shape


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """`-sum_k w_k q_k log p_k`, with p = softmax(logits) and q the smoothed target.

    Nichols et al., "MagmaDNN", 2019, eq. (9), with `q_k = (1 - e) t_k + e / K`: Szegedy, Vanhoucke, Ioffe,
    Shlens, Wojna, CVPR 2016, section 7. Predictions are [batch, ..., K]. Targets are class numbers
    [batch, ...] (integers; [batch, 1] for [batch, K] too), or probabilities [batch, ..., K] (one-hot, say).
    A sample's loss is the mean over the axes between batch and K.

    Called, it divides by the sum of the weights w of the samples' classes, as PyTorch does; for
    probabilities by `sum_k w_k t_k` (PyTorch: by the number of samples), so both forms of a target agree.

    Attributes:
        label_smoothing: e, from 0 up to but not including 1.
        class_weight: w, K numbers; 1 each where it is left out.
    """

    outputs = "classes"
    label_smoothing: float = 0.0
    class_weight: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ArgumentError(
                "cross_entropy: label_smoothing must be at least 0 and below 1, "
                f"got {self.label_smoothing}"
            )
        if self.class_weight is not None:
            object.__setattr__(self, "class_weight", _weights_of_classes(self.class_weight))

    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """See `Loss`; weighted by class, not yet divided."""
        logits, targets = self._operands(predictions, targets)
        log_p = ops.log_softmax(logits)
        if self.class_weight is not None:
            log_p = log_p * self._weights(logits)
        loss = -_of_target(log_p, targets)
        if self.label_smoothing:
            smoothing = self.label_smoothing
            loss = (1 - smoothing) * loss - smoothing * ops.mean(log_p, axis=-1)
        return mean_of_sample(loss)

    def divisor(self, predictions: Value, targets: Value) -> Value | None:
        """The weight of each sample's class; see `Loss`."""
        if self.class_weight is None:
            return None
        logits, targets = self._operands(predictions, targets)
        weights = self._weights(logits)
        if len(targets.shape) == len(logits.shape):
            return mean_of_sample(_of_target(weights, targets))
        return mean_of_sample(ops.take(weights, targets))

    def _operands(self, predictions: Value, targets: Value) -> tuple[Value, Value]:
        """Logits, and class numbers of one axis less or probabilities of the same shape."""
        logits, targets = floating(self.name, predictions), with_shape(targets)
        shape, given = tuple(logits.shape), tuple(targets.shape)
        check_width(self.name, OUTPUTS[self.outputs], shape)
        if given == shape:
            return logits, ops.cast(targets, logits.dtype)
        if given not in (shape[:-1], (*shape[:-1], 1)):
            raise ShapeError(
                f"cross_entropy: targets must be class numbers {shape_text(shape[:-1])} or "
                f"probabilities {shape_text(shape)} for predictions {shape_text(shape)}, "
                f"got {shape_text(given)}"
            )
        if is_floating(targets.dtype):
            raise DTypeError(
                f"cross_entropy: targets {shape_text(given)} are class numbers and must be integers, "
                f"got {targets.dtype.name}; cast them"
            )
        if targets.dtype == np.bool_:
            targets = ops.cast(targets, "int64")
        return logits, ops.reshape(targets, shape[:-1]) if given != shape[:-1] else targets

    def _weights(self, logits: Value) -> Any:
        weights = np.asarray(self.class_weight, logits.dtype)
        if logits.shape[-1] != weights.size:
            raise ShapeError(
                f"cross_entropy: class_weight has {weights.size} numbers, but predictions "
                f"{shape_text(tuple(logits.shape))} have {logits.shape[-1]} classes"
            )
        return weights


def _of_target(values: Value, targets: Value) -> Value:
    """Values [..., K] of the targets' classes, or averaged with their probabilities."""
    if len(targets.shape) < len(values.shape):
        return ops.take_class(values, targets)
    return ops.sum(values * targets, axis=-1)


def _weights_of_classes(weights: Sequence[float]) -> tuple[float, ...]:
    try:
        listed = tuple(float(w) for w in weights)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"cross_entropy: class_weight must be one number per class, got {weights!r}"
        ) from error
    if not all(0 <= w < math.inf for w in listed) or not any(listed):
        raise ArgumentError(
            "cross_entropy: class_weight must be finite numbers of at least 0, not all 0, "
            f"got {listed}"
        )
    return listed


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """`mean(t * softplus(-z) + (1 - t) * softplus(z))`.

    That is `-mean(t log p + (1 - t) log(1 - p))` with p = sigmoid(z), without losing digits. Predictions are
    logits z [batch, ...], targets t of the same shape: 0 or 1, or probabilities. Outputs of a sample are
    independent of each other; its loss is their mean.
    """

    outputs = "labels"

    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """See `Loss`."""
        columns = "use cross_entropy, or give each label a column of 0 and 1"
        z, t = matched(self.name, predictions, targets, columns)
        # the shorter softplus(z) - t * z loses all digits where t = 1 and z is large
        return mean_of_sample(t * ops.softplus(-z) + (1 - t) * ops.softplus(z))


@dataclass(frozen=True)
class Hinge(Loss):
    """`mean(max(0, 1 - s * z))`, with s = 1 where the target is above 0, and -1 elsewhere.

    Predictions z [batch, ...]; targets of the same shape: 0 and 1, or -1 and 1. The loss of a support
    vector machine: Cortes, Vapnik, "Support-vector networks", Machine Learning 20 (1995).
    """

    outputs = "margins"

    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """See `Loss`."""
        z, t = matched(self.name, predictions, targets)
        return mean_of_sample(ops.relu(1 - ops.where(t > 0, z, -z)))


@checked_call
def cross_entropy(
    predictions: Any,
    targets: Any,
    weights: Any = None,
    *,
    label_smoothing: float = 0.0,
    class_weight: Sequence[float] | None = None,
) -> Any:
    """The mean of `-log softmax(predictions)[target]`; formula, smoothing and averages: `CrossEntropy`.

    Args:
        predictions: logits, [batch, ..., k].
        targets: class numbers [batch, ...], integers 0..k-1; or probabilities [batch, ..., k].
        weights: [batch], one per sample; 1 where they are left out.
        label_smoothing: from 0 up to but not including 1.
        class_weight: k numbers; 1 each where they are left out.

    Returns:
        A scalar: an Operation, or a number where all operands are values.

    Raises:
        ShapeError, DTypeError, ArgumentError: if they do not fit.
    """
    loss = CrossEntropy(label_smoothing, None if class_weight is None else tuple(class_weight))
    return loss(predictions, targets, weights)


@checked_call
def binary_cross_entropy(predictions: Any, targets: Any, weights: Any = None) -> Any:
    """`mean(t * softplus(-z) + (1 - t) * softplus(z))`: the log loss of sigmoid(z).

    Args:
        predictions: logits z, [batch, ...].
        targets: t, 0 or 1, or probabilities, of the same shape; [batch] matches [batch, 1].
        weights: [batch], one per sample; 1 where they are left out.

    Raises:
        ShapeError, DTypeError: if they do not fit.
    """
    return BinaryCrossEntropy()(predictions, targets, weights)


@checked_call
def hinge(predictions: Any, targets: Any, weights: Any = None) -> Any:
    """`mean(max(0, 1 - s z))` with s = 1 for targets above 0 and -1 otherwise.

    Args:
        predictions: z, [batch, ...].
        targets: 0 and 1, or -1 and 1, of the same shape; [batch] matches [batch, 1].
        weights: [batch], one per sample; 1 where they are left out.

    Raises:
        ShapeError, DTypeError: if they do not fit.
    """
    return Hinge()(predictions, targets, weights)
