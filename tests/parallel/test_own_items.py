"""Models of a user's own layers, ops, losses and functions on the workers of `with md.workers(...)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError
from tests.parallel import own_items

ROOT = Path(__file__).resolve().parents[2]
DRAW = np.random.default_rng(4)
X = DRAW.normal(size=(45, 6)).astype(np.float32)
Y = DRAW.integers(0, 3, 45)


def test_models_of_own_items_train_on_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Workers find modules along the client's path, wherever they began; bits are those of one process."""
    pytest.importorskip("mpi4py")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "found_along_path.py").write_text("def thrice(x):\n    return 3.0 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from found_along_path import thrice  # type: ignore[import-not-found]

    given: dict[str, Any] = {"batch_size": 8, "epochs": 2, "verbose": False}
    whole, alone = own_items.network(extra=thrice), own_items.network(seed=2)
    whole.fit(X, Y, parallel=md.parallel.DataParallel(), **given)
    alone.fit(X, Y, **given)

    def here(x: Any) -> Any:
        return x + 1.0

    with md.workers(2):
        trained = own_items.network(extra=thrice)
        trained.fit(X, Y, **given)
        many = [own_items.network(seed=seed) for seed in (2, 3)]
        md.fit_many(many, X, Y, **given)
        with pytest.raises(ArgumentError, match=r"needs here.*<locals>\.here.*beside the script"):
            own_items.network(extra=here).fit(X, Y, **given)
        again = own_items.network(extra=thrice)
        again.fit(X, Y, **given)  # workers are still there
    for expected, *found in ((whole, trained, again), (alone, many[0])):
        for name, value in expected.values().items():
            for one in found:
                np.testing.assert_array_equal(one.values()[name], value)


def test_workers_in_this_process_find_modules_by_name_too() -> None:
    whole, model = own_items.network(), own_items.network()
    given: dict[str, Any] = {"batch_size": 8, "verbose": False}
    whole.fit(X, Y, parallel=md.parallel.DataParallel(), **given)
    with md.workers(0):
        model.fit(X, Y, **given)
    for name, value in whole.values().items():
        np.testing.assert_array_equal(model.values()[name], value)
