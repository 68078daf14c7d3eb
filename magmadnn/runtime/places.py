"""Where programs run: the processor, or an NVIDIA GPU."""

from __future__ import annotations

import contextlib
import importlib
import threading
from functools import cache

from magmadnn.backends import cuda
from magmadnn.errors import ArgumentError, DeviceError, UnknownNameError

DEVICES = ("cpu", "cuda", "auto")


def device_of(name: str, executor: str = "native") -> int | None:
    """The number of the GPU that a name means; None for the processor.

    Args:
        name: "cpu"; "cuda" for the first GPU, or in a job of several ranks this rank's; "cuda:1" for that
            very one; "auto" for "cuda" where it can be used.
        executor: what runs there; "reference" is NumPy, which runs on the processor only.

    Raises:
        UnknownNameError: if there is no such name.
        ArgumentError: if NumPy shall run on a GPU.
        DeviceError: if there is no such GPU; says what is missing.
    """
    kind, _, number = str(name).partition(":")
    if kind not in DEVICES or (number and (kind != "cuda" or not number.isdigit())):
        raise UnknownNameError.of("device", name, DEVICES)
    if executor == "reference" and kind == "cuda":
        raise ArgumentError(
            f'device "{name}": executor="reference" is NumPy and runs on the processor only; use '
            'device="cpu", or executor="native"'
        )
    if kind == "cpu" or executor == "reference":
        return None
    found, reason = cuda.available()
    if kind == "auto":
        return own_gpu(cuda.device_count()) if found else None
    if not found:
        raise DeviceError(f'device "{name}": {reason}; use device="cpu"')
    wanted = int(number) if number else own_gpu(cuda.device_count())
    if wanted >= cuda.device_count():
        raise DeviceError(
            f'device "{name}" is not there: this machine has {cuda.device_count()}, counted from 0'
        )
    return wanted


def own_gpu(count: int) -> int:
    """Which of the machine's GPUs this process takes: ranks of a job on one machine one after the other."""
    from magmadnn.comm.job import rank_on_machine

    return rank_on_machine() % max(count, 1)


def placed(name: str, executor: str = "native") -> str:
    """The device that a name means, as the name of that very device: "cpu", "cuda:0"; a GPU begins to open.

    Raises:
        UnknownNameError, ArgumentError, DeviceError: as `device_of`.
    """
    number = device_of(name, executor)
    if number is not None and cuda.opens_slowly():
        _begin_to_open(number)
    return "cpu" if number is None else f"cuda:{number}"


@cache
def _begin_to_open(number: int) -> None:
    """Have a thread open a GPU and load what runs on it, 0.2 s in which a program can go on."""
    threading.Thread(target=_open, args=(number,), name="opens a GPU").start()


def _open(number: int) -> None:
    # what fails here fails again, and is told, where it is wanted
    with contextlib.suppress(ImportError, RuntimeError):
        cuda.device_engine(number).prepare()
        importlib.import_module("magmadnn.runtime.cuda.running.sliced.kept_slices")
