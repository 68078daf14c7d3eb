"""The default training on MNIST, by `magmadnn train`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from magmadnn.cli import main as magmadnn


class Accuracy:
    """`check` trains, and gives the share of the test set that is wrong; `epochs` 0: as many as usual."""

    def __init__(self, precision: str, device: str, seed: int, epochs: int = 0) -> None:
        self._chosen = ["--precision", precision, "--device", device, "--seed", str(seed)]
        if epochs:
            self._chosen += ["--epochs", str(epochs)]

    def check(self) -> float:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "result.json"
            files = ["--out", str(Path(folder) / "run"), "--json", str(out), "--quiet"]
            if code := magmadnn(["train", *self._chosen, *files]):
                raise RuntimeError(f"magmadnn train ended with {code}")
            found: float = json.loads(out.read_text())["test_accuracy"]
            return 1 - found
