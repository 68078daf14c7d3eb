"""Layers: fields, initial values, formula."""

from typing import TYPE_CHECKING

from magmadnn.calls import check_public, explains_names

from .activations import Activation as Activation
from .activations import ActivationLike as ActivationLike
from .activations import GaussianRBF as GaussianRBF
from .activations import PReLU as PReLU
from .activations import as_activation as as_activation
from .composition import Checkpointed as Checkpointed
from .composition import Output as Output
from .composition import Residual as Residual
from .composition import Sequential as Sequential
from .dense import Dense as Dense
from .functions import Lambda as Lambda
from .images.adaptive import AdaptiveAveragePooling1D as AdaptiveAveragePooling1D
from .images.adaptive import AdaptiveAveragePooling2D as AdaptiveAveragePooling2D
from .images.adaptive import AdaptiveAveragePooling3D as AdaptiveAveragePooling3D
from .images.adaptive import AdaptiveMaxPooling1D as AdaptiveMaxPooling1D
from .images.adaptive import AdaptiveMaxPooling2D as AdaptiveMaxPooling2D
from .images.adaptive import AdaptiveMaxPooling3D as AdaptiveMaxPooling3D
from .images.convolutions import Conv1D as Conv1D
from .images.convolutions import Conv1DTranspose as Conv1DTranspose
from .images.convolutions import Conv2D as Conv2D
from .images.convolutions import Conv2DTranspose as Conv2DTranspose
from .images.convolutions import Conv3D as Conv3D
from .images.convolutions import Conv3DTranspose as Conv3DTranspose
from .images.pooling import AveragePooling1D as AveragePooling1D
from .images.pooling import AveragePooling2D as AveragePooling2D
from .images.pooling import AveragePooling3D as AveragePooling3D
from .images.pooling import GlobalAveragePooling1D as GlobalAveragePooling1D
from .images.pooling import GlobalAveragePooling2D as GlobalAveragePooling2D
from .images.pooling import GlobalAveragePooling3D as GlobalAveragePooling3D
from .images.pooling import GlobalMaxPooling1D as GlobalMaxPooling1D
from .images.pooling import GlobalMaxPooling2D as GlobalMaxPooling2D
from .images.pooling import GlobalMaxPooling3D as GlobalMaxPooling3D
from .images.pooling import MaxPooling1D as MaxPooling1D
from .images.pooling import MaxPooling2D as MaxPooling2D
from .images.pooling import MaxPooling3D as MaxPooling3D
from .images.resizing import Cropping2D as Cropping2D
from .images.resizing import UpSampling2D as UpSampling2D
from .images.resizing import ZeroPadding2D as ZeroPadding2D
from .inputs import Input as Input
from .layer import Layer as Layer
from .layer import Parameter as Parameter
from .lookup import Embedding as Embedding
from .merging import Add as Add
from .merging import Average as Average
from .merging import Concatenate as Concatenate
from .merging import Maximum as Maximum
from .merging import Minimum as Minimum
from .merging import Multiply as Multiply
from .merging import Subtract as Subtract
from .noise import Dropout as Dropout
from .noise import GaussianNoise as GaussianNoise
from .noise import SpatialDropout1D as SpatialDropout1D
from .noise import SpatialDropout2D as SpatialDropout2D
from .normalization import BatchNorm as BatchNorm
from .normalization import GroupNorm as GroupNorm
from .normalization import LayerNorm as LayerNorm
from .normalization import LocalResponseNormalization as LocalResponseNormalization
from .normalization import RMSNorm as RMSNorm
from .regularizers import L1 as L1
from .regularizers import L1L2 as L1L2
from .regularizers import L2 as L2
from .shapes import Flatten as Flatten
from .shapes import Reshape as Reshape

__all__ = [
    "L1",
    "L1L2",
    "L2",
    "Activation",
    "ActivationLike",
    "AdaptiveAveragePooling2D",
    "AdaptiveMaxPooling2D",
    "Add",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "BatchNorm",
    "Checkpointed",
    "Concatenate",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Cropping2D",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "GaussianNoise",
    "GaussianRBF",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAveragePooling3D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GlobalMaxPooling3D",
    "GroupNorm",
    "Input",
    "Lambda",
    "Layer",
    "LayerNorm",
    "LocalResponseNormalization",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "Maximum",
    "Minimum",
    "Multiply",
    "Output",
    "PReLU",
    "Parameter",
    "RMSNorm",
    "Reshape",
    "Residual",
    "Sequential",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "Subtract",
    "UpSampling2D",
    "ZeroPadding2D",
    "as_activation",
]

check_public(vars(), "bool", "int", "str | None")

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.layers", __all__)
