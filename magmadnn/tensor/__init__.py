"""The user's handles: Tensor holds values, Operation is a lazy node of the graph."""

import sys
from types import ModuleType
from typing import Any, NoReturn

from magmadnn.errors import CallError

from . import _small_products as _small_products
from .calculus import grad as grad
from .calculus import hvp as hvp
from .calculus import jacobian as jacobian
from .conversion import asarray as asarray
from .conversion import from_dlpack as from_dlpack
from .loops import scan as scan
from .operation import Operation as Operation
from .operation import Placeholder as Placeholder
from .operation import Variable as Variable
from .operation import by_phase as by_phase
from .operation import placeholder as placeholder
from .operation import variable as variable
from .operation import with_update as with_update
from .tensor import Tensor as Tensor


class _Folder(ModuleType):
    """This folder, which is no function: `md.tensor([1, 2])` is what PyTorch calls `md.asarray`."""

    def __call__(self, *args: Any, **named: Any) -> NoReturn:
        raise CallError("md.tensor is a module, not a function: write md.asarray(values)")


sys.modules[__name__].__class__ = _Folder

__all__ = [
    "Operation",
    "Placeholder",
    "Tensor",
    "Variable",
    "asarray",
    "by_phase",
    "from_dlpack",
    "grad",
    "hvp",
    "jacobian",
    "placeholder",
    "scan",
    "variable",
    "with_update",
]
