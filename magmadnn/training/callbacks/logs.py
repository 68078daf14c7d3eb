"""Writing each epoch's figures to files: CSV, TensorBoard."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from magmadnn.errors import MissingExtraError
from magmadnn.storage.durable import append_file
from magmadnn.storage.input_files import input_name, input_path
from magmadnn.training.loop.fit import Fit

from .callback import Callback


class CSVLogger(Callback):
    """Writes a row for each epoch to a CSV file while training runs.

    Each training begins the file anew; one that is resumed writes the epochs before as well.
    """

    stands_aside = True
    writes_files = True

    def __init__(self, path: str | Path) -> None:
        self.path = input_path("CSVLogger: the file", path)
        self._columns: list[str] = []

    def arguments(self) -> dict[str, Any]:
        """What it was made with."""
        return {"path": str(self.path.absolute())}

    def on_train_begin(self, fit: Fit) -> None:
        """Begin the file anew, at the end of the first epoch."""
        self._columns = []

    def on_epoch_end(self, fit: Fit) -> None:
        """Add the epoch's row; the header stands in the first line."""
        if list(fit.row) != self._columns:
            fit.history.to_csv(self.path)
            self._columns = fit.history.columns
            return
        text = io.StringIO()
        csv.DictWriter(text, self._columns, lineterminator="\n").writerow(fit.row)
        append_file(self.path, text.getvalue().encode())


class TensorBoard(Callback):
    """Writes each epoch's figures for TensorBoard.

    Args:
        folder: where event files go; each training writes one of its own.

    Raises:
        MissingExtraError: without tensorboardX.
    """

    stands_aside = True
    writes_files = True
    _made_with = ("folder",)

    def __init__(self, folder: str | Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise MissingExtraError.of("tensorboardX", "TensorBoard", "tensorboard") from error
        self._open, self._folder = SummaryWriter, input_name("TensorBoard: the folder", folder)
        self._writer: Any = None

    def on_train_begin(self, fit: Fit) -> None:
        """Open a file."""
        self._writer = self._open(self._folder)

    def on_epoch_end(self, fit: Fit) -> None:
        """One scalar for each column."""
        for name, value in fit.row.items():
            self._writer.add_scalar(name, value, fit.epoch)

    def on_train_end(self, fit: Fit) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
