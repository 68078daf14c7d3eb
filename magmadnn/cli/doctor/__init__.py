"""magmadnn doctor: what this machine has, and what is missing and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from magmadnn.cli.arguments import Parser
from magmadnn.cli.console import version
from magmadnn.cli.runs.settings import mnist_folder
from magmadnn.comm.launching.wheels import find_starter
from magmadnn.compiler.llvm.object.cache import cache_trouble
from magmadnn.data._find import places_of
from magmadnn.errors import CommunicationError, MissingExtraError, installing
from magmadnn.storage.places import cache_places

from . import gpu, machine

Facts = Iterator[tuple[str, str]]

# Package -> what it is for and the extra that brings it. Packages of the extras for GPUs stand in `gpu`.
_EXTRAS = {
    "matplotlib": ("curves of a training", "plot"),
    "pillow": ("folders of JPEG and PNG files", "data"),
    "h5py": ("HDF5 files", "data"),
    "tensorboardX": ("histories for TensorBoard", "tensorboard"),
    "scikit-learn": ("its estimators: md.sklearn", "sklearn"),
    "scipy": ("LAPACK in compiled steps, sparse matrices", "linalg"),
    "optuna": ('the method "tpe" of a search', "search"),
    "mpi4py": ("several processes", "mpi"),
    "pydantic": ("files of workflows", "workflow"),
    "tomlkit": ("files of workflows", "workflow"),
}


def parser() -> Parser:
    """The arguments of the command."""
    return Parser(
        "doctor", "Print what this machine has, and what is missing and why. Exits with 0."
    )


def run(argv: Sequence[str]) -> int:
    """Print; returns the exit code."""
    parser().read(argv)
    for title, facts in SECTIONS.items():
        print(title)
        for name, value in facts():
            print(f"  {name.ljust(18)} {value}")
    return 0


def _system() -> Facts:
    yield "magmadnn", version()
    yield "Python", machine.python_words()
    yield "system", machine.system_words()


def _processor() -> Facts:
    yield "CPU", machine.cpu_model()
    yield "features", machine.cpu_features()
    yield "cores", machine.cores_words()
    yield "memory", machine.memory_words()


def _libraries() -> Facts:
    yield "NumPy", machine.numpy_words()
    for name in ("llvmlite", "ml_dtypes", "safetensors", "rich"):
        yield name, machine.library_words(name)


def _extras() -> Facts:
    for name, (purpose, extra) in _EXTRAS.items():
        found = machine.package_words(name)
        missing = found == machine.NOT_INSTALLED
        way_out = f" ({purpose}): {installing(extra)}" if missing else ""
        yield name, found + way_out
    yield "mpiexec", _mpiexec_words()


def _mpiexec_words() -> str:
    """What starts processes, or why nothing can."""
    try:
        return find_starter().path
    except (MissingExtraError, CommunicationError) as error:
        return f"none can be used: {error}"


def _files() -> Facts:
    folder = mnist_folder()
    looked = ", ".join(map(str, places_of("mnist", None)))
    yield "MNIST", folder or f"not found; looked in {looked}; set MAGMADNN_DATA to its folder"
    yield "cache", _cache_words()
    yield "runs", machine.folder_words(Path("runs").absolute())


def _cache_words() -> str:
    """Where compiled kernels and measurements are kept, and why not in better places."""
    words = list[str]()
    for place in cache_places():
        trouble = cache_trouble(place)
        words.append(trouble or machine.folder_words(place))
        if trouble is None and machine.can_write(place):
            break
    return "; instead ".join(words) or "no folder for caches or temporary files is known"


SECTIONS: dict[str, Callable[[], Facts]] = {
    "magmadnn": _system,
    "processor": _processor,
    "libraries": _libraries,
    "extras": _extras,
    "GPU": gpu.facts,
    "files": _files,
}
