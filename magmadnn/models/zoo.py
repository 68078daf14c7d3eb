"""The convolutional networks with their presets for training, as the command line knows them."""

from __future__ import annotations

from typing import Literal

from .convolutional.branched import densenet121, googlenet
from .convolutional.plain import alexnet, vgg16
from .convolutional.residual import resnet18, resnet20, resnet34, resnet50, resnet56
from .convolutional.small import cifar_cnn, cnn_2d, lenet5
from .network import Build, Network, Preset

_DIGITS = Preset(
    about="MNIST: lenet5 reaches 99.1 % of its test set in 5 epochs, mean of 3 seeds",
    hidden=(),
    learning_rate=2e-3,
    batch_size=64,
    validation_split=0.0,
)
_SMALL_IMAGES = Preset(
    about="small images: cifar_cnn reaches 75.1 % of CIFAR-10 with 20,000 training images, mean of 3 seeds",
    hidden=(),
    dropout=0.25,
    batch_size=64,
    epochs=15,
    augment="standard",
    validation_split=0.0,
)
_RESIDUAL = Preset(
    about="images as CIFAR-10's: resnet20 reaches 85.5 % with 20,000 training images, mean of 3 seeds",
    hidden=(),
    optimizer="adamw",
    learning_rate=2e-3,
    weight_decay=0.05,
    epochs=60,
    augment="standard",
    validation_split=0.0,
)
_PHOTOGRAPHS = Preset(
    about="folders of photographs",
    hidden=(),
    optimizer="adamw",
    weight_decay=0.05,
    batch_size=64,
    epochs=30,
    augment="standard",
)


def _network(
    name: str,
    build: Build,
    about: str,
    preset: Preset,
    shown_for: Literal["mnist", "cifar", "photographs"] = "photographs",
    options: tuple[str, ...] = (),
) -> Network:
    return Network(name, about, build, "image", None, {"image": preset}, options, shown_for)


ZOO = (
    _network(
        "lenet5",
        lenet5,
        "LeNet-5 of 1998, with ReLU and max pooling",
        _DIGITS,
        "mnist",
        ("activation",),
    ),
    _network(
        "cnn_2d",
        cnn_2d,
        "MagmaDNN's example: two convolutions, three dense layers",
        _DIGITS,
        "mnist",
    ),
    _network(
        "cifar_cnn",
        cifar_cnn,
        "two pairs of convolutions and a dense layer",
        _SMALL_IMAGES,
        "cifar",
        ("dropout",),
    ),
    _network("resnet20", resnet20, "ResNet for CIFAR, 20 layers", _RESIDUAL, "cifar"),
    _network("resnet56", resnet56, "ResNet for CIFAR, 56 layers", _RESIDUAL, "cifar"),
    _network("alexnet", alexnet, "AlexNet on one device", _PHOTOGRAPHS),
    _network("vgg16", vgg16, "VGG, 16 layers", _PHOTOGRAPHS),
    _network("googlenet", googlenet, "GoogLeNet with batch normalisation", _PHOTOGRAPHS),
    _network("resnet18", resnet18, "ResNet, 18 layers", _PHOTOGRAPHS),
    _network("resnet34", resnet34, "ResNet, 34 layers", _PHOTOGRAPHS),
    _network("resnet50", resnet50, "ResNet, 50 layers", _PHOTOGRAPHS),
    _network("densenet121", densenet121, "DenseNet, 121 layers", _PHOTOGRAPHS),
)
