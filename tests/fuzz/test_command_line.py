"""The command line: any words are refused in one line, and so are results and settings that are damaged."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magmadnn.cli import main
from magmadnn.cli.commands import COMMANDS
from magmadnn.cli.console import Console
from magmadnn.cli.runs.results import RESULT, read_result, say_result
from magmadnn.cli.runs.settings import Settings
from magmadnn.cli.train import parser as train_parser
from magmadnn.storage.formats.plain_json import seal
from magmadnn.storage.run_folder import RUN, read_run
from tests.fuzz.harness import Fuzz
from tests.fuzz.mutations import damaged, damaged_json

pytestmark = [pytest.mark.usefixtures("quick_sync"), pytest.mark.timeout(3600)]

OPTIONS = [option for action in train_parser()._actions for option in action.option_strings]
OPTIONS += [
    "--split",
    "--name",
    "--cpu",
    "--",
    "-",
    "--epoch",
    "-x",
    "--lr=0",
    "--seed=1",
    "--out=x",
]
WORDS = [
    "", " ", "0", "1", "-1", "1.5", "1e999", "nan", "inf", "9" * 30, "9" * 5000, "1,2", ",", "a,b", "mlp",
    "mnistt", "rows.csv", "nothing", "nothing.csv", ".", "..", "/", "~nobody", "x" * 300, "two\nlines",
    "\x1b[2J", "\udcff", "é", "%s%d%n", "{0}", "relu", "adam", "sgd", "cpu", "cuda", "mean", "drop",
    "float64", "mixed_bf16", "image", "table", "classification", "test", "show", "--help me", "$HOME",
    "*", "'", '"', "\\", "\t",
]  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    yield tmp_path


def words(rng: random.Random) -> list[str]:
    """A command, options of any kind, and a mistake at the end, so that nothing is trained or measured."""
    command = rng.choice([*COMMANDS, "train", "train", "train", rng.choice(WORDS)])
    found = [command]
    for _ in range(rng.choice([0, 1, 2, 3, 8])):
        found += [rng.choice(OPTIONS)] if rng.random() < 0.6 else []
        found += [rng.choice(WORDS)] if rng.random() < 0.8 else []
    return [*found, "--data", rng.choice(["nothing", "nothing.csv", "rows.csv", "."])]


def test_any_words(fuzz: Fuzz, place: Path) -> None:
    """Exit code 2 with one line; or 0 where help is asked for."""
    fuzz.files //= 2
    ended = {0: 0, 2: 0}

    def read(argv: list[str]) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(argv)
            except SystemExit as ended_by_help:
                code = int(ended_by_help.code or 0)
        return code, out.getvalue(), err.getvalue()

    def check(argv: list[str], result: tuple[int, str, str]) -> None:
        code, out, err = result
        ended[code] += 1
        if code == 0:
            assert {"-h", "--help", "--version"} & {*argv} and out and not err
            return
        assert (
            err.startswith("magmadnn: error: ") and err.count("\n") == 1 and err.endswith("\n")
        ), err
        assert err[:-1].isprintable() and len(err) < 6000 and "Traceback" not in err
        assert sorted(p.name for p in place.iterdir()) == ["rows.csv"]

    fuzz.run(words, read, check)
    assert ended[0] and ended[2] > fuzz.files / 2


def test_results(fuzz: Fuzz, place: Path) -> None:
    """A result is refused, or all of it can be printed."""
    fuzz.files //= 4
    document = {
        "test_loss": 0.5, "test_accuracy": 0.75, "baseline_majority_accuracy": 0.5,
        "trained_on": "training rows", "trained_rows": 1279, "kept_back_rows": 320,
        "validation_loss": 0.25, "best_epoch": 7,
        "validated_epochs": 9, "train_seconds": 3.5, "samples_per_second": 70.0, "epochs": 2, "seed": 0,
        "device": "cpu", "precision": "float32", "parameters_sha256": "0" * 64,
    }  # fmt: skip
    numbers = [10**400, 2**63, -(2**63), 1e308, 1e-320]

    def make(rng: random.Random) -> bytes:
        data = json.dumps(damaged_json(document, rng, numbers)).encode()
        return damaged(data, rng, [b"{", b"}", b"1e999"]) if rng.random() < 0.2 else data

    def read(data: bytes) -> str:
        (place / RESULT).write_bytes(data)
        found, out = read_result(place), io.StringIO()
        assert found is not None
        with contextlib.redirect_stdout(out):
            say_result(found, Console())
        return out.getvalue()

    def check(data: bytes, printed: str) -> None:
        assert all(line.isprintable() for line in printed.splitlines()) and len(printed) < 10_000

    fuzz.run(make, read, check)
    assert fuzz.found["read"] and fuzz.found["refused"]


def test_settings_of_runs(fuzz: Fuzz, place: Path) -> None:
    """What `--resume` reads of run.json, sealed anew with a right checksum."""
    arguments: dict[str, Any] = Settings.of(train_parser().read(["--data", "rows.csv"])).record()
    document = {"format": "magmadnn-run", "version": 1, "arguments": arguments}

    def make(rng: random.Random) -> bytes:
        changed = damaged_json(document, rng, ["mean", "sgd", 0.5, [3, 4], "table"])
        return seal(changed) if isinstance(changed, dict) else json.dumps(changed).encode()

    def read(data: bytes) -> Settings:
        (place / RUN).write_bytes(data)
        return Settings.from_record(read_run(place), "run")

    fuzz.files //= 5

    def check(data: bytes, found: Settings) -> None:
        assert Settings.from_record(found.record(), "run") == found

    fuzz.run(make, read, check)
    assert fuzz.found["read"] and fuzz.found["refused"]
