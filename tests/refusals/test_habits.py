"""What users of other libraries write: each with the error that says what to write here.

See `cases.py` for what the tables hold.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.calls import check_calls, checked_call, checked_method
from magmadnn.errors import (
    ArgumentError,
    CallError,
    DataError,
    DTypeError,
    GraphError,
    UnknownArgumentError,
    UnknownAttributeError,
    UnknownNameError,
)
from magmadnn.hints import HINTS, SYNONYMS, hint
from tests.refusals.cases import D, PythonCase, X, Y, check_in_python, fit, network

L = md.layers
W = md.variable("w", np.ones(3))


def argument(where: str, name: str, text: str, call: Callable[[], Any]) -> PythonCase:
    return (
        lambda p: call(),
        UnknownArgumentError,
        f"{where}: argument {name!r} is not known: {text}",
    )


def attribute(owner: str, name: str, text: str, call: Callable[[], Any]) -> PythonCase:
    return lambda p: call(), UnknownAttributeError, f"{owner} has no attribute {name!r}: {text}"


ONCE = "the sizes of a sample are said once: md.layers.Input((784,)) is the first of the layers"
CROSS_ENTROPY = (
    'write "cross_entropy", which takes class numbers or one-hot targets, and logits '
    "(no softmax in the last layer)"
)
OF_OPTIMIZER = "it belongs to the optimiser: md.Model(..., optimizer=md.optim.Adam(1e-3))"

ARGUMENTS: list[PythonCase] = [
    argument("Adam", "lr", "it is called 'learning_rate' here", lambda: md.optim.Adam(lr=1e-3)),
    argument("SGD", "lr", "it is called 'learning_rate' here", lambda: md.optim.SGD(lr=0.1)),
    argument("Adam", "betas", "it is called 'beta1' and 'beta2' here",
             lambda: md.optim.Adam(betas=(0.9, 0.99))),
    argument("Adam", "epsilon", "it is called 'eps' here", lambda: md.optim.Adam(epsilon=1e-7)),
    argument("SGD", "decay", "give a schedule as learning_rate, such as md.optim.exponential(1e-3, 0.99)",
             lambda: md.optim.SGD(0.1, decay=1e-6)),
    argument("Dense", "input_shape", ONCE, lambda: D(3, input_shape=(5,))),
    argument("Dense", "input_dim", ONCE, lambda: D(3, input_dim=5)),
    argument("Dense", "in_features", ONCE, lambda: D(in_features=3, out_features=5)),
    argument("Dense", "kernel_initializer", "it is called 'kernel_init' here",
             lambda: D(3, kernel_initializer="he_normal")),
    argument("Dense", "bias", "it is called 'use_bias' here", lambda: D(3, bias=False)),
    argument("Dense", "activatoin",
             "did you mean 'activation'? known are activation, bias_init, bias_regularizer, kernel_init, "
             "kernel_regularizer, name, trainable, units, use_bias", lambda: D(3, activatoin="relu")),
    argument("Dropout", "p", "it is called 'rate' here", lambda: L.Dropout(p=0.5)),
    argument("Embedding", "input_dim", "it is called 'count' here",
             lambda: L.Embedding(input_dim=5, output_dim=3)),
    argument("Embedding", "num_embeddings", "it is called 'count' here",
             lambda: L.Embedding(num_embeddings=5, embedding_dim=3)),
    argument("BatchNorm", "num_features", "leave it out: it follows from the input",
             lambda: L.BatchNorm(num_features=5)),
    argument("BatchNorm", "eps", "it is called 'epsilon' here", lambda: L.BatchNorm(eps=1e-3)),
    argument("Concatenate", "dim", "it is called 'axis' here", lambda: L.Concatenate(dim=1)),
    argument("Layer", "training",
             "fit trains; evaluate and predict do not; an Operation has y.eval(feeds, training=True)",
             lambda: L.Dropout(0.5)(L.Input((3,)), training=True)),
    argument("Input", "batch_size", "leave it out: a batch may have any number of rows",
             lambda: L.Input((3,), batch_size=32)),
    argument("CrossEntropy", "from_logits",
             "losses of classes always take logits: leave softmax and sigmoid out of the last layer",
             lambda: md.losses.CrossEntropy(from_logits=True)),
    argument("cross_entropy", "from_logits",
             "losses of classes always take logits: leave softmax and sigmoid out of the last layer",
             lambda: md.losses.cross_entropy(X, Y, from_logits=True)),
    argument("normal", "stddev", "did you mean 'std'? known are mean, std",
             lambda: md.init.normal(stddev=0.1)),
    argument("Model", "lr", OF_OPTIMIZER, lambda: network(lr=0.1)),
    argument("Model", "optimiser",
             "did you mean 'optimizer'? known are device, executor, inputs, layers, loss, loss_weights, "
             "metrics, optimizer, outputs, precision, preparation, seed",
             lambda: md.Model([L.Input((5,)), D(3)], optimiser="adam")),
    argument("Model", "training",
             "fit trains; evaluate and predict do not; an Operation has y.eval(feeds, training=True)",
             lambda: network()(X, training=False)),
    argument("fit", "nb_epoch", "it is called 'epochs' here", lambda: network().fit(X, Y, nb_epoch=3)),
    argument("fit", "lr", OF_OPTIMIZER, lambda: fit(lr=0.1)),
    argument("fit", "steps_per_epoch",
             "an epoch is one pass over the data; an iterable of (x, y), or a function that makes one, gives "
             "batches as they come", lambda: fit(steps_per_epoch=3)),
    argument("fit", "optimizer",
             "it belongs to the model: md.Model(..., loss=..., optimizer=..., metrics=[...])",
             lambda: fit(optimizer="adam")),
    argument("evaluate", "verbose", "leave it out; only fit prints",
             lambda: network().evaluate(X, Y, verbose=0)),
    argument("evaluate", "return_dict", "leave it out: the result always is a dict",
             lambda: network().evaluate(X, Y, return_dict=True)),
    argument("predict", "verbose", "leave it out; only fit prints", lambda: network().predict(X, verbose=0)),
    argument("predict", "batchsize", "did you mean 'batch_size'? known are batch_size, prepared, x",
             lambda: network().predict(X, batchsize=5)),
    argument("EarlyStopping", "restore_best_weights", "it is called 'restore_best' here",
             lambda: md.callbacks.EarlyStopping(restore_best_weights=True)),
    argument("Checkpoint", "filepath", "it is called 'folder' here",
             lambda: md.callbacks.Checkpoint(filepath="here")),
    argument("sum", "dim", "it is called 'axis' here", lambda: W.sum(dim=0)),
    argument("mean", "dim", "it is called 'axis' here", lambda: md.ops.mean(W, dim=0)),
    (lambda p: md.ops.sum(W, dim=0), UnknownNameError,
     "sum: attribute 'dim' is not known: it is called 'axis' here"),
    (lambda p: md.data.load("good.csv", sep=";"), UnknownArgumentError,
     r"~load: argument 'sep' is not known: .*known are .*"),
]  # fmt: skip

CALLS: list[PythonCase] = [
    (lambda p: D("relu"), ArgumentError,
     "Dense: units must be an integer, got 'relu'; an activation is named: Dense(units, activation='relu')"),
    (lambda p: D(10.0), ArgumentError, "Dense: units must be an integer, got 10.0"),
    (lambda p: D(3, use_bias="no"), ArgumentError, "Dense: use_bias must be True or False, got 'no'"),
    (lambda p: D(3, name=5), ArgumentError, "Dense: name must be text or None, got 5"),
    (lambda p: D(3, trainable=None), ArgumentError, "Dense: trainable must be True or False, got None"),
    (lambda p: L.Embedding("words", 3), ArgumentError, "Embedding: count must be an integer, got 'words'"),
    (lambda p: L.Sequential(5), ArgumentError, "sequential: parts must be a list of layers, got 5"),
    (lambda p: L.Residual([D(3)], projection="dense"), ArgumentError,
     "residual: projection must be a layer, got 'dense'"),
    (lambda p: md.losses.Huber("1"), ArgumentError, "Huber: delta must be a number, got '1'"),
    (lambda p: md.losses.CrossEntropy(np.ones(2)), ArgumentError,
     "CrossEntropy: label_smoothing must be a number, got array([1., 1.])"),
    (lambda p: md.metrics.Accuracy("0.5"), ArgumentError,
     "accuracy: threshold must be a finite number, got '0.5'"),
    (lambda p: md.optim.SGD(0.1, nesterov="yes"), ArgumentError,
     "SGD: nesterov must be True or False, got 'yes'"),
    (lambda p: md.init.normal("he"), ArgumentError, "normal: mean must be a number, got 'he'"),
    (lambda p: D(), CallError,
     ("Dense: argument 'units' is missing: Dense(units, activation=None, use_bias=True, "
     "kernel_init=glorot_uniform(), ...)")),
    (lambda p: L.GaussianNoise(), CallError,
     "GaussianNoise: argument 'stddev' is missing: GaussianNoise(stddev, *, name=None, trainable=True)"),
    (lambda p: D(3, units=5), CallError, "Dense: argument 'units' is given twice, in its place and by name"),
    (lambda p: L.Flatten(3), CallError,
     "Flatten: takes no arguments without a name, got 1; write names before values: name=..., trainable=..."),
    (lambda p: network().fit(X, Y, 32, 5), CallError,
     "~fit: takes the arguments .x, y. without a name, got 4; write names before values: batch_size=..., .*"),
    (lambda p: md.tensor([1, 2]), CallError,
     "md.tensor is a module, not a function: write md.asarray(values)"),
    (lambda p: md.optim.Adam().step(), CallError,
     r"~step: argument 'loss' is missing: step\(loss, parameters, .*"),
    argument("eval", "x", "known are feeds, training", lambda: W.eval(x=X)),
    (lambda p: md.variable((3,), "w"), ArgumentError,
     "variable: name must be text, got (3,); the shape comes second"),
    (lambda p: D(5, 3), ArgumentError,
     ("activation: expected a name or a function, got 3; a layer is given the number of its outputs only: "
     "Dense(units, activation)")),
    (lambda p: fit(callbacks=[md.callbacks.EarlyStopping]), ArgumentError,
     "fit: callbacks: got the class EarlyStopping, expected an instance: write EarlyStopping(...)"),
    (lambda p: fit(callbacks=md.callbacks.EarlyStopping("loss")), ArgumentError,
     ("fit: callbacks must be a list such as [md.callbacks.EarlyStopping()], got 'EarlyStopping'; "
     "put it into a list")),
    (lambda p: network().fit(None, Y), GraphError, "fit: x is None, expected an array of samples"),
    (lambda p: network().fit((X, Y)), DataError,
     "an iterable must give (x, y) or (x, y, weights), got ndarray; arrays of all rows are fit(x, y)"),
    (lambda p: network().fit(zip(X, Y, strict=True)), DataError,
     ("the arrays of a batch need one number of rows above 0, got [5, 0]; it gives single samples: "
     "give arrays of all rows, fit(x, y)")),
    (lambda p: fit(y=np.array(["a", "b", "c"])[Y]), DTypeError,
     ("y: elements are of type <U1, expected numbers: convert text to numbers or class numbers first, "
     "for instance with classes, numbers = np.unique(labels, return_inverse=True)")),
    (lambda p: (W * 2).__setitem__(0, 1), GraphError,
     (r"~elements of <Operation multiply: .*> cannot be set: write variable.value\[...\] = x, or use "
     "md.ops.where")),
    (lambda p: network().fit(), CallError,
     "fit: argument 'x' is missing: fit(x, y=None, *, batch_size=32, epochs=1, ...)"),
]  # fmt: skip

NO_MODES = "there are no modes to switch: fit trains; evaluate and predict do not"
COMPILE = "md.Model(layers, loss=..., optimizer=..., metrics=[...]) takes what compile does"
DEVICE = 'the device is chosen when the model is made: md.Model(..., device="cuda")'
GRADIENTS = "gradients are graph: md.grad(loss, [w, b])"

ATTRIBUTES: list[PythonCase] = [
    attribute("Model", "compile", COMPILE, lambda: network().compile(optimizer="adam")),
    attribute("Model", "to", DEVICE, lambda: network().to("cuda")),
    attribute("Model", "cuda", DEVICE, lambda: network().cuda()),
    attribute("Model", "train", NO_MODES, lambda: network().train()),
    attribute("Model", "eval", NO_MODES, lambda: network().eval()),
    attribute("Model", "get_weights", "arrays by name are model.values()", lambda: network().get_weights()),
    attribute("Model", "set_weights", "give arrays by name: model.assign(values)",
              lambda: network().set_weights([])),
    attribute("Model", "state_dict", "arrays by name are model.values()", lambda: network().state_dict()),
    attribute("Model", "load_state_dict", "give arrays by name: model.assign(values)",
              lambda: network().load_state_dict({})),
    attribute("Model", "train_on_batch", "write model.fit(x, y, batch_size=len(x), epochs=1, verbose=False)",
              lambda: network().train_on_batch(X, Y)),
    attribute("Model", "add", "layers come in a list: md.Model([md.layers.Input((4,)), md.layers.Dense(3)])",
              lambda: network().add(D(3))),
    attribute("Model", "predict_proba", "write model.predict_probability(x)",
              lambda: network().predict_proba(X)),
    attribute("Model", "predictt", "did you mean 'predict'?", lambda: network().predictt(X)),
    attribute("Dense", "get_weights", "write [p.eval() for p in layer.parameters()]",
              lambda: D(3).get_weights()),
    attribute("Dense", "kernel", "it is made when the layer is called on an Input, or in a Model",
              lambda: D(3).kernel),
    attribute("Adam", "lr", "write learning_rate", lambda: md.optim.Adam().lr),
    attribute("Adam", "zero_grad",
              "fit does that; for a loop of your own see md.optim.Adam().step(loss, parameters)",
              lambda: md.optim.Adam().zero_grad()),
    attribute("Variable", "detach", "write md.ops.stop_gradient(x)", lambda: W.detach()),
    attribute("Variable", "backward", GRADIENTS, lambda: W.backward()),
    attribute("Variable", "requires_grad", "md.grad and steps are given the variables that they are to train",
              lambda: W.requires_grad),
    attribute("Tensor", "backward", GRADIENTS, lambda: W.value.backward()),
    attribute("Tensor", "view", "write x.reshape(shape)", lambda: W.value.view(-1)),
    attribute("Operation", "view", "write x.reshape(shape)", lambda: (W * 2).view(-1)),
    attribute("History", "history", 'columns are indexed: history["loss"]', lambda: md.History().history),
    attribute("module magmadnn.layers", "Linear", "it is called 'Dense' here", lambda: L.Linear(5, 3)),
    attribute("module magmadnn.layers", "BatchNorm1d", "it is called 'BatchNorm' here",
              lambda: L.BatchNorm1d(5)),
    attribute("module magmadnn.layers", "ReLU",
              'write md.layers.Activation("relu"), or activation="relu" in Dense', lambda: L.ReLU()),
    attribute("module magmadnn.layers", "MultiHeadAttention",
              'there is no such layer: the how-to guide "Write attention" has one for copying',
              lambda: L.MultiHeadAttention),
    attribute("module magmadnn.layers", "Densse", "did you mean 'Dense'?", lambda: L.Densse),
    attribute("module magmadnn.layers", "Dropout2D", "write md.layers.SpatialDropout2D", lambda: L.Dropout2D),
    attribute("module magmadnn.models", "ResNet50", "it is called 'resnet50' here",
              lambda: md.models.ResNet50),
    attribute("module magmadnn.models", "resnett50", "did you mean 'resnet50'?", lambda: md.models.resnett50),
    attribute("module magmadnn.search", "loguniform", "it is called 'log_uniform' here",
              lambda: md.search.loguniform(1e-4, 1e-1)),
    attribute("module magmadnn.data", "read_tabel", "did you mean 'read_table'?", lambda: md.data.read_tabel),
    attribute("module magmadnn.losses", "CrossEntropyLoss", "it is called 'CrossEntropy' here",
              lambda: md.losses.CrossEntropyLoss()),
    attribute("module magmadnn.metrics", "CategoricalAccuracy", "it is called 'Accuracy' here",
              lambda: md.metrics.CategoricalAccuracy()),
    attribute("module magmadnn.optim", "StepLR", "it is called 'step_decay' here", lambda: md.optim.StepLR),
    attribute("module magmadnn.callbacks", "ModelCheckpoint", "it is called 'Checkpoint' here",
              lambda: md.callbacks.ModelCheckpoint("here")),
    attribute("module magmadnn.ops", "softmaxx", "did you mean 'softmax'?", lambda: md.ops.softmaxx),
    attribute("Tensor", "flatten", "write x.reshape(-1)", lambda: W.value.flatten()),
    attribute("Tensor", "clone", "write copy.deepcopy(x)",
              lambda: W.value.clone()),
    attribute("module magmadnn", "zeros", "write md.Tensor(shape), or md.asarray(np.zeros(shape))",
              lambda: md.zeros((2, 2))),
    attribute("module magmadnn", "fit", "it is a method of a model: model.fit(x, y)", lambda: md.fit),
    attribute("module magmadnn", "nn", "layers are in md.layers, losses in md.losses", lambda: md.nn),
    attribute("module magmadnn", "Sequential", "write md.Model([md.layers.Input((4,)), md.layers.Dense(3)])",
              lambda: md.Sequential()),
]  # fmt: skip

NAMES: list[PythonCase] = [
    (lambda p: D(3, "ReLU"), UnknownNameError, r"~activation 'ReLU' is not known: did you mean 'relu'\? .*"),
    (lambda p: network(loss="CrossEntropy"), UnknownNameError,
     r"~loss 'CrossEntropy' is not known: did you mean 'cross_entropy'\? .*"),
    (lambda p: D(3, "silu"), UnknownNameError, "activation 'silu' is not known: it is called 'swish' here"),
    (lambda p: network(loss="sparse_categorical_crossentropy"), UnknownNameError,
     f"loss 'sparse_categorical_crossentropy' is not known: {CROSS_ENTROPY}"),
    (lambda p: network(loss="categorical_crossentropy"), UnknownNameError,
     f"loss 'categorical_crossentropy' is not known: {CROSS_ENTROPY}"),
    (lambda p: network(loss="bce"), UnknownNameError,
     ('loss \'bce\' is not known: write "binary_cross_entropy", which takes logits '
     "(no sigmoid in the last layer)")),
    (lambda p: network(metrics=["acc"]), UnknownNameError,
     "metric 'acc' is not known: it is called 'accuracy' here"),
    (lambda p: md.init.by_name("xavier_uniform"), UnknownNameError,
     "initialiser 'xavier_uniform' is not known: it is called 'glorot_uniform' here"),
    (lambda p: network(device="gpu"), UnknownNameError,
     "device 'gpu' is not known: it is called 'cuda' here"),
    (lambda p: fit(callbacks=[md.callbacks.EarlyStopping("val_accuracy")]), UnknownNameError,
     ("EarlyStopping: monitor 'val_accuracy' is not known: there is no validation: give fit "
     "validation_data=(x, y) or validation_split=0.2")),
    (lambda p: network().fit(X, Y, epochs=1, verbose=False)["val_accuracy"], UnknownNameError,
     ("history column 'val_accuracy' is not known: there is no validation: give fit "
     "validation_data=(x, y) or validation_split=0.2")),
    (lambda p: network().fit(X, Y, epochs=1, verbose=False)["acc"], UnknownNameError,
     "history column 'acc' is not known: it is called 'accuracy' here"),
]  # fmt: skip


@pytest.mark.parametrize("case", [*ARGUMENTS, *CALLS, *ATTRIBUTES, *NAMES], ids=lambda c: c[2][:60])
def test_what_to_write_instead(place: Path, case: PythonCase) -> None:
    check_in_python(place, case)


# --- what hints name is there ---------------------------------------------------------------------

TEXTS = [text for texts in HINTS.values() for text in texts.values()]


@pytest.mark.parametrize(
    "name", sorted({n for t in TEXTS for n in re.findall(r"\bmd(?:\.\w+)+", t)})
)
def test_hints_name_what_is_there(name: str) -> None:
    found: Any = md
    for part in name.split(".")[1:]:
        found = getattr(found, part)


@pytest.mark.parametrize(("word", "thing"), [
    ("model", network()), ("layer", D(3)), ("history", md.History()), ("x", W * 2),
])  # fmt: skip
def test_methods_that_hints_name_are_there(word: str, thing: Any) -> None:
    named = {n for t in TEXTS for n in re.findall(rf"\b{word}\.(\w+)", t)} - {"kernel"}
    assert named and all(hasattr(thing, name) for name in named)


MODULES = {n: getattr(md, n.split(".")[1]) for n in SYNONYMS if n.startswith("magmadnn.")}


@pytest.mark.parametrize("name", MODULES)
def test_hints_do_not_hide_what_is_there(name: str) -> None:
    public = vars(MODULES[name])["__all__"]
    assert not {*SYNONYMS[name], *HINTS.get(name, {})} & {*public}
    assert {other for others in SYNONYMS[name].values() for other in others} <= {*public}


@pytest.mark.parametrize(
    "cls", [md.Model, md.layers.Layer, md.optim.Optimizer, md.History, md.Tensor, md.Operation]
)
def test_hints_of_attributes_are_of_those_that_are_not_there(cls: type) -> None:
    for base in cls.__mro__:
        hinted = HINTS.get(base.__name__, {})
        assert not [name for name in hinted if name in vars(cls)]


def test_synonyms_are_said_only_where_they_are_known() -> None:
    assert hint(["argument"], "lr", ["learning_rate"]) == "it is called 'learning_rate' here"
    assert hint(["argument"], "lr", ["units"]) is None
    assert (
        hint(["monitor"], "val_acc", ["accuracy", "val_accuracy"])
        == "it is called 'val_accuracy' here"
    )
    assert hint(["monitor"], "val_auc", ["accuracy", "val_accuracy"]) is None
    assert hint(["argument"], 3, []) is None


# --- what others rely on --------------------------------------------------------------------------


def test_signatures_stay() -> None:
    assert list(inspect.signature(D).parameters)[:3] == ["units", "activation", "use_bias"]
    assert list(inspect.signature(md.Model.fit).parameters)[:4] == ["self", "x", "y", "batch_size"]
    assert inspect.signature(md.Model).parameters["seed"].default == 0
    assert (md.Model.fit.__doc__ or "").startswith("Train.")


def test_missing_attributes_are_attribute_errors() -> None:
    for thing in (network(), D(3), md.optim.Adam(), md.History(), W, W.value, md, L):
        assert not hasattr(thing, "compile")
        assert getattr(thing, "no_such_name", 5) == 5
        assert not hasattr(thing, "_repr_of_nobody_")
        with pytest.raises(AttributeError) as caught:
            thing._ipython_display_  # noqa: B018  # as IPython asks
        assert type(caught.value) is AttributeError


def test_copies_and_pickles_work() -> None:
    model = network()
    for copied in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(copied.predict(X), model.predict(X))
    for thing in (md.optim.Adam(), md.losses.CrossEntropy(), md.init.normal()):
        assert pickle.loads(pickle.dumps(thing)) == copy.deepcopy(thing) == thing


def test_an_unknown_attribute_can_be_pickled() -> None:
    with pytest.raises(UnknownAttributeError) as caught:
        network().compile()
    assert str(copy.copy(caught.value)).startswith("Model has no attribute 'compile'")


class Counted:
    def __init__(self, count: int, *, by: int = 1) -> None:
        self.count = count + by

    @checked_method
    def up(self, by: int) -> int:
        return self.count + by


check_calls(Counted)


def test_a_type_error_from_within_stays() -> None:
    with pytest.raises(TypeError, match=r"can only concatenate|unsupported operand") as caught:
        Counted("a")  # type: ignore[arg-type]
    assert type(caught.value) is TypeError
    with pytest.raises(TypeError) as caught:
        Counted(3).up("a")  # type: ignore[arg-type]
    assert type(caught.value) is TypeError
    assert Counted(3, by=2).up(5) == 10


def test_a_wrapped_constructor_is_wrapped_once() -> None:
    made = Counted.__init__
    check_calls(Counted)
    assert Counted.__init__ is made


@checked_call
def anything(first: int, /, *others: int, **named: int) -> int:
    return first + sum(others) + sum(named.values())


def test_calls_that_take_anything() -> None:
    assert anything(1, 2, 3, a=4) == 10
    with pytest.raises(CallError, match=r"anything: argument 'first' is missing"):
        anything()  # type: ignore[call-arg]
    with pytest.raises(ArgumentError):
        anything(a=3)  # type: ignore[call-arg]
