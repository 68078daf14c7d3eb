"""Messages among GPUs; CuPy is loaded when a group is made."""

from magmadnn.comm.gpu.nccl import NcclCommunicator

__all__ = ["NcclCommunicator"]
