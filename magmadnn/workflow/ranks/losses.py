"""Runs that are going on, and what becomes of them when a rank is killed and the job goes on (ULFM)."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .schedule import Run
from .watching import last_seen


@dataclass
class Running:
    """A run that has begun and not ended.

    Attributes:
        run: what it is.
        number: of this attempt.
        ranks: where it runs, by its own ranks.
        left: those that have not ended.
        begun: seconds of the clock.
        hosts: of its ranks when it began.
        order: that its ranks got.
        reasons: why ranks failed.
        failing: since when it is being ended.
        waited: longest time of a rank in gets.
        moved: bytes through tuples.
        puts: tuples that it has put.
        took: tuples taken, by the number of the run that put them.
        partners: numbers of runs that it exchanges messages with.
        replaceable: whether a spare rank may take over from one that is lost.
        missing: its own ranks from whom none has taken over yet.
        lost: which rank was killed, so that all of it is done again.
    """

    run: Run
    number: int
    ranks: list[int]
    left: set[int]
    begun: float
    hosts: list[str]
    order: dict[str, Any]
    reasons: dict[int, str] = field(default_factory=dict)
    failing: float | None = None
    waited: float = 0.0
    moved: int = 0
    puts: int = 0
    took: dict[int, int] = field(default_factory=dict)
    partners: set[int] = field(default_factory=set)
    replaceable: bool = False
    missing: list[int] = field(default_factory=list)
    lost: str = ""


def with_partners(first: Running, running: Mapping[int, Running]) -> list[Running]:
    """A run and those that still run of which it, or one of them, knows by messages straight to them."""
    found, left = [first.number], [first.number]
    while left:
        for number in running[left.pop()].partners:
            if number in running and number not in found:
                found.append(number)
                left.append(number)
    return [running[number] for number in found]


def ended_with(folder: Path, rank: int, is_here: bool) -> str:
    """Where a rank was when it was killed; its program, which outlived it, is ended.

    Args:
        folder: of the workflow's run.
        rank: the one that was killed.
        is_here: whether it was on this machine.

    Returns:
        File and line; empty where it is not known.
    """
    _, group, where = last_seen(folder, rank)
    if group and is_here:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return where
    return where
