"""Data larger than the room on a device: streamed through it, with the bits of data that lies there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import ArgumentError, NumericError
from magmadnn.memory import Kind, room
from magmadnn.memory.pool import POOLS
from magmadnn.runtime.cpu.row_copies import RowCopies
from magmadnn.runtime.cuda.data import gathering_upload as relay
from magmadnn.runtime.cuda.data import upload as uploading
from magmadnn.runtime.cuda.data.data import Data
from magmadnn.runtime.cuda.data.upload import upload
from magmadnn.runtime.cuda.schedule import small
from tests.runtime.cuda.devices import DEVICES, distance, network, on, samples
from tests.runtime.cuda.emulated_lanes import EmulatedLane
from tests.runtime.cuda.emulator import HostMemory, needs_compiler
from tests.runtime.cuda.test_foreign import counted

SIZES = (13, 17, 5)
ROWS = 1003


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Room for a tenth of the data, and rings of a few batches."""
    monkeypatch.setattr(room, "_RING_BYTES", 8000)
    md.memory.limit_data(6000)
    yield
    md.memory.limit_data(None)


def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each piece that native threads bring to a device while others are used."""
    found: list[int] = []
    kept = RowCopies.run_pieces

    def run(self: RowCopies, orders: Any, pieces: Any) -> None:
        found.extend(pieces[:-1, 1].tolist())
        kept(self, orders, pieces)

    monkeypatch.setattr(RowCopies, "run_pieces", run)
    return found


def renewed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each piece that is brought to a device while others are used."""
    found: list[int] = []
    kept = Data.renew

    def renew(self: Data, arrays: Any, first: int, last: int) -> None:
        found.append(last - first)
        kept(self, arrays, first, last)

    monkeypatch.setattr(Data, "renew", renew)
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shuffle", [True, pytest.param(False, marks=pytest.mark.long)])
def test_arrays_stream_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, little: None, device: str, shuffle: bool
) -> None:
    x, y = samples(ROWS, 13, 5)
    settings = {"batch_size": 16, "epochs": 3, "shuffle": shuffle, "verbose": 0}
    with on(device):
        whole, pieces = (network(SIZES, md.optim.SGD(0.3), device="cuda") for _ in range(2))
        md.memory.limit_data(None)
        rows = passed(monkeypatch)
        wanted = whole.fit(x, y, **settings).rows
        assert not rows
        md.memory.limit_data(6000)
        found = pieces.fit(x, y, **settings).rows
        assert sum(rows) == 3 * (ROWS // 16) * 16
        assert len(rows) > 30
        assert [r["loss"] for r in found] == [r["loss"] for r in wanted]
        assert distance(whole, pieces) == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kernels", "part_bytes"), [("graphs", 20 << 20), ("one kernel", 500), ("one kernel", 20 << 20)]
)
def test_slices_of_any_length_pass_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, little: None, device: str, kernels: str, part_bytes: int
) -> None:
    if kernels == "graphs":
        monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    monkeypatch.setattr(relay, "_PART_BYTES", part_bytes)
    monkeypatch.setattr(relay, "_spare", [])
    monkeypatch.setattr(room, "_RING_BYTES", 15_500)  # two graphs of 8 steps
    x, y = samples(509, 13, 5)
    settings = {"batch_size": 16, "epochs": 2, "verbose": 0}
    with on(device):
        models = [network(SIZES, md.optim.SGD(0.3), device="cuda") for _ in range(2)]
        found: list[Any] = []
        for model, limit in zip(models, (None, 15_500), strict=True):
            md.memory.limit_data(limit)
            rows = passed(monkeypatch)
            for seconds in (None, 1e-5, 4e-3, 6e-3):  # of a step: slices are an epoch, 20 and 13
                if seconds is not None:
                    model._step[2].batch_seconds[16] = seconds
                found.append([r["loss"] for r in model.fit(x, y, **settings).rows])
            assert sum(rows) == (0 if limit is None else 8 * 31 * 16)
        assert found[:4] == found[4:]
        assert distance(*models) == 0


@needs_compiler
def test_what_fails_while_rows_pass_is_raised_and_the_next_call_is_right(
    monkeypatch: pytest.MonkeyPatch, little: None
) -> None:
    x, y = samples(ROWS, 13, 5)
    with on("emulated"):
        model, other = (network(SIZES, md.optim.SGD(0.3), device="cuda") for _ in range(2))
        before = model.values()
        with monkeypatch.context() as patch:
            patch.setattr(EmulatedLane, "copy", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                model.fit(x, y, batch_size=16, verbose=0)
        model.assign(before)
        for one in (model, other):
            one.fit(x, y, batch_size=16, verbose=0)
        assert distance(model, other) == 0


@needs_compiler
def test_numbers_that_become_infinite_are_told_as_of_data_that_lies_there(
    monkeypatch: pytest.MonkeyPatch, little: None
) -> None:
    x, y = samples(ROWS, 13, 5)
    with on("emulated"):
        models = [
            network(SIZES, md.optim.SGD(1e30), activation="relu", device="cuda") for _ in range(2)
        ]
        told = []
        for model, limit in zip(models, (None, 6000), strict=True):
            md.memory.limit_data(limit)
            with pytest.raises(NumericError) as error:
                model.fit(x, y, batch_size=16, epochs=3, verbose=0)
            told.append(str(error.value))
        assert told[0] == told[1]
        assert distance(*models) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_copies_that_are_kept_count(
    monkeypatch: pytest.MonkeyPatch, little: None, device: str
) -> None:
    x, y = (np.array(a) for a in samples(ROWS, 13, 5))
    x.flags.writeable = y.flags.writeable = False
    with on(device):
        model = network(SIZES, md.optim.SGD(0.3), device="cuda")
        md.memory.limit_data(None)
        rows = passed(monkeypatch)
        for _ in range(2):
            model.fit(x, y, batch_size=16, verbose=0)
        assert not rows
        md.memory.limit_data(6000)
        model.fit(x, y, batch_size=16, verbose=0)
        assert sum(rows) == (ROWS // 16) * 16


@pytest.mark.parametrize("device", DEVICES)
def test_files_and_iterables_stream(
    monkeypatch: pytest.MonkeyPatch, little: None, tmp_path: Path, device: str
) -> None:
    x, y = samples(ROWS, 13, 5)
    np.save(tmp_path / "x.npy", x)
    with on(device):
        here, there = (network(SIZES, md.optim.SGD(0.3), device="cuda") for _ in range(2))
        rows = renewed(monkeypatch)
        there.fit(np.load(tmp_path / "x.npy", mmap_mode="r"), y, batch_size=16, verbose=0)
        assert sum(rows) == (ROWS // 16) * 16
        batches = [(x[k : k + 16], y[k : k + 16]) for k in range(0, ROWS, 16)]
        there.fit(batches, verbose=0)
        assert sum(rows) == 2 * (ROWS // 16) * 16
        md.memory.limit_data(None)
        here.fit(x, y, batch_size=16, verbose=0)
        here.fit(x, y, batch_size=16, shuffle=False, verbose=0)
        assert distance(here, there) == 0


def test_the_room_is_a_size() -> None:
    for wrong in (-1, 2.5, True, "1 GiB"):
        with pytest.raises(ArgumentError, match="limit_data: nbytes must be an integer"):
            md.memory.limit_data(wrong)  # type: ignore[arg-type]  # that is the mistake


@pytest.mark.parametrize(
    "values",
    [
        np.arange(5000, dtype=np.float64).reshape(500, 10),
        np.arange(5000, dtype=">f4").reshape(500, 10),
        np.arange(20_000, dtype=np.int32).reshape(1000, 20)[::2, ::-2],
        np.arange(7, dtype=np.uint8),
        np.zeros((0, 3)),
    ],
)
def test_uploads_are_in_order(monkeypatch: pytest.MonkeyPatch, values: np.ndarray) -> None:
    monkeypatch.setattr(uploading, "_CHUNK_BYTES", 900)
    memory = HostMemory(1 << 20)
    address = memory.allocate(max(values.nbytes, 1))
    upload(memory, address, values)
    found = np.empty(values.shape, values.dtype.newbyteorder("="))
    if found.size:
        memory.copy_to_host(found.reshape(-1).view(np.uint8), address)
    np.testing.assert_array_equal(found, values)


def test_a_ring_leaves_room_for_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 192 << 20

    class Filled:
        def free_and_total(self) -> tuple[int, int]:
            return free, 1 << 37

    monkeypatch.setattr(room, "device_memory", lambda device: Filled())
    kept = POOLS[Kind.DEVICE].report().pooled  # which others left, and which makes way
    assert room.Room(0).ring_bytes <= (free + kept) // 2
    md.memory.limit_data(100 << 20)
    try:
        assert room.Room(0).ring_bytes == 100 << 20
    finally:
        md.memory.limit_data(None)


@needs_compiler
def test_what_will_be_streamed_is_not_brought_before(
    monkeypatch: pytest.MonkeyPatch, little: None
) -> None:
    x, y = samples(ROWS, 13, 5)
    with on("emulated"):
        brought, sent = counted(monkeypatch), passed(monkeypatch)
        network(SIZES, md.optim.SGD(0.3), device="cuda").fit(x, y, batch_size=16, verbose=0)
        rows = (ROWS // 16) * 16
        assert sum(sent) == rows
        assert sum(brought) < 0.2 * rows * (13 * 4 + 8)  # where rows lie, and a last, smaller batch
