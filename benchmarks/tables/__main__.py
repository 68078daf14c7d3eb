"""The preset `table` beside scikit-learn's networks and simple methods, on the same splits.

    python -m benchmarks.tables --data FOLDER     in an environment with scikit-learn

FOLDER holds `uci/winequality-red.csv`, `uci/winequality-white.csv` and
`heart-disease/processed.cleveland.data`; without it these tables are left out.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler

import magmadnn as md
from magmadnn.models.baselines import classification_baselines, regression_baselines

from .tables import Table, found

Split = tuple[Any, Any, Any, Any]


def split(table: Table, x: Any, y: Any, seed: int) -> Split:
    """Three quarters for training; inputs standardised with their statistics."""
    groups = y if table.task == "classification" else None
    if groups is not None and np.unique(y, return_counts=True)[1].min() < 4:
        groups = None
    x_train, x_test, y_train, y_test = train_test_split(
        x, y, test_size=0.25, random_state=seed, stratify=groups
    )
    scaler = StandardScaler().fit(x_train)
    return scaler.transform(x_train), scaler.transform(x_test), y_train, y_test


def scores(table: Table, parts: Split, seed: int) -> dict[str, float]:
    """Accuracy or R2 on the test rows of each contender, and the seconds of the two networks' training."""
    x, x_test, y, y_test = parts
    if table.task == "classification":
        classes, numbers = np.unique(y, return_inverse=True)
        tested = np.searchsorted(classes, y_test)
        known = classification_baselines(x, numbers, x_test, tested, len(classes))
        result = {"simple": known["logistic_accuracy"]}
        peers = {"sklearn": (MLPClassifier(random_state=seed), y, y_test)}
        ours: Any = md.sklearn.MagmaClassifier(random_state=seed)
    else:
        result = {"simple": regression_baselines(x, y, x_test, y_test)["ridge_r2"]}
        mean, std = y.mean(), y.std()
        peers = {
            "sklearn": (MLPRegressor(random_state=seed), y, y_test),
            "sklearn, y standardised": (
                MLPRegressor(random_state=seed), (y - mean) / std, (y_test - mean) / std,
            ),
        }  # fmt: skip
        ours = md.sklearn.MagmaRegressor(random_state=seed)
    for name, (model, targets, tests) in peers.items():
        start = time.perf_counter()
        model.fit(x, targets)
        result[f"{name}, s"] = time.perf_counter() - start
        result[name] = model.score(x_test, tests)
    start = time.perf_counter()
    ours.fit(x, y)
    result["magmadnn, s"] = time.perf_counter() - start
    result["magmadnn"] = ours.score(x_test, y_test)
    return result


def row(table: Table, x: Any, y: Any, seeds: int) -> str:
    """A row of the report: means over the seeds."""
    runs = [scores(table, split(table, x, y, seed), seed) for seed in range(seeds)]
    mean = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    peers = ["sklearn", "sklearn, y standardised"] if table.task == "regression" else ["sklearn"]
    best = max(peers, key=lambda name: mean[name])
    differences = [run["magmadnn"] - run[best] for run in runs]
    error = np.std(differences, ddof=1) / np.sqrt(seeds) if seeds > 1 else float("nan")
    cells = [
        table.name, table.task, f"{len(x):,} x {x.shape[1]}", "yes" if table.development else "no",
        f"{mean['simple']:.4f}", *(f"{mean[p]:.4f}" for p in peers), *[""] * (2 - len(peers)),
        f"{mean['magmadnn']:.4f}", f"{np.mean(differences):+.4f} +- {error:.4f}", str(seeds),
        f"{mean[best + ', s']:.1f}", f"{mean['magmadnn, s']:.1f}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--seeds", type=int, default=5, help="of tables below 2,000 rows (default 5)"
    )
    parser.add_argument("--large-seeds", type=int, default=3, help="of the others (default 3)")
    parser.add_argument("--match", default="", help="only tables with this text in their names")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    names = [
        "table", "task", "rows x columns", "development", "linear", "scikit-learn",
        "scikit-learn, y standardised", "magmadnn", "difference to the better", "seeds",
        "scikit-learn, s", "magmadnn, s",
    ]  # fmt: skip
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for table, x, y in found(arguments.data):
        if arguments.match in table.name:
            seeds = arguments.seeds if len(x) < 2000 else arguments.large_seeds
            print(row(table, x, y, seeds), flush=True)


if __name__ == "__main__":
    main()
