"""Communication among workers: one protocol, and an implementation for each way of sending."""

from magmadnn.calls import check_public, checked_call
from magmadnn.comm.communicator import Communicator, Request
from magmadnn.comm.groups import bound
from magmadnn.comm.job import world
from magmadnn.comm.measured import Choice, measure_all_reduce
from magmadnn.comm.network import Delay, Drop, Kill, Network
from magmadnn.comm.simulated import SerialCommunicator, SimulatedCommunicator, simulate
from magmadnn.comm.topology import Topology, read_topology

__all__ = [
    "Choice",
    "Communicator",
    "Delay",
    "Drop",
    "Kill",
    "Network",
    "Request",
    "SerialCommunicator",
    "SimulatedCommunicator",
    "Topology",
    "bound",
    "measure_all_reduce",
    "read_topology",
    "simulate",
    "world",
]

measure_all_reduce, read_topology = checked_call(measure_all_reduce), checked_call(read_topology)
simulate, world = checked_call(simulate), checked_call(world)
check_public(vars())
