"""Copies of arrays that may be written: they serve again while arrays are what they were."""

from __future__ import annotations

import gc
import importlib.util
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler.llvm.fused.digest import BLOCK_WORDS, KEYS, SUMS, Digest
from magmadnn.compiler.llvm.kernel import block, load, scratch
from magmadnn.errors import DataError
from magmadnn.memory.room import Room
from magmadnn.runtime.cuda.data import checked_cache as watched
from magmadnn.runtime.cuda.data.fingerprint import Fingerprint
from tests.runtime.cuda.devices import DEVICES, distance, network, on, samples
from tests.runtime.cuda.emulator import needs_compiler
from tests.runtime.cuda.test_foreign import counted

SIZES = (61, 7, 5)
ROWS = 203


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """All arrays are worth it."""
    monkeypatch.setattr(watched, "LEAST_BYTES", 1)


def swapped(x: np.ndarray, y: np.ndarray) -> None:
    y[[5, 9]] = y[[9, 5]]
    x[[3, 4]] = x[[4, 3]]


def with_other_signs(x: np.ndarray, y: np.ndarray) -> None:
    x[17, [3, 5]] *= -1


def nothing(x: np.ndarray, y: np.ndarray) -> None:
    """The arrays stay as they are."""


SETTINGS: list[dict[str, Any]] = [
    {},
    {"validation_split": 0.2},
    {"class_weight": {k: 1.0 + k for k in range(5)}},
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("settings", "change"),
    [
        pytest.param(settings, change, marks=() if n in (0, m) else pytest.mark.long)
        for n, settings in enumerate(SETTINGS)
        for m, change in enumerate([nothing, swapped, with_other_signs])
    ],
)
def test_training_is_as_with_new_arrays(
    device: str, change: Callable[..., None], settings: dict[str, Any]
) -> None:
    x, y = samples(ROWS, *SIZES[::2])
    settings = {"batch_size": 8, "epochs": 2, "verbose": 0, **settings}
    with on(device):
        kept, new = (network(SIZES, md.optim.SGD(0.3), device="cuda") for _ in range(2))
        for call in range(6):
            if call in (3, 5):
                change(x, y)
            found = kept.fit(x, y, **settings).rows
            wanted = new.fit(x.copy(), y.copy(), **settings).rows
            assert [r["loss"] for r in found] == [r["loss"] for r in wanted]
        assert distance(kept, new) == 0


@needs_compiler
def test_what_did_not_change_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(ROWS, *SIZES[::2])
    with on("emulated"):
        model = network(SIZES, md.optim.SGD(0.3), device="cuda")
        largest = []
        for _ in range(5):
            with pytest.MonkeyPatch.context() as patch:
                brought = counted(patch)
                model.fit(x, y, batch_size=8, verbose=0)
            largest.append(max(brought))
        assert largest[0] == x.nbytes
        assert max(largest[1:]) < x.nbytes / 8


class Changes(md.callbacks.Callback):
    """Writes the data at the beginning of an epoch."""

    def __init__(self, x: np.ndarray) -> None:
        self._x = x

    def on_epoch_begin(self, fit: Any) -> None:
        self._x += 1


class Each(md.callbacks.Callback):
    """Has its turn after each batch."""

    def batches(self, fit: Any) -> int | None:
        return 1


@needs_compiler
@pytest.mark.parametrize("made", [Changes, lambda x: Each()])
def test_callbacks_change_nothing(made: Any) -> None:
    """Data is what it was when `fit` was called, also where batches run one by one."""
    x, y = samples(ROWS, *SIZES[::2])
    with on("emulated"):
        kept, new = (network(SIZES, md.optim.SGD(0.3), device="cuda") for _ in range(2))
        for call in range(5):
            if call == 4:
                x[3] += 1
            other = x.copy()
            kept.fit(x, y, batch_size=8, callbacks=[made(x)], verbose=0)
            new.fit(other, y.copy(), batch_size=8, callbacks=[made(other)], verbose=0)
        assert distance(kept, new) == 0


@needs_compiler
@pytest.mark.parametrize(("value", "label"), [(np.inf, 0), (0.5, 5)])
def test_what_is_wrong_is_told_and_nothing_is_changed(value: float, label: int) -> None:
    x, y = samples(ROWS, *SIZES[::2])
    message = "row 21, column 7 is inf" if label < 5 else "y: row 21 has the label 5"
    with on("emulated"):
        model = network(SIZES, md.optim.SGD(0.3), device="cuda")
        for _ in range(3):
            model.fit(x, y, batch_size=8, verbose=0)
        before = model.values()
        x[21, 7], y[21] = value, label
        for _ in range(2):
            with pytest.raises(DataError, match=message):
                model.fit(x, y, batch_size=8, verbose=0)
        assert all((model.values()[name] == array).all() for name, array in before.items())


@needs_compiler
def test_arrays_are_not_kept_alive() -> None:
    with on("emulated"):
        model = network(SIZES, md.optim.SGD(0.3), device="cuda")
        x, y = samples(ROWS, *SIZES[::2])
        for _ in range(3):
            model.fit(x, y, batch_size=8, verbose=0)
        known = weakref.ref(x)
        del x
        gc.collect()
        assert known() is None


def test_sums_are_those_of_the_formula() -> None:
    rng = np.random.default_rng(3)
    data = rng.integers(0, 1 << 32, (3, BLOCK_WORDS), np.uint32)
    keys = rng.integers(0, 1 << 32, KEYS, np.uint32)
    sums = np.zeros((3, SUMS), np.uint64)
    load([Digest()])[0](block(Digest(), blocks=3, data=data, keys=keys, sums=sums), scratch(0))
    for number, row in enumerate(data):
        for k in range(SUMS):
            words = (row + keys[4 * k : 4 * k + BLOCK_WORDS]).astype(object)
            assert int(sums[number, k]) == int((words[::2] * words[1::2]).sum()) % (1 << 64)


@pytest.mark.parametrize("shape", [(5,), (3, 7), (60, 1000), (211, 977)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_one_bit_is_seen_anywhere(shape: tuple[int, ...], order: Any) -> None:
    x = np.array(np.random.default_rng(5).standard_normal(shape), order=order)
    before = Fingerprint(x).result()
    words = x.ravel(order="K").view(np.uint64)
    for place in {0, words.size // 2, words.size - 1}:
        for bit in (0, 31, 32, 63):
            words[place] ^= np.uint64(1 << bit)
            assert Fingerprint(x).result() != before
            words[place] ^= np.uint64(1 << bit)
    assert Fingerprint(x).result() == before


def test_threads_that_look_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Room, "threads", 3)
    x = np.random.default_rng(5).standard_normal((16, BLOCK_WORDS))
    before = Fingerprint(x).result()
    started, start = [], threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda t: (started.append(t), start(t))[1])
    assert Fingerprint(x).result() == before
    assert not started


def test_the_first_digests_by_two_threads_at_once_are_those_of_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = importlib.util.find_spec(Fingerprint.__module__)
    assert spec is not None
    assert spec.loader is not None
    fresh: Any = importlib.util.module_from_spec(spec)  # as in a process that has no digest yet
    spec.loader.exec_module(fresh)
    both, kept = threading.Barrier(2), fresh.load

    def together(*given: Any, **named: Any) -> Any:
        both.wait(10)
        return kept(*given, **named)

    x, _ = samples(5 * BLOCK_WORDS // SIZES[0], *SIZES[::2])
    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(fresh, "threads", lambda: pool)
        monkeypatch.setattr(fresh, "load", together)
        first = [fresh.Fingerprint(x) for _ in range(2)]
        known = [one.result() for one in first]
        monkeypatch.setattr(fresh, "load", kept)
        assert known == [fresh.Fingerprint(x).result()] * 2
