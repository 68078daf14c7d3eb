"""Messages among GPUs, and copies by their copy engines; CuPy is loaded when a group is made."""

from magmadnn.comm.gpu.links import read_links
from magmadnn.comm.gpu.nccl import NcclCommunicator
from magmadnn.comm.gpu.one_process import PeerCommunicator, on_gpus
from magmadnn.comm.gpu.peers import PeerCopies

__all__ = ["NcclCommunicator", "PeerCommunicator", "PeerCopies", "on_gpus", "read_links"]
