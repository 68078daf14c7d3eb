"""Which GPUs belong to the ranks of a communicator of the host: one each, joined by NCCL."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from magmadnn.comm.communicator import Communicator

from .nccl import NcclCommunicator

_gpus: WeakKeyDictionary[Communicator, NcclCommunicator] = WeakKeyDictionary()


def meet(communicator: Communicator, device: int) -> None:
    """Join the GPUs of all ranks by NCCL, once; collective.

    Args:
        communicator: of the host.
        device: number of this rank's GPU.

    Raises:
        MissingExtraError: if CuPy or NCCL is missing.
        DeviceError: if two ranks would use the same GPU.
    """
    if communicator not in _gpus:
        import cupy

        with cupy.cuda.Device(device):
            _gpus[communicator] = NcclCommunicator(communicator)


def gpus_of(communicator: Communicator) -> NcclCommunicator:
    """The GPUs of ranks that have met."""
    return _gpus[communicator]
