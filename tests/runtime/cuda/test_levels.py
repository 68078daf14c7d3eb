"""Which launches become one, and where those go that have a choice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

import magmadnn as md
from magmadnn.compiler.cuda.text.variant import Chip, Launch
from magmadnn.runtime.cuda.running import graphs
from magmadnn.runtime.cuda.schedule import small
from magmadnn.runtime.cuda.schedule.merging.chains import _in_order, _is_left
from magmadnn.runtime.cuda.schedule.merging.levels import levels_of, load_of
from tests.runtime.cuda.devices import distance, network, samples
from tests.runtime.cuda.emulator import emulated_device, needs_compiler

CHIP = Chip(processors=10)


class Text:
    """A kernel that wants so many registers."""

    slots = ()

    def __init__(self, registers: int = 64) -> None:
        self.registers = registers

    def text(self, name: str) -> str:
        return name


def launch(blocks: int, threads: int = 256, registers: int = 64) -> Launch:
    return Launch(Text(registers), (blocks, 1, 1), (threads, 1, 1), ())


def test_what_waits_comes_later_and_the_longest_way_has_a_level_each() -> None:
    draw = random.Random(5)
    for _ in range(40):
        count = draw.randint(1, 20)
        edges = [tuple(k for k in range(n) if draw.random() < 0.2) for n in range(count)]
        launches = [launch(draw.randint(1, 99)) for _ in range(count)]
        levels = levels_of(launches, edges, CHIP)
        longest = [0] * count
        for number, after in enumerate(edges):
            longest[number] = 1 + max((longest[k] for k in after), default=0)
            assert all(levels[k] < levels[number] for k in after)
        assert max(levels) + 1 == max(longest)


def test_a_launch_goes_where_it_adds_no_round() -> None:
    full, some = launch(40), launch(20)  # four blocks share a multiprocessor
    edges = [(), (0,), (1,), (0,), ()]
    assert levels_of([full, full, some, launch(20), launch(1)], edges, CHIP) == [0, 1, 2, 2, 0]
    assert levels_of([full, full, some, launch(19), launch(1)], edges, CHIP) == [0, 1, 2, 2, 2]
    assert levels_of([full, some, full, launch(20), launch(1)], edges, CHIP) == [0, 1, 2, 1, 0]


def test_a_launch_goes_where_its_registers_fit() -> None:
    # A block of 1024 threads has 64 registers for each of them
    edges = [(), (0,), (1,), (0,)]
    wide, product = launch(1, 1024), launch(5, 64, 80)
    assert load_of([wide, product]).rounds(CHIP) == 1.25
    assert load_of([wide, launch(5, 64, 64)]).rounds(CHIP) == 1
    assert levels_of([launch(1), wide, launch(1), product], edges, CHIP) == [0, 1, 2, 2]
    assert levels_of([launch(1), wide, launch(1), launch(5, 64, 64)], edges, CHIP) == [0, 1, 2, 1]


def test_what_has_a_level_narrows_the_choice_of_others() -> None:
    # A way of four beside one of three, whose middle is the largest and goes last
    edges = [(), (0,), (1,), (2,), (), (4,), (5,)]
    ways = [launch(40), launch(40), launch(4), launch(40), launch(1), launch(30), launch(1)]
    assert levels_of(ways, edges, CHIP, sharing=True) == [0, 1, 2, 3, 0, 2, 3]


def test_the_earliest_of_equals() -> None:
    assert levels_of([launch(1)] * 4, [(), (0,), (1,), ()], CHIP) == [0, 1, 2, 0]


def test_a_round_is_what_registers_threads_and_shared_memory_allow() -> None:
    assert load_of([launch(1, 256, 64)]).resident(CHIP) == 4
    assert load_of([launch(1, 256, 64), launch(1, 256, 200)]).resident(CHIP) == 1
    assert load_of([launch(1, 1024, 16)]).resident(CHIP) == 2
    wide = Launch(Text(16), (1, 1, 1), (32, 1, 1), (), 50 << 10)
    assert load_of([wide]).resident(CHIP) == 4
    assert load_of([launch(60)]).rounds(CHIP) == 1.5


def test_units_come_after_all_that_they_wait_for() -> None:
    edges = [(), (0,), (0,), (1,), (2, 3)]
    assert _in_order([(0,), (2,), (4,), (1, 3)], edges) == [(0,), (1, 3), (2,), (4,)]
    assert not _is_left((1, 3), edges)
    assert _is_left((0, 4), edges)  # others come between
    late = [(), (0,), (1,), (1,)]
    assert _in_order([(2,), (0, 1, 3)], late) == [(0, 1, 3), (2,)]


@needs_compiler
def test_weight_gradients_that_share_a_round_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(24 * 3, 97, 5)
    found = list[bool]()

    def share(groups: Any, launches: Sequence[Launch], chip: Chip) -> bool:
        found.append(wanted and any(graphs.outer_of(one) is not None for one in launches))
        return found[-1]

    monkeypatch.setattr(graphs, "_share", share)
    monkeypatch.setattr(small, "MOST_OPERATIONS", 0)
    looks = md.callbacks.LambdaCallback(on_batch_end=lambda fit: None)
    models = []
    with emulated_device():
        for wanted, callbacks in ((True, []), (True, [looks]), (False, [])):
            found.clear()
            rate = md.optim.SGD(0.3)
            model = network((97, 90, 95, 5), rate, device="cuda", precision="tf32")
            model.fit(x, y, batch_size=24, shuffle=False, verbose=0, callbacks=callbacks)
            assert any(found) is wanted
            models.append(model)
        here = network((97, 90, 95, 5), md.optim.SGD(0.3))
        here.fit(x, y, batch_size=24, shuffle=False, verbose=0)
        assert distance(models[0], models[1]) == distance(models[0], models[2]) == 0
        assert distance(models[0], here) < 1e-4
