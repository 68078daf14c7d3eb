"""Copies that are made while steps run: the same bits as with copies that were there before."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.backends.cuda import device_engine, device_memory
from magmadnn.errors import DataError, OutOfMemoryError
from magmadnn.runtime.cuda.data import (
    checked_cache as watched,
)
from magmadnn.runtime.cuda.data import (
    gathering_upload as relay,
)
from magmadnn.runtime.cuda.data import (
    overlapped_upload as coming,
)
from magmadnn.runtime.cuda.data.block import Block
from magmadnn.runtime.cuda.schedule import small
from tests.runtime.cuda.devices import DEVICES, distance, network, on, samples
from tests.runtime.cuda.emulated_lanes import EmulatedLane
from tests.runtime.cuda.emulator import needs_compiler
from tests.runtime.cuda.sanitized_rows import put

SIZES = (61, 7, 5)
ROWS = 203


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows that come while steps run, in pieces of a few; all arrays are worth it."""
    monkeypatch.setattr(watched, "LEAST_BYTES", 1)
    monkeypatch.setattr(coming, "LEAST_BYTES", 1)
    monkeypatch.setattr(relay, "_PART_BYTES", 5000)
    found: list[int] = []
    kept = relay.RowCopies.run_pieces

    def sent(self: Any, orders: Any, pieces: Any) -> None:
        found.extend(pieces[:-1, 1].tolist())
        kept(self, orders, pieces)

    monkeypatch.setattr(relay.RowCopies, "run_pieces", sent)
    return found


def fitted(model: Any, x: Any, y: Any, **settings: Any) -> list[float]:
    rows = model.fit(x, y, **{"batch_size": 8, "verbose": 0, **settings}).rows
    return [row["loss"] for row in rows]


def learned(model: Any, x: Any, y: Any) -> None:
    """So that a slice is an epoch from now on."""
    fitted(model, x, y)
    model._step[2].batch_seconds = dict.fromkeys(model._step[2].batch_seconds, 1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kernels", "is_fixed", "settings"),
    [
        ("graphs", False, {}),
        ("graphs", True, {"epochs": 2}),
        ("graphs", False, {"validation_split": 0.2}),
        ("one kernel", False, {"batch_size": 29}),
        ("one kernel", True, {"shuffle": False}),
    ],
)
def test_bits_are_those_of_copies_made_before(
    device: str,
    kernels: str,
    is_fixed: bool,
    settings: dict[str, Any],
    brought: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kernels == "graphs":
        monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    x, y = samples(ROWS, *SIZES[::2])
    with on(device):
        models = [network(SIZES, md.optim.Adam(0.01), device="cuda") for _ in range(2)]
        found = []
        for model, least in zip(models, (1, 1 << 40), strict=True):
            monkeypatch.setattr(coming, "LEAST_BYTES", least)
            learned(model, x, y)
            brought.clear()
            a, b = x[::-1].copy(), y[::-1].copy()
            a.flags.writeable = b.flags.writeable = not is_fixed
            found.append([fitted(model, a, b, **settings) for _ in range(2)])
            assert bool(brought) == (least == 1)
        assert found[0] == found[1]
        assert distance(*models) == 0


@needs_compiler
def test_a_piece_is_one_copy_and_one_launch_and_what_sends_is_kept(
    brought: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for owner, name in (
        (EmulatedLane, "copy"),
        (EmulatedLane, "launch"),
        (relay.GatheringUploader, "__init__"),
    ):
        kept = getattr(owner, name)

        def told(self: Any, *given: Any, name: str = name, kept: Any = kept) -> Any:
            done.append(name)
            return kept(self, *given)

        monkeypatch.setattr(owner, name, told)
    kept_run = relay.GatheringUploader.run

    def run(self: Any, stops: Any, *given: Any) -> None:
        assert stops[0].before == (self.behind if len(done) < 2 else ())  # not the rows left over
        kept_run(self, stops, *given)

    monkeypatch.setattr(relay.GatheringUploader, "run", run)
    monkeypatch.setattr(relay, "_spare", [])
    x, y = samples(ROWS, *SIZES[::2])
    with on("emulated"):
        model = network(SIZES, md.optim.SGD(0.3), device="cuda")
        learned(model, x, y)
        given = [(x[::-1].copy(), y[::-1].copy()) for _ in range(2)]
        known = [weakref.ref(a) for a, _ in given]
        for call, (a, b) in enumerate(given):
            done.clear()
            brought.clear()
            model._step[2].batch_seconds = {8: 1e-5}
            fitted(model, a, b)
            assert done == ["__init__"][call:] + ["copy", "launch"] * len(brought)
            assert sum(brought) == ROWS
        del given, a, b
        gc.collect()
        assert [one() for one in known] == [None, None]


@needs_compiler
def test_rows_come_after_all_that_was_launched_before() -> None:
    x, _ = samples(ROWS, *SIZES[::2])
    with on("emulated"):
        memory, engine = device_memory(0), device_engine(0)
        place, old = Block(x.nbytes, 0), Block(x.nbytes, 0)
        sending = relay.GatheringUploader([x], 0)
        engine.copy(place.address, old.address, x.nbytes)
        sending.places = [place.address]
        sending.run(
            [relay.WaitPoint(ROWS, sending.behind)],
            [x],
            np.arange(ROWS)[::-1],
            np.arange(ROWS)[::-1],
        )
        sending.wait()
        engine.wait()
        found = np.empty_like(x)
        memory.copy_to_host(found.reshape(-1).view(np.uint8), place.address)
    np.testing.assert_array_equal(found, x)


def full(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for rows beside the copy."""

    def refuse(self: Any, *_: Any) -> None:
        raise OutOfMemoryError("full")

    monkeypatch.setattr(relay, "_spare", [])
    monkeypatch.setattr(relay.GatheringUploader, "__init__", refuse)


def columns_first(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are no bytes that follow each other."""


@needs_compiler
@pytest.mark.parametrize("way", [full, columns_first])
def test_what_cannot_come_is_copied_before(
    way: Callable[..., None], brought: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = samples(ROWS, *SIZES[::2])
    with on("emulated"):
        models = [network(SIZES, md.optim.SGD(0.3), device="cuda") for _ in range(2)]
        for model in models:
            learned(model, x, y)
        a, b = x[::-1].copy(), y[::-1].copy()
        wanted = fitted(models[0], a, b)
        way(models[1], monkeypatch)
        if way is columns_first:
            a = np.asfortranarray(a)
        assert fitted(models[1], a, b) == wanted


@needs_compiler
def test_an_error_is_raised_and_the_next_call_copies_again(
    brought: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = samples(ROWS, *SIZES[::2])
    with on("emulated"):
        model, other = (network(SIZES, md.optim.SGD(0.3), device="cuda") for _ in range(2))
        for one in (model, other):
            learned(one, x, y)
        a, b = x[::-1].copy(), y[::-1].copy()
        before = model.values()
        with monkeypatch.context() as patch:
            patch.setattr(relay.RowCopies, "run_pieces", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                fitted(model, a, b)
        model.assign(before)
        assert fitted(model, a, b) == fitted(other, a, b)


@needs_compiler
@pytest.mark.parametrize(("value", "label"), [(np.inf, 0), (0.5, 5)])
def test_what_is_wrong_is_told_and_nothing_is_changed(
    value: float, label: int, brought: list[int]
) -> None:
    x, y = samples(ROWS, *SIZES[::2])
    message = "row 21, column 7 is inf" if label < 5 else "y: row 21 has the label 5"
    with on("emulated"):
        model = network(SIZES, md.optim.SGD(0.3), device="cuda")
        learned(model, x, y)
        a, b = x.copy(), y.copy()
        a[21, 7], b[21] = value, label
        before = model.values()
        for _ in range(2):
            with pytest.raises(DataError, match=message):
                fitted(model, a, b)
        assert all((model.values()[name] == array).all() for name, array in before.items())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("nbytes", [(1,), (2, 12), (6, 24, 1), (3136, 8)])
def test_rows_are_put_where_they_belong(device: str, nbytes: tuple[int, ...]) -> None:
    with on(device):
        put(nbytes)
