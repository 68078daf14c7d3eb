"""What `fit` prints: a table of epochs, and on a terminal a bar while it runs."""

from __future__ import annotations

import re
import shutil
import sys
import time
from typing import Any, TextIO

from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.storage.printing import SafeStream
from magmadnn.training.loop.fit import Fit

from .callback import Callback

_QUIET = {"seconds"}
_PAUSE = 0.1  # seconds between two drawings of the bar, which then costs next to nothing
_ROWS = 100  # that "auto" prints at most, about
_BAR = 20  # characters
_CLEAR = "\r\x1b[K"


class Progress(Callback):
    """Prints rows; draws a bar where the output is a terminal.

    In files and logs there are no control characters, and between rows at most a line a minute. Output that
    cannot be written ends no training: that is told once on standard error.

    Args:
        output: where to; standard output where it is left out.
        every: a row after so many epochs; 0 for the last one alone; None for as many as can be read: each of
            up to a hundred epochs, of more every second, fifth, tenth and so on. The last always has one.
        bar: whether to draw a bar on a terminal.
    """

    stands_aside = True

    def __init__(
        self, output: TextIO | None = None, *, every: int | None = 1, bar: bool = True
    ) -> None:
        self.output = SafeStream(output or sys.stdout)
        self._every, self._bar = every, bar
        self._header = False
        self._drawn = False  # whether a bar is to be seen
        self._last_drawn = self._said = self._begun = time.monotonic()
        self._start = 0.0  # epochs done before
        self._printed = -1  # the epoch of the last row

    def on_train_begin(self, fit: Fit) -> None:
        """Look where training begins and whether there is a terminal."""
        self._start = _done(fit)
        self._begun = time.monotonic()
        self._last_drawn = self._begun - _PAUSE
        self._bar = self._bar and self.output.isatty()
        if self._every is None:
            self._every = _readable(fit.epochs - fit.epoch)

    def batches(self, fit: Fit) -> int | None:
        """Any number: slices are short."""
        return None

    def on_batch_end(self, fit: Fit) -> None:
        """Move the bar; in a log, say now and then that it goes on."""
        now = time.monotonic()
        if self._bar:
            if now - self._last_drawn >= _PAUSE:
                self._last_drawn = now
                self._draw(fit, now - self._begun)
        elif now - self._said > 60:
            total = f"/{fit.batches}" if fit.batches else ""
            self._print(
                f"epoch {fit.epoch + 1}: batch {fit.batch}{total}, loss {fit.last_loss:.4f}"
            )

    def on_epoch_end(self, fit: Fit) -> None:
        """Print the epoch's row, if it is its turn."""
        if self._every and (fit.epoch % self._every == 0 or not self._header):
            self._print_row(fit)

    def on_train_end(self, fit: Fit) -> None:
        """Take the bar away; print the last row; say why training ended early."""
        if fit.row and fit.epoch != self._printed:
            self._print_row(fit)
        self._take_away()
        if fit.history.stopped:
            self._print(f"stopped: {fit.history.stopped}")

    def _print_row(self, fit: Fit) -> None:
        """A row, before the first one the names."""
        shown = [name for name in fit.row if name not in _QUIET]
        widths = [max(len(name), 10) for name in shown]
        if not self._header:
            self._header = True
            self._print("  ".join(n.rjust(w) for n, w in zip(shown, widths, strict=True)))
        cells = [_cell(name, fit.row[name]) for name in shown]
        self._print("  ".join(c.rjust(w) for c, w in zip(cells, widths, strict=True)))
        self._printed = fit.epoch

    def _draw(self, fit: Fit, seconds: float) -> None:
        """The bar of the whole training, in one line of the terminal."""
        done = _done(fit)
        full = round(_BAR * min(done / fit.epochs, 1.0))
        total = f"/{fit.batches}" if fit.batches else ""
        text = (
            f"epoch {fit.epoch + 1}/{fit.epochs} [{'#' * full}{'.' * (_BAR - full)}] "
            f"batch {fit.batch}{total}, loss {fit.last_loss:.4f}"
        )
        if done > self._start and seconds > 1:
            text += f", {_duration((fit.epochs - done) * seconds / (done - self._start))} left"
        columns = shutil.get_terminal_size().columns
        self.output.write(_CLEAR + text[: max(columns - 1, 1)])
        self.output.flush()
        self._drawn = True

    def _take_away(self) -> None:
        if self._drawn:
            self.output.write(_CLEAR)
            self.output.flush()
            self._drawn = False

    def _print(self, line: str) -> None:
        self._take_away()
        self.output.write(line + "\n")
        self.output.flush()
        self._said = time.monotonic()


def _done(fit: Fit) -> float:
    """Epochs that are done, with the part of the current one where its length is known."""
    return fit.epoch + (fit.batch / fit.batches if fit.batches else 0.0)


def _readable(epochs: int) -> int:
    """After how many epochs a row is printed, so that there are about a hundred: 1, 2, 5, 10, 20, ..."""
    scale = 1
    while True:
        for step in (scale, 2 * scale, 5 * scale):
            if epochs <= _ROWS * step:
                return step
        scale *= 10


def _duration(seconds: float) -> str:
    """`1:02:03`, or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _cell(name: str, value: float) -> str:
    if name in ("epoch", "skipped_steps"):
        return str(int(value))
    if name == "samples_per_second":
        return f"{value:,.0f}"
    if name == "learning_rate":
        return f"{value:.4g}"
    return f"{value:.4f}"


def for_verbosity(verbose: Any) -> list[Callback]:
    """The progress callback for `verbose`, see `Model.fit`.

    Raises:
        UnknownNameError: for another text.
        ArgumentError: for a number of epochs below 1.
    """
    if not isinstance(verbose, str):
        return [Progress()] if verbose else []
    if verbose == "auto":
        return [Progress(every=None)]
    if verbose == "line":
        return [Progress(bar=False)]
    if verbose == "bar":
        return [Progress(every=0)]
    if (found := re.fullmatch(r"every (\d{1,9})", verbose)) is None:
        known = ("auto", "bar", "line", "every 10")
        raise UnknownNameError.of("fit: verbose", verbose, known)
    if int(found[1]) < 1:
        raise ArgumentError(f'fit: verbose must be "every 1" or more epochs, got {verbose!r}')
    return [Progress(every=int(found[1]))]
