"""The files that the mistakes are about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data.mistakes import idx_bytes
from tests.refusals.cases import X, Y, changed, table


def make_files(p: Path) -> None:
    """All the files that the mistakes are about."""
    (p / "good.csv").write_text(table())
    (p / "empty.csv").write_text("")
    (p / "header.csv").write_text("wind,rain,storm\n")
    (p / "gap.csv").write_text(table().replace("0.740,1.420", "0.740,?"))
    (p / "short.csv").write_text(table().replace("0.740,1.420,no", "0.740,1.420"))
    (p / "inf.csv").write_text(table().replace("0.740", "inf"))
    (p / "word.csv").write_text(table().replace("0.740", "strong"))
    (p / "one_class.csv").write_text(table().replace("yes", "no"))
    (p / "data.xlsx").write_bytes(b"PK")
    np.savez(p / "nan.npz", x=changed(X, (3, 2), np.nan), y=Y)
    np.savez(p / "rows.npz", x=X, y=Y[:-1])
    np.savez(p / "names.npz", samples=X, answers=Y)
    images, labels = np.zeros((9, 4, 4), np.uint8), np.arange(9, dtype=np.uint8) % 3
    images[:, 1, 2] = np.arange(9)
    files = {
        "train-images-idx3-ubyte": idx_bytes(images), "train-labels-idx1-ubyte": idx_bytes(labels),
        "t10k-images-idx3-ubyte": idx_bytes(images), "t10k-labels-idx1-ubyte": idx_bytes(labels),
    }  # fmt: skip
    for folder in ("idx", "idx_cut", "idx_swapped", "idx_missing"):
        (p / folder).mkdir()
        for name, content in files.items():
            (p / folder / name).write_bytes(content)
    (p / "idx_cut" / "train-images-idx3-ubyte").write_bytes(files["train-images-idx3-ubyte"][:-5])
    (p / "idx_swapped" / "train-images-idx3-ubyte").write_bytes(files["train-labels-idx1-ubyte"])
    (p / "idx_swapped" / "train-labels-idx1-ubyte").write_bytes(files["train-images-idx3-ubyte"])
    (p / "idx_missing" / "t10k-labels-idx1-ubyte").unlink()
    (p / "nothing").mkdir()
    (p / "used").mkdir()
    (p / "used" / "notes.txt").write_text("mine")
    (p / "file").write_text("a file")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
