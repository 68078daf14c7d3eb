"""Methods on problems with known answers, without training: what they ask for and who goes on."""

from __future__ import annotations

import io
import math
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from magmadnn.errors import ArgumentError, UnknownNameError
from magmadnn.ops import philox
from magmadnn.search.fronts import Fronts, front, ranking
from magmadnn.search.methods.choosing import METHODS, method_of
from magmadnn.search.methods.method import Arrived, Method
from magmadnn.search.progress import SearchProgress
from magmadnn.search.spaces.space import Space, key_of
from magmadnn.search.trials.records import DONE, FAILED, Job, Outcome
from magmadnn.search.trials.schedule import Limits, Schedule
from tests.mistakes import error_of
from tests.search.problems import SPACE, S, build, table

X, Y = table()
PLANE = {"a": S.uniform(0.0, 1.0), "b": S.log_uniform(1e-3, 1e3), "c": S.choice(["p", "q", "r"])}


def far(point: Any, epochs: int = 1) -> tuple[float, ...]:
    """Best at a = 0.3, b = 10, c = "q"; less known after fewer epochs."""
    distance = (point["a"] - 0.3) ** 2 + 0.1 * math.log10(point["b"] / 10) ** 2
    return (-distance - 0.5 * (point["c"] != "q") + 0.05 * math.sin(50 * point["a"]) / epochs,)


def simulate(
    method: Method,
    score: Callable[[Any, int], tuple[float, ...]],
    trials: int,
    *,
    epochs: int = 27,
    workers: int = 1,
    seed: int = 0,
    known: Any = None,
) -> tuple[list[tuple[Job, Outcome]], int]:
    """The results of a search whose workers end in any order, and how many epochs were trained."""
    drawn, spent = random.Random(seed), 0
    schedule = Schedule(
        method,
        lambda point: method.rungs(epochs),
        Limits(trials),
        lambda outcome: outcome.values,
        known=known,
    )
    running: list[Job] = []
    while True:
        while len(running) < workers and (job := schedule.next_job()) is not None:
            running.append(job)
        if not running:
            return list(schedule.results()), spent
        job = running.pop(drawn.randrange(len(running)))
        spent += job.new_epochs
        values = score(job.point, job.epochs[-1])
        outcome = Outcome(DONE, values=values) if values else Outcome(FAILED)
        schedule.arrive(job, outcome)


def made(name: str, space: Any = None, trials: int = 60, **options: Any) -> Method:
    return method_of(name, Space.of(space or PLANE), 4, trials, options)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "grid"])
def test_the_order_in_which_workers_end_changes_nothing(name: str) -> None:
    expected, spent = simulate(made(name), far, 60)
    assert len({job.trial for job, _ in expected}) == 60
    for workers in (2, 5, 8):
        for seed in range(3):
            found, also_spent = simulate(made(name), far, 60, workers=workers, seed=seed)
            assert found == expected
            assert also_spent == spent


@pytest.mark.parametrize("name", [name for name in METHODS if name != "grid"])
def test_what_a_log_knows_is_not_done_again(name: str) -> None:
    expected, _ = simulate(made(name), far, 60)
    drawn = random.Random(1)
    for share in (0.0, 0.3, 0.8, 1.0):
        kept = [result for result in expected if drawn.random() < share]
        if name == "tpe":  # points of complete cohorts are in the log, which this has not
            kept = kept if share in (0.0, 1.0) else []
        known = {(job.trial, job.rung): (job, outcome) for job, outcome in kept}
        done: list[tuple[int, int]] = []

        def score(point: Any, epochs: int, done: Any = done) -> tuple[float, ...]:
            done.append((key_of(point), epochs))
            return far(point, epochs)

        found, _ = simulate(made(name), score, 60, workers=3, known=known)
        assert found == expected
        assert len(done) == len(expected) - len(known) == len(set(done))


@pytest.mark.parametrize("name", ["cem", "tpe"])
def test_those_that_learn_beat_chance(name: str) -> None:
    def best(method: Method) -> float:
        return max(outcome.values[0] for _, outcome in simulate(method, far, 100)[0])

    def mean_of_last(method: Method) -> float:
        results = sorted(simulate(method, far, 100)[0], key=lambda result: result[0].trial)
        return sum(outcome.values[0] for _, outcome in results[-30:]) / 30

    assert mean_of_last(made(name)) > mean_of_last(made("random")) + 0.3
    assert best(made(name)) >= best(made("random")) - 0.01


def test_cem_learns_names_numbers_and_conditions() -> None:
    space = {
        "kind": S.choice(["x", "y", "z"]),
        "rate": S.uniform(0.0, 1.0).when(kind="y"),
        "count": S.integer(1, 50),
    }

    def score(point: Any, _: int) -> tuple[float, ...]:
        return (-abs(point.get("rate", 9) - 0.8) - abs(point["count"] - 40) / 10,)

    results = simulate(made("cem", space), score, 200)[0]
    last = [job.point for job, _ in results[-40:]]
    assert sum(point["kind"] == "y" for point in last) > 30
    assert sum(abs(point["count"] - 40) < 5 for point in last) > 30
    assert sum(abs(point.get("rate", 9) - 0.8) < 0.1 for point in last) > 25


def test_halving_keeps_the_best_third() -> None:
    method = made("halving", trials=27)
    assert method.rungs(27) == (1, 3, 9, 27)
    results, spent = simulate(method, far, 27)
    for rung in range(3):
        here = {job.trial: o.values[0] for job, o in results if job.rung == rung}
        after = {job.trial for job, _ in results if job.rung == rung + 1}
        assert after == set(sorted(here, key=lambda t: -here[t])[: len(here) // 3])
    assert spent == 27 * 1 + 9 * 2 + 3 * 6 + 1 * 18


@pytest.mark.parametrize(
    ("eta", "least", "epochs", "rungs"),
    [(3, 1, 20, (1, 2, 7, 20)), (2, 3, 12, (3, 6, 12)), (4, 1, 1, (1,)), (3, 5, 4, (4,))],
)
def test_rungs(eta: int, least: int, epochs: int, rungs: tuple[int, ...]) -> None:
    assert made("asha", eta=eta, least_epochs=least).rungs(epochs) == rungs


def test_asha_promotes_by_all_that_have_arrived() -> None:
    method = made("asha", eta=2, cohort=4)
    asked = [(0.1, 0.4, 0.3, 0.2), (0.9, 0.8, 0.7, 0.6), (0.5, 0.0, 0.0, 0.35)]
    expected = [[1, 2], [4, 5, 6, 7][:2], [8]]
    # After two cohorts the best half of eight is 4, 5, 6, 7, of which none has gone on.
    expected[1] = [4, 5, 6, 7]
    # After three the best half of twelve is 4, 5, 6, 7, 8 (0.5) and 1 (0.4), which has gone on.
    for cohort, scores in enumerate(asked):
        trials = [Arrived(4 * cohort + k, {}, (score,)) for k, score in enumerate(scores)]
        assert sorted(method.promoted(cohort, 0, trials)) == expected[cohort]


def test_asha_promotes_late_what_was_passed_over() -> None:
    method = made("asha", eta=2, cohort=2)
    assert method.promoted(0, 0, [Arrived(0, {}, (0.9,)), Arrived(1, {}, (0.8,))]) == [0]
    assert method.promoted(1, 0, [Arrived(2, {}, (0.1,)), Arrived(3, {}, (0.2,))]) == [1]


def test_the_median_rule() -> None:
    method = made("median", cohort=3, interval=1)

    def at(cohort: int, rung: int, scores: dict[int, float]) -> list[int]:
        trials = [Arrived(number, {}, (score,)) for number, score in scores.items()]
        return method.promoted(cohort, rung, trials)

    assert at(0, 0, {0: 1.0, 1: 2.0, 2: 3.0}) == [0, 1, 2]  # nothing to compare with
    assert at(0, 1, {0: 3.0, 1: 4.0, 2: 5.0}) == [0, 1, 2]  # averages 2, 3, 4
    assert at(1, 0, {3: 1.9, 4: 2.0, 5: 2.1}) == [4, 5]  # median 2
    assert at(1, 1, {4: 2.9, 5: 3.0}) == [5]  # median 3
    # Averages after the second rung: 2, 3, 4, of cohort 1: 1.9 (ended before), 2.45, 2.55.
    assert at(2, 0, {6: 2.5, 7: 9.0, 8: 2.6}) == [6, 7, 8]  # median of 1, 2, 3, 1.9, 2, 2.1: 2
    assert at(2, 1, {6: 2.49, 7: 1.0, 8: 2.4}) == [6, 7, 8]  # median 2.5: best so far 2.5, 9, 2.6


def test_early_ends_save_epochs_and_find_as_good_a_trial() -> None:
    full, spent_full = simulate(made("random"), far, 60)
    best = max(outcome.values[0] for _, outcome in full)
    for name in ("asha", "halving", "median"):
        results, spent = simulate(made(name), far, 60)
        ended = [o.values[0] for job, o in results if job.epochs[-1] == 27]
        assert spent < (0.65 if name == "median" else 0.35) * spent_full
        assert max(ended) > best - 0.02


def two(point: Any, epochs: int) -> tuple[float, ...]:
    """Accuracy and time: neither is best where the other one is."""
    noise = 0.02 * math.sin(99 * point["a"]) / epochs
    return (1 - (1 - point["a"]) ** 2 + noise, -point["a"] - 0.3 * (point["c"] != "q"))


@pytest.mark.parametrize("name", ["asha", "halving", "median", "cem", "tpe"])
def test_several_objectives(name: str) -> None:
    results, spent = simulate(made(name), two, 60)
    assert simulate(made(name), two, 60, workers=4, seed=2)[0] == results
    scores = [outcome.values for job, outcome in results if job.epochs[-1] == 27]
    spread = [scores[k][0] for k in front(scores)]
    assert max(spread) - min(spread) > 0.4  # both ends of the front are there
    if name in ("asha", "halving"):
        assert spent < 0.35 * 60 * 27


def test_failed_trials_do_not_go_on() -> None:
    def score(point: Any, epochs: int) -> tuple[float, ...]:
        return () if point["a"] < 0.4 else far(point, epochs)

    for name in ("asha", "halving", "median", "cem", "tpe"):
        results, _ = simulate(made(name), score, 60)
        later = [job for job, _ in results if job.rung > 0]
        assert all(job.point["a"] >= 0.4 for job in later if job.rung > 0)
        assert len({job.trial for job, _ in results}) == 60


# --- fronts ---------------------------------------------------------------------------------------


def dominates(a: Any, b: Any) -> bool:
    return all(x >= y for x, y in zip(a, b, strict=True)) and a != b


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_front_is_what_nobody_dominates(axes: int) -> None:
    drawn = random.Random(axes)
    for _ in range(40):
        scores = [tuple(drawn.randrange(6) * 1.0 for _ in range(axes)) for _ in range(25)]
        expected = [
            k
            for k, own in enumerate(scores)
            if not any(dominates(other, own) for other in scores) and own not in scores[:k]
        ]
        assert front(scores) == expected


def test_the_ranking_goes_front_by_front() -> None:
    scores = [(1.0, 1.0), (3.0, 0.0), (0.0, 3.0), (2.0, 2.0), (0.5, 0.5), (2.1, 1.9)]
    order = ranking(scores)
    assert set(order[:4]) == {1, 2, 3, 5}
    assert set(order[:2]) == {1, 2}  # the ends have most room
    assert order[4:] == [0, 4]
    assert ranking([(1.0,), (3.0,), (3.0,), (2.0,)]) == [1, 2, 3, 0]


def ranked_by_definition(scores: list[tuple[float, ...]]) -> list[int]:
    """As `ranking` is defined: a front is what nobody dominates; of equal scores the first is better."""
    left, found = set(range(len(scores))), []
    while left:
        here = sorted(
            k
            for k in left
            if not any(dominates(scores[j], scores[k]) for j in left)
            and not any(scores[j] == scores[k] for j in left if j < k)
        )
        room = dict.fromkeys(here, 0.0)
        for axis in range(len(scores[0])):
            order = sorted(here, key=lambda k: (scores[k][axis], k))
            span = scores[order[-1]][axis] - scores[order[0]][axis]
            room[order[0]] = room[order[-1]] = math.inf
            for before, k, after in zip(order, order[1:], order[2:], strict=False):
                room[k] += (scores[after][axis] - scores[before][axis]) / (span or math.inf)
        found += sorted(here, key=lambda k: (-room[k], k))
        left -= set(here)
    return found


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_fronts_that_grow_are_those_of_all_scores(axes: int) -> None:
    drawn = random.Random(axes)
    for case in range(12):
        values = [3, 7, 1000][case % 3]
        scores = [tuple(drawn.randrange(values) * 1.0 for _ in range(axes)) for _ in range(25)]
        if case % 4 == 0:  # each front has one member, or equal ones one after the other
            scores = [(score[0],) * axes for score in scores]
        expected = ranked_by_definition(scores)
        assert ranking(scores) == expected
        fronts, there = Fronts(axes), 0
        while there < len(scores):
            more = drawn.randrange(1, 12)
            fronts.add(scores[there : there + more])
            there = len(fronts)
            best = ranked_by_definition(scores[:there])
            assert fronts.best(there).tolist() == best
            for count in (0, there // 3, there + 1):
                assert sorted(fronts.members_of_best(count).tolist()) == sorted(best[:count])
        assert best == expected


# --- speed ----------------------------------------------------------------------------------------


def test_promoting_by_fronts_does_not_sort_what_is_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as many trials have about sqrt(10) times as many fronts, and no more work than that."""
    looks: list[int] = []
    dominated = Fronts._dominated

    def counted(self: Fronts, some: Any, by: Any) -> Any:
        looks.append(1)
        return dominated(self, some, by)

    monkeypatch.setattr(Fronts, "_dominated", counted)
    drawn, counts = random.Random(3), []
    for there in (200, 2000):
        method = made("asha", cohort=9)

        def arrive(count: int, first: int, method: Method = method) -> None:
            scores = [(drawn.random(), drawn.random()) for _ in range(count)]
            method.promoted(0, 0, [Arrived(first + k, {}, s) for k, s in enumerate(scores)])

        arrive(there, 0)
        looks.clear()
        for k in range(10):
            arrive(9, there + 9 * k)
        counts.append(len(looks))
    assert counts[1] < 5 * counts[0]


def test_a_budget_of_epochs_looks_at_each_job_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    plain = Job.new_epochs.fget

    def counted(job: Job) -> int:
        looks.append(1)
        return int(plain(job))  # type: ignore[misc] # a property has its function

    monkeypatch.setattr(Job, "new_epochs", property(counted))
    method = made("halving", trials=700)
    schedule = Schedule(
        method, lambda point: method.rungs(27), Limits(700, 650), lambda outcome: outcome.values
    )
    jobs = []
    while (job := schedule.next_job()) is not None:
        jobs.append(job.trial)
        schedule.arrive(job, Outcome(DONE, values=far(job.point, job.epochs[-1])))
    assert jobs == list(range(650))  # of one epoch each
    assert [job.trial for job, _ in schedule.results()] == jobs
    assert len(looks) < 5 * 700


def test_a_budget_of_epochs_ends_in_the_logical_order() -> None:
    everything = simulate(made("asha"), far, 60)[0]
    for budget in (1, 30, 77, 150):
        left, expected = budget, []
        for job, outcome in everything:
            if left > 0:
                expected.append((job, outcome))
            left -= job.new_epochs
        method = made("asha")
        schedule = Schedule(
            method, lambda point: (1, 3, 9, 27), Limits(60, budget), lambda outcome: outcome.values
        )
        while (job := schedule.next_job()) is not None:
            schedule.arrive(job, Outcome(DONE, values=far(job.point, job.epochs[-1])))
        assert list(schedule.results()) == expected


def test_points_of_many_trials_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    method, calls = made("random"), []
    stream = philox.stream_of("search: points", 0)
    alone = [philox.uniform(4, stream, 3, start=3 * trial).tolist() for trial in range(200)]
    uniform = philox.uniform

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return uniform(*args, **options)

    monkeypatch.setattr(philox, "uniform", counted)
    assert [method.drawn(trial).tolist() for trial in range(200)] == alone
    assert len(calls) == 4
    assert method.drawn(7, 1).tolist() != method.drawn(7).tolist() == alone[7]


@pytest.mark.parametrize(
    "count", [3_000, pytest.param(100_000, marks=pytest.mark.long)], ids="{:,}".format
)
@pytest.mark.parametrize("name", ["random", "cem", "asha", "median"])
def test_asking_stays_fast_with_many_trials(name: str, count: int) -> None:
    method = made(name)
    schedule = Schedule(
        method, lambda point: method.rungs(27), Limits(count + 200), lambda outcome: outcome.values
    )
    jobs = 0
    while schedule.count < count:
        job = schedule.next_job()
        assert job is not None
        schedule.arrive(job, Outcome(DONE, values=far(job.point, job.epochs[-1])))
        jobs += 1
    times = []
    for _ in range(150):
        begun = time.thread_time()
        job = schedule.next_job()
        if job is None:
            break
        schedule.arrive(job, Outcome(DONE, values=far(job.point, job.epochs[-1])))
        times.append(time.thread_time() - begun)
    assert jobs >= count - method.cohort
    assert sum(times) / len(times) < 0.010


# --- by the door ----------------------------------------------------------------------------------


def test_a_trial_that_goes_on_has_the_bits_of_one_that_was_never_broken_off() -> None:
    options: Any = {"trials": 9, "epochs": 9, "seed": 2, "objective": "accuracy"}
    study = S.run(build, SPACE, X, Y, method="halving", **options)
    done = [t for t in study.trials if t.state == "done"]
    assert [t.state for t in study.trials].count("stopped") == 8
    assert [t.metrics["epochs"] for t in done] == [9.0]
    plain = S.run(build, SPACE, X, Y, method="random", **options)
    twin = plain.trials[done[0].number]
    assert twin.parameters_sha256 == done[0].parameters_sha256
    assert study.best == done[0]
    assert [t.point for t in plain.trials] == [t.point for t in study.trials]


def test_a_grid_has_powers_of_ten_of_a_logarithmic_range() -> None:
    """As in the call of the reference: a grid over a range of rates, ends included, float steps exact."""
    space = {"lr": S.log_uniform(3e-4, 1e-1), "units": S.integer(2, 3)}
    study = S.run(build, space, X, Y, method="grid", epochs=1)
    rates = [0.0003, 0.001, 0.01, 0.1]
    assert [t.point for t in study.trials] == [
        {"learning_rate": rate, "units": units} for rate in rates for units in (2, 3)
    ]


def test_one_trial_of_few_goes_to_the_end_of_halving() -> None:
    for objective in ("accuracy", ["accuracy", "loss"]):
        options: Any = {"trials": 5, "epochs": 9, "objective": objective}
        study = S.run(build, SPACE, X, Y, method="halving", **options)
        epochs = sorted(trial.metrics["epochs"] for trial in study.trials)
        assert epochs == [1, 1, 1, 1, 9]


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"method": "grid", "space": {"lr": S.uniform(0, 1)}}, ArgumentError, "a range of real numbers"),
        ({"method": "halving"}, ArgumentError, "give trials=81"),
        ({"method": "random", "trials": 2, "folds": 60}, ArgumentError, "search: class"),
        ({"method": "asha", "space": {"epochs": S.integer(1, 3)}}, ArgumentError, "leave epochs out"),
        ({"method": "asha", "method_options": {"eta": 1}}, ArgumentError, "eta must be an integer of"),
        ({"method": "asha", "method_options": {"eat": 3}}, UnknownNameError, "did you mean 'eta'?"),
        ({"method": "cem", "method_options": {"elite": 0}}, ArgumentError, "elite must be above 0"),
        ({"method": "grid", "method_options": {"eta": 3}}, ArgumentError, "eta=3: grid has no such option"),
        ({"method": "tpe", "method_options": {"cohort": 0}}, ArgumentError, "cohort must be an"),
        ({"method": "median", "method_options": {"interval": 0}}, ArgumentError, "interval must be"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options: Any, kind: type, words: str) -> None:
    given = {"space": SPACE, "epochs": 2, **options}
    found, text = error_of(lambda: S.run(build, given.pop("space"), X, Y, **given))
    assert issubclass(found, kind)
    assert words in text


def test_the_best_that_is_printed_is_the_study_s(capsys: Any) -> None:
    options: Any = {"trials": 12, "epochs": 6, "objective": "accuracy", "verbose": True}
    study = S.run(build, SPACE, X, Y, method="asha", **options)
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert (
        f"best accuracy {study.best.value:.5g} in trial {study.best.number} after 6 epochs," in last
    )


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_terminal_has_a_line_that_moves_and_a_file_has_not(stream: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("magmadnn.search.progress._PAUSE", 0.0)
    text = stream()
    progress = SearchProgress(["loss"], 9, output=text)
    for trial, value in enumerate([0.5, 0.7, 0.4]):
        progress.told(
            Job(trial, 0, 0, {"lr": 0.1}, (1,)), Outcome(DONE, values=(value,)), (-value,)
        )
    lines = text.getvalue()
    assert ("\r\x1b[K" in lines) == text.isatty()
    assert ("3 of 9 trials, best loss 0.4 in trial 2, 0:00" in lines) == text.isatty()
    shown = [line.rpartition("\x1b[K")[2] for line in lines.splitlines() if "lr 0.1" in line]
    assert shown == ["trial 0: loss 0.5; lr 0.1", "trial 2: loss 0.4; lr 0.1"]
    progress.ended()
    assert text.getvalue().endswith("3 of 9 trials, best loss 0.4 in trial 2, 0:00\n")


@pytest.mark.parametrize("rungs", [2, 3])
def test_a_trial_that_was_ended_early_is_the_best_only_where_none_got_further(rungs: int) -> None:
    text = io.StringIO()
    progress = SearchProgress(["accuracy"], 3, rungs, text)
    for trial, rung, value, best in [
        (0, 0, 0.9, "0.9 in trial 0"),
        (1, 0, 0.7, "0.9 in trial 0"),
        (1, 1, 0.6, "0.6 in trial 1 after 2 epochs"),
        (2, 0, 0.95, "0.6 in trial 1 after 2 epochs"),
        (2, 1, 0.8, "0.8 in trial 2 after 2 epochs"),
    ]:
        job = Job(trial, 0, rung, {}, (1, 2)[: rung + 1])
        progress.told(job, Outcome(DONE, values=(value,)), (value,))
        progress.ended()
        assert f"best accuracy {best}, " in text.getvalue().splitlines()[-1]
