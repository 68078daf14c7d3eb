"""A search as a program of its own, which tests kill: `python killed_search.py FOLDER METHOD WORKERS`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.search.problems import SPACE, S, build, table


def slow(learning_rate: float, units: int, seed: int) -> Any:
    """A network that takes a while to make, so that kills meet trials at work; writes down who made it."""
    time.sleep(0.02)
    with Path(os.environ.get("MADE", os.devnull)).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return build(learning_rate, units, seed)


def search(folder: str | None, method: str, workers: int | None, **options: Any) -> Any:
    """The search that is killed, or left alone."""
    x, y = table()
    resume = folder is not None and (Path(folder) / "study.json").exists()
    given = {"trials": 24, "epochs": 9, "seed": 6, "objective": "accuracy", **options}
    return S.run(
        slow, SPACE, x, y, method=method, workers=workers, out=folder, resume=resume, **given
    )


if __name__ == "__main__":
    search(sys.argv[1], sys.argv[2], int(sys.argv[3]) or None)
