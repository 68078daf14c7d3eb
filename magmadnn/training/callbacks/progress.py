"""What `fit` prints: a table row for each epoch, and on a terminal a bar while an epoch runs."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO, cast

from magmadnn.errors import UnknownNameError
from magmadnn.storage.printing import SafeStream
from magmadnn.training.loop.fit import Fit

from .callback import Callback

_QUIET = {"seconds", "learning_rate"}


class Progress(Callback):
    """Prints rows; draws a bar where the output is a terminal.

    In files and logs there are no control characters, and between epochs at most a line a minute. Output that
    cannot be written ends no training: that is told once on standard error.
    """

    stands_aside = True

    def __init__(self, output: TextIO | None = None) -> None:
        self.output = SafeStream(output or sys.stdout)
        self._bar: Any = None
        self._task: Any = None
        self._said = time.monotonic()
        self._header = False

    def on_epoch_begin(self, fit: Fit) -> None:
        """Start the bar."""
        if not self.output.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} loss {task.fields[loss]:.4f}"),
            TimeRemainingColumn(),
            console=Console(file=cast("TextIO", self.output)),
            transient=True,
        )
        self._task = self._bar.add_task(
            "", total=fit.batches, completed=fit.batch, epoch=fit.epoch + 1, loss=float("nan")
        )
        self._bar.start()

    def batches(self, fit: Fit) -> int | None:
        """Any number: slices are short."""
        return None

    def on_batch_end(self, fit: Fit) -> None:
        """Move the bar; in a log, say now and then that it goes on."""
        if self._bar is not None:
            self._bar.update(self._task, completed=fit.batch, loss=fit.last_loss)
        elif time.monotonic() - self._said > 60:
            self._said = time.monotonic()
            total = f"/{fit.batches}" if fit.batches else ""
            self._print(
                f"epoch {fit.epoch + 1}: batch {fit.batch}{total}, loss {fit.last_loss:.4f}"
            )

    def on_epoch_end(self, fit: Fit) -> None:
        """Print the epoch's row, before the first one the names."""
        self._stop_bar()
        shown = [name for name in fit.row if name not in _QUIET]
        widths = [max(len(name), 10) for name in shown]
        if not self._header:
            self._header = True
            self._print("  ".join(n.rjust(w) for n, w in zip(shown, widths, strict=True)))
        cells = [_cell(name, fit.row[name]) for name in shown]
        self._print("  ".join(c.rjust(w) for c, w in zip(cells, widths, strict=True)))
        self._said = time.monotonic()

    def on_train_end(self, fit: Fit) -> None:
        """Take the bar away; say why training ended early."""
        self._stop_bar()
        if fit.history.stopped:
            self._print(f"stopped: {fit.history.stopped}")

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, line: str) -> None:
        self.output.write(line + "\n")
        self.output.flush()


def _cell(name: str, value: float) -> str:
    if name in ("epoch", "skipped_steps"):
        return str(int(value))
    if name == "samples_per_second":
        return f"{value:,.0f}"
    return f"{value:.4f}"


def for_verbosity(verbose: Any) -> list[Callback]:
    """The progress callback for `verbose`: True or "auto" prints, False or 0 does not.

    Raises:
        UnknownNameError: for another text.
    """
    if isinstance(verbose, str) and verbose != "auto":
        raise UnknownNameError.of("verbose", verbose, ("auto",))
    return [Progress()] if verbose else []
