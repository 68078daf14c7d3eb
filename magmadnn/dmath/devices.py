"""Workers that compute on a GPU each."""

from __future__ import annotations

from typing import Any

from magmadnn.backends.cuda import array_library, device_count, device_memory
from magmadnn.comm import Communicator
from magmadnn.comm.topology import ring_order
from magmadnn.dmath.arrays.replaying import Replays
from magmadnn.dmath.arrays.team import Peers, Team
from magmadnn.errors import DeviceError


def on_devices(team: Team) -> Team:
    """The team with CuPy's arrays in place of NumPy's; NCCL and copy engines among its workers, which stand
    in a ring that crosses few far links. Collective.

    Worker r takes device r: workers are processes of one machine.

    Raises:
        DeviceError: if there is no GPU, or there are fewer than workers; says what is missing.
        MissingExtraError: if CuPy or NCCL is not installed.
    """
    device_memory(0)  # says what is missing
    cupy: Any = array_library()
    if cupy is None:
        raise DeviceError("cuda: arrays on a GPU need CuPy: install the extra cuda13 or cuda12")
    count = device_count()
    if count < team.size:
        raise DeviceError(
            f"cuda: {team.size} workers need a GPU each, this machine has {count}: start md.workers({count})"
        )
    comm: Communicator = team.comm
    peers: Peers | None = None
    order: tuple[int, ...] = ()
    if team.size > 1:
        from magmadnn.comm.gpu import NcclCommunicator, PeerCopies, read_links

        cupy.cuda.Device(team.rank).use()
        comm = group = NcclCommunicator(team.comm)
        peers = PeerCopies.among(group)
        order = ring_order(read_links(group))
    made = Team(comm, cupy, kept=team.kept, peers=peers, order=order)
    made.watched = _counting(cupy, made)
    made.replays = Replays()
    return made


def _counting(cupy: Any, team: Team) -> Any:
    """A hook of CuPy's that counts, while it is entered, what the pool asks of the driver."""

    def allocated(hook: Any, **told: Any) -> None:
        if told["mem_ptr"]:  # 0 where there was none
            team.count.device_allocations += 1

    members = {"name": f"magmadnn.dmath {id(team)}", "alloc_postprocess": allocated}
    return type("Allocations", (cupy.cuda.MemoryHook,), members)()
