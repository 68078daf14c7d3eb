"""Files of workflows: what is wrong is told with its line; graph, plan, schedule and history."""

from __future__ import annotations

import itertools
import os
import random
import textwrap
from pathlib import Path

import pytest

from magmadnn.cli import main
from magmadnn.errors import DataError
from magmadnn.storage.event_log import EventLog
from magmadnn.workflow import Workflow
from magmadnn.workflow.description.checking import check
from magmadnn.workflow.description.cores import Cores, as_mask, of_mask
from magmadnn.workflow.description.dependencies import earlier, most_together, ranks_needed
from magmadnn.workflow.description.gpus import Gpus
from magmadnn.workflow.description.history import History
from magmadnn.workflow.description.planning import plan_of
from magmadnn.workflow.description.reading import Description, read_workflow
from magmadnn.workflow.ranks.deadlock import Blocked, in_words, never_answered
from magmadnn.workflow.ranks.schedule import Run, Schedule

GOOD = """
name = "coupled"
[[modules]]
name = "prepare"
command = ["true"]
[[modules]]
name = "simulate"   # a comment
command = [
    "true",
    "x",
]
ranks = 2
copies = 3
[[modules]]
name = "train"
command = ["true"]
[[groups]]
name = "loop"
modules = ["simulate", "train"]
after = ["prepare"]
iterations = 2
[tuple_space]
servers = 2
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "flow.toml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def loaded(folder: Path, text: str = GOOD) -> Description:
    return read_workflow(written(folder, text))


# Line of the fault (None: of the end of what is new), what is replaced in GOOD by what, words told.
FAULTS = [
    (None, "ranks = 2", "rank = 2", "key of modules: 'rank' is not known: did you mean 'ranks'?"),
    (None, "ranks = 2", "ranks = 0", "modules.1.ranks must be at least 1, got 0"),
    (None, "ranks = 2", 'ranks = "2"', "must be a whole number, got '2'"),
    (None, "ranks = 2", 'on_failure = "ignore"', "must be 'stop', 'skip' or 'retry'"),
    (None, '"train"]', '"trian"]', "module 'trian' is not known: did you mean 'train'?"),
    (None, '["prepare"]', '["nothing"]', "module or group 'nothing' is not known"),
    (None, "servers = 2", "servers = 0", "servers must be at least 1"),
    (None, "servers = 2", "server = 2", "key of tuple_space: 'server' is not known"),
    (
        6,
        "copies = 3",
        'copies = 3\nfunction = "a:b"',
        "give one of function, command and library, got",
    ),
    (15, 'name = "prepare"', 'name = "train"', "the name 'train' is there twice"),
    (None, '"prepare"\ncommand = ["true"]', '"prepare"\ncommand = ["./no"]', "'./no' is not there"),
    (None, '"prepare"\ncommand = ["true"]', '"prepare"\nfunction = "nomod:f"', "no module 'nomod'"),
    (None, '"prepare"\ncommand = ["true"]', '"prepare"\nlibrary = "no.so"', "'no.so' is not there"),
    (
        21,
        '"prepare"\ncommand = ["true"]',
        '"prepare"\ncommand = ["true"]\nafter = ["loop"]',
        "circle",
    ),
    (None, "ranks = 2", "gpus = 1", "simulate: needs 3 GPUs"),
    (None, "copies = 3", 'gets = ["x"]\nputs = []', None),
    (None, 'name = "coupled"', "name = coupled", "is no TOML"),
]


@pytest.mark.parametrize(("line", "old", "new", "words"), FAULTS)
def test_faults_have_their_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: int | None,
    old: str,
    new: str,
    words: str | None,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    if words is None:  # others say nothing of what they put, so that it may come from them
        check(read_workflow(path))
        return
    with pytest.raises(DataError) as caught:
        check(read_workflow(path))
    told = str(caught.value).splitlines()
    at = new.splitlines()[-1]
    lines = path.read_text().splitlines()
    line = line or next(k for k, one in enumerate(lines, 1) if at in one)
    assert any(words in one and int(one.split(":")[1]) == line for one in told), told


def test_all_faults_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = GOOD.replace("ranks = 2", "rank = 2").replace("iterations = 2", "iterations = 0")
    assert main(["workflow", "check", str(written(tmp_path, text))]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_good_file_passes_and_says_how_many_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, GOOD)
    assert main(["workflow", "check", str(path)]) == 0
    assert "mpiexec -n 10" in capsys.readouterr().out  # 3 x 2 + 1, two servers, the executive
    assert main(["workflow", "check", str(path), "-n", "9"]) == 2
    assert (
        "needs 7 ranks at once (ranks times copies), but the job has 6" in capsys.readouterr().err
    )


def test_tags_that_nobody_puts(tmp_path: Path) -> None:
    text = """
    [[modules]]
    name = "a"
    command = ["true"]
    puts = ["x/*"]
    [[modules]]
    name = "b"
    command = ["true"]
    gets = ["x/1", "y"]
    """
    with pytest.raises(
        DataError, match=r"flow\.toml:9: b: gets 'y', which no module puts: put are x/\*"
    ):
        check(loaded(tmp_path, text))


def test_schema_is_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "check", "--schema"]) == 0
    assert '"iterations"' in capsys.readouterr().out


def test_python_and_file_say_the_same(tmp_path: Path) -> None:
    made = Workflow("coupled", servers=2)
    made.add_module(["true"], "prepare")
    made.add_module(["true", "x"], "simulate", ranks=2, copies=3)
    made.add_module(["true"], "train")
    made.add_group("loop", ["simulate", "train"], after=["prepare"], iterations=2)
    path = made.save(tmp_path / "saved.toml")
    assert read_workflow(path).model == loaded(tmp_path).model


def test_the_largest_set_that_may_run_together() -> None:
    chance = random.Random(7)
    for _ in range(60):
        names = [f"m{k}" for k in range(chance.randint(1, 7))]
        parents = {n: [p for p in names[:k] if chance.random() < 0.35] for k, n in enumerate(names)}
        weights = {n: chance.randint(1, 5) for n in names}
        before = earlier(parents)
        best = max(  # by trying all sets
            sum(weights[n] for n in chosen)
            for size in range(1, len(names) + 1)
            for chosen in itertools.combinations(names, size)
            if not any(a in before[b] for a in chosen for b in chosen)
        )
        assert most_together(weights, before) == best


def test_a_schedule_goes_through_groups(tmp_path: Path) -> None:
    schedule = Schedule(loaded(tmp_path))
    order = []
    while schedule.gangs:
        gang = schedule.gangs[0]
        schedule.begun(gang)
        order.append([run.key for run in gang])
        for run in gang:
            schedule.ended(run, True)
    loop = [[f"loop.{i}/simulate.{c}" for c in range(3)] + [f"loop.{i}/train.0"] for i in range(2)]
    assert order == [["prepare.0"], *loop] and schedule.finished
    resumed = Schedule(loaded(tmp_path), ["prepare.0", *loop[0], "loop.1/simulate.1"])
    keys = [run.key for run in resumed.gangs[0]]
    assert keys == ["loop.1/simulate.0", "loop.1/simulate.2", "loop.1/train.0"]


@pytest.mark.parametrize("policy", ["stop", "skip", "retry"])
def test_failures_stop_skip_or_are_tried_again(tmp_path: Path, policy: str) -> None:
    new = f'"prepare"\non_failure = "{policy}"\nretries = 1'
    schedule = Schedule(loaded(tmp_path, GOOD.replace('"prepare"', new, 1)))
    run = schedule.gangs[0][0]
    schedule.begun([run])
    assert schedule.ended(run, False) == (policy == "retry")
    if policy == "retry":
        again = Run("prepare", 0, "prepare", 0, 1)
        assert schedule.gangs == [[again]]
        schedule.begun([again])
        assert not schedule.ended(again, False) and schedule.stopping
    assert schedule.failures == ["prepare.0"] and not schedule.gangs
    assert schedule.finished and schedule.stopping == (policy != "skip")


def test_plan_knows_ranks_and_times(tmp_path: Path) -> None:
    plan = plan_of(loaded(tmp_path), None, {"prepare": 2.0, "simulate": 3.0, "train": 1.0})
    assert plan.seconds == 8.0 and plan.job == 10
    busy = 2 + 2 * (3 * 2 * 3 + 1)
    assert plan.idle_share == pytest.approx(1 - busy / (8 * 7))
    assert "mpiexec -n 10" in str(plan) and "1 s a run" not in str(plan)


def test_plan_says_which_times_nobody_told(tmp_path: Path) -> None:
    text = """
        [[modules]]
        name = "a"
        command = ["true"]
        [[modules]]
        name = "b"
        command = ["true"]
        seconds = 7
        [[groups]]
        name = "loop"
        modules = ["a", "b"]
        until = "done"
        """
    told = plan_of(loaded(tmp_path, text))
    assert told.assumed == [
        "1 s a run of a; give seconds, or an earlier run",
        "one iteration of loop, whose end is not known",
    ]
    assert str(told).endswith("assumed: one iteration of loop, whose end is not known")
    five = plan_of(loaded(tmp_path, text + "iterations = 5\n"), None, {"a": 0.5})
    assert five.assumed == ["all 5 iterations of loop, which may end earlier"]


def test_graph_is_a_picture(tmp_path: Path) -> None:
    path = Workflow.load(written(tmp_path, GOOD)).graph(tmp_path / "g.svg")
    text = path.read_text()
    assert text.count("<rect") == 3 and "simulate" in text and text.count("marker-end") == 1


# --- the log ---------------------------------------------------------------------------------------


def begun(number: int, key: str) -> dict[str, object]:
    return {
        "event": "begun",
        "at": float(number),
        "run": number,
        "key": key,
        "module": key,
        "ranks": [2],
    }


def ended(number: int, puts: int = 0, took: dict[str, int] | None = None) -> dict[str, object]:
    record = {"event": "ended", "at": number + 0.5, "run": number, "good": True}
    return {**record, "puts": puts, "took": took or {}}


def test_what_has_put_tuples_that_are_lost_is_done_again() -> None:
    records = [
        *(begun(1, "a.0"), ended(1, puts=2)),
        *(begun(2, "b.0"), ended(2, puts=1)),
        *(begun(3, "c.0"), ended(3, took={"2": 1})),
        *(begun(4, "d.0"), ended(4, took={"1": 1})),
        *(begun(5, "e.0"), ended(5)),
        begun(6, "f.0"),
    ]
    # One of a's tuples was not taken by a run that ended: a is done again, and d that took the other.
    assert History.of(records).done() == {"b.0", "c.0", "e.0"}
    took = {**ended(6), "took": {"1": 1}}
    assert History.of([*records, took]).done() == {"a.0", "b.0", "c.0", "d.0", "e.0", "f.0"}


def test_a_replay_gives_the_same_state(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.log", "begin")
    log.add([{"event": "job", "ranks": 3, "processes": [1, 2, 3]}, begun(1, "a.0"), ended(1)])
    log.close()
    again = EventLog(tmp_path / "events.log", "begin")
    assert History.of(again.records) == History.of(list(again.records))
    assert History.of(again.records).processes == [1, 2, 3]
    again.close()


def test_a_torn_last_line_is_dropped_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(tmp_path / "events.log", "begin")
    log.add([begun(1, "a.0"), ended(1)])
    log.close()
    size = (tmp_path / "events.log").stat().st_size
    os.truncate(tmp_path / "events.log", size - 5)
    again = EventLog(tmp_path / "events.log", "begin")
    again.close()
    assert len(again.records) == 1 and "the last line is not whole" in capsys.readouterr().err


# --- deadlocks -------------------------------------------------------------------------------------


def test_a_circle_of_gets_is_named() -> None:
    blocked = [Blocked("a.0", "a", "x", "a.py:3"), Blocked("b.0", "b", "y", "b.py:7")]
    puts = {"a": ["y"], "b": ["x"], "c": ["z"]}
    stuck = never_answered(blocked, ["c"], {}, puts)
    assert stuck == blocked
    assert in_words(stuck, puts) == (
        "deadlock: a.0 waits for tag 'x' (a.py:3), which only b puts, which waits for tag 'y' (b.py:7), "
        "which only a puts, which waits for tag 'x' (a.py:3)"
    )
    assert never_answered(blocked, ["c"], {}, {**puts, "c": ["x"]}) == []
    assert never_answered(blocked, ["c"], {}, {**puts, "c": None}) == []


def test_modules_that_are_to_come_may_answer() -> None:
    blocked = [Blocked("a.0", "a", "x", "a.py:3")]
    assert never_answered(blocked, [], {"b": []}, {"a": None, "b": None}) == []
    assert never_answered(blocked, [], {"b": ["a"]}, {"a": None, "b": None}) == blocked


# --- cores -----------------------------------------------------------------------------------------


def test_cores_are_handed_out_once_and_neighbours_first() -> None:
    cores = Cores({"a": [0, 1, 2, 5, 6], "b": [0]})
    assert cores.take("a", 1) == [0]
    assert cores.take("a", 2) == [1, 2]
    assert cores.take("a", 3) == []  # too few are left: it may use all
    cores.give_back("a", [1, 2])
    cores.give_back("a", [])
    assert cores.take("a", 3) == [1, 2, 5]
    assert cores.take("b", 1) == [0] and cores.take("b", 1) == [] and cores.take("c", 1) == []
    assert of_mask(as_mask([0, 3, 130])) == [0, 3, 130]


def test_a_plan_has_cores_and_gpus(tmp_path: Path) -> None:
    text = """
    [[modules]]
    name = "a"
    command = ["true"]
    ranks = 2
    threads = 2
    gpus = 1
    [[modules]]
    name = "b"
    command = ["true"]
    threads = 3
    """
    plan = plan_of(loaded(tmp_path, text), cores=range(5), gpus=["0", "1", "2"])
    assert [run.cores for run in plan.runs] == [[[0, 1], [2, 3]], [[]]]
    assert [run.gpus for run in plan.runs] == [[["0"], ["1"]], []]
    assert "a.0         0-1 2-3 gpu 0 gpu 1" in str(plan) and "b.0         all" in str(plan)
    free = plan_of(loaded(tmp_path, "pin = false\n" + textwrap.dedent(text)), cores=range(5))
    assert all(cores == [] for run in free.runs for cores in run.cores)


def test_ranks_keep_to_the_gpus_that_they_have_seen(tmp_path: Path) -> None:
    text = """
    [[modules]]
    name = "one"
    function = "m:f"
    gpus = 1
    [[modules]]
    name = "two"
    function = "m:f"
    gpus = 2
    after = ["one"]
    [[modules]]
    name = "apart"
    command = ["true"]
    gpus = 3
    after = ["two"]
    """
    description = loaded(tmp_path, text)
    one, two, apart = description.model.modules
    assert ranks_needed(description) == 2  # never together, but in one process each its own GPUs
    places = Gpus([4, 5], ["0", "1", "2"])
    assert places.take([one]) == [([4], [["0"]])]
    assert places.take([one, two]) is None and places.free_ranks == [5]
    places.give_back([4], ["0"])
    assert places.take([two]) == [([5], [["0", "1"]])]
    assert places.take([one]) is None  # rank 4 keeps to GPU 0, which is taken
    places.give_back([5], ["0", "1"])
    assert places.take([one, two]) is None
    assert "(rank 4 GPU 0; rank 5 GPU 0,1)" in places.why_not([one, two], True)
    assert places.why_not([one, two], False) == ""
    assert places.take([apart]) == [([4], [["0", "1", "2"]])]
    places.give_back([4], ["0", "1", "2"])
    assert places.take([one]) == [([4], [["0"]])] and places.take_for(two, ["1", "2"]) is None
    assert Gpus([1], []).why_not([two], False) == "needs 2 GPUs at once, but there are 0"
    places.lose(5)
    assert (
        places.why_not([one, two], False) == "needs 2 ranks at once, but 1 were lost and 1 are left"
    )
    assert Gpus([1, 2], ["0", "1", "2"]).take([one, two]) == [([2], [["2"]]), ([1], [["0", "1"]])]
    assert [run.gpus for run in plan_of(description).runs] == [
        [["0"]],
        [["0", "1"]],
        [["0", "1", "2"]],
    ]
    with pytest.raises(DataError, match="plan: two has no place on 1 ranks for modules and 3 GPUs"):
        plan_of(description, 3, gpus=["0", "1", "2"])
