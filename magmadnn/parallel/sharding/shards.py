"""A shard of a batch on its way through groups of layers, forward and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from magmadnn.graph import Node
from magmadnn.graph.op import Array
from magmadnn.parallel.pipelined.programs import Stage
from magmadnn.parallel.pipelined.step import only_those
from magmadnn.runtime import Executable
from magmadnn.runtime.agreement import ALONE, agreeing


@dataclass
class Shard:
    """A shard of a batch on its way.

    Attributes:
        fed: its rows of the data, and values that crossed from one group to another.
        reports: of the groups that it passed.
        saved: by group, what its way back needs.
        seeds: gradients of values that crossed.
    """

    fed: dict[Node, Any]
    reports: dict[int, Array] = field(default_factory=dict)
    saved: dict[int, list[Array]] = field(default_factory=dict)
    seeds: dict[Node, Array] = field(default_factory=dict)


def passed(stage: Stage, shard: Shard, found: Sequence[Array]) -> None:
    """Keep what a group has computed for a shard: values that cross, reports, what the way back needs."""
    count, reports = len(stage.departures), len(stage.reported)
    for crossing, value in zip(stage.departures, found[:count], strict=True):
        shard.fed[crossing.arrived] = value
    for (k, _), value in zip(stage.reported, found[count : count + reports], strict=True):
        shard.reports[k] = value
    shard.saved[stage.number] = list(found[count + reports :])


def passed_back(
    stages: Sequence[Stage], stage: Stage, program: Executable | None, parameters: Mapping[Node, Array],
    shard: Shard, failed: list[Exception],
) -> list[Array]:  # fmt: skip
    """The gradients of a group for a shard, a vector for each dtype; zeros once something failed."""
    if program is not None and not failed:
        saved = zip((node for _, node in stage.saved), shard.saved.pop(stage.number), strict=True)
        fed = {**shard.fed, **dict(saved), **shard.seeds, **parameters}
        try:
            with agreeing(ALONE):
                found = program.run(only_those(program, fed))
        except Exception as error:
            failed.append(error)
        else:
            for (crossing, _), value in zip(stage.returned, found, strict=False):
                seed, of = stages[crossing.source].seeds[crossing.value], shard.seeds
                of[seed] = of[seed] + value if seed in of else value
            return list(found[len(stage.returned) :])
    return [np.zeros(n, d) for d, n in stage.buckets.lengths.items()]
