"""magmadnn: deep learning and distributed linear algebra for scientists.

    import magmadnn as md

Start with `md.Model` and `md.layers`, or with `md.variable`, operators and `md.grad`.

What belongs to training or files is imported when it is first used, so that `import magmadnn` costs little.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from magmadnn import errors, graph, memory, ops
from magmadnn.calls import ADDED, missing_name
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
    scan,
    variable,
    with_update,
)

if TYPE_CHECKING:
    from magmadnn import (
        analytics,
        comm,
        data,
        dmath,
        fft,
        layers,
        linalg,
        losses,
        metrics,
        models,
        optim,
        parallel,
        search,
        sklearn,
        workers,
        workflow,
    )
    from magmadnn.runtime.threads import set_threads
    from magmadnn.tensor.files import load_csv, load_npz, save_csv, save_npz
    from magmadnn.training import (
        CrossValidation,
        Ensemble,
        History,
        Model,
        callbacks,
        cross_validate,
        fit_many,
        load,
    )

__version__ = "0.1.0"

_LATER = {
    **{
        name: name
        for name in (
            *(
                "analytics",
                "comm",
                "data",
                "dmath",
                "fft",
                "layers",
                "linalg",
                "losses",
                "metrics",
                "models",
                "optim",
            ),
            *("parallel", "search", "sklearn", "workers", "workflow"),
        )
    },
    "callbacks": "training.callbacks",
    "History": "training",
    "Model": "training",
    "CrossValidation": "training",
    "Ensemble": "training",
    "cross_validate": "training",
    "fit_many": "training",
    "load": "training",
    **dict.fromkeys(("load_csv", "load_npz", "save_csv", "save_npz"), "tensor.files"),
    "set_threads": "runtime.threads",
}


# Arrays on workers stand above workers, and are imported when they are used.
ADDED["Workers"] = lambda workers: import_module("magmadnn.dmath.client.processes").session(workers)
# So do the packages that have NumPy's names.
ADDED["linalg"] = lambda _: import_module("magmadnn.linalg")
ADDED["fft"] = lambda _: import_module("magmadnn.fft")


def __getattr__(name: str) -> Any:
    """Import what is used for the first time."""
    if name not in _LATER:
        raise missing_name("module magmadnn", ["magmadnn"], name, lambda: __all__)
    path = _LATER[name]
    module = import_module(f"magmadnn.{path}")
    return module if path.rpartition(".")[2] == name else getattr(module, name)


def __dir__() -> list[str]:
    """Names for completion."""
    return sorted(__all__)


__all__ = [
    "CUDA_MANAGED",
    "DEVICE",
    "HOST",
    "MANAGED",
    "CrossValidation",
    "Ensemble",
    "History",
    "MemoryManager",
    "Model",
    "Operation",
    "Tensor",
    "Variable",
    "analytics",
    "asarray",
    "by_phase",
    "callbacks",
    "comm",
    "cross_validate",
    "data",
    "dmath",
    "errors",
    "fft",
    "fit_many",
    "from_dlpack",
    "grad",
    "graph",
    "hvp",
    "init",
    "jacobian",
    "layers",
    "linalg",
    "load",
    "load_csv",
    "load_npz",
    "losses",
    "memory",
    "metrics",
    "models",
    "ops",
    "optim",
    "parallel",
    "placeholder",
    "save_csv",
    "save_npz",
    "scan",
    "search",
    "set_threads",
    "sklearn",
    "variable",
    "with_update",
    "workers",
    "workflow",
]
