"""Stopping on SIGTERM and Ctrl-C: the handler sets a flag; the training loop saves, and passes it on."""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Notes SIGTERM and SIGINT while its block runs, instead of ending the program.

    The training loop looks at `requested` after each step, saves, and then lets the program have the
    signal. A second SIGINT (Ctrl-C) raises `KeyboardInterrupt` at once. In a thread other than the main
    one, where Python sets no handlers, nothing is noted and nothing is changed::

        with StopRequest() as stop:
            for batch in batches:
                step(batch)
                if stop.requested:
                    save()
                    break
        stop.pass_on()
    """

    def __init__(self) -> None:
        self._requested: int | None = None
        self._interrupts = 0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> int | None:
        """The number of the first signal that asked to stop, or None."""
        return self._requested

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells report it; 0 if nothing was asked."""
        return 0 if self._requested is None else 128 + self._requested

    def take(self, number: int) -> None:
        """Take a signal that another process of this training was sent as if it had come here."""
        if self._requested is None:
            self._requested = number

    def pass_on(self) -> None:
        """Do with what was noted as the program would have done without this block, which has ended.

        A handler of the program's own gets the signal. Where there is none, SIGTERM raises SystemExit with
        `exit_code`, so that the program ends in order, and SIGINT raises KeyboardInterrupt, also where a
        shell had it ignored: somebody asked for an end.
        """
        if self._requested is None:
            return
        handler = signal.getsignal(self._requested)
        if callable(handler):
            handler(self._requested, sys._getframe())
        elif self._requested == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(self.exit_code)

    def __enter__(self) -> StopRequest:
        for number in _SIGNALS:
            # None: a handler of the host program, not Python's, which could not be put back.
            if signal.getsignal(number) is None:
                continue
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread
                break
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.take(int(number))
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
