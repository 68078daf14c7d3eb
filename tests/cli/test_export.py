"""magmadnn export: what the object file computes is what magmadnn predict writes."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.exported import NEEDS_C, Exported, nan_like


def columns(path: Path, count: int) -> np.ndarray:
    """Inputs of a table in their own units; an empty cell is NaN."""
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))[1:]
    return np.array([[float(c) if c else np.nan for c in row[:count]] for row in rows])


def predicted(command: Any, data: Path) -> list[list[str]]:
    assert command("predict", "run", "--data", data, "--out", "p.csv").code == 0
    return list(csv.reader(Path("p.csv").read_text(encoding="utf-8").splitlines()))[1:]


@NEEDS_C
def test_a_regression_is_in_own_units(command: Any, prices: Path, tmp_path: Path) -> None:
    command("train", "--data", prices, "--epochs", "3", "--quiet", "--out", "run")
    done = command("export", "run", "--out", "price.o", "--cpu", "x86-64-v3")
    assert (done.code, done.out) == (0, "wrote price.o, price.h, price.f90\n")
    done = command("export", "run", "--out", "price.o", "--name", "price_of", "--quiet")
    assert (done.code, done.out) == (0, "")
    x = columns(prices, 3)
    found = np.empty((len(x), 1))
    assert Exported(tmp_path / "price.o", "price_of").predict([x], [found]) == 0
    assert found[:, 0].tolist() == [float(row[0]) for row in predicted(command, prices)]
    header = Path("price.h").read_text()
    assert "int price_of_predict(const double *x, int64_t samples, double *y);" in header
    assert " * Inputs of a sample:\n * 0: north\n * 1: east\n * 2: depth\n" in header
    assert " * Output: price.\n" in header


@NEEDS_C
@pytest.mark.parametrize("missing", [False, True])
def test_classes_have_probabilities(
    command: Any, soils: Path, tmp_path: Path, missing: bool
) -> None:
    if missing:
        lines = soils.read_text().splitlines()
        lines[7] = "," + lines[7].partition(",")[2]
        soils.write_text("\n".join(lines) + "\n")
    filled = ["--missing", "mean"] if missing else []
    command("train", "--data", soils, "--epochs", "3", "--quiet", "--out", "run", *filled)
    assert command("export", "run", "--out", "soil.o", "--quiet").code == 0
    x = columns(soils, 3)
    assert np.isnan(x).any() == missing
    wanted = np.array([row[1:] for row in predicted(command, soils)], np.float32)
    (found,) = nan_like(wanted)
    assert Exported(tmp_path / "soil.o", "soil").predict([x], [found]) == 0
    # exp within 2 units of the last place, the sum of three, a quotient; and the text of 9 digits
    np.testing.assert_allclose(found, wanted, rtol=8 * np.finfo(np.float32).eps)
    header = Path("soil.h").read_text()
    assert (
        " * Outputs of a sample: the probabilities of\n * 0: clay\n * 1: loam\n * 2: sand\n"
        in header
    )
    assert ("NaN is a missing value" in header) == missing


def test_images_are_exported_too(command: Any, images: Path) -> None:
    command("train", "--data", images, "--hidden", "7", "--epochs", "1", "--quiet", "--out", "run")
    assert command("export", "run", "--out", "image.o", "--quiet").code == 0
    assert 'x: input "input", double[samples][5][7][1]' in Path("image.h").read_text()
    done = command("export", "run", "--out", "image.so")
    assert done.code == 2
    assert "must end in .o, got 'image.so'" in done.err
