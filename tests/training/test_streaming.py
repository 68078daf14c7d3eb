"""Data that is read while a network trains: the same bits as from memory, in bounded memory."""

from __future__ import annotations

import os
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.data.ring import Ready, Ring
from magmadnn.errors import ArgumentError, DataError, GraphError, NumericError, ShapeError
from magmadnn.training.loop import pieces
from magmadnn.training.loop.pieces import Reader, flat
from magmadnn.training.loop.sources import ArraySource, IterableSource

Array = np.ndarray[Any, np.dtype[Any]]

ROWS = 211
RNG = np.random.default_rng(5)
X = RNG.normal(size=(ROWS, 7)).astype(np.float32)
Y = (X @ RNG.normal(size=(7, 3))).argmax(1)


@pytest.fixture(autouse=True)
def small_rings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rings of a few batches, so that many pieces are read; and no thread that outlives a test."""
    monkeypatch.setattr(pieces, "_RING_BYTES", 4000)
    yield
    assert not [t for t in threading.enumerate() if t.name.startswith("magmadnn-")]


class Calls(md.callbacks.Callback):
    """Counts slices: how often batches were reported, without asking for each."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_batch_end(self, fit: Any) -> None:
        self.steps.append(fit.steps)

    def batches(self, fit: Any) -> int | None:
        return None


def network(**more: Any) -> md.Model:
    parts = [md.layers.Input((7,)), md.layers.Dense(11, activation="tanh"), md.layers.Dense(3)]
    settings = {"loss": "cross_entropy", "optimizer": md.optim.Adam(0.01), "metrics": ["accuracy"]}
    return md.Model(parts, **(settings | more))


def mapped(folder: Path, *arrays: Array) -> list[Array]:
    found = []
    for number, array in enumerate(arrays):
        np.save(folder / f"{number}.npy", array)
        found.append(np.load(folder / f"{number}.npy", mmap_mode="r"))
    return found


def result(model: md.Model, *data: Any, **settings: Any) -> dict[str, Any]:
    """Parameters and figures after training, as bytes."""
    history = model.fit(*data, verbose=False, **settings)
    left_out = ("seconds", "samples_per_second")
    rows = [{k: v for k, v in row.items() if k not in left_out} for row in history.rows]
    return {k: v.tobytes() for k, v in model.values().items()} | {"history": rows}


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("batch_size", [1, 17, 100, 500])
def test_files_give_the_bits_of_arrays(tmp_path: Path, batch_size: int, shuffle: bool) -> None:
    calls = Calls()
    settings = {"batch_size": batch_size, "shuffle": shuffle, "epochs": 3}
    wanted = result(network(), X, Y, **settings)
    assert result(network(), *mapped(tmp_path, X, Y), callbacks=[calls], **settings) == wanted
    assert calls.steps[-1] == 3 * -(-ROWS // batch_size)
    if batch_size == 1:
        assert len(calls.steps) < calls.steps[-1] / 4  # many batches of a ring at once


def test_pictures_and_files_in_any_layout(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (ROWS, 4, 3)).astype(np.uint8)
    wide = RNG.normal(size=(ROWS, 12)).astype(np.float64)

    def model() -> md.Model:
        a, b = md.layers.Input((4, 3), name="image"), md.layers.Input((6,), name="wide")
        joined = md.layers.Dense(5)(md.layers.Flatten()(a) / 255.0) + md.layers.Dense(5)(b)
        return md.Model(
            inputs=[a, b], outputs=[joined], loss="mean_squared_error", optimizer=md.optim.SGD(0.1)
        )

    y = RNG.normal(size=(ROWS, 5)).astype(np.float32)
    wanted = result(model(), [images, wide[:, ::2]], y, batch_size=13, epochs=2)
    a, b, c = mapped(tmp_path, images, wide.astype(">f8"), y)
    assert result(model(), [a, b[:, ::2]], c, batch_size=13, epochs=2) == wanted
    assert result(model(), [images, b[:, ::2]], y, batch_size=13, epochs=2) == wanted  # mixed


@pytest.mark.parametrize("where", ["memory", "files"])
def test_validation_split_is_that_of_copies(tmp_path: Path, where: str) -> None:
    kept, held = md.data.split_rows(ROWS, 0.3, 0)
    wanted = result(
        network(), X[kept], Y[kept], validation_data=(X[held], Y[held]), batch_size=17, epochs=2
    )
    x, y = (X, Y) if where == "memory" else mapped(tmp_path, X, Y)
    assert result(network(), x, y, validation_split=0.3, batch_size=17, epochs=2) == wanted


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, width = 30_011, 257
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "float32", (rows, width))
    y = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", "float32", (rows, 1))
    monkeypatch.setattr(pieces, "_RING_BYTES", 1 << 20)

    def model() -> md.Model:
        parts = [md.layers.Input((width,)), md.layers.Dense(1)]
        return md.Model(parts, loss="mean_squared_error", optimizer=md.optim.SGD(0.01))

    model().fit(x[:999], y[:999], batch_size=97, validation_split=0.1, verbose=False)  # compiles
    tracemalloc.start()
    model().fit(x, y, batch_size=97, validation_split=0.1, verbose=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert x.nbytes > 30e6
    # the ring, two orders of rows and what makes them, and a few batches of validation
    assert peak < (1 << 20) + 12 * 8 * rows + 4 * 1024 * width * 4


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("in_memory", [True, False])
def test_rows_that_are_in_use_stay_as_they_are(
    tmp_path: Path, threads: int, in_memory: bool
) -> None:
    """Two batches of the last, shorter half would fit beside the last batch of the half before."""
    source = ArraySource([X], [Y], None, seed=3)
    order, size = source.order(0)[:80], 10
    ring = Ring([X], size, 6)
    arrays = [X] if in_memory else mapped(tmp_path, X)
    reader = Reader((tuple(arrays), (), ()), ring, 3, threads)
    with ring.start(partial(reader.fill, order, 0, 0)):
        for number in range(8):
            ready = ring.take(1)
            assert isinstance(ready, Ready)
            time.sleep(0.02)  # a reader that does not wait has written by now
            rows = ring.order[ready.first * size : (ready.first + 1) * size]
            wanted = X[order[number * size : (number + 1) * size]]
            np.testing.assert_array_equal(ring.arrays[0][rows], wanted)


def test_rows_that_cannot_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = pieces.read_rows

    def broken(array: Array, rows: Array, out: Array) -> None:
        if rows[-1] >= 170:
            raise OSError(5, "Input/output error")
        read(array, rows, out)

    monkeypatch.setattr(pieces, "read_rows", broken)
    model, calls = network(), Calls()
    words = r"fit: rows 160 to 179 cannot be read, which batches 17 to 18 of epoch 1 need: .*Input/output"
    monkeypatch.setattr(pieces, "_RING_BYTES", 4 * 10 * (7 * 4 + 8))
    with pytest.raises(DataError, match=words):  # other bytes than the ring's: NumPy reads them
        model.fit(
            *mapped(tmp_path, X.astype(">f4"), Y),
            batch_size=10,
            shuffle=False,
            verbose=False,
            callbacks=[calls],
        )
    assert calls.steps[-1] == 16  # what was read before has run


def test_a_bad_value_in_a_file_is_found(tmp_path: Path) -> None:
    bad = X.copy()
    bad[100, 3] = np.nan
    with pytest.raises(md.errors.NumericError, match="NaN"):
        network().fit(*mapped(tmp_path, bad, Y), batch_size=10, verbose=False)


# --- iterables ------------------------------------------------------------------------------------


def cut(size: int) -> list[tuple[Array, Array]]:
    return [(X[k : k + size], Y[k : k + size]) for k in range(0, ROWS, size)]


@pytest.mark.parametrize("size", [1, 17, 100])
def test_iterables_give_the_bits_of_arrays(size: int) -> None:
    wanted = result(network(), X, Y, batch_size=size, shuffle=False, epochs=3)
    assert result(network(), cut(size), epochs=3) == wanted
    assert result(network(), lambda: iter(cut(size)), epochs=3) == wanted


@pytest.mark.parametrize("size", [17, lambda epoch: 17], ids=["number", "function"])
def test_a_size_of_batches_that_are_made_already_is_refused(size: Any) -> None:
    with pytest.raises(ArgumentError, match="with an iterable, whose batches stay as they come"):
        network().fit(cut(100), batch_size=size, verbose=False)


def test_batches_of_other_sizes_and_dtypes_come_in_their_turn() -> None:
    odd = [*cut(17), (X[:5], Y[:5]), *cut(17), (X[:17].astype(np.float64), Y[:17]), *cut(50)]
    one_by_one = md.callbacks.LambdaCallback(on_batch_end=lambda fit: None)
    wanted = result(network(), odd, epochs=2, callbacks=[one_by_one])
    assert result(network(), odd, epochs=2) == wanted


def test_a_fast_generator_runs_in_slices() -> None:
    calls = Calls()

    def many() -> Iterator[tuple[Array, Array]]:
        for _ in range(500):
            yield X[:3], Y[:3]

    network().fit(many, callbacks=[calls], verbose=False)
    assert calls.steps[-1] == 500
    assert len(calls.steps) < 400


def test_an_error_in_a_generator_says_where() -> None:
    def broken() -> Iterator[tuple[Array, Array]]:
        yield from cut(17)[:4]
        raise LookupError("no such shard")

    calls = Calls()
    with pytest.raises(LookupError, match="no such shard") as error:
        network().fit(broken, callbacks=[calls], verbose=False)
    assert error.value.__notes__ == ["in batch 5 of epoch 1"]
    assert calls.steps[-1] == 4


def test_dicts_of_an_iterable_go_by_the_names_of_inputs() -> None:
    first, second = (md.layers.Input((7,), name=name) for name in ("first", "second"))
    out = md.layers.Dense(3)(first) + 2 * md.layers.Dense(3)(second)

    def loss(batch: Any) -> float:
        made = md.Model(inputs=[first, second], outputs=[out], loss="cross_entropy", seed=0)
        return float(made.evaluate([(batch, Y[:9])])["loss"])

    x, z = X[:9], X[9:18]
    assert loss({"second": z, "first": x}) == loss([x, z]) != loss([z, x])
    with pytest.raises(GraphError, match=r"inputs are \['first', 'second'\], got \['first'\]"):
        loss({"first": x})


@pytest.mark.parametrize(
    ("before", "wrong", "error", "text"),
    [
        (0, X[:3], DataError, r"an iterable must give"),
        (2, X[:3], DataError, r"an iterable must give \(x, y\) or \(x, y, weights\), got ndarray"),
        (2, (X[0], Y[0]), DataError, r"one number of rows above 0, got \[7, 0\]"),
        (2, (X[:3, :5], Y[:3]), ShapeError, "axis 1 must be 7, got 5"),
        (2, (X[:3] * np.nan, Y[:3]), NumericError, "placeholder input: it has NaN"),
    ],
)
def test_a_wrong_batch_is_numbered(before: int, wrong: Any, error: type, text: str) -> None:
    with pytest.raises(error, match=text) as raised:
        network().fit([(X[:3], Y[:3])] * before + [wrong], verbose=False)
    assert f"in batch {before + 1} of epoch 1" in raised.value.__notes__


# --- stopping and going on ------------------------------------------------------------------------


def endless() -> Iterator[tuple[Array, Array]]:
    while True:
        yield X[:10], Y[:10]


def sources(folder: Path) -> dict[str, dict[str, Any]]:
    x, y = mapped(folder, X, Y)
    return {"file": {"x": x, "y": y, "batch_size": 2}, "generator": {"x": endless}}


@pytest.mark.parametrize("kind", ["file", "generator"])
def test_stopping_ends_the_reader(tmp_path: Path, kind: str) -> None:
    class Stop(Calls):
        def on_batch_end(self, fit: Any) -> None:
            fit.stop("enough")

    data = sources(tmp_path)[kind]
    model = network()
    assert model.fit(**data, epochs=9, callbacks=[Stop()], verbose=False).stopped


@pytest.mark.parametrize("kind", ["file", "generator"])
def test_interrupts_end_both(tmp_path: Path, kind: str) -> None:
    class Interrupt(Calls):
        def on_batch_end(self, fit: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    data = sources(tmp_path)[kind]
    with pytest.raises(KeyboardInterrupt):
        network().fit(**data, epochs=10**6, callbacks=[Interrupt()], verbose=False)


def test_an_interrupt_does_not_wait_for_a_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader goes on once `fit` has begun to end: who waited for it first would wait in vain."""
    ending, close, in_time = threading.Event(), Ring.close, list[bool]()

    def told(self: Ring) -> None:
        ending.set()
        close(self)

    def slow() -> Iterator[tuple[Array, Array]]:
        yield X[:10], Y[:10]
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        in_time.append(ending.wait(30.0))

    monkeypatch.setattr(Ring, "close", told)
    with pytest.raises(KeyboardInterrupt):
        network().fit(slow, verbose=False)
    assert in_time == [True]


Taken = Callable[[int], Any]


@pytest.mark.parametrize("start", [0, 1, 5, 12])
def test_an_epoch_goes_on_in_the_middle(tmp_path: Path, start: int) -> None:
    x, y = mapped(tmp_path, X, Y)
    whole, single = ArraySource([X], [Y], None, seed=3), ArraySource([x], [y], None, seed=3)
    listed = IterableSource([(b.inputs[0], b.targets[0]) for b in whole.epoch(2, 17, 0)])
    wanted = [
        b"".join(a.tobytes() for a in b.inputs + b.targets) for b in whole.epoch(2, 17, start)
    ]
    assert len(wanted) == 13 - start
    for source in (whole, single, listed):
        found = []
        data = source.data(17, None)
        assert data is not None
        arrays = flat(data[0])
        with source.pieces(2, 17, start, None) as take:
            while (piece := take(3)) is not None:
                each = [b"".join(a.tobytes() for a in b.inputs + b.targets) for b in piece.each()]
                assert len(each) == piece.count <= 3
                if piece.rows is not None:  # where slices would find them
                    for k, rows in enumerate(piece.rows.reshape(piece.count, 17)):
                        assert b"".join(a[rows].tobytes() for a in arrays) == each[k]
                found += each
        assert found == wanted
