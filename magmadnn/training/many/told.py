"""What `fit_many` prints: how models are alike, and how far they are."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, TextIO

from magmadnn.errors import ArgumentError
from magmadnn.storage.printing import SafeStream
from magmadnn.training.model.model import Model

from .running.members import Member
from .running.room import Room

_PAUSE = 0.1  # seconds between two drawings of the bar
_SHARE = 0.1  # of all epochs, after which a line is printed where there is no terminal
_BAR = 20  # characters
_GROUPS = 4  # that are named
_CLEAR = "\r\x1b[K"


def groups_of(models: Sequence[Model], batch_sizes: Sequence[int]) -> Counter[tuple[str, int, int]]:
    """How many models are alike in their layers' kinds and sizes: words, parameters, batch size."""
    found: Counter[tuple[str, int, int]] = Counter()
    for model, size in zip(models, batch_sizes, strict=True):
        shapes = [
            (type(layer).__name__, [p.node.shape for p in layer.parameters()])
            for layer in model.layers
        ]
        count = sum(math.prod(map(int, p.node.shape)) for p in model.parameters())
        words = f"{shapes} {type(model.optimizer).__name__} {model.precision}"
        found[words, count, size] += 1
    return found


class Told:
    """Prints a line on the set, then a bar, or lines in a log, and a line at the end.

    Args:
        verbose: whether to print; "auto" does.
        output: where to; standard output where it is left out.

    Raises:
        ArgumentError: for another word.
    """

    def __init__(self, verbose: Any, output: TextIO | None = None) -> None:
        if isinstance(verbose, str) and verbose != "auto":
            raise ArgumentError(f'fit_many: verbose must be True, False or "auto", got {verbose!r}')
        self._output = SafeStream(output or sys.stdout) if verbose else None
        self._members: Sequence[Member] = ()
        self._total = 0
        self._begun = self._drawn_at = time.monotonic()
        self._printed = 0.0  # share of the epochs of the last line
        self._drawn = False

    def begin(
        self,
        models: Sequence[Model],
        members: Sequence[Member],
        sizes: Sequence[int],
        epochs: int,
        rooms: Collection[Room] = (),
        shared: str = "",
    ) -> None:
        """Say what there is.

        Args:
            models: all of them.
            members: the trainings of this process.
            sizes: batch size of each model.
            epochs: of these trainings together.
            rooms: in each memory.
            shared: words on who trains them, where that is not this process alone.
        """
        self._members, self._total = members, epochs
        self._begun = time.monotonic()
        if self._output is None:
            return
        groups = groups_of(models, sizes).most_common()
        named = [f"{n} of {count:,} parameters, batch {b}" for (_, count, b), n in groups[:_GROUPS]]
        more = f", and {len(groups) - _GROUPS} more groups" if len(groups) > _GROUPS else ""
        kinds = "1 group" if len(groups) == 1 else f"{len(groups)} groups"
        self._print(f"{len(models)} models in {kinds}: {'; '.join(named)}{more}{shared}")
        for room in rooms:
            if room.in_waves:
                self._print(
                    f"not all have room at the same time: in waves of {room.at_once} or more"
                )

    def look(self) -> None:
        """Move on."""
        if self._output is None:
            return
        now = time.monotonic()
        if self._output.isatty():
            if now - self._drawn_at >= _PAUSE:
                self._drawn_at = now
                self._draw()
            return
        share = self._epochs / max(self._total, 1)
        if share - self._printed >= _SHARE and now - self._begun > 1:
            self._printed = share
            self._print(self._state())

    def end(self, members: Sequence[Member]) -> None:
        """The last line, on all trainings."""
        self._members = members
        if self._output is None:
            return
        if self._drawn:
            self._output.write(_CLEAR)
        seconds = time.monotonic() - self._begun
        self._print(f"{self._state()} in {seconds:.1f} s")

    @property
    def _epochs(self) -> int:
        return sum(len(member.history) for member in self._members)

    def _state(self) -> str:
        """How many are done, and how they are."""
        done = [m for m in self._members if m.is_done]
        failed = sum(m.history.failed for m in done)
        losses = [m.history.rows[-1]["loss"] for m in self._members if m.history.rows]
        text = f"{len(done)} of {len(self._members)} models done, {self._epochs:,} epochs"
        if losses:
            text += f", loss {min(losses):.4f} to {max(losses):.4f}"
        return f"{text}, {failed} left out" if failed else text

    def _draw(self) -> None:
        assert self._output is not None
        full = round(_BAR * min(self._epochs / max(self._total, 1), 1.0))
        columns = shutil.get_terminal_size().columns
        text = f"[{'#' * full}{'.' * (_BAR - full)}] {self._state()}"
        self._output.write(_CLEAR + text[: max(columns - 1, 1)])
        self._output.flush()
        self._drawn = True

    def _print(self, line: str) -> None:
        assert self._output is not None
        self._output.write(line + "\n")
        self._output.flush()
