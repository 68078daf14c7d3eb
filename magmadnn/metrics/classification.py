"""Accuracy, and metrics made from how often each class was predicted, was true, and was both.

Predictions are the network's outputs. What they are, a model's loss says, or the setting `outputs`:

- classes, [batch, ..., k], of which one is true: the largest is predicted (so logits and probabilities give
  the same). Targets are class numbers [batch, ...] or one-hot [batch, ..., k].
- labels, [batch, ...], each true or not: true where it lies above `threshold` (0 for logits and margins, 0.5
  for probabilities). Targets are 0 and 1, or -1 and 1 for margins, of the same shape.

Where nobody says it, one output, [batch] or [batch, 1], is a label, and several are classes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from magmadnn import ops
from magmadnn.errors import ArgumentError, ShapeError, UnknownNameError
from magmadnn.graph import scope
from magmadnn.graph.dim import Dim
from magmadnn.graph.signature import shape_text
from magmadnn.losses.loss import mean_of_sample, with_shape

from .classified import Classified, check_threshold
from .metric import ROUNDING, Average, Sums, Value, ratio
from .operands import is_labels, weights_like

AVERAGES = ("auto", "binary", "macro", "micro", "none")


@dataclass(frozen=True)
class _Thresholded(Classified):
    """With a threshold for labels."""

    threshold: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_threshold(self.name, self.threshold)


@dataclass(frozen=True)
class Accuracy(_Thresholded, Average):
    """The share of samples (with more axes: of elements) whose class is predicted; of labels, the share.

    Attributes:
        threshold: above which a label is taken to be true; None: as its kind has it.
        outputs: what predictions are; see the module.
    """

    higher_is_better: ClassVar[bool | None] = True

    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """See `Average`."""
        predicted, true, _ = self.compared(predictions, targets, self.threshold)
        return mean_of_sample(ops.cast(ops.equal(predicted, true), "float64"))


@dataclass(frozen=True)
class TopK(Classified, Average):
    """The share of samples whose class is among the k largest predictions.

    That is where fewer than k other classes have a prediction that is not below that of the true class, so
    a tie counts against it, and so does NaN.

    Attributes:
        k: at least 1, at most the number of classes.
    """

    higher_is_better: ClassVar[bool | None] = True
    k: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.k) is not int or self.k < 1:
            raise ArgumentError(f"top_k: k must be an integer of at least 1, got {self.k!r}")

    @property
    def name(self) -> str:
        """For instance `top_5`."""
        return f"top_{self.k}"

    def per_sample(self, predictions: Value, targets: Value) -> Value:
        """See `Average`."""
        predictions = with_shape(predictions)
        if is_labels(self.kind_of_outputs, tuple(predictions.shape)):
            raise ShapeError(
                f"{self.name}: needs predictions for each of several classes, got labels "
                f"{shape_text(tuple(predictions.shape))}, each true or not; use accuracy, f1 or auc"
            )
        _, true, classes = self.compared(predictions, targets)
        if isinstance(classes, int) and self.k > classes:
            raise ArgumentError(f"{self.name}: k must be at most {classes}, the number of classes")
        own = ops.expand_dims(ops.take_class(predictions, true), -1)
        not_below = ops.logical_not(predictions < own)  # itself included
        return mean_of_sample(ops.cast(ops.sum(not_below, axis=-1) <= self.k, "float64"))


@dataclass(frozen=True)
class _OfCounts(_Thresholded):
    """Made from the counts of each class: predicted and true, predicted, true.

    Several labels have two classes each, that it is not true and that it is.
    """

    higher_is_better: ClassVar[bool | None] = True

    def sums(self, predictions: Value, targets: Value, weights: Value | None = None) -> Value:
        """For each class the weight of samples that were both, predicted, true: [3 * k]."""
        with scope(self.name):
            predicted, true, classes = self._numbered(predictions, targets)
            w = ops.reshape(weights_like(self.name, weights, predicted), (-1,))
            predicted, true = (ops.reshape(x, (-1,)) for x in (predicted, true))
            both = w * ops.cast(ops.equal(predicted, true), "float64")
            pairs = [(both, true), (w, predicted), (w, true)]
            return ops.concat([ops.scatter_add(x, at, count=classes) for x, at in pairs])

    def _numbered(self, predictions: Value, targets: Value) -> tuple[Value, Value, int]:
        """Class numbers, and how many there are; class c of label l is 2 l + c."""
        predicted, true, classes = self.compared(predictions, targets, self.threshold)
        if isinstance(classes, Dim):
            raise ShapeError(f"{self.name}: the number of classes must be known, got {classes}")
        if (count := self.labels(predictions)) == 1:
            return predicted, true, classes
        first = 2 * np.arange(count)
        return predicted + first, true + first, 2 * count

    def result(self, sums: Sums) -> float | NDArray[Any]:
        """See the class."""
        both, predicted, true = sums.reshape(3, -1)
        return self.of_counts(both, predicted, true) if true.sum() else math.nan

    @abstractmethod
    def of_counts(self, both: Sums, predicted: Sums, true: Sums) -> float | NDArray[Any]:
        """The value for counts [k]."""


@dataclass(frozen=True)
class _PerClass(_OfCounts):
    """A ratio of counts for each class, and an average over classes.

    0 where the ratio is 0 / 0, without a warning.
    """

    average: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average not in AVERAGES:
            raise UnknownNameError.of(f"{self.names[0]}: average", self.average, AVERAGES)

    @property
    def name(self) -> str:
        """With the average where one is chosen: `f1_macro`."""
        kind = self.names[0]
        if self.average == "auto":
            return kind
        return f"{kind}_per_class" if self.average == "none" else f"{kind}_{self.average}"

    def _numbered(self, predictions: Value, targets: Value) -> tuple[Value, Value, int]:
        predicted, true, classes = super()._numbered(predictions, targets)
        if self.average == "binary" and classes != 2:
            what = f"{classes} classes"
            if (labels := self.labels(predictions)) > 1:
                what = f"{labels} labels"
            raise ShapeError(
                f"{self.name}: predictions have {what}, expected one label or 2 classes; "
                "choose average='macro', 'micro' or 'none'"
            )
        return predicted, true, classes

    def of_counts(self, both: Sums, predicted: Sums, true: Sums) -> float | NDArray[Any]:
        """See the class."""
        kind = self.kind_of_outputs
        labels = kind is not None and kind.are == "labels" and len(true) > 2
        if labels:  # of each that it is true; that it is not does not count
            both, predicted, true = both[1::2], predicted[1::2], true[1::2]
        above, below = self.parts(both, predicted, true)
        if self.average == "micro":
            return ratio(above.sum(), below.sum(), nothing=0.0)
        each = np.divide(above, below, out=np.zeros_like(above), where=below != 0)
        if self.average == "none":
            return each
        if labels:
            return float(each.mean())
        if self.average == "binary" or (self.average == "auto" and len(each) == 2):
            return float(each[1])
        return float(each[predicted + true > 0].mean())

    @abstractmethod
    def parts(self, both: Sums, predicted: Sums, true: Sums) -> tuple[Sums, Sums]:
        """What is divided by what."""


@dataclass(frozen=True)
class Precision(_PerClass):
    """`both / predicted`: how many of those predicted to be of a class are.

    Attributes:
        threshold: above which a label is taken to be true; None: as its kind has it.
        average: "binary": that of class 1 of two, or of one label; "macro": the mean over the classes that
            occur in targets or predictions, or over all of several labels; "micro": of the counts of all
            together (for classes the accuracy); "none": an array with one value per class or label;
            "auto": "binary" for two classes or one label, "macro" for more.
        outputs: what predictions are; see the module.
    """

    def parts(self, both: Sums, predicted: Sums, true: Sums) -> tuple[Sums, Sums]:
        """See the class."""
        return both, predicted


@dataclass(frozen=True)
class Recall(_PerClass):
    """`both / true`: how many of those of a class are predicted to be. Attributes as for `Precision`."""

    def parts(self, both: Sums, predicted: Sums, true: Sums) -> tuple[Sums, Sums]:
        """See the class."""
        return both, true


@dataclass(frozen=True)
class F1(_PerClass):
    """`2 * both / (predicted + true)`, the harmonic mean of precision and recall.

    Van Rijsbergen, "Information Retrieval", 2nd ed. 1979, chapter 7. Attributes as for `Precision`.
    """

    def parts(self, both: Sums, predicted: Sums, true: Sums) -> tuple[Sums, Sums]:
        """See the class."""
        return 2 * both, predicted + true


@dataclass(frozen=True)
class MatthewsCorrelation(_OfCounts):
    """`(c n - sum(p t)) / sqrt((n**2 - sum(p**2)) (n**2 - sum(t**2)))`, for any number of classes.

    n samples, c of them right, p and t how often each class is predicted and is true. This is R_K of
    Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient",
    Comput. Biol. Chem. 28 (2004); for two classes it is Matthews, Biochim. Biophys. Acta 405 (1975).
    0 where the root is 0: one class only is predicted, or is true. Several labels have no such number.

    Attributes:
        threshold: above which a label is taken to be true; None: as its kind has it.
        outputs: what predictions are; see the module.
    """

    names: ClassVar[tuple[str, ...]] = ("matthews_correlation", "matthews", "mcc")

    def _numbered(self, predictions: Value, targets: Value) -> tuple[Value, Value, int]:
        if (labels := self.labels(predictions)) > 1:
            raise ShapeError(
                f"{self.name}: predictions have {labels} labels, expected one label or classes; use "
                "f1, or confusion_matrix for the counts of each label"
            )
        return super()._numbered(predictions, targets)

    def of_counts(self, both: Sums, predicted: Sums, true: Sums) -> float | NDArray[Any]:
        """See the class; with counts as shares of n."""
        n = true.sum()
        c, p, t = both.sum() / n, predicted / n, true / n
        # 1 - sum(p**2), without the cancellation
        p_spread, t_spread = (
            (share * (n - count) / n).sum() for share, count in ((p, predicted), (t, true))
        )
        if min(p_spread, t_spread) <= ROUNDING:
            return 0.0
        return float((c - (p * t).sum()) / math.sqrt(p_spread * t_spread))


@dataclass(frozen=True)
class ConfusionMatrix(Classified):
    """How often samples of class i (row) are predicted to be of class j (column).

    The result is a float64 array [classes, classes]; its entries are counts, or sums of weights. For several
    labels it is [labels, 2, 2], a matrix for each.

    Attributes:
        classes: how many there are, 2 for labels; as many as predictions say where it is left out.
        threshold: above which a label is taken to be true; None: as its kind has it.
        outputs: what predictions are; see the module.
    """

    classes: int | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_threshold(self.name, self.threshold)

    def sums(self, predictions: Value, targets: Value, weights: Value | None = None) -> Value:
        """The matrices, one after the other, each row after row."""
        with scope(self.name):
            predicted, true, found = self.compared(predictions, targets, self.threshold)
            if isinstance(found, Dim) or self.classes not in (None, found):
                raise ShapeError(
                    f"confusion_matrix: predictions have {found} classes, "
                    f"expected {self.classes or 'a known number'}"
                )
            w, cells = weights_like(self.name, weights, predicted), found * found
            at, labels = found * true + predicted, self.labels(predictions)
            if labels > 1:
                at = at + cells * np.arange(labels)
            flat = [ops.reshape(x, (-1,)) for x in (w, at)]
            return ops.scatter_add(*flat, count=labels * cells)

    def result(self, sums: Sums) -> float | NDArray[Any]:
        """The matrix, or that of each label; zeros where there was no sample."""
        kind = self.kind_of_outputs
        if kind is not None and kind.are == "labels" and len(sums) > 4:
            return sums.reshape(-1, 2, 2).copy()
        classes = math.isqrt(len(sums))
        return sums.reshape(classes, classes).copy()
