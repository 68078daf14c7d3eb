"""Accuracy with and without principal components, on heart disease and MNIST, and a picture of it.

    python -m benchmarks.tables.components DATA [PICTURE.png]

DATA is a folder with `heart-disease/processed.cleveland.data` and `mnist`. Prints two tables: of heart
disease (any of the grades 1 to 4 against 0) means over ten splits, of MNIST its test set
after five epochs of the preset `image`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import magmadnn as md
from magmadnn.cli import main as command

SPLITS = 10


def trained(folder: Path, words: list[str], count: int | None) -> dict[str, Any]:
    """The result of a training by the command line, and the part of the variance that is kept."""
    out = folder / str(len(list(folder.iterdir())))
    pca = [] if count is None else ["--pca", str(count)]
    code = command(["train", *words, *pca, "--out", str(out), "--quiet"])
    assert code == 0, words
    made = md.load(out / "model").preparation
    assert isinstance(made, md.data.Preparation)
    kept = 1.0 if made.components is None else made.components.explained
    return {**json.loads((out / "result.json").read_text()), "kept": kept}


def heart(data: Path, folder: Path) -> list[tuple[int | None, float, float, float]]:
    """For each count: variance kept, mean accuracy, and its standard error."""
    lines = (data / "heart-disease" / "processed.cleveland.data").read_text().split()
    table = folder / "heart.csv"
    cells = [line.split(",") for line in lines]
    table.write_text(
        "\n".join(",".join([*c[:-1], "ill" if c[-1] != "0" else "well"]) for c in cells)
    )
    runs, found = folder / "heart", []
    runs.mkdir()
    for count in (None, 1, 2, 3, 5, 8, 13):
        results = [
            trained(runs, ["--data", str(table), "--missing", "mean", "--seed", str(seed)], count)
            for seed in range(SPLITS)
        ]
        right = [r["test_accuracy"] for r in results]
        error = float(np.std(right, ddof=1) / np.sqrt(SPLITS))
        found.append(
            (count, float(np.mean([r["kept"] for r in results])), float(np.mean(right)), error)
        )
    return found


def mnist(data: Path, folder: Path) -> list[tuple[int | None, float, float]]:
    """For each count: variance kept and accuracy."""
    runs, found = folder / "mnist", []
    runs.mkdir()
    words = ["--data", str(data / "mnist"), "--preset", "image", "--epochs", "5"]
    for count in (None, 10, 20, 50, 100, 200):
        result = trained(runs, words, count)
        found.append((count, result["kept"], result["test_accuracy"]))
    return found


def draw(data: Path, rows: list[tuple[int | None, float, float]], place: str) -> None:
    """The first components as images, rows in the first two, and accuracy by count."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    x, y = md.data.load(str(data / "mnist")).train()
    flat = x.reshape(len(x), -1)
    pca = md.analytics.PCA(12).fit(flat)
    figure = plt.figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subfigures(1, 3)
    for axes, picture in zip(left.subplots(3, 4).flat, np.asarray(pca.components_), strict=True):
        axes.imshow(picture.reshape(28, 28), cmap="RdBu", vmin=-0.12, vmax=0.12)
        axes.axis("off")
    left.suptitle("the first twelve components", fontsize=10)
    axes = middle.subplots()
    points = np.asarray(pca.transform(flat[:3000]))[:, :2]
    shown = axes.scatter(*points.T, c=y[:3000], cmap="tab10", s=3)
    axes.legend(*shown.legend_elements(), fontsize=6, ncols=2)
    axes.set(xlabel="first", ylabel="second", title="3,000 digits")
    axes = right.subplots()
    counts = [c for c, _, _ in rows if c is not None]
    axes.plot(counts, [100 * a for c, _, a in rows if c is not None], "o-", label="accuracy")
    axes.plot(counts, [100 * k for c, k, _ in rows if c is not None], "s--", label="variance kept")
    axes.axhline(100 * next(a for c, _, a in rows if c is None), color="grey", label="all pixels")
    axes.set(xlabel="components", ylabel="%", xscale="log", title="the test set of MNIST")
    axes.set_xticks(counts, [str(c) for c in counts])
    axes.legend(fontsize=8)
    figure.savefig(place, dpi=90)


def main() -> None:
    """Print the tables; draw the picture if a place is given."""
    data = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("| components | variance kept | accuracy, heart disease |\n|---|---|---|")
        for count, kept, right, error in heart(data, folder):
            print(f"| {count or 'none'} | {kept:.1%} | {right:.3f} +- {error:.3f} |", flush=True)
        print("\n| components | variance kept | accuracy, MNIST |\n|---|---|---|")
        rows = mnist(data, folder)
        for count, kept, right in rows:
            print(f"| {count or 'none'} | {kept:.1%} | {right:.4f} |", flush=True)
        if len(sys.argv) > 2:
            draw(data, rows, sys.argv[2])


if __name__ == "__main__":
    main()
