"""magmadnn: deep learning and distributed linear algebra for scientists.

    import magmadnn as md

Start with `md.Model` and `md.layers`, or with `md.variable`, operators and `md.grad`.
"""

from magmadnn import data, errors, graph, layers, losses, memory, metrics, ops, optim
from magmadnn.memory import CUDA_MANAGED, DEVICE, HOST, MANAGED, MemoryManager
from magmadnn.tensor import (
    Operation,
    Tensor,
    Variable,
    asarray,
    by_phase,
    from_dlpack,
    grad,
    hvp,
    init,
    jacobian,
    placeholder,
    variable,
    with_update,
)
from magmadnn.training import History, Model, callbacks, load

__version__ = "0.1.0"

__all__ = [
    "CUDA_MANAGED",
    "DEVICE",
    "HOST",
    "MANAGED",
    "History",
    "MemoryManager",
    "Model",
    "Operation",
    "Tensor",
    "Variable",
    "asarray",
    "by_phase",
    "callbacks",
    "data",
    "errors",
    "from_dlpack",
    "grad",
    "graph",
    "hvp",
    "init",
    "jacobian",
    "layers",
    "load",
    "losses",
    "memory",
    "metrics",
    "ops",
    "optim",
    "placeholder",
    "variable",
    "with_update",
]
