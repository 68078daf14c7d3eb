"""Layers of which each rank has a part."""

from magmadnn.parallel.placements.model_parallel import Hybrid, ModelParallel
from magmadnn.parallel.placements.planning import Prediction, Rates, TrainingPlan, plan

__all__ = ["Hybrid", "ModelParallel", "Prediction", "Rates", "TrainingPlan", "plan"]
