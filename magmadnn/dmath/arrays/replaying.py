"""Phases of products and changes of layout that come again become graphs, which a worker's host launches in
one call.

A graph reads and writes at addresses. So it is kept under all that it was made from: the layouts and the
arithmetic, and where every block lies that it touches, those of other workers too. What has been told under
the same words does the same again, whatever arrays lie there now and whatever they hold; where a block has
moved there is another graph, or none. Nothing is kept alive for a graph, and none can be out of date.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from magmadnn.dmath.arrays.team import Team

if TYPE_CHECKING:
    from magmadnn.comm.gpu.phases import Gemm

MOST: Final = 64  # graphs; the pool of memory gives a loop's results a few places in turn
_IDLE: Final = 8 * MOST  # phases after which a graph that was not launched makes room for another
_REMEMBERED: Final = 256  # phases that ran once
_FAILURES: Final = 8  # after which no more is captured


@dataclass
class _Graph:
    """A captured phase, and what it adds to the counts."""

    launch: Callable[[], None]
    sent_bytes: int
    messages: int
    used: int = 0


@dataclass
class Replays:
    """The graphs of one worker. Each worker decides for itself: others see the same meetings.

    Attributes:
        enabled: whether phases are captured, and graphs launched.
    """

    enabled: bool = True
    _graphs: OrderedDict[Hashable, _Graph | None] = field(default_factory=OrderedDict)
    _seen: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)
    _failures: int = 0
    _phases: int = 0

    def __len__(self) -> int:
        return sum(graph is not None for graph in self._graphs.values())

    def usable(self, team: Team) -> bool:
        """Whether phases may be graphs now: a trace has to see their parts."""
        return self.enabled and team.trace is None

    def launched(self, team: Team, key: Hashable) -> bool:
        """Launch the graph of a phase, if there is one."""
        self._phases += 1
        graph = self._graphs.get(key)
        if graph is None:
            return False
        self._graphs.move_to_end(key)
        self._launch(team, graph)
        return True

    def run(self, team: Team, key: Hashable, phase: Callable[[], None]) -> None:
        """A phase for which there is no graph: as it is the first time, as a graph the second time.

        Args:
            team: this worker, with peers.
            key: all that the phase depends on but the elements of arrays.
            phase: from `Peers.begin` to `Peers.end`, or local products only; all its arrays are there before,
                and it may be called again where it failed before its end.
        """
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        elif key not in self._graphs and self._failures < _FAILURES and self._has_room():
            graph = self._graphs[key] = self._captured(team, phase)
            if graph is not None:
                self._launch(team, graph)
                return
        phase()

    def phase(self, team: Team, key: Hashable, phase: Callable[[], None]) -> None:
        """A phase whose arrays are all there: its graph if there is one, else `run`."""
        if not self.launched(team, key):
            self.run(team, key, phase)

    def _has_room(self) -> bool:
        """Whether one more graph may be kept: one that is not launched any more goes for it. Else a loop of
        more phases than that would make graphs only.
        """
        if len(self._graphs) < MOST:
            return True
        oldest, graph = next(iter(self._graphs.items()))
        if graph is not None and self._phases - graph.used < _IDLE:
            return False
        del self._graphs[oldest]
        return True

    def clear(self) -> None:
        """Drop all graphs."""
        self._graphs.clear()
        self._seen.clear()

    def _launch(self, team: Team, graph: _Graph) -> None:
        count = team.count
        count.sent_bytes += graph.sent_bytes
        count.messages += graph.messages
        count.graph_launches += 1
        graph.used = self._phases
        graph.launch()

    def _captured(self, team: Team, phase: Callable[[], None]) -> _Graph | None:
        """The phase as a graph; None where that cannot be made, and the phase runs as before."""
        assert team.peers is not None
        count = team.count
        before = count.sent_bytes, count.messages

        def told(gemm: Gemm) -> None:
            team.gemm = gemm
            try:
                phase()
            finally:
                team.gemm = None

        launch: Callable[[], None] | None = None
        try:
            launch = team.peers.capture(told)
        except Exception:  # a fault of the phase itself is raised when it runs call by call
            self._failures += 1
            count.graph_failures += 1
        sent, messages = count.sent_bytes - before[0], count.messages - before[1]
        count.sent_bytes, count.messages = before
        if launch is None:
            return None
        count.graphs_made += 1
        return _Graph(launch, sent, messages)


def run_phase(team: Team, key: Callable[[], Hashable], phase: Callable[[], None]) -> None:
    """A phase whose arrays are all there, as a graph where the worker makes such.

    Args:
        team: this worker, with peers.
        key: gives what the phase depends on; see `Replays.run`.
        phase: what is done.
    """
    replays = team.replays
    if replays is not None and replays.usable(team):
        replays.phase(team, key(), phase)
    else:
        phase()
