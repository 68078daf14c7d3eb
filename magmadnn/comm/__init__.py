"""Communication among workers: one protocol, and an implementation for each way of sending."""

from magmadnn.comm.communicator import Communicator, Request
from magmadnn.comm.job import world
from magmadnn.comm.network import Delay, Drop, Kill, Network
from magmadnn.comm.simulated import SerialCommunicator, SimulatedCommunicator, simulate

__all__ = [
    "Communicator",
    "Delay",
    "Drop",
    "Kill",
    "Network",
    "Request",
    "SerialCommunicator",
    "SimulatedCommunicator",
    "simulate",
    "world",
]
