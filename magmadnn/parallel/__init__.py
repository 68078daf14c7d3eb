"""Training on many workers."""

from magmadnn.parallel.data_parallel import DataParallel

__all__ = ["DataParallel"]
