"""Hints about the next panel of B: each line once, before the tiles are done."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.llvm.gemm.blocking import default_blocking
from magmadnn.compiler.llvm.gemm.cache_hints import LINE_BYTES, Ahead, Announcing
from magmadnn.compiler.llvm.gemm.register_tile import Side, Tile, largest_tile
from magmadnn.compiler.llvm.gemm.strip import Beside, Panel, PanelOfA, Strip
from magmadnn.compiler.llvm.ir.builder import F32, Code
from magmadnn.compiler.llvm.ir.frame import Frame
from magmadnn.compiler.llvm.ir.target import Target, host, named
from magmadnn.compiler.llvm.kernel import block, load, scratch
from tests.compiler.llvm.llvm_calls import gemm

PER_LINE = LINE_BYTES // 4


@dataclass(frozen=True)
class Hints:
    """Nothing but the hints beside `tiles` tiles."""

    slots = ("x", "row", "rows", "length", "tiles")

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        row, rows, length, tiles = (frame.integer(s) for s in self.slots[1:])
        hints = Announcing(code, Ahead(frame.array("x", F32), row, rows, length), tiles)
        with code.loop(0, tiles):
            hints.write()


@pytest.mark.parametrize("tiles", [1, 2, 17, 300])
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (16, 264), (261, 16), (7, 33), (0, 16)])
def test_each_line_is_announced_once(tiles, rows, length, monkeypatch):
    """What stands in for a hint counts instead."""

    def count(self, array, index, written=True):
        assert not written
        array[index] = array[index] + 1.0

    monkeypatch.setattr(Code, "prefetch", count)
    (kernel,) = load([Hints()])
    seen = np.zeros((rows + 1, length + 5), np.float32)
    values = {"row": seen.shape[1], "rows": rows, "length": length, "tiles": tiles}
    kernel(block(Hints(), x=seen, **values), scratch(64))
    expected = np.zeros_like(seen)
    expected[:rows, :length:PER_LINE] = 1
    assert np.array_equal(seen, expected)


@dataclass(frozen=True)
class HintsBesideSteps:
    """Nothing but the hints beside the steps of `tiles` tiles of 2 x 8, `times` in each."""

    turned: int
    slots = ("x", "row", "rows", "length", "tiles", "times")

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        row, rows, length, tiles, times = (frame.integer(s) for s in self.slots[1:])
        ahead = Ahead(frame.array("x", F32), row, rows, length)
        beside = Beside(code, ahead, Tile(6, 2, 8), self.turned, tiles, times)
        with code.loop(0, tiles):
            hints = beside.of_tile()
            with code.loop(0, times) as number:
                hints.write(code, number)


@pytest.mark.parametrize("tiles", [1, 2, 3, 5, 16, 17, 40])
@pytest.mark.parametrize(("turned", "rows", "length"), [(0, 261, 16), (4, 16, 264), (4, 16, 77)])
def test_all_lines_are_announced_beside_steps(turned, rows, length, tiles, monkeypatch):
    """Few tiles announce all of them too; nothing is announced that is far from the part."""

    def count(self, array, index, written=True):
        assert not written
        array[index] = array[index] + 1.0

    monkeypatch.setattr(Code, "prefetch", count)
    made = HintsBesideSteps(turned)
    (kernel,) = load([made])
    seen = np.zeros(
        (2 * rows + 100, length + 35), np.float32
    )  # what is in memory behind the part too
    times = -(-length // 4) if turned else 66
    values = {"row": seen.shape[1], "rows": rows, "length": length, "tiles": tiles, "times": times}
    kernel(block(made, x=seen, **values), scratch(64))
    lines = np.add.reduceat(seen, np.arange(0, seen.shape[1], PER_LINE), axis=1)
    assert (lines[:rows, : -(-length // PER_LINE)] > 0).all()
    assert not seen[:rows, length + PER_LINE :].any()
    assert not seen[rows + times :].any()


@dataclass(frozen=True)
class HintsOfSums:
    """Nothing but the hints about waiting sums, before each of `tiles` tiles."""

    tile: Tile
    slots = ("x", "tiles", "resume")

    def write(self, code: Code, frame: Frame, target: Target) -> None:
        x, one, high = frame.array("x", F32), code.integer(1), self.tile.rows
        sums = Side(x, code.integer(self.tile.columns), one)
        resume, last = frame.integer("resume") > 0, one.equals(0)
        panel = Panel(one, PanelOfA(x, one, one, one), sums, sums, sums, resume, last, None)
        with code.loop(0, frame.integer("tiles") * high, high) as i:
            Strip(self.tile, 1, None, False).announce_sums(code, i, panel)


@pytest.mark.parametrize("resume", [0, 1])
def test_each_tile_announces_the_sums_of_the_next_one(resume, monkeypatch):
    def count(self, array, index, written=True):
        array[index] = array[index] + 1.0

    monkeypatch.setattr(Code, "prefetch", count)
    made, tiles = HintsOfSums(Tile(3, 2, 8)), 5
    (kernel,) = load([made])
    seen = np.zeros((tiles + 2, 3 * PER_LINE), np.float32)
    kernel(block(made, x=seen, tiles=tiles, resume=resume), scratch(64))
    expected = np.zeros_like(seen)
    expected[1 : tiles + 1, ::PER_LINE] = resume
    assert np.array_equal(seen, expected)


@pytest.mark.parametrize(("rows", "announced"), [(24, False), (31, False), (32, True), (49, True)])
def test_panels_whose_rows_crowd_caches_are_announced_for_some_rows(rows, announced, monkeypatch):
    """Where operations on a vector take two turns; elsewhere caches would lose such lines."""
    one_turn, two_turns = (named(cpu) for cpu in ("sapphirerapids", "znver4"))
    tile = largest_tile(two_turns, 4)
    made = default_blocking(two_turns, tile, 4)
    assert default_blocking(one_turn, tile, 4).crowded_hint_rows > 1 << 20

    def mark(self, array, index, written=True):
        array[index] = 7.0

    monkeypatch.setattr(Code, "prefetch", mark)
    product = Gemm("float32", blocking=replace(made, columns=1056))  # no other test has it
    a, b = np.ones((rows, 512), np.float32), np.zeros((512, 1024), np.float32)
    gemm(product, a, b, np.zeros((rows, 96), np.float32), host())
    touched = np.count_nonzero(b.any(axis=1))  # without hints their place stands still
    assert touched == 512 if announced else touched <= 2
