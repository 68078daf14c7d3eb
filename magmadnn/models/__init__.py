"""Networks by name: functions that make a Model, and presets: what `magmadnn train MODEL` can train."""

from typing import TYPE_CHECKING

from magmadnn.calls import explains_names

from .caffe.network import from_caffe as from_caffe
from .convolutional.branched import densenet121 as densenet121
from .convolutional.branched import googlenet as googlenet
from .convolutional.plain import alexnet as alexnet
from .convolutional.plain import vgg16 as vgg16
from .convolutional.residual import resnet18 as resnet18
from .convolutional.residual import resnet20 as resnet20
from .convolutional.residual import resnet34 as resnet34
from .convolutional.residual import resnet50 as resnet50
from .convolutional.residual import resnet56 as resnet56
from .convolutional.small import cifar_cnn as cifar_cnn
from .convolutional.small import cnn_2d as cnn_2d
from .convolutional.small import lenet5 as lenet5
from .kaldi.network import from_kaldi as from_kaldi
from .kaldi.network import kaldi_context as kaldi_context
from .network import Network as Network
from .network import Preset as Preset
from .perceptron import MLP as MLP
from .perceptron import mlp as mlp
from .registry import NETWORKS as NETWORKS
from .registry import by_name as by_name

__all__ = [
    "MLP",
    "NETWORKS",
    "Network",
    "Preset",
    "alexnet",
    "by_name",
    "cifar_cnn",
    "cnn_2d",
    "densenet121",
    "from_caffe",
    "from_kaldi",
    "googlenet",
    "kaldi_context",
    "lenet5",
    "mlp",
    "resnet18",
    "resnet20",
    "resnet34",
    "resnet50",
    "resnet56",
    "vgg16",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.models", __all__)
