"""Slices and epochs that begin before those in front have ended: the same bits, and the same end."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import device_engine
from magmadnn.errors import DataError, NumericError, OutOfMemoryError
from magmadnn.runtime.cuda.data import checked_cache as watched
from magmadnn.runtime.cuda.data.pending import PendingSlice
from magmadnn.runtime.cuda.running.sliced import slices
from magmadnn.runtime.cuda.running.sliced.slices import CudaSlices
from magmadnn.training.loop import fit as training
from magmadnn.training.loop import pieces
from tests.runtime.cuda.devices import DEVICES, distance, network, on, samples
from tests.runtime.cuda.emulator import needs_compiler

SIZES = (13, 7, 5)
ROWS, BATCH = 203, 8


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of three batches; all arrays are worth being watched."""
    monkeypatch.setattr(md.optim.StepSlices, "longest", 3)
    monkeypatch.setattr(training, "_SLICE_SECONDS", 1e6)
    monkeypatch.setattr(watched, "LEAST_BYTES", 1)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What slices do."""
    found: list[str] = []
    for name in ("launch", "finish", "_go_back"):
        kept = getattr(CudaSlices, name)

        def told(self: Any, *given: Any, name: str = name, kept: Any = kept) -> Any:
            found.append(name)
            return kept(self, *given)

        monkeypatch.setattr(CudaSlices, name, told)
    return found


def one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces.PendingChunk, "launch", lambda piece: False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"batch_size": 29},
        {"validation_split": 0.2},
        pytest.param({"shuffle": False}, marks=pytest.mark.long),
        {"class_weight": {k: 1.0 + k for k in range(5)}},
        pytest.param({"batch_size": lambda epoch: 8 + epoch}, marks=pytest.mark.long),
        pytest.param({"streams": 2000}, marks=pytest.mark.long),  # one after the other
    ],
)
def test_bits_are_those_of_one_after_the_other(
    device: str, way: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = samples(ROWS, *SIZES[::2])
    with on(device):
        models = [network(SIZES, md.optim.Adam(0.01), device="cuda") for _ in range(2)]
        found: list[Any] = []
        given = {"batch_size": BATCH, "epochs": 3, "verbose": 0, **settings}
        md.memory.limit_data(given.pop("streams", None))
        try:
            for model, ahead in zip(models, (True, False), strict=True):
                with monkeypatch.context() as patch:
                    if not ahead:
                        one_after_the_other(patch)
                    rows = [model.fit(x, y, **given).rows for _ in range(3)]
                found.append([[r["loss"] for r in one] for one in rows])
        finally:
            md.memory.limit_data(None)
        assert found[0] == found[1]
        assert distance(*models) == 0


class Reads(md.callbacks.Callback):
    """May look at the model at the end of an epoch."""


class ReadsToo(md.callbacks.CSVLogger):
    """Made of one that does not."""


@needs_compiler
@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, 2),
        ({"verbose": "auto"}, 2),
        ({"validation_split": 0.2}, 2),
        ({"callbacks": [Reads()]}, 1),
        ({"callbacks": [ReadsToo]}, 1),
        ({"callbacks": [md.callbacks.CSVLogger]}, 2),
    ],
)
def test_what_nobody_looks_at_is_not_waited_for(
    settings: dict[str, Any], most: int, events: list[str], tmp_path: Any
) -> None:
    x, y = samples(ROWS, *SIZES[::2])
    given = {"batch_size": BATCH, "epochs": 2, "verbose": 0, **settings}
    if callbacks := given.get("callbacks"):
        given["callbacks"] = [
            c(tmp_path / "a.csv") if isinstance(c, type) else c for c in callbacks
        ]
    with on("emulated"):
        model = network(SIZES, md.optim.SGD(0.1), device="cuda")
        model.fit(x, y, **given)
        events.clear()
        model.fit(x, y, **given)
    flying_now = np.cumsum([{"launch": 1, "finish": -1}[event] for event in events])
    assert flying_now.max() == most
    whole = len(x) * (4 if "validation_split" in settings else 5) // 5 // BATCH
    launched = 2 * -(-whole // 3)
    assert events.count("launch") == events.count("finish") == launched
    # between epochs there is a partial batch, which is no slice
    waited = 2 if most == 2 else launched
    assert (flying_now == 0).sum() == waited


@needs_compiler
@pytest.mark.parametrize("validation", [None, 1])
def test_an_epoch_begins_before_the_results_of_the_last_are_there(
    validation: int | None, events: list[str]
) -> None:
    x, y = samples(24 * BATCH, *SIZES[::2])
    with on("emulated"):
        model = network(SIZES, md.optim.SGD(0.1), device="cuda")
        more = {} if validation is None else {"validation_data": (x[:9], y[:9])}
        model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, **more)
    flying_now = np.cumsum([{"launch": 1, "finish": -1}[event] for event in events])
    assert (flying_now == 0).sum() == (1 if validation is None else 3)
    assert events.count("launch") == 24


@needs_compiler
@pytest.mark.parametrize("bad", [0, 40, 190])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_is_wrong_is_told_as_before_and_what_came_behind_it_has_no_effect(
    bad: int, is_streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overflow in the network, which looking at the data does not show."""
    x, y = samples(ROWS, *SIZES[::2])
    x[bad] = 3e38
    found = []
    with on("emulated"):
        md.memory.limit_data(2000 if is_streamed else None)
        try:
            for ahead in (True, False):
                model = network(SIZES, md.optim.SGD(0.1), device="cuda", activation="relu")
                with monkeypatch.context() as patch:
                    if not ahead:
                        one_after_the_other(patch)
                    with pytest.raises(NumericError) as error:
                        model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
                found.append((str(error.value), model.values()))
        finally:
            md.memory.limit_data(None)
    assert found[0][0] == found[1][0]
    for name, value in found[0][1].items():
        np.testing.assert_array_equal(value, found[1][1][name])


@needs_compiler
def test_arrays_that_changed_are_trained_on_as_they_are(events: list[str]) -> None:
    x, y = samples(24 * BATCH, *SIZES[::2])
    with on("emulated"):
        model, other = (network(SIZES, md.optim.SGD(0.1), device="cuda") for _ in range(2))
        for call in range(4):
            if call == 3:
                x[5] *= -1
            events.clear()
            model.fit(x, y, batch_size=BATCH, verbose=0)
            assert ("_go_back" in events) == (call == 3)
            other.fit(x.copy(), y.copy(), batch_size=BATCH, verbose=0)
        assert distance(model, other) == 0


@needs_compiler
@pytest.mark.parametrize("after", range(6))
def test_an_interrupt_leaves_whole_slices(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were waited for and the one that is, as without a second one; then `fit` works again."""
    x, y = samples(24 * BATCH, *SIZES[::2])
    kept = slices.PendingSlice.found

    def interrupted(self: Any) -> Any:
        nonlocal left
        found, left = kept(self), left - 1
        if left < 0:
            raise KeyboardInterrupt
        return found

    with on("emulated"):
        models = [network(SIZES, md.optim.SGD(0.1), device="cuda") for _ in range(2)]
        for model, ahead in zip(models, (True, False), strict=True):
            with monkeypatch.context() as patch:
                left = after
                patch.setattr(slices.PendingSlice, "found", interrupted)
                if not ahead:
                    one_after_the_other(patch)
                with pytest.raises(KeyboardInterrupt):
                    model.fit(x, y, batch_size=BATCH, verbose=0)
        assert distance(*models) == 0
        losses = [model.fit(x, y, batch_size=BATCH, verbose=0).rows[0]["loss"] for model in models]
        assert losses[0] == losses[1]
        assert distance(*models) == 0


@needs_compiler
def test_without_room_for_two_they_run_one_after_the_other(
    events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = samples(24 * BATCH, *SIZES[::2])

    def full(self: CudaSlices) -> Any:
        if self._flights:
            raise OutOfMemoryError("full")
        return kept(self)

    kept = CudaSlices.free_side
    with on("emulated"):
        model, other = (network(SIZES, md.optim.SGD(0.1), device="cuda") for _ in range(2))
        other.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
        monkeypatch.setattr(CudaSlices, "free_side", full)
        model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
        assert distance(model, other) == 0


@needs_compiler
def test_a_label_that_no_class_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(24 * BATCH, *SIZES[::2])
    y[100] = 5
    with on("emulated"):
        model = network(SIZES, md.optim.SGD(0.1), device="cuda")
        before = model.values()
        with pytest.raises(DataError, match="row 100 has the label 5"):
            model.fit(x, y, batch_size=BATCH, verbose=0)
        for name, value in model.values().items():
            np.testing.assert_array_equal(value, before[name])


class Rests(md.callbacks.Callback):
    """Neither looks at anything nor stops; takes a while behind each epoch."""

    stands_aside = True

    def on_epoch_end(self, fit: Any) -> None:
        time.sleep(0.05)


@needs_compiler
def test_no_epoch_takes_less_time_than_passed_since_the_one_before(events: list[str]) -> None:
    """Batches that were computed meanwhile took time all the same."""
    x, y = samples(24 * BATCH, *SIZES[::2])
    with on("emulated"):
        model = network(SIZES, md.optim.SGD(0.1), device="cuda")
        begun = time.perf_counter()
        given = {"batch_size": BATCH, "epochs": 4, "verbose": 0, "callbacks": [Rests()]}
        rows = model.fit(x, y, **given).rows
        passed = time.perf_counter() - begun
    flying_now = np.cumsum([{"launch": 1, "finish": -1}[event] for event in events])
    assert (flying_now == 0).sum() == 1  # each epoch began before the last had ended
    assert all(row["seconds"] >= 0.05 for row in rows[1:])
    assert sum(row["seconds"] for row in rows) <= passed


@needs_compiler
def test_epochs_take_as_long_as_the_device_where_the_host_comes_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host sees the ends of two slices, of an epoch each, at once: no epoch claims next to no time."""
    monkeypatch.setattr(md.optim.StepSlices, "longest", 1000)
    found = PendingSlice.found

    def late(flight: PendingSlice) -> Any:
        device_engine(0).wait()
        return found(flight)

    monkeypatch.setattr(PendingSlice, "found", late)
    with on("emulated"):
        x, y = samples(ROWS - ROWS % BATCH, *SIZES[::2])
        model = network(SIZES, md.optim.SGD(0.1), device="cuda")
        rows = model.fit(x, y, batch_size=BATCH, epochs=8, verbose=False).rows
    seconds = sorted(row["seconds"] for row in rows[1:])
    assert seconds[0] > seconds[-1] / 10
