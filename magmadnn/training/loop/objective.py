"""What a model is trained on: the loss, and the sums that metrics are made of, as graphs.

`Objective` is all of a training step but the update: predictions, loss, penalties, metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from magmadnn.errors import ArgumentError, DataError, DTypeError, ShapeError
from magmadnn.graph.spec import BFLOAT16, is_floating
from magmadnn.losses import Loss, as_loss
from magmadnn.memory.foreign import as_array
from magmadnn.metrics import Metric, as_metric
from magmadnn.tensor import Operation, Placeholder, placeholder

if TYPE_CHECKING:
    from magmadnn.training.model.model import Model

Array = np.ndarray[Any, np.dtype[Any]]


class Objective:
    """Loss and metrics of a model for targets of given shapes and dtypes.

    Attributes:
        targets: placeholders, one for each output.
        weights: placeholder for the samples' weights; None where there are none.
        loss: what is minimised: mean loss over the batch, and the regularisers.
        sums: streaming sums of the metrics, one vector for each.
        metrics: (name, Metric) in the order of `sums`.
    """

    def __init__(self, model: Model, targets: Sequence[Array], weighted: bool) -> None:
        losses = _losses_for(model)
        if len(targets) != len(model.outputs):
            raise DataError(
                f"fit: the model has {len(model.outputs)} outputs, got {len(targets)} targets"
            )
        self.targets: list[Placeholder] = []
        self.weights = placeholder("sample_weight", (None,)) if weighted else None
        self.metrics: list[tuple[str, Metric]] = []
        self.sums: list[Operation] = []
        parts = []
        for k, (output, target, loss) in enumerate(
            zip(model.outputs, targets, losses, strict=True)
        ):
            fed = _target(k, output, target, len(model.outputs) > 1)
            self.targets.append(fed)
            parts.append(_scalar(loss, output, fed, self.weights))
            for metric in map(as_metric, model.metrics):
                prefix = f"{output.name}_" if len(model.outputs) > 1 else ""
                self.metrics.append((prefix + metric.name, metric))
                self.sums.append(metric.sums(output, fed, self.weights))
        self.loss: Operation = sum(parts[1:], parts[0])
        for penalty in model.penalties():
            self.loss = self.loss + penalty

    @property
    def outputs(self) -> list[Operation]:
        """Everything that a step reports: the loss, then the metrics' sums."""
        return [self.loss, *self.sums]

    @property
    def higher_is_better(self) -> dict[str, bool | None]:
        """For the loss and each metric: whether higher values are better; None where it does not say."""
        return {"loss": False, **{name: metric.higher_is_better for name, metric in self.metrics}}

    def results(self, sums: Sequence[Array]) -> dict[str, Any]:
        """The metrics for sums over all batches."""
        return {
            name: metric.result(total)
            for (name, metric), total in zip(self.metrics, sums, strict=True)
        }


def _losses_for(model: Model) -> list[Loss]:
    if model.loss is None:
        raise ArgumentError("the model has no loss; give one: Model(..., loss='cross_entropy')")
    several = model.losses()
    if len(several) == 1:
        several *= len(model.outputs)
    if len(several) != len(model.outputs):
        raise ArgumentError(f"fit: {len(several)} losses for {len(model.outputs)} outputs")
    return [as_loss(loss) for loss in several]


def _target(number: int, output: Operation, target: Array, numbered: bool) -> Placeholder:
    """The placeholder for a target like this array."""
    dtype = output.dtype if is_floating(target.dtype) else np.int64
    name = f"target_{number}" if numbered else "target"
    return placeholder(name, (None, *target.shape[1:]), dtype)


def _scalar(
    loss: Loss, output: Operation, target: Placeholder, weights: Placeholder | None
) -> Operation:
    total: Operation = loss(output, target, weights)
    if total.shape != ():
        raise ShapeError(f"loss {loss.name}: expected a scalar, got {total!r}; take its mean")
    return total


def sample_weights(
    targets: Sequence[Array],
    given: Any,
    class_weight: Mapping[int, float] | Literal["balanced"] | None,
) -> Array | None:
    """The weight of each sample from weights and classes' weights; None where there are none.

    Raises:
        DataError, ShapeError: for negative weights, or as many as there are not samples.
        ArgumentError: for a class that has no weight.
    """
    rows = len(targets[0])
    weights = None if given is None else _numbers(as_array(given))
    if weights is not None and weights.shape != (rows,):
        raise ShapeError(f"fit: sample_weight must have shape ({rows},), got {weights.shape}")
    if weights is not None and not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise DataError("fit: sample_weight must be finite and not negative")
    if class_weight is None:
        return weights
    by_class = _by_class(_class_numbers(as_array(targets[0])), class_weight)
    return by_class if weights is None else weights * by_class


def _numbers(given: Array) -> Array:
    """Weights in float32.

    Raises:
        DTypeError: if they are something else than real numbers.
    """
    if given.dtype.kind not in "biuf" and given.dtype != BFLOAT16:
        raise DTypeError(
            f"fit: sample_weight must be a number for each row, got {given.dtype}; "
            "weights of classes are class_weight"
        )
    return given.astype(np.float32, copy=False)


def _by_class(numbers: Array, weights: Mapping[int, float] | Literal["balanced"]) -> Array:
    """The weight of each sample, from the number of its class."""
    classes, counts = np.unique(numbers, return_counts=True)
    if isinstance(weights, str) and weights == "balanced":
        by_number = dict(zip(classes.tolist(), len(numbers) / (len(classes) * counts), strict=True))
    elif isinstance(weights, Mapping):
        by_number = dict(weights)
    else:
        raise ArgumentError(
            f'fit: class_weight must be a dict {{class: weight}} or "balanced", got {weights!r}'
        )
    if missing := set(classes.tolist()) - set(by_number):
        raise ArgumentError(f"fit: class_weight has no weight for class {min(missing)}")
    for number, weight in by_number.items():
        if not (
            isinstance(weight, (int, float, np.number)) and np.isfinite(weight) and weight >= 0
        ):
            raise ArgumentError(
                f"fit: class_weight of class {number} must be finite and not negative, got {weight!r}"
            )
    table = np.array([by_number[number] for number in classes.tolist()], np.float32)
    return table[np.searchsorted(classes, numbers)]


def _class_numbers(labels: Array) -> Array:
    """The class of each sample: labels [rows] or [rows, 1], or a column for each class."""
    if is_floating(labels.dtype) and (labels != np.floor(labels)).any():
        raise DTypeError(
            "fit: class_weight needs class numbers in y, got fractions; see sample_weight"
        )
    if labels.ndim > 2 or (labels.ndim == 2 and labels.shape[1] > 1 and labels.max() > 1):
        raise ShapeError(
            f"fit: class_weight needs one class for each row of y, got shape {labels.shape}; give the loss "
            "the weights: md.losses.CrossEntropy(class_weight=...)"
        )
    if labels.ndim == 2 and labels.shape[1] > 1:
        labels = labels.argmax(-1)
    return labels.reshape(-1).astype(np.int64)
