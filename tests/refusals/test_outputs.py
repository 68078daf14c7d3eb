"""What outputs are, by losses and metrics, and several of them by name: what has no meaning is refused.

See `cases.py` for what the table holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import (
    ArgumentError,
    DataError,
    GraphError,
    NumericError,
    ShapeError,
    UnknownNameError,
)
from tests.refusals.cases import PythonCase, Y, check_in_python
from tests.refusals.cases import X as Z

BITS = (np.arange(69).reshape(23, 3) % 5 > 2).astype(int)
LOSS = {"kind": "cross_entropy", "temp": "mse", "output_2": "mae"}
PLAIN = {"kind": Y, "temp": Z[:, 0]}
GOOD = {**PLAIN, "output_2": Z[:, :2]}


def labels(units: int = 3, **changes: Any) -> md.Model:
    layers = [md.layers.Input((5,)), md.layers.Dense(units)]
    return md.Model(layers, **{"loss": "binary_cross_entropy", "optimizer": "adam", **changes})


def several(**changes: Any) -> md.Model:
    x = md.layers.Input((5,))
    kind, temp = (md.layers.Dense(n, name=name)(x) for n, name in ((3, "kind"), (1, "temp")))
    flux = md.ops.concat([temp, 2 * temp], axis=1)
    given = {"loss": LOSS, "optimizer": "adam", **changes}
    return md.Model(inputs=[x], outputs=[kind, temp, flux], **given)


def distance(predictions: Any, targets: Any) -> Any:
    return md.ops.mean(md.ops.abs(predictions - targets), axis=1)


def epoch(predictions: Any, targets: Any) -> Any:
    return md.ops.mean(predictions, axis=1)


def val_mean(predictions: Any, targets: Any) -> Any:
    return md.ops.mean(predictions, axis=1)


PYTHON: dict[str, PythonCase] = {
    "accuracy of numbers": (
        lambda p: labels(loss="mse", metrics=["accuracy"]),
        ArgumentError,
        (
            'accuracy: needs classes, but the loss mean_squared_error is for numbers; use "mae", '
            '"rmse" or "r2", or a loss for classes such as "cross_entropy"; if predictions are '
            "scores of classes all the same, say of which kind: md.metrics.Accuracy(outputs=...)"
        ),
    ),
    "errors of logits": (
        lambda p: labels(metrics=["rmse"]),
        ArgumentError,
        (
            "rmse: needs numbers of the targets' kind, but the loss binary_cross_entropy is for "
            'logits of labels; use "accuracy" or "f1", or a function of your own'
        ),
    ),
    "accuracy of who knows what": (
        lambda p: labels(loss=distance, metrics=["accuracy"]),
        ArgumentError,
        (
            "accuracy: the loss distance does not say what predictions are; say it: "
            "md.metrics.Accuracy(outputs=...), or loss=md.losses.FunctionLoss(distance, "
            "outputs=...), with one of classes, labels, margins, class_probabilities, "
            "label_probabilities"
        ),
    ),
    "classes of numbers": (
        lambda p: labels(loss="mse").predict_class(Z),
        ArgumentError,
        (
            "predict_class: the loss mean_squared_error is for numbers, which have no classes; "
            "use predict"
        ),
    ),
    "probabilities of margins": (
        lambda p: labels(loss="hinge").predict_probability(Z),
        ArgumentError,
        (
            "predict_probability: the loss hinge is for margins, of which there are no "
            "probabilities; use predict"
        ),
    ),
    "classes without a loss": (
        lambda p: labels(loss=None).predict_class(Z),
        ArgumentError,
        (
            "predict_class: the model has no loss, which would say what its outputs are; give "
            "Model one, or use predict and md.ops.softmax or md.ops.sigmoid"
        ),
    ),
    "classes of who knows what": (
        lambda p: labels(loss=distance).predict_class(Z),
        ArgumentError,
        (
            "predict_class: the loss distance does not say what predictions are; say it by "
            "`outputs`: md.losses.FunctionLoss(distance, outputs=...), or in the class"
        ),
    ),
    "classes of NaN": (
        lambda p: labels().predict_class(np.where(np.arange(5) == 1, np.nan, Z)),
        NumericError,
        (
            "predict_class: the prediction of row 0 is NaN, which is no class; look at that row "
            "of x, and at the parameters"
        ),
    ),
    "a threshold of classes": (
        lambda p: labels(loss="cross_entropy", metrics=[md.metrics.Accuracy(0.7)]).evaluate(Z, Y),
        ArgumentError,
        (
            "accuracy: a threshold is for labels; of classes, as in predictions (batch, 3), the "
            "largest one is taken: leave it out"
        ),
    ),
    "the best of labels": (
        lambda p: labels(metrics=[md.metrics.TopK(2)]).evaluate(Z, BITS),
        ShapeError,
        (
            "top_2: needs predictions for each of several classes, got labels (batch, 3), each "
            "true or not; use accuracy, f1 or auc"
        ),
    ),
    "one correlation of labels": (
        lambda p: labels(metrics=["mcc"]).evaluate(Z, BITS),
        ShapeError,
        (
            "matthews_correlation: predictions have 3 labels, expected one label or classes; use "
            "f1, or confusion_matrix for the counts of each label"
        ),
    ),
    "binary of labels": (
        lambda p: labels(metrics=[md.metrics.F1(average="binary")]).evaluate(Z, BITS),
        ShapeError,
        (
            "f1_binary: predictions have 3 labels, expected one label or 2 classes; choose "
            "average='macro', 'micro' or 'none'"
        ),
    ),
    "a kind of outputs": (
        lambda p: md.losses.FunctionLoss(distance, outputs="lables"),
        UnknownNameError,
        (
            "loss distance: kind of outputs 'lables' is not known: did you mean 'labels'? known "
            "are class_probabilities, classes, label_probabilities, labels, margins, numbers"
        ),
    ),
    "a kind without classes": (
        lambda p: md.metrics.Accuracy(outputs="numbers"),
        ArgumentError,
        (
            "accuracy: outputs='numbers' have no classes; give one of classes, labels, margins, "
            "class_probabilities, label_probabilities"
        ),
    ),
    "a threshold": (
        lambda p: md.metrics.F1("0.5"),
        ArgumentError,
        ("f1: threshold must be a finite number, got '0.5'"),
    ),
    "several true classes": (
        lambda p: md.metrics.Accuracy()(Z[:, :3], BITS),
        DataError,
        (
            "accuracy: row 0 of the targets is [0, 0, 0], expected one class of 3; for labels, "
            'each true or not, say outputs="labels"'
        ),
    ),
    "cross-entropy of one output": (
        lambda p: labels(1, loss="cross_entropy"),
        ShapeError,
        (
            "Model: cross_entropy: predictions must be (batch, ..., classes) with at least 2 "
            "classes, got (batch, 1); for one output use binary_cross_entropy"
        ),
    ),
    "cross-entropy of several labels": (
        lambda p: labels(loss="cross_entropy").fit(Z, BITS),
        DataError,
        (
            "y: row 0 is [0, 0, 0], for cross_entropy expected probabilities of classes, or one "
            "of them 1; for labels, each true or not, use binary_cross_entropy, and to leave out "
            "a row sample_weight"
        ),
    ),
    "cross-entropy of signs": (
        lambda p: labels(loss="cross_entropy").fit(Z, 2 * BITS - 1),
        DataError,
        (
            "y: row 0 is [-1, -1, -1], for cross_entropy expected probabilities of classes, or "
            "one of them 1; for labels, each true or not, use binary_cross_entropy, and to leave "
            "out a row sample_weight"
        ),
    ),
    "class numbers for labels": (
        lambda p: labels().fit(Z, Y % 2),
        ShapeError,
        (
            "binary_cross_entropy: targets must have the shape (batch, 3) of predictions, got "
            "(batch,): the number of axes is 1 but 2 in predictions; if they are class numbers, "
            "use cross_entropy, or give each label a column of 0 and 1"
        ),
    ),
    "class numbers for numbers": (
        lambda p: labels(loss="mse").fit(Z, Y),
        ShapeError,
        (
            "mean_squared_error: targets must have the shape (batch, 3) of predictions, got "
            "(batch,): the number of axes is 1 but 2 in predictions; if they are class numbers, "
            "use cross_entropy"
        ),
    ),
    "signs for logits": (
        lambda p: labels(1).fit(Z, np.where(Y > 0, 1.0, -1.0)),
        DataError,
        ("y: row 0 is -1.0, for binary_cross_entropy expected 0, 1 or a probability between them"),
    ),
    "signs in a stream": (
        lambda p: labels(1).fit([(Z, np.where(Y > 0, 1.0, -1.0))]),
        DataError,
        ("y: row 0 is -1.0, for binary_cross_entropy expected 0, 1 or a probability between them"),
    ),
    "three signs": (
        lambda p: labels(1, loss="hinge").fit(Z, Y),
        DataError,
        ("y: row 2 is 2, for hinge expected 0 and 1, or -1 and 1"),
    ),
    "loss of an unknown output": (
        lambda p: several(loss={**LOSS, "tmep": "mse"}),
        UnknownNameError,
        (
            "Model: loss: output 'tmep' is not known: did you mean 'temp'? known are kind, "
            "output_2, temp"
        ),
    ),
    "an output without a loss": (
        lambda p: several(loss={"kind": "cross_entropy", "temp": "mse"}, metrics=[]),
        ArgumentError,
        (
            "Model: loss has none for the output 'output_2'; give one for each of kind, temp, "
            "output_2"
        ),
    ),
    "too few losses": (
        lambda p: several(loss=["cross_entropy", "mse"]),
        ArgumentError,
        ("Model: loss has 2 entries for 3 outputs; give one for each of kind, temp, output_2"),
    ),
    "weights of an unknown output": (
        lambda p: several(loss_weights={"tmp": 1.0}),
        UnknownNameError,
        (
            "Model: loss_weights: output 'tmp' is not known: did you mean 'temp'? known are kind,"
            " output_2, temp"
        ),
    ),
    "a negative weight": (
        lambda p: several(loss_weights=[1, -1, 1]),
        ArgumentError,
        ("Model: the loss weight of 'temp' must be finite and not negative, got -1"),
    ),
    "no weight": (
        lambda p: several(loss_weights=[0, 0, 0]),
        ArgumentError,
        ("Model: loss_weights are all 0, so there is nothing to train on"),
    ),
    "one weight": (
        lambda p: several(loss_weights=0.5),
        ArgumentError,
        ("Model: loss_weights must be a dict by output, or a list, got 0.5"),
    ),
    "metrics of an unknown output": (
        lambda p: several(metrics={"flux": "mae"}),
        UnknownNameError,
        ("Model: metrics: output 'flux' is not known: known are kind, output_2, temp"),
    ),
    "metrics of one output for all": (
        lambda p: several(metrics=["accuracy"]),
        ArgumentError,
        (
            "output 'temp': accuracy: needs classes, but the loss mean_squared_error is for "
            'numbers; use "mae", "rmse" or "r2", or a loss for classes such as "cross_entropy"; '
            "if predictions are scores of classes all the same, say of which kind: "
            "md.metrics.Accuracy(outputs=...); metrics={output: [...]} gives each output its own"
        ),
    ),
    "a metric twice": (
        lambda p: several(metrics={"temp": ["mae", "mean_absolute_error"]}),
        ArgumentError,
        ("Model: the metric mae is given twice"),
    ),
    "a metric called like a figure": (
        lambda p: labels(metrics=[epoch]),
        ArgumentError,
        (
            "Model: a metric would stand in the column 'epoch' of the history, which means "
            "something else; rename the metric's function, the layer, or the column of the target"
        ),
    ),
    "a metric called like one of validation": (
        lambda p: labels(metrics=[val_mean]),
        ArgumentError,
        (
            "Model: a metric would stand in the column 'val_mean' of the history, which means "
            "something else; rename the metric's function, the layer, or the column of the target"
        ),
    ),
    "targets of unknown outputs": (
        lambda p: several().fit(Z, {**PLAIN, "flux": Z[:, :2]}),
        GraphError,
        ("fit: the model's outputs are ['kind', 'temp', 'output_2'], got ['kind', 'temp', 'flux']"),
    ),
    "validation targets that are missing": (
        lambda p: several().fit(Z, GOOD, validation_data=(Z, PLAIN)),
        GraphError,
        (
            "fit: validation_data: the model's outputs are ['kind', 'temp', 'output_2'], got "
            "['kind', 'temp']"
        ),
    ),
    "targets of a stream": (
        lambda p: several().evaluate([(Z, PLAIN)]),
        GraphError,
        ("the model's outputs are ['kind', 'temp', 'output_2'], got ['kind', 'temp']"),
    ),
    "labels of one of the outputs": (
        lambda p: several().evaluate(Z, {**GOOD, "kind": Y + 1}),
        DataError,
        ("y[0]: row 2 has the label 3, outside the classes 0..2"),
    ),
    "weights of the classes of which output": (
        lambda p: several().fit(Z, GOOD, class_weight="balanced"),
        ArgumentError,
        (
            "fit: class_weight needs one output, got several; give losses the weights: "
            "loss={output: md.losses.CrossEntropy(class_weight=...)}, or use sample_weight"
        ),
    ),
    "classes of all outputs": (
        lambda p: several().predict_class(Z),
        ArgumentError,
        (
            "predict_class: output 'temp': the loss mean_squared_error is for numbers, which have"
            " no classes; use predict; output=... chooses another one"
        ),
    ),
    "classes of an unknown output": (
        lambda p: several().predict_class(Z, output="kid"),
        UnknownNameError,
        (
            "predict_class: output 'kid' is not known: did you mean 'kind'? known are kind, "
            "output_2, temp"
        ),
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_in_python(tmp_path: Path, name: str) -> None:
    check_in_python(tmp_path, PYTHON[name])
