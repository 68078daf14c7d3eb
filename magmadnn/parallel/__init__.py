"""Training on many workers."""

from magmadnn.calls import check_public, checked_call
from magmadnn.parallel.asynchronous import AsyncSGD
from magmadnn.parallel.data_parallel import DataParallel
from magmadnn.parallel.pipelined import Pipeline
from magmadnn.parallel.placements import Hybrid, ModelParallel
from magmadnn.parallel.planning import Prediction, Rates, TrainingPlan, plan
from magmadnn.parallel.server import ParameterServer

__all__ = [
    "AsyncSGD",
    "DataParallel",
    "Hybrid",
    "ModelParallel",
    "ParameterServer",
    "Pipeline",
    "Prediction",
    "Rates",
    "TrainingPlan",
    "plan",
]

plan = checked_call(plan)
check_public(vars())
