"""Sets of models that several ranks train, or workers: the bits of one process, and all of it everywhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import magmadnn as md
from magmadnn.comm import simulate
from magmadnn.errors import ArgumentError, CommunicationError, DataError
from magmadnn.parallel import named_arrays
from magmadnn.training.loop.fit import Fit
from magmadnn.training.many import asked
from magmadnn.training.many.running import room
from magmadnn.training.many.sharing import by_ranks
from magmadnn.training.many.sharing.results import owners_of
from tests.training.many_networks import digests, network

ROOT = Path(__file__).resolve().parents[2]
DRAW = np.random.default_rng(6)
X = DRAW.normal(size=(45, 6)).astype(np.float32)
Y = DRAW.integers(0, 3, 45)
GIVEN: dict[str, Any] = {"batch_size": 8, "epochs": [4, 1, 6, 3, 2], "verbose": False}
TIMES = ("seconds", "samples_per_second")
SCRIPT = """
import os
import sys

import numpy as np

import magmadnn as md
from tests.training.many_networks import digests, network

draw = np.random.default_rng(6)
x, y = draw.normal(size=(45, 6)).astype("f"), draw.integers(0, 3, 45)
"""


@pytest.fixture(autouse=True)
def package_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """By the processes that are started here."""
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{before}" if before else str(ROOT))
    yield


def launched(ranks: int, folder: Path, program: str) -> Any:
    pytest.importorskip("mpi4py")
    (folder / "script.py").write_text(SCRIPT + program)
    command = [sys.executable, "-m", "magmadnn", "launch", "-n", str(ranks), "script.py"]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=folder)


def told(histories: list[md.History]) -> list[Any]:
    """All about trainings but times."""
    rows = [[{k: v for k, v in row.items() if k not in TIMES} for row in h] for h in histories]
    return [(own, h.stopped, h.failed) for own, h in zip(rows, histories, strict=True)]


def trained(comm: Any, **more: Any) -> tuple[list[str], list[Any]]:
    models = [network(k) for k in range(5)]
    histories = md.fit_many(models, X, Y, parallel=comm, **GIVEN | more)
    return digests(models), told(histories)


def test_who_trains_which_depends_on_what_is_asked_for_only() -> None:
    assert owners_of([1.0] * 5, 2) == [0, 1, 0, 1, 0]
    assert owners_of([1.0, 9.0, 2.0, 3.0], 2) == [1, 0, 1, 1]
    assert owners_of([0.0, 0.0], 3) == [0, 1]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_ranks_share_out_models_and_all_have_all_of_them(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"validation_split": 0.2, "callbacks": [md.callbacks.EarlyStopping(patience=0)]}
    expected = trained(False, **more)
    assert any(stopped for _, stopped, _ in expected[1])
    found: list[int] = []
    run_all = asked.run_all

    def counted(members: Any, *rest: Any) -> None:
        found.extend(member.number for member in members)
        run_all(members, *rest)

    monkeypatch.setattr(asked, "run_all", counted)
    for one in simulate(ranks, lambda comm: trained(comm, **more)):
        assert one == expected
    assert sorted(found) == [0, 1, 2, 3, 4]  # each once


@pytest.mark.parametrize("piece", [1, 2500, 1 << 24])
def test_a_further_fit_goes_on_alike_on_all_ranks(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_arrays, "MOST_BYTES", piece)  # bytes of a message

    def run(comm: Any) -> tuple[list[str], list[Any]]:
        models = [network(k) for k in range(4)]
        for epochs in (2, 3):
            histories = md.fit_many(models, X, Y, epochs=epochs, verbose=False, parallel=comm)
        models[1].fit(X, Y, epochs=1, verbose=False, parallel=False)
        return digests(models), told(histories)

    expected = run(False)
    assert simulate(3, run) == [expected] * 3


def test_a_model_whose_loss_is_not_finite_is_left_out_on_all_ranks() -> None:
    def run(comm: Any) -> list[Any]:
        models = [network(k) for k in range(4)]
        models[1].optimizer = md.optim.SGD(1e30)
        return told(md.fit_many(models, X, Y, epochs=3, verbose=False, parallel=comm))

    expected = run(False)
    assert [failed for _, _, failed in expected] == [False, True, False, False]
    assert simulate(2, run) == [expected] * 2


class Idle(md.callbacks.Callback):
    """Looks at each epoch."""

    def on_epoch_end(self, fit: Fit) -> None:
        pass


class Breaking(md.callbacks.Callback):
    """Raises at the end of an epoch."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_epoch_end(self, fit: Fit) -> None:
        if fit.epoch == 2:
            raise self.error


@pytest.mark.parametrize("kind", [DataError, KeyError, KeyboardInterrupt])
def test_an_error_ends_the_call_on_all_ranks(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_ranks, "_PAUSE", 0.0)

    def run(comm: Any) -> tuple[str, int]:
        models = [network(k) for k in range(3)]
        try:
            md.fit_many(
                models, X, Y, epochs=[3000, 4, 2999], verbose=False, parallel=comm,
                callbacks=lambda k: [Breaking(kind("so"))] if k == 1 else [Idle()],
            )  # fmt: skip
        except kind as raised:
            notes = getattr(raised, "__notes__", ())
            return f"{raised} {notes}", max(model.epochs_done for model in models)
        return "went on", 0

    (there, others), (here, own) = sorted(simulate(2, run), key=lambda one: "rank 1" not in one[0])
    assert "models[1]" in here
    assert "models[1]" in there
    assert "rank 1 of 2" in there
    assert "rank 1 of 2" not in here
    assert max(own, others) < 2999  # both left off


class OwnError(Exception):
    """Of the user's own."""


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OwnError("so"), CommunicationError, r"rank 1 of 2: so \(OwnError\)"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "so"), CommunicationError, r"\(UnicodeDecodeError\)"),
        (SystemExit(3), SystemExit, "3"),
    ],
)  # fmt: skip
def test_errors_that_cannot_be_made_again_are_named(
    error: BaseException, kind: type[BaseException], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_ranks, "_PAUSE", 0.0)

    def run(comm: Any) -> BaseException:
        models = [network(k) for k in range(2)]
        with pytest.raises(BaseException) as raised:
            md.fit_many(
                models, X, Y, epochs=4, verbose=False, parallel=comm,
                callbacks=lambda k: [Breaking(error)] if k == 1 else [Idle()],
            )  # fmt: skip
        return raised.value

    others, own = simulate(2, run)
    assert own is error
    assert type(others) is kind and re.search(words, str(others))


def test_ranks_that_were_asked_for_different_things_are_told() -> None:
    def seeds(comm: Any) -> None:
        md.fit_many([network(0), network(1 + comm.rank)], X, Y, verbose=False, parallel=comm)

    def data(comm: Any) -> None:
        md.fit_many([network(0)], X + comm.rank, Y, verbose=False, parallel=comm)

    def lengths(comm: Any) -> None:
        md.fit_many([network(0)], X, Y, epochs=1 + comm.rank, verbose=False, parallel=comm)

    for run, words in ((seeds, r"of models\[1\]"), (data, "differ in x:"), (lengths, "in epochs")):
        with pytest.raises(DataError, match=f"(?s)fit_many: ranks differ.*{words}|{words}"):
            simulate(2, run)


def test_ranks_of_one_machine_plan_on_equal_parts_of_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda: 1000)
    ranks: Any = SimpleNamespace(rank=2, exchange=lambda own: [["elsewhere", []], own, own])
    with room.sharing_memory(ranks):
        assert room._free(None) == 500
    assert room._free(None) == 1000


def test_ways_of_one_training_are_refused() -> None:
    with pytest.raises(ArgumentError, match="each rank trains whole models"):
        md.fit_many([network(0)], X, Y, parallel=md.parallel.DataParallel())  # type: ignore[arg-type]


def test_checkpoints_go_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    def run(comm: Any, epochs: int) -> list[str]:
        models = [network(k) for k in range(4)]
        md.fit_many(
            models, X, Y, epochs=epochs, verbose=False, parallel=comm,
            callbacks=lambda k: [md.callbacks.Checkpoint(tmp_path / f"{k}", signals=False)],
        )  # fmt: skip
        return digests(models)

    expected = [network(k) for k in range(4)]
    md.fit_many(expected, X, Y, epochs=5, verbose=False)
    simulate(3, run, 2)
    assert simulate(2, run, 5) == [digests(expected)] * 2


def test_launched_processes_share_out_models(tmp_path: Path) -> None:
    program = """
found = md.cross_validate(network_of := lambda seed: network(seed), x, y, folds=5, epochs=2)
models = [network(k) for k in range(4)]
histories = md.fit_many(models, x, y, epochs=3, batch_size=8, verbose=False)
print("<" + "".join(digests(found.models) + digests(models)) + ">")
print("[" + repr([h["loss"] for h in histories]) + repr(found.rows) + "]")
"""
    models = [network(k) for k in range(4)]
    folds = md.cross_validate(lambda seed: network(seed), X, Y, folds=5, epochs=2, verbose=False)
    histories = md.fit_many(models, X, Y, epochs=3, batch_size=8, verbose=False)
    expected = "<" + "".join(digests(folds.models) + digests(models)) + ">"
    numbers = "[" + repr([h["loss"] for h in histories]) + repr(folds.rows) + "]"
    for ranks in (2, 3):
        found = launched(ranks, tmp_path, program)
        assert found.returncode == 0, found.stderr
        assert found.stdout.count(expected) == ranks
        assert found.stdout.count(numbers) == ranks
        assert found.stdout.count("models in 1 group") == 1  # rank 0 alone prints


@pytest.mark.long
def test_an_error_ends_a_job(tmp_path: Path) -> None:
    program = """
class Breaking(md.callbacks.Callback):
    def on_epoch_end(self, fit):
        raise KeyError("power")

models = [network(k) for k in range(4)]
try:
    md.fit_many(models, x, y, epochs=[20000, 1, 20000, 20000], verbose=False,
        callbacks=lambda k: [Breaking()] if k == 1 else [md.callbacks.EarlyStopping(patience=10**9)])
except KeyError as error:
    print("<", error, error.__notes__[0], max(m.epochs_done for m in models) < 20000, ">")
"""
    found = launched(2, tmp_path, program)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("in the training of models[1]") == 2
    assert found.stdout.count("of 2: ") == 1
    assert found.stdout.count("True >") == 2  # both left off


@pytest.mark.parametrize("count", [0, 2])
def test_workers_share_out_models(count: int, tmp_path: Path) -> None:
    if count:
        pytest.importorskip("mpi4py")
    weights, held = DRAW.uniform(0.5, 2, 45), np.arange(9)
    more: dict[str, Any] = {
        "sample_weight": weights, "class_weight": {0: 1.0, 1: 2.0, 2: 1.5},
        "rows": [np.arange(k, 45) for k in range(5)], "validation_rows": [held] * 5,
        "callbacks": [md.callbacks.EarlyStopping(patience=0, restore_best=True)],
    }  # fmt: skip
    expected = trained(False, **more)
    further = trained_twice(parallel=False)
    with md.workers(count):
        assert trained(None, **more) == expected
        assert trained_twice() == further
        folds = md.cross_validate(
            lambda seed: network(seed), X, Y, folds=3, epochs=2, verbose=False
        )

        def saving(number: int) -> list[md.callbacks.Callback]:
            return [md.callbacks.Checkpoint(tmp_path / f"{number}")]

        trained(None, callbacks=saving, epochs=2)
    assert len({row["loss"] for row in folds.rows}) == 3
    whole = trained(False, epochs=4)
    assert trained(False, callbacks=saving, epochs=4)[0] == whole[0]


def trained_twice(**more: Any) -> list[str]:
    models = [network(k) for k in range(3)]
    for epochs in (2, 1):
        md.fit_many(models, X, Y, epochs=epochs, verbose=False, **more)
    return digests(models)


def test_what_cannot_travel_to_workers_is_told() -> None:
    prepared = network(0)
    prepared.preparation = md.data.Standardize()
    with md.workers(0):
        for models, options, what in (
            (
                [network(0)],
                {"callbacks": [Breaking(KeyError())]},
                r"Breaking of models\[0\] cannot travel",
            ),
            ([network(1), prepared], {}, r"a preparation of raw data of models\[1\]"),
            ([network(0)], {"augment": [object()]}, "a list for augment"),
        ):
            with pytest.raises(ArgumentError, match=what):
                md.fit_many(models, X, Y, verbose=False, **options)  # type: ignore[arg-type]
        with pytest.raises(DataError, match="class"):
            md.fit_many([network(0)], X, Y + 3, verbose=False)


def test_tables_are_compared_among_ranks() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcdef"))

    def run(comm: Any, differs: bool) -> list[str]:
        models = [network(k, preparation=md.data.Standardize()) for k in range(3)]
        own = frame + comm.rank if differs and comm else frame
        md.fit_many(models, own, Y, verbose=False, parallel=comm)
        x = models[2].predict(frame)
        return [*digests(models), str(x.tobytes().hex())]

    alone = run(False, False)
    assert simulate(2, run, False) == [alone] * 2
    with pytest.raises(DataError, match="ranks differ in x"):
        simulate(2, run, True)
