"""Tuning: counted with a clock of the test's own; the file; the same bits whatever is chosen."""

from __future__ import annotations

import itertools
import json
import threading
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pytest

import magmadnn as md
from magmadnn.compiler import tune
from magmadnn.compiler.emit.llvm.gemm_cuts import BETWEEN, RULE, cuts
from magmadnn.compiler.emit.llvm.gemm_cuts import ways as all_ways
from magmadnn.compiler.emit.llvm.target import host
from magmadnn.compiler.emit.llvm.writers import scratch_bytes
from magmadnn.compiler.kernels.gemm import Gemm, Loading
from magmadnn.compiler.tune import Tuner, limit_seconds, search_all
from magmadnn.compiler.tune_file import LIMIT, Record, Records
from magmadnn.compiler.tune_products import prepared, product_of, product_words, rotating
from magmadnn.errors import ArgumentError
from magmadnn.executor import Executable
from tests.compiler.tuning import SPEED, Machine, part

BOTH = list(itertools.product((False, True), repeat=2))


def ways(gemm: Gemm, values: Mapping[str, int]) -> dict[str, int]:
    return cuts(gemm, host(), values["row1"], values["k"])


def test_the_fastest_way_is_chosen_and_kept(tmp_path):
    gemm, values = Gemm("float32"), part()
    best = list(ways(gemm, values))[2]
    machine = Machine({best: 0.7})
    assert machine.tuner(tmp_path).cut(gemm, values) == ways(gemm, values)[best]
    runs = machine.runs
    assert machine.tuner(tmp_path).cut(gemm, values) == ways(gemm, values)[best]
    assert machine.runs == runs  # another process reads what the first one measured
    other = part(n=1013)
    assert machine.tuner(tmp_path).cut(gemm, other, measure=False) == 0
    assert machine.runs == runs


def test_the_rule_stays_where_nothing_is_clearly_faster(tmp_path):
    gemm, values = Gemm("float32"), part()
    machine = Machine({name: 0.98 for name in ways(gemm, values) if name != RULE})
    assert machine.tuner(tmp_path).cut(gemm, values) == 0
    assert next(iter(Records(host(), tmp_path).read().values())).choice == RULE


@pytest.mark.parametrize("number", range(1, 12))
def test_one_disturbed_run_decides_nothing(tmp_path, number):
    gemm, values = Gemm("float32"), part()
    best = list(ways(gemm, values))[1]
    machine = Machine({best: 0.9})
    machine.disturbed = {number}
    assert machine.tuner(tmp_path).cut(gemm, values) == ways(gemm, values)[best]


def test_many_cold_shapes_delay_the_first_step_by_less_than_a_second(tmp_path):
    """With the time that a process is given, however many products are new and however slow a run is."""
    for scale in (1, 4, 16):
        machine = Machine(setting_up=0.09)  # a kernel is compiled
        tuner = machine.tuner(tmp_path / str(scale), tune.SECONDS)
        start = machine.now
        for n in range(300, 340):
            assert tuner.cut(Gemm("float32"), part(307 * scale, n=n)) == 0
        assert machine.now - start == pytest.approx(tuner.spent)
        assert tuner.spent < 0.5


def test_no_run_begins_that_might_not_end_in_time(tmp_path):
    values = part()
    once = 307 * 521 * 263 / SPEED
    for seconds in np.arange(0.3, 60, 1.7) * once:
        machine = Machine()
        tuner = machine.tuner(tmp_path / str(seconds), float(seconds))
        tuner.cut(Gemm("float32"), values)
        assert tuner.spent <= seconds * (1 + 1e-9)
        assert machine.runs == 0 or machine.runs * once <= seconds * (1 + 1e-9)


def test_what_there_was_no_time_for_is_measured_by_the_next_process(tmp_path):
    gemm = Gemm("float32")
    runs = 1 + 5 * len(ways(gemm, part()))
    seconds = 1.5 * runs * 307 * 521 * 263 / SPEED  # enough for one product, not for two
    for done in range(1, 4):
        tuner = Machine().tuner(tmp_path, seconds)
        for n in (263, 269, 271):
            tuner.cut(gemm, part(n=n))
        assert len(Records(host(), tmp_path).read()) == done


def test_products_are_noted_and_a_choice_among_cuts_is_measured_later(tmp_path):
    """By a process that compiles; the next one measures them, and only them."""
    gemm, values, small = Gemm("float32"), part(), part(m=1, k=7)
    Machine().tuner(tmp_path).note([(gemm, values), (gemm, values), (gemm, small)])
    known = Records(host(), tmp_path).read()
    assert known == {product_words(gemm, values): Record(RULE, {})}
    machine = Machine()
    assert machine.tuner(tmp_path).cut(gemm, values, measure=False) == 0
    assert machine.runs == 0
    machine.tuner(tmp_path).cut(gemm, values)
    assert machine.runs > 0
    machine.tuner(tmp_path).note([(gemm, values)])  # does not forget what was measured
    assert next(iter(Records(host(), tmp_path).read().values())).microseconds


def test_small_scaled_and_huge_products_are_left_to_the_rule(tmp_path):
    machine = Machine()
    tuner = machine.tuner(tmp_path, 1e9)
    tuner.cut(Gemm("float32"), part(m=7))
    tuner.cut(Gemm("float32", scaled=True), part())
    tuner.cut(Gemm("float32"), part(m=10**6))
    Machine().tuner(tmp_path, 0.0).cut(Gemm("float32"), part())
    assert machine.runs == 0


def test_names_say_what_the_product_is():
    words = product_words(Gemm("float64", True, False), part(5, 7, 3))
    assert words == "float64 5 x 7 x 3 TN, rows 7 3 3 apart"


HALF = Loading("float32", "bfloat16")


@pytest.mark.parametrize("transposes", BOTH)
@pytest.mark.parametrize(
    "loads", [{}, {"load_a": HALF}, {"load_a": HALF, "load_b": Loading.widening("float16")}]
)
def test_words_say_all_that_is_needed_to_measure(transposes, loads):
    gemm = Gemm("float32", *transposes, **loads)
    ta, tb = transposes
    values = part(11, 7, 5) | {"lda": 17 if ta else 13, "ldb": 19 if tb else 23, "ldc": 29}
    assert product_of(product_words(gemm, values)) == (gemm, values)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "a product",
        "int32 5 x 7 x 3 NN, rows 7 3 3 apart",
        "float32 int8 as int8, float32 as float32, 5 x 7 x 3 NN, rows 7 3 3 apart",
        "float32 5 x 7 x 3 NN, rows 6 3 3 apart",  # rows of A lie over each other
        "float32 5 x 7 x 3 NT, rows 7 3 3 apart",
        "float32 5 x 7 x 3 NN, rows 7 3 2 apart",
    ],
)
def test_what_is_no_product_is_left_alone(words):
    assert product_of(words) is None


# --- the file -------------------------------------------------------------------------------------


def test_the_file_is_readable_json(tmp_path):
    records = Records(host(), tmp_path)
    records.add({"a": Record("x", {"x": 1.5, RULE: 2.0}), "b": Record(RULE, {})})
    found = json.loads(records.path.read_text())
    assert found["products"]["a"] == {"choice": "x", "microseconds": {"x": 1.5, RULE: 2.0}}
    assert host().cpu in found["machine"]
    assert len(records.path.read_text().splitlines()) == 8
    assert records.clear() == 2
    assert records.read() == {}
    assert records.clear() == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 99, "products": {"a": {"choice": "x", "microseconds": {}}}}',
        '{"format": 1, "products": [1]}',
        '{"format": 1}',
        "[" * 100_000,
        "\x00\xff",
    ],
)
def test_a_damaged_file_counts_as_empty_and_is_replaced(tmp_path, text):
    records = Records(host(), tmp_path)
    records.path.write_bytes(text.encode("latin-1"))
    assert records.read() == {}
    records.add({"b": Record(RULE, {RULE: 1.0})})
    assert set(records.read()) == {"b"}


def test_damaged_entries_are_skipped(tmp_path):
    records = Records(host(), tmp_path)
    bad = [3, {}, {"choice": 1, "microseconds": {}}, {"choice": "x", "microseconds": {"x": "1"}}]
    bad += [{"choice": "x", "microseconds": {"x": float("nan")}}]
    good = {"choice": "x", "microseconds": {"x": 1}}
    products = {**{f"k{i}": entry for i, entry in enumerate(bad)}, "good": good}
    records.path.write_text(json.dumps({"format": 1, "products": products}))
    assert set(records.read()) == {"good"}


def test_an_unknown_choice_means_the_rule(tmp_path):
    gemm, values = Gemm("float32"), part()
    key = product_words(gemm, values)
    Records(host(), tmp_path).add({key: Record("a way of another version", {})})
    machine = Machine()
    assert machine.tuner(tmp_path).cut(gemm, values) == 0
    assert machine.runs == 0


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    def write(number: int) -> None:
        for i in range(12):
            Records(host(), tmp_path).add({f"{number}-{i}": Record(RULE, {RULE: 1.0})})

    writers = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(Records(host(), tmp_path).read()) == 72
    assert not list(tmp_path.glob("*.part"))


def test_the_file_does_not_grow_without_end(tmp_path):
    records = Records(host(), tmp_path)
    records.add({f"{i}": Record(RULE, {}) for i in range(LIMIT)})
    records.add({"new": Record(RULE, {})})
    found = records.read()
    assert len(found) == LIMIT
    assert "new" in found
    assert "0" not in found


def test_a_folder_that_cannot_be_written_costs_only_the_measurement(tmp_path):
    (tmp_path / "file").write_text("")
    gemm, values = Gemm("float32"), part()
    best = list(ways(gemm, values))[1]
    tuner = Machine({best: 0.5}).tuner(tmp_path / "file" / "folder")
    assert tuner.cut(gemm, values) == ways(gemm, values)[best]


def test_the_limit_is_read_from_the_environment(monkeypatch):
    monkeypatch.delenv("MAGMADNN_TUNE_SECONDS", raising=False)
    assert limit_seconds() == tune.SECONDS
    monkeypatch.setenv("MAGMADNN_TUNE_SECONDS", "2.5")
    assert limit_seconds() == 2.5
    for wrong in ("-1", "much", "nan", "inf"):
        monkeypatch.setenv("MAGMADNN_TUNE_SECONDS", wrong)
        with pytest.raises(ArgumentError, match=f"MAGMADNN_TUNE_SECONDS .* got '{wrong}'"):
            limit_seconds()


# --- in programs ----------------------------------------------------------------------------------


def product_program(ta: bool, tb: bool, dtype: str = "float32"):
    rng = np.random.default_rng(5)
    m, k, n = 131, 797, 97
    a = rng.standard_normal((k, m) if ta else (m, k)).astype(dtype)
    b = rng.standard_normal((n, k) if tb else (k, n)).astype(dtype)
    x, y = md.placeholder("a", a.shape, dtype), md.placeholder("b", b.shape, dtype)
    out = md.ops.tanh((x.T if ta else x) @ (y.T if tb else y) * 0.1)
    return [out.node], {x.node: a, y.node: b}


def run(outputs, feeds):
    (found,) = Executable(outputs, [], executor="native").run(feeds)
    return found


class Forced:
    """A tuner that gives a way of a number: all of the largest tile, and three of each other."""

    def __init__(self) -> None:
        self.number, self.count = 0, 1

    def note(self, met):
        list(met)

    def _way(self, gemm, values):
        rows, k = values["row1"] - values["row0"], values["k"]
        names = defaultdict(list)
        for name, way in all_ways(gemm, host(), rows, k).items():
            names[name.rpartition(BETWEEN)[0]].append(way)
        found = names.pop("") + [way for each in names.values() for way in (*each[:2], each[-1])]
        self.count = len(found)
        return found[self.number]

    def kernel(self, gemm, values):
        return self._way(gemm, values).gemm

    def cut(self, gemm, values, measure):
        return self._way(gemm, values).word


@pytest.mark.parametrize(("ta", "tb"), BOTH)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_choice_gives_the_same_bits(monkeypatch, ta, tb, dtype):
    outputs, feeds = product_program(ta, tb, dtype)
    found, forced = [], Forced()
    monkeypatch.setattr("magmadnn.executor.tasks.tuner", lambda: forced)
    while forced.number < forced.count:
        found.append(run(outputs, feeds))
        forced.number += 1
    assert len(found) > 12
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("runs", [prepared, rotating])
def test_calls_to_be_timed_stay_inside_their_matrices(runs):
    gemm, values = (
        Gemm("float32", True, False),
        part(31, 37, 41) | {"lda": 33, "ldb": 43, "ldc": 47},
    )
    found = runs(gemm, values, all_ways(gemm, host(), 31, 37))
    for call in found.values():
        call()
    assert len(found) > 12
    assert scratch_bytes(gemm, host()) > 0


def test_an_empty_and_a_full_file_give_the_same_bits(monkeypatch, tmp_path):
    """By rule, measuring, with what was measured, and with a tile as a search chooses it.

    The second program finds its kernels compiled.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    outputs, feeds = product_program(True, False)
    found = []

    def program(seconds: float) -> float:
        tuner = Tuner(Records(host()), host(), seconds)
        monkeypatch.setattr("magmadnn.executor.tasks.tuner", lambda: tuner)
        found.append(run(outputs, feeds))
        return tuner.spent

    assert [program(seconds) > 0 for seconds in (0.0, 20.0, 20.0)] == [False, True, False]
    records = Records(host())
    assert len(records.read()) >= 1
    for words, record in search_all(records, host(), 60.0):
        assert record is not None and len(record.microseconds) >= 8
        tile = next(name for name in record.microseconds if BETWEEN in name)
        records.add({words: Record(tile, record.microseconds)})
    assert program(20.0) == 0
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_a_process_that_compiles_measures_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = []

    class Asked(Forced):
        def cut(self, gemm, values, measure):
            asked.append(measure)
            return 0

    monkeypatch.setattr("magmadnn.executor.tasks.tuner", Asked)
    x, y = md.placeholder("x", (7, 11)), md.placeholder("y", (11, 5))
    out = md.ops.exp((x @ y) * 0.12345)  # a kernel that no other test compiles
    feeds = {x.node: np.ones((7, 11), "f4"), y.node: np.ones((11, 5), "f4")}
    run([out.node], feeds)
    run([out.node], feeds)
    assert asked[0] is False
    assert asked[-1] is True
