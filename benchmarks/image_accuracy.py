"""Accuracy of a network's preset on the test set, for some seeds.

`python benchmarks/image_accuracy.py lenet5 mnist`, or with a folder and seeds:
`python benchmarks/image_accuracy.py cifar_cnn FOLDER 0 1 2`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from magmadnn.cli import main as magmadnn


def accuracy(network: str, data: str, seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        options = ["--data", data, "--seed", str(seed), "--out", out, "--quiet"]
        if magmadnn(["train", network, *options]) != 0:
            raise SystemExit(2)
        result = json.loads((Path(out) / "result.json").read_text())
    return float(result["test_accuracy"])


def main(network: str, data: str, *seeds: str) -> None:
    found = []
    for seed in seeds or ("0", "1", "2"):
        found.append(accuracy(network, data, int(seed)))
        print(f"{network}, seed {seed}: {found[-1]:.2%}", flush=True)
    print(f"mean {sum(found) / len(found):.2%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
