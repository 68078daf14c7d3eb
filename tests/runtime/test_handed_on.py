"""What ran a model that is gone runs the next one that is built alike: same bits, nothing made again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.errors import NumericError
from magmadnn.runtime import handed_on
from magmadnn.runtime.cpu.native import Instance
from magmadnn.runtime.cpu.sliced.slices import Slices
from magmadnn.runtime.cuda.running.relocation import Relocation
from magmadnn.runtime.cuda.running.sliced.slices import CudaSlices
from magmadnn.runtime.cuda.schedule.launches import Items
from magmadnn.runtime.variables import tensor_of
from tests.runtime.cuda.devices import samples
from tests.runtime.handing import (
    PLACES,
    ROWS,
    SIZES,
    alone,
    model,
    nothing_waits,
    numbers,
    same,
    trained,
)


@pytest.fixture(params=PLACES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where models are trained."""
    with nothing_waits(request.param) as found:
        yield found


def test_bits_are_those_of_models_that_are_left_nothing(device: str) -> None:
    wanted = [alone(device, seed) for seed in range(5)]
    handed_on._waiting.clear()
    assert not same(wanted[0], wanted[1])
    assert [same(numbers(trained(device, seed)), wanted[seed]) for seed in range(5)] == [True] * 5


def test_batches_that_are_read_where_they_lie(device: str) -> None:
    x, y = samples(ROWS, 784, SIZES[2])  # the last batch, of 23 rows, has 72 KB

    def found(seed: int) -> dict[str, np.ndarray]:
        layers = [md.layers.Input((784,)), md.layers.Dense(7), md.layers.Dense(SIZES[2])]
        made = md.Model(layers, loss="cross_entropy", optimizer="adam", device=device, seed=seed)
        made.fit(x, y, batch_size=30, epochs=2, verbose=0)
        return numbers(made)

    wanted = []
    for seed in range(4):
        handed_on._waiting.clear()
        wanted.append(found(seed))
    assert [same(found(seed), wanted[seed]) for seed in range(4)] == [True] * 4
    assert bool(handed_on._waiting) is (device == "cpu")  # on a GPU steps are several launches


def test_nothing_is_made_again(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        trained(device, seed)
    made: list[type] = []
    for kind in (CudaSlices, Items, Slices, Instance):
        begins = kind.__init__
        monkeypatch.setattr(
            kind,
            "__init__",
            lambda self, *given, begins=begins, kind=kind, **more: (
                made.append(kind),
                begins(self, *given, **more),
            )[1],
        )
    trained(device, 3)
    assert not made
    assert len(handed_on._waiting) == 1


def test_variables_that_lie_elsewhere_are_found(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = alone(device, 4)
    handed_on._waiting.clear()
    for seed in range(3):
        trained(device, seed)
    (held,) = handed_on._waiting
    between = Relocation.between
    moved: list[Relocation | None] = []

    def noted(before: Any, after: Any) -> Relocation | None:
        moved.append(between(before, after))
        return moved[-1]

    monkeypatch.setattr(Relocation, "between", noted)
    kind = "DEVICE" if device == "cuda" else "HOST"
    blocks = [md.Tensor.holding(np.ones(143, np.float32), kind) for _ in range(5)]
    assert same(numbers(trained(device, 4)), wanted)
    assert bool(moved) is (device == "cuda")
    assert None not in moved
    assert list(handed_on._waiting) == [held]
    del blocks


def test_models_that_live_have_each_their_own(device: str) -> None:
    x, y = samples(ROWS, SIZES[0], SIZES[2])
    wanted = [alone(device, seed) for seed in range(4)]
    handed_on._waiting.clear()
    several = [model(device, seed) for seed in range(4)]
    for _ in range(2):
        for one in several:
            one.fit(x, y, batch_size=8, epochs=1, verbose=0)
    assert all(same(numbers(one), wanted[k]) for k, one in enumerate(several))
    del one, several
    assert 3 <= len(handed_on._waiting) <= 4  # the very first may have been made otherwise


def test_nothing_of_a_model_that_is_gone_is_kept_alive(device: str) -> None:
    held: list[weakref.ref[Any]] = []
    for seed in range(5):  # whichever was the first to be built alike
        one = trained(device, seed)
        held += [weakref.ref(tensor_of(node)) for node in one.variables()]
    assert len(held) == 5 * 4
    del one
    gc.collect()  # layers and their parameters know each other
    assert all(ref() is None for ref in held)
    assert handed_on._waiting
    assert md.memory.trim() > 0
    assert not handed_on._waiting


def test_what_a_failed_fit_leaves_is_right_for_the_next(device: str) -> None:
    wanted = alone(device, 5)
    handed_on._waiting.clear()
    x, y = samples(ROWS, SIZES[0], SIZES[2])
    for seed in range(3):
        trained(device, seed)
    x[7] = 3e38  # sums of products are infinite
    failing = model(device, 6)
    with pytest.raises(NumericError):
        failing.fit(x, y, batch_size=8, epochs=2, verbose=0)
    del failing
    gc.collect()  # the error's traceback held it
    assert same(numbers(trained(device, 5)), wanted)


def test_a_fit_goes_on_with_what_another_left(device: str) -> None:
    x, y = samples(ROWS, SIZES[0], SIZES[2])

    def twice(seed: int) -> dict[str, np.ndarray]:
        one = trained(device, seed)
        one.fit(x, y, batch_size=8, epochs=1, verbose=0)
        one.predict(x)
        one.fit(x, y, batch_size=16, epochs=1, verbose=0)
        return numbers(one)

    wanted = []
    for seed in range(4):
        handed_on._waiting.clear()
        wanted.append(twice(seed))
    handed_on._waiting.clear()
    assert all(same(twice(seed), wanted[seed]) for seed in range(4))


def test_what_may_move() -> None:
    before = [(4096, 4100), (8192, 8292), (4096, 4100)]
    move = Relocation.between(before, [(256, 260), (1 << 20, (1 << 20) + 100), (256, 260)])
    assert move is not None
    assert [move(a) for a in (4096, 4099, 4100, 8191, 8192, 8291, 8292, 7)] == [
        256, 259, 4100, 8191, 1 << 20, (1 << 20) + 99, 8292, 7,
    ]  # fmt: skip
    # another alignment; two of what was one; one of what were two; parts of each other
    assert Relocation.between(before[:1], [(4112, 4116)]) is None
    assert Relocation.between(before, [(256, 260), (8192, 8292), (512, 516)]) is None
    assert Relocation.between(before[:2], [(256, 356), (256, 356)]) is None
    assert Relocation.between(before[:2], [(8448, 8452), (8192, 8292 + 512)]) is None
