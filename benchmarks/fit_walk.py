"""The walk of a batch through `fit`: which files of magmadnn run, in the order in which they are entered.

    python -m benchmarks.fit_walk                 counts, for a first fit of a process and for the second
    python -m benchmarks.fit_walk --files         and the files themselves

A file counts once a function of it runs between the call of `fit` and its end, on any thread of Python's. The
model is the papers' network on arrays; compiled kernels are on disk already, unless `--cold` is given.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import numpy as np

import magmadnn as md

PACKAGE = Path(md.__file__).parent


class Walk:
    """Files of magmadnn in the order in which their functions first run, and how many calls there are.

    Attributes:
        files: relative to the package.
        calls: of functions of magmadnn's files; comprehensions and generators that go on count too.
        crossings: calls whose caller lies in another file.
    """

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.calls = self.crossings = 0
        self._names: dict[CodeType, str] = {}

    def name(self, code: CodeType) -> str:
        """The file of a function, relative to the package; empty for those of others and for imports."""
        found = self._names.get(code)
        if found is None:
            path = Path(code.co_filename)
            inside = path.is_relative_to(PACKAGE) and code.co_flags & inspect.CO_OPTIMIZED
            found = self._names[code] = str(path.relative_to(PACKAGE)) if inside else ""
        return found

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """What Python calls for each call."""
        if event == "call" and (name := self.name(frame.f_code)):
            self.calls += 1
            self.files[name] = self.files.get(name, 0) + 1
            before = frame.f_back
            self.crossings += before is None or self.name(before.f_code) != name


def walk(work: Callable[[], object]) -> Walk:
    """What runs while `work` does."""
    found = Walk()
    threading.setprofile(found.note)
    sys.setprofile(found.note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def papers_network(device: str) -> md.Model:
    """784-528-528-528-10 with ReLU, cross entropy and gradient descent."""
    hidden = [md.layers.Dense(528, activation="relu") for _ in range(3)]
    return md.Model(
        [md.layers.Input((784,)), *hidden, md.layers.Dense(10)],
        loss="cross_entropy",
        optimizer=md.optim.SGD(0.05),
        device=device,
        seed=0,
    )


def fits(device: str, count: int = 2) -> list[Walk]:
    """One walk for each of several fits of one model."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((1000, 784)).astype(np.float32), rng.integers(0, 10, 1000)
    model = papers_network(device)
    return [
        walk(lambda: model.fit(x, y, batch_size=100, epochs=1, verbose=False)) for _ in range(count)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="The files of magmadnn that a fit runs through.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--files", action="store_true", help="list the files")
    parser.add_argument("--cold", action="store_true", help="with no compiled kernels on disk")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        if not given.cold:  # by another process, whose plans this one does not have
            if (process := os.fork()) == 0:
                fits(given.device, 1)
                os._exit(0)
            os.waitpid(process, 0)
        for number, found in enumerate(fits(given.device), 1):
            calls = f"{found.calls} calls, {found.crossings} into another file"
            print(f"fit {number}: {len(found.files)} files, {calls}")
            for name, calls in found.files.items() if given.files else ():
                print(f"  {calls:6}  {name}")


if __name__ == "__main__":
    main()
