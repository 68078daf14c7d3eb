"""Layers of which each rank has a part."""

from magmadnn.parallel.placements.model_parallel import Hybrid, ModelParallel

__all__ = ["Hybrid", "ModelParallel"]
