"""Principal components of a memory-mapped file of rows, beside scikit-learn's, a process for each.

python benchmarks/linalg/components.py FOLDER [--rows 1000000] [--columns 784] [--components 50]

Writes float32 rows of falling variance into FOLDER, if they are not there. Prints seconds, the most anonymous
memory that the process had, how much of that came with the fit, and how far the explained variance is from
that of the first contender.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

_BLOCK = 10_000  # rows that are written at once
_NAMES = ("magmadnn PCA", "scikit-learn covariance_eigh", "scikit-learn IncrementalPCA")


def rows_of(folder: Path, rows: int, columns: int) -> Path:
    """The file, made where it is not there: rows mixed of columns whose deviations fall."""
    path = folder / f"rows_{rows}x{columns}.npy"
    if path.exists():
        return path
    draw = np.random.default_rng(0)
    mixing = np.linalg.qr(draw.normal(size=(columns, columns))).Q * np.geomspace(10, 0.1, columns)
    out = np.lib.format.open_memmap(path, "w+", np.float32, (rows, columns))
    for begin in range(0, rows, _BLOCK):
        end = min(begin + _BLOCK, rows)
        out[begin:end] = draw.normal(size=(end - begin, columns)) @ mixing.T + 3
    out.flush()
    return path


def anonymous_bytes() -> int:
    """Memory of this process that is in no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    return 0


class Watched:
    """The most anonymous memory within a block, looked at every some milliseconds."""

    def __enter__(self) -> Watched:
        self.before = self.most = anonymous_bytes()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._ends.wait(0.005):
            self.most = max(self.most, anonymous_bytes())

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join()


def fitted(name: str, rows: Any, count: int) -> Any:
    """An estimator that has seen the rows."""
    if name == _NAMES[0]:
        import magmadnn as md

        return md.analytics.PCA(count).fit(rows)
    from sklearn import decomposition  # type: ignore[import-untyped, unused-ignore]

    if name == _NAMES[1]:
        return decomposition.PCA(count, svd_solver="covariance_eigh").fit(rows)
    return decomposition.IncrementalPCA(count).fit(rows)


def contender(name: str, path: str, count: int) -> None:
    """Fit in this process, and print what was found as a line of JSON."""
    fitted(name, np.random.default_rng(0).normal(size=(200, 60)).astype(np.float32), 5)  # imports
    rows = np.load(path, mmap_mode="r")
    with Watched() as watched:
        begin = time.perf_counter()
        found = fitted(name, rows, count)
        seconds = time.perf_counter() - begin
    variance = np.asarray(found.explained_variance_, np.float64).tolist()
    print(json.dumps([seconds, watched.most, watched.most - watched.before, variance]))


def main() -> None:
    """Print a line for each contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=784)
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--only", nargs="*", default=_NAMES, choices=_NAMES)
    parser.add_argument("--contender", choices=_NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        contender(options.contender, str(options.folder), options.components)
        return
    path = rows_of(options.folder, options.rows, options.columns)
    print(f"{'':<30}{'seconds':>9}{'anonymous MB':>14}{'of the fit':>12}{'variance off by':>17}")
    expected = None
    for name in options.only:
        command = [sys.executable, __file__, str(path), "--contender", name]
        command += ["--components", str(options.components)]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        seconds, most, more, variance = json.loads(run.stdout.splitlines()[-1])
        expected = variance if expected is None else expected
        off = np.abs(np.divide(variance, expected) - 1).max()
        print(
            f"{name:<30}{seconds:9.2f}{most / 1e6:14.0f}{more / 1e6:12.0f}{off:17.1e}", flush=True
        )


if __name__ == "__main__":
    main()
