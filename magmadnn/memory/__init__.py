"""Memory of four kinds, on the host and on devices, with pools and a report.

`HOST` and `MANAGED` work everywhere; `DEVICE` and `CUDA_MANAGED` need a GPU and say so.
"""

from .dtypes import BFLOAT16 as BFLOAT16
from .dtypes import DTYPES as DTYPES
from .dtypes import as_dtype as as_dtype
from .dtypes import is_floating as is_floating
from .kinds import CUDA_MANAGED as CUDA_MANAGED
from .kinds import DEVICE as DEVICE
from .kinds import HOST as HOST
from .kinds import MANAGED as MANAGED
from .kinds import Kind as Kind
from .manager import MemoryManager as MemoryManager
from .pool import limit_pooled as limit_pooled
from .pool import report as report
from .pool import trim as trim
from .room import limit_data as limit_data
from .usage import KindReport as KindReport
from .usage import Report as Report

__all__ = [
    "BFLOAT16",
    "CUDA_MANAGED",
    "DEVICE",
    "DTYPES",
    "HOST",
    "MANAGED",
    "Kind",
    "KindReport",
    "MemoryManager",
    "Report",
    "as_dtype",
    "is_floating",
    "limit_data",
    "limit_pooled",
    "report",
    "trim",
]
