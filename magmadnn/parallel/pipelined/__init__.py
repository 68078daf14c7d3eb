"""Layers split over ranks."""

from magmadnn.parallel.pipelined.pipeline import Pipeline

__all__ = ["Pipeline"]
