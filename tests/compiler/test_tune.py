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
from magmadnn.compiler.kernels.gemm import Gemm, Loading
from magmadnn.compiler.llvm.gemm.cuts import BETWEEN, RULE, cuts
from magmadnn.compiler.llvm.gemm.cuts import ways as all_ways
from magmadnn.compiler.llvm.ir.target import host
from magmadnn.compiler.llvm.writers import scratch_bytes
from magmadnn.compiler.tune import chosen_blocks as tune
from magmadnn.compiler.tune.chosen_blocks import Tuner, limit_seconds
from magmadnn.compiler.tune.file import LIMIT, Record, Records
from magmadnn.compiler.tune.products import product_of, product_words, rotating
from magmadnn.errors import ArgumentError
from magmadnn.runtime import Executable
from tests.compiler.tuning import SPEED, Machine, part

BOTH = list(itertools.product((False, True), repeat=2))


def ways(gemm: Gemm, values: Mapping[str, int]) -> dict[str, int]:
    return cuts(gemm, host(), values["row1"], values["k"])


def test_the_fastest_way_is_chosen_and_kept(tmp_path):
    gemm, values = Gemm("float32"), part()
    best = list(ways(gemm, values))[2]
    machine = Machine({best: 0.7})
    assert machine.searched(machine.tuner(tmp_path), gemm, values) == ways(gemm, values)[best]
    assert machine.chosen == [ways(gemm, values)[best]]  # the program is told
    runs = machine.runs
    assert machine.tuner(tmp_path).cut(gemm, values) == ways(gemm, values)[best]
    assert machine.tuner(tmp_path).cut(gemm, part(n=1013)) == 0
    assert not machine.tuner(tmp_path).wants(
        machine.untried(gemm, values)
    )  # another process reads it
    assert machine.runs == runs


def test_the_rule_stays_where_nothing_is_clearly_faster(tmp_path):
    gemm, values = Gemm("float32"), part()
    machine = Machine({name: 0.98 for name in ways(gemm, values) if name != RULE})
    assert machine.searched(machine.tuner(tmp_path), gemm, values) == 0
    (record,) = Records(host(), tmp_path).read().values()
    assert record.choice == RULE
    assert set(record.microseconds) == set(ways(gemm, values))


@pytest.mark.parametrize("number", range(1, 60, 5))
def test_one_disturbed_run_decides_nothing(tmp_path, number):
    gemm, values = Gemm("float32"), part()
    best = list(ways(gemm, values))[1]
    machine = Machine({best: 0.9})
    machine.disturbed = {number}
    found = machine.searched(machine.tuner(tmp_path), gemm, values)
    assert found == ways(gemm, values)[best]


@pytest.mark.parametrize("scale", [1, 4, 16])
def test_measuring_waits_and_then_takes_its_share_of_the_time(tmp_path, scale):
    """However many products are new, and however slow they are: a run may be half a second."""
    machine = Machine(setting_up=0.01)
    tuner = Tuner(Records(host(), tmp_path), host(), clock=machine.clock)
    gemm, start = Gemm("float32"), machine.now
    untried = [machine.untried(gemm, part(307 * scale, n=n)) for n in range(300, 340)]
    once = 307 * scale * 521 * 340 / SPEED + 0.01
    while machine.now - start < 60:
        tuner.go_on(untried)
        passed = machine.now - start
        assert tuner.spent <= max(passed - tune.AFTER, 0) * tune.SHARE + once
        assert machine.runs == 0 or passed > tune.AFTER
        machine.now += 0.02  # steps
    assert tuner.spent > 0.7 * (60 - tune.AFTER) * tune.SHARE
    assert machine.runs > 1


def test_a_pause_gives_no_time_to_measure(tmp_path):
    machine = Machine()
    tuner, untried = machine.tuner(tmp_path, share=0.1), [machine.untried(Gemm("float32"), part())]
    machine.now += 1e4
    for _ in range(10):
        tuner.go_on(untried)
    assert machine.runs == 1


def test_measuring_ends_at_its_limit(tmp_path):
    once = 307 * 521 * 263 / SPEED
    machine = Machine()
    tuner, untried = (
        machine.tuner(tmp_path, 2.5 * once),
        [machine.untried(Gemm("float32"), part())],
    )
    for _ in range(100):
        tuner.go_on(untried)
        machine.now += 1
    assert machine.runs == 3
    assert tuner.spent == pytest.approx(3 * once)


def test_a_product_that_several_programs_have_is_measured_once(tmp_path):
    gemm, values = Gemm("float32"), part()
    best = list(ways(gemm, values))[1]
    machine = Machine({best: 0.8})
    tuner = machine.tuner(tmp_path)
    other = [machine.untried(gemm, values)]
    machine.searched(tuner, gemm, values)
    runs = machine.runs
    tuner.go_on(other)
    assert not other
    assert machine.chosen == [ways(gemm, values)[best]] * 2
    assert machine.runs == runs


def test_what_a_process_did_not_finish_is_left_to_the_next(tmp_path):
    gemm = Gemm("float32")
    machine = Machine()
    first = machine.tuner(tmp_path)
    machine.searched(first, gemm, part())
    short = machine.tuner(tmp_path, first.spent / 2)
    untried = [machine.untried(gemm, part(n=269))]
    for _ in range(1000):
        short.go_on(untried)
        machine.now += 1
    assert len(untried) == 1
    assert len(Records(host(), tmp_path).read()) == 1
    machine.searched(machine.tuner(tmp_path), gemm, part(n=269))
    assert len(Records(host(), tmp_path).read()) == 2


def test_a_run_that_is_interrupted_counts_as_not_there(tmp_path):
    gemm, values = Gemm("float32"), part()
    best = list(ways(gemm, values))[1]
    machine = Machine({best: 0.8})
    tuner, product = machine.tuner(tmp_path), machine.untried(gemm, values)
    prepare = product.prepare

    def interrupted():
        run = prepare()

        def stopped(word):
            run(word)
            if machine.runs in (1, 9, 23):
                raise KeyboardInterrupt

        return stopped

    product.prepare, untried, stops = interrupted, [product], 0
    while untried:
        try:
            tuner.go_on(untried)
        except KeyboardInterrupt:
            stops += 1
        machine.now += 1
    assert stops == 3
    assert machine.chosen == [ways(gemm, values)[best]]


def test_two_threads_do_not_measure_at_once(tmp_path):
    """The second one goes on with its steps."""
    gemm, machine = Gemm("float32"), Machine()
    tuner, product = machine.tuner(tmp_path), machine.untried(gemm, part())
    inside: list[int] = []

    def prepare():
        other = threading.Thread(
            target=tuner.go_on, args=([machine.untried(gemm, part(n=269))],), daemon=True
        )
        other.start()
        other.join(60)
        inside.append(other.is_alive() + machine.runs)
        return machine.untried(gemm, part()).prepare()

    product.prepare = prepare
    tuner.go_on([product])
    assert inside == [0]
    assert machine.runs == 1


def test_products_are_noted_and_measured_later(tmp_path):
    gemm, values, small = Gemm("float32"), part(), part(m=1, k=7)
    Machine().tuner(tmp_path).note([(gemm, values), (gemm, values), (gemm, small)])
    known = Records(host(), tmp_path).read()
    assert known == {product_words(gemm, values): Record(RULE, {})}
    machine = Machine()
    tuner = machine.tuner(tmp_path)
    assert tuner.cut(gemm, values) == 0
    assert tuner.wants(machine.untried(gemm, values))
    machine.searched(tuner, gemm, values)
    assert machine.runs > 0
    machine.tuner(tmp_path).note([(gemm, values)])  # does not forget what was measured
    assert next(iter(Records(host(), tmp_path).read().values())).microseconds


def test_small_and_huge_products_are_left_to_the_rule(tmp_path):
    machine = Machine()
    tuner = machine.tuner(tmp_path, 1e9)
    assert tuner.wants(machine.untried(Gemm("float32"), part()))
    assert not tuner.wants(machine.untried(Gemm("float32"), part(m=7)))
    assert not tuner.wants(machine.untried(Gemm("float32"), part(m=10**6)))
    assert not machine.tuner(tmp_path, 0.0).wants(machine.untried(Gemm("float32"), part()))


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
    machine = Machine({best: 0.5})
    tuner = machine.tuner(tmp_path / "file" / "folder")
    assert machine.searched(tuner, gemm, values) == ways(gemm, values)[best]


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

    def cut(self, gemm, values):
        return self._way(gemm, values).word

    def wants(self, product):
        return False

    def may_want(self, gemm, values):
        return False


@pytest.mark.parametrize(("ta", "tb"), BOTH)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_choice_gives_the_same_bits(monkeypatch, ta, tb, dtype):
    outputs, feeds = product_program(ta, tb, dtype)
    found, forced = [], Forced()
    monkeypatch.setattr("magmadnn.runtime.cpu.tasks.tuner", lambda: forced)
    while forced.number < forced.count:
        found.append(run(outputs, feeds))
        forced.number += 1
    assert len(found) > 12
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_calls_to_be_timed_stay_inside_their_matrices():
    gemm, values = (
        Gemm("float32", True, False),
        part(31, 37, 41) | {"lda": 33, "ldb": 43, "ldc": 47},
    )
    found = rotating(gemm, values, all_ways(gemm, host(), 31, 37))
    for call in found.values():
        call()
    assert len(found) > 12
    assert scratch_bytes(gemm, host()) > 0
