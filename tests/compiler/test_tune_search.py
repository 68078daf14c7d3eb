"""The search among all ways of a product, tiles among them, by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from magmadnn.compiler.kernels.gemm import Gemm
from magmadnn.compiler.llvm.gemm.cuts import BETWEEN, RULE, tiled, way_called
from magmadnn.compiler.llvm.gemm.cuts import ways as all_ways
from magmadnn.compiler.llvm.ir.target import host, named
from magmadnn.compiler.tune.chosen_blocks import search_all
from magmadnn.compiler.tune.file import Record, Records
from magmadnn.compiler.tune.products import product_words, sets_of
from magmadnn.compiler.tune.search import Search
from tests.compiler.tuning import SPEED, Machine, part


def choices(gemm: Gemm, values: Mapping[str, int]) -> list[str]:
    return list(all_ways(gemm, host(), values["row1"], values["k"]))


def searched(machine: Machine, seconds: float = 1e6) -> Record | None:
    gemm, values = Gemm("float32"), part()
    runs = machine.runner(gemm, values, dict.fromkeys(choices(gemm, values)))
    return Search(runs, machine.clock).until(machine.now + seconds)


def test_a_faster_tile_is_found_with_its_cuts():
    names = choices(Gemm("float32"), part())
    tile = next(n for n in names if n.endswith(BETWEEN + RULE))
    best = next(n for n in names if n.startswith(tile.removesuffix(RULE)) and n != tile)
    found = searched(Machine({tile: 0.93, best: 0.9}))
    assert found.choice == best
    assert found.microseconds[best] == pytest.approx(0.9 * found.microseconds[RULE], rel=1e-2)
    other = names[-1]  # a cut of a tile that is slow by its own rule is not tried
    slow = other.rpartition(BETWEEN)[0] + BETWEEN + RULE
    assert searched(Machine({slow: 1.2, other: 0.5})).choice == RULE


def test_a_tile_must_gain_more_than_a_cut():
    names = choices(Gemm("float32"), part())
    cut = names[1]
    tile = next(n for n in names if BETWEEN in n)
    assert searched(Machine({tile: 0.96})).choice == RULE
    assert searched(Machine({cut: 0.96})).choice == cut
    assert searched(Machine({cut: 0.96, tile: 0.955})).choice == cut  # the best, but for too little
    assert searched(Machine({cut: 0.98})).choice == RULE


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_beat_the_rule(seed):
    """Runs that take up to 10 percent longer by chance, in which nothing is really faster."""
    rng = np.random.default_rng(seed)

    class Noisy(Machine):
        def runner(self, gemm, values, ways):
            runs = super().runner(gemm, values, ways)

            def noisy(name):
                before = self.now
                runs[name]()
                self.now += (self.now - before) * 0.1 * rng.random() ** 2

            return {name: lambda name=name: noisy(name) for name in runs}

    assert searched(Noisy()).choice == RULE


def test_the_search_ends_in_time():
    once = 307 * 521 * 263 / SPEED
    machine = Machine()
    assert searched(machine, 30.5 * once) is None
    assert machine.runs == 31
    assert searched(Machine(), 1e4 * once) is not None


def test_all_products_of_a_file_are_searched(tmp_path):
    gemm, machine = Gemm("float32"), Machine()
    records = Records(host(), tmp_path)
    records.add({"no product": Record(RULE, {})})
    Machine().tuner(tmp_path).note([(gemm, part(n=n)) for n in (263, 269)])
    best = choices(gemm, part())[1]
    machine.factors = {best: 0.9}
    found = dict(search_all(records, host(), 1e6, machine.clock, machine.runner))
    assert [record.choice for record in found.values()] == [best, best]
    kept = records.read()
    assert len(kept) == 3
    assert {kept[words].choice for words in found} == {best}


def test_times_are_those_of_one_product():
    assert Record("x", {"x": 30.0, RULE: 33.0}).of_one(3) == Record("x", {"x": 10.0, RULE: 11.0})
    gemm = Gemm("float32")
    assert sets_of(gemm, part()) == 5  # of 1.4 MiB each
    assert (sets_of(gemm, part(3, 5, 7)), sets_of(gemm, part(4001, 997, 1009))) == (16, 1)


# --- tiles ----------------------------------------------------------------------------------------


def test_a_chosen_tile_is_compiled_and_its_cut_belongs_to_it(tmp_path):
    gemm, values = Gemm("float32"), part()
    every = all_ways(gemm, host(), 307, 521)
    name = [n for n in every if BETWEEN in n][-1]
    Records(host(), tmp_path).add(
        {product_words(gemm, values): Record(name, {RULE: 2.0, name: 1.0})}
    )
    tuner = Machine().tuner(tmp_path)
    assert tuner.kernel(gemm, values) == every[name].gemm != gemm
    assert tuner.cut(gemm, values) == every[name].word
    assert tuner.kernel(gemm, part(n=7919)) == gemm


def test_what_a_file_may_name_fits_the_scratch_memory():
    """A way that does not exist, of another machine or by hand, is the rule."""
    gemm = Gemm("float32")
    for name in (
        "tile 99 x 9 vectors of 32 bytes; by rule",
        "; by rule",
        "depth 60000, rows 60000",
    ):
        made = way_called(name, gemm, host(), 307, 521)
        assert (made.gemm, made.word) == (gemm, 0)


@pytest.mark.parametrize("cpu", ["znver3", "znver5", "apple-m1"])
def test_tiles_hold_their_sums_in_registers(cpu):
    """With the vectors of B and an element of A beside them; narrower vectors where they are wide."""
    target = named(cpu)
    found = [kernel.blocking.tile for kernel in tiled(Gemm("float32"), target).values()]
    for tile in found:
        assert 8 <= tile.rows * tile.width
        assert tile.rows * tile.width + tile.width + 1 <= target.vector_registers
        assert tile.lanes * 4 in (target.vector_bytes, 32)
    assert any(tile.lanes * 4 < target.vector_bytes for tile in found) == (cpu == "znver5")
