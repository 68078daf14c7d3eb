"""What `magmadnn launch --topology` runs on each rank; rank 0 prints."""

from __future__ import annotations

from magmadnn.comm import measure_all_reduce, read_topology, world

communicator = world()
topology = read_topology(communicator)
choice = measure_all_reduce(communicator)
if communicator.rank == 0:
    print(f"{topology}\n\nall_reduce on these ranks:\n{choice}", flush=True)
