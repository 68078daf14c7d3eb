"""Optimisers: update rules as small parts, schedules, and the chains that have a name."""

from typing import TYPE_CHECKING

from magmadnn.calls import check_methods, check_public, explains_names

from .optimizer import LAMB as LAMB
from .optimizer import LARS as LARS
from .optimizer import SGD as SGD
from .optimizer import AdaGrad as AdaGrad
from .optimizer import Adam as Adam
from .optimizer import AdamW as AdamW
from .optimizer import Chain as Chain
from .optimizer import Optimizer as Optimizer
from .optimizer import RMSProp as RMSProp
from .optimizer import by_name as by_name
from .optimizer import chain as chain
from .optimizer import from_config as from_config
from .optimizer import of as of
from .parts import AdamMoments as AdamMoments
from .parts import ClipNorm as ClipNorm
from .parts import ClipValue as ClipValue
from .parts import LayerNormRatio as LayerNormRatio
from .parts import LayerRate as LayerRate
from .parts import LearningRate as LearningRate
from .parts import Momentum as Momentum
from .parts import Part as Part
from .parts import RootMeanSquare as RootMeanSquare
from .parts import RootSum as RootSum
from .parts import Transform as Transform
from .parts import WeightDecay as WeightDecay
from .schedules import Schedule as Schedule
from .schedules import constant as constant
from .schedules import cosine as cosine
from .schedules import exponential as exponential
from .schedules import growing_batch as growing_batch
from .schedules import per_epoch as per_epoch
from .schedules import piecewise as piecewise
from .schedules import step_decay as step_decay
from .schedules import warm_up as warm_up
from .slices import StepSlices as StepSlices
from .step import Step as Step

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "AdaGrad",
    "Adam",
    "AdamMoments",
    "AdamW",
    "Chain",
    "ClipNorm",
    "ClipValue",
    "LayerNormRatio",
    "LayerRate",
    "LearningRate",
    "Momentum",
    "Optimizer",
    "Part",
    "RMSProp",
    "RootMeanSquare",
    "RootSum",
    "Schedule",
    "Step",
    "StepSlices",
    "Transform",
    "WeightDecay",
    "by_name",
    "chain",
    "constant",
    "cosine",
    "exponential",
    "from_config",
    "growing_batch",
    "of",
    "per_epoch",
    "piecewise",
    "step_decay",
    "warm_up",
]

check_public(vars(), "bool")
check_methods(Optimizer, "step")

if not TYPE_CHECKING:  # a type checker would take any name for one of this module
    __getattr__ = explains_names("magmadnn.optim", __all__)
