"""A search, and the folder of a workflow's run, whose process ends at each call that changes the disk.

Run by a test, in a process without threads, since it forks: prints after how many calls processes were
ended, and fails where one that goes on is refused, loses what was acknowledged, or hands it out again.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from magmadnn.search.study_folder import read_study
from magmadnn.storage.disk import Calls, calls
from magmadnn.workflow.description.reading import described
from magmadnn.workflow.ranks.plan_folder import create, open_folder
from tests.search.problems import untimed
from tests.search.test_exactly_once import Workers, searched

NAMES = [name for name in vars(Calls) if not name.startswith("_")]
KILLED = 9


def end_at(number: int, half: bool) -> None:
    """Let this process end at a call; `half`: it writes half of what it should, or the call is made."""
    seen = 0

    def bind(name: str) -> Callable[..., Any]:
        real = getattr(Calls, name).__get__(calls)

        def call(*arguments: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen > number:
                if half and name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                elif half:
                    real(*arguments)
                os._exit(KILLED)
            return None if name in ("sync", "sync_folder") else real(*arguments)

        return call

    vars(calls).update({name: bind(name) for name in NAMES})


def ended_at(number: int, half: bool, act: Callable[[], object]) -> bool:
    """Whether a process that does something was ended at a call."""
    child = os.fork()
    if not child:
        try:
            end_at(number, half)
            act()
            os._exit(0)
        except BaseException as error:
            print(f"call {number}: {error}", flush=True)
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED), f"call {number}: exit code {code}"
    return code == KILLED


def a_search(root: Path) -> int:
    """Ends a search at each call."""
    drawn = random.Random(1)
    expected, number = untimed(searched("random", Workers(drawn, Counter(), count=2))), 0
    while True:
        done = True
        for half in (False, True):
            folder = root / f"{number}-{half}"

            def act(folder: Path = folder) -> None:
                searched("random", Workers(drawn, Counter(), count=2), folder, folder.exists())

            if ended_at(number, half, act):
                done = False
            there = (
                set(read_study(folder)[1].results) if (folder / "study.json").exists() else set()
            )
            handed = Counter[tuple[int, int]]()
            study = searched("random", Workers(drawn, handed, count=2), folder, folder.exists())
            assert untimed(study) == expected, number
            assert not there & set(handed), number
            assert set(handed.values()) == {1} or not handed, number
            left = sorted(p.name for p in folder.iterdir())
            assert left == ["study.json", "trials.log"], left
            shutil.rmtree(folder)
        if done:
            return number
        number += 1


def a_run(root: Path) -> int:
    """Ends the making of a run's folder at each call."""
    data = {"name": "w", "modules": [{"name": "m", "command": ["true"]}]}
    number, done = 0, False
    while not done:
        done = True
        for half in (False, True):
            folder = root / "deep" / "run"
            description = described(data, root)
            if ended_at(number, half, lambda d=description, f=folder: create(f, d, f.exists())):  # type: ignore[misc]
                done = False
            made = create(folder, description, folder.exists())
            assert open_folder(folder).begin == made.begin
            assert [p.name for p in folder.iterdir()] == ["workflow.json"]
            shutil.rmtree(root / "deep")
        number += 1
    return number - 1


if __name__ == "__main__":
    print(a_search(Path(sys.argv[1])), a_run(Path(sys.argv[1])))
