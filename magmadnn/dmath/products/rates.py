"""How fast workers compute and send: measured, or given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from magmadnn.dmath.arrays.parts import Parts
from magmadnn.dmath.arrays.team import Team
from magmadnn.dmath.layouts.recipes import Rows, resolve
from magmadnn.dmath.products.arithmetic import Arithmetic, multiply
from magmadnn.dmath.products.cutting import SHORTEST, calls_of
from magmadnn.dmath.products.pipelining import pipelined
from magmadnn.dmath.products.plans import c_stays

_HANDED_OVER = 8  # products one after the other: fewer than the host may be ahead
_UNTIL_GRAPH = 3  # products after which the same one is a graph
_SPENT = 0.06  # seconds of products on a processor: several turns of processes that share a core


@dataclass(frozen=True)
class Rates:
    """What the planner predicts times from.

    Attributes:
        flops: multiplications and additions a second of one worker, while all workers compute.
        flops_alone: of one worker while the others wait. Processes that share cores, or one with more
            threads, make the two differ.
        bytes_per_second: between two workers, in one direction, while all send.
        seconds_per_message: what a message costs however short it is.
        seconds_per_step: what a local product costs however small it is.
        seconds_per_call: of the host of a worker with a GPU for each product, copy or meeting that it hands
            over; the GPU waits for it where these are short.
        overlapped: whether products begin while their operands still come, as copy engines of GPUs let them.
        order: of the workers around a ring; where few are to compute they are its first. Empty: that of their
            numbers.
        seconds_per_launch: of the host for a product that it launches as a graph; 0 where there are none.
    """

    flops: float = 2e10
    flops_alone: float = 2e10
    bytes_per_second: float = 4e9
    seconds_per_message: float = 2e-5
    seconds_per_step: float = 5e-6
    seconds_per_call: float = 0.0
    overlapped: bool = False
    order: tuple[int, ...] = ()
    seconds_per_launch: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", tuple(self.order))

    def first(self, used: int) -> tuple[int, ...]:
        """So many workers that are near each other."""
        return self.order[:used] if self.order else tuple(range(used))

    def flops_of(self, active: int, workers: int) -> float:
        """Of one worker while `active` of all compute: the two measured ends, and the cores' sum in
        between.
        """
        if active <= 1 or workers <= 1:
            return self.flops_alone
        # All cores together give what `workers` of them give at the same time, or less while few compute.
        return max(self.flops, min(self.flops_alone, self.flops * workers / active))


def measured(team: Team, how: Arithmetic) -> Rates:
    """Rates of these workers: the same on all, the slowest worker's. Collective; takes some tens of
    milliseconds.

    Args:
        team: the workers.
        how: arithmetic of the products.
    """
    size = 512 if team.xp is np else 4096  # a GPU is not filled by less
    team.comm.barrier()
    together = _flops(team, size, how)
    alone = together
    for worker in range(team.size if team.size > 1 else 0):
        team.comm.barrier()
        if worker == team.rank and worker == 0:
            alone = _flops(team, size, how)
    nbytes = (
        4 if team.xp is np else 256
    ) << 20  # a link of GPUs has sent 4 MB before a call has returned
    link, message = _link(team, nbytes) if team.size > 1 else (1e12, 0.0)
    call, launch = (0.0, 0.0) if team.peers is None else _call(team, how)
    found: list[Any] = team.comm.exchange([together, alone, link, message, call, launch])
    launches = [f[5] for f in found]
    return Rates(
        flops=min(f[0] for f in found),
        flops_alone=max(found[0][1], min(f[0] for f in found)),
        bytes_per_second=min(f[2] for f in found),
        seconds_per_message=max(f[3] for f in found),
        seconds_per_call=max(f[4] for f in found),
        overlapped=team.peers is not None,
        order=team.order,
        seconds_per_launch=max(launches) if min(launches) else 0.0,
    )


def _flops(team: Team, size: int, how: Arithmetic) -> float:
    """Of this worker: on a GPU at its best; on a processor all in all, since workers that share cores take
    turns, and the best product is one that was never interrupted.
    """
    # Like numbers take a GPU less power than others, and so it is faster with them.
    x = (team.xp.arange(size * size) * 40503 % 65521 / 65521 - 0.5).reshape(size, size)
    x = x.astype(np.float32).astype(how.operand)
    multiply(team, x, x, how)
    best, spent, count, least = float("inf"), 0.0, 0, _SPENT if team.xp is np else 0.02
    while spent < least:
        start = perf_counter()
        y = multiply(team, x, x, how)
        team.on_host(y[0, 0])  # waits for a GPU
        seconds = perf_counter() - start
        best, spent, count = min(best, seconds), spent + seconds, count + 1
    return 2.0 * size**3 * (count / spent if team.xp is np else 1 / best)


def _call(team: Team, how: Arithmetic) -> tuple[float, float]:
    """Seconds of this worker's host for each call of a product of rows by rows, which is not waited for; and
    for such a product that is launched as a graph, 0 without graphs.

    What is sent is not counted.
    """
    counted = replace(team.count)
    n = SHORTEST * team.size
    lies = resolve(Rows(), (n, n), team.size)
    block = team.xp.full((SHORTEST, n), 0, np.float32).astype(how.operand)
    x, plan = Parts(team, lies, how.operand, {team.rank: block}), c_stays(n, lies, lies)

    def seconds(warm: int) -> float:
        for _ in range(warm):
            pipelined(x, x, plan, how, how.sums)
        team.finish()
        start = perf_counter()
        for _ in range(_HANDED_OVER):
            pipelined(x, x, plan, how, how.sums)
        spent = perf_counter() - start
        team.finish()
        return spent / _HANDED_OVER

    replays, team.replays = team.replays, None
    called = seconds(1)  # workers tell each other where it lies
    team.replays, launched = replays, 0.0
    if replays is not None and replays.usable(team):
        launched = seconds(_UNTIL_GRAPH)
    vars(team.count).update(vars(counted))
    return called / calls_of(lies, lies, plan), launched


def _link(team: Team, size: int) -> tuple[float, float]:
    """Bytes a second of a ring shift, and the seconds of a short one."""
    times, comm = [], team.group(team.ring)
    assert comm is not None
    for count in (8, size):
        x, out = team.xp.zeros(count, np.uint8), team.xp.empty(count, np.uint8)
        best = float("inf")
        for _ in range(4):
            comm.barrier()
            start = perf_counter()
            comm.shift(x, out)
            team.on_host(out[-1])
            best = min(best, perf_counter() - start)
        times.append(best)
    short, long = times
    return size / max(
        long - short, 0.1 * long
    ), short  # at the least: both may have waited for the same
