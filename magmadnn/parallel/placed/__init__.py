"""Layers of which each rank has a part."""

from magmadnn.parallel.placed.ways import Hybrid, ModelParallel

__all__ = ["Hybrid", "ModelParallel"]
