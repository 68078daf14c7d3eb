"""Names that nobody knows, numbers that are too small or too large, options of the command line.

See `cases.py` for what the tables hold.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import magmadnn as md
from magmadnn import models
from magmadnn.errors import ArgumentError, ShapeError, UnknownNameError
from tests.refusals.cases import (
    TRAIN,
    CommandCase,
    D,
    PythonCase,
    check_in_python,
    check_on_the_command_line,
    fit,
    network,
)


def define(name: str, base: type, **members: object) -> type:
    """A class of a user's own."""
    return type(name, (base,), {"__module__": "script", **members})


def load_with(folder: Path, *custom: type) -> None:
    network().save(folder)
    md.load(folder, custom=custom)


OWN = 'give yours another: names = ("my_'
PYTHON: dict[str, PythonCase] = {
    "name: a loss of ours": (
        lambda p: define("Huber", md.losses.Loss, per_sample=abs),
        ArgumentError,
        f"loss Huber: md.losses.Huber is known by the name 'huber'; {OWN}huber\",) in the class",
    ),
    "name: a loss of ours, changed": (
        lambda p: define("Huber", md.losses.Huber),
        ArgumentError,
        f"loss Huber: md.losses.Huber is known by the name 'huber'; {OWN}huber\",) in the class",
    ),
    "name: another name of a loss of ours": (
        lambda p: define("Mine", md.losses.Loss, per_sample=abs, names=("mine", "mse")),
        ArgumentError,
        "~loss Mine: md.losses.MeanSquaredError is known by the name 'mse'; .*my_mse.*",
    ),
    "name: a metric of ours": (
        lambda p: define("Accuracy", md.metrics.Average, per_sample=abs),
        ArgumentError,
        "~metric Accuracy: md.metrics.Accuracy is known by the name 'accuracy'; .*my_accuracy.*",
    ),
    "name: an optimiser of ours": (
        lambda p: define("SGD", md.optim.Optimizer, parts=tuple),
        ArgumentError,
        "optimiser SGD: md.optim.SGD is known by the name 'sgd'; give yours another name",
    ),
    "name: an initialiser of ours": (
        lambda p: define("normal", md.init.Initializer, make=abs),
        ArgumentError,
        "initialiser normal: md.init.normal is known by the name 'normal'; give yours another name",
    ),
    "name: two of one name for loading": (
        lambda p: load_with(p / "saved", define("Mine", D), define("Mine", D)),
        ArgumentError,
        "~custom: two of the items are called Mine, and a saved model names one; .*",
    ),
    "size: batch is no integer": (
        lambda p: fit(batch_size=2.5),
        ArgumentError,
        "fit: batch_size must be an integer of at least 1, got 2.5",
    ),
    "size: batch of an epoch": (
        lambda p: fit(batch_size=lambda epoch: -epoch),
        ArgumentError,
        "fit: batch_size(0) must be an integer of at least 1, got 0",
    ),
    "size: seed": (
        lambda p: network(seed=1.5),
        ArgumentError,
        "Model: seed must be an integer of at least 0, got 1.5",
    ),
    "size: patience": (
        lambda p: md.callbacks.EarlyStopping(patience="2"),
        ArgumentError,
        "EarlyStopping: patience must be an integer of at least 0, got '2'",
    ),
    "name: executor": (
        lambda p: network(executor="fast"),
        UnknownNameError,
        "executor 'fast' is not known: known are native, reference",
    ),
    "name: precision": (
        lambda p: network(precision="fp16"),
        UnknownNameError,
        (
            "precision 'fp16' is not known: did you mean 'mixed_fp16'? known are float32, "
            "float64, mixed_bf16, mixed_fp16, tf32"
        ),
    ),
    "name: device is a number": (
        lambda p: network(device=0),
        UnknownNameError,
        "device 0 is not known: known are auto, cpu, cuda",
    ),
    "name: model": (
        lambda p: models.by_name("mpl"),
        UnknownNameError,
        (
            "model 'mpl' is not known: did you mean 'mlp'? known are alexnet, cifar_cnn, cnn_2d, "
            "densenet121, googlenet, lenet5, mlp, resnet18, resnet20, resnet34, resnet50, resnet56, vgg16"
        ),
    ),
    "name: preset": (
        lambda p: models.by_name("mlp").preset("papr"),
        UnknownNameError,
        ("mlp: preset 'papr' is not known: did you mean 'paper'? known are image, paper, table"),
    ),
    "name: activation": (
        lambda p: D(3, activation="rleu")(md.layers.Input((5,))),
        UnknownNameError,
        (
            "activation 'rleu' is not known: did you mean 'relu'? known are elu, "
            "gaussian_rbf, gelu, leaky_relu, linear, prelu, relu, sigmoid, softmax, "
            "softplus, softsign, swish, tanh"
        ),
    ),
    "name: optimizer": (
        lambda p: network(optimizer="adma"),
        UnknownNameError,
        (
            "optimiser 'adma' is not known: did you mean 'Adam'? known are AdaGrad, Adam, "
            "AdamW, Chain, LAMB, LARS, RMSProp, SGD"
        ),
    ),
    "name: loss": (
        lambda p: fit(model=network(loss="cros_entropy")),
        UnknownNameError,
        (r"~loss 'cros_entropy' is not known: did you mean 'cross_entropy'\? known are binary_.*"),
    ),
    "name: metric": (
        lambda p: fit(model=network(metrics=["acuracy"])),
        UnknownNameError,
        (r"~metric 'acuracy' is not known: did you mean 'accuracy'\? known are accuracy, auc, .*"),
    ),
    "name: layer": (
        lambda p: network().layer("dens_1"),
        UnknownNameError,
        ("layer 'dens_1' is not known: did you mean 'dense_1'? known are dense_1, dense_2"),
    ),
    "name: missing": (
        lambda p: md.data.load("good.csv", missing="maen"),
        UnknownNameError,
        "missing 'maen' is not known: did you mean 'mean'? known are drop, mean",
    ),
    "name: task": (
        lambda p: md.data.load("good.csv", task="regresion"),
        UnknownNameError,
        (
            "task 'regresion' is not known: did you mean 'regression'? known are "
            "classification, regression"
        ),
    ),
    "name: verbose": (
        lambda p: fit(verbose="atuo"),
        UnknownNameError,
        "fit: verbose 'atuo' is not known: did you mean 'auto'? known are auto, bar, every 10, line",
    ),
    "name: monitor": (
        lambda p: fit(callbacks=[md.callbacks.EarlyStopping("val_los")]),
        UnknownNameError,
        (
            "EarlyStopping: monitor 'val_los' is not known: there is no validation: give fit "
            "validation_data=(x, y) or validation_split=0.2"
        ),
    ),
    "size: units": (
        lambda p: D(-3)(md.layers.Input((5,))),
        ArgumentError,
        "dense: units must be an integer of at least 1, got -3",
    ),
    "size: input": (
        lambda p: md.layers.Input((5, -1)),
        ShapeError,
        "Input input: sizes must be at least 1, got (5, -1)",
    ),
    "size: dropout": (
        lambda p: md.layers.Dropout(1.5)(md.layers.Input((5,))),
        ArgumentError,
        "dropout: rate must be a number of at least 0 and below 1, got 1.5",
    ),
    "size: learning rate": (
        lambda p: md.optim.SGD(learning_rate=-0.1),
        ArgumentError,
        "SGD: learning_rate must be a number of at least 0, got -0.1",
    ),
    "size: batch": (
        lambda p: fit(batch_size=0),
        ArgumentError,
        "fit: batch_size must be an integer of at least 1, got 0",
    ),
    "size: epochs": (
        lambda p: fit(epochs=-1),
        ArgumentError,
        "fit: epochs must be an integer of at least 0, got -1",
    ),
    "size: validation split": (
        lambda p: fit(validation_split=1.0),
        ArgumentError,
        "fit: validation_split must be at least 0 and below 1, got 1.0",
    ),
    "size: test split": (
        lambda p: md.data.load("good.csv", test_split=1.5),
        ArgumentError,
        "fraction of a split: must be between 0 and 1, got 1.5",
    ),
    "size: memory": (
        lambda p: md.MemoryManager(-20),
        ArgumentError,
        "memory: size must be an integer of at least 0, got -20",
    ),
    "size: validation split is text": (
        lambda p: fit(validation_split="0.2"),
        ArgumentError,
        "fit: validation_split must be at least 0 and below 1, got '0.2'",
    ),
    "size: first epoch": (
        lambda p: fit(initial_epoch=-1),
        ArgumentError,
        "fit: initial_epoch must be an integer of at least 0, got -1",
    ),
    "name: order": (
        lambda p: fit(shuffle="batch"),
        ArgumentError,
        "fit: shuffle must be True or False, got 'batch'",
    ),
}

COMMAND: dict[str, CommandCase] = {
    "size: refit without validation": (
        (*TRAIN, "--refit"),
        (
            "--refit: no rows are kept back to choose the number of epochs by; give --validation-split 0.1 "
            "too, or leave --refit out"
        ),
    ),
    "name: command": (
        ("trian",),
        (
            "command 'trian' is not known: did you mean 'train'? known are doctor, "
            "evaluate, export, launch, predict, search, summary, train, tune, workflow"
        ),
    ),
    "name: no command": (
        (),
        (
            "a command is missing: give one of train, search, workflow, evaluate, predict, export, summary, "
            "launch, doctor, tune, or --help"
        ),
    ),
    "name: option before the command": (
        ("--versoin",),
        ("option '--versoin' is not known: did you mean '--version'? known are --help, --version"),
    ),
    "name: option": (
        (*TRAIN, "--epoch", "3"),
        (
            "option '--epoch' is not known: did you mean '--epochs'? known are "
            "--activation, --augment, --bad-images, --batch-size, "
            "--categories, --checkpoint-every, --data, --decimal, --decode, --device, "
            "--epochs, --features, --help, --hidden, --ignore, --image-size, --json, "
            "--loader-workers, --lr, --memory-limit, --missing, --optimizer, "
            "--out, --parallel, --pca, --precision, --preset, --quiet, --refit, --resume, --seed, --target, "
            "--task, --test-split, --threads, --validation-split, --weight-decay, --workers, -h"
        ),
    ),
    "size: memory without a known unit": (
        (*TRAIN, "--memory-limit", "some MiB"),
        (
            "--memory-limit: must be at least 1 byte, such as 800000000, 512MiB or 1.5GB, got 'some MiB'; "
            "see magmadnn train --help"
        ),
    ),
    "size: no memory": (
        (*TRAIN, "--memory-limit", "0.5B"),
        (
            "--memory-limit: must be at least 1 byte, such as 800000000, 512MiB or 1.5GB, got '0.5B'; see "
            "magmadnn train --help"
        ),
    ),
    "size: a way to share, and one process": (
        (*TRAIN, "--parallel", "hybrid"),
        ("--parallel hybrid: one process shares nothing: give --workers 2, or more, too"),
    ),
    "name: model": (
        ("train", "mpl"),
        (
            "model 'mpl' is not known: did you mean 'mlp'? known are alexnet, cifar_cnn, cnn_2d, "
            "densenet121, googlenet, lenet5, mlp, resnet18, resnet20, resnet34, resnet50, resnet56, vgg16"
        ),
    ),
    "name: preset": (
        (*TRAIN, "--preset", "papr"),
        ("mlp: preset 'papr' is not known: did you mean 'paper'? known are image, paper, table"),
    ),
    "name: activation": (
        (*TRAIN, "--activation", "rleu"),
        (
            "--activation: activation 'rleu' is not known: did you mean 'relu'? known are "
            "elu, gaussian_rbf, gelu, leaky_relu, linear, relu, sigmoid, softmax, "
            "softplus, softsign, swish, tanh; see magmadnn train --help"
        ),
    ),
    "name: optimizer": (
        (*TRAIN, "--optimizer", "adma"),
        (
            "--optimizer: optimiser 'adma' is not known: did you mean 'adam'? known are "
            "adagrad, adam, adamw, lamb, lars, rmsprop, sgd; see magmadnn train --help"
        ),
    ),
    "name: missing": (
        (*TRAIN, "--missing", "maen"),
        (
            "--missing: way 'maen' is not known: did you mean 'mean'? known are drop, "
            "mean; see magmadnn train --help"
        ),
    ),
    "name: task": (
        (*TRAIN, "--task", "regresion"),
        (
            "--task: task 'regresion' is not known: did you mean 'regression'? known are "
            "classification, regression; see magmadnn train --help"
        ),
    ),
    "name: device": (
        (*TRAIN, "--device", "gpu"),
        (
            "--device: device 'gpu' is not known: it is called 'cuda' here; see "
            "magmadnn train --help"
        ),
    ),
    "name: summary": (
        ("summary", "mpl"),
        (
            "model 'mpl' is not known: did you mean 'mlp'? known are alexnet, cifar_cnn, "
            "cnn_2d, densenet121, googlenet, "
            "lenet5, mlp, resnet18, resnet20, resnet34, resnet50, resnet56, vgg16; nor is it a "
            "training's output folder"
        ),
    ),
    "size: hidden": (
        (*TRAIN, "--hidden", "528,-3"),
        (
            "--hidden: must be whole numbers of at least 1 with commas between, such as "
            "512,256, got '528,-3'; see magmadnn train --help"
        ),
    ),
    "size: learning rate": (
        (*TRAIN, "--lr", "-0.1"),
        "--lr: must be a number above 0, got '-0.1'; see magmadnn train --help",
    ),
    "size: learning rate NaN": (
        (*TRAIN, "--lr", "nan"),
        "--lr: must be a number above 0, got 'nan'; see magmadnn train --help",
    ),
    "size: weight decay": (
        (*TRAIN, "--weight-decay", "-1"),
        ("--weight-decay: must be a number of at least 0, got '-1'; see magmadnn train --help"),
    ),
    "size: batch": (
        (*TRAIN, "--batch-size", "0"),
        ("--batch-size: must be a whole number of at least 1, got '0'; see magmadnn train --help"),
    ),
    "size: epochs": (
        (*TRAIN, "--epochs", "2.5"),
        ("--epochs: must be a whole number of at least 1, got '2.5'; see magmadnn train --help"),
    ),
    "size: validation split": (
        (*TRAIN, "--validation-split", "1"),
        (
            "--validation-split: must be a share of at least 0 and below 1, got '1'; see "
            "magmadnn train --help"
        ),
    ),
    "size: test split": (
        (*TRAIN, "--test-split", "1.5"),
        ("--test-split: must be a share above 0 and below 1, got '1.5'; see magmadnn train --help"),
    ),
    "size: seed": (
        (*TRAIN, "--seed", "-1"),
        ("--seed: must be a whole number of at least 0, got '-1'; see magmadnn train --help"),
    ),
    "size: threads": (
        (*TRAIN, "--threads", "0"),
        ("--threads: must be a whole number of at least 1, got '0'; see magmadnn train --help"),
    ),
    "size: too many threads": (
        (*TRAIN, "--threads", "1000000"),
        (
            "--threads: must be a whole number from 1 to 1024, got '1000000'; see "
            "magmadnn train --help"
        ),
    ),
    "size: a seed of 67 bits": (
        (*TRAIN, "--seed", "99999999999999999999"),
        (
            "--seed: must be a whole number from 0 to 9223372036854775807, got "
            "'99999999999999999999'; see magmadnn train --help"
        ),
    ),
    "size: layers of 67 bits": (
        (*TRAIN, "--hidden", "99999999999999999999"),
        "~--hidden: must be whole numbers of at least 1 .*",
    ),
    "name: optimiser that needs others": (
        (*TRAIN, "--optimizer", "Chain"),
        (
            "--optimizer: optimiser 'chain' is not known: known are adagrad, adam, adamw, "
            "lamb, lars, rmsprop, sgd; see magmadnn train --help"
        ),
    ),
    "size: checkpoints": (
        (*TRAIN, "--checkpoint-every", "0"),
        (
            "--checkpoint-every: must be a whole number of at least 1, got '0'; see "
            "magmadnn train --help"
        ),
    ),
    "option: without a value": (
        (*TRAIN, "--out"),
        "--out: expected one argument; see magmadnn train --help",
    ),
    "option: left out": (
        ("predict", "run", "--data", "good.csv"),
        "the following arguments are required: --out; see magmadnn predict --help",
    ),
    "option: one too many": (
        (*TRAIN, "mlp", "again"),
        "'again' is one argument too many; see magmadnn train --help",
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_in_python(place: Path, name: str) -> None:
    check_in_python(place, PYTHON[name])


@pytest.mark.parametrize("name", COMMAND)
def test_on_the_command_line(place: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    check_on_the_command_line(place, capsys, COMMAND[name])
