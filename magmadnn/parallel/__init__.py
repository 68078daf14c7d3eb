"""Training on many workers."""

from magmadnn.parallel.asynchronous import AsyncSGD
from magmadnn.parallel.data_parallel import DataParallel

__all__ = ["AsyncSGD", "DataParallel"]
