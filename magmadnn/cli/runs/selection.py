"""What the first training of a run chose by its validation rows: the epoch, kept for `--refit`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from magmadnn.errors import CheckpointError, NumericError, shown
from magmadnn.storage.disk import is_there
from magmadnn.storage.durable import read_file, write_file
from magmadnn.storage.formats.plain_json import JSON_BYTES, decode
from magmadnn.storage.formats.plain_schema import Fields, Number, Table, Whole, check, maybe
from magmadnn.training import History

SELECTION = "selection.json"
_SELECTION = Fields(
    {
        "best_epoch": Whole(1),
        "epochs": Whole(1),
        "seconds": Number(0, finite=True),
        "samples": Number(0, finite=True),
        "figures": Table(maybe(Number())),
    }
)


@dataclass(frozen=True)
class Selection:
    """The best epoch of a training, by its validation rows.

    Attributes:
        best_epoch: from 1.
        epochs: that the training had.
        seconds: that it took.
        samples: that it trained on, each as often as it did.
        figures: loss and metrics of the validation rows in the best epoch; None for NaN and infinities.
    """

    best_epoch: int
    epochs: int
    seconds: float
    samples: float
    figures: Mapping[str, float | None]

    @classmethod
    def of(cls, history: History, best_epoch: int | None) -> Selection:
        """What a training has chosen.

        Raises:
            NumericError: no epoch has a validation loss that is a number.
        """
        if best_epoch is None:
            raise NumericError(
                "no epoch is the best: the validation loss is NaN in all of them; lower the learning rate, "
                "or look for bad data"
            )
        row = next(row for row in history if row["epoch"] == best_epoch)
        figures = {
            name.removeprefix("val_"): value if math.isfinite(value) else None
            for name, value in row.items()
            if name.startswith("val_")
        }
        return cls(best_epoch, len(history), *seconds_and_samples(history), figures)

    def write(self, folder: Path) -> None:
        """Keep it in the folder of the run."""
        write_file(folder / SELECTION, (json.dumps(asdict(self), indent=1) + "\n").encode())


def read_selection(folder: Path) -> Selection | None:
    """What was chosen in this run; None if that has not happened.

    Raises:
        CheckpointError: if the file is damaged.
    """
    path = folder / SELECTION
    if not is_there(path):
        return None
    try:
        record = decode(read_file(path, JSON_BYTES), shown(path))
        check(_SELECTION, record, shown(path))
    except CheckpointError as error:
        raise CheckpointError(f"{error}; remove it, and --resume makes it anew") from error
    return Selection(**record)


def seconds_and_samples(history: History) -> tuple[float, float]:
    """How long the epochs took, and how many samples they trained on."""
    samples = sum(row["samples_per_second"] * row["seconds"] for row in history)
    return sum(row["seconds"] for row in history), samples
